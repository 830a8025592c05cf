"""What theory forbids before anything is measured: configurations that do not fit, and the best
that one can reach.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from llmprof import theory
from llmprof.errors import LlmprofError
from llmprof.run.launch import ExperimentConfig
from llmprof.run.launch.config.models import PREFIX
from llmprof.run.launch.config.options import setting
from llmprof.run.launch.run import load as loads
from llmprof.run.launch.run.folder import machine
from llmprof.run.trials.objectives import Figure, Limit
from llmprof.theory.bound import nearest_device

_ONE_TOKEN: Final = 1
_UNKNOWN_WORK: Final = ("quantization", "speculative_config", "hf_overrides", "hf_config_path")
"""Arguments of an engine that change the work of a step in a way that is not counted here."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What a configuration can reach at best, from the device's data sheet.

    Attributes
    ----------
    best : mapping of str to float
        Least time (ns) or highest rate (1/s) by column; a column that is not bounded is missing.
    why : mapping of str to str
        What sets each of them, in words.
    refused : str
        Why the configuration cannot run at all; empty if it can, or if that is not known.
    """

    best: Mapping[str, float]
    why: Mapping[str, str]
    refused: str = ""

    def of(self, figure: Figure) -> float | None:
        """Best value of a figure; None if it is not bounded."""
        return self.best.get(figure.column)

    def forbids(self, slo: Sequence[Limit]) -> str:
        """Why no measurement can hold an SLO, in words; empty if one might."""
        if self.refused:
            return self.refused
        for limit in slo:
            best = self.of(limit.figure)
            beyond = limit.excess(best)
            if best is not None and beyond is not None and beyond > 0:
                column = limit.figure.column
                return (
                    f"{limit.text} cannot hold: {limit.figure.text(best)} at best"
                    f" ({self.why[column]})"
                )
        return ""


NOTHING: Final = Reach({}, {})


def this_device() -> str | None:
    """Name of this machine's first GPU; None without one."""
    gpus = machine()["gpus"]
    return str(gpus[0]["name"]) if gpus else None


def reach(config: ExperimentConfig, gpu: str | None) -> Reach:
    """What a configuration can reach at best on a device.

    The least time to a first token is that of a step that reads the shortest prompt alone; the
    least time of another token that of a decode step of one request. Output tokens a second are at
    most those of decode steps of as many requests as run at once. All at the peaks of the data
    sheet, so nothing can be better, and much is worse. Without a device, with a model that theory
    does not know, or where drafts or quantization change the work, nothing is bounded.
    """
    if gpu is None or any(config.engine_args.get(name) for name in _UNKNOWN_WORK):
        return NOTHING
    prompt, answer, at_once = _least(config)
    kv = str(config.engine_args.get("kv_cache_dtype", "auto"))
    options: dict[str, Any] = {
        "seq_len": prompt,
        "generate_len": answer,
        "tp_size": config.tensor_parallel_size,
        "pp_size": config.pipeline_parallel_size,
        "dtype": "fp32" if config.dtype == "float32" else None,
        "kv_cache_dtype": "fp8" if kv.startswith("fp8") else None,
        "memory_utilization": _share_of_memory(config.engine_args),
    }
    try:
        place, _ = nearest_device(gpu)
    except LlmprofError:  # a device that is not known has no bound
        return NOTHING
    try:
        alone, full = (
            _profile(config.model, gpu, count, tuple(options.items())) for count in (1, at_once)
        )
    except LlmprofError as error:
        return (
            Reach({}, {}, f"it cannot run on {place.name}: {error}")
            if _known(config.model)
            else NOTHING
        )
    least = {"tpot_ns": alone.decode_latency_s * 1e9, "itl_ns": alone.decode_latency_s * 1e9}
    step = f"a decode step of one request on {place.name}"
    why = {"tpot_ns": step, "itl_ns": step}
    cached = config.engine_args.get("enable_prefix_caching") or setting(
        config, "load", "shared_prefix"
    )
    first = 0.0 if cached else alone.prefill_latency_s
    if first:
        least["ttft_ns"], why["ttft_ns"] = (
            first * 1e9,
            f"a prompt of {prompt} tokens alone on {place.name}",
        )
    least["e2e_ns"] = (first + max(0, answer - 1) * alone.decode_latency_s) * 1e9
    why["e2e_ns"] = f"a request of {prompt} and {answer} tokens alone on {place.name}"
    rate = at_once / full.decode_latency_s
    least |= {"output_tokens_per_s": rate, "requests_per_s": rate / answer}
    steps = f"decode steps of {at_once} requests on {place.name}"
    why |= {"output_tokens_per_s": steps, "requests_per_s": steps}
    return Reach(least, why)


def _share_of_memory(engine_args: Mapping[str, Any]) -> float:
    """Share of the device that the engine takes at most; with a size of its cache it does not
    look at the share.
    """
    return (
        1.0
        if engine_args.get("kv_cache_memory_bytes")
        else float(engine_args.get("gpu_memory_utilization", 1.0))
    )


@functools.cache
def _profile(
    model: str, gpu: str, batch_size: int, options: tuple[tuple[str, Any], ...]
) -> theory.Profile:
    given = model if model.startswith(PREFIX) else Path(model)
    return theory.profile(given, nearest_device(gpu)[0], batch_size=batch_size, **dict(options))


def _known(model: str) -> bool:
    """Whether theory knows the shape of a model."""
    try:
        theory.shape(model if model.startswith(PREFIX) else Path(model))
    except LlmprofError:
        return False
    return True


def _least(config: ExperimentConfig) -> tuple[int, int, int]:
    """Shortest prompt and answer (tokens) of a configuration's load, and the most requests at
    once.
    """
    given = loads.load(config)
    if given is not None and given.texts is None:
        prompt, count = min(given.input_tokens), len(given.input_tokens)
    else:
        written = given is not None or config.prompt is not None or config.prompt_file is not None
        tokens = config.input_tokens or loads.DEFAULT_INPUT_TOKENS
        prompt = _ONE_TOKEN if written else tokens[0] if isinstance(tokens, tuple) else tokens
        count = (
            setting(config, "server", "num_prompts") if config.served else config.batch_size or 1
        )
    answer = (
        min(given.output_tokens) if given is not None and given.output_tokens else config.max_tokens
    )
    at_once = count
    if config.served:
        at_once = setting(config, "server", "max_concurrency") or count
    at_once = min(at_once, config.engine_args.get("max_num_seqs") or at_once)
    return max(prompt, 1), answer if config.ignore_eos else _ONE_TOKEN, max(1, at_once)
