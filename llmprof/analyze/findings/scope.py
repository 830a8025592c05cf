"""The part of a run that findings speak about: the steady decode steps, else all steps, else everything recorded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import polars as pl

from llmprof.analyze.findings.measures import total
from llmprof.analyze.intervals.intervals import clip
from llmprof.analyze.layers.attribution import attribute
from llmprof.analyze.steps.steps import steps
from llmprof.analyze.steps.summary import steady_state
from llmprof.analyze.time_parts import LANE, recorded_windows, step_windows, time_parts
from llmprof.trace import Trace
from llmprof.units import format_ns, format_share


@dataclass(frozen=True)
class Scope:
    """Time that stands for the run, as windows, and what lies in it.

    Attributes
    ----------
    trace : Trace
        The whole trace.
    words : str
        The scope in words: ``steady decode steps``, ``all steps`` or ``whole recording``.
    steps : polars.DataFrame or None
        The steps; None where the trace has none and the scope is the whole recording.
    windows : polars.DataFrame
        ``rank, device, step, phase, start_ns, dur_ns``: the time, one row a step and device.
    recorded_ns : int
        All recorded time, summed over the devices.
    """

    trace: Trace
    words: str
    steps: pl.DataFrame | None
    windows: pl.DataFrame
    recorded_ns: int

    @property
    def span_ns(self) -> int:
        """Length of the windows, the denominator of every share (ns)."""
        return int(self.windows["dur_ns"].sum())

    @property
    def parts(self) -> int:
        """Steps, counted on every device; devices if the scope is the whole recording."""
        return max(1, self.windows.height)

    @property
    def part(self) -> str:
        """What counts and times are given for: ``a step`` (of one device) or ``a rank``."""
        return "a rank" if self.steps is None else "a step"

    @cached_property
    def denominator(self) -> str:
        """What every share is of, in words and numbers."""
        ranks = self.windows["rank"].n_unique()
        of = f"on {ranks} rank{'s' if ranks > 1 else ''}" if self.steps is not None or ranks > 1 else "on the only rank"
        if self.steps is None:
            return f"recorded time, host and device: {format_ns(self.span_ns / self.parts)} {of}"
        number = self.windows["step"].n_unique()
        what = f"{number} {self.words}, which are" if number > 1 else f"1 {self.words.removesuffix('s')}, which is"
        share = format_share(self.span_ns / max(1, self.recorded_ns))
        mean = format_ns(self.span_ns / self.parts)
        return f"time from step to step: {mean} on average {of} over {what} {share} of the recorded time"

    @cached_property
    def on_host(self) -> bool:
        """Whether operators of the host stand in for a device."""
        events = attribute(self.trace)
        return events.height > 0 and bool((events["source"] == "op").all())

    @cached_property
    def events(self) -> pl.DataFrame:
        """Device events of the windows with their labels, cut to the windows; ``window`` is the row there."""
        return clip(attribute(self.trace), self.windows, LANE)

    @cached_property
    def times(self) -> pl.DataFrame:
        """The windows in parts that add up to them: :func:`~llmprof.analyze.time_parts.time_parts`."""
        return time_parts(self.trace, self.windows)

    def time(self, kind: str, *parts: str) -> float:
        """Time of the windows that a kind, or some parts of it, take (ns)."""
        rows = self.times.filter(pl.col("kind") == kind)
        return total(rows.filter(pl.col("part").is_in(parts)) if parts else rows, "ns")

    def cut(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Rows with ``rank, start_ns, dur_ns`` as far as they lie in the windows of their rank."""
        lanes = LANE if "device" in frame.columns else ["rank"]
        windows = self.windows.unique([*lanes, "start_ns"], keep="first", maintain_order=True)
        return clip(frame, windows, lanes)

    def begun(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Rows with ``rank, start_ns`` that begin in a window of their rank, whole."""
        ends = self.windows.select("rank", pl.col("start_ns").alias("_from"), _to=pl.col("start_ns") + pl.col("dur_ns"))
        ends = ends.unique(["rank", "_from"]).sort("_from")
        found = frame.with_row_index("_row").sort("start_ns")
        found = found.join_asof(
            ends, left_on="start_ns", right_on="_from", by="rank", strategy="backward", check_sortedness=False
        )
        return found.filter(pl.col("start_ns") < pl.col("_to")).sort("_row").drop("_row", "_from", "_to")

    def within(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Rows of a frame with ``rank`` and ``step`` that belong to the steps."""
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
        The time that findings are about.
    """
    found, recorded = steps(trace), recorded_windows(trace)
    recorded_ns = int(recorded["dur_ns"].sum())
    if not found.height:
        return Scope(trace, "whole recording", None, recorded, recorded_ns)
    windows = step_windows(trace)
    every = found.join(windows.select("rank", "step").unique(), on=["rank", "step"], how="semi", maintain_order="left")
    steady = steady_state(trace)
    whole = steady.height and steady["rank"].n_unique() == every["rank"].n_unique()
    chosen, words = (steady, "steady decode steps") if whole else (every, "steps")
    windows = windows.join(chosen.select("rank", "step"), on=["rank", "step"], how="semi", maintain_order="left")
    return Scope(trace, words, chosen, windows, recorded_ns)
