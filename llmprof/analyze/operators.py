"""Operators against their bounds: work from recorded shapes, time of the device, and peaks of
the device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.analyze.inside import calls_of_text, texts_inside, with_texts
from llmprof.analyze.kernel_arguments import of_kernels, own_arguments
from llmprof.analyze.operator_arguments import BETWEEN, IN_GRAPH, NO_OPERATOR
from llmprof.analyze.passes import with_passes
from llmprof.analyze.roofline import noted_work, stage_work
from llmprof.analyze.shortfall import CAUSES, START, Launch, resident, shortfall
from llmprof.errors import Columns, LlmprofError, NotCapturedError, refuse_unknown
from llmprof.label.activity import (
    CAPTURED,
    EAGER,
    EVENT_KEY,
    add_recorded,
    called_operators,
    coded_operators,
    launching_operators,
)
from llmprof.label.groups import distinct_keys
from llmprof.label.nesting import holds_any, innermost, outermost
from llmprof.label.steps.labels import CONTEXT_WORDS, batches
from llmprof.label.steps.steps import steps_of
from llmprof.names.matching import by_distinct, contains
from llmprof.theory.bound import find_device
from llmprof.theory.calls import (
    OPERATORS,
    CallWork,
    Lengths,
    NoWorkError,
    Operator,
    OperatorCall,
    costed_operator,
    parse_call,
    work_of,
)
from llmprof.theory.calls.experts import SPREAD
from llmprof.theory.hardware import Device
from llmprof.theory.shapes import Shape
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace

_TEXTS: Final = ("operator", "shapes", "dtypes", "strides", "arguments")
_THREAD: Final = ("rank", "thread")
_PLACE: Final = ("rank", "device", "stream", "start_ns", "correlation")
_HOST: Final = r"^(?:Memcpy (?:HtoD|DtoH)|CopyHostToDevice|CopyDeviceToHost)"
COLLECTIVE: Final = (
    "a collective waits for other ranks: analyze.collectives compares it with the links"
)

_DeviceCalls = tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]
"""Device events with the number of their ``call``; calls with their texts; and operators on the
host.
"""

OVER: Final = 1.05
"""A share of the bound above this has a note."""

_WORK: Final = {
    "flops": pl.Float64(),
    "read_bytes": pl.Float64(),
    "written_bytes": pl.Float64(),
    "bound_ns": pl.Float64(),
    "bound_by": pl.String(),
    "fits_cache": pl.Boolean(),
    "source": pl.String(),
    "assumed": pl.String(),
    "tile": pl.String(),
    "blocks": pl.Int64(),
    "turns": pl.Int64(),
    **{f"{cause}_share": pl.Float64() for cause in (*CAUSES, "rest")},
    "cause": pl.String(),
    "reason": pl.String(),
}


@Analysis(
    question="How near does each operator come to what the device can do?",
    help="work of each operator from its shapes, and its bound on the device",
    view="operators",
    recorded="kernels and operators",
    cached=False,
)
def operators(
    trace: Trace,
    *,
    by: Columns = (),
    device: str | Path | Device | None = None,
    other: Trace | None = None,
    model: str | Path | Mapping[str, Any] | Shape | None = None,
) -> pl.DataFrame:
    """Each operator, by shapes, types, strides and arguments, against its bound on the device.

    A call's time is that of all kernels and copies launched in it. Its work follows from the
    recorded shapes and types (:mod:`llmprof.theory.calls`), its bound is the longest of three
    times: FLOPs at the peak of the matrix unit for their type, bytes at the peak of the memory, and
    the shortest kernel of the recording (at most 5 us) for each of its kernels. Every byte counts
    as one from the device memory: where a call's operands fit into the device's cache, it can be
    faster, and ``fits_cache`` says so.

    Parameters
    ----------
    trace : Trace
        A trace with kernels and operators; shapes need ``record_shapes=True``.
    by : str or sequence of str
        Columns of :attr:`llmprof.Trace.events` to group by first, such as ``("rank",
        "phase")``.
    device : str, path or Device, optional
        Peaks: a name, a YAML file (:func:`llmprof.theory.read_device`), or a device such as the one
        that ``llmprof experiment bandwidth`` measured; what the trace names if not given.
    other : Trace, optional
        Another recording of the same operators: another device, or another version of a library.
    model : str, path, mapping or Shape, optional
        What ran: a name of the catalogue, a ``config.json``, its folder or its content. Where no
        kernel of a stage of a layer has work by its shapes (under graphs, or recorded without
        them), they are one row of the stage then, with the work of the model for the tokens that
        the step's label says. Operators need not be recorded. If not given, the model that the
        configuration of a run names, where it fits.

    Returns
    -------
    polars.DataFrame
        The longest first:

        - ``<by...>, operator`` (null where none was recorded), ``kind, shapes, dtypes, strides,
          arguments`` (JSON, as recorded), ``kernel`` (the longest one), ``kernels`` (of a call);
        - ``count`` (calls), ``total_ns, share`` (of the summed time of all rows of the group),
          ``median_ns, p10_ns, p90_ns`` (of a call);
        - ``flops, read_bytes, written_bytes`` (mean of a call), ``intensity`` (FLOPs a byte),
          ``flop_per_s, bytes_per_s`` (of the total time);
        - ``bound_ns`` (mean of a call), ``bound_by`` (``memory``, ``launch``, or the type whose
          peak sets it, such as ``bf16``), ``bound_share`` (bound over time, never clipped),
          ``gap_ns`` (time beyond the bound, a step);
        - ``source`` (of the work: shapes, step label, capture), ``assumed`` (what was not
          recorded), ``fits_cache``, ``reason`` (why there is no bound, why the share is above
          105 %, or why a call takes longer);
        - why a call takes longer than its bound: ``tile`` (rows x columns, from the name of its
          longest kernel), ``blocks`` (of its launch), ``turns`` (the most tiles or blocks that a
          multiprocessor takes one after the other), and of the time beyond the bound
          ``other_kernels_share`` (than the longest one), ``start_share`` (to begin and end a
          kernel), ``few_blocks_share`` (multiprocessors without any), ``waves_share`` (those
          without one in the last turn), ``padding_share`` (tiles beyond the result) and
          ``rest_share``; ``cause`` is the largest of them; null from 90 % of the bound on;
        - with ``other``, of the operator with these shapes and types there: ``other_kernel`` (the
          longest one), ``other_mean_ns`` (of a call), and ``delta_ns``, what all calls here take
          beyond that.

    Raises
    ------
    NotCapturedError
        The trace holds no kernels or no operators.
    AnalysisError
        ``by`` names an unknown column.
    LlmprofError
        ``device`` is unknown, or its peaks are not stated; a device that only the trace names has
        no bounds then. The model is unknown, or has another number of layers, or no step says its
        tokens.

    Examples
    --------
    >>> found = analyze.operators(trace, by=("phase",))
    >>> sorted(found["bound_by"].drop_nulls().unique())
    ['launch', 'memory']
    """
    found = with_events(trace, by, device, model)[0].drop("row")
    return (
        found if other is None else _beside(found, with_events(other, by, device, model)[0], [*by])
    )


def _beside(found: pl.DataFrame, other: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Kernels and times of the same operators in another recording."""
    both = all(frame["strides"].null_count() < frame.height for frame in (found, other))
    key = [*dict.fromkeys([*by, "operator", "shapes", "dtypes", *(["strides"] if both else [])])]
    same = (
        other.drop_nulls("operator")
        .group_by(key, maintain_order=True)
        .agg(
            other_kernel=pl.first("kernel"),
            other_mean_ns=pl.sum("total_ns") / pl.sum("count"),
        )
    )
    joined = found.join(same, on=key, how="left", nulls_equal=True, maintain_order="left")
    return joined.with_columns(
        delta_ns=pl.col("total_ns") - pl.col("count") * pl.col("other_mean_ns")
    )


def with_events(
    trace: Trace,
    by: Sequence[str],
    device: Device | str | Path | None,
    model: str | Path | Mapping[str, Any] | Shape | None = None,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The frame of :func:`operators` with the number of each ``row``, and device events with
    that of theirs.
    """
    whole, noted = trace, model is None and "model" in trace.meta
    # operators from another recording, or kernels that recorded their own arguments
    given = f"{CAPTURED}op" in trace.table("kernels").columns or own_arguments(trace)
    if model is not None or noted or given:
        trace = with_operators(trace)
    stages = (
        noted_work(trace, device)
        if noted
        else None
        if model is None
        else stage_work(trace, model, device)
    )
    if stages is None and not given and not whole.has("ops"):
        try:
            whole.table("ops")
        except NotCapturedError as error:
            error.hint += (
                ", name the model that ran (--model), or take operators from another recording of"
                " the program"
            )
            error.hint += " (--eager, analyze.add_operators)"
            raise
    refuse_unknown(by, trace.events.columns, "by")
    found = calls_of(trace, by)
    peaks = _device(trace, device)
    rows, calls = _rows(trace, found, by, peaks)
    if stages is not None:
        worked = rows.drop_nulls("read_bytes")["row"]
        known = calls.filter(pl.col("row").is_in(worked.implode()))["call"]
        found, works = _of_model(found, known, by, trace, stages)
        rows, calls = _rows(trace, found, by, peaks, works)
    return rows, found[0].drop("_name").join(calls, on="call", how="left", maintain_order="left")


def with_operators(trace: Trace) -> Trace:
    """The trace; where it holds no operators, with a table without any."""
    if trace.has("ops"):
        return trace
    return Trace({**trace.tables, "ops": pl.DataFrame(schema=_NO_OPS)}, trace.meta, trace.coverage)


def _of_model(
    found: _DeviceCalls, known: pl.Series, by: Sequence[str], trace: Trace, stages: pl.DataFrame
) -> tuple[_DeviceCalls, list[CallWork]]:
    """The calls, where those of a stage of a layer that has no other work are one, with the work of
    the model.

    ``known`` are the calls with work of their own. A call belongs to the stage that takes most of
    its time; a stage all of whose kernels are in calls of another one adds its work to that.
    """
    events, calls, ops = found
    place = ["rank", "step", "layer", "stage"]
    stages = stages.filter(pl.sum_horizontal("flops", "read_bytes", "written_bytes") > 0)
    stages = stages.with_row_index("own")
    number = pl.int_range(pl.len(), dtype=pl.UInt32)
    placed = (
        events.select("event", "call", "dur_ns", "category", _event=number)
        .join(
            with_passes(trace).select("event", *place),
            on="event",
            how="left",
            maintain_order="left",
        )
        .filter(pl.col("category") != "collective")
    )
    placed = placed.join(
        stages.select("own", *place), on=place, how="left", nulls_equal=True, maintain_order="left"
    )
    without = (
        pl.col("call").is_in(pl.concat([known, calls.filter("between")["call"]]).implode()).not_()
    )
    main = placed.filter(without).group_by("call", "own").agg(pl.sum("dur_ns"))
    main = main.sort("dur_ns", "own", descending=[True, False]).unique(
        "call", keep="first", maintain_order=True
    )
    placed = placed.join(
        main.select("call", main="own"), on="call", how="left", maintain_order="left"
    )
    one = (pl.n_unique("main") == 1) & pl.col("main").is_not_null().all()
    into = placed.drop_nulls("own").group_by("own").agg(into=pl.when(one).then(pl.first("main")))
    whole = into.filter(pl.col("into") == pl.col("own"))["own"]
    chosen = placed.filter(pl.col("main").is_in(whole.implode()))
    if chosen.is_empty():
        return found, []
    matrix = pl.col("matrix").sort_by("flops", descending=True).first()
    main_stage = pl.col("stage").filter(pl.col("own") == pl.col("into")).first()
    stages = (
        stages.join(into.drop_nulls("into"), on="own")
        .group_by("into")
        .agg(
            pl.sum("flops", "read_bytes", "written_bytes"),
            matrix,
            pl.first("assumed"),
            stage_name=main_stage,
        )
    )
    base = int(events["call"].max() or 0) + 1  # type: ignore[arg-type]
    at = chosen["_event"]
    merged = events["call"].scatter(at, (chosen["main"] + base).cast(events["call"].dtype))
    taken = events[at].with_columns(
        call=merged[at],
        _event=at,
        owner=pl.lit(None, pl.UInt32),
        _between=pl.lit(False),
        _collective=pl.lit(False),
    )
    made = _calls(taken, [name for name in by if name not in _OF_CALLS])
    made = made.with_columns(into=(pl.col("call") - base).cast(pl.UInt32))
    made = made.join(stages, on="into", how="left", maintain_order="left")
    works = [
        CallWork(flops or None, read, written, unit or "", assumed, "model and step label")
        for flops, read, written, unit, assumed in made[
            ["flops", "read_bytes", "written_bytes", "matrix", "assumed"]
        ].iter_rows()
    ]
    distinct = {each: n for n, each in enumerate(dict.fromkeys(works))}
    made = made.with_columns(
        *(pl.lit(None, pl.String).alias(name) for name in _TEXTS),
        stage_work=pl.Series([distinct[each] for each in works], dtype=pl.UInt32),
    )
    rest = calls.filter(~pl.col("call").is_in(chosen["call"].unique().implode()))
    every = pl.concat(
        [rest, made.select(*rest.columns, "stage_work", "stage_name")], how="diagonal_relaxed"
    )
    return (events.with_columns(call=merged), every, ops), list(distinct)


_NO_OPS: Final = {
    "rank": pl.Int32(),
    "thread": pl.Int64(),
    "start_ns": pl.Int64(),
    "dur_ns": pl.Int64(),
    "name": pl.String(),
    "kind": pl.String(),
    "op_id": pl.Int64(),
    "shapes": pl.String(),
}
_OF_CALLS: Final = ("rank", "step", "replayed", "call")
"""Columns that every call has, whatever the rows are grouped by."""


def _device(trace: Trace, device: str | Path | Device | None) -> tuple[Device | None, str]:
    """Peaks, or why there are none."""
    if device is not None:
        return find_device(device), ""
    named = trace.meta.get("device")
    if not named:
        return None, "the trace names no device"
    try:
        return find_device(named), ""
    except LlmprofError as error:
        return None, str(error).split(";")[0].rstrip(".")


def calls_of(trace: Trace, by: Sequence[str]) -> _DeviceCalls:
    """Device events with the number of their ``call``; calls with their texts; and operators on
    the host.
    """
    trace.table("kernels")
    events = trace.events.filter(pl.col("source") != "op")
    ops = called_operators(trace)
    ops = with_texts(ops)
    owner = _owned(trace, len(OPERATORS))["owner"][events["event"]]
    own = of_kernels(trace)[events["event"]]
    by_kernel = own["operator"].is_not_null() & ops["shapes"][owner].is_null()
    if by_kernel.any():  # what no operator says, the kernel does
        owner = owner.set(by_kernel, None)
        own = own.with_columns(pl.when(by_kernel).then(name).alias(name) for name in own.columns)
    of_capture = _captured(trace, events)
    number = pl.int_range(pl.len(), dtype=pl.UInt32)
    call = pl.coalesce(
        owner, of_capture["call"] + ops.height, number + 2 * ops.height + events.height
    )
    collective = events["category"] == "collective"  # apart from what else its operator launches
    coded = events["name"].cast(pl.Categorical)
    events = events.with_columns(
        call=pl.when(collective).then(call + 2 * (ops.height + events.height)).otherwise(call),
        owner=owner,
        _event=number,
        _between=contains(events["name"], _HOST),
        _collective=collective,
        _name=coded,
    )
    calls = _calls(events, [name for name in by if name not in _OF_CALLS])
    texts = ops.select(
        "shapes", "dtypes", operator="name", strides="torch_strides", arguments="torch_inputs"
    )
    texts = texts[calls["owner"]]
    if by_kernel.any():
        texts = texts.with_columns(
            pl.coalesce(name, own[name][calls["_event"]]).alias(name) for name in own.columns
        )
    if of_capture["operator"].null_count() < events.height:
        captured = of_capture[calls["_event"]]
        texts = texts.select(pl.coalesce(captured[name], name).alias(name) for name in _TEXTS)
        calls = calls.with_columns(eager=captured["evidence"] == EAGER, inside=captured["inside"])
    return events.drop("owner", "_event", "_between", "_collective"), calls.hstack(texts), ops


def _calls(events: pl.DataFrame, labels: list[str]) -> pl.DataFrame:
    """Sums of the events of each call, and labels of the longest of them, which says what the
    call is for.
    """
    numbers, rows = events["call"].to_numpy(), np.arange(events.height, dtype=np.int32)
    place = np.empty(int(numbers.max(initial=0)) + 1, dtype=np.int32)
    place[numbers[::-1]] = rows[
        ::-1
    ]  # of equal places the last one stays: the first event of each call
    some = np.flatnonzero(place[numbers] == rows)
    place[numbers[some]] = rows[: len(some)]
    of_event = place[numbers]
    time = events["dur_ns"].to_numpy()
    total = np.zeros(len(some), dtype=np.int64)
    np.add.at(total, of_event, time)
    calls = events[["call", "rank", "step", "owner", "_event", "replayed"]][some]
    if labels:
        most = np.full(len(some), np.iinfo(np.int64).min)
        np.maximum.at(most, of_event, time)
        at = np.flatnonzero(time == most[of_event])[::-1]
        longest = np.empty(len(some), dtype=np.int64)
        longest[of_event[at]] = at
        calls = calls.hstack(events.select(labels)[longest])
    parted = {
        name: np.zeros(len(some), dtype=np.bool_) for name in ("replayed", "between", "collective")
    }
    for name, chosen in parted.items():
        chosen[
            of_event[events[name if name == "replayed" else f"_{name}"].fill_null(False).to_numpy()]
        ] = True
    return calls.with_columns(
        time_ns=pl.Series(total),
        kernels=pl.Series(np.bincount(of_event, minlength=len(some)).astype(np.uint32)),
        **{name: pl.Series(chosen) for name, chosen in parted.items()},
        eager=pl.lit(False),
        inside=pl.lit(None, pl.String),
    )


@per_trace
def _owned(trace: Trace, known: int) -> pl.DataFrame:
    """For each event of the device the row of its operator as ``owner``; a replayed one has
    none.
    """
    direct, ops, events = launching_operators(trace)["row"], called_operators(trace), trace.events
    if not ops.is_empty():
        direct = _owners(direct, ops, coded_operators(trace), events["category"] == "collective")
    return pl.DataFrame({"owner": direct.set(events["replayed"].fill_null(False), None)})


def _owners(direct: pl.Series, ops: pl.DataFrame, names: pl.Series, keep: pl.Series) -> pl.Series:
    """Row of the operator whose work an event is part of, from that of the operator that launched
    it.

    It is the outermost operator around it whose work covers all that it calls, else the innermost
    whose work is known.
    """

    def of_kinds(names: tuple[str, ...]) -> pl.Series:
        return pl.Series(
            [(known := costed_operator(name)) is not None and 1 + known.whole for name in names],
            dtype=pl.Int8,
        )

    kinds = by_distinct(names if len(names) == ops.height else ops["name"], of_kinds).to_numpy()
    known = kinds > 0
    whole = np.flatnonzero(kinds > 1)
    whole = whole[ops["shapes"][whole].is_not_null().to_numpy()]
    launching = np.zeros(ops.height, dtype=np.bool_)
    launching[direct.drop_nulls().to_numpy()] = True
    spans = ops.select("rank", "start_ns", "dur_ns", thread=pl.col("thread").fill_null(-1))
    owner = np.arange(ops.height, dtype=np.uint32)
    around = (
        np.flatnonzero(known),
        spans[whole].with_columns(_row=whole).pipe(outermost, _THREAD)["_row"].to_numpy(),
    )
    for inner, outer in zip(
        (np.flatnonzero(launching & ~known), np.flatnonzero(launching)), around, strict=True
    ):
        outer = outer[holds_any(spans[outer], spans["start_ns"][inner])]
        if len(inner) and len(outer):
            found = innermost(spans[inner], spans[outer], _THREAD, at="start_ns", name="_at")
            longer = (
                spans["dur_ns"][outer][found["_at"]] >= found["dur_ns"]
            )  # not one that begins at the same time
            some = longer.fill_null(False).to_numpy()
            owner[inner[some]] = outer[found["_at"].filter(some).to_numpy()]
    apart = np.where(
        keep.to_numpy(), direct.fill_null(0).to_numpy(), owner[direct.fill_null(0).to_numpy()]
    )
    return pl.Series(apart, dtype=pl.UInt32).set(direct.is_null(), None)


def _captured(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """Texts of operators of replayed kernels, as :func:`with_captures` found them, and the
    number of their call.
    """
    names = {
        "operator": "op",
        "shapes": "shapes",
        "dtypes": "dtypes",
        "strides": "strides",
        "arguments": "inputs",
        "evidence": "evidence",
        "inside": "inside",
    }
    nothing = pl.DataFrame(schema={**dict.fromkeys(names, pl.String), "call": pl.UInt32})
    kernels = trace.kernels
    if f"{CAPTURED}op" not in kernels.columns:
        return pl.DataFrame(
            {
                name: pl.Series([None], dtype=dtype).new_from_index(0, events.height)
                for name, dtype in nothing.schema.items()
            }
        )
    if f"{CAPTURED}inside" not in kernels.columns:
        kernels = kernels.with_columns(pl.lit(None, pl.String).alias(f"{CAPTURED}inside"))
    rows = kernels.select(
        *EVENT_KEY,
        **{name: CAPTURED + given for name, given in names.items()},
        _call=f"{CAPTURED}call",
    )
    numbered = events.select(
        *EVENT_KEY, "correlation", _row=pl.int_range(pl.len(), dtype=pl.UInt32)
    )
    found = add_recorded(numbered, rows)
    # a call of a capture is one of each replay of its graph; one of an eager recording was counted
    # for each place
    replay = pl.when(pl.col("evidence").ne_missing(EAGER)).then("correlation")
    eager = pl.col("evidence").eq_missing(EAGER).alias("_eager")
    alone = pl.struct("rank", eager, replay, "_call").rank("min").cast(pl.UInt32)
    number = pl.when(pl.col("_call").is_not_null()).then(alone).otherwise(pl.col("_row") + pl.len())
    return found.select(*names, call=pl.when(pl.col("operator").is_not_null()).then(number))


def _rows(
    trace: Trace,
    found: _DeviceCalls,
    by: Sequence[str],
    peaks: tuple[Device | None, str],
    works: Sequence[CallWork] = (),
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The frame of :func:`operators`, and the ``row`` of each ``call``."""
    events, calls, ops = found
    groups = [column for column in by if column != "operator"]
    names = events["_name"]
    alone: pl.Expr = pl.when(pl.col("operator").is_null()).then(names[calls["_event"]])
    lengths, sums = _lengths(trace, calls)
    said: list[Lengths | CallWork] = [*sums, *works]
    if works:
        alone = pl.coalesce(pl.col("stage_name").cast(pl.Categorical), alone)
        lengths = pl.select(pl.coalesce(calls["stage_work"] + len(sums), lengths)).to_series()
    else:
        calls = calls.with_columns(stage_name=pl.lit(None, pl.String))
    keys = [*groups, *_TEXTS, "between", "collective", "alone", "labelled", "stage_name"]
    coded = calls.with_columns(
        pl.col(_TEXTS).cast(pl.Categorical),
        alone=alone,
        lengths=lengths,
        labelled=lengths.is_not_null(),
    )
    numbered = (
        coded.with_row_index("_call")
        .group_by(keys, maintain_order=True)
        .agg(pl.col("_call"))
        .with_row_index("row")
    )
    row_of_call = np.empty(coded.height, dtype=np.uint32)
    row_of_call[numbered["_call"].explode().to_numpy()] = np.repeat(
        numbered["row"], numbered["_call"].list.len()
    )
    coded = coded.with_columns(row=pl.Series(row_of_call))
    time = pl.col("time_ns")
    timed = coded.group_by("row").agg(
        pl.len().cast(pl.Int64).alias("count"),
        pl.first("owner", "_event", "replayed", "eager", "inside"),
        total_ns=time.sum(),
        median_ns=time.median(),
        p10_ns=time.quantile(0.1, "linear"),
        p90_ns=time.quantile(0.9, "linear"),
        kernels=pl.mean("kernels"),
    )
    row_of = np.zeros(int(coded["call"].max() or 0) + 1, dtype=np.uint32)  # type: ignore[arg-type]
    row_of[coded["call"].to_numpy()] = coded["row"].to_numpy()
    longest = (
        events.select(
            "dur_ns",
            kernel=names,
            row=pl.Series(row_of[events["call"].to_numpy()]),
            at=pl.int_range(pl.len()),
        )
        .group_by("row", "kernel")
        .agg(pl.sum("dur_ns").alias("main_ns"), pl.first("at"))
        .sort("main_ns", "at", descending=[True, False])
        .unique("row", keep="first")
    )
    longest = longest.drop("at").hstack(events.select("category", *_PLACE)[longest["at"]])
    launches = _launches(trace, longest)
    longest = longest.drop(_PLACE).hstack(launches)
    rows = numbered.drop("_call").join(timed, on="row").join(longest, on="row")
    rows = rows.with_columns(pl.col(*_TEXTS, "kernel").cast(pl.String))
    least = events.select(pl.col("dur_ns").filter(pl.col("dur_ns") > 0).min()).item()
    noted = trace.meta.get("model")
    spread = isinstance(noted, dict) and bool(noted.get("expert_parallel"))
    bound = _Bound(
        *peaks,
        min(float(least or 0), MAX_EMPTY_NS),
        trace.capture.platform.words["graph"],
        spread=spread,
    )
    each = _work(rows, coded, ops, said, bound)
    rows = rows.drop(
        "labelled",
        "alone",
        "stage_name",
        "_event",
        "owner",
        "replayed",
        "eager",
        "inside",
        "main_ns",
        *launches.columns,
    ).join(each, on="row")
    return _shares(rows, events, groups), coded[["call", "row"]]


def _launches(trace: Trace, places: pl.DataFrame) -> pl.DataFrame:
    """``blocks, threads, registers, shared_bytes`` of the kernels at the given places, as far as
    recorded.
    """
    launched = {f"{what}_{axis}": pl.Int64 for what in ("grid", "block") for axis in "xyz"}
    launched |= {"registers": pl.Int64, "shared_bytes": pl.Int64}
    kernels = trace.kernels.filter(pl.col("start_ns").is_in(places["start_ns"].implode()))
    few = kernels.select(
        *_PLACE,
        *(
            (pl.col(n) if n in kernels.columns else pl.lit(None)).cast(kind).alias(n)
            for n, kind in launched.items()
        ),
    )
    found = places.select(_PLACE).join(
        few.unique(_PLACE), on=_PLACE, how="left", nulls_equal=True, maintain_order="left"
    )
    in_threads = pl.lit(False)
    if trace.has("runtime"):  # HIP's launches of modules state the grid in threads
        calls = trace.runtime.filter(name="hipExtModuleLaunchKernel")["correlation"]
        in_threads = pl.col("correlation").is_in(calls.implode())
    blocks, threads = pl.lit(1, dtype=pl.Int64), pl.lit(1, dtype=pl.Int64)
    for axis in "xyz":
        size, block = pl.col(f"grid_{axis}"), pl.col(f"block_{axis}")
        blocks *= pl.when(in_threads).then(size // block.clip(1)).otherwise(size)
        threads *= block
    return found.select("registers", "shared_bytes", blocks=blocks, threads=threads)


def _shares(rows: pl.DataFrame, events: pl.DataFrame, groups: list[str]) -> pl.DataFrame:
    """Rates, shares and gaps of rows with their work and bound."""
    labels = list(dict.fromkeys([*groups, "rank", "step"]))
    distinct = distinct_keys(events, labels).drop_nulls("step")
    of_group = distinct.group_by(groups or pl.lit(0).alias("_all"))
    several = of_group.agg(_steps=pl.struct("rank", "step").n_unique())
    if groups:
        rows = rows.join(several, on=groups, how="left", nulls_equal=True).with_columns(
            pl.col("_steps").fill_null(0)
        )
    else:
        rows = rows.with_columns(_steps=pl.lit(several["_steps"].sum()))
    whole = pl.sum("total_ns")
    whole = whole.over(groups) if groups else whole
    moved, of_bound = (
        pl.col("read_bytes") + pl.col("written_bytes"),
        pl.col("bound_ns") * pl.col("count"),
    )
    time = pl.when(pl.col("total_ns") > 0).then("total_ns")
    order = [
        *groups,
        "total_ns",
        "operator",
        "kernel",
        "shapes",
        "dtypes",
        "strides",
        "arguments",
        "kind",
    ]
    rows = rows.with_columns(
        share=pl.when(whole > 0).then(pl.col("total_ns") / whole),
        intensity=pl.when(moved > 0).then(pl.col("flops") / moved),
        flop_per_s=pl.col("flops") * pl.col("count") / time * 1e9,
        bytes_per_s=moved * pl.col("count") / time * 1e9,
        bound_share=of_bound / time,
        gap_ns=(pl.col("total_ns") - of_bound) / pl.col("_steps").clip(1),
    )
    over = pl.when(pl.col("bound_share") > OVER)
    less = (
        pl.when(pl.col("assumed").is_not_null())
        .then(pl.lit(ASSUMED))
        .otherwise(pl.lit(UNEXPLAINED))
    )
    note = pl.when(BY_CACHE).then(pl.lit(CACHED)).otherwise(less)
    return (
        rows.with_columns(reason=over.then(note).otherwise("reason"))
        .select("row", *groups, *COLUMNS)
        .sort(order, descending=[name == "total_ns" for name in order], nulls_last=True)
    )


BY_CACHE: Final = pl.col("fits_cache") & (pl.col("bound_by") == "memory")
"""Whether the device's cache can have answered what the bound takes to the memory."""

CACHED: Final = "the operands fit into the cache of the device, and were there already"
ASSUMED: Final = "above the bound: less was moved or computed than assumed"
UNEXPLAINED: Final = (
    "above the bound: the formula counts too much, the stated peak is too low, or the clock was"
    " higher"
)

COLUMNS: Final = (
    "operator",
    "kind",
    "shapes",
    "dtypes",
    "strides",
    "arguments",
    "kernel",
    "category",
    "kernels",
    "count",
    "total_ns",
    "share",
    "median_ns",
    "p10_ns",
    "p90_ns",
    "flops",
    "read_bytes",
    "written_bytes",
    "intensity",
    "flop_per_s",
    "bytes_per_s",
    "bound_ns",
    "bound_by",
    "bound_share",
    "gap_ns",
    "fits_cache",
    "source",
    "assumed",
    "tile",
    "blocks",
    "turns",
    *(f"{cause}_share" for cause in (*CAUSES, "rest")),
    "cause",
    "reason",
)


def _lengths(trace: Trace, calls: pl.DataFrame) -> tuple[pl.Series, list[Lengths]]:
    """For each call whose work needs them, the number of the lengths of its step, and these
    lengths.
    """
    names = [
        name
        for name in calls["operator"].unique().drop_nulls()
        if (known := costed_operator(name)) and known.lengths
    ]
    if not names:
        return pl.Series([None], dtype=pl.UInt32).new_from_index(0, calls.height), []
    table, sums = _lengths_of_steps(trace)
    of_call = pl.Series("lengths", [None], dtype=pl.UInt32).new_from_index(0, calls.height)
    needing = calls["operator"].is_in(names).fill_null(False).arg_true()
    given = calls[["rank", "step"]][needing].join(
        table, on=["rank", "step"], how="left", maintain_order="left"
    )
    return of_call.scatter(needing, given["lengths"]), sums


@per_trace
def _lengths_of_steps(trace: Trace) -> tuple[pl.DataFrame, list[Lengths]]:
    """``rank, step`` and the number of the ``lengths`` of its sequences, and these lengths."""
    frame = steps_of(trace)
    sums: list[Lengths] = []
    numbers: dict[Lengths, int] = {}
    rows = []
    label_of = dict(zip(zip(frame["rank"], frame["step"], strict=True), frame["name"], strict=True))
    for (rank, step), (batch, source) in batches(frame).items():
        tokens, keys = sum(part.tokens for part in batch), sum(part.keys() for part in batch)
        pairs = _stated_pairs(label_of[rank, step])
        said = CONTEXT_WORDS[source]
        found = Lengths(
            tokens, keys, sum(part.pairs() for part in batch) if pairs is None else pairs, said
        )
        if found not in numbers:
            numbers[found] = len(sums)
            sums.append(found)
        rows.append((rank, step, numbers[found]))
    table = pl.DataFrame(
        rows, schema={"rank": pl.Int32, "step": pl.Int32, "lengths": pl.UInt32}, orient="row"
    )
    return table, sums


_STATED: Final = re.compile(
    r"context_\d+\((?:sq\d+sk\d+sqsq(\d+)sqsk(\d+))?.*?\)_generation_\d+\((?:sq\d+sk\d+sqsq\d+sqsk(\d+))?"
)


def _stated_pairs(label: str | None) -> float | None:
    """Pairs of a query and a key by a detailed label; of a prompt's own tokens each sees those
    before it.
    """
    found = _STATED.search(label or "")
    if found is None or not any(found.groups()):
        return None
    squares, prompts, generated = (float(each or 0) for each in found.groups())
    return prompts - squares / 2 + generated


MAX_EMPTY_NS: Final = 5_000.0
"""Longest time (ns) that a kernel without work takes: 1 to 3 us on the devices of the samples."""


class _Bound:
    """Least time of a call on a device: its arithmetic, its bytes, and its kernels."""

    def __init__(
        self, peaks: Device | None, no_peaks: str, least_ns: float, graph: str, *, spread: bool
    ) -> None:
        self.peaks, self.no_peaks, self.least_ns, self.graph = peaks, no_peaks, least_ns, graph
        self.spread = spread  # each rank has a part of the experts

    def of(self, work: CallWork, kernels: float) -> tuple[float | None, str | None, bool | None]:
        """Bound in ns, what sets it, and whether all operands fit into the cache."""
        if self.peaks is None or not self.peaks.memory_bytes_per_s:
            return None, None, None
        moved = work.read + work.written
        times = {
            "launch": self.least_ns * kernels,
            "memory": moved / self.peaks.memory_bytes_per_s * 1e9,
        }
        rate = self.peaks.matrix_peak(work.matrix)
        if rate and work.flops:
            times[work.matrix] = work.flops / rate * 1e9
        by = max(times, key=lambda name: times[name])
        size = self.peaks.cache_bytes
        return times[by], by, None if size is None else moved <= size


def _work(
    rows: pl.DataFrame,
    coded: pl.DataFrame,
    ops: pl.DataFrame,
    sums: list[Lengths | CallWork],
    bound: _Bound,
) -> pl.DataFrame:
    """Work and bound of each row: means over the lengths of its steps."""
    lengths = {
        row: list(zip(*each, strict=True))
        for row, *each in (
            coded.group_by("row", "lengths")
            .agg(n=pl.len())
            .sort("row", "lengths")
            .group_by("row")
            .agg("lengths", "n")
            .iter_rows()
        )
    }
    known = pl.col("owner").is_not_null()
    rows = rows.with_columns(
        inside=pl.when(known).then(texts_inside(rows["owner"], ops)).otherwise("inside")
    )

    @cache
    def parsed(
        texts: tuple[Any, ...], known: Lengths | None, kernel: str, inside: str | None
    ) -> tuple[OperatorCall, CallWork]:
        call = parse_call(*texts, lengths=known, kernel=kernel, inside=calls_of_text(inside))
        return call, work_of(call)

    made = []
    for row in rows.iter_rows(named=True):
        operator = None if row["operator"] is None else costed_operator(row["operator"])
        try:
            one = _one(
                row,
                operator,
                [(None if k is None else sums[k], n) for k, n in lengths[row["row"]]],
                bound,
                parsed,
            )
        except NoWorkError as error:
            one = {"reason": str(error).split(";")[0].rstrip(".")}
        made.append(
            {
                "row": row["row"],
                "kind": operator.kind if operator else row["stage_name"],
                **dict.fromkeys(_WORK),
                **one,
            }
        )
    return pl.DataFrame(
        made, schema={"row": pl.UInt32(), "kind": pl.String(), **_WORK}, orient="row"
    )


def _one(
    row: dict[str, Any],
    operator: Operator | None,
    lengths: list[tuple[Lengths | CallWork | None, int]],
    bound: _Bound,
    parsed: Callable[..., tuple[OperatorCall, CallWork]],
) -> dict[str, Any]:
    """Columns of a row's work and bound; the reason where it has none."""
    if row["category"] == "collective":
        raise NoWorkError(COLLECTIVE)
    of_model = row["stage_name"] is not None
    if row["operator"] is None and not of_model:
        raise NoWorkError(
            IN_GRAPH.replace("CUDA graph", bound.graph) if row["replayed"] else NO_OPERATOR
        )
    if row["between"]:
        raise NoWorkError(BETWEEN)
    if operator and operator.kind == "moe_experts" and bound.spread:
        raise NoWorkError(SPREAD)
    texts = tuple(row[name] for name in _TEXTS)
    found: list[tuple[int, CallWork]] = []
    for known, count in lengths:
        if isinstance(known, CallWork):
            found.append((count, known))
            continue
        call, work = parsed(texts, known, row["kernel"], row["inside"])
        found.append((count, work))
    whole = sum(count for count, _ in found)
    bounds = [(count, *bound.of(work, row["kernels"])) for count, work in found]
    flops = (
        None
        if any(work.flops is None for _, work in found)
        else sum(n * (work.flops or 0) for n, work in found)
    )
    least = None if bound.peaks is None else sum(n * (ns or 0) for n, ns, *_ in bounds) / whole
    said = dict.fromkeys(part for _, work in found for part in work.assumed.split("; ") if part)
    first = found[0][1]
    read, written = (
        sum(n * getattr(work, side) for n, work in found) / whole for side in ("read", "written")
    )
    by = max(bounds, key=lambda each: each[0] * (each[1] or 0))[2]
    slow: dict[str, Any] = {}
    if least is not None and bound.peaks is not None and not of_model:
        mean = CallWork(
            None if flops is None else flops / whole,
            read,
            written,
            first.matrix,
            result=first.result,
        )
        each = Launch(
            row["total_ns"] / row["count"],
            row["main_ns"] / row["count"],
            row["kernel"],
            row["kernels"],
            row["blocks"],
            resident(row["threads"], row["registers"], row["shared_bytes"]),
            call.mixes_orders,
        )
        slow = shortfall(mean, least, each, bound.peaks, START * bound.least_ns)
    return {
        **slow,
        "flops": None if flops is None else flops / whole,
        "read_bytes": read,
        "written_bytes": written,
        "bound_ns": least,
        "bound_by": by,
        "fits_cache": None if bounds[0][3] is None else all(each[3] for each in bounds),
        "source": (
            max((work.source for _, work in found), key=len)
            + (", of an eager step" if row["eager"] else "")
        ),
        "assumed": "; ".join(said) or None,
        "reason": slow.get("reason") if bound.peaks else bound.no_peaks,
    }
