"""The part of a run that findings speak about: the steady decode steps, else all steps, else everything."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from llmprof.analyze.layers.attribution import attribute
from llmprof.analyze.overlap import overlap
from llmprof.analyze.steps.steps import steps
from llmprof.analyze.steps.summary import steady_state
from llmprof.trace import Trace


@dataclass(frozen=True)
class Scope:
    """Steps that stand for the run, their events and their time.

    Attributes
    ----------
    trace : Trace
        The whole trace.
    words : str
        The scope in words: ``steady decode steps``, ``all steps`` or ``whole recording``.
    steps : polars.DataFrame or None
        The steps; None where the trace has none and the scope is the whole recording.
    events : polars.DataFrame
        The rows of :func:`~llmprof.analyze.layers.attribution.attribute` in them.
    overlap : polars.DataFrame
        Overlap of each rank and step in them, or of each rank.
    """

    trace: Trace
    words: str
    steps: pl.DataFrame | None
    events: pl.DataFrame
    overlap: pl.DataFrame

    @property
    def span_ns(self) -> int:
        """Device span of the steps, summed over steps and ranks: the denominator of every share (ns)."""
        return int(self.overlap["total_ns"].sum())

    @property
    def parts(self) -> int:
        """Steps, counted on every rank; ranks if the scope is the whole recording."""
        return max(1, self.overlap.height)

    @property
    def part(self) -> str:
        """What counts are given for: ``a step`` (of one rank) or ``a rank``."""
        return "a rank" if self.steps is None else "a step"

    def within(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Rows of a frame with ``rank`` and ``step`` that lie in the scope."""
        if self.steps is None:
            return frame
        return frame.join(self.steps.select("rank", "step"), on=["rank", "step"], how="semi")


def scope_of(trace: Trace) -> Scope:
    """Steady decode steps if every rank has some, else all steps with device work, else the whole recording.

    Captures of CUDA graphs are not part of a run; a recording that holds nothing else has an empty scope.

    Parameters
    ----------
    trace : Trace
        Any trace with device activity or operators.

    Returns
    -------
    Scope
        The steps that findings are about.
    """
    found, events = steps(trace), attribute(trace)
    if not found.height:
        return Scope(trace, "whole recording", None, events, overlap(trace, by=("rank",)))
    every = found.filter(
        pl.col("dur_ns").is_not_null() & (pl.col("phase") != "empty") & (pl.col("source") != "capture")
    )
    steady = steady_state(trace)
    whole = steady.height and steady["rank"].n_unique() == every["rank"].n_unique()
    chosen, words = (steady, "steady decode steps") if whole else (every, "all steps")
    key = chosen.select("rank", "step")
    events = events.join(key, on=["rank", "step"], how="semi", maintain_order="left")
    spans = overlap(trace, by=("rank", "step")).join(key, on=["rank", "step"], how="semi", maintain_order="left")
    return Scope(trace, words, chosen, events, spans)
