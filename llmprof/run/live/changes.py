"""What changed between a capture and a better time: the load first, then the engine, the host,
the device.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from llmprof.analyze.compare.diff import diff
from llmprof.analyze.compare.story import changes_of, compared_phases, part_words
from llmprof.errors import AnalysisError, LlmprofError, ReadError
from llmprof.run.launch import Run
from llmprof.run.launch.monitors import table
from llmprof.run.launch.monitors.nvml import REASONS
from llmprof.run.live.past import best_hour
from llmprof.trace.storage import typed
from llmprof.units import NS_PER_S, format_ns

MORE: Final = 1.25
"""Factor from which a length, a rate or a number of requests counts as changed."""
SLOWER: Final = 1.1
"""Factor from which a time counts as changed."""
CHANCE: Final = 2.0
"""Standard errors from which a change counts, if requests come by chance and vary as much as
their mean.
"""
FEWER_HITS: Final = 0.2
"""Loss of the prefix cache's hit rate, as a difference of shares, that counts as a change."""
FULL: Final = 0.95
"""Share of the KV cache from which it counts as full."""
CLOCK: Final = 0.95
"""Factor below which the clock of a device counts as lower."""
OTHERS: Final = 15.0
"""Percentage points that other processes take more of all processors, or of the time of the
devices.
"""
DELAY: Final = 10.0
"""Percentage points of the time in which a main thread of the server waits for a processor more
than before.
"""
HELD_BACK: Final = 25.0
"""Percentage points of the samples in which heat or a fault holds the clock of a device down
more than before.
"""
MOST_OF: Final = 0.5
"""Share of the change of a step from which a group of its parts is named as where it lies."""

_SHOWN: Final = (
    *(
        "running",
        "waiting",
        "max_num_seqs",
        "arrivals_per_s",
        "requests_per_s",
        "prompt_length_mean",
    ),
    *(
        "output_length_mean",
        "step_tokens_mean",
        "hit_rate",
        "kv_usage",
        "preemptions_per_s",
        "output_tokens_per_s",
    ),
    *("ttft_mean", "ttft_p99", "queue_mean", "prefill_mean", "tpot_mean", "e2e_mean"),
)
"""Counters that are shown as evidence."""

CHANGED: Final = "changed.json"
"""File of a capture with what changed."""


def counters_of(run: Run) -> dict[str, Any]:
    """Counters of a capture: those for which it was made, else those before the window, while
    the profiler was off.
    """
    verdict = typed.found(run.folder.path / CHANGED, typed.ChangedJson) or {}
    if verdict.get("counters"):
        return dict(verdict["counters"])
    told = _recording(run).get("counters") or {}
    merged: dict[str, Any] = {}
    for when in ("after", "within", "before"):  # the last one counts
        merged |= {name: value for name, value in told.get(when, {}).items() if value is not None}
    return merged


def _recording(run: Run) -> dict[str, Any]:
    return typed.found(run.folder.recording, typed.RecordingJson) or {}


def _places(run: Run) -> dict[str, Any]:
    """Most requests that the server runs at once, if it says so."""
    config = _recording(run).get("config") or {}
    scheduler = config.get("scheduler_config")
    told = config.get("max_num_seqs") or (
        scheduler.get("max_num_seqs") if isinstance(scheduler, dict) else None
    )
    return {"max_num_seqs": told} if isinstance(told, int) else {}


def samples_of(run: Run) -> dict[str, float]:
    """Means of the samples of host and devices during a capture, and the state of the devices;
    empty without any.
    """
    samples: dict[str, float] = {}
    recording = _recording(run)
    with contextlib.suppress(ReadError):
        frame = table.read(run.folder.monitors)
        if window := recording.get("window"):  # and not while the server wrote its traces
            frame = frame.filter(
                pl.col("time_ns").is_between(window["start_epoch_ns"], window["end_epoch_ns"])
            )
        mask = pl.col("value").cast(pl.Int64, strict=False) & _HOLD_BACK
        held = frame.filter(name="gpu.throttle_reasons").select(
            name=pl.lit("gpu.held_back"), value=100.0 * (mask != 0).cast(pl.Float64)
        )
        rows = pl.concat(
            [frame.filter(pl.col("name").is_in(list(_UNITS))).select("name", "value"), held]
        )
        means = rows.drop_nulls("value").group_by("name").agg(pl.mean("value"))
        samples = dict(means.iter_rows())
    cores = (typed.found(run.folder.gpu_info, typed.MachineJson) or {}).get("cores")
    if cores and "run.cpu" in samples:
        samples["run.cpu"] /= cores  # of all processors, as the other one
    around = recording.get("devices") or {}
    sides = [around[when] for when in ("before", "after") if around.get(when)]
    for name in ("others", "others_utilization"):
        known = [float(side[name]) for side in sides if side.get(name) is not None]
        samples |= {name: max(known)} if known else {}
    errors = [row["ecc_uncorrected"] for row in sides[-1]["devices"]] if sides else []
    return samples | (
        {"ecc_uncorrected": float(sum(errors))} if errors and None not in errors else {}
    )


def changed(
    run: Run,
    baseline: Run | None,
    *,
    history: pl.DataFrame | None = None,
    now: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What changed in a capture, compared with an earlier one, or with the best hour of a history.

    Where nothing is slower there is no cause. The load is looked at first: fewer hits of the prefix
    cache, longer prompts, more requests, longer answers; then the samples of host and devices; the
    room for requests (KV cache, places in the batch); and last the parts of a step. A cause is
    named only if its figures are known on both sides, and if they differ by more than chance.

    Parameters
    ----------
    run : Run
        The capture.
    baseline : Run, optional
        An earlier capture of a better time.
    history : polars.DataFrame, optional
        Hours of :func:`llmprof.run.live.history`, if there is no baseline.
    now : mapping, optional
        Counters of now, if they are better known than by the capture.

    Returns
    -------
    dict
        ``says`` (one sentence), ``cause`` (``prefix_cache, longer_prompts, more_load, fewer_places,
        kv_cache, host, device, rank, engine``, ``none`` where nothing is worse, or ``unknown``),
        ``baseline`` (capture or hour), and ``evidence``, rows of ``what, before, now, unit``;
        ``counters`` of now.

    Raises
    ------
    AnalysisError
        There is nothing to compare with.
    """
    after = _places(run) | (dict(now) if now is not None else counters_of(run))
    if baseline is not None:
        before, name = _places(baseline) | counters_of(baseline), baseline.folder.path.name
    elif history is not None and not history.is_empty():
        before, name = best_hour(history), "the best hour of the history"
    else:
        raise AnalysisError(
            "there is nothing to compare with", hint="give baseline=, or watch for some hours"
        )
    step = None if baseline is None else shared_step(run, baseline)
    samples = ({}, {}) if baseline is None else (samples_of(baseline), samples_of(run))
    return judged(before, after, samples, step, name)


def judged(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    samples: tuple[Mapping[str, float], Mapping[str, float]],
    step: Step | None,
    name: str,
) -> dict[str, Any]:
    """What changed, by the counters and samples of two times and the difference of their steps."""
    evidence = [
        {"what": key, "before": before[key], "now": after[key], "unit": _unit(key)}
        for key in _SHOWN
        if before.get(key) is not None and after.get(key) is not None
    ]
    evidence += [] if step is None else step.rows()
    evidence += [
        {"what": name, "before": samples[0][name], "now": samples[1][name], "unit": unit}
        for name, unit in _UNITS.items()
        if all(name in side for side in samples)
    ]
    load = _of_load(before, after)
    worse = _worse(before, after, step)
    if worse:
        found = (
            load
            or _of_machine(samples, step)
            or _of_room(before, after)
            or _of_parts(before, after, step)
        )
        cause, says = found or ("unknown", "Neither the load nor the recorded step says why")
        says = f"{says}: {worse[0].lower()}{worse[1:]}"
    elif any(_ratio(before, after, name) is not None for name in _TIMES):
        cause, says = (
            "none",
            f"Nothing is slower than in {name}, beyond what chance makes of as many requests",
        )
        says += "" if load is None else f". {load[1]}"
    else:
        cause, says = "unknown", f"The capture and {name} have no counter of a time in common"
    return {
        "says": f"{says}.",
        "cause": cause,
        "baseline": name,
        "evidence": evidence,
        "counters": after,
    }


_HOLD_BACK: Final = sum(
    bit
    for bit, reason in REASONS.items()
    if reason
    in {
        "hw_slowdown",
        "sw_thermal_slowdown",
        "hw_thermal_slowdown",
        "hw_power_brake_slowdown",
    }
)
"""Reasons of a lower clock that a machine in order does not have; a limit of power is none of
them.
"""

_TIMES: Final = {
    "ttft_mean": "The first token takes",
    "ttft_p99": "The first token of the slowest hundredth takes",
    "tpot_mean": "A further token takes",
    "queue_mean": "Waiting in the queue takes",
    "e2e_mean": "A request takes",
}
_HUNDREDTH: Final = 100.0
"""Least number of values of which a hundredth is known."""


def _ratio(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> float | None:
    a, b = before.get(name), after.get(name)
    return float(b) / float(a) if a is not None and b is not None and float(a) > 0 else None


def _number(row: Mapping[str, Any], name: str) -> float | None:
    """Number of requests or tokens of which a value tells; None if that is not known."""
    if name.endswith("_per_s"):
        return None if row.get("seconds") is None else row[name] * row["seconds"]
    count = row.get(f"{name.rpartition('_')[0]}_count")
    return None if count is None else float(count)


def _beyond_chance(
    before: Mapping[str, Any], after: Mapping[str, Any], name: str, ratio: float
) -> bool:
    """Whether so few requests can show a ratio: what is not counted is taken as it is."""
    numbers = [_number(side, name) for side in (before, after)]
    known = [number for number in numbers if number is not None]
    if name.endswith("_p99") and any(number < _HUNDREDTH for number in known):
        return False
    return all(known) and abs(math.log(ratio)) >= CHANCE * math.sqrt(
        sum(1 / number for number in known)
    )


def _grew(
    before: Mapping[str, Any], after: Mapping[str, Any], name: str, factor: float = MORE
) -> bool:
    ratio = _ratio(before, after, name)
    return ratio is not None and ratio >= factor and _beyond_chance(before, after, name, ratio)


def _worse(before: Mapping[str, Any], after: Mapping[str, Any], step: Step | None) -> str:
    """The time that became longest, as words; empty if none did."""
    grown = {
        name: _ratio(before, after, name) or 1.0
        for name in _TIMES
        if _grew(before, after, name, SLOWER)
    }
    ttft, queue = before.get("ttft_mean"), grown.get("queue_mean")
    if (
        queue is not None
        and ttft
        and after["queue_mean"] - before["queue_mean"] < (SLOWER - 1) * ttft
    ):
        del grown["queue_mean"]  # from nearly nothing to a little more
    name = max(grown, key=lambda one: grown[one], default="")
    if not name:
        return "" if step is None or not step.longer else step.words
    a, b = (format_ns(round(side[name] * NS_PER_S)) for side in (before, after))
    return f"{_TIMES[name]} {b}, before {a}"


def _of_load(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, str] | None:
    """The cause that lies in what the server is asked for.

    How many requests run at once is no load where it is known how many come: it follows from how
    long they take.
    """

    def words(name: str, what: str, form: str = "{:,.0f}") -> str:
        return f"{what} {form.format(after[name])}, before {form.format(before[name])}"

    hits = (before.get("hit_rate"), after.get("hit_rate"))
    longer = _ratio(before, after, "prompt_length_mean") or 1.0
    if None not in hits and hits[0] / max(1.0, longer) - hits[1] >= FEWER_HITS:  # type: ignore[operator]
        return "prefix_cache", words("hit_rate", "The prefix cache serves a share of", "{:.0%}")
    if _grew(before, after, "prompt_length_mean"):
        return "longer_prompts", words("prompt_length_mean", "Prompts are longer, on average")
    rates = [
        name
        for name in ("arrivals_per_s", "requests_per_s")
        if _ratio(before, after, name) is not None
    ]
    if rates and _grew(before, after, rates[0]):
        return "more_load", words(rates[0], "More requests come a second, on average", "{:,.2f}")
    if not rates and _grew(before, after, "running"):
        return "more_load", words("running", "More requests run at once:", "{:,.1f}")
    if _grew(before, after, "output_length_mean"):
        return "more_load", words("output_length_mean", "Answers are longer, on average")
    return None


def _of_room(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, str] | None:
    """The cause that lies in the room that the server has for requests."""
    usage = (before.get("kv_usage"), after.get("kv_usage"))
    filled = None not in usage and usage[0] < FULL <= usage[1]  # type: ignore[operator]
    again = before.get("preemptions_per_s") == 0 and (after.get("preemptions_per_s") or 0) > 0
    if filled or again or _grew(before, after, "preemptions_per_s"):
        return "kv_cache", "The KV cache is full, so requests wait or are computed again"
    queues = (
        after.get("waiting") is not None
        and after["waiting"] > MORE * (before.get("waiting") or 0.0) + 0.5
    )
    fewer, limit = (_ratio(before, after, name) for name in ("running", "max_num_seqs"))
    if queues and limit is not None and limit < 1:
        said = f"{after['max_num_seqs']}, before {before['max_num_seqs']}"
        return (
            "fewer_places",
            f"Requests wait although the KV cache has room, since fewer may run at once, {said}",
        )
    if queues and limit is None and fewer is not None and fewer <= 1 / MORE:
        ran = f"{after['running']:,.0f}, before {before['running']:,.0f}"
        return (
            "fewer_places",
            f"Requests wait although the KV cache has room, and fewer run at once, {ran}",
        )
    return None


@dataclass(frozen=True, slots=True)
class Step:
    """A step of two captures: its times, and where the difference lies."""

    phase: str | None
    before_ns: float
    now_ns: float
    group: str
    """The group of parts in which at least half of the difference lies; empty if there is none."""
    more: list[tuple[float, str]]
    """Parts that take longer, with their time."""

    @property
    def longer(self) -> bool:
        """Whether it takes longer."""
        return self.now_ns >= SLOWER * self.before_ns > 0

    @property
    def words(self) -> str:
        """Its times as a sentence."""
        times = [format_ns(round(ns)) for ns in (self.now_ns, self.before_ns)]
        return (
            f"A step{f' of {self.phase}' if self.phase else ''} takes {times[0]}, before {times[1]}"
        )

    def rows(self) -> list[dict[str, Any]]:
        """Evidence."""
        what = f"a step{f' of {self.phase}' if self.phase else ''}"
        return [
            {"what": what, "before": self.before_ns, "now": self.now_ns, "unit": "ns"},
            *(
                {"what": words, "before": None, "now": delta, "unit": "ns more"}
                for delta, words in self.more
            ),
        ]


def shared_step(run: Run, baseline: Run) -> Step | None:
    """A step of the phase that both captures have; None without one."""
    try:
        frame = diff(baseline.trace, run.trace, part="times", names=("before", "now"))
        phases = compared_phases(frame)
        if not phases:
            return None
        phase = "decode" if "decode" in phases else phases[0]
        total = changes_of(frame, phase)
    except LlmprofError:
        return None
    parts = frame.filter(pl.col("phase").eq_missing(pl.lit(phase)) & (pl.col("level") == "part"))
    groups: dict[str, float] = {}
    for kind, part, delta in parts.select(
        "kind", "part", pl.col("delta_ns").fill_null(0.0)
    ).iter_rows():
        group = part_words(kind, part)[0]
        groups[group] = groups.get(group, 0.0) + delta
    largest = max(groups, key=lambda one: groups[one], default="")
    most = groups.get(largest, 0.0) >= MOST_OF * (total["b_ns"] - total["a_ns"])
    more = [(delta, words) for delta, words, _ in total["more"]]
    return Step(phase, total["a_ns"], total["b_ns"], largest if most else "", more)


def _of_parts(
    before: Mapping[str, Any], after: Mapping[str, Any], step: Step | None
) -> tuple[str, str] | None:
    """The cause that lies in the parts of a step, at the same load."""
    if step is None or not step.longer:
        return None
    if step.now_ns / step.before_ns <= (_ratio(before, after, "running") or 0.0):
        return (
            "unknown",
            (
                "More requests run at once, and a step takes longer: which of the two came first is"
                " not known"
            ),
        )
    if step.group in {"waiting", "transfer", "communication"}:
        return "rank", f"Ranks wait for each other longer at the same load: {_small(step.words)}"
    if step.group and step.more:
        return (
            "engine",
            (
                f"The same load takes longer in {', '.join(w for _, w in step.more)}:"
                f" {_small(step.words)}"
            ),
        )
    return "unknown", f"The same load takes longer in no single part: {_small(step.words)}"


def _small(words: str) -> str:
    return words[0].lower() + words[1:]


_UNITS: Final = {
    "cpu.utilization": "%",
    "run.cpu": "%",
    "run.delay": "%",
    "gpu.sm_clock": "Hz",
    "gpu.held_back": "%",
    "gpu.power": "W",
    "gpu.utilization": "%",
    "others": "other processes on the devices",
    "others_utilization": "%",
    "ecc_uncorrected": "errors since the driver was loaded",
}


def _of_machine(
    samples: tuple[Mapping[str, float], Mapping[str, float]], step: Step | None
) -> tuple[str, str] | None:
    """A cause outside of the engine: what other processes take of devices and host, or what
    holds a device back.
    """

    def more(name: str) -> float:
        return samples[1][name] - samples[0][name] if all(name in side for side in samples) else 0.0

    before, now = samples
    busy = all("others_utilization" in side for side in samples)
    if more("others_utilization") >= OTHERS or (more("others") > 0 and not busy):
        share = f", {now['others_utilization']:.0f} % of the time" if busy else ""
        return (
            "device",
            (
                f"{now['others']:.0f} other processes use the devices{share}, before"
                f" {before['others']:.0f}"
            ),
        )
    if more("gpu.held_back") >= HELD_BACK:
        return (
            "device",
            (
                f"Heat or a fault holds the clock of the devices down in {now['gpu.held_back']:.0f}"
                " % of the time"
            ),
        )
    if (
        "gpu.sm_clock" in before
        and "gpu.sm_clock" in now
        and now["gpu.sm_clock"] < CLOCK * before["gpu.sm_clock"]
    ):
        clocks = [f"{side['gpu.sm_clock'] / 1e6:,.0f} MHz" for side in (now, before)]
        return "device", f"The devices run at {clocks[0]}, before {clocks[1]}"
    if more("run.delay") >= DELAY:
        shares = [f"{side['run.delay']:.0f} %" for side in (now, before)]
        return (
            "host",
            f"The server waits for a processor in {shares[0]} of the time, before {shares[1]}",
        )
    host = [_others(side) for side in samples]
    waits = step is not None and step.group == "waiting"
    if host[0] is not None and host[1] is not None and host[1] - host[0] >= OTHERS and not waits:
        return (
            "host",
            (
                f"Other processes take {host[1]:.0f} % of the processors, before"
                f" {max(0.0, host[0]):.0f} %"
            ),
        )
    return None


def _others(side: Mapping[str, float]) -> float | None:
    """Percentage of all processors that processes other than the server take."""
    if "cpu.utilization" not in side or "run.cpu" not in side:
        return None
    return side["cpu.utilization"] - side["run.cpu"]


def _unit(name: str) -> str:
    if name.endswith("_per_s"):
        return "1/s"
    if name in {"hit_rate", "kv_usage"}:
        return "share"
    if name in {"prompt_length_mean", "output_length_mean", "step_tokens_mean"}:
        return "tokens"
    return "requests" if name in {"running", "waiting", "max_num_seqs"} else "s"
