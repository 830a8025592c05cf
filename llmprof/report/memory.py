"""Figures of the report about memory."""

from __future__ import annotations

import polars as pl

from llmprof import analyze, charts
from llmprof.errors import NotCapturedError
from llmprof.report.figures import Drawing, Drawn
from llmprof.trace import Trace

_MOST_PANELS = 4


def _memory(trace: Trace) -> Drawn:
    found = analyze.memory(trace, per="time")
    device = found.filter("on_device")
    found = device if device.height else found
    places = found.select("rank", "device").unique(maintain_order=True)
    kept = found.join(places.head(_MOST_PANELS), on=["rank", "device"], nulls_equal=True, maintain_order="left")
    note = f"Drawn: {_MOST_PANELS} of {places.height} devices." if places.height > _MOST_PANELS else ""
    return charts.memory(kept), note


def _holders(trace: Trace) -> Drawn:
    found = analyze.memory(trace, per="holder")
    if not found.height:
        raise NotCapturedError("nothing is known to hold memory", hint="record with profile_memory=True")
    device = found.filter("on_device")
    found = device if device.height else found
    rank = found["rank"].sort()[0]
    note = "" if found["rank"].n_unique() == 1 else f"Drawn: rank {rank}; analyze.memory(trace, per='holder') has all."
    return charts.memory_holders(found.filter(pl.col("rank") == rank)), note


MEMORY = Drawing("memory", "allocated and reserved memory over time", _memory)
HOLDERS = Drawing("memory_holders", "what holds memory at the peak", _holders)
