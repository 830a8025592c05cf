"""Tables of the report's sections: each takes a frame and the words of its platform."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Final

import polars as pl

from llmprof import text
from llmprof.findings.gain import NOTHING
from llmprof.label.steps.labels import ENGINES
from llmprof.names.readable import distinct_labels
from llmprof.report import cards
from llmprof.report.figures import GAINS_OF_OPERATORS, without_bounds
from llmprof.report.page import Absent, ReportColumn, ReportTable, columns_of_kind
from llmprof.trace.platforms import ON_DEVICE
from llmprof.units import format_ns, format_share

MOST_KERNELS: Final = 25


def steps_table(steps: pl.DataFrame, words: Mapping[str, str] = ON_DEVICE) -> ReportTable:
    """Steps by phase: their number, size and length."""
    phases = {name: i for i, name in enumerate(("prefill", "mixed", "decode", "empty", "other"))}
    rows = (
        steps.group_by("phase")
        .agg(
            *cards.LENGTHS,
            steps=pl.n_unique("step"),
            prefill_tokens=pl.median("prefill_tokens"),
            decode_requests=pl.median("decode_requests"),
            host=pl.mean("host_dur_ns"),
        )
        .sort(
            pl.col("phase").replace_strict(phases, default=len(phases), return_dtype=pl.Int32),
            "phase",
        )
    )
    lengths = {"mean": "length", "median": "its median", "least": "least", "most": "most"}
    if "median" not in cards.length_columns(rows):
        del lengths["median"]
    rows = rows.with_columns(_phases(rows))
    shown = (
        ReportColumn("phase", "phase"),
        *columns_of_kind(
            "number",
            steps="steps",
            prefill_tokens="prompt tokens",
            decode_requests="decode requests",
        ),
        *columns_of_kind("time", **lengths, host="host time"),
    )
    sources = steps["source"].unique().sort()
    note = (
        "Steps are known from "
        + ", ".join(_SOURCES.get(source, source) for source in sources)
        + "."
    )
    caption = (
        "Steps by phase: means over steps and ranks, medians of tokens and requests; length is from"
        " the first {event} to that of the next step"
    )
    caption = caption.format_map(words)
    return ReportTable("steps", caption, shown, rows, note=note)


def _phases(rows: pl.DataFrame) -> pl.Series:
    return pl.Series(
        "phase", [cards.phase_in_words(phase) for phase in rows["phase"]], dtype=pl.String
    )


_SOURCES = {
    **{source: f"{engine}'s labels" for source, engine in ENGINES.items()},
    "capture": "labels of graph captures",
    "profiler_step": "the profiler's ProfilerStep labels",
    "onnxruntime": "the model_run ranges of ONNX Runtime",
    "mindspore": "the iterations of MindSpore",
    "xla": "the runs of programs on XLA devices",
    "execute_model": "ranges around vLLM's execute_model",
    "optimizer": "the Optimizer.step ranges, each of which ends a step",
    "inferred": "the repetition of kernels, because the capture has no labels",
}


def kernels_table(kernels: pl.DataFrame, words: Mapping[str, str] = ON_DEVICE) -> ReportTable:
    """The kernels with the largest sums."""
    top = kernels.head(MOST_KERNELS)
    top = top.with_columns(
        label=pl.Series(distinct_labels(top["name"], top["readable"]), dtype=pl.String)
    )
    shown = (
        ReportColumn("label", words["event"], "name", full="name"),
        ReportColumn("category", "category", "chip"),
        ReportColumn("count", "runs", "number"),
        ReportColumn("total_ns", "total", "time"),
        ReportColumn("share", "share", "share"),
        *columns_of_kind("time", median_ns="median", min_ns="least", max_ns="most"),
    )
    rest = kernels.height - top.height
    covered, whole = (
        format_ns(frame.select(pl.sum("total_ns")).item()) for frame in (top, kernels)
    )
    caption = f"All {kernels.height} names of {words['events']}, {whole} in all"
    if rest:
        caption = (
            f"{top.height} of {kernels.height:,} names of {words['events']}, {covered} of {whole}"
            " in all"
        )
    notes = ["A collective's time holds its waiting."] if "collective" in top["category"] else []
    notes += [f"{rest:,} more are in kernels.csv."] if rest else []
    return ReportTable("kernels", caption, shown, top, sortable=True, note=" ".join(notes))


def opportunities_table(
    found: pl.DataFrame, _words: Mapping[str, str] = ON_DEVICE
) -> ReportTable | Absent:
    """All of a step of the phase with most time: what would gain most, and what would not."""
    if not found.height:
        return Absent(GAINS_OF_OPERATORS, captured=True, found="nothing lasted", hint="")
    if why := without_bounds(found):
        return Absent(GAINS_OF_OPERATORS, captured=True, found=why, hint="")
    own = found.filter(pl.col("phase").eq_missing(pl.lit(found["phase"][0], dtype=pl.String)))
    least = pl.col("gap_ns").rank("ordinal", descending=True).over("part") <= _MOST_OPPORTUNITIES
    some = own.filter((pl.col("part") != "opportunity") | least)
    opportunity = pl.col("part") == "opportunity"
    name = pl.when(opportunity).then(
        pl.concat_str("stage", "operator", separator=": ", ignore_nulls=True)
    )
    some = some.with_columns(
        name=name.otherwise(
            pl.concat_str(
                pl.col("part").cast(pl.String).replace(_DOUBLE),
                "reason",
                separator=": ",
                ignore_nulls=True,
            )
        )
    )
    shown = (
        ReportColumn("name", "part of a step"),
        ReportColumn("total_ns", "time", "time"),
        *columns_of_kind("share", share="share of the step", bound_share="of its bound"),
        ReportColumn("bound_by", "bound by"),
        *columns_of_kind("gain", gap_ns="beyond 80 %", gain_ns="a step gains"),
    )
    phase = f" of {own['phase'][0]}" if own["phase"][0] not in (None, "other") else ""
    count = own["steps"][0]
    mean = f", mean of {text.counted(count, 'step')}" if count > 1 else ""
    caption = f"A step{phase} on rank {own['rank'][0]}{mean}"
    note = "More are in opportunities.csv." if some.height < own.height else ""
    return ReportTable("opportunities", caption, shown, some, note=note)


_MOST_OPPORTUNITIES: Final = 12
_DOUBLE: Final = {"beside other work": "ran beside other work: counted twice above"}
_MOST_CHAINS: Final = 12


def _repeated(chain: str) -> str:
    """A chain with the number of equal members in place of each: ``5 elementwise + copy``."""
    groups = [(name, len(list(equal))) for name, equal in groupby(chain.split(" + "))]
    return " + ".join(f"{count} {name}" if count > 1 else name for name, count in groups)


def fusion_table(
    chains_found: pl.DataFrame, _words: Mapping[str, str] = ON_DEVICE
) -> ReportTable | Absent:
    """The chains of short kernels that would save most, or the sentence that there are none."""
    if not chains_found.height:
        words = "no short kernels always follow each other on a stream"
        return Absent("chains of kernels that would be one", captured=True, found=words, hint="")
    gain_share = pl.col("gain_ns") / pl.col("recorded_ns")
    some = chains_found.filter(pl.coalesce(gain_share, "share") >= NOTHING)
    if chains_found["gain_ns"].null_count() == chains_found.height:
        some = chains_found
    if not some.height:
        words = (
            f"no chain of short kernels is known to gain {format_share(NOTHING)} of a step as one"
            " kernel"
        )
        return Absent("chains of kernels that would be one", captured=True, found=words, hint="")
    best = some.sort("gain_ns", "total_ns", descending=True, nulls_last=True).head(_MOST_CHAINS)
    named = pl.col("name").is_not_null() & (pl.col("name") != pl.col("category"))
    named &= pl.col("name") != "elementwise and reductions"  # the chain says it itself
    rows = best.with_columns(_phases(best)).select(
        *("phase", "length", "per_step", "share", "saved_bytes", "gain_ns", "kernels"),
        chain=pl.when(named)
        .then(pl.format("{}: {}", "name", "category"))
        .otherwise("category")
        .map_elements(_repeated, return_dtype=pl.String),
        launches=pl.col("per_step") * (pl.col("length") - 1),
        gain_share=gain_share,
    )
    shown = (
        ReportColumn("chain", "chain", "name", width=64, full="kernels"),
        ReportColumn("phase", "phase"),
        *columns_of_kind("number", per_step="chains a step", launches="launches saved a step"),
        ReportColumn("share", "time of all kernels", "share"),
        ReportColumn("gain_ns", "gain a step", "gain"),
        ReportColumn("gain_share", "of the step", "share"),
    )
    count, more = chains_found.height, chains_found.height - rows.height
    number = f"{rows.height} of {count:,}" if more else f"All {count}"
    chains = f"{number} chains" if count > 1 else "The only chain"
    caption = f"{chains} of short kernels, by what one kernel in its place would gain"
    notes = ["A dash: not replayed, or not known."] if rows["gain_ns"].null_count() else []
    least = format_share(NOTHING)
    if few := count - some.height:
        notes.append(
            f"Left out: {text.counted(few, 'chain')} with a gain of less than {least} of a step, or"
            f" without a replay and with less than {least} of the time of all kernels."
        )
    notes += [f"All {count:,} are in fusion.csv."] if more else []
    return ReportTable("fusion", caption, shown, rows, sortable=True, note=" ".join(notes))
