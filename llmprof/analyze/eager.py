"""Operators of kernels that no operator launched, from steps of equal batch that were recorded
eagerly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from llmprof.analyze.captures import CONTENT, add_capture_labels
from llmprof.analyze.inside import texts_inside
from llmprof.analyze.operators import calls_of, with_operators
from llmprof.label.activity import CAPTURED, EAGER, EVENT_KEY, add_recorded
from llmprof.label.steps.steps import steps_of
from llmprof.names.readable import readable
from llmprof.trace import Trace

_BATCH: Final = ("prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens")
_GRID: Final = ("grid_x", "grid_y", "grid_z")
_TEXTS: Final = {
    "op": "operator",
    "shapes": "shapes",
    "dtypes": "dtypes",
    "strides": "strides",
    "inputs": "arguments",
    "inside": "inside",
}

LEAST_RUN: Final = 20
"""So many kernels in a row without operators are looked for among those with operators."""


def add_operators(
    trace: Trace,
    *,
    captures: Trace | Sequence[Trace] | None = None,
    eager: Trace | None = None,
) -> Trace:
    """Add operators to kernels that were recorded without: replays of graphs, and other profilers.

    Captures of CUDA (HIP) graphs are matched with their replays by the sequence of kernels.

    Without captures, two things tell that kernels are those of an eager recording. In steps of
    equal batch (requests and tokens of prompts and of generation, from their labels): as many
    kernels of one name on the same rank, with the same grids in the same order, or else as many of
    one readable name, which leaves out what templates say. Where no step states its batch, such as
    in a recording of Nsight Systems or before the launch of what runs: at least 20 consecutive
    kernels of a stream, whose names and grids stand in the same order among kernels with operators;
    readable names, which all profilers write alike, where every grid was recorded. Where they stand
    there several times, operators and shapes must agree.

    Parameters
    ----------
    trace : Trace
        A recording with graphs, with kernels whose launch it does not hold, or without operators.
    captures : Trace or sequence of Trace, optional
        Traces of the captures, one per graph or one with all.
    eager : Trace, optional
        A recording of the same program without graphs, with its operators; the trace itself if
        neither is given.

    Returns
    -------
    Trace
        The same trace, whose analyses use the operators; its ``kernels`` have ``op, shapes, dtypes,
        strides, inputs, call, category, layer, stage, evidence, confidence``, each with
        ``torch_capture_`` in front, and grid and block of kernels that had none.

    Raises
    ------
    NotCapturedError
        A recording holds no kernels, or the eager one no operators.
    AnalysisError
        None of the captures holds the capture of a graph.

    Examples
    --------
    >>> graphs, eager = llmprof.sample("torch_tp1_cudagraph"), llmprof.sample("torch_tp1_eager")
    >>> known = analyze.operators(analyze.add_operators(graphs, eager=eager))
    >>> sorted(known.filter(kind="attention")["operator"].drop_nulls().unique())
    ['_vllm_fa3_C::fwd', '_vllm_fa3_C::get_scheduler_metadata']
    """
    if captures is not None:
        trace = add_capture_labels(trace, captures)
        if eager is None:
            return trace
    return _with_eager_steps(trace, eager)


def _with_eager_steps(trace: Trace, eager: Trace | None) -> Trace:
    """Operators of the same kernels where these were recorded eagerly."""
    here = _kernels(trace if eager is None else with_operators(trace))
    there = here if eager is None else _kernels(eager)
    unknown = here.filter(pl.col("operator").is_null())
    known = there.drop_nulls("operator")
    rows = steps_of(trace)
    stated = rows.filter(_stated()).select("rank", "step", stated=pl.lit(True))
    here = here.join(stated, on=["rank", "step"], how="left", maintain_order="left")
    partners = _partners(rows, steps_of(trace if eager is None else eager))
    none = pl.lit(None, pl.UInt32)
    found = pl.concat(
        [
            _of_steps(here, there, partners, "name")
            .filter(_same_grid())
            .select("event", *_GIVEN, run=none),
            _of_steps(here, there, partners, "readable")
            .filter(pl.col("called") != pl.col("called_there"))
            .select("event", *_GIVEN, run=none),
            _of_runs(here, known),
        ]
    ).unique("event", keep="first", maintain_order=True)
    found = (
        unknown.select("event", "step", *EVENT_KEY)
        .join(found, on="event")
        .drop("event")
        .unique(EVENT_KEY, keep="first")
    )
    columns = {**{name: pl.String() for name in CONTENT}, "call": pl.UInt32(), "layer": pl.Int32()}
    columns = {name: kind for name, kind in columns.items() if name not in ("grid", "block")}
    texts = {name: pl.col(f"{given}_there") for name, given in _TEXTS.items()}
    call = pl.struct("rank", "step", "run", "call_there").rank("dense").cast(pl.UInt32)
    given = found.select(
        *EVENT_KEY, **texts, call=call, evidence=pl.lit(EAGER), confidence=pl.lit(0.9)
    )
    given = given.with_columns(
        pl.lit(None, kind).alias(n) for n, kind in columns.items() if n not in given.columns
    )
    given = given.rename({name: CAPTURED + name for name in given.columns if name not in EVENT_KEY})
    kernels, labels = trace.kernels, [name for name in given.columns if name.startswith(CAPTURED)]
    kernels = kernels.join(
        given, on=EVENT_KEY, how="left", nulls_equal=True, maintain_order="left", suffix="_eager"
    )
    both = [name for name in labels if f"{name}_eager" in kernels.columns]
    kernels = kernels.with_columns(pl.coalesce(name, f"{name}_eager").alias(name) for name in both)
    kernels = kernels.drop(f"{name}_eager" for name in both)
    return Trace({**trace.tables, "kernels": kernels}, trace.meta, trace.coverage)


def _kernels(trace: Trace) -> pl.DataFrame:
    """Kernels in the order of their stream with step, grid, and the call and texts of their
    operator.
    """
    events, calls, ops = calls_of(trace, ("step",))
    calls = calls.with_columns(inside=pl.coalesce("inside", texts_inside(calls["owner"], ops)))
    events = events.join(
        calls.select("call", *_TEXTS.values()), on="call", how="left", maintain_order="left"
    )
    sizes = [name for name in _GRID if name in trace.kernels.columns]
    events = add_recorded(events.filter(source="kernel"), trace.kernels.select(*EVENT_KEY, *sizes))
    absent = [pl.lit(None, pl.Int32).alias(name) for name in _GRID if name not in sizes]
    events = events.with_columns(*absent, readable=readable(events["name"]))
    return events.sort("rank", "stream", "start_ns", maintain_order=True)


def _stated() -> pl.Expr:
    """Whether a step says something of its batch."""
    return pl.any_horizontal(pl.col(name).is_not_null() for name in _BATCH)


def _partners(here: pl.DataFrame, there: pl.DataFrame) -> pl.DataFrame:
    """``rank, step, step_there``: the steps of equal batch in the eager recording."""
    key = ["rank", *_BATCH]
    other = there.filter(_stated()).select(*key, step_there="step")
    return (
        here.filter(_stated())
        .select("step", *key)
        .join(other, on=key, nulls_equal=True)
        .drop(_BATCH)
    )


def _of_steps(
    here: pl.DataFrame, there: pl.DataFrame, partners: pl.DataFrame, name: str
) -> pl.DataFrame:
    """Kernels without an operator and those of the first step of equal batch that has as many of
    the name.
    """
    key = ["rank", "step", name]
    counted = [
        frame.with_columns(n=pl.len().over(key), k=pl.int_range(pl.len()).over(key))
        for frame in (here, there)
    ]
    of_other = counted[1].select(
        "rank",
        name,
        "n",
        "k",
        *(pl.col(each).alias(f"{each}_there") for each in ("call", *_TEXTS.values(), *_GRID)),
        called_there="name",
        step_there="step",
    )
    few = (
        counted[0]
        .filter(pl.col("operator").is_null())
        .select("event", *key, "n", "k", *_GRID, called="name")
    )
    # of several eager steps, the first whose kernels of this name are as many and have operators
    fits = of_other.group_by("rank", "step_there", name, "n").agg(
        whole=pl.col("operator_there").is_not_null().all()
    )
    first = (
        few.select(*key, "n")
        .unique()
        .join(partners, on=["rank", "step"])
        .join(fits.filter("whole"), on=["rank", "step_there", name, "n"])
        .group_by(*key, "n")
        .agg(pl.min("step_there"))
    )
    return few.join(first, on=[*key, "n"]).join(of_other, on=["rank", "step_there", name, "n", "k"])


_GIVEN: Final = ("call_there", *(f"{name}_there" for name in _TEXTS.values()))


def _same_grid(*, unknown: bool = True) -> pl.Expr:
    """Whether grids are equal; what counts where one side did not record its own."""
    return pl.all_horizontal(
        (pl.col(name) == pl.col(f"{name}_there")).fill_null(value=unknown) for name in _GRID
    )


def _of_runs(here: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """Kernels of no stated batch, in runs that stand in the same order among kernels with
    operators.
    """
    none = pl.col("operator").is_null() & pl.col("stated").is_null()
    runs = (
        here.with_columns(none=none)
        .with_columns(run=pl.struct("rank", "stream", "none").rle_id())
        .filter("none")
    )
    runs = runs.filter(pl.len().over("run") >= LEAST_RUN)
    codes = (
        pl.concat([runs["readable"], known["readable"]]).unique().to_frame().with_row_index("code")
    )
    gone = {"call": pl.UInt32(), **dict.fromkeys(_TEXTS.values(), pl.String())}
    schema = {
        "event": here.schema["event"],
        **{f"{n}_there": kind for n, kind in gone.items()},
        "run": pl.UInt32(),
    }
    empty = pl.DataFrame(schema=schema)
    if runs.is_empty() or known.is_empty() or codes.height > _MOST_NAMES:
        return empty
    texts = {
        rank: (_text(part, codes), part)
        for (rank,), part in known.partition_by("rank", as_dict=True).items()
    }
    found = [empty]
    for part in runs.partition_by("run"):
        text, other = texts.get(part["rank"][0], ("", known))
        wanted, at, fitting = _text(part, codes), -1, []
        while (at := text.find(wanted, at + 1)) >= 0:
            beside = other.slice(at, part.height).select(
                pl.col(name).alias(f"{name}_there")
                for name in ("name", "call", *_TEXTS.values(), *_GRID)
            )
            pairs = part.hstack(beside)
            alike = (pl.col("name") == pl.col("name_there")).all() & _same_grid().all()
            if pairs.select(alike | _same_grid(unknown=False).all()).item():
                fitting.append(pairs)
        if fitting:
            first = fitting[0].select("event", *_GIVEN, "run")
            agree = pl.lit(True)
            for each in fitting[1:]:
                for name in _TEXTS.values():
                    agree &= pl.lit(first[f"{name}_there"]).eq_missing(
                        pl.lit(each[f"{name}_there"])
                    )
            found.append(first.filter(agree) if len(fitting) > 1 else first)
    return pl.concat(found, how="vertical_relaxed")


_MOST_NAMES: Final = 50000


def _text(kernels: pl.DataFrame, codes: pl.DataFrame) -> str:
    """A letter for each kernel, by its readable name; a list of them is found by the search for
    text.
    """
    numbers = kernels[["readable"]].join(codes, on="readable", how="left", maintain_order="left")[
        "code"
    ]
    return "".join(chr(0x100 + number) for number in numbers.to_list())
