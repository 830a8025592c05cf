"""Steady decode steps that represent a run, and parts that add up to the time of steps or of a
recording.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.analyze.collectives.collectives import collectives
from llmprof.analyze.edge import LANE, edges
from llmprof.analyze.idle.gaps import causes_of, gap_parts
from llmprof.analyze.overlap import COMMUNICATION, COPY, overlap
from llmprof.label.completeness import incomplete_steps
from llmprof.label.groups import first_of_runs, is_sorted
from llmprof.label.intervals import LOWEST, clip_intervals, length_within, union_lengths
from llmprof.label.steps.steps import UNTIL_NEXT, steps_of
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace
from llmprof.trace.schema import END

MAX_DEVIATIONS = 4.0
MAD_TO_SIGMA = 1.4826
"""The median absolute deviation times this is the standard deviation of a normal distribution."""


@per_trace
def steady_steps(trace: Trace) -> pl.DataFrame:
    """Decode steps that represent the run: ``analyze.steps(trace, steady=True)``."""
    ran = (pl.col("phase") != "empty") & pl.col("dur_ns").is_not_null()
    step_rows = steps_of(trace).filter(ran)
    step_rows = step_rows.join(
        incomplete_steps(trace), on=["rank", "step"], how="anti", maintain_order="left"
    )
    decode = pl.col("phase") == "decode"
    after_other = decode & (pl.col("phase").shift(1).over("rank") != "decode").fill_null(True)
    step_rows = step_rows.with_columns(
        _run=after_other.cum_sum().over("rank"), _first=after_other
    ).filter(decode)
    if not step_rows.height:
        return step_rows.drop("_run", "_first")
    batch = pl.col("decode_requests").mode().min().over("rank")
    step_rows = step_rows.filter(pl.col("decode_requests").eq_missing(batch))
    length = pl.len().over("rank", "_run")
    step_rows = step_rows.filter(length == length.max().over("rank"))
    step_rows = step_rows.filter(pl.col("_run") == pl.min("_run").over("rank"))
    step_rows = step_rows.filter(~pl.col("_first") | (pl.len().over("rank") <= 3))
    span = pl.col("dur_ns")
    middle = span.median().over("rank")
    spread = (span - middle).abs().median().over("rank") * MAD_TO_SIGMA
    limit = pl.max_horizontal(spread * MAX_DEVIATIONS, middle * 0.1)
    steady = step_rows.filter((span - middle).abs() <= limit).drop("_run", "_first")
    slow = slow_steps(step_rows, step_windows(trace), steady)
    return steady.join(slow, on=["rank", "step"], how="anti", maintain_order="left")


SLOW = 1.5
"""A slow step takes this many times a usual one, or more."""


def slow_steps(
    step_rows: pl.DataFrame, windows: pl.DataFrame, steady: pl.DataFrame
) -> pl.DataFrame:
    """Decode steps with as many requests as the steady ones that, with the pause after them, take
    much longer than these.
    """
    usual = windows.join(steady[["rank", "step", "decode_requests"]], on=["rank", "step"])
    usual = usual.group_by("rank").agg(
        pl.median("dur_ns").alias("usual_ns"), pl.first("decode_requests")
    )
    long = windows.join(usual[["rank", "usual_ns"]], on="rank").filter(
        pl.col("phase") == "decode", pl.col("dur_ns") >= SLOW * pl.col("usual_ns")
    )
    rows = step_rows.join(long, on=["rank", "step"], how="semi", maintain_order="left")
    batch = ["rank", "decode_requests"]
    return rows.join(usual, on=batch, how="semi", maintain_order="left", nulls_equal=True)


SAME = 0.15
"""A token takes a step if, under the profiler, it takes the time of a recorded one within this
share, or if labels say that a step makes one token of each request, and ranks are no stages.
"""


def plain_steps(trace: Trace) -> list[float]:
    """Time of a step of decode (ns) in each repeat of the run without the profiler; empty if none
    was measured, or if a token takes no step.
    """
    measured = trace.meta.get("without_profiler")
    decode = step_windows(trace).filter(phase="decode") if measured else None
    if not measured or decode is None or not decode.height:
        return []
    recorded = float(decode["dur_ns"].median())  # type: ignore[arg-type]
    made = steps_of(trace).filter(phase="decode")[["decode_tokens", "decode_requests"]]
    one = (made["decode_tokens"] == made["decode_requests"]).all(ignore_nulls=False)
    by_labels = bool(one) and trace.meta.get("parallel", {}).get("pp") == 1
    alike = abs(measured["profiled_ns"] / recorded - 1) <= SAME
    if not (by_labels or alike) or measured["plain_ns"] > (1 + SAME) * recorded:
        return []
    return list(measured.get("repeats_ns") or [measured["plain_ns"]])


PARTS = {
    "compute": pl.col("compute_ns") - pl.col("hidden_communication_ns"),
    "hidden communication": pl.col("hidden_communication_ns"),
    "exposed communication": pl.col("exposed_communication_ns"),
    "exposed copy": pl.col("exposed_copy_ns"),
    "idle": pl.col("idle_ns"),
}
"""Parts of the time of a step, which add up to it."""

SCHEMA = {
    "phase": pl.String,
    "part": pl.String,
    "ns": pl.Int64,
    "share": pl.Float64,
    "steps": pl.Int64,
    "ranks": pl.Int64,
}


@Analysis(
    question="What is a step's time made of?",
    help="time of steps by phase and part",
    view="step-time",
    recorded="device activity or operators",
)
def step_time(trace: Trace) -> pl.DataFrame:
    """Time of the steps by phase and part, over all ranks.

    Parameters
    ----------
    trace : Trace
        Any trace.

    Returns
    -------
    polars.DataFrame
        ``phase``; ``part``: ``compute`` (alone), ``hidden communication`` (during compute),
        ``exposed communication``, ``exposed copy``, ``idle``; ``ns``, summed over the ranks and
        steps of the phase; ``share`` of the phase's time; ``steps`` and ``ranks``. A step lasts
        until the next one starts; steps without work are left out.

    Examples
    --------
    >>> analyze.step_time(trace).columns
    ['phase', 'part', 'ns', 'share', 'steps', 'ranks']
    """
    phases = steps_of(trace)[["rank", "step", "phase"]]
    rows = overlap(trace).join(phases.filter(pl.col("phase") != "empty"), on=["rank", "step"])
    sums = rows.group_by("phase").agg(
        *(part.fill_null(0).sum().cast(pl.Int64).alias(name) for name, part in PARTS.items()),
        steps=pl.n_unique("step").cast(pl.Int64),
        ranks=pl.n_unique("rank").cast(pl.Int64),
    )
    long = sums.unpivot(
        list(PARTS), index=["phase", "steps", "ranks"], variable_name="part", value_name="ns"
    )
    share = pl.when(pl.sum("ns").over("phase") > 0).then(pl.col("ns") / pl.sum("ns").over("phase"))
    places = {name: i for i, name in enumerate(PARTS)}
    return (
        long.with_columns(share=share)
        .sort("phase", pl.col("part").replace_strict(places, return_dtype=pl.Int64))
        .select(*SCHEMA)
        .cast(SCHEMA)  # type: ignore[arg-type]
    )


KINDS = ("compute", "communication", "copy", "idle")
"""Kinds of time: if several run at once, the first of these counts."""

IDLE_NOT_RECORDED = "outside"
"""Idle time before the first and after the last event of a device."""

WINDOWS = {
    **dict.fromkeys((*LANE, "step"), pl.Int32()),
    "phase": pl.String(),
    **dict.fromkeys(("start_ns", "dur_ns", "span_ns"), pl.Int64()),
}


@per_trace
def step_windows(trace: Trace) -> pl.DataFrame:
    """Time of each step, from its first event to that of the next step of the rank, so that idle
    time counts once; to its own end if no request runs after it. Without steps of which events
    were launched that were not recorded.
    """
    step_rows = steps_of(trace).drop_nulls("start_ns").sort("rank", "start_ns")
    length = UNTIL_NEXT - pl.col("start_ns")
    step_rows = step_rows.with_columns(dur_ns=length, span_ns=pl.min_horizontal("dur_ns", length))
    step_rows = step_rows.filter(
        (pl.col("phase") != "empty") & (pl.col("source") != "capture") & (pl.col("dur_ns") > 0)
    )
    last = pl.when(_is_last_of_requests()).then("span_ns").otherwise("dur_ns")
    step_rows = step_rows.with_columns(dur_ns=last)
    step_rows = step_rows.join(incomplete_steps(trace), on=["rank", "step"], how="anti")
    lanes = trace.events.select(LANE).unique()
    return (
        _after_edge(step_rows.join(lanes, on="rank"), trace)
        .select(list(WINDOWS))
        .sort(*LANE, "start_ns")
    )


def _is_last_of_requests() -> pl.Expr:
    """Whether all requests of a decode step end with it: the next step reads prompts, and what
    decodes after it are at most these; or those of a step on a rank that never decodes, while
    others do.
    """
    # engines that read prompts apart from decoding go on with the other requests after it
    reads = pl.col("phase") == "prefill"
    read = pl.col("prefill_requests").fill_null(0).cum_sum()
    following, upto = (
        pl.when(~reads).then(value).shift(-1).backward_fill().over("rank")
        for value in (pl.col("decode_requests"), read - pl.col("prefill_requests").fill_null(0))
    )
    is_last = (pl.col("phase") == "decode") & reads.shift(-1).over("rank")
    is_last &= following <= upto - read.over("rank")
    decodes = (pl.col("phase") == "decode").any()
    is_run = pl.col("source") == "onnxruntime"  # a run of a session serves its caller
    return is_last.fill_null(False) | (decodes & ~decodes.over("rank")) | is_run


@per_trace
def mean_windows(trace: Trace) -> pl.DataFrame:
    """Windows of the steps that a mean step of each phase is of."""
    windows, steady = step_windows(trace), steady_steps(trace)
    if windows["phase"].n_unique() == 1 or "other" in windows["phase"]:
        windows = without_long_first(windows)
    decode = windows.filter(phase="decode")
    if not steady.height or steady["rank"].n_unique() < decode["rank"].n_unique():
        return windows
    typical, _ = decode_steps(steps_of(trace), windows, steady)
    typical = decode.join(typical, on=["rank", "step"], how="semi", maintain_order="left")
    return windows.filter(pl.col("phase").ne_missing("decode")).vstack(typical)


REPRESENTS: Final = 0.1
"""Steady steps stand for decode if their mean is that of all its steps but slow ones within this
share of it; else these do.
"""


def decode_steps(
    step_rows: pl.DataFrame, windows: pl.DataFrame, steady: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The steps that stand for decode, steady or else all usual ones, and the slow ones."""
    key = ["rank", "step"]
    slow = slow_steps(step_rows, windows, steady)
    usual = step_rows.filter(phase="decode").join(slow, on=key, how="anti", maintain_order="left")
    usual = usual.join(windows, on=key, how="semi", maintain_order="left")
    mean, of_usual = (
        int(windows.join(chosen, on=key, how="semi")["dur_ns"].sum()) / max(1, chosen.height)
        for chosen in (steady, usual)
    )
    return (steady if abs(mean - of_usual) <= REPRESENTS * of_usual else usual), slow


def request_pauses(windows: pl.DataFrame) -> pl.DataFrame:
    """Windows of the time in which no request runs, after the steps of :func:`step_windows` with
    which the last ones end.
    """
    pause = pl.col("start_ns").shift(-1).over(LANE) - END
    whole = pl.col("dur_ns") == pl.col("span_ns")
    then = pl.col("phase").shift(-1).over(LANE) == "prefill"
    is_last = (pl.col("phase") == "decode") & then & whole & (pause > 0)
    return windows.with_columns(start_ns=END, dur_ns=pause, span_ns=pause).filter(is_last)


def _after_edge(windows: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Windows without what the device did of work from before the recording; without those of
    which that is much, where others are left.
    """
    last = END.max()
    at = edges(trace).group_by(LANE).agg(edge_ns=last)
    if not at.height:
        return windows
    cut = pl.col("edge_ns").fill_null(-1)
    inside = (pl.col("start_ns") <= cut) & (cut < END)
    lost = pl.when(inside).then(cut - pl.col("start_ns")).otherwise(0)
    much = lost > MUCH_CUT * pl.col("dur_ns")
    windows = windows.join(at, on=LANE, how="left", maintain_order="left")
    return windows.filter(~much | much.all().over(LANE)).with_columns(
        pl.col("start_ns") + lost,
        pl.col("dur_ns") - lost,
        span_ns=pl.max_horizontal(pl.col("span_ns") - lost, 0),
    )


MUCH_CUT = 0.25
"""A step that loses more than this share of its time is not like the others."""

LONG = 10
"""The first steps of a device that take more than this many times its median step would be most
of its mean step …
"""

_FEWEST_AFTER = 5
"""… and are left out if at least this many others stay."""


def without_long_first(windows: pl.DataFrame) -> pl.DataFrame:
    """Windows without the long first steps of their device (start-up, or a long prompt)."""
    begun = (pl.col("dur_ns") <= LONG * pl.median("dur_ns").over(LANE)).cum_sum().over(LANE) > 0
    return windows.filter(begun | (begun.sum().over(LANE) < _FEWEST_AFTER))


@per_trace
def recorded_windows(trace: Trace) -> pl.DataFrame:
    """Recorded time of each device: from the first to the last recorded event of its rank,
    including the host.
    """
    # What the profiler itself does (ranges of the domain `overhead`), such as writing its buffers
    # after the run, is no part of it.
    bounds = []
    for name, frame in trace.tables.items():
        if name == "markers":
            frame = frame.filter(pl.col("domain").ne_missing("overhead"))
        if "start_ns" in frame.columns and frame.height:
            begins = first_of_runs(frame, ["rank"])  # tables are sorted by rank and start
            ends = frame.select(END.fill_null(LOWEST)).to_series().to_numpy()
            last = pl.Series("last", np.maximum.reduceat(ends, begins))
            bounds.append(frame.select("rank", first="start_ns")[begins].hstack([last]))
    events = trace.events
    if not bounds or not events.height:
        return pl.DataFrame(schema=WINDOWS)
    spans = pl.concat(bounds).group_by("rank").agg(pl.min("first"), pl.max("last"))
    lanes = events.select(LANE).unique().join(spans, on="rank")
    return lanes.select(
        *LANE,
        step=pl.lit(None, pl.Int32),
        phase=pl.lit(None, pl.String),
        start_ns="first",
        dur_ns=pl.col("last") - pl.col("first"),
        span_ns=pl.col("last") - pl.col("first"),
    ).sort(LANE)


def used_windows(trace: Trace) -> pl.DataFrame:
    """Time in which each device was in use: from its own first to its last event."""
    first, end = pl.min("start_ns"), END.max()
    used = trace.events.group_by(LANE).agg(first, dur_ns=end - first, span_ns=end - first)
    rows = recorded_windows(trace).drop("start_ns", "dur_ns", "span_ns")
    rows = rows.join(used, on=LANE, nulls_equal=True)
    return rows.filter(pl.col("dur_ns") > 0).select(list(WINDOWS)).sort(LANE)


def time_parts(trace: Trace, windows: pl.DataFrame) -> pl.DataFrame:
    """Time of each window in parts that add up to it: compute by stage, then communication,
    copies, idle.
    """
    events = trace.events
    # texts are numbers until they are summed up
    of_copy = pl.when(pl.col("category").is_in(list(COPY))).then("name")
    texts = [text.cast(pl.Categorical) for text in (pl.col("category", "stage", "source"), of_copy)]
    rows = events.select(*LANE, "start_ns", "dur_ns", *texts)
    distinct = rows["category"].unique().drop_nulls()
    names_of = {
        kind: distinct.filter(distinct.cast(pl.String).is_in(list(categories))).implode()
        for kind, categories in (("communication", COMMUNICATION), ("copy", COPY))
    }
    communication, copy = (
        pl.col("category").is_in(names_of[kind]).fill_null(False) for kind in names_of
    )
    unnamed = pl.col("stage").is_null() | (pl.col("stage") == "other")
    by_kernels = pl.lit("kernels that copy or fill").cast(pl.Categorical)
    moved = pl.when(pl.col("source") == "kernel").then(by_kernels).otherwise("name")
    label = pl.when(copy).then(moved).when(unnamed).then("category").otherwise("stage")
    kind = (
        pl.when(communication)
        .then(_kind("communication"))
        .when(copy)
        .then(_kind("copy"))
        .otherwise(_kind("compute"))
    )
    rows = rows.select(*LANE, "start_ns", "dur_ns", kind=kind, part=label)
    waits = _waits(trace, events)
    rows = pl.concat([rows, waits], how="diagonal_relaxed")
    cut = clip_intervals(rows, windows, LANE)
    cut = (
        cut
        if is_sorted(cut, ["window", "start_ns"])
        else cut.sort("window", "start_ns", maintain_order=True)
    )
    is_compute, is_wait, is_known = (
        pl.col("kind") == kind for kind in ("compute", "wait", "transfer")
    )
    with_communication = pl.col("kind") != "copy"
    lengths = union_lengths(
        cut,
        ["window"],
        compute=is_compute,
        with_wait=is_compute | is_wait,
        with_transfer=is_compute | is_wait | is_known,
        with_communication=with_communication,
        busy=pl.lit(True),
    )
    exposed = [
        lengths.select("window", kind=pl.lit("communication"), part=pl.lit(part), ns=ns)
        for part, ns in {
            "wait": pl.col("with_wait") - pl.col("compute"),
            "transfer": pl.col("with_transfer") - pl.col("with_wait"),
            "wait or transfer": pl.col("with_communication") - pl.col("with_transfer"),
        }.items()
    ]
    copies = _exposed_copies(cut, lengths)
    gaps = _idle(trace, windows, lengths)
    return (
        pl.concat(
            [_first_come(cut.filter(is_compute)), *exposed, copies, gaps], how="diagonal_relaxed"
        )
        .filter(pl.col("ns") > 0)
        .select("window", "kind", pl.col("part").fill_null("other"), pl.col("ns").cast(pl.Int64))
        .sort("window", "kind", "part")
    )


@per_trace
def step_parts(trace: Trace) -> pl.DataFrame:
    """The same of the windows of all steps: ``rank, device, step, kind, part, ns``."""
    windows = step_windows(trace)
    keys = windows.select(*LANE, "step").with_row_index("window")
    parts = time_parts(trace, windows)
    return keys.join(parts, on="window", maintain_order="left_right").drop("window")


_KIND = pl.Enum(["compute", "communication", "copy", "wait", "transfer"])


def _kind(name: str) -> pl.Expr:
    return pl.lit(name, dtype=_KIND)


def _first_come(compute: pl.DataFrame) -> pl.DataFrame:
    """Time of each part while nothing runs that began before it."""
    reach = END.cum_max().shift(1).over("window")
    new = (END - pl.max_horizontal("start_ns", reach)).clip(0)
    return (
        compute.with_columns(ns=new)
        .group_by("window", "part")
        .agg(pl.sum("ns"))
        .select("window", pl.col("part").cast(pl.String), "ns", kind=pl.lit("compute"))
    )


def _waits(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """Collectives whose waiting is known (``transfer``, as intervals), and the time in which
    they do (``wait``).
    """
    schema = {
        **dict.fromkeys(LANE, pl.Int32()),
        **dict.fromkeys(("start_ns", "dur_ns"), pl.Int64()),
        "kind": _KIND,
    }
    if not (events["category"] == "collective").any():
        return pl.DataFrame(schema=schema)
    calls = collectives(trace).drop_nulls("wait_ns")
    lanes = events.filter(category="collective")[["rank", "device", "start_ns", "name"]]
    calls = calls.join(
        lanes.unique(["rank", "start_ns", "name"]), on=["rank", "start_ns", "name"], how="inner"
    )
    waits = calls.filter(pl.col("wait_ns") > 0)
    transfers = calls.select("rank", "device", "start_ns", "dur_ns", kind=_kind("transfer"))
    return pl.concat(
        [
            transfers,
            waits.select("rank", "device", "start_ns", dur_ns="wait_ns", kind=_kind("wait")),
        ]
    )


def _exposed_copies(cut: pl.DataFrame, lengths: pl.DataFrame) -> pl.DataFrame:
    """Copies with neither compute nor communication beside them, by kind; copies at the same
    time share it.
    """
    copies = cut.filter(kind="copy")
    copies = copies.with_columns(pl.col("part").cast(pl.String))
    covered = length_within(
        copies, cut.filter(pl.col("kind") != "copy"), ["window"], name="covered"
    )
    sums = covered.group_by("window", "part").agg(own=(pl.col("dur_ns") - pl.col("covered")).sum())
    total = lengths.select("window", total=pl.col("busy") - pl.col("with_communication"))
    sums = sums.join(total, on="window").sort("window", "part")
    # whole ns that add up to the total: differences of what is rounded down
    upto = pl.col("own").cum_sum().over("window")
    whole = pl.sum("own").over("window").clip(1)
    share = (upto * pl.col("total")) // whole
    return sums.select(
        "window",
        "part",
        kind=pl.lit("copy"),
        ns=share - share.shift(1, fill_value=0).over("window"),
    )


def _idle(trace: Trace, windows: pl.DataFrame, lengths: pl.DataFrame) -> pl.DataFrame:
    """Idle time of the windows by cause."""
    parts = gap_parts(trace)[0]
    parts = parts.select(*LANE, "start_ns", "dur_ns", causes_of(parts).alias("part"))
    parts = clip_intervals(parts, windows, LANE)
    explained = parts.group_by("window", "part").agg(ns=pl.sum("dur_ns"))
    whole = windows.with_row_index("window")[["window", "dur_ns"]]
    rest = (
        whole.join(lengths[["window", "busy"]], on="window", how="left")
        .join(explained.group_by("window").agg(known=pl.sum("ns")), on="window", how="left")
        .select(
            "window",
            part=pl.lit(IDLE_NOT_RECORDED),
            ns=pl.col("dur_ns") - pl.col("busy").fill_null(0) - pl.col("known").fill_null(0),
        )
    )
    return pl.concat(
        [explained[["window", "part", "ns"]], rest.cast({"ns": pl.Int64})]
    ).with_columns(kind=pl.lit("idle"))
