"""Explorer of collectives: latency, bandwidth, late ranks, and the ranks of one call side by
side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import polars as pl
import traitlets

from llmprof import analyze, charts
from llmprof.analyze.collectives.collectives import (
    lateness,
    link_peak_gbps,
    sums_of_calls,
)
from llmprof.charts.base import theme
from llmprof.charts.base.draw import extent, log_bins
from llmprof.explore.base.messages import FrameRow, MessageRecord, TimeRange
from llmprof.explore.base.ranks import timeline_of
from llmprof.explore.base.widget import COLOURS, Explorer, Reply, optional, request_handler
from llmprof.text import counted, numbers_in_words, ranks_in_words
from llmprof.trace import Trace
from llmprof.trace.schema import END
from llmprof.units import format_ns

if TYPE_CHECKING:
    from llmprof.explore.timeline.explorer import Timeline

CollectiveMeasure = Literal["late", "wait", "transfer", "duration"]


class Bin(MessageRecord):
    """Ranks whose value lies between two (ns), in numbers and in words, and how often one of
    them came last.
    """

    low_ns: float
    high_ns: float
    ranks: list[int]
    words: str
    last: int


PER_DECADE = 15
"""Bins of a histogram for each power of ten."""

MAX_BARS = 160
"""Most bars over time; more calls share bars."""

MAX_LISTED = 100
"""Most calls in the list, those with the greatest skew first."""

MAX_RANKS = 32
"""Most ranks with a row each; of more there is a histogram, and in a picked call consecutive
ranks share a row.
"""

MAX_BINS = 40
"""Bins of the histogram of ranks."""

MEASURES: Final[dict[str, tuple[str, str, str]]] = {
    "late": ("How late they arrive", "late_ns", "start after that of the first rank"),
    "wait": ("How long they wait", "wait_ns", "time from the own start to that of the last rank"),
    "transfer": ("Transfer", "transfer_ns", "time from the start of the last rank to the own end"),
    "duration": ("Duration", "dur_ns", "time of the kernel, waiting included"),
}
"""What a histogram of ranks shows: its title, its column of ``collectives``, and what that is."""


def collective_choices(trace: Trace) -> dict[str, Any]:
    """Kinds with their numbers of calls (the most frequent first), phases and ranks that can be
    chosen.
    """
    calls = analyze.collectives(trace)
    kinds = calls.group_by("kind").len().sort("len", "kind", descending=[True, False])
    return {
        "kinds": kinds.rows(),
        "phases": theme.in_order(calls["phase"].drop_nulls(), theme.PHASES),
        "ranks": calls["rank"].unique().sort().to_list(),
    }


def calls_in_window(
    trace: Trace,
    *,
    kind: str | None,
    phase: str | None = None,
    window: tuple[int, int] | None = None,
) -> pl.DataFrame:
    """Rows of ``collectives`` with ``late_ns``; with a window only those that overlap it."""
    rows = lateness(analyze.collectives(trace))
    within = [
        pl.col(c) == value for c, value in (("kind", kind), ("phase", phase)) if value is not None
    ]
    if window is not None:
        within += [pl.col("start_ns") < window[1], window[0] < END]
    return rows.filter(*within) if within else rows


def collective_view(trace: Trace, rows: pl.DataFrame, rank: int | None = None) -> dict[str, Any]:
    """All parts of the view except the picked call; parts that do not compare ranks are of
    ``rank`` alone.
    """
    own = rows if rank is None else rows.filter(rank=rank)
    matched = own.drop_nulls("wait_ns")
    arrivals = sums_of_calls(rows, ("kind", "rank")).drop_nulls("last_share")
    return {
        "count": own.height,
        "matched": matched.height,
        "histogram": {
            "duration": _histogram(own["dur_ns"]),
            "transfer": _histogram(matched["transfer_ns"]),
        },
        "medians": {
            "duration": own["dur_ns"].median(),
            "transfer": matched["transfer_ns"].median(),
        },
        "sizes": sums_of_calls(
            own, ("kind", "algorithm", "bytes"), peak_gbps=link_peak_gbps(trace)
        ).to_dicts(),
        "peak_gbps": link_peak_gbps(trace),
        "device": trace.meta.get("device"),
        "arrivals": arrivals.to_dicts() if arrivals.height <= MAX_RANKS else [],
        "over_time": over_time(own).to_dicts(),
        "calls": _listed(rows).to_dicts(),
    }


def _histogram(values: pl.Series) -> list[tuple[float, float, int]]:
    """Counts of positive durations in bins of equal width on a logarithmic axis: start, end
    (ns), count.
    """
    bins = log_bins(pl.DataFrame({"ns": values}), "ns", theme.Unit("ns", 1), per_decade=PER_DECADE)
    return bins.select("start", "end", "n").rows()


def rank_histogram(
    rows: pl.DataFrame, measure: str, ranks: Sequence[int] | None = None
) -> tuple[list[dict[str, Any]], int]:
    """Histogram of the ranks: the median of each rank over its calls, in bins of one round
    width.
    """
    column = MEASURES[measure][1]
    if ranks is not None:
        rows = rows.filter(pl.col("rank").is_in(list(ranks)))
    last = (pl.col("last_rank") == pl.col("rank")).sum()
    of_rank = rows.group_by("rank").agg(ns=pl.col(column).median(), last=last).sort("rank")
    timed = of_rank.drop_nulls("ns")
    if timed.is_empty():
        return [], of_rank.height
    low, high = (float(value) for value in timed.select(pl.min("ns"), high=pl.max("ns")).row(0))
    least = (high - low) / (MAX_BINS - 1)
    power = 10.0 ** math.floor(math.log10(max(least, 1.0)))
    width = next(step * power for step in (1, 2, 5, 10) if step * power >= least * (1 - 1e-9))
    first = int(low // width)
    placed = (
        timed.with_columns(bin=(pl.col("ns") // width).cast(pl.Int64))
        .group_by("bin")
        .agg(pl.col("rank").sort(), pl.sum("last"))
    )
    own = {place: (members, times) for place, members, times in placed.iter_rows()}
    bins = []
    for place in range(first, max(own) + 1):
        members, times = own.get(place, ([], 0))
        edges = {"low_ns": place * width, "high_ns": (place + 1) * width}
        bins.append(
            {
                **edges,
                "ranks": members,
                "words": numbers_in_words(members) if members else "",
                "last": times,
            }
        )
    return bins, of_rank.height - timed.height


def banded(rows: pl.DataFrame, latest: str) -> pl.DataFrame:
    """Rows by rank; with more than ``MAX_RANKS``, 2, 4, 8 … consecutive ranks share the row of
    their latest one.
    """
    if rows["rank"].n_unique() <= MAX_RANKS:
        return rows
    size, last = 1, int(rows["rank"].max() or 0)  # type: ignore[arg-type]
    while last >= MAX_RANKS * size:
        size *= 2
    band = [*(["kind"] if "kind" in rows.columns else []), "_band"]
    rows = rows.with_columns(_band=pl.col("rank") // size)
    end = (pl.col("_band") * size + size - 1).clip(0, last)
    return (
        rows.sort(latest, "rank", descending=[True, False], nulls_last=True)
        .unique(band, keep="first", maintain_order=True)
        .with_columns(label=pl.format("ranks {} to {}", pl.col("_band") * size, end))
        .sort(band)
        .drop("_band")
    )


def over_time(rows: pl.DataFrame) -> pl.DataFrame:
    """Means over the kernels of at most ``MAX_BARS`` bars of equal time; ``call`` has the
    longest kernel of the bar.
    """
    rows = rows.sort("start_ns", "rank")
    if rows.height <= MAX_BARS:
        place = pl.int_range(pl.len(), dtype=pl.Int64)
    else:
        first, last = rows.select(pl.min("start_ns"), last=pl.max("start_ns")).row(0)
        place = ((pl.col("start_ns") - first) * MAX_BARS // (last + 1 - first)).clip(
            0, MAX_BARS - 1
        )
    longest = pl.col("dur_ns").arg_max()
    return (
        rows.with_columns(bar=place)
        .group_by("bar")
        .agg(
            first_ns=pl.min("start_ns"),
            last_ns=END.max(),
            kernels=pl.len(),
            wait_ns=pl.mean("wait_ns"),
            transfer_ns=pl.mean("transfer_ns"),
            dur_ns=pl.mean("dur_ns"),
            call=pl.col("call").get(longest),
        )
        .sort("bar")
        .drop("bar")
    )


def _listed(rows: pl.DataFrame) -> pl.DataFrame:
    """Calls with the greatest skew, at most ``MAX_LISTED``."""
    return (
        rows.drop_nulls("call")
        .group_by("call")
        .agg(
            pl.first("step", "phase", "layer", "bytes"),
            pl.min("start_ns"),
            pl.first("arrival_skew_ns", "last_rank"),
            pl.median("transfer_ns", "bus_gbps"),
        )
        .sort("arrival_skew_ns", "call", descending=[True, False], nulls_last=True)
        .head(MAX_LISTED)
    )


def call_by_rank(trace: Trace, call: int) -> pl.DataFrame:
    """Rows of a call by rank, with ``late_ns`` and ``aligned_ns``: start after that of the first
    rank, on one clock.
    """
    rows = lateness(analyze.collectives(trace)).filter(call=call).sort("rank")
    start = pl.col("start_ns") - pl.col("clock_offset_ns")
    return rows.with_columns(aligned_ns=start - start.min())


def neighbouring_calls(rows: pl.DataFrame, call: int | None) -> tuple[int | None, int | None]:
    """The calls before and after the picked one in time; the first call for both if none is
    picked.
    """
    order = (
        rows.drop_nulls("call")
        .group_by("call")
        .agg(pl.min("start_ns"))
        .sort("start_ns", "call")["call"]
    )
    if order.is_empty():
        return None, None
    place = order.index_of(call) if call is not None else None
    if place is None:
        return int(order[0]), int(order[0])
    before = int(order[place - 1]) if place > 0 else None
    return before, int(order[place + 1]) if place + 1 < order.len() else None


_COLOURS = {
    "duration": theme.DURATION,
    "wait": theme.WAIT,
    "transfer": theme.COMMUNICATION,
    "late": theme.COMPUTE,
    "bus bandwidth": theme.COMMUNICATION,
    "algorithm bandwidth": theme.DURATION,
}


class Collectives(Explorer, room="collectives"):
    """Calls of one kind of collective. Made by :func:`collectives`."""

    kind = optional(traitlets.Unicode)
    """Kind of collective: all_reduce, all_gather …"""

    phase = optional(traitlets.Unicode)
    """Phase of the steps whose calls are shown; all if None."""

    narrows = ("rank", "window", "phase")

    call = optional(traitlets.Int)
    """Number of the picked call, which is the same on all its ranks."""

    spread = traitlets.Enum(list(MEASURES), default_value="late").tag(sync=True)
    """What the histogram of many ranks shows: late, wait, transfer or duration."""

    spread_of = traitlets.Enum(["calls", "call"], default_value="calls").tag(sync=True)
    """Calls of the histogram: all that are shown (of each rank its median), or the picked call
    alone.
    """

    picked = traitlets.List(traitlets.Int(), default_value=[]).tag(sync=True)
    """Ranks that were picked in the histogram; none if empty."""

    def __init__(self, trace: Trace, **traits: Any) -> None:
        super().__init__(trace, **{"colours": COLOURS | {"collective": _COLOURS}} | traits)

    @property
    def selected(self) -> pl.DataFrame:
        """Rows of ``analyze.collectives`` of the picked call, with ``late_ns``; all visible calls
        if none is picked.

        ``late_ns`` is the time from the start of the first rank to the start of this rank. Where
        ranks are picked, only theirs.
        """
        call = self.call
        rows = self._rows() if call is None else call_by_rank(self.trace, call).drop("aligned_ns")
        if self.picked:
            rows = rows.filter(pl.col("rank").is_in(list(self.picked)))
        rank = self.only.get("rank") if self.rank is None else self.rank
        return rows if call is not None or rank is None else rows.filter(rank=rank)

    def timeline(self) -> Timeline:
        """The picked ranks alone in a timeline, at the window that is shown."""
        hint = "pick bars of the histogram, or set .picked to a list of ranks"
        return timeline_of(self.trace, self.picked, self.window, hint=hint)

    def picture(self) -> bytes | None:
        """PNG image: distribution, sizes, and wait against transfer of the kind that is shown."""
        rows = self._rows()
        kind = self.kind or str(rows["kind"].mode().sort()[0] if rows.height else "all_reduce")
        return charts.to_png_bytes(charts.collectives(rows, kind=kind), theme="any")

    def _rows(self) -> pl.DataFrame:
        only = self.only.get("window")
        window = (round(only[0]), round(only[1])) if only else None
        return calls_in_window(self.trace, kind=self.kind, phase=self.phase, window=window)

    @request_handler(
        busy="matching calls over the ranks",
        kinds=list[tuple[str, int]],
        phases=list[str],
        ranks=list[int],
    )
    def _on_choices(self) -> Reply:
        offered = collective_choices(self.trace)
        names = [kind for kind, _ in offered["kinds"]]
        if self.kind not in names and names:
            common = self.kind is None and "all_reduce" in names
            self.kind = "all_reduce" if common else names[0]
        return offered, []

    @request_handler(
        busy="measuring calls",
        count=int,
        matched=int,
        histogram=dict[str, list[tuple[float, float, int]]],
        medians=dict[str, float | None],
        sizes=list[FrameRow],
        peak_gbps=float | None,
        device=str | None,
        arrivals=list[FrameRow],
        over_time=list[FrameRow],
        calls=list[FrameRow],
    )
    def _on_view(
        self, *, kind: str, phase: str | None, rank: int | None, window: TimeRange | None
    ) -> Reply:
        within = (round(window[0]), round(window[1])) if window else None
        return collective_view(
            self.trace, calls_in_window(self.trace, kind=kind, phase=phase, window=within), rank
        ), []

    @request_handler(call=int | None, rows=list[FrameRow], before=int | None, after=int | None)
    def _on_call(
        self, *, call: int | None, kind: str | None, phase: str | None, ranks: list[int] | None
    ) -> Reply:
        before, after = neighbouring_calls(
            calls_in_window(self.trace, kind=kind, phase=phase), call
        )
        rows = []
        if call is not None:
            every = call_by_rank(self.trace, call)
            chosen = every.filter(pl.col("rank").is_in(list(ranks))) if ranks else every
            rows = banded(chosen if chosen.height else every, "aligned_ns").to_dicts()
        return {"call": call, "rows": rows, "before": before, "after": after}, []

    @request_handler(
        busy="comparing the ranks",
        measure=CollectiveMeasure,
        meaning=str,
        ranks=int,
        unknown=int,
        bins=list[Bin],
        words=str,
    )
    def _on_spread(
        self,
        *,
        measure: CollectiveMeasure,
        kind: str,
        phase: str | None,
        window: TimeRange | None,
        call: int | None,
        ranks: list[int] | None,
    ) -> Reply:
        within = (round(window[0]), round(window[1])) if window else None
        trace = self.trace
        rows = (
            calls_in_window(trace, kind=kind, phase=phase, window=within)
            if call is None
            else call_by_rank(trace, call)
        )
        bins, unknown = rank_histogram(rows, measure, ranks)
        count = sum(len(one["ranks"]) for one in bins)
        words = ""
        if bins:
            most, top = max(bins, key=lambda one: len(one["ranks"])), bins[-1]
            between = f"between {format_ns(most['low_ns'])} and {format_ns(most['high_ns'])}"
            highest = (
                f"; the highest is above {format_ns(top['low_ns'])}: {ranks_in_words(top['ranks'])}"
            )
            lie = "lies" if len(most["ranks"]) == 1 else "lie"
            of = counted(count, "rank")
            words = (
                f"{len(most['ranks']):,} of {of} {lie} {between}{'' if top is most else highest}."
            )
        head = {"measure": measure, "meaning": MEASURES[measure][2], "words": words}
        return {**head, "ranks": count, "unknown": unknown, "bins": bins}, []

    @request_handler(before=int | None, after=int | None)
    def _on_pick(self, *, call: int, kind: str | None = None, phase: str | None = None) -> Reply:
        rows = analyze.collectives(self.trace).filter(call=call)
        if rows.height:
            first, last = extent(rows)
            with self.hold_sync():
                self.call, self.step, self.layer = call, rows["step"][0], rows["layer"][0]
                self.window = [float(first), float(last)]
        before, after = neighbouring_calls(
            calls_in_window(self.trace, kind=kind, phase=phase), call
        )
        return {"before": before, "after": after}, []


def collectives(trace: Trace, *, kind: str | None = None, **traits: Any) -> Collectives:
    """Calls of a collective: latencies, sizes, bandwidth compared with the link's peak, late ranks,
    and waiting.

    Picking a call (a bar over time, or a row of the list) shows its ranks aligned and sets ``call,
    step, layer`` and ``window``; ``.selected`` is the frame of its rows. With more than 32 ranks a
    histogram says how many arrive how late, wait or transfer how long; picking its bars sets
    ``picked``, and ``.timeline()`` opens these ranks alone.

    Parameters
    ----------
    trace : Trace
        Any trace; the widget says so if it has no collectives.
    kind : str, optional
        all_reduce (the default, if there is one), all_gather, reduce_scatter, all_to_all,
        broadcast, send_recv …
    **traits
        Initial values of ``phase, only, call, rank, spread, spread_of, picked, window,
        theme``.
    """
    return Collectives(trace, kind=kind, **traits)
