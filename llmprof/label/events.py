"""The frame that everything hangs on: what ran on a device, a row an event, with all its labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import polars as pl

from llmprof.label.activity import (
    CAPTURED,
    EVENT_KEY,
    activity,
    add_recorded,
    called_operators,
    coded_names,
    launching_operators,
)
from llmprof.label.layers.attribution import described_kinds, label_captured, label_modules
from llmprof.label.layers.sequences import label_layers
from llmprof.label.modules import modules_of
from llmprof.label.steps.labels import ENGINES
from llmprof.label.steps.steps import events_with_steps, steps_of
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace


def _label_operators(frame: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Add ``operator``, the name of the innermost operator that launched the event, with ``shapes``
    and ``dtypes`` of its inputs; of a replayed kernel, what its capture recorded.
    """
    texts = {"operator": "name", "shapes": "shapes", "dtypes": "dtypes"}
    found = pl.DataFrame(schema=dict.fromkeys(texts.values(), pl.String))
    rows = pl.repeat(None, frame.height, dtype=pl.UInt32, eager=True)
    if "ops" in trace.table_names:
        ops, rows = called_operators(trace), launching_operators(trace)["row"]
        found = pl.concat(
            [found, ops.select(name for name in found.columns if name in ops)], how="diagonal"
        )
    frame = frame.with_columns(found[name].gather(rows).alias(new) for new, name in texts.items())
    captured = {f"_{new}": f"{CAPTURED}{new}" for new in texts} | {"_operator": f"{CAPTURED}op"}
    if not trace.has("kernels") or captured["_operator"] not in trace.kernels.columns:
        return frame
    frame = add_recorded(frame, trace.kernels.select(*EVENT_KEY, **captured))
    known = pl.col("_operator").is_not_null()
    return frame.with_columns(
        pl.when(known).then(f"_{name}").otherwise(name).alias(name) for name in texts
    ).drop(captured)


def _label_phases(frame: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Add ``step`` and ``phase``, null where no step is known."""
    return frame.hstack(events_with_steps(trace)[["step", "phase"]])


def _label_stages(frame: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Add ``layer``, ``stage``, ``confidence`` and ``reason`` by names and place."""
    # each step of these is one pass of one model, and of its draft model
    engine = steps_of(trace).filter(pl.col("source").is_in([*ENGINES, "capture"]))
    engine = engine[["rank", "step"]]
    return label_layers(frame, described_kinds(frame, trace), engine, coded_names(trace))


def _label_modules(frame: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Add ``evidence``; layers and stages follow the modules that launched the events."""
    return label_modules(frame, modules_of(frame, trace))


def _label_captures(frame: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Give replayed kernels the labels that were recorded when their graph was captured."""
    return label_captured(frame, trace.kernels) if trace.has("kernels") else frame


RECIPE: Final[tuple[Callable[[pl.DataFrame, Trace], pl.DataFrame], ...]] = (
    _label_phases,
    _label_stages,
    _label_modules,
    _label_captures,
    _label_operators,
)
"""What is added to the events in turn; launches and categories come first: steps need them."""


@per_trace
def label_events(trace: Trace) -> pl.DataFrame:
    """The events of all devices with their labels: see :attr:`llmprof.Trace.events`."""
    if trace._labels is not None:
        labelled: pl.DataFrame = trace._labels.events
        return labelled
    frame = activity(trace)
    for add in RECIPE:
        frame = add(frame, trace)
    return frame
