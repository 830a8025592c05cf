"""Sections of the report of experiments, with units that people read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from llmprof import charts, text
from llmprof.charts.subjects.hardware import ALGORITHMS
from llmprof.report.figures import Drawing, make_figure
from llmprof.report.page import (
    Absent,
    ReportFigure,
    ReportTable,
    Section,
    columns_of_kind,
)
from llmprof.run.experiments.bandwidth import Bandwidth
from llmprof.run.experiments.layouts import answer, layout_verdicts
from llmprof.run.experiments.scaling import WORKLOAD, Grades, graded, median, unsuited
from llmprof.units import format_bytes, format_metric, format_ns, format_share

_WORKLOADS: Final = 4


def _table(name: str, caption: str, rows: Sequence[dict[str, str | None]]) -> ReportTable:
    """A table of texts; its columns are the keys of the rows."""
    frame = pl.DataFrame(rows, infer_schema_length=None)
    shown = [key for key in frame.columns if frame[key].null_count() < frame.height]
    columns = columns_of_kind("text", **dict(zip(shown, shown, strict=True)))
    return ReportTable(name, caption, columns, frame.select(shown))


def _s(seconds: float | None, low: float | None = None, high: float | None = None) -> str | None:
    """A time in words, with the least and largest of its repeats."""
    return _span(*((None if one is None else format_ns(one * 1e9)) for one in (seconds, low, high)))


def _span(middle: str | None, low: str | None, high: str | None) -> str | None:
    if middle is None or low == high:
        return middle
    return f"{middle} ({low} to {high})"


def _times(row: dict[str, Any], divided: int = 1) -> str | None:
    names = ("speedup", "speedup_low", "speedup_high")
    return _span(
        *((None if row[name] is None else f"x{row[name] / divided:.2f}") for name in names)
    )


def _rate(tokens: float, seconds: float | None) -> str | None:
    return None if seconds is None else format_metric("tokens", tokens / seconds)


def _signed(error: float | None) -> str | None:
    return None if error is None else f"{error:+.1%}"


def _workload(row: dict[str, Any]) -> str:
    return f"{row['batch']} x {row['prompt']:,} + {row['out']:,}"


def chosen_workloads(points: pl.DataFrame) -> pl.DataFrame:
    """A few of the workloads that the most layouts ran, from the smallest to the largest."""
    ran = points.group_by(WORKLOAD).len()
    common = ran.filter(pl.col("len") == pl.max("len"))
    common = common.sort(pl.col("batch") * pl.col("prompt"), "batch", "out").drop("len")
    every = max(common.height - 1, 1) / (_WORKLOADS - 1)
    places = {round(k * every) for k in range(_WORKLOADS)}
    return common[sorted(place for place in places if place < common.height)]


def layout_sections(
    points: pl.DataFrame, layouts: pl.DataFrame, predicted: pl.DataFrame | str, limits: str
) -> list[Section]:
    """What each layout of devices is worth, what it loses, and what the theory predicts."""
    verdicts = layout_verdicts(layouts)
    workloads = chosen_workloads(points)
    drawing = Drawing("parallel_efficiency", "speed-up of each layout", charts.parallel_efficiency)
    words = " ".join(map(str, verdicts))
    made = [
        Section(
            "worth",
            answer(verdicts),
            words,
            [
                _table(
                    "layouts",
                    "Each layout, by workload (requests at once x tokens of a prompt + of an"
                    " output): medians, in brackets the least and the largest of the repeats;"
                    " replicas are computed, each with the same batch on one GPU",
                    [
                        row
                        for workload in workloads.to_dicts()
                        for row in _of_workload(points, layouts, workload)
                    ],
                ),
                make_figure(layouts, drawing),
            ],
        )
    ]
    if lost := _lost(layouts, predicted, workloads):
        why = (
            "Beyond one GPU's step divided by the GPUs. Communication is that of the trace, in"
            " which a GPU does nothing else, with its waiting for the others; without a trace it is"
            " predicted. The rest is smaller products, which reach less of the peaks, and what each"
            " step costs once."
        )
        made.append(
            Section(
                "lost",
                "What does splitting the layers lose, and to what?",
                why,
                [_table("lost", "Of a decode step", lost)],
            )
        )
    if isinstance(predicted, str):
        said = Section("predicted", "What would other layouts do?", f"Not predicted: {predicted}.")
    else:
        said = Section(
            "predicted",
            "What would other layouts do?",
            "Predicted by the theory, whose constants were fitted to the points on one GPU alone;"
            " an error is that of the prediction against what was measured.",
            [_table("predicted", "Predictions", _predictions(predicted, workloads))],
        )
    graded_rows = layouts.filter(pl.col("phase") != "whole").sort("tp", "pp", "phase", *WORKLOAD)
    grades = [
        {
            "layout": text.layout_name(row["tp"], row["pp"]),
            "workload": _workload(row),
            "phase": row["phase"],
            "one GPU": _s(row["single_s"]),
            "takes": _s(row["time_s"]),
            "speed-up": _times(row),
            "efficiency": format_share(row["efficiency"]),
            "grade": row["grade"],
            "within the repeats": "yes" if row["noise"] else "",
        }
        for row in graded_rows.to_dicts()
        if row["speedup"] is not None
    ]
    every = Section(
        "grades",
        "Every workload, graded",
        limits,
        [_table("grades", "Speed-up over one GPU", grades)],
        stands=False,
    )
    return [*made, said, every]


def _of_workload(
    points: pl.DataFrame, layouts: pl.DataFrame, workload: dict[str, Any]
) -> list[dict[str, str | None]]:
    """Rows of one workload: one device, each layout, and as many replicas."""
    rows: list[dict[str, str | None]] = []
    tokens = workload["batch"] * workload["out"]
    of = points.filter(**workload).sort(pl.col("tp") * pl.col("pp"), "pp")
    single = of.filter(tp=1, pp=1).to_dicts()
    for point in of.to_dicts():
        tp, pp = point["tp"], point["pp"]
        compared = layouts.filter(**workload, tp=tp, pp=pp, phase="whole").to_dicts()
        rows.append(_point(point, text.layout_name(tp, pp), tokens, 1))
        if compared:
            rows[-1]["of one GPU"] = _times(compared[0])
            rows[-1]["of replicas"] = _times(compared[0], tp * pp)
    for number in sorted({row["tp"] * row["pp"] for row in of.to_dicts()} - {1}):
        for point in single:
            row = _point(point, f"{number} replicas", tokens, number)
            rows.append(row | {"of one GPU": f"x{number}", "of replicas": "x1"})
    return rows


def _point(point: dict[str, Any], name: str, tokens: int, replicas: int) -> dict[str, str | None]:
    times = {
        head: _s(*(point[f"{stem}{end}_s"] for end in ("", "_low", "_high")))
        for head, stem in (("first token", "ttft"), ("a token", "decode_step"))
    }
    held, peak = point["kv_tokens"], point["peak_bytes"]
    return {
        "workload": _workload(point),
        "layout": name,
        **times,
        "tokens a second": _rate(replicas * tokens, point["wall_s"]),
        "of one GPU": None,
        "of replicas": None,
        "KV cache": None if held is None else f"{replicas * held:,} tokens",
        "memory used a GPU": None if peak is None else format_bytes(peak),
    }


def _lost(
    layouts: pl.DataFrame, predicted: pl.DataFrame | str, workloads: pl.DataFrame
) -> list[dict[str, str | None]]:
    """What a decode step of tensor parallelism takes beyond its share, and to what it goes."""
    rows = layouts.filter(
        (pl.col("pp") == 1) & (pl.col("phase") == "decode") & pl.col("lost_s").is_not_null()
    )
    traced = rows.drop_nulls("communication_s")
    rows = pl.concat([rows.join(workloads, on=WORKLOAD), traced]).unique(maintain_order=True)
    theirs = pl.DataFrame(schema={"tp": pl.Int64, "pp": pl.Int64})
    if not isinstance(predicted, str):
        theirs = predicted
    out = []
    for row in rows.sort("tp", "batch", "prompt").to_dicts():
        sent, how = row["communication_s"], "measured"
        if sent is None and theirs.height:
            key = {name: row[name] for name in ("tp", "pp", *WORKLOAD)}
            sent, how = theirs.filter(**key)["communication_s"].first(), "predicted"
        rest = None if sent is None else row["lost_s"] - sent
        out.append(
            {
                "layout": text.layout_name(row["tp"], row["pp"]),
                "workload": _workload(row),
                "step": _s(row["time_s"]),
                "one GPU's, divided": _s(row["single_s"] / row["devices"]),
                "lost": _part(row["lost_s"], row["time_s"]),
                "communication": sent and f"{_part(sent, row['time_s'])}, {how}",
                "smaller products and the rest": rest and _part(rest, row["time_s"]),
            }
        )
    return out


def _part(seconds: float, of: float) -> str:
    return f"{_s(seconds)} ({format_share(seconds / of)})"


def _predictions(predicted: pl.DataFrame, workloads: pl.DataFrame) -> list[dict[str, str | None]]:
    rows = predicted.join(workloads, on=WORKLOAD).sort("batch", "prompt", "out", "devices", "pp")
    return [
        {
            "workload": _workload(row),
            "layout": text.layout_name(row["tp"], row["pp"]),
            "a token, predicted": _s(row["decode_s"]),
            "measured": _s(row["measured_decode_s"]) or "not run",
            "error": _signed(row["decode_error"]),
            "faster than one GPU": f"x{row['single_s'] / row['decode_s']:.2f}",
            "communication": _s(row["communication_s"]),
            "prefill, predicted": _s(row["prefill_s"]),
            "prefill, measured": _s(row["measured_prefill_s"]),
            "error of it": _signed(row["prefill_error"]),
        }
        for row in rows.to_dicts()
    ]


def length_section(points: pl.DataFrame, lengths: pl.DataFrame, left_out: str) -> Section:
    """Times over the length of the prompt."""
    rows = [
        {
            "layout": text.layout_name(row["tp"], row["pp"]),
            "workload": _workload(row),
            "prefill": _s(*(row[f"prefill{end}_s"] for end in ("", "_low", "_high"))),
            "of its least time": _of_bound(row["prefill_share"]),
            "decode step": _s(*(row[f"decode_step{end}_s"] for end in ("", "_low", "_high"))),
            "of its least time ": _of_bound(row["decode_share"]),
            "output tokens a second": format_metric("rate", row["output_tokens_per_s"]),
            "grows from here": "yes" if row["bend"] else None,
        }
        for row in lengths.to_dicts()
    ]
    words = f"{text.plain(left_out).capitalize()}. " if left_out else ""
    words += (
        "A prefill grows from the length on that is marked, where it was flat before it; in a"
        " series of two lengths nothing can be said. The least time is that of the measured peaks,"
        " or of the data sheet."
    )
    drawing = Drawing("length_curves", "prefill and decode over the prompt", charts.length_curves)
    table = _table("lengths", "Medians, with their repeats", rows)
    figure = make_figure(points, drawing)
    return Section(
        "length", "What does a longer prompt cost?", words, [figure, table], stands=False
    )


def _of_bound(share: float | None) -> str | None:
    return None if share is None else format_share(share)


def hardware_section(measured: Bandwidth, grades: Grades) -> Section:
    """What memory, products and links reach."""
    device, ranks = measured.device, text.counted(measured.document["world"], "rank")
    on_gpu = measured.document["platform"] == "cuda"
    words = [] if on_gpu else ["Measured on a CPU: these figures say nothing about a GPU."]
    memory = measured.memory.group_by("kind", maintain_order=True).agg(
        pl.min("gb_per_s"), pl.first("peak_gb_per_s")
    )
    peaks = [
        {
            "what": row["kind"].replace("_", " "),
            "measured": f"{row['gb_per_s']:,.4g} GB/s",
            "stated": row["peak_gb_per_s"] and f"{row['peak_gb_per_s']:,.4g} GB/s",
            "share": row["peak_gb_per_s"] and format_share(row["gb_per_s"] / row["peak_gb_per_s"]),
        }
        for row in memory.to_dicts()
    ] + [
        {
            "what": f"product of {row['n']:,} x {row['n']:,} in {row['dtype']}",
            "measured": f"{row['tflop_per_s']:,.4g} TFLOP/s",
            "stated": row["peak_tflop_per_s"] and f"{row['peak_tflop_per_s']:,.4g} TFLOP/s",
            "share": row["share"] and format_share(row["share"]),
        }
        for row in measured.matmul.to_dicts()
    ]
    drawing = Drawing("hardware_peaks", "peaks", lambda of: charts.hardware_peaks(*of))
    blocks: list[ReportFigure | ReportTable | Absent] = [
        make_figure((measured.memory, measured.matmul), drawing)
    ]
    if peaks:
        caption = "Memory (the slowest device) and matrix products"
        blocks.append(_table("peaks", caption, peaks))
    if measured.links.is_empty():
        words.append("One device: links between devices were not measured.")
    else:
        words += [*_links_in_words(measured, grades), *_graphs_in_words(measured.all_reduce)]
        blocks += [
            _table("links", "Links", _links(measured.links)),
            make_figure(measured.links, Drawing("link_bandwidth", "links", charts.link_bandwidth)),
        ]
    if measured.all_reduce.height:
        drawing = Drawing("all_reduce_bandwidth", "all-reduce", charts.all_reduce_bandwidth)
        blocks += [
            _table("all_reduce", "All-reduce by size", _all_reduce(measured.all_reduce)),
            make_figure(measured.all_reduce, drawing),
        ]
    words += [text.sentence(note) for note in measured.document["notes"]]
    question = f"What does the hardware reach? {device}, {ranks}"
    return Section("hardware", question, " ".join(words), blocks, stands=False)


def _links_in_words(measured: Bandwidth, grades: Grades) -> list[str]:
    one_way = measured.links.filter(~pl.col("both"))
    best, share, peak = one_way.select(pl.max("gb_per_s", "share", "peak_gb_per_s")).row(0)
    if measured.document["platform"] != "cuda":
        return [
            f"Between processes at most {best:,.1f} GB/s one way; the grades are of links between"
            " GPUs."
        ]
    of_peak = (
        ""
        if share is None
        else f"; {share:.0%} of the stated peak: {graded(share, 'link_share', grades)}"
    )
    grade = graded(best, "p2p_gb_per_s", grades)
    words = [f"Between devices at most {best:,.0f} GB/s one way: {grade}{of_peak}."]
    return [*words, *(f"The threshold {one}." for one in unsuited(peak, grades))]


_SMALL: Final = 1 << 18
"""Bytes up to which an all-reduce is one of a decode step."""


def _graphs_in_words(rows: pl.DataFrame) -> list[str]:
    """How much longer NCCL takes than vLLM's own all-reduce, both in CUDA graphs as in decode."""
    small = rows.filter(pl.col("bytes") <= _SMALL)
    slow, fast = (
        median(small.filter(algorithm=name), "latency_us")
        for name in ("nccl_graph", "vllm_custom_graph")
    )
    if slow is None or fast is None:
        return []
    return [
        f"Up to {format_bytes(_SMALL, 2)}, as in decode, NCCL takes {slow / fast:.1f} times as long"
        f" as vLLM's own all-reduce, both in CUDA graphs ({slow:.1f} and {fast:.1f} us)."
    ]


def _links(links: pl.DataFrame) -> list[dict[str, str | None]]:
    """Each pair of devices: the time of the smallest message, and the largest bandwidth."""
    pairs = links.group_by("src", "dst", "both", "how", maintain_order=True).agg(
        pl.col("latency_us", "bytes").sort_by("bytes").first(),
        pl.col("gb_per_s", "share").sort_by("gb_per_s").last(),
        best=pl.col("bytes").sort_by("gb_per_s").last(),
    )
    return [
        {
            "devices": f"{row['src']} → {row['dst']}{', both ways' if row['both'] else ''}",
            "how": row["how"],
            "smallest message": (
                f"{format_ns(row['latency_us'] * 1e3)} for {format_bytes(row['bytes'])}"
            ),
            "most": f"{row['gb_per_s']:,.4g} GB/s at {format_bytes(row['best'])}",
            "of the stated peak": row["share"] and format_share(row["share"]),
        }
        for row in pairs.to_dicts()
    ]


def _all_reduce(rows: pl.DataFrame) -> list[dict[str, str | None]]:
    """A row for each size: the time of each algorithm, and the best bandwidth."""
    out = []
    names = rows["algorithm"].unique(maintain_order=True)
    for (size,), of in rows.sort("bytes").group_by("bytes", maintain_order=True):
        times = dict(of.select("algorithm", "latency_us").iter_rows())
        best = of.sort("bus_gbps").row(-1, named=True)
        out.append(
            {
                "size": format_bytes(size),
                **{
                    ALGORITHMS.get(name, name): times.get(name) and format_ns(times[name] * 1e3)
                    for name in names
                },
                "best on the bus": f"{best['bus_gbps']:,.3g} GB/s",
                "of the stated peak": best["share"] and format_share(best["share"]),
            }
        )
    return out
