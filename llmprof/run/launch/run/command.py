"""Command lines, environment and jobs of a run; command lines are lists of arguments, never
shell strings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from llmprof.errors import ConfigError
from llmprof.run.launch.config import disclosure
from llmprof.run.launch.config.disclosure import SECRET, secret_arguments
from llmprof.run.launch.config.options import OPS, SERVER, ExperimentConfig, setting
from llmprof.run.launch.run.load import as_tokens, load, synthetic, texts
from llmprof.run.workers.machine import SAFE, SPAWNED, has_tokenizer
from llmprof.trace.storage import typed
from llmprof.trace.storage.pseudonyms import REMOVED


def environment(config: ExperimentConfig, *, mode: str | None = None) -> dict[str, str]:
    """Environment variables that a run sets for the engine; ``config.environment`` overrides all
    of them.
    """
    mode = mode or config.profile_mode
    variables = SAFE | (SPAWNED if PROFILERS[mode] == "cuda" else {})
    if config.model.startswith("random:") or Path(config.model).is_dir():
        variables |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if mode == "ncu" or config.profile_mode == "nsys_ncu":
        # one process for the engine: all requests arrive before the first step, so each pass has
        # the same launches
        variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if config.layer_annotations and mode in {"nsys", "nsys_ncu", "ncu"}:
        # vLLM's V2 runner ignores NVTX ranges of layers without a warning
        variables["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    return variables | {
        name: value for name, value in config.environment.items() if value != REMOVED
    }


def whole_environment(
    config: ExperimentConfig, inherited: Mapping[str, str], *, mode: str | None = None
) -> dict[str, str]:
    """Environment of the engine's process: inherited variables, and those that the run sets.

    nsys and ncu write the whole environment into their reports. So they do not get variables that
    look like secrets, unless the configuration names them.
    """
    recorded = (mode or config.profile_mode) in {"nsys", "nsys_ncu", "ncu"}
    named = {name for name, value in config.environment.items() if value == REMOVED}
    kept = {
        k: value
        for k, value in inherited.items()
        if k in named or not (recorded and SECRET.search(k))
    }
    return kept | environment(config, mode=mode) | secret_arguments(config.engine_args)


NSYS: Final[dict[str, Any]] = {
    "trace": "cuda,nvtx",
    "sample": "none",
    "cpuctxsw": "none",
    "cuda-graph-trace": "node",
    "trace-fork-before-exec": True,
    "capture-range": "cudaProfilerApi",
    "capture-range-end": "stop",
    "force-overwrite": True,
}
"""Options of ``nsys profile``.

The nodes of CUDA graphs are traced; otherwise a graph would be one row with about 97 % of the time.
The capture range leaves out the start of the engine. By default its end would stop the program.
"""

NCU: Final[dict[str, Any]] = {
    "target-processes": "all",
    "profile-from-start": "off",
    "replay-mode": "kernel",
    "graph-profiling": "node",
    "clock-control": "none",
    "filter-mode": "per-gpu",
    "kernel-name-base": "function",
}
"""Options of ``ncu``: clocks stay as they are, and kernels before cudaProfilerStart are not
profiled.
"""

COLLECTIVES: Final = (
    "(nccl|NCCL|rccl|cross_device_reduce|all_?reduce|AllReduce|all_?gather|AllGather|reduce_?scatter|ReduceScatter|"
    "multimem|one_?shot|two_?shot|nvshmem|deep_ep)"
)
"""Pattern of kernels that wait for other ranks: ncu replays a kernel alone, so they would wait
forever.
"""

DEFAULT_LAUNCHES: Final = 24
"""Launches that ncu profiles by default; with the full set of metrics this takes about a minute."""


def worker(config: ExperimentConfig, script: Path, out: Path) -> list[str]:
    """Command that runs the engine script."""
    return [config.python, str(script), "--out", str(out)]


def nsys(
    config: ExperimentConfig,
    program: Sequence[str],
    report: Path,
    *,
    executable: str | Path = "nsys",
) -> list[str]:
    """Command that records a timeline with Nsight Systems."""
    memory = {"cuda-memory-usage": True} if config.profile_memory else {}
    options = _over(NSYS | memory, config.nsys_options)
    return [
        str(executable),
        "profile",
        *_written(options, true="true"),
        f"--output={report}",
        *program,
    ]


def ncu(
    config: ExperimentConfig,
    program: Sequence[str],
    report: Path,
    *,
    kernels: Sequence[str] = (),
    skip: int | None = None,
    count: int | None = None,
    device: int | None = None,
    executable: str | Path = "ncu",
) -> list[str]:
    """Command that measures kernels with Nsight Compute, without collectives unless they are
    named.
    """
    requested = {
        key: setting(config, "ncu_options", key)
        for key in ("kernel_name", "launch_skip", "launch_count")
    }
    options: dict[str, Any] = dict(NCU)
    if device is not None:
        options["devices"] = device
    if name := _kernel_names(config, requested["kernel_name"], kernels):
        options["kernel-name"] = f"regex:{name}"
    options["launch-skip"] = (
        requested["launch_skip"] if requested["launch_skip"] is not None else skip or 0
    )
    options["launch-count"] = requested["launch_count"] or count or DEFAULT_LAUNCHES
    options["set"] = setting(config, "ncu_options", "set")
    options["force-overwrite"] = True
    options = _over(options, setting(config, "ncu_options", "options"))
    return [str(executable), *_written(options, true=None), "--export", str(report), *program]


def _kernel_names(config: ExperimentConfig, name: str | None, kernels: Sequence[str]) -> str:
    """Regular expression of the kernels to profile; of several ranks, without collectives unless
    one is named.
    """
    pattern = (name or "").removeprefix("regex:")
    if pattern and (config.world_size == 1 or asks_for_collectives(config)):
        return pattern
    if pattern:
        return f"^(?!.*{COLLECTIVES}).*(?:{pattern})"
    if kernels:
        return f"^({'|'.join(exactly(name) for name in kernels)})$"
    return f"^(?!.*{COLLECTIVES})" if config.world_size > 1 else ""


def asks_for_collectives(config: ExperimentConfig) -> bool:
    """Whether the kernels that a configuration names are collectives of several ranks."""
    name = setting(config, "ncu_options", "kernel_name")
    return config.world_size > 1 and name is not None and re.search(COLLECTIVES, name) is not None


def exactly(name: str) -> str:
    """A regular expression that matches one name only; a character that cannot be printed
    matches any character.
    """
    return re.sub(r"[^\x20-\x7e]", ".", re.sub(r"([.^$*+?()\[\]{}|\\/])", r"\\\1", name))


def export_command(report: Path, target: Path, *, executable: str | Path = "nsys") -> list[str]:
    """Command that exports a report of nsys to SQLite."""
    return [
        str(executable),
        "export",
        "--type=sqlite",
        "--force-overwrite=true",
        f"--output={target}",
        str(report),
    ]


def _over(options: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    changes = {key.removeprefix("--"): value for key, value in changes.items()}
    return {key: value for key, value in {**options, **changes}.items() if value is not None}


def _written(options: Mapping[str, Any], *, true: str | None) -> list[str]:
    """Options as arguments: ``--name=value``, or for ncu (which has switches) ``--name value``."""
    words = []
    for key, value in options.items():
        if true is not None:
            words.append(f"--{key}={str(value).lower() if isinstance(value, bool) else value}")
        elif value is True:
            words.append(f"--{key}")
        elif value is not False:
            words += [f"--{key}", str(value)]
    return words


PROFILERS: Final = {
    "inference_only": "none",
    "torch": "torch",
    "nsys": "cuda",
    "nsys_ncu": "cuda",
    "ncu": "cuda",
    "ops": "ops",
}
"""Profiler that the engine starts and stops in each mode; nsys and ncu record from
cudaProfilerStart to Stop.
"""

_AS_CONFIGURED: Final = (
    *(
        "engine",
        "served",
        "disaggregate",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "dtype",
        "max_model_len",
        "eager",
    ),
    *(
        "all_reduce",
        "seed",
        "temperature",
        "top_p",
        "n",
        "ignore_eos",
        "warmup",
        "most_repeats",
        "max_iterations",
    ),
    *("with_stack", "record_shapes", "profile_memory", "layer_annotations"),
)
_WEIGHTS: Final = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")


def job(
    config: ExperimentConfig,
    model: str | Path,
    *,
    under_ncu: bool = False,
    steps: int | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Job of one run: the data in the engine script."""
    notes: list[str] = []
    folder = Path(model)
    local = folder.is_dir()
    random_weights = (
        config.model.startswith("random:") or config.engine_args.get("load_format") == "dummy"
    )
    if local and not random_weights and not any(next(folder.glob(kind), None) for kind in _WEIGHTS):
        random_weights = True
        notes.append(
            "the model's folder has no weights, so they are random: times are real, the text is not"
        )
    content = _model_values(folder)
    size = content.get("vocab_size")
    vocabulary = size if isinstance(size, int) and size > 0 else None
    _check_shape(config, content)
    requested_load = load(config)
    prompts = texts(config)
    if requested_load is not None:
        prompts = requested_load.texts or prompts
        notes += requested_load.notes
    tokens: list[list[int]] | None = None
    lengths = None if requested_load is None else requested_load.input_tokens
    made_up = synthetic(config, vocabulary, lengths) if prompts is None else None
    count = len(made_up["lengths"] if made_up is not None else prompts or ())
    if prompts is not None and local and not has_tokenizer(str(model)):
        tokens, prompts = as_tokens(prompts, vocabulary), None
        notes.append("the model has no tokenizer, so each byte of a prompt stands for one token")
    shares_prefixes = setting(config, "load", "shared_prefix") > 0
    tokens_out = config.max_tokens if steps is None else min(config.max_tokens, steps)
    if tokens_out < config.max_tokens:
        ends = f"the run under ncu ends after {tokens_out} output tokens"
        notes.append(f"{ends}: steps are slow under ncu, and these are enough")
    values: dict[str, Any] = {
        **{name: getattr(config, name) for name in _AS_CONFIGURED},
        "profiler": PROFILERS[config.profile_mode],
        "model": str(model),
        "random_weights": random_weights,
        "batch_size": config.batch_size if config.served else count,
        "prompts": prompts,
        "prompt_token_ids": tokens,
        "synthetic": made_up,
        "load": {"arrivals_s": requested_load.arrivals_s} if requested_load is not None else None,
        "max_tokens_each": requested_load.output_tokens
        if requested_load is not None and steps is None
        else None,
        "max_tokens": tokens_out,
        "repeat": 1 if under_ncu else config.repeat,
        "until": None if under_ncu else config.until,
        "plain": not under_ncu and (config.plain or config.profile_mode == "inference_only"),
        "profile_repeats": 1,
        "memory_snapshot": config.memory_snapshot
        and config.profile_mode not in {"ncu", "nsys_ncu"},
        "prefix_caching": bool(config.engine_args.get("enable_prefix_caching", shares_prefixes)),
        "engine_args": disclosure.for_script(config.engine_args),
        "ops": {key: setting(config, "ops_options", key) for key in OPS}
        if config.profile_mode == "ops"
        else None,
        "server": {key: setting(config, "server", key) for key in SERVER},
    }
    if requested_load is not None:
        values["server"]["num_prompts"] = len(requested_load.input_tokens)
    return values, notes


def _check_shape(config: ExperimentConfig, values: Mapping[str, Any]) -> None:
    """Raise ConfigError before an engine is started if the model cannot be split as configured."""
    heads, layers = (values.get(name) for name in ("num_attention_heads", "num_hidden_layers"))
    size, stages = config.tensor_parallel_size, config.pipeline_parallel_size
    if isinstance(heads, int) and heads % size:
        fitting = [n for n in range(1, heads + 1) if heads % n == 0]
        found = f"tensor_parallel_size is {size}, and the model has {heads} attention heads"
        raise ConfigError(
            found, expected=f"one of {', '.join(map(str, fitting))}", key="tensor_parallel_size"
        )
    if isinstance(layers, int) and layers < stages:
        found = f"pipeline_parallel_size is {stages}, and the model has {layers} layers"
        raise ConfigError(found, expected=f"at most {layers}")


def _model_values(folder: Path) -> dict[str, Any]:
    """Values of a model's ``config.json``; empty if the model is not a folder that has one."""
    values = typed.read_if_whole(folder / "config.json", dict[str, Any]) or {}
    text = values.get("text_config")
    return {**(text if isinstance(text, dict) else {}), **values}
