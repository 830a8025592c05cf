"""Explorer of many ranks: a heat map over steps, late groups, and a timeline of picked ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import polars as pl
import traitlets

from llmprof import charts
from llmprof.analyze.ranks import late_groups, latest_group, rank_places, rank_steps
from llmprof.charts.base.theme import PHASES, in_order
from llmprof.charts.subjects.heatmaps import MEANING
from llmprof.explore.base.messages import ColourScale, FrameRow, MessageRecord, array
from llmprof.explore.base.ranks import placed_in_columns, scales_of, timeline_of
from llmprof.explore.base.widget import Explorer, Reply, optional, request_handler
from llmprof.text import numbers_in_words, ranks_in_words
from llmprof.trace import Trace
from llmprof.units import format_ns, format_share

if TYPE_CHECKING:
    from llmprof.explore.timeline.explorer import Timeline

RankMeasure = Literal["step", "wait", "idle", "exposed"]


class RankOption(MessageRecord):
    """A measure that the colour can show."""

    name: RankMeasure
    title: str
    meaning: str


MAX_ROWS, MAX_COLUMNS, MAX_LISTED = 128, 1_000, 40
"""Most rows and columns of a picture, and most listed steps of the picked ranks."""

MEASURES: Final[dict[str, tuple[str, str]]] = {
    "step": ("Time of the step", "dur_ns"),
    "wait": ("Waiting", "wait_ns"),
    "idle": ("Idle", "idle_ns"),
    "exposed": ("Exposed communication", "exposed_communication_ns"),
}
"""Name of a measure to its title and its column of ``rank_steps``."""

_OF_GROUPS: Final = (
    "kind",
    "group",
    "ranks",
    "count",
    "last_share",
    "expected_share",
    "late_median_ns",
    "evidence",
)


def rank_cells(
    rows: pl.DataFrame,
    *,
    measure: str,
    phase: str | None = None,
    steps: tuple[int, int] | None = None,
    rank_range: tuple[int, int] | None = None,
) -> tuple[dict[str, Any], memoryview]:
    """Cells of the heat map: the largest value of the ranks of a row, and the median of the
    steps of a column.
    """
    title, column = MEASURES[measure]
    rows = rows if phase is None else rows.filter(phase=phase)
    for column_name, ends in (("step", steps), ("rank", rank_range)):
        rows = rows if ends is None else rows.filter(pl.col(column_name).is_between(*ends))
    first, last = rows.select(pl.min("rank").fill_null(0), last=pl.max("rank").fill_null(0)).row(0)
    size = 1
    while last - first + 1 > MAX_ROWS * size:
        size *= 2  # so that nodes stay together
    placed, columns, phases, width = placed_in_columns(rows, MAX_COLUMNS)
    placed = placed.with_columns(
        row=(pl.col("rank") - first) // size, value=pl.col(column).cast(pl.Float64)
    )
    per_rank = placed.group_by("rank", "row", "column").agg(pl.median("value"))
    slowest = per_rank.group_by("row", "column").agg(pl.max("value"))
    bands = placed.group_by("row").agg(first=pl.min("rank"), last=pl.max("rank")).sort("row")
    full = columns.select("column", "phase").join(bands.select("row"), how="cross")
    full = full.join(slowest, on=["row", "column"], how="left").sort("column", "row")
    head = {
        "measure": measure,
        "title": title,
        "meaning": MEANING[column][1],
        "columns": columns.select("first", "last", "scale").rows(),
        "rows": bands.select("first", "last").rows(),
        "condensed": width,
        "banded": size,
        "missing": full["value"].null_count(),
        "scales": scales_of(full, phases),
    }
    return head, array(full["value"].fill_null(float("nan")), "f4")


class Ranks(Explorer, room="ranks"):
    """Heat map of ranks over steps. Made by :func:`ranks`."""

    measure = traitlets.Enum(list(MEASURES), default_value="step").tag(sync=True)
    """Measure that the colour shows: step (its time), wait, idle or exposed (communication)."""

    narrows = ("phase",)

    phase = optional(traitlets.Unicode)
    """Phase of the steps that are shown: prefill, decode …; all if None."""

    picked = traitlets.List(traitlets.Int(), default_value=[]).tag(sync=True)
    """Picked ranks, from the first to the last; empty if none are picked."""

    def __init__(self, trace: Trace, *, ranks_per_node: int | None = None, **traits: Any) -> None:
        self.ranks_per_node = ranks_per_node
        super().__init__(trace, **traits)

    @property
    def selected(self) -> pl.DataFrame:
        """Rows of ``analyze.ranks`` by step of the picked ranks, and of the picked step if there is
        one.
        """
        rows = rank_steps(self.trace)
        if not self.picked:
            return rows.clear()
        rows = rows.filter(pl.col("rank").is_in(list(self.picked)))
        return rows if self.step is None else rows.filter(step=self.step)

    def timeline(self, *, around: float = 0.5) -> Timeline:
        """Timeline of the picked ranks alone, at the picked step."""
        rows = self.selected
        window = None
        if self.step is not None and rows.height:
            first, last = (int(v or 0) for v in (rows["start_ns"].min(), rows["end_ns"].max()))  # type: ignore[arg-type]
            more = around * (last - first)
            window = [first - more, last + more]
        return timeline_of(
            self.trace, self.picked, window, hint="pick a cell, or set .picked to a list of ranks"
        )

    def picture(self) -> bytes | None:
        """PNG image of the heat map."""
        rows = rank_steps(self.trace)
        rows = rows if self.phase is None else rows.filter(phase=self.phase)
        groups = rank_places(self.trace, ranks_per_node=self.ranks_per_node)
        return charts.to_png_bytes(
            charts.ranks(rows, value=MEASURES[self.measure][1], groups=groups), theme="any"
        )

    @request_handler(
        busy="comparing the steps of the ranks",
        ranks=int,
        phases=list[str],
        measures=list[RankOption],
        groups=list[FrameRow],
        latest=str,
    )
    def _on_choices(self) -> Reply:
        rows = rank_steps(self.trace)
        late = late_groups(self.trace, ranks_per_node=self.ranks_per_node)
        latest = ""
        if (named := latest_group(late)) is not None:
            share, chance = format_share(named["last_share"]), format_share(named["expected_share"])
            latest = (
                f"{named['who'][0].upper()}{named['who'][1:]} arrive last in {share} of"
                f" {named['count']:,} "
            )
            latest += f"collectives over several groups; by chance it would be {chance}."
        members = pl.Series(
            [numbers_in_words(rank_list) for rank_list in late["ranks"]], dtype=pl.String
        )
        shown = late.with_columns(ranks=members).group_by("kind", maintain_order=True).head(4)
        return {
            "ranks": rows["rank"].n_unique(),
            "phases": in_order(rows["phase"].drop_nulls(), PHASES),
            "measures": [
                {"name": name, "title": title, "meaning": MEANING[column][1]}
                for name, (title, column) in MEASURES.items()
            ],
            "groups": shown.select(_OF_GROUPS).to_dicts(),
            "latest": latest,
        }, []

    @request_handler(
        busy="measuring the steps of the ranks",
        buffers="values (f4, columns after each other, NaN where there is none)",
        measure=RankMeasure,
        title=str,
        meaning=str,
        columns=list[tuple[int, int, int]],
        rows=list[tuple[int, int]],
        condensed=int,
        banded=int,
        missing=int,
        scales=list[ColourScale],
    )
    def _on_cells(
        self,
        *,
        measure: RankMeasure,
        phase: str | None,
        steps: tuple[int, int] | None,
        rank_range: tuple[int, int] | None,
    ) -> Reply:
        head, values = rank_cells(
            rank_steps(self.trace),
            measure=measure,
            phase=phase,
            steps=(int(steps[0]), int(steps[1])) if steps else None,
            rank_range=(int(rank_range[0]), int(rank_range[1])) if rank_range else None,
        )
        return head, [values]

    @request_handler()
    def _on_pick(self, *, measure: RankMeasure, step: int, rank_range: tuple[int, int]) -> None:
        rows = rank_steps(self.trace).filter(
            pl.col("rank").is_between(*rank_range), pl.col("step") == step
        )
        if rows.height:
            worst = rows.sort(
                MEASURES[measure][1], "rank", descending=[True, False], nulls_last=True
            )["rank"][0]
            first, last = rows.select(pl.min("start_ns"), pl.max("end_ns")).row(0)
            with self.hold_sync():
                self.picked = rows["rank"].sort().to_list()
                self.rank, self.step = int(worst), step
                self.window = [float(first), float(last)]

    @request_handler(words=str, rows=list[FrameRow], more=int)
    def _on_picked(self) -> Reply:
        rows = self.selected
        words = ""
        if rows.height:
            longest = format_ns(float(rows["dur_ns"].max() or 0))  # type: ignore[arg-type]
            where = "all steps" if self.step is None else f"step {self.step}"
            words = (
                f"{ranks_in_words(self.picked).capitalize()} in {where}: the longest takes"
                f" {longest}."
            )
        listed = rows.sort("dur_ns", descending=True).head(MAX_LISTED)
        return {
            "words": words,
            "rows": listed.to_dicts(),
            "more": max(0, rows.height - MAX_LISTED),
        }, []


def ranks(trace: Trace, *, ranks_per_node: int | None = None, **traits: Any) -> Ranks:
    """Heat map of ranks over steps: step time, waiting, idle time or exposed communication, and the
    late groups.

    With more than 128 ranks a row stands for several ranks: pick it, and "Only these ranks" shows
    them alone. Picking a cell sets ``picked, rank, step`` and ``window``, and a linked timeline
    moves there. ``.timeline()`` opens only the picked ranks, and ``.selected`` is the frame of
    their steps.

    Parameters
    ----------
    trace : Trace
        Any trace; the widget says so if it has no steps.
    ranks_per_node : int, optional
        Ranks of each node, if the recording does not say it, as in
        :func:`llmprof.analyze.ranks`.
    **traits
        Initial values of ``measure, phase, picked, rank, step, window, theme``.

    Examples
    --------
    >>> from llmprof import explore
    >>> w = explore.ranks(trace, measure="idle", picked=[0])
    >>> w.selected["rank"].unique().to_list()
    [0]
    """
    return Ranks(trace, ranks_per_node=ranks_per_node, **traits)
