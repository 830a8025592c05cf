"""Coverage: the share of the device's time that the analyses explain."""

from __future__ import annotations

import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.label.completeness import completeness
from llmprof.label.steps.labels import UNKNOWN_LABEL
from llmprof.label.steps.steps import steps_of
from llmprof.trace import Trace

OF_OPERATORS = "summed time of outermost operators"

_MEASURES = {
    "step": pl.col("step").is_not_null(),
    "stage": pl.col("stage").is_not_null() & (pl.col("stage") != "other"),
    "category": pl.col("category") != "other",
    "launch": pl.col("launch_start_ns").is_not_null(),
    "operator": pl.col("op_id").is_not_null(),
}
"""Events that each measure covers: those with a step, a named stage, a category other than
``other``, a recorded launch call, and an operator on the host.
"""


@Analysis(
    question="How much of the device time is explained?",
    help="share of the device time that has a step, a stage, a launch …",
    view="coverage",
    recorded="device activity or operators",
)
def coverage(trace: Trace) -> pl.DataFrame:
    """Share of the device time of each rank that steps, stages, categories, launches and operators
    explain.

    Parameters
    ----------
    trace : Trace
        A trace with device activity or operators.

    Returns
    -------
    polars.DataFrame
        ``rank, kind, share, total_ns, count, missing_count, impossible_count, denominator``, a row
        for each rank with events and each kind of coverage: step, stage, category, launch,
        operator; ``recorded``: of the events that calls launched on the device, how many are in
        the recording (without times; no row without launching calls); and ``label``, where steps
        are ranges whose meaning is unknown: their number, and how to say it in ``denominator``.
        ``total_ns`` is the summed duration of all kernels and copies of the rank (operators, for a
        run on CPU), ``denominator`` says so in words; the share is null if it is 0.
        ``impossible_count`` of the rank's files are in no table, because their time or length
        cannot be: it is negative, no number, a day from all others, before their own launch, or far
        longer than all others of their name.

    Raises
    ------
    NotCapturedError
        The trace holds no device activity or operators.

    Examples
    --------
    >>> frame = analyze.coverage(trace)
    """
    events = trace.events
    on_cpu = events.height > 0 and (events["source"] == "op").all()
    denominator = OF_OPERATORS if on_cpu else "summed time of kernels and copies"
    impossible = {
        file.get("rank"): file.get("impossible", 0) for file in trace.coverage.get("files", ())
    }
    parts = [
        events.group_by("rank").agg(
            kind=pl.lit(kind),
            _covered=pl.col("dur_ns").filter(covered).sum(),
            total_ns=pl.sum("dur_ns"),
            count=pl.len(),
            missing_count=(~covered).sum(),
        )
        for kind, covered in _MEASURES.items()
    ]
    launched = recorded_shares(trace).with_columns(
        kind=pl.lit("recorded"),
        impossible_count=pl.lit(0, dtype=pl.Int64),
        denominator=pl.lit("events that were launched"),
    )
    rows = pl.concat(parts).with_columns(
        share=pl.when(pl.col("total_ns") > 0).then(pl.col("_covered") / pl.col("total_ns")),
        impossible_count=pl.col("rank").replace_strict(
            impossible, default=0, return_dtype=pl.Int64
        ),
        denominator=pl.lit(denominator),
    )[
        [
            "rank",
            "kind",
            "share",
            "total_ns",
            "count",
            "missing_count",
            "impossible_count",
            "denominator",
        ]
    ]
    parts = [rows, launched, _unknown_labels(trace)]
    return pl.concat(parts, how="diagonal_relaxed").sort("rank", maintain_order=True)


def _unknown_labels(trace: Trace) -> pl.DataFrame:
    """A row for each rank whose steps are ranges of no known engine, with how to name their
    fields.
    """
    found = steps_of(trace).filter(source=UNKNOWN_LABEL).group_by("rank", maintain_order=True)
    return found.agg(
        kind=pl.lit("label"),
        share=pl.lit(0.0),
        count=pl.len(),
        missing_count=pl.len(),
        impossible_count=pl.lit(0, dtype=pl.Int64),
        denominator=pl.format(
            "labels such as '{}', of no known engine: a pattern in [steps] of the file that"
            " LLMPROF_OWN names says what they mean",
            pl.first("name"),
        ),
    )


def recorded_shares(trace: Trace) -> pl.DataFrame:
    """How many of the events that calls launched on the device each rank's recording has."""
    sums = completeness(trace).group_by("rank").agg(pl.sum("launched", "missing"))
    return sums.select(
        "rank",
        share=1 - pl.col("missing") / pl.col("launched"),
        count="launched",
        missing_count="missing",
    ).sort("rank")
