"""Options of ``llmprof run`` and ``sweep``: the names of the configuration, and how their text becomes a value."""

from __future__ import annotations

import argparse
import json
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmprof.errors import ConfigError

if TYPE_CHECKING:
    from llmprof.launch import ExperimentConfig

MODES = ("inference_only", "torch", "nsys", "nsys_ncu", "ncu")
_PLAIN: tuple[tuple[str, Any, str, str], ...] = (
    ("max_tokens", int, "N", "tokens to generate for each prompt"),
    ("temperature", float, "X", "0 takes the likeliest token"),
    ("batch_size", int, "N", "prompts at once"),
    ("tensor_parallel_size", int, "N", "ranks that share each layer"),
    ("pipeline_parallel_size", int, "N", "ranks that share the layers"),
    ("dtype", str, "NAME", "type of the weights, such as bfloat16"),
    ("max_model_len", int, "N", "longest prompt and answer together"),
    ("warmup", int, "N", "runs before anything is measured"),
    ("repeat", int, "N", "measured runs without profiler"),
    ("seed", int, "N", "seed of weights, prompts and sampling"),
    ("max_iterations", int, "N", "steps of the engine that are profiled, 0 for all"),
    ("timeout_s", float, "S", "longest time of one pass"),
    ("monitor_hz", float, "HZ", "samples a second of GPU, CPU and memory, 0 for none"),
    ("python", str, "FILE", "interpreter that has the engine"),
    ("results_dir", str, "DIR", "folder of the run folders"),
    ("experiment_name", str, "NAME", "name of the experiment"),
)
_SWITCHES = (
    ("served", "profile a server under load instead of one batch"),
    ("eager", "without CUDA graphs and compilation"),
    ("ignore_eos", "generate max_tokens whatever the model says"),
    ("plain", "also measure without profiler, for the overhead"),
    ("with_stack", "record Python stacks (large, slow)"),
    ("record_shapes", "record shapes of the operators"),
    ("layer_annotations", "label each layer in the trace"),
)
_MAPPINGS = (
    ("engine_arg", "engine_args", "option of the engine; VALUE is JSON, or text"),
    ("server", "server", "setting of the served run, such as num_prompts=32"),
    ("nsys_option", "nsys_options", "option of nsys profile, such as gpu-metrics-devices=all"),
    ("ncu_option", "ncu_options", "kernel_name, launch_skip, launch_count, set or top"),
    ("env", "environment", "variable of the engine's environment"),
)


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of a configuration; what is not given stays None."""
    what = parser.add_argument_group("what to run")
    what.add_argument("--config", type=Path, metavar="FILE", help="YAML or JSON file; options go over it")
    what.add_argument("--model", metavar="NAME", help="folder, hub name, or random:NAME (random weights)")
    what.add_argument("--prompt", action="append", metavar="TEXT", help="prompt; may be given several times")
    what.add_argument("--prompt-file", metavar="FILE", help="file with one prompt a line, or JSON lines")
    what.add_argument("--input-tokens", metavar="N", help="synthetic prompts of N tokens, or LOW:HIGH")
    what.add_argument("--profile-mode", choices=MODES, metavar="MODE", help=f"one of {', '.join(MODES)}")
    what.add_argument("--engine", choices=("vllm", "transformers"), metavar="NAME", help="vllm or transformers")
    what.add_argument("--all-reduce", choices=("auto", "nccl", "custom"), metavar="KIND", help="auto, nccl or custom")
    for name, kind, metavar, words in _PLAIN:
        what.add_argument(_flag(name), type=kind, metavar=metavar, help=words)
    for name, words in _SWITCHES:
        what.add_argument(_flag(name), action=argparse.BooleanOptionalAction, default=None, help=words)
    for name, _, words in _MAPPINGS:
        what.add_argument(_flag(name), action="append", metavar="KEY=VALUE", help=words)


def _flag(name: str) -> str:
    return f"--{name.removesuffix('_s')}".replace("_", "-")


def changes(args: Namespace) -> dict[str, Any]:
    """What the options say, by the names of the configuration; what was not given is absent."""
    names = [name for name, *_ in (*_PLAIN, *_SWITCHES)]
    names += ["model", "prompt_file", "profile_mode", "engine", "all_reduce"]
    flags = {name: _flag(name).removeprefix("--").replace("-", "_") for name in names}
    given = {name: getattr(args, flag) for name, flag in flags.items() if getattr(args, flag) is not None}
    if args.prompt is not None:
        given["prompt"] = args.prompt[0] if len(args.prompt) == 1 else args.prompt
    if args.input_tokens is not None:
        given["input_tokens"] = lengths(args.input_tokens)
    for flag, name, _ in _MAPPINGS:
        if getattr(args, flag) is not None:
            pairs = (key_value(item, f"--{flag.replace('_', '-')}", text=flag == "env") for item in getattr(args, flag))
            given[name] = dict(pairs)
    return given


def config_of(args: Namespace) -> ExperimentConfig:
    """The configuration: the file first, the options over it; mappings are joined key by key."""
    from llmprof.launch import ConfigManager, ExperimentConfig

    given = changes(args)
    if args.config is None:
        return ExperimentConfig.from_dict(given)
    config = ConfigManager.load_config(args.config)
    for _, name, _ in _MAPPINGS:
        if name in given:
            given[name] = dict(getattr(config, name)) | given[name]
    if given.keys() & {"prompt", "prompt_file", "input_tokens"}:
        given = dict.fromkeys(("prompt", "prompt_file", "input_tokens")) | given
    return config.replace(**given)


def lengths(text: str) -> int | tuple[int, int]:
    """``64`` as 64, ``32:128`` as (32, 128)."""
    parts = text.split(":")
    if len(parts) > 2 or not all(part.isdigit() for part in parts):
        raise ConfigError(f"--input-tokens {text!r} is no length", expected="N, or LOW:HIGH")
    numbers = [int(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


def key_value(item: str, flag: str, *, text: bool = False) -> tuple[str, Any]:
    """``key=value`` as a name and a value: JSON where the value is JSON, else text."""
    key, equals, said = item.lstrip("-").partition("=")
    if not key or not equals:
        raise ConfigError(f"{flag} {item!r} has no value", expected=f"{flag} KEY=VALUE")
    if text:
        return key, said
    try:
        return key, json.loads(said)
    except ValueError:
        return key, said
