"""Prediction of other limits of a step: the same requests in other steps, timed by a calibrated device."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from llmprof import analyze, theory
from llmprof.batch.parameters import apply
from llmprof.errors import LlmprofError
from llmprof.launch import ExperimentConfig, Run
from llmprof.launch.config.models import PREFIX
from llmprof.launch.config.options import setting
from llmprof.theory.bound import nearest_device
from llmprof.theory.plan import Batch, Plan, Requests
from llmprof.theory.profiler import machine_for

LIMITS: Final = ("engine_args.max_num_seqs", "engine_args.max_num_batched_tokens", "engine_args.enable_chunked_prefill")
"""Settings that change only which requests and tokens are in a step."""

_CONTEXT: Final = 32
"""Contexts of a step are rounded to this many tokens: neighbouring steps then take one calculation."""
_MOST_STEPS: Final = 20_000
_WORK: Final = ("quantization", "speculative_config", "hf_overrides", "enable_prefix_caching", "async_scheduling")


class NoPredictionError(Exception):
    """Why a change of limits is not predicted."""


def predicted(run: Run, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Gain of the time of all requests by other limits of a step.

    The scheduler of vLLM is played through for the lengths of the run's requests, with its limits and with the changed
    ones. Each step has the time that the calibration of the device gives it, corrected so that the steps of the run
    take what was recorded: decode steps and steps with a prompt apart, each once by a factor and once by an amount that
    is the same for every step. The interval covers these four ways and the errors of the calibration (90 % of its
    measured steps).

    Raises
    ------
    NoPredictionError
        Something of the run or the change has no calibrated time; it says what.
    """
    if not fields or set(fields) - set(LIMITS):
        raise NoPredictionError("it changes more than the limits of a step")
    before, after = run.config, apply(run.config, dict(fields))
    _check(before)
    batches = [list(steps(_lengths(run), *_limits(config))) for config in (before, after)]
    times = _Times(run, before, batches[0])
    classes = [{kind: _sums(times, batches[k], kind) for kind in ("decode", "prefill")} for k in (0, 1)]
    gains = {}
    for ways in itertools.product(("factor", "amount"), repeat=2):
        way = dict(zip(("decode", "prefill"), ways, strict=True))
        for decode, prefill in itertools.product((-1, 0, 1), repeat=2):
            off = {"decode": decode * times.error["decode"], "prefill": prefill * times.error["prefill"]}
            total = [
                sum(times.corrected(kind, way[kind], *classes[k][kind], off=off[kind] * k) for kind in way)
                for k in (0, 1)
            ]
            gains[*ways, decode, prefill] = 1 - total[1] / total[0]
    middle = [gains[*ways, 0, 0] for ways in itertools.product(("factor", "amount"), repeat=2)]
    return {
        "gain": sum(middle) / len(middle),
        "low": min(gains.values()),
        "high": max(gains.values()),
        "of": f"{len(batches[0])} steps that become {len(batches[1])}",
        "plain": True,
    }


def _check(config: ExperimentConfig) -> None:
    if config.engine != "vllm" or config.eager or config.layer_annotations:
        raise NoPredictionError("steps are calibrated for vLLM with a compiled model and CUDA graphs (eager: false)")
    if config.tensor_parallel_size * config.pipeline_parallel_size > 1:
        raise NoPredictionError("steps are calibrated for one rank")
    if config.served and (setting(config, "server", "request_rate") or config.load.get("file")):
        raise NoPredictionError("requests come at their own times, so the steps are not known")
    if other := [name for name in _WORK if config.engine_args.get(name)]:
        raise NoPredictionError(f"{other[0]} changes the work of a step in a way that is not counted")


def _limits(config: ExperimentConfig) -> tuple[int, int]:
    """Most requests and most tokens of a step."""
    at_once, chunk = (config.engine_args.get(name) for name in ("max_num_seqs", "max_num_batched_tokens"))
    if not at_once or not chunk:
        raise NoPredictionError("max_num_seqs and max_num_batched_tokens of the run are not set, so they are not known")
    if config.served:
        at_once = min(at_once, setting(config, "server", "max_concurrency") or at_once)
    return int(at_once), int(chunk)


def _lengths(run: Run) -> list[tuple[int, int]]:
    """Tokens of prompt and answer of each request of the first plain repeat."""
    rows = run.requests.filter(phase="plain", repeat=0).select("prompt_tokens", "output_tokens")
    if rows.is_empty() or sum(rows.null_count().row(0)):
        raise NoPredictionError("the run has no repeat without a profiler whose lengths are known")
    return [(int(prompt), max(1, int(answer))) for prompt, answer in rows.rows()]


def steps(lengths: Sequence[tuple[int, int]], at_once: int, chunk: int) -> Iterator[Batch]:
    """Steps of vLLM's scheduler for requests that are all there: first what runs, then the next of the queue.

    Examples
    --------
    >>> [[(one.phase, one.count, one.query) for one in step] for step in steps([(6, 2), (4, 2)], 2, 8)]
    [[('prefill', 2, 4.0)], [('decode', 1, 1), ('prefill', 1, 2.0)], [('decode', 1, 1)]]
    """
    waiting, running = list(reversed(lengths)), []  # of a running request: read, prompt, answered, answer
    while waiting or running:
        left, decoded, read = chunk, [], []
        for one in running:
            if left:
                new = 1 if one[0] >= one[1] else min(left, one[1] - one[0])
                (decoded if one[0] >= one[1] else read).append((one, new))
                left -= new
        while waiting and left and len(running) < at_once:
            prompt, answer = waiting.pop()
            running.append([0, prompt, 0, answer])
            read.append((running[-1], new := min(left, prompt)))
            left -= new
        for one, new in (*decoded, *read):
            one[0] += new
            one[2] += one[0] >= one[1]
        yield tuple(_group(part, phase) for part, phase in ((decoded, "decode"), (read, "prefill")) if part)
        running = [one for one in running if one[2] < one[3]]


def _group(part: Sequence[tuple[list[int], int]], phase: Any) -> Requests:
    """Requests of one phase of a step as equal ones of their mean size."""
    query = 1 if phase == "decode" else sum(new for _, new in part) / len(part)
    context = sum(one[0] for one, _ in part) / len(part)
    return Requests(len(part), query, max(query, math.ceil(context / _CONTEXT) * _CONTEXT), phase)


def _kind(batch: Batch) -> str:
    return "prefill" if any(one.phase == "prefill" for one in batch) else "decode"


def _sums(times: _Times, batches: Sequence[Batch], kind: str) -> tuple[float, int]:
    """Calibrated time (s) and number of the steps of a kind."""
    chosen = [batch for batch in batches if _kind(batch) == kind]
    return sum(map(times.of, chosen)), len(chosen)


class _Times:
    """Calibrated times of steps, and what the steps of the run took."""

    def __init__(self, run: Run, config: ExperimentConfig, batches: Sequence[Batch]) -> None:
        names = run.worker.get("device_names") or [""]
        try:
            device = nearest_device(str(names[0]))[0]
            self.shape = theory.shape(config.model if config.model.startswith(PREFIX) else Path(config.model))
            self.calibration = theory.calibrated(device)
        except LlmprofError as error:
            raise NoPredictionError(str(error)) from error
        kv = str(config.engine_args.get("kv_cache_dtype", "auto"))
        if kv != "auto":
            raise NoPredictionError(f"the calibration is of a cache in 16 bits, and the run's is {kv}")
        self.plan = Plan()
        if outside := self.calibration.outside(self.shape, self.plan, *{b for b in batches if _kind(b) == "decode"}):
            raise NoPredictionError(f"the calibration does not cover {'; '.join(outside)}")
        self.machine = machine_for(self.shape, device, self.plan)
        self._known: dict[Batch, float] = {}
        self.error = {kind: self._error(kind) for kind in ("decode", "prefill")}
        self.measured = _measured(run)
        self.own = {kind: _sums(self, batches, kind) for kind in ("decode", "prefill")}

    def _error(self, kind: str) -> float:
        of_kind = [one for one in self.calibration.errors if one["kind"] == kind]
        off = [abs(one["predicted_s"] / one["measured_s"] - 1) for one in of_kind]
        if not off:
            raise NoPredictionError("the calibration does not state its errors")
        return float(np.quantile(off, 0.9))

    def of(self, batch: Batch) -> float:
        if batch not in self._known:
            if len(self._known) > _MOST_STEPS:
                raise NoPredictionError("the requests take too many different steps")
            self._known[batch] = self.calibration.step_s(self.shape, batch, self.machine)
        return self._known[batch]

    def corrected(self, kind: str, way: str, seconds: float, count: int, *, off: float) -> float:
        """Time of steps (s), corrected by those of the run; ``off`` is an error of their calibrated time."""
        own, number = self.own[kind]
        if not number or not count:
            return seconds * (1 + off)
        measured = self.measured[kind] * number
        if way == "factor":
            return seconds * measured / own * (1 + off)
        return max(0.0, seconds * (1 + off) + (measured - own) / number * count)


def _measured(run: Run) -> dict[str, float]:
    """Mean time of a recorded step by kind (s), without the profiler as far as the run knows it."""
    try:
        rows = analyze.steps(run.trace).filter(pl.col("phase") != "empty")
    except LlmprofError as error:
        raise NoPredictionError(f"the steps of the run are not known: {error}") from error
    prefill = pl.when(pl.col("phase") == "decode").then(pl.lit("decode")).otherwise(pl.lit("prefill")).alias("kind")
    means = dict(rows.group_by(prefill).agg(pl.col("dur_ns").mean()).rows())
    if set(means) != {"decode", "prefill"}:
        raise NoPredictionError("the recording has no steps of one of the two phases")
    walls = dict(run.requests.group_by("phase").agg(pl.col("wall_ns").mean()).rows())
    slower = (walls.get("plain") or 1.0) / (walls.get("profiled") or walls.get("plain") or 1.0)
    return {kind: value / 1e9 * slower for kind, value in means.items()}
