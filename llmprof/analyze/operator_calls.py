"""Operator calls in a recording, and those that can be run alone."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.analyze.operator_arguments import (
    BETWEEN,
    IN_GRAPH,
    NO_OPERATOR,
    RecordedCall,
    reason_against,
    recorded_call,
)
from llmprof.analyze.operator_times import median_interval
from llmprof.errors import AnalysisError, NotCapturedError
from llmprof.label.nesting import inside, parents
from llmprof.names.dtypes import element_type
from llmprof.theory.calls import timeable_operators
from llmprof.trace import Trace

_ARGUMENTS: Final = {
    "shapes": "shapes",
    "dtypes": "dtypes",
    "strides": "torch_strides",
    "arguments": "torch_inputs",
}
"""Columns of the arguments of a call, and what the table of operators calls them."""

_SCHEMA: Final = {
    "key": pl.String(),
    "operator": pl.String(),
    "kind": pl.String(),
    "shapes": pl.String(),
    "dtypes": pl.String(),
    "count": pl.Int64(),
    "total_ns": pl.Int64(),
    "share": pl.Float64(),
    "median_ns": pl.Float64(),
    "low_ns": pl.Int64(),
    "high_ns": pl.Int64(),
    "host_median_ns": pl.Float64(),
    "kernels": pl.String(),
    "layer": pl.String(),
    "phase": pl.String(),
    "reason": pl.String(),
    "assumed": pl.String(),
    "strides": pl.String(),
    "arguments": pl.String(),
}


@Analysis(
    question="Which operators can be run alone, from their recorded shapes?",
    help="operators with their arguments and time",
    view="operator-calls",
    recorded="operators",
)
def operator_calls(trace: Trace) -> pl.DataFrame:
    """Operators with their arguments and time, and whether they can be run alone.

    A device event belongs to the innermost operator around its launch that llmprof can call
    (:func:`llmprof.theory.calls.timeable_operators`). The time of a call is that of all kernels and
    copies launched in it, or of the operator itself in a trace of a CPU run. Events outside of such
    operators have separate rows, so that the shares add up to 1 on a trace with a device.

    Parameters
    ----------
    trace : Trace
        A trace of PyTorch with operators of the host; shapes need ``record_shapes=True``.

    Returns
    -------
    polars.DataFrame
        The longest first: ``key`` (names the operator and its arguments; null where it cannot be
        run), ``operator`` (null where none was recorded), ``kind`` (``gemm, attention, norm,
        elementwise …``: that of its line in :mod:`llmprof.theory.calls.operators`), ``shapes,
        dtypes`` (JSON), ``count`` (calls, over all ranks; launches where there is no operator),
        ``total_ns, share`` (of the summed time of all rows), ``median_ns`` (of a call) with
        ``low_ns, high_ns`` (its 95 % interval, of the sign test), ``host_median_ns`` (the operator
        on the host), ``kernels`` (names, one a line), ``layer,
        phase`` (where it was called, with commas), ``reason`` (why it cannot be run alone),
        ``assumed`` (what the recording does not say of the arguments), ``strides, arguments``.

    Raises
    ------
    NotCapturedError
        The trace holds no operators.

    Examples
    --------
    >>> found = analyze.operator_calls(trace)
    >>> found["key"].is_not_null().any()
    True
    """
    calls, others = _recorded_calls(trace)
    frame = pl.concat(
        [pl.DataFrame(schema=_SCHEMA), _grouped(calls), _others(others)], how="diagonal_relaxed"
    )
    whole = pl.sum("total_ns")
    frame = frame.with_columns(share=pl.when(whole > 0).then(pl.col("total_ns") / whole))
    return frame.select(pl.col(name).cast(dtype) for name, dtype in _SCHEMA.items()).sort(
        "total_ns", "operator", "shapes", descending=[True, False, False], nulls_last=True
    )


def _recorded_calls(trace: Trace) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Calls of operators that llmprof can call, and the events outside of them."""
    ops = trace.ops.filter(kind="op").with_columns(pl.col("thread").fill_null(-1))
    if ops.is_empty():
        found = "this capture holds no operators"
        raise NotCapturedError(
            found, hint=f"record it with {trace.capture.how_to_record('ops')}", table="ops"
        )
    missing = [
        pl.lit(None, pl.String).alias(name)
        for name in _ARGUMENTS.values()
        if name not in ops.columns
    ]
    calls_on_host = ops.with_columns(missing).filter(
        pl.col("name").is_in(list(timeable_operators()))
    )
    calls_on_host = calls_on_host.select(
        "rank", "thread", "start_ns", "dur_ns", operator="name", **_ARGUMENTS
    )
    events = trace.events
    if events.is_empty() or (events["source"] == "op").all():
        return _on_host(calls_on_host), events.clear()
    events = events.with_row_index("_event")
    launches = events.filter(
        pl.col("launch_start_ns").is_not_null() & ~pl.col("replayed").fill_null(False)
    )
    points = launches.select(
        "_event",
        "rank",
        thread=pl.col("launch_thread").fill_null(-1),
        start_ns="launch_start_ns",
        dur_ns=pl.lit(0),
    )
    pairs = inside(points, calls_on_host, ["rank", "thread"])
    pairs = pairs.select(
        "outer",
        points["_event"].gather(pairs["inner"]),
        _start=calls_on_host["start_ns"].gather(pairs["outer"]),
    )
    innermost = pairs.sort("_start", "outer").unique("_event", keep="last")
    own = innermost["outer"].unique()
    about = events[["_event", "name", "dur_ns", "layer", "phase"]]
    launched = pairs.filter(pl.col("outer").is_in(own.implode())).join(
        about, on="_event", how="left"
    )
    calls = (
        launched.sort("_event")
        .group_by("outer", maintain_order=True)
        .agg(
            time_ns=pl.sum("dur_ns"),
            kernels=pl.col("name").unique(maintain_order=True),
            layer=pl.col("layer").drop_nulls().first(),
            phase=pl.col("phase").drop_nulls().first(),
        )
    )
    made = calls_on_host.with_row_index("outer").join(
        calls, on="outer", how="inner", maintain_order="right"
    )
    made = made.drop("outer", "thread", "start_ns").rename({"dur_ns": "host_ns"})
    rest = events.filter(~pl.col("_event").is_in(innermost["_event"].implode())).drop("_event")
    return made, rest


def _on_host(calls: pl.DataFrame) -> pl.DataFrame:
    """Calls on a CPU: those of operators that contain no other such operator."""
    outer = parents(calls, ["rank", "thread"]).drop_nulls().unique()
    inner = calls.with_row_index("_row").filter(~pl.col("_row").is_in(outer.implode()))
    nothing = {"kernels": pl.List(pl.String()), "layer": pl.Int32(), "phase": pl.String()}
    return (
        inner.drop("_row", "thread", "start_ns")
        .with_columns(
            time_ns="dur_ns",
            **{name: pl.lit(None, dtype) for name, dtype in nothing.items()},
        )
        .rename({"dur_ns": "host_ns"})
    )


def _summed(
    rows: pl.DataFrame, keys: list[str], time: str, kernels: pl.Expr, **more: pl.Expr
) -> pl.DataFrame:
    """Count and times of the rows of each operator and its arguments, with its kernels, layers
    and phases as text.
    """
    low, high = median_interval(pl.col(time))
    return rows.group_by(keys, maintain_order=True).agg(
        count=pl.len().cast(pl.Int64),
        total_ns=pl.col(time).sum(),
        median_ns=pl.col(time).median(),
        low_ns=low,
        high_ns=high,
        kernels=_joined(kernels.unique(maintain_order=True), "\n"),
        **{name: _joined(pl.col(name).drop_nulls().unique().sort(), ",") for name in _PLACES},
        **more,
    )


_PLACES: Final = ("layer", "phase")


def _joined(values: pl.Expr, sign: str) -> pl.Expr:
    return pl.when(values.len() > 0).then(values.cast(pl.String).str.join(sign))


def _grouped(calls: pl.DataFrame) -> pl.DataFrame:
    """Calls by operator and arguments, and whether a script can be made for them."""
    keys, names = ["operator", *_ARGUMENTS], pl.col("kernels").explode().drop_nulls()
    between = names.str.contains(_BETWEEN).any()
    grouped = _summed(
        calls, keys, "time_ns", names, host_median_ns=pl.median("host_ns"), between=between
    )
    usual = usual_dtype(calls)
    made = [_made(row, usual) for row in grouped.select(*keys, "between").iter_rows(named=True)]
    return grouped.drop("between").hstack(pl.DataFrame(made, schema=_MADE, orient="row"))


_MADE: Final = {
    "key": pl.String,
    "kind": pl.String,
    "reason": pl.String,
    "assumed": pl.String,
}


_BETWEEN: Final = r"^(?:Memcpy (?:HtoD|DtoH)|CopyHostToDevice|CopyDeviceToHost)"


def _made(row: dict[str, Any], usual: str) -> tuple[str | None, str, str | None, str | None]:
    kind = timeable_operators()[row["operator"]][0]
    if row["between"]:
        return None, kind, BETWEEN, None
    try:
        call = call_of_row(row, usual)
    except AnalysisError as error:
        return None, kind, str(error).rstrip("."), None
    return _key_of(row), kind, None, "; ".join(call.assumed) or None


def call_of_row(row: dict[str, Any], usual: str) -> RecordedCall:
    """The call of a row of :func:`operator_calls`."""
    return recorded_call(row["operator"], *(row[name] for name in _ARGUMENTS), usual_dtype=usual)


def _key_of(row: dict[str, Any]) -> str:
    """Key of an operator and its arguments in scripts and results."""
    text = json.dumps([row["operator"], *(row[name] for name in _ARGUMENTS)])
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def usual_dtype(calls: pl.DataFrame) -> str:
    """Floating-point element type of most calls; bfloat16 if there is none."""
    names = (
        calls["dtypes"]
        .drop_nulls()
        .str.extract(r'"(c10::BFloat16|c10::Half|float)"', 1)
        .drop_nulls()
    )
    counts = names.value_counts(sort=True)
    usual = element_type(counts[names.name][0]) if counts.height else None
    return usual.torch if usual else "bfloat16"


def _others(events: pl.DataFrame) -> pl.DataFrame:
    """Events outside of operators that can be called, by operator and kernel, with the reason."""
    grouped = _summed(
        events, ["operator", "shapes", "dtypes", "replayed"], "dur_ns", pl.col("name")
    )
    why = [_why(op, graph) for op, graph in grouped[["operator", "replayed"]].iter_rows()]
    named = grouped.drop("replayed")
    return named.with_columns(reason=pl.Series(why, dtype=pl.String))


def _why(op: str | None, graph: bool | None) -> str:
    if graph:
        return IN_GRAPH
    if op is None:
        return NO_OPERATOR
    return (
        "the kernel was launched outside of the operator"
        if op in timeable_operators()
        else reason_against(op)
    )
