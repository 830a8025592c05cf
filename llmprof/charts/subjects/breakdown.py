"""Division of device time: by stage or kernel category, and into compute, communication, copies
and idle time.
"""

from __future__ import annotations

import altair as alt
import polars as pl

from llmprof import analyze
from llmprof.analyze.overlap import EXPOSED
from llmprof.charts.base import compose, draw, theme
from llmprof.errors import Share
from llmprof.trace import Trace

_WORK = {
    "kernels and copies": (
        "device time",
        "Kernels and copies on the device, added up; work on two streams at once counts twice.",
    ),
    "operators": (
        "operator time",
        "Operators on the host, added up; work on two threads at once counts twice.",
    ),
    "timed operators": (
        "time of a step",
        "Times of the sampled calls, times the number of calls of a step.",
    ),
}
_VALUES = ("total_ns", "busy_ns", "dur_ns")


@draw.chart_of(
    "trace.events, layers(trace, stages=True) or kernels(trace, by=...)",
)
def breakdown(
    frame: Trace | pl.DataFrame,
    *,
    rows: str = "phase",
    color: str = "stage",
    value: str | None = None,
    min_share: Share = 0.04,
    work: str = "kernels and copies",
    title: str | None = None,
) -> alt.VConcatChart:
    """Stacked bars of device time: as a share, and in absolute time.

    Parameters
    ----------
    frame : Trace or polars.DataFrame
        Any frame with a row name, a part and a time: rows of ``trace.events``, of
        ``layers(trace, stages=True)`` or of ``kernels(trace, by="phase")``. Times of a row and part
        are added up.
    rows : {"phase", "rank", "step"}
        What each bar stands for.
    color : {"stage", "category"}
        What the parts of a bar stand for.
    value : str, optional
        Column of time (ns); by default ``total_ns``, ``busy_ns`` or ``dur_ns``, whichever the frame
        has.
    min_share : float
        Parts that are smaller than this share in every bar are merged into ``other (n)``; a second
        panel shows them.
    work : {"kernels and copies", "operators", "timed operators"}
        What the rows are: events of a device, operators of the host in their place, or samples of
        operators.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or all times are zero.

    Examples
    --------
    >>> chart = charts.breakdown(trace.events)
    """
    frame = frame.events if isinstance(frame, Trace) else frame
    draw.check_choice(rows, ("phase", "rank", "step"), chart="breakdown", option="rows")
    draw.check_choice(color, ("stage", "category"), chart="breakdown", option="color")
    draw.check_choice(work, _WORK, chart="breakdown", option="work")
    time, note = _WORK[work]
    column = value or next((c for c in _VALUES if c in frame.columns), _VALUES[-1])
    draw.require(frame, (rows, color, column), chart="breakdown")
    sums = _sums(frame, rows, color, column)
    if sums.is_empty():
        raise draw.nothing("breakdown", f"the column {column} adds up to zero")
    parts, small = _gathered(sums, min_share, "other")
    palette = _palette(color, parts)
    order = list(sums["row"].unique(maintain_order=True))
    unit = theme.time_unit(draw.float_of(sums["row_ns"].max()))
    width = theme.inner() - 20 - round(max(theme.text_px(row, theme.TEXT_PX) for row in order))
    y = theme.row_axis(order)
    smaller, _ = _gathered(small, min_share, "smaller")
    inside = _palette(color, smaller, theme.MISSING) if smaller["part"].n_unique() > 1 else {}
    table = _merged(color, palette, inside)
    panels = [_shares(draw.stack(parts, palette, unit), table, y, width, f"Share of {time}")]
    if inside:
        gathered = next(name for name in palette if name not in sums["part"].unique())
        panels.append(
            _shares(draw.stack(smaller, inside, unit), table, y, width, f"What is in {gathered}")
        )
    bars = theme.layered(
        *draw.stacked_bars(parts, table, width=width, title=time, unit=unit, inside=False)
    )
    panels.append(
        bars.properties(
            width=width, height=26 * len(order), title=theme.panel_heading(time.capitalize())
        )
    )
    chart = compose.vconcat(*panels, spacing=20)
    unattributed = frame[color].null_count()
    notes = [note]
    if unattributed:
        notes.append(f"{unattributed:,} rows without a {color} count as other.")
    return theme.finish_chart(chart, title or _headline(parts, rows, color, time), " ".join(notes))


def _sums(frame: pl.DataFrame, rows: str, by: str, column: str) -> pl.DataFrame:
    """Time by row and part: ``row, order, part, ns, row_ns``."""
    name, order = pl.col(rows).cast(pl.String).fill_null("no " + rows), pl.col(rows)
    if rows == "phase":
        name = name.replace("other", theme.STEPS)
        order = order.replace_strict(
            {p: i for i, p in enumerate(theme.PHASES)},
            default=len(theme.PHASES),
            return_dtype=pl.Int64,
        )
    else:
        name, order = pl.lit(rows + " ") + name, order.cast(pl.Int64)
    named = frame.select(
        row=name, order=order, part=pl.col(by).fill_null("other"), ns=pl.col(column)
    )
    sums = named.group_by("row", "order", "part").agg(pl.sum("ns")).filter(pl.col("ns") > 0)
    return sums.with_columns(row_ns=pl.sum("ns").over("row")).sort("order", "row", "part")


def _gathered(sums: pl.DataFrame, min_share: float, name: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The parts, with small ones merged into one, and the small parts by themselves."""
    minor = ((pl.col("ns") / pl.col("row_ns")).max().over("part") < min_share).alias("minor")
    marked = sums.with_columns(minor)
    small = marked.filter("minor").drop("minor").with_columns(row_ns=pl.sum("ns").over("row"))
    count = small["part"].n_unique()
    if count < 2:
        return sums.with_columns(gathered=pl.lit(False)), small.clear()
    part = pl.when("minor").then(pl.lit(f"{name} ({count})")).otherwise("part")
    keys = ["row", "order", "part", "row_ns"]
    out = (
        marked.with_columns(part=part)
        .group_by(keys)
        .agg(pl.sum("ns"), gathered=pl.col("minor").any())
    )
    return out.sort("order", "row", "part"), small


def _palette(by: str, parts: pl.DataFrame, rest: str = theme.REST) -> dict[str, str]:
    gathered = parts.filter("gathered")["part"].unique()
    return theme.colours(by, set(parts["part"]) - set(gathered)) | dict.fromkeys(gathered, rest)


def _merged(by: str, outer: dict[str, str], inner: dict[str, str]) -> dict[str, str]:
    """One legend for both panels: names in their order, then the merged part."""
    both = outer | inner
    rest = {name: fill for name, fill in both.items() if fill in (theme.REST, theme.MISSING)}
    return theme.colours(by, set(both) - set(rest)) | rest


def _shares(
    data: pl.DataFrame, table: dict[str, str], y: alt.Y, width: int, title: str
) -> alt.LayerChart:
    """Bars of 100 %, with the name and share in each part that is wide enough."""
    total = pl.col("percent").cum_sum().over("row")
    data = data.with_columns(start=total - pl.col("percent"), end=total).drop("order", "gathered")
    axis = alt.Axis(title="share (%)", grid=False, tickCount=5 if theme.is_narrow() else 10)
    x = alt.X("start:Q", scale=theme.exact_scale(0, 100), axis=axis)
    marks = [draw.bars_of(data, table, x, y)]
    lines: list[tuple[str, float, str, str, int]] = []
    for row, part, share, end in data.select("row", "part", "percent", "end").iter_rows():
        room, middle, ink = share / 100 * width, end - share / 2, theme.ink_on(table[part])
        if draw.fitting_text((part,), room, margin=6):
            lines += [(row, middle, part, ink, -7), (row, middle, theme.percent(share), ink, 8)]
        elif draw.fitting_text((theme.percent(share),), room, margin=6):
            lines.append((row, middle, theme.percent(share), ink, 0))
    texts = pl.DataFrame(lines, schema=["row", "start", "label", "ink", "dy"], orient="row")
    for (ink, dy), group in texts.group_by("ink", "dy", maintain_order=True):
        text = alt.Chart(draw.inline(group.drop("ink", "dy"))).mark_text(
            baseline="middle", color=str(ink), dy=draw.float_of(dy)
        )
        marks.append(text.encode(x=x, y=y, text=alt.Text("label:N")))
    height = 46 * data["row"].n_unique()
    return theme.layered(*marks).properties(
        width=width, height=height, title=theme.panel_heading(title)
    )


def _headline(parts: pl.DataFrame, rows: str, color: str, time: str) -> str:
    """Sentence on the part that is largest in each bar; of many bars, on the one that is largest
    in sum.
    """
    named = parts.filter(~pl.col("gathered")).with_columns(
        what=pl.col("part").replace("other", f"work of no known {color}"),
        share=100 * pl.col("ns") / pl.col("row_ns"),
    )
    if named.is_empty():
        return f"Where the {time} goes"
    tops = named.sort("ns", "part", descending=[True, False]).unique(
        "row", keep="first", maintain_order=True
    )
    if 1 < tops["part"].n_unique() <= tops.height <= _MOST_NAMED:
        each = tops.sort("order", "row").select("what", "share", "row").iter_rows()
        return f"Largest of the {time}: " + ", ".join(
            f"{what} {theme.percent(share)} of {row}" for what, share, row in each
        )
    sums = named.group_by("what").agg(pl.sum("ns"))
    top = sums.sort("ns", "what", descending=[True, False])["what"][0]
    shares = named.filter(what=top).sort("order", "row")
    if named["row"].n_unique() == 1:
        figures = theme.percent(shares["share"][0])
    elif shares.height > _MOST_NAMED:
        figures = f"{theme.percents(shares['share'])}, by {rows}"
    else:
        figures = ", ".join(
            f"{row} {theme.percent(share)}"
            for row, share in shares.select("row", "share").iter_rows()
        )
    summed = " in sum" if tops["part"].n_unique() > 1 else ""
    top = top.replace("work of", "Work of", 1)
    return f"{top} is the largest part of the {time}{summed}: {figures}"


_MOST_NAMED = 3
"""Most bars that a title names."""

_COLUMNS = (
    *(
        "rank",
        "total_ns",
        "compute_ns",
        "exposed_communication_ns",
        "hidden_communication_ns",
        "exposed_copy_ns",
    ),
    "idle_ns",
)
PARTS: dict[str, str] = {
    "compute": theme.COMPUTE,
    "hidden communication": theme.HIDDEN,
    "exposed communication": theme.COMMUNICATION,
    "exposed waiting for ranks": theme.WAIT,
    "exposed transfer": theme.COMMUNICATION,
    "exposed transfer or waiting": theme.UNMATCHED,
    "exposed copy": theme.COPY,
    "idle": theme.IDLE,
}
"""Parts of a bar in order, and their colours; exposed communication is one part, or three."""

_ROW, _NAME_PX = 34, 76


@draw.chart_of("llmprof.analyze.overlap(trace)")
def overlap(
    frame: Trace | pl.DataFrame, *, work: str = "kernels and copies", title: str | None = None
) -> alt.VConcatChart:
    """Bars of each rank: compute alone, hidden communication, exposed communication, exposed
    copies, idle.

    The parts of a bar add up to its total. Steps of a rank are added up; a frame with phases has
    one panel for each. Each phase has its own time axis; all have the same unit.

    Parameters
    ----------
    frame : Trace or polars.DataFrame
        Rows of ``overlap(trace, waits=True)``, by rank and optionally by step or phase.
    work : {"kernels and copies", "operators"}
        What ran: events of a device, or operators of the host in their place.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or all totals are zero.

    Examples
    --------
    >>> chart = charts.overlap(analyze.overlap(trace, by=("rank",), waits=True))
    """
    frame = draw.chart_frame(frame, analyze.overlap, waits=True)
    draw.check_choice(work, _WORK, chart="overlap", option="work")
    draw.require(frame, _COLUMNS, chart="overlap")
    phase = pl.col("phase").fill_null("no phase") if "phase" in frame.columns else pl.lit("")
    columns = [*_COLUMNS[1:], *(column for column in EXPOSED if column in frame.columns)]
    sums = (
        frame.group_by("rank", phase=phase)
        .agg(pl.col(columns).sum())
        .filter(pl.col("total_ns") > 0)
    )
    if sums.is_empty():
        raise draw.nothing("overlap", "the totals are zero")
    unit = theme.time_unit(draw.float_of(sums["total_ns"].max()))
    parts = _parts(sums.sort("rank"))
    drawn = set(parts.filter(pl.col("ns") > 0)["part"]) | {"compute", "idle"}
    table = {name: fill for name, fill in PARTS.items() if name in drawn}
    parts = parts.filter(pl.col("part").is_in(list(table)))
    phases = theme.in_order(sums["phase"], theme.PHASES)
    plot, panels = theme.inner() - _NAME_PX, []
    for name in phases:
        rows = parts.filter(phase=name)
        axis = _WORK[work][0] if name == phases[-1] else None
        panel = theme.layered(*draw.stacked_bars(rows, table, width=plot, title=axis, unit=unit))
        panel = panel.properties(width=plot, height=_ROW * rows["row"].n_unique())
        panels.append(
            panel.properties(title=theme.panel_heading(theme.STEPS if name == "other" else name))
            if name
            else panel
        )
    notes = []
    if any(
        "communication" in part or "exposed" in part for part in table if part != "exposed copy"
    ):
        notes.append(
            "Communication is hidden while compute runs beside it, and exposed while it does not."
        )
    if "exposed waiting for ranks" in table:
        notes.append(
            "Exposed waiting is for the last rank of a collective, and the rest of it transfer."
        )
    if "exposed transfer or waiting" in table:
        notes.append(
            "Where the ranks of a collective could not be matched, its waiting is unknown."
        )
    if frame["exposed_copy_ns"].null_count() == frame.height:
        notes.append("Copies were not captured.")
    return theme.finish_chart(
        compose.vconcat(*panels, spacing=14), title or _overlap_headline(sums, frame), notes
    )


def _parts(sums: pl.DataFrame) -> pl.DataFrame:
    """The frame in long form: ``phase, row, part, ns``."""
    hidden = pl.col("hidden_communication_ns")
    exposed = {"exposed communication": "exposed_communication_ns"}
    if set(EXPOSED) <= set(sums.columns):
        exposed = dict(
            zip(
                ("exposed waiting for ranks", "exposed transfer", "exposed transfer or waiting"),
                EXPOSED,
                strict=True,
            )
        )
    wide = sums.select(
        "phase",
        (pl.col("compute_ns") - hidden).alias("compute"),
        hidden.alias("hidden communication"),
        *(pl.col(column).alias(name) for name, column in exposed.items()),
        pl.col("exposed_copy_ns").alias("exposed copy"),
        idle="idle_ns",
        row=pl.format("rank {}", "rank"),
    )
    names = [name for name in PARTS if name in wide.columns]
    return wide.unpivot(names, index=["phase", "row"], variable_name="part", value_name="ns")


def _overlap_headline(sums: pl.DataFrame, frame: pl.DataFrame) -> str:
    """Exposed communication and idle time, as the range over the ranks."""
    words = []
    columns = [("exposed_communication_ns", "exposed communication"), ("idle_ns", "idle")]
    if not draw.float_of(
        sums.select(pl.sum("exposed_communication_ns", "hidden_communication_ns")).sum_horizontal()[
            0
        ]
    ):
        columns[0] = ("compute_ns", "compute")
    if "exposed_wait_ns" in sums.columns and draw.float_of(sums["exposed_wait_ns"].sum()) > 0:
        columns.insert(1, ("exposed_wait_ns", "of it waiting"))
    if draw.float_of(sums["exposed_copy_ns"].sum()) > 0.1 * draw.float_of(sums["total_ns"].sum()):
        columns.insert(-1, ("exposed_copy_ns", "exposed copy"))
    by_rank = sums.group_by("rank").agg(
        pl.col([column for column, _ in (("total_ns", ""), *columns)]).sum()
    )
    for column, name in columns:
        shares = 100 * by_rank[column] / by_rank["total_ns"]
        words.append(f"{name} {theme.percents(shares)}")
    time = "time" if "step" not in frame.columns else "steps"
    whose = f"a rank's {time}" if by_rank.height > 1 else f"the {time} of rank {by_rank['rank'][0]}"
    return f"Of {whose}: {', '.join(words)}"
