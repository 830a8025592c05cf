"""What a thread of the host was doing: calls that wait, and the innermost operator or function at each moment."""

from __future__ import annotations

import polars as pl

from llmprof.analyze.intervals.intervals import clip
from llmprof.analyze.intervals.nesting import innermost_pieces
from llmprof.trace import Trace

SYNCHRONISING = (
    r"(?i)synchroni[sz]e"  # cudaStreamSynchronize, hipEventSynchronize, cuCtxSynchronize, aclrtSynchronizeDevice
    r"|^(?:cuda|hip|cu|mu|musa|(?:\w+@)?aclrt)memcpy"  # the Async forms are taken out again below
    r"|^(?:cuda|hip)free(?:_v\d+)?$"  # waits for the device before it gives memory back
)
"""Names of host calls that return only when work on the device is done (and the Async copies, which do not)."""

HOLDS_THE_DEVICE = (
    r"(?i)^(?:cuda|hip|cu|mu|musa|(?:\w+@)?aclrt)(?:"
    r"malloc|memalloc|hostalloc|memhostalloc|hostregister|memhostregister"
    r"|free|memfree"
    r"|graphinstantiate|graphexecdestroy|graphexecupdate|graphupload"
    r"|moduleload|libraryload|moduleunload|ctxcreate|ctxdestroy|devicereset|ipcopenmemhandle|ipcclosememhandle)"
)
"""Names of host calls during which a device may start nothing new: they take memory, load code or build graphs."""

WAITS_FOR_EVENT = r"(?i)streamwaitevent"
"""Names of host calls that make a stream wait for an event of another one."""


LAUNCHES_GRAPH = r"(?i)graph(?:exec)?_?launch|mdlri_?execute"
"""Names of host calls that replay a whole graph: cudaGraphLaunch, hipGraphLaunch, aclmdlRIExecuteAsync."""


def is_synchronising(name: pl.Expr) -> pl.Expr:
    """Whether a host call of this name returns only when work on the device is done."""
    return name.str.contains(SYNCHRONISING) & ~name.str.contains("(?i)memcpy.*async")


def holds_the_device(name: pl.Expr) -> pl.Expr:
    """Whether work on the device may stand still while a host call of this name runs.

    A call that only waits for the device (cudaStreamSynchronize) holds nothing; a blocking copy does.
    """
    waits_only = name.str.contains("(?i)synchroni[sz]e")
    return (is_synchronising(name) & ~waits_only) | (
        name.str.contains(HOLDS_THE_DEVICE) & ~name.str.contains("(?i)async")
    )


def launches_graph(name: pl.Expr) -> pl.Expr:
    """Whether a host call of this name replays a graph."""
    return name.str.contains(LAUNCHES_GRAPH)


def waits_for_event(name: pl.Expr) -> pl.Expr:
    """Whether a host call of this name makes a stream wait for an event."""
    return name.str.contains(WAITS_FOR_EVENT)


def host_spans(trace: Trace) -> pl.DataFrame:
    """Everything that a thread of the host is known to have done.

    Parameters
    ----------
    trace : Trace
        Any trace.

    Returns
    -------
    polars.DataFrame
        ``rank, thread, start_ns, dur_ns, name, kind``: runtime calls (call), operators and Python functions (op,
        python) and the program's own ranges (range).
    """
    columns = ("rank", "thread", "start_ns", "dur_ns", "name")
    parts = []
    if trace.has("runtime"):
        parts.append(trace.runtime.select(*columns, kind=pl.lit("call")))
    if trace.has("ops"):
        parts.append(trace.ops.select(*columns, "kind"))
    if trace.has("markers"):
        parts.append(trace.markers.filter(~pl.col("on_device")).select(*columns, kind=pl.lit("range")))
    if not parts:
        return pl.DataFrame(schema=HOST_SPANS)
    return pl.concat(parts, how="vertical_relaxed").with_columns(pl.col("thread").fill_null(-1))


HOST_SPANS = {
    "rank": pl.Int32(),
    "thread": pl.Int64(),
    "start_ns": pl.Int64(),
    "dur_ns": pl.Int64(),
    "name": pl.String(),
    "kind": pl.String(),
}


def doing(windows: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """What the thread of each window spent most of it in, counting only the innermost span at each moment.

    Parameters
    ----------
    windows : polars.DataFrame
        ``rank, thread, start_ns, dur_ns``; windows of a thread may overlap.
    spans : polars.DataFrame
        As :func:`host_spans` gives them.

    Returns
    -------
    polars.DataFrame
        The windows in their order with ``doing`` (name of the span; null where none of the thread is known),
        ``doing_kind`` (call, op, python, range) and ``doing_share`` (of the window).
    """
    by = ["rank", "thread"]
    numbered = windows.with_row_index("_window")
    nothing = {
        "doing": pl.lit(None, dtype=pl.String),
        "doing_kind": pl.lit(None, dtype=pl.String),
        "doing_share": pl.lit(None, dtype=pl.Float64),
    }
    if not windows.height or not spans.height:
        return windows.with_columns(**nothing)
    spans = spans.join(windows.select(by).unique(), on=by, how="semi")
    pieces = innermost_pieces(spans, by)
    # a thread that launches for several devices has windows of each at the same time: one round for each of them
    order = numbered.sort(*by, "start_ns")
    before = (pl.col("start_ns") + pl.col("dur_ns")).cum_max().shift(1).over(by)
    found, rest = [], order
    while rest.height:
        free = rest.with_columns(_free=before.is_null() | (pl.col("start_ns") >= before))
        # what overlaps an earlier window waits for the next round
        now, rest = free.filter("_free").drop("_free"), free.filter(~pl.col("_free")).drop("_free")
        cut = clip(pieces, now.select(*by, "start_ns", "dur_ns"), by)
        at = now["_window"]
        found.append(cut.with_columns(at.gather(cut["window"]).alias("_window")).drop("window"))
    inside = pl.concat(found)
    sums = inside.group_by("_window", "span").agg(pl.col("dur_ns").sum())
    sums = sums.with_columns(doing=spans["name"].gather(sums["span"]), doing_kind=spans["kind"].gather(sums["span"]))
    sums = sums.group_by("_window", "doing", "doing_kind").agg(pl.col("dur_ns").sum())
    most = sums.sort("_window", "dur_ns", "doing", descending=[False, True, False]).unique(
        "_window", keep="first", maintain_order=True
    )
    joined = numbered.join(
        most.select("_window", "doing", "doing_kind", _in_it="dur_ns"),
        on="_window",
        how="left",
        maintain_order="left",
    )
    share = pl.when(pl.col("dur_ns") > 0).then(pl.col("_in_it") / pl.col("dur_ns"))
    return joined.with_columns(doing_share=share).drop("_window", "_in_it")
