"""What changed between a capture and a better time: the load first, then the engine, the host, the device."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from llmprof.analyze.compare.diff import diff
from llmprof.analyze.compare.story import changes_of, compared_phases, words_of
from llmprof.errors import AnalysisError, LlmprofError
from llmprof.launch import Run
from llmprof.live.past import best_hour
from llmprof.storage import files
from llmprof.units import format_ns

MORE: Final = 1.25
"""Factor from which a length, a rate or a number of requests counts as changed."""
SLOWER: Final = 1.1
"""Factor from which a time counts as changed."""
FEWER_HITS: Final = 0.2
"""Loss of the prefix cache's hit rate, as a difference of shares, that counts as a change."""
FULL: Final = 0.95
"""Share of the KV cache from which it counts as full."""
CLOCK: Final = 0.95
"""Factor below which the clock of a device counts as lower."""
OTHERS: Final = 15.0
"""Percentage points of all processors that other processes take more than before, from which they count."""
MOST_OF: Final = 0.5
"""Share of the change of a step from which a group of its parts is named as where it lies."""

_SHOWN: Final = (
    *("running", "waiting", "requests_per_s", "prompt_length_mean", "output_length_mean", "step_tokens_mean"),
    *("hit_rate", "kv_usage", "preemptions_per_s", "output_tokens_per_s"),
    *("ttft_mean", "queue_mean", "prefill_mean", "tpot_mean", "e2e_mean"),
)
"""Counters that are shown as evidence."""

CHANGED: Final = "changed.json"
"""File of a capture with what changed."""


def counters_of(run: Run) -> dict[str, Any]:
    """Counters of a capture: those for which it was made, else those before the window, while the profiler was off."""
    judged = files.read_json(run.folder.path / CHANGED)
    if isinstance(judged, dict) and judged.get("counters"):
        return dict(judged["counters"])
    told = (files.read_json(run.folder.recording) or {}).get("counters") or {}
    merged: dict[str, Any] = {}
    for when in ("after", "within", "before"):  # the last one counts
        merged |= {name: value for name, value in (told.get(when) or {}).items() if value is not None}
    return merged


def samples_of(run: Run) -> dict[str, float]:
    """Means of the samples of host and devices during a capture; empty if there are none."""
    samples: dict[str, float] = {}
    with contextlib.suppress(OSError, pl.exceptions.PolarsError):
        frame = pl.read_parquet(run.folder.monitors).filter(pl.col("name").is_in(list(_UNITS)))
        samples = dict(frame.group_by("name").agg(pl.col("value").mean()).iter_rows())
    cores = (files.read_json(run.folder.gpu_info) or {}).get("cores")
    if cores and "run.cpu" in samples:
        samples["run.cpu"] /= cores  # of all processors, as the other one
    others = (files.read_json(run.folder.recording) or {}).get("others_on_devices")
    return samples if others is None else samples | {"processes": float(others)}


def changed(
    run: Run, baseline: Run | None, *, history: pl.DataFrame | None = None, now: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What changed in a capture, compared with an earlier one, or with the best hour of a history.

    The load is looked at first: more or longer requests, fewer hits of the prefix cache, a full KV cache, fewer places
    in the batch. Only a step that takes longer at the same load is looked at by its parts, and by the samples of host
    and devices. A cause is named only if its figures are known on both sides.

    Parameters
    ----------
    run : Run
        The capture.
    baseline : Run, optional
        An earlier capture of a better time.
    history : polars.DataFrame, optional
        Hours of :func:`llmprof.live.history`, if there is no baseline.
    now : mapping, optional
        Counters of now, if they are better known than by the capture.

    Returns
    -------
    dict
        ``says`` (one sentence), ``cause`` (``prefix_cache, longer_prompts, more_load, fewer_places, kv_cache, host,
        device, rank, engine``, ``none`` where nothing is worse, or ``unknown``), ``baseline`` (capture or hour), and
        ``evidence``, rows of ``what, before, now, unit``; ``counters`` of now.

    Raises
    ------
    AnalysisError
        There is nothing to compare with.
    """
    after = dict(now) if now is not None else counters_of(run)
    if baseline is not None:
        before, name = counters_of(baseline), baseline.folder.path.name
    elif history is not None and not history.is_empty():
        before, name = best_hour(history), "the best hour of the history"
    else:
        raise AnalysisError("there is nothing to compare with", hint="give baseline=, or watch for some hours")
    evidence = [
        {"what": key, "before": before[key], "now": after[key], "unit": _unit(key)}
        for key in _SHOWN
        if before.get(key) is not None and after.get(key) is not None
    ]
    cause, says = _of_load(before, after)
    worse = _worse(before, after)
    if cause is None:
        step, found = _of_step(run, baseline) if baseline is not None else (None, None)
        if step is not None:
            evidence += step
        if found is not None:
            cause, says = found
        elif worse:
            cause, says = "unknown", f"{worse}, and neither the load nor the recorded step says why"
        elif any(_ratio(before, after, name) is not None for name in _TIMES):
            cause, says = "none", f"Nothing is slower than in {name}"
        else:
            cause, says = "unknown", f"The capture and {name} have no counter of a time in common"
    elif worse:
        says = f"{says} {worse[0].lower()}{worse[1:]}"
    return {"says": f"{says.rstrip('.:')}.", "cause": cause, "baseline": name, "evidence": evidence, "counters": after}


_TIMES: Final = {
    "ttft_mean": "The first token takes",
    "tpot_mean": "A further token takes",
    "queue_mean": "Waiting in the queue takes",
    "e2e_mean": "A request takes",
}


def _ratio(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> float | None:
    a, b = before.get(name), after.get(name)
    return float(b) / float(a) if a is not None and b is not None and float(a) > 0 else None


def _worse(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The time that became longest, as words; empty if none did."""
    ratios = {name: ratio for name in _TIMES if (ratio := _ratio(before, after, name)) is not None}
    name = max(ratios, key=lambda one: ratios[one], default="")
    if not name or ratios[name] < SLOWER:
        return ""
    a, b = (format_ns(round(side[name] * 1e9)) for side in (before, after))
    return f"{_TIMES[name]} {b}, before {a}"


def _of_load(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str | None, str]:
    """The cause that lies in what the server is asked for, and in the room it has for that."""

    def grew(name: str) -> bool:
        ratio = _ratio(before, after, name)
        return ratio is not None and ratio >= MORE

    def words(name: str, what: str, form: str = "{:,.0f}") -> str:
        return f"{what} {form.format(after[name])}, before {form.format(before[name])}:"

    hits = (before.get("hit_rate"), after.get("hit_rate"))
    if None not in hits and hits[0] - hits[1] >= FEWER_HITS:  # type: ignore[operator]
        return "prefix_cache", words("hit_rate", "The prefix cache serves a share of", "{:.0%}")
    if grew("prompt_length_mean"):
        return "longer_prompts", words("prompt_length_mean", "Prompts are longer, on average")
    if grew("requests_per_s") or (grew("running") and not _falls(before, after, "requests_per_s")):
        name = "requests_per_s" if grew("requests_per_s") else "running"
        what = "More requests arrive a second, on average" if name == "requests_per_s" else "More requests run at once:"
        return "more_load", words(name, what, "{:,.2f}")
    if grew("output_length_mean"):
        return "more_load", words("output_length_mean", "Answers are longer, on average")
    usage = after.get("kv_usage")
    if (usage is not None and usage >= FULL) or (after.get("preemptions_per_s") or 0) > (
        before.get("preemptions_per_s") or 0
    ):
        return "kv_cache", "The KV cache is full, so requests wait or are computed again:"
    queues = after.get("waiting") is not None and after["waiting"] > MORE * (before.get("waiting") or 0.0) + 0.5
    if queues and _falls(before, after, "running"):
        return "fewer_places", words("running", "Requests wait although the KV cache has room, and fewer run at once,")
    return None, ""


def _falls(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> bool:
    ratio = _ratio(before, after, name)
    return ratio is not None and ratio <= 1 / MORE


def _of_step(run: Run, baseline: Run) -> tuple[list[dict[str, Any]] | None, tuple[str, str] | None]:
    """Evidence and cause from the recorded steps of two captures, at the same load."""
    try:
        frame = diff(baseline.trace, run.trace, part="times", names=("before", "now"))
        phases = compared_phases(frame)
        if not phases:
            return None, None
        phase = "decode" if "decode" in phases else phases[0]
        total = changes_of(frame, phase)
    except LlmprofError:
        return None, None
    parts = frame.filter(pl.col("phase").eq_missing(pl.lit(phase)) & (pl.col("level") == "part"))
    groups: dict[str, float] = {}
    for kind, part, delta in parts.select("kind", "part", pl.col("delta_ns").fill_null(0.0)).iter_rows():
        group = words_of(kind, part)[0]
        groups[group] = groups.get(group, 0.0) + delta
    rows = [
        {"what": f"a step of {phase}", "before": total["a_ns"], "now": total["b_ns"], "unit": "ns"},
        *({"what": words, "before": None, "now": delta, "unit": "ns more"} for delta, words, _ in total["more"]),
    ]
    samples = [samples_of(one) for one in (baseline, run)]
    rows += [
        {"what": name, "before": samples[0][name], "now": samples[1][name], "unit": _UNITS.get(name, "")}
        for name in _UNITS
        if all(name in side for side in samples)
    ]
    change = total["b_ns"] - total["a_ns"]
    if total["b_ns"] < SLOWER * total["a_ns"] or change <= 0:
        return rows, None
    took = f"a step of {phase} takes {format_ns(round(total['b_ns']))}, before {format_ns(round(total['a_ns']))}"
    largest = max(groups, key=lambda one: groups[one], default="")
    most = groups.get(largest, 0.0) >= MOST_OF * change
    cause = _of_machine(samples, largest if most else "")
    if cause is not None:
        return rows, (cause[0], f"{cause[1]}: {took}")
    named = [words for _, words, _ in total["more"]]
    if most and largest in {"waiting", "transfer", "communication"}:
        return rows, ("rank", f"Ranks wait for each other longer at the same load: {took}")
    if most and named:
        return rows, ("engine", f"The same load takes longer in {', '.join(named)}: {took}")
    return rows, ("unknown", f"The same load takes longer in no single part: {took}")


_UNITS: Final = {
    "cpu.utilization": "%",
    "run.cpu": "%",
    "gpu.sm_clock": "Hz",
    "gpu.power": "W",
    "gpu.utilization": "%",
    "processes": "other processes on the devices",
}


def _of_machine(samples: list[dict[str, float]], largest: str) -> tuple[str, str] | None:
    """A cause outside of the engine: a lower clock of the devices, or other processes on the host."""
    before, now = samples
    if now.get("processes", 0) > before.get("processes", now.get("processes", 0)):
        return "device", f"{now['processes']:.0f} other processes use the devices, before {before['processes']:.0f}"
    if "gpu.sm_clock" in before and "gpu.sm_clock" in now and now["gpu.sm_clock"] < CLOCK * before["gpu.sm_clock"]:
        clocks = [f"{side['gpu.sm_clock'] / 1e6:,.0f} MHz" for side in (now, before)]
        return "device", f"The devices run at {clocks[0]}, before {clocks[1]}"
    host = [_others(side) for side in samples]
    if host[0] is not None and host[1] is not None and host[1] - host[0] >= OTHERS and largest != "waiting":
        return "host", f"Other processes take {host[1]:.0f} % of the processors, before {max(0.0, host[0]):.0f} %"
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
    return "requests" if name in {"running", "waiting"} else "s"
