"""Prediction of other limits of a step: the same requests in other steps, timed by a calibrated
device.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from llmprof import theory
from llmprof.errors import LlmprofError
from llmprof.run.batch.parameters import apply
from llmprof.run.launch import ExperimentConfig, Run
from llmprof.run.launch.config.models import PREFIX
from llmprof.run.launch.config.options import setting
from llmprof.theory.bound import nearest_device
from llmprof.theory.plan import Batch, Plan, Requests, decode
from llmprof.theory.profiler import machine_for

LIMITS: Final = (
    "engine_args.max_num_seqs",
    "engine_args.max_num_batched_tokens",
    "engine_args.enable_chunked_prefill",
)
"""Settings that change only which requests and tokens are in a step."""

_CONTEXT: Final = 32
"""Contexts of a step are rounded to this many tokens: neighbouring steps then take one
calculation.
"""
_BEYOND: Final = 2
"""Steps may have this many times the requests of the largest step that the calibration was
fitted to.
"""
_EXACT: Final = {"decode": 0.0, "prefill": 0.0}
_MOST_STEPS: Final = 20_000
_WORK: Final = (
    "quantization",
    "speculative_config",
    "hf_overrides",
    "enable_prefix_caching",
    "async_scheduling",
)


_Running = list[int]
"""Tokens of a request that runs: read, of its prompt, answered, of its answer."""


class NoPredictionError(Exception):
    """Why a change of limits is not predicted."""


def predict_gain(run: Run, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Gain of the time of all requests by other limits of a step.

    The scheduler of vLLM is played through for the lengths of the run's requests, with its limits
    and with the changed ones, and the calibration of the device times the steps. The calibration is
    of CUDA graphs and of engines alone, so what the run took beside its calibrated steps is added
    in two ways: as a factor of each step, or as an amount that is the same for each. The steps of
    an eager run have the amount, or take at least as long as a step of the run on average, since
    the host sets their pace. The interval covers both ways and the errors of the calibration (90 %
    of its measured steps).

    Raises
    ------
    NoPredictionError
        Something of the run or the change has no calibrated time; it says what.
    """
    if not fields or set(fields) - set(LIMITS):
        raise NoPredictionError("it changes more than the limits of a step")
    before, after = run.config, apply(run.config, dict(fields))
    _check(before)
    batches = [list(scheduled_steps(_lengths(run), *_limits(config))) for config in (before, after)]
    times = _Times(run, before, [*batches[0], *batches[1]])
    wall = _wall_s(run)
    count, other = map(len, batches)
    beside = (wall - times.total(batches[0])) / count
    gains: dict[tuple[int, ...], list[float]] = {}
    for signs in itertools.product((0, -1, 1), repeat=2):
        off = {
            kind: sign * times.error[kind]
            for kind, sign in zip(("decode", "prefill"), signs, strict=True)
        }
        seconds = times.total(batches[1], off)
        amount = seconds + beside * other
        if before.eager or before.layer_annotations:
            second = times.total(batches[1], off, least=wall / count)
        else:
            second = seconds * wall / times.total(batches[0])
        gains[signs] = [1 - took / wall for took in (amount, second)]
    return {
        "gain": sum(gains[0, 0]) / 2,
        "low": min(map(min, gains.values())),
        "high": max(map(max, gains.values())),
        "of": f"{count} steps that become {other}",
        "plain": True,
    }


def _check(config: ExperimentConfig) -> None:
    if config.engine != "vllm":
        raise NoPredictionError("steps are calibrated for vLLM")
    if config.tensor_parallel_size * config.pipeline_parallel_size > 1:
        raise NoPredictionError("steps are calibrated for one rank")
    if config.served and (setting(config, "server", "request_rate") or config.load.get("file")):
        raise NoPredictionError("requests come at their own times, so the steps are not known")
    if other := [name for name in _WORK if config.engine_args.get(name)]:
        raise NoPredictionError(
            f"{other[0]} changes the work of a step in a way that is not counted"
        )


def _limits(config: ExperimentConfig) -> tuple[int, int]:
    """Most requests and most tokens of a step."""
    at_once, chunk = (
        config.engine_args.get(name) for name in ("max_num_seqs", "max_num_batched_tokens")
    )
    if not at_once or not chunk:
        raise NoPredictionError(
            "max_num_seqs and max_num_batched_tokens of the run are not set, so they are not known"
        )
    if config.served:
        at_once = min(at_once, setting(config, "server", "max_concurrency") or at_once)
    return int(at_once), int(chunk)


def _lengths(run: Run) -> list[tuple[int, int]]:
    """Tokens of prompt and answer of each request of the first plain repeat."""
    rows = run.requests.filter(phase="plain", repeat=0).select("prompt_tokens", "output_tokens")
    if rows.is_empty() or sum(rows.null_count().row(0)):
        raise NoPredictionError("the run has no repeat without a profiler whose lengths are known")
    return [(int(prompt), max(1, int(answer))) for prompt, answer in rows.rows()]


def scheduled_steps(
    lengths: Sequence[tuple[int, int]], at_once: int, chunk: int
) -> Iterator[Batch]:
    """Steps of vLLM's scheduler for requests that are all there: first what runs, then the next of
    the queue.

    Examples
    --------
    >>> [[(one.phase, one.count, one.query) for one in step] for step in scheduled_steps([(6, 2), (4, 2)], 2, 8)]
    [[('prefill', 2, 4.0)], [('decode', 1, 1), ('prefill', 1, 2.0)], [('decode', 1, 1)]]
    """  # noqa: E501
    waiting = list(reversed(lengths))
    running: list[_Running] = []
    while waiting or running:
        left = chunk
        decoded: list[tuple[_Running, int]] = []
        read: list[tuple[_Running, int]] = []
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
        yield tuple(
            _group(part, phase) for part, phase in ((decoded, "decode"), (read, "prefill")) if part
        )
        running = [one for one in running if one[2] < one[3]]


def _group(part: Sequence[tuple[_Running, int]], phase: Any) -> Requests:
    """Requests of one phase of a step as equal ones of their mean size."""
    query = 1 if phase == "decode" else sum(new for _, new in part) / len(part)
    context = sum(one[0] for one, _ in part) / len(part)
    return Requests(len(part), query, max(query, math.ceil(context / _CONTEXT) * _CONTEXT), phase)


def _kind(batch: Batch) -> str:
    return "prefill" if any(one.phase == "prefill" for one in batch) else "decode"


class _Times:
    """Calibrated times of steps."""

    def __init__(self, run: Run, config: ExperimentConfig, batches: Sequence[Batch]) -> None:
        names = run.worker.get("device_names") or [""]
        try:
            device = nearest_device(str(names[0]))[0]
            self.shape = theory.shape(
                config.model if config.model.startswith(PREFIX) else Path(config.model)
            )
            self.calibration = theory.calibrated(device)
        except LlmprofError as error:
            raise NoPredictionError(str(error)) from error
        kv = str(config.engine_args.get("kv_cache_dtype", "auto"))
        if kv != "auto":
            raise NoPredictionError(
                f"the calibration is of a cache in 16 bits, and the run's is {kv}"
            )
        self.plan = Plan()
        if outside := self.calibration.outside(
            self.shape, self.plan, decode(1, 512)
        ):  # the model, whatever its steps
            raise NoPredictionError(f"the calibration does not cover {'; '.join(outside)}")
        most = max(sum(one.count for one in batch) for batch in batches)
        if most > (known := _BEYOND * self.calibration.covers["requests"][1]):
            found = (
                f"steps of {most:.0f} requests are beyond the calibration, which goes to"
                f" {known:.0f}"
            )
            raise NoPredictionError(found)
        self.machine = machine_for(self.shape, device, self.plan)
        self._known: dict[Batch, float] = {}
        self.error = {kind: self._error(kind) for kind in ("decode", "prefill")}

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

    def total(
        self, batches: Sequence[Batch], off: Mapping[str, float] = _EXACT, *, least: float = 0.0
    ) -> float:
        """Time of steps (s) of which each takes at least some time; ``off`` is the error of each
        kind.
        """
        return sum(max(least, self.of(batch) * (1 + off[_kind(batch)])) for batch in batches)


def _wall_s(run: Run) -> float:
    """Mean time of a repeat without a profiler (s)."""
    walls = run.requests.filter(phase="plain")["wall_ns"].drop_nulls()
    if walls.is_empty():
        raise NoPredictionError("the time of the run without a profiler is not known")
    return float(walls.mean()) / 1e9  # type: ignore[arg-type]
