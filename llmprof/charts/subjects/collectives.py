"""Charts of collectives: duration, waiting and transfer, by size and by rank."""

from __future__ import annotations

import altair as alt
import polars as pl

from llmprof import analyze
from llmprof.charts.base import compose, draw, theme
from llmprof.trace import Trace
from llmprof.units import format_bytes, format_ns

_TABLE = {"duration": theme.DURATION, "wait": theme.WAIT, "transfer": theme.COMMUNICATION}
_SPACE, _HEIGHT = 110, 170
_MAX_SIZES, _MEASURES = 8, ["duration", "transfer"]
_EDGES = (("start", "from"), ("end", "to"))


@draw.chart_of(
    "llmprof.analyze.collectives(trace)",
    "rank kind bytes dur_ns wait_ns transfer_ns",
)
def collectives(
    frame: Trace | pl.DataFrame, *, kind: str = "all_reduce", title: str | None = None
) -> alt.VConcatChart:
    """Three views of a collective: distribution, by size, and wait against transfer by rank.

    Calls that could not be matched over the ranks count only in the distribution of durations.

    Parameters
    ----------
    frame : Trace or polars.DataFrame
        What was recorded, or rows of ``analyze.collectives(trace)``.
    kind : str
        Kind of collective.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.VConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or there is no call of this kind.

    Examples
    --------
    >>> chart = charts.collectives(analyze.collectives(ranks))
    """
    frame = draw.chart_frame(frame, analyze.collectives)
    rows = frame.filter((pl.col("kind") == kind) & (pl.col("dur_ns") > 0))
    if rows.is_empty():
        others = ", ".join(frame["kind"].drop_nulls().unique().sort()) or "none"
        raise draw.nothing("collectives", f"no call of kind {kind} in the frame (kinds: {others})")
    matched = rows.drop_nulls(["wait_ns", "transfer_ns"])
    sized = rows.drop_nulls("bytes")
    panels = [*([_by_size(rows, sized)] if sized.height else []), _by_rank(rows, matched)]
    lower = theme.panel_rows(panels, 1 if theme.is_narrow() else 2, spacing=_SPACE)
    chart = compose.vconcat(_distributions(rows, matched), *lower, spacing=40)
    notes = [
        "Wait: from a rank's own start until the last rank has started the same call. Transfer: the"
        " rest of the call."
    ]
    if matched.is_empty():
        notes = [
            "Wait and transfer are unknown: no call could be matched over the ranks. Only durations"
            " are shown."
        ]
    elif matched.height < rows.height:
        notes.append(f"Both are known for {matched.height:,} of {rows.height:,} calls.")
    if sized.is_empty():
        notes.append("Bytes were not captured.")
    return theme.finish_chart(chart, title or _headline(rows, matched, kind), " ".join(notes))


def _half() -> int:
    """Width of one of two panels side by side."""
    whole = theme.inner() - 64
    return whole if theme.is_narrow() else (whole - _SPACE) // 2


def _headline(rows: pl.DataFrame, matched: pl.DataFrame, kind: str) -> str:
    name = (
        "Collectives of no known kind" if kind == "other" else kind.replace("_", "-").capitalize()
    )
    if matched.is_empty():
        return f"{name}: a call takes {format_ns(draw.float_of(rows['dur_ns'].median()))} (median)"
    wait, transfer = (
        draw.float_of(matched["wait_ns"].sum()),
        draw.float_of(matched["transfer_ns"].sum()),
    )
    median = format_ns(draw.float_of(matched["transfer_ns"].median()))
    share = theme.percent(100 * wait / max(1.0, wait + transfer))
    return f"{name}: {share} of its time is waiting for ranks, a transfer takes {median}"


def _distributions(rows: pl.DataFrame, matched: pl.DataFrame) -> alt.VConcatChart:
    times = [("dur_ns", "Duration of a call, waiting included", rows, theme.DURATION)]
    if matched["transfer_ns"].gt(0).any():
        times.append(("transfer_ns", "Transfer alone", matched, theme.COMMUNICATION))
    every = pl.concat([source.select(ns=column) for column, _, source, _ in times]).filter(
        pl.col("ns") > 0
    )
    unit = draw.log_unit(every["ns"])
    domain = draw.domain_of(draw.log_bins(every, "ns", unit))
    panels = []
    for column, words, source, fill in times:
        last = column == times[-1][0]
        x = draw.log_axis(
            domain,
            f"time of a call on a rank ({unit.symbol}, log scale)" if last else None,
            labels=last,
        )
        median = draw.float_of(source[column].median())
        tips = draw.tips(
            *((f"{end}:Q", f"{word} ({unit.symbol})", ",.4~r") for end, word in _EDGES),
            ("n:Q", "calls"),
        )
        y = alt.Y("n:Q", title="calls", axis=alt.Axis(tickCount=3, format=theme.NUMBER))
        bars = alt.Chart(draw.inline(draw.log_bins(source, column, unit)))
        bars = bars.mark_rect(color=fill, stroke=theme.PAPER, strokeWidth=0.5)
        bars = bars.encode(x=x, x2=alt.X2("end:Q"), y=y, y2=alt.Y2Datum(0), tooltip=tips)
        drawn = (
            theme.layered(bars, draw.rule(x, median / unit.ns))
            if median > 0
            else theme.layered(bars)
        )
        head = theme.panel_heading(f"{words}: median {format_ns(median)}")
        panels.append(drawn.properties(width=theme.inner() - 64, height=84, title=head))
    return compose.vconcat(*panels, spacing=8)


def _table(rows: pl.DataFrame) -> dict[str, str]:
    """Colours of what is known of the calls: durations alone where no call could be matched over
    the ranks.
    """
    split = rows.drop_nulls(["wait_ns", "transfer_ns"]).height > 0
    return _TABLE if split else {"duration": theme.DURATION}


def _by_size(rows: pl.DataFrame, sized: pl.DataFrame) -> alt.LayerChart:
    """Median and spread of durations and transfers, by bytes of the call."""
    share = (
        ""
        if sized.height == rows.height
        else f", known for {theme.percent(100 * sized.height / rows.height)}"
    )
    if sized["bytes"].n_unique() > _MAX_SIZES:
        sized = sized.with_columns(bytes=pl.lit(2.0).pow(pl.col("bytes").clip(1).log(2).floor()))
    data = pl.concat(
        [_spread(sized, "duration", "dur_ns"), _spread(sized, "transfer", "transfer_ns")]
    )
    data = data.sort("bytes", "measure")
    unit = theme.time_unit(draw.float_of(data["median"].median()))
    data = data.with_columns(
        pl.col("median", "low", "high") / unit.ns,
        size=pl.col("bytes").map_elements(format_bytes, return_dtype=pl.String),
        label=draw.duration("median"),
    )
    sizes = list(data["size"].unique(maintain_order=True))
    low, high = (
        draw.float_of(data["low"].min()) / 2.5,
        draw.float_of(data["high"].max()) * 1.5,
    )
    scale = theme.exact_scale(low, high, type="log")
    axis = theme.titled_axis(f"time ({unit.symbol}, log scale)", values=draw.log_ticks(low, high))
    sizes_axis = alt.Axis(title="size of the call", labelAngle=0, labelOverlap=True)
    beside_each_other = alt.Scale(domain=_MEASURES, paddingInner=0, paddingOuter=0.2)
    base = alt.Chart(draw.inline(data)).encode(
        x=alt.X("size:N", sort=None, scale=alt.Scale(domain=sizes), axis=sizes_axis),
        xOffset=alt.XOffset("measure:N", sort=None, scale=beside_each_other),
    )
    tips = draw.tips("size:N", "measure:N", ("label:N", "median"), "calls:Q")
    shade, y = (
        theme.colour_encoding("measure", _table(rows)),
        alt.Y("median:Q", scale=scale, axis=axis),
    )
    marks = [
        base.mark_rule(strokeWidth=2.5).encode(
            y=alt.Y("low:Q", scale=scale), y2=alt.Y2("high:Q"), color=shade, tooltip=tips
        ),
        base.mark_point(filled=True, size=90, opacity=1).encode(y=y, color=shade, tooltip=tips),
        theme.heading_mark(
            f"By size{share}: median" + ("" if theme.is_narrow() else ", 10th to 90th percentile")
        ),
    ]
    if len(sizes) <= 4:
        for measure, dy in zip(
            _MEASURES, (-7, 7), strict=True
        ):  # the duration is the longer: its text goes above
            text = base.transform_filter(alt.FieldEqualPredicate(field="measure", equal=measure))
            marks.append(
                text.mark_text(align="left", dx=9, dy=dy, color=theme.INK).encode(
                    y=y, text=alt.Text("label:N")
                )
            )
    return theme.layered(*marks).properties(width=_half(), height=_HEIGHT)


def _spread(rows: pl.DataFrame, name: str, column: str) -> pl.DataFrame:
    valid = rows.filter(pl.col(column) > 0)
    return valid.group_by("bytes").agg(
        measure=pl.lit(name),
        median=pl.col(column).median(),
        low=pl.col(column).quantile(0.1, "linear"),
        high=pl.col(column).quantile(0.9, "linear"),
        calls=pl.len(),
    )


def _by_rank(rows: pl.DataFrame, matched: pl.DataFrame) -> alt.LayerChart:
    """Sums of wait and transfer, a bar for each rank; of durations where the split is unknown."""
    split = matched.height > 0
    columns = {"wait": "wait_ns", "transfer": "transfer_ns"} if split else {"duration": "dur_ns"}
    source = matched if split else rows
    sums = source.group_by("rank").agg(
        pl.col(column).sum().alias(name) for name, column in columns.items()
    )
    named = sums.sort("rank").with_columns(row=pl.format("rank {}", "rank"))
    long = named.unpivot(list(columns), index="row", variable_name="part", value_name="ns")
    marks = draw.stacked_bars(
        long, _table(rows), width=_half(), title="time of all calls", inside=split
    )
    height = max(_HEIGHT, 26 * sums.height)
    return theme.layered(*marks, theme.heading_mark("By rank")).properties(
        width=_half(), height=height
    )
