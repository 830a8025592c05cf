"""The job of an engine script: what a configuration means for one run of the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llmprof.launch import _prompts
from llmprof.launch._rules import SERVER, setting

if TYPE_CHECKING:
    from llmprof.launch.config import ExperimentConfig

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
    prompts = _prompts.texts(config)
    tokens = _prompts.synthetic(config, vocabulary) if prompts is None else None
    if prompts is not None and local and not any((folder / name).exists() for name in _TOKENIZERS):
        tokens, prompts = _prompts.as_tokens(prompts, vocabulary), None
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
        "engine_args": config.engine_args,
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
