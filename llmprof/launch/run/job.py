"""The job of an engine script: what a configuration means for one run of the engine."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llmprof.errors import ConfigError
from llmprof.launch.config import disclosure
from llmprof.launch.config.files import read_text
from llmprof.launch.config.rules import SERVER, setting

if TYPE_CHECKING:
    from llmprof.launch.config.options import ExperimentConfig

DEFAULT_INPUT_TOKENS: Final = 64
_FIRST_ID, _LAST_ID = 5, 30_000
"""Tokens of synthetic prompts: neither the special ones at the start of a vocabulary nor the rare ones at its end."""

_KEYS: Final = ("prompt", "text", "instruction", "question", "content")


def texts(config: ExperimentConfig) -> list[str] | None:
    """Texts of a configuration, repeated or cut to its batch size; None for synthetic prompts.

    Raises
    ------
    ConfigError
        The file is missing, not UTF-8, or has no prompts.
    """
    if config.prompt is not None:
        found = [config.prompt] if isinstance(config.prompt, str) else config.prompt
    elif config.prompt_file is not None:
        found = from_file(Path(config.prompt_file))
    else:
        return None
    wanted = config.batch_size or len(found)
    return [found[i % len(found)] for i in range(wanted)]


def from_file(path: Path) -> list[str]:
    """Prompts of a file: lines of text, or JSON with texts or objects that have a prompt.

    Parameters
    ----------
    path : pathlib.Path
        ``.json`` (a list), ``.jsonl`` (a value a line), anything else is text with a prompt a line. Objects are
        asked for ``prompt``, ``text``, ``instruction``, ``question`` or ``content``, and for the first turn of
        ``conversations`` or ``messages``.

    Raises
    ------
    ConfigError
        The file is missing, not UTF-8, not valid JSON, or has no prompts.
    """
    content = read_text(path, "prompts as UTF-8 text or JSON")
    try:
        if path.suffix == ".json":
            document = json.loads(content)
            items = document if isinstance(document, list) else [document]
        elif path.suffix in {".jsonl", ".ndjson"}:
            items = [json.loads(line) for line in content.splitlines() if line.strip()]
        else:
            items = [line for line in content.splitlines() if line.strip()]
    except ValueError as error:
        raise ConfigError(f"{path.name} is not valid JSON: {error}", hint="correct it, or name it .txt") from error
    found = [text for item in items if (text := _text(item))]
    if not found:
        raise ConfigError(
            f"{path.name} has no prompts", expected=f"texts, or objects with one of the keys {', '.join(_KEYS)}"
        )
    return found


def synthetic(config: ExperimentConfig, vocabulary: int | None) -> list[list[int]]:
    """Token numbers of synthetic prompts; the same for the same seed.

    Parameters
    ----------
    config : ExperimentConfig
        Says how many and how long.
    vocabulary : int or None
        Size of the model's vocabulary, if it is known.
    """
    lengths = config.input_tokens or DEFAULT_INPUT_TOKENS
    low, high = lengths if isinstance(lengths, tuple) else (lengths, lengths)
    chance = random.Random(config.seed)  # noqa: S311 (no secret)
    last = max(_FIRST_ID + 1, min(vocabulary or _LAST_ID, _LAST_ID))
    return [
        [chance.randrange(_FIRST_ID, last) for _ in range(chance.randint(low, high))]
        for _ in range(config.batch_size or 1)
    ]


def as_tokens(prompts: list[str], vocabulary: int | None) -> list[list[int]]:
    """A token a byte of the text, for models without a tokenizer."""
    room = max(1, (vocabulary or _LAST_ID) - _FIRST_ID)
    return [[_FIRST_ID + byte % room for byte in prompt.encode()] for prompt in prompts]


def _text(item: Any) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, dict):
        for key in _KEYS:
            if isinstance(item.get(key), str):
                return str(item[key])
        for key in ("conversations", "messages"):
            turns = item.get(key)
            if isinstance(turns, list) and turns and isinstance(turns[0], dict):
                first = turns[0].get("value", turns[0].get("content"))
                return first if isinstance(first, str) else ""
    return ""


PROFILERS: Final = {"inference_only": "none", "torch": "torch", "nsys": "cuda", "nsys_ncu": "cuda", "ncu": "cuda"}
"""Profiler that the engine itself starts and stops: nsys and ncu record between cudaProfilerStart and Stop."""

_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "spiece.model")
_WEIGHTS: Final = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")


def job(
    config: ExperimentConfig, model: str | Path, *, under_ncu: bool = False, steps: int | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Job of one run.

    Parameters
    ----------
    config : ExperimentConfig
        What is run.
    model : path or str
        Folder of the model, or its name on a hub.
    under_ncu : bool
        The run is for ncu, which replays kernels: nothing is measured without profiler.
    steps : int, optional
        The run is over after so many steps of the engine at the earliest: fewer tokens do.

    Returns
    -------
    dict
        What the engine script takes; plain data.
    list of str
        Notes on what was decided here.

    Raises
    ------
    ConfigError
        The prompt file is missing, not UTF-8 or has no prompts.
    """
    notes: list[str] = []
    folder = Path(model)
    local = folder.is_dir()
    random_weights = config.model.startswith("random:") or config.engine_args.get("load_format") == "dummy"
    if local and not random_weights and not any(next(folder.glob(kind), None) for kind in _WEIGHTS):
        random_weights = True
        notes.append("the model's folder has no weights, so they are random: times are real, the text is not")
    vocabulary = vocabulary_size(folder) if local else None
    prompts = texts(config)
    tokens = synthetic(config, vocabulary) if prompts is None else None
    if prompts is not None and local and not any((folder / name).exists() for name in _TOKENIZERS):
        tokens, prompts = as_tokens(prompts, vocabulary), None
        notes.append("the model has no tokenizer, so each byte of a prompt stands for one token")
    tokens_out = config.max_tokens if steps is None else min(config.max_tokens, steps)
    if tokens_out < config.max_tokens:
        notes.append(
            f"the run under ncu ends after {tokens_out} output tokens: steps are slow there, and these suffice"
        )
    made = {
        "engine": config.engine,
        "served": config.served,
        "profiler": PROFILERS[config.profile_mode],
        "model": str(model),
        "random_weights": random_weights,
        "tensor_parallel_size": config.tensor_parallel_size,
        "pipeline_parallel_size": config.pipeline_parallel_size,
        "batch_size": len(prompts or tokens or ()),
        "prompts": prompts,
        "prompt_token_ids": tokens,
        "max_tokens": tokens_out,
        "temperature": config.temperature,
        "ignore_eos": config.ignore_eos,
        "seed": config.seed,
        "warmup": config.warmup,
        "repeat": 1 if under_ncu else config.repeat,
        "plain": not under_ncu and (config.plain or config.profile_mode == "inference_only"),
        "profile_repeats": 1,
        "max_iterations": config.max_iterations,
        "with_stack": config.with_stack,
        "record_shapes": config.record_shapes,
        "layer_annotations": config.layer_annotations,
        "all_reduce": config.all_reduce,
        "eager": config.eager,
        "dtype": config.dtype,
        "max_model_len": config.max_model_len,
        "engine_args": disclosure.for_script(config.engine_args),
        "server": {key: setting(config, "server", key) for key in SERVER},
    }
    return made, notes


def vocabulary_size(folder: Path) -> int | None:
    """``vocab_size`` of a model's ``config.json``; None where it is not said."""
    try:
        values = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    text = values.get("text_config")
    found = values.get("vocab_size", text.get("vocab_size") if isinstance(text, dict) else None)
    return found if isinstance(found, int) and found > 0 else None
