"""Saved results of experiments: reads a folder, makes suggestions, and writes a report with
plots.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof import charts, text, theory
from llmprof.analyze.operator_times import layer_times
from llmprof.charts.base.save import save
from llmprof.errors import AnalysisError, LlmprofError, ReadError
from llmprof.readers import read
from llmprof.run.experiments.bandwidth import Bandwidth, read_bandwidth
from llmprof.run.experiments.scaling import (
    GRADES,
    MOST_EFFICIENCY,
    Grades,
    graded,
    parallelism,
    read_communication,
    read_points,
    sequence_length,
    unsuited,
)
from llmprof.trace import Trace
from llmprof.trace.storage import files, typed
from llmprof.units import format_share


@dataclass(frozen=True)
class Evidence:
    """Measurements on which suggestions are based; a measurement that is missing is None."""

    bandwidth: Bandwidth | None = None
    lengths: pl.DataFrame | None = None
    layouts: pl.DataFrame | None = None
    layers: pl.DataFrame | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Rule:
    """A rule: its condition and its suggestion."""

    name: str
    look: Callable[[Evidence], tuple[str, float] | None]
    """Function that returns a sentence and its figure; None if the rule does not apply or its
    data are missing.
    """
    suggestion: str
    evidence: str


def suggestions(evidence: Evidence) -> pl.DataFrame:
    """Suggestions for faster runs, from measurements only."""
    rows = [
        (rule.name, reason[0], reason[1], rule.suggestion, rule.evidence)
        for rule in RULES
        if (reason := rule.look(evidence)) is not None
    ]
    schema = dict.fromkeys(("rule", "title", "figure", "suggestion", "evidence"), pl.String) | {
        "figure": pl.Float64
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


def _median(frame: pl.DataFrame, column: str) -> float | None:
    median: Any = frame[column].median()
    return None if median is None else float(median)


def _layout(evidence: Evidence, phase: str, *, tp: bool) -> float | None:
    """Median efficiency of TP (without PP) or of PP (without TP) in a phase."""
    if evidence.layouts is None:
        return None
    layout = (
        (pl.col("pp") == 1) & (pl.col("tp") > 1) if tp else (pl.col("tp") == 1) & (pl.col("pp") > 1)
    )
    has_grade = pl.col("grade") != "unknown"
    return _median(
        evidence.layouts.filter(layout & has_grade & (pl.col("phase") == phase)), "efficiency"
    )


def _better(evidence: Evidence, *, tp: bool) -> tuple[str, float] | None:
    """TP if it is more efficient in decode than PP, or PP if it is more efficient than TP."""
    mine, other = _layout(evidence, "decode", tp=tp), _layout(evidence, "decode", tp=not tp)
    if mine is None or other is None or mine <= other:
        return None
    names = ("TP", "PP") if tp else ("PP", "TP")
    words = (
        f"In decode {names[0]} reaches an efficiency of {format_share(mine)}, {names[1]}"
        f" {format_share(other)}."
    )
    return words, mine / other


_tp_first, _pp_first = functools.partial(_better, tp=True), functools.partial(_better, tp=False)


def _mixed(evidence: Evidence) -> tuple[str, float] | None:
    decode = _layout(evidence, "decode", tp=True)
    if evidence.layouts is None or decode is None:
        return None
    pipelines = evidence.layouts.filter(
        (pl.col("tp") == 1) & (pl.col("pp") > 1) & (pl.col("phase") == "prefill")
    )
    best = _median(pipelines.sort(pl.col("prompt") * pl.col("batch")).tail(1), "efficiency")
    if best is None or best < 0.6:
        return None
    words = (
        f"PP reaches {format_share(best)} efficiency in the largest prefill, TP"
        f" {format_share(decode)} in decode."
    )
    return words, best


def _batch(evidence: Evidence) -> tuple[str, float] | None:
    if evidence.lengths is None:
        return None
    single = evidence.lengths.filter(
        (pl.col("tp") == 1) & (pl.col("pp") == 1) & (pl.col("out") == pl.col("out").min())
    )
    series = single.filter(
        pl.col("prompt") == pl.col("prompt").filter(pl.col("batch") > 1).min()
    ).sort("batch")
    if series.height < 2:
        return None
    first, last = series.row(0, named=True), series.row(-1, named=True)
    grown, slower = last["batch"] / first["batch"], last["decode_step_s"] / first["decode_step_s"]
    if slower > grown / 2:
        return None
    words = (
        f"A decode step of {last['batch']} requests takes {slower:.2f} times as long as one of"
        f" {first['batch']}"
    )
    return f"{words} (prompts of {first['prompt']} tokens).", grown / slower


def _weights(evidence: Evidence) -> tuple[str, float] | None:
    """A decode time near its bound that does not depend on batch and length is the time to read
    the weights.
    """
    if (
        evidence.lengths is None
        or evidence.lengths["decode_share"].null_count() == evidence.lengths.height
    ):
        return None
    single = evidence.lengths.filter(
        (pl.col("batch") == 1) & (pl.col("tp") == 1) & (pl.col("pp") == 1)
    )
    share = _median(single, "decode_share")
    if share is None or share < 0.5:
        return None
    return (
        (
            f"A decode step of one request takes {1 / share:.2f} times as long as reading the"
            " weights needs."
        ),
        share,
    )


def _launch_bound(evidence: Evidence) -> tuple[str, float] | None:
    if evidence.layers is None or evidence.layers["waiting"].null_count() == evidence.layers.height:
        return None
    share = _median(evidence.layers.filter(pl.col("phase") == "decode"), "waiting")
    if share is None or share < 0.5:
        return None
    return (
        (
            f"In {format_share(share)} of the timed decode calls the device had caught up with the"
            " host."
        ),
        share,
    )


def _headroom(evidence: Evidence) -> tuple[str, float] | None:
    if (
        evidence.lengths is None
        or evidence.memory_bytes is None
        or evidence.lengths["peak_bytes"].null_count()
    ):
        return None
    peak: Any = evidence.lengths["peak_bytes"].max()
    unused = 1 - float(peak) / evidence.memory_bytes
    return (
        (f"{format_share(unused)} of a device's memory was never used.", unused)
        if unused > 0.2
        else None
    )


RULES: Final = (
    Rule(
        "tensor_parallel_first",
        _tp_first,
        "Split layers before the stack: TP inside a host.",
        "parallelism",
    ),
    Rule(
        "pipeline_parallel_first",
        _pp_first,
        "Use pipeline stages: the links do not carry TP.",
        "parallelism",
    ),
    Rule(
        "mixed",
        _mixed,
        "For long prompts try TP × PP: stages overlap in the prefill.",
        "parallelism",
    ),
    Rule(
        "larger_batch",
        _batch,
        "Raise the batch: decode reads the weights once for all requests.",
        "sequence_length",
    ),
    Rule(
        "quantize",
        _weights,
        "Weights dominate: 8-bit weights halve the bytes of a step.",
        "sequence_length",
    ),
    Rule(
        "launch_bound",
        _launch_bound,
        "Use CUDA graphs (no eager), or fewer and larger kernels.",
        "ops",
    ),
    Rule(
        "memory_headroom",
        _headroom,
        "Give the cache more memory, or run a larger batch.",
        "sequence_length",
    ),
)
"""Rules in the order of their suggestions."""


_BANDWIDTHS, _POINTS = "bandwidth_test_*.json", "latency_analysis_*.json"


@dataclass(frozen=True)
class ExperimentResults:
    """Saved results of experiments."""

    bandwidth: Bandwidth | None
    points: pl.DataFrame | None
    model: dict[str, Any] | str | None
    communication: pl.DataFrame | None = None
    timings: Trace | None = None
    left_out: str = ""


def saved(folder: str | Path) -> ExperimentResults:
    """Read the results in a folder.

    Results are ``bandwidth_test_*.json`` and ``latency_analysis_*.json`` (or ``points.json`` below
    the folder). The timings of a run in mode ``ops`` are read from anywhere below the folder.
    """
    place = Path(folder)
    bandwidth = sorted(place.glob(_BANDWIDTHS))
    points = sorted(place.glob(_POINTS)) or sorted(place.glob("**/points.json"))
    if not bandwidth and not points:
        raise ReadError(f"{place.name} holds no results", expected=f"{_BANDWIDTHS} or {_POINTS}")
    timed = sorted(place.glob("**/ops_rank*.json.gz"))
    timings = read(timed[0].parent) if timed else None
    if not points:
        return ExperimentResults(read_bandwidth(bandwidth[-1]), None, None, timings=timings)
    frame, document = read_points(*points), typed.read(points[0], typed.PointsJson)
    return ExperimentResults(
        read_bandwidth(bandwidth[-1]) if bandwidth else None,
        frame,
        _model(document),
        read_communication(*points),
        timings,
        str(document.get("left_out") or ""),
    )


def _model(document: Mapping[str, Any]) -> dict[str, Any] | str | None:
    """Model of the points as the theory takes it: its configuration, or a name that the theory
    knows.
    """
    if isinstance(config := document.get("config"), dict):
        return config
    name = str(document.get("model", "")).removeprefix("random:")
    try:
        theory.shape(name)
    except LlmprofError:
        return None
    return name


def write_performance_report(
    folder: str | Path,
    *,
    out: str | Path | None = None,
    device: Any = None,
    grades: Grades = GRADES,
) -> list[Path]:
    """Write ``performance_report.md`` and ``plots/`` from saved results."""
    results, place = saved(folder), Path(out if out is not None else folder)
    plots = place / "plots"
    files.made(plots)
    if (
        device is None
        and results.bandwidth is not None
        and results.bandwidth.document["platform"] == "cuda"
    ):
        device = results.bandwidth.measured()
    lines, drawn = ["# Performance report", ""], []

    def draw(name: str, make: Any) -> None:
        try:
            drawn.append(save(make(), plots / f"{name}.png", overwrite=True))
            lines.extend(["", f"![{name}](plots/{name}.png)", ""])
        except AnalysisError as error:
            lines.extend(["", f"No chart {name}: {error.found}.", ""])

    lengths = layouts = None
    if (measured := results.bandwidth) is not None:
        lines += _bandwidth(measured, grades)
        draw("hardware_peaks", lambda: charts.hardware_peaks(measured.memory, measured.matmul))
        draw("link_bandwidth", lambda: charts.link_bandwidth(measured.links))
        draw("all_reduce_bandwidth", lambda: charts.all_reduce_bandwidth(measured.all_reduce))
    if (points := results.points) is not None:
        lengths = sequence_length(
            points, model=results.model, device=device if results.model else None
        )
        lines += ["## Length of the prompt", ""]
        lines += [f"{text.plain(results.left_out).capitalize()}.", ""] if results.left_out else []
        lines += [_table(lengths.drop("wall_s", "ttft_s", "peak_bytes"))]
        draw("length_curves", lambda: charts.length_curves(points))
        try:
            layouts = parallelism(points, grades=grades, communication=results.communication)
        except LlmprofError as error:
            lines += ["## Parallelism", "", f"Not compared: {error.found}.", ""]
        else:
            overhead = place / "parallelism_overhead_report.json"
            drawn.append(
                files.write_json(overhead, {"grades": dict(grades), "rows": layouts.to_dicts()})
            )
            lines += ["## Parallelism", "", _limits(grades), "", _table(layouts.drop("devices"))]
            draw("parallel_efficiency", lambda: charts.parallel_efficiency(layouts))
    memory = (
        measured.document["devices"][0]["memory_bytes"]
        if measured and measured.document["devices"]
        else None
    )
    layers = None if results.timings is None else layer_times(results.timings)
    advice = suggestions(Evidence(measured, lengths, layouts, layers, memory))
    if advice.height:
        lines += ["## What to try", ""]
        lines += [
            f"- {row['title']} {row['suggestion']} (from {row['evidence']})"
            for row in advice.to_dicts()
        ]
    return [*drawn, files.write(place / "performance_report.md", "\n".join(lines) + "\n")]


def _bandwidth(measured: Bandwidth, grades: Grades) -> list[str]:
    lines = [
        (
            f"## What the hardware reaches: {measured.device},"
            f" {text.counted(measured.document['world'], 'rank')}"
        ),
        "",
    ]
    if measured.document["platform"] != "cuda":
        lines += ["Measured on a CPU: these figures say nothing about a GPU.", ""]
    lines += [_table(measured.memory), "", _table(measured.matmul), ""]
    if measured.links.is_empty():
        return [*lines, "One device: links between devices were not measured.", ""]
    one_way = measured.links.filter(~pl.col("both"))
    best, share, peak = one_way.select(pl.col("gb_per_s", "share", "peak_gb_per_s").max()).row(0)
    if measured.document["platform"] != "cuda":
        lines += [
            f"Between processes at most {best:,.1f} GB/s one way; the grades are of links between"
            " GPUs."
        ]
    else:
        of_peak = (
            ""
            if share is None
            else f"; {share:.0%} of the stated peak: {graded(share, 'link_share', grades)}"
        )
        grade = graded(best, "p2p_gb_per_s", grades)
        lines += [f"Between devices at most {best:,.0f} GB/s one way: {grade}{of_peak}."]
        lines += [f"The threshold {words}." for words in unsuited(peak, grades)]
    for frame, peaks in ((measured.links, "peak_gb_per_s"), (measured.all_reduce, "peak_gbps")):
        lines += ["", _table(frame.drop(peaks))]
    lines += [""]
    return [*lines, *(f"Note: {note}." for note in measured.document["notes"]), ""]


def _limits(grades: Grades) -> str:
    (tp_good, tp_fair), (pp_good, pp_fair) = grades["tp_efficiency"], grades["pp_efficiency"]
    return (
        f"Efficiency is speed-up over devices. Grades: TP good above {tp_good:.0%}, fair from"
        f" {tp_fair:.0%}; PP good above {pp_good:.0%}, fair from {pp_fair:.0%}; below that poor."
        f" Above {MOST_EFFICIENCY:.0%} it is unknown: something else than the layout differed, such"
        " as threads, caches or other work on the machine. In decode a pipeline with one batch in"
        " flight gains nothing by itself: its efficiency is at most one over its stages."
    )


def _table(frame: pl.DataFrame) -> str:
    """Table in Markdown of a frame."""
    rounded = frame.with_columns(pl.col(pl.Float64).round_sig_figs(4))
    rows = [
        ["" if value is None else text.plain(value) for value in row] for row in rounded.iter_rows()
    ]
    lines = [f"| {' | '.join(row)} |" for row in (rounded.columns, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(rounded.columns), *lines[1:]])
