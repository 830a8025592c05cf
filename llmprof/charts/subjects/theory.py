"""Charts of theory: structure and costs of a model, its roofline, least times over a range, and
measured ones.
"""

from __future__ import annotations

from typing import cast

import altair as alt
import polars as pl

from llmprof.charts.base import compose, draw, theme
from llmprof.charts.subjects.roofline import key, names_axis, roofline
from llmprof.theory import hardware
from llmprof.units import format_ns

BOUNDS = {
    "compute": theme.COMPUTE,
    "memory": "#E0A100",
    "communication": theme.COMMUNICATION,
    "none": theme.REST,
}
"""Colours of what bounds an operator."""

_BOX, _STEP, _HALF = 34, 46, 200
_TITLES = {"prefill": "Prefill", "decode": "Decode step"}


@draw.chart_of(
    "llmprof.theory.profile(model, device).components",
    "phase component layers flops memory_bytes message_bytes latency_s bound",
)
def theory_structure(components: pl.DataFrame, *, title: str | None = None) -> alt.LayerChart:
    """The operators of a model in the order in which they run, with FLOPs, bytes and least time of
    each.

    Each phase has a column; the colour of a node says what bounds it. Figures are of all its layers
    together on one rank, and the frame encloses the nodes that every layer repeats.

    Parameters
    ----------
    components : polars.DataFrame
        Rows of ``theory.profile(model, device).components``.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.LayerChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or there are no rows.
    """
    phases = components["phase"].unique(maintain_order=True).to_list()
    width = theme.inner()
    column = width / len(phases)
    marks: list[alt.Chart] = []
    tallest = 0
    for n, phase in enumerate(phases):
        nodes = _merged(components.filter(phase=phase))
        left = n * column
        marks += _column(nodes, left, str(phase))
        tallest = max(tallest, nodes.height)
    chart = theme.layered(*marks, _key(width)).properties(
        width=width, height=(tallest + 1) * _STEP + 20
    )
    note = (
        "Least time of all layers of a node on one rank; bytes that have to cross the device"
        " memory. "
    )
    return theme.finish_chart(
        chart, title or _headline(components), f"{note}In the frame: repeated in every layer."
    )


def _merged(rows: pl.DataFrame) -> pl.DataFrame:
    """Nodes in order; nodes that several kinds of layers share are merged, and so are the
    collectives of a layer.
    """
    order = pl.int_range(pl.len())
    sums = pl.sum("layers", "flops", "memory_bytes", "message_bytes", "latency_s")
    nodes = rows.with_columns(order=order, inside=pl.col("layers") > 1).with_columns(
        occurrence=pl.int_range(pl.len()).over("component", "layers")
    )
    kinds = nodes.filter("inside")["layers"].n_unique()
    keys = ["component", "inside"] if kinds > 1 else ["component", "inside", "occurrence"]
    merged = nodes.group_by(keys, maintain_order=True).agg(
        sums, pl.min("order"), bound=pl.col("bound").sort_by("latency_s").last()
    )
    first, last = (merged.filter("inside")["order"].min(), merged.filter("inside")["order"].max())
    if first is None:
        return merged.sort("order")
    inside = pl.col("inside") | pl.col("order").is_between(first, last)
    return merged.sort("order").with_columns(inside=inside)


def _column(nodes: pl.DataFrame, left: float, phase: str) -> list[alt.Chart]:
    """Boxes of a phase, from top to bottom, with arrows between them."""
    top = pl.int_range(pl.len()) * _STEP + _STEP
    total = float(nodes["latency_s"].sum()) or 1.0
    data = nodes.with_columns(
        y=top,
        y2=top + _BOX,
        middle=top + _BOX / 2,
        name=pl.when(pl.col("layers") > 1)
        .then(pl.col("component") + " × " + pl.col("layers").cast(pl.String))
        .otherwise("component"),
        time=(pl.col("latency_s") * 1e9).map_elements(format_ns, return_dtype=pl.String),
        share=(100 * pl.col("latency_s") / total).map_elements(
            theme.percent, return_dtype=pl.String
        ),
        work=pl.struct("flops", "memory_bytes", "message_bytes").map_elements(
            _work, return_dtype=pl.String
        ),
    )
    marks = [
        _text(pl.DataFrame({"label": [_TITLES.get(phase, phase)], "y": [12]}), left, bold=True)
    ]
    inside = data.filter("inside")
    if inside.height:
        frame = draw.constant({})
        upper, lower = float(inside["y"].min()) - 6, float(inside["y2"].max()) + 6  # type: ignore[arg-type]
        rect = alt.Chart(frame).mark_rect(
            fill="#F4F6F8", stroke="#CBD2D9", strokeDash=[4, 3], cornerRadius=6
        )
        marks.append(
            rect.encode(
                x=alt.XValue(left),
                x2=alt.X2Value(left + 412),
                y=alt.YValue(upper),
                y2=alt.Y2Value(lower),
            )
        )
    arrows = data.select(y="y2", y2=pl.col("y").shift(-1)).drop_nulls()
    line = alt.Chart(draw.inline(arrows)).mark_rule(color=theme.MUTED, strokeWidth=1.2)
    middle = alt.XValue(left + 8 + _HALF / 2)
    scale = alt.Scale(domain=[0, 1], range=[0, 1])
    marks.append(line.encode(x=middle, y=alt.Y("y:Q", scale=scale, axis=None), y2=alt.Y2("y2:Q")))
    for (bound,), group in data.group_by("bound", maintain_order=True):
        shade = BOUNDS.get(str(bound), theme.REST)
        tips = draw.tips("component:N", "work:N", "time:N", "share:N", "bound:N")
        box = alt.Chart(draw.inline(group)).mark_rect(fill=shade, cornerRadius=5)
        x, x2, y = (
            alt.XValue(left + 8),
            alt.X2Value(left + 8 + _HALF),
            alt.Y("y:Q", scale=scale, axis=None),
        )
        marks.append(box.encode(x=x, x2=x2, y=y, y2=alt.Y2("y2:Q"), tooltip=tips))
        marks.append(
            _text(
                group.select(label="name", y="middle"),
                left + 18,
                ink=theme.ink_on(shade),
                bold=True,
            )
        )
    marks.append(
        _text(data.select(label="work", y=pl.col("middle") - 8), left + 220, ink=theme.MUTED)
    )
    timed = data.filter(pl.col("latency_s") > 0)
    caption = pl.concat_str("time", pl.lit("  ("), "share", pl.lit(")"))
    marks.append(_text(timed.select(label=caption, y=pl.col("middle") + 8), left + 220))
    return marks


def _text(rows: pl.DataFrame, x: float, *, ink: str = theme.INK, bold: bool = False) -> alt.Chart:
    mark = alt.Chart(draw.inline(rows)).mark_text(
        align="left",
        baseline="middle",
        fontSize=theme.TEXT_PX,
        color=ink,
        fontWeight="bold" if bold else "normal",
    )
    scale = alt.Scale(domain=[0, 1], range=[0, 1])
    drawn: alt.Chart = mark.encode(
        x=alt.XValue(x), y=alt.Y("y:Q", scale=scale, axis=None), text=alt.Text("label:N")
    )
    return drawn


def _key(width: float) -> alt.LayerChart:
    """Legend of the colours, at the upper right."""
    marks: list[alt.Chart] = []
    x = width - 420.0
    for name, shade in BOUNDS.items():
        label = {"none": "no least time"}.get(
            name, f"bound by {name}" if name == "compute" else name
        )
        marks += key(x, -6, shade, label)
        x += 34 + 6.6 * len(label)
    return theme.layered(*marks)


def _work(row: dict[str, float]) -> str:
    parts = [f"{_amount(row['flops'])}FLOP"] if row["flops"] else []
    parts += [f"{_amount(row['memory_bytes'])}B"] if row["memory_bytes"] else []
    parts += [f"messages of {_amount(row['message_bytes'])}B"] if row["message_bytes"] else []
    return ", ".join(parts) or "stays in the cache"


def _amount(value: float) -> str:
    """A number with a decimal prefix for a unit to follow: ``4.61 G``; it always has a space."""
    for scale, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:,.3g} {prefix}"
    return f"{value:,.3g} "


def _headline(components: pl.DataFrame) -> str:
    sentences = []
    for (phase,), rows in components.group_by("phase", maintain_order=True):
        by_bound = (
            rows.group_by("bound").agg(pl.sum("latency_s")).sort("latency_s", descending=True)
        )
        total = float(rows["latency_s"].sum())
        share = theme.percent(100 * float(by_bound["latency_s"][0]) / total) if total else "0 %"
        sentences.append(
            f"{phase} takes at least {format_ns(total * 1e9)}, {share} of it bound by"
            f" {by_bound['bound'][0]}"
        )
    return "; ".join(sentences).capitalize()


_SPACE, _ROW = 30, 22
_LEAST = 0.005
"""Share below which a stage is merged into the rest."""


@draw.chart_of(
    "llmprof.theory.profile(model, device).components", "phase stage flops weight_bytes latency_s"
)
def theory_shares(components: pl.DataFrame, *, title: str | None = None) -> alt.HConcatChart:
    """Shares of the stages in weights read, FLOPs and least time, for prefill and decode.

    A panel for each quantity, with a bar for each stage and phase.

    Parameters
    ----------
    components : polars.DataFrame
        Rows of ``theory.profile(model, device).components``.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.HConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or there are no rows.
    """
    panels = {
        "weight_bytes": ("weights read", "B"),
        "flops": ("FLOPs", "FLOP"),
        "latency_s": ("least time", "s"),
    }
    sums = components.group_by("phase", "stage", maintain_order=True).agg(
        pl.col(list(panels)).sum()
    )
    large = pl.lit(False)
    for name in panels:
        large |= (pl.col(name) > _LEAST * pl.col(name).sum().over("phase")).fill_null(False)
    stages = sums.filter(large)["stage"].unique(maintain_order=True).to_list()
    table = theme.colours("stage", stages)
    order = list(table)
    plot = (theme.inner() - 96 - 2 * _SPACE) // 3
    drawn = []
    for n, (name, (label, unit)) in enumerate(panels.items()):
        rows = sums.filter(pl.col("stage").is_in(order)).select("phase", "stage", value=name)
        whole = pl.sum("value").over("phase")
        rows = rows.with_columns(share=(100 * pl.col("value") / whole).fill_nan(0.0))
        rows = rows.with_columns(
            label=pl.col("share").map_elements(theme.percent, return_dtype=pl.String),
            amount=pl.Series(
                [f"{_amount(value)}{unit}" for value in rows["value"]], dtype=pl.String
            ),
        )
        drawn.append(_bars(rows, order, table, plot, label, names=n == 0))
    chart: alt.HConcatChart = compose.hconcat(*drawn, spacing=_SPACE).resolve_scale(color="shared")
    most = (
        sums.filter(pl.col("phase") == sums["phase"][-1])
        .sort("latency_s", descending=True)
        .row(0, named=True)
    )
    total = draw.float_of(sums.filter(pl.col("phase") == sums["phase"][-1])["latency_s"].sum())
    sentence = (
        f"{most['stage']} takes {theme.percent(100 * most['latency_s'] / total)} of the least time"
        f" of {most['phase']}"
    )
    notes = (
        f"Dark: {sums['phase'][0]}; light: {sums['phase'][-1]}. Stages of less than 0.5 % are left"
        " out."
    )
    return theme.finish_chart(chart, title or sentence, f"{notes} Shares of what one rank does.")


def _bars(
    rows: pl.DataFrame,
    order: list[str],
    table: dict[str, str],
    width: float,
    label: str,
    *,
    names: bool,
) -> alt.LayerChart:
    phases = rows["phase"].unique(maintain_order=True).to_list()
    y = names_axis("stage", order)
    y["axis"]["labels"] = names
    top = max(draw.float_of(rows["share"].max()), 1.0)
    x = alt.X(
        "share:Q",
        scale=alt.Scale(domain=[0, top * 1.25]),
        axis=theme.titled_axis(f"{label} (%)", tickCount=4),
    )
    tips = draw.tips("stage:N", "phase:N", "amount:N", "label:N")
    shade = alt.Color(
        "stage:N", scale=alt.Scale(domain=order, range=list(table.values())), legend=None
    )
    marks: list[alt.Chart] = []
    for n, phase in enumerate(phases):
        some = draw.inline(rows.filter(phase=phase))
        # moved by the mark: an offset channel would write names into an expression
        place = (n - (len(phases) - 1) / 2) * _ROW / 2
        opacity = 1.0 if n == 0 else 0.55
        bar = alt.Chart(some).mark_bar(size=_ROW / 2 - 1, yOffset=place, opacity=opacity)
        marks.append(bar.encode(x=x, y=y, color=shade, tooltip=tips))
        text = alt.Chart(some).mark_text(
            align="left", baseline="middle", dx=4, dy=place, fontSize=theme.TEXT_PX, color=theme.INK
        )
        marks.append(text.encode(x=x, y=y, text=alt.Text("label:N")))
    height = (_ROW + 6) * len(order)
    return theme.layered(*marks).properties(
        width=width, height=height, title=theme.panel_heading(label)
    )


@draw.chart_of(
    "llmprof.theory.profile(model, device).parameter_table",
    "component stage parameters active_parameters",
)
def theory_parameters(parameters: pl.DataFrame, *, title: str | None = None) -> alt.LayerChart:
    """Parameters of each part of a model.

    Parameters
    ----------
    parameters : polars.DataFrame
        Rows of ``theory.profile(model, device).parameter_table``.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.LayerChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or there are no rows.
    """
    rows = parameters.group_by("component", "stage", maintain_order=True).agg(
        pl.sum("parameters", "active_parameters")
    )
    rows = rows.sort("parameters", descending=True)
    total, used = (
        draw.float_of(rows["parameters"].sum()),
        draw.float_of(rows["active_parameters"].sum()),
    )
    labels = [f"{_count(n)} ({theme.percent(100 * n / total)})" for n in rows["parameters"]]
    rows = rows.with_columns(
        label=pl.Series(labels, dtype=pl.String),
        value=pl.col("parameters") / 1e9,
        active=pl.col("active_parameters") / 1e9,
    )
    table = theme.colours("stage", rows["stage"].unique().to_list())
    order = rows["component"].unique(maintain_order=True).to_list()
    y = names_axis("component", order)
    scale = alt.Scale(domain=[0, draw.float_of(rows["value"].max()) * 1.2])
    x = alt.X("value:Q", scale=scale, axis=theme.titled_axis("parameters (billions)"))
    shade = alt.Color("stage:N", scale=theme.shades(table), legend=None)
    tips = draw.tips("component:N", "stage:N", "label:N")
    bars = alt.Chart(draw.inline(rows)).mark_bar().encode(x=x, y=y, color=shade, tooltip=tips)
    chart = theme.layered(bars, draw.behind(rows, x, y)).properties(
        width=theme.inner() - 130, height=26 * len(order)
    )
    sentence = f"{_count(total)} parameters"
    if used < total * 0.999:
        sentence += f", of which a token goes through {_count(used)}"
    return theme.finish_chart(
        chart, title or sentence, "Weights and biases of all layers together."
    )


def _count(number: float) -> str:
    """A count of parameters for people: ``30.5 billion``."""
    for scale, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if number >= scale:
            return f"{number / scale:,.3g} {word}"
    return f"{number:,.0f}"


@draw.chart_of(
    "llmprof.theory.profile(model, device).components",
    "phase component stage flops memory_bytes latency_s bound",
)
def theory_roofline(
    components: pl.DataFrame,
    device: str | hardware.Device,
    *,
    dtype: str = "bf16",
    title: str | None = None,
) -> alt.LayerChart:
    """Operators of a model under the roofs of a device, each at the rate that its least time
    allows.

    A point for each operator with FLOPs and phase. The intensity counts the bytes that have to
    cross the device memory; operators without such bytes have no place.

    Parameters
    ----------
    components : polars.DataFrame
        Rows of ``theory.profile(model, device).components``.
    device : str or Device
        Whose roofs.
    dtype : str
        Type of number of the products.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.LayerChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or no operator has FLOPs and bytes.
    """
    machine = hardware.device(device)
    peak = machine.flop_per_s.get(dtype)
    band = machine.memory_bytes_per_s
    rows = components.filter(
        (pl.col("flops") > 0) & (pl.col("memory_bytes") > 0) & (pl.col("latency_s") > 0)
    )
    if rows.is_empty() or not peak or not band:
        raise draw.nothing("theory_roofline", "no operator has FLOPs and bytes under known roofs")
    intensity = pl.col("flops") / pl.col("memory_bytes")
    frame = rows.with_columns(intensity=intensity).select(
        *("stage", "intensity"),
        bound_by="bound",
        kernel_name=pl.concat_str("component", pl.lit(" ("), "phase", pl.lit(")")),
        dur_ns=pl.col("latency_s") * 1e9,
        dtype=pl.lit(dtype),
        flop_per_s=pl.col("flops") / pl.col("latency_s"),
        bound_flop_per_s=pl.min_horizontal(pl.lit(peak), pl.col("intensity") * band),
        bound_share=pl.lit(1.0),
    )
    longest = frame.sort("dur_ns", descending=True).row(0, named=True)
    headline = (
        title
        or f"{longest['kernel_name']} takes the most time, and is bound by {longest['bound_by']}"
    )
    chart = cast("alt.LayerChart", roofline(frame, peaks=machine, title=headline))
    return theme.finish_chart(
        chart,
        headline,
        "A point is an operator over all layers on a rank; its area is its least time.",
    )


OVER = {
    "batch_size": "requests (log scale)",
    "seq_len": "prompt tokens (log scale)",
    "generate_len": "output tokens (log scale)",
    "tp_size": "tensor-parallel ranks (log scale)",
}
KINDS = {"least time": theme.COMPUTE, "predicted": "#009E73", "measured": theme.COMMUNICATION}
_APART, _HEIGHT = 40, 240


@draw.chart_of("llmprof.theory.sweep(model, device)", "over value prefill_s decode_s tokens_per_s")
def theory_curves(
    sweep: pl.DataFrame, *, measured: pl.DataFrame | None = None, title: str | None = None
) -> alt.HConcatChart:
    """Least prefill and decode times and the highest throughput over a range.

    Logarithmic axes. One line is the least time, one the predicted times (no bounds); points are
    measured.

    Parameters
    ----------
    sweep : polars.DataFrame
        ``theory.sweep(model, device)``; predicted times are drawn where it has them.
    measured : polars.DataFrame, optional
        ``value`` and any of ``prefill_s, decode_s, tokens_per_s``: points of a trace or run.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.HConcatChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or there are no rows.
    """
    over = OVER.get(str(sweep["over"][0]), "value (log scale)")
    labels = {
        "prefill_s": "first token",
        "decode_s": "decode step",
        "tokens_per_s": "output tokens a second",
    }
    panels = [
        _panel(_long(sweep, measured, column), label, over, time=column != "tokens_per_s")
        for column, label in labels.items()
    ]
    low, high = (format_ns(1e9 * draw.float_of(sweep["decode_s"][at])) for at in (0, -1))
    first, last = int(sweep["value"][0]), int(sweep["value"][-1])
    what = over.removesuffix(" (log scale)")
    sentence = f"A decode step takes at least {low} at {first:,} and {high} at {last:,} {what}"
    notes = "Blue: least time at the device's stated peaks."
    if "predicted_decode_s" in sweep.columns and sweep["predicted_decode_s"].is_not_null().any():
        notes += " Green: predicted by a calibration, no bound."
    notes += " Orange points: measured." if measured is not None and measured.height else ""
    return theme.finish_chart(compose.hconcat(*panels, spacing=_APART), title or sentence, notes)


def _long(sweep: pl.DataFrame, measured: pl.DataFrame | None, column: str) -> pl.DataFrame:
    """``value, y, kind`` of one quantity."""
    parts = [sweep.select("value", y=pl.col(column).cast(pl.Float64), kind=pl.lit("least time"))]
    predicted_column = f"predicted_{column}"
    if (
        column == "tokens_per_s"
        and "predicted_decode_s" in sweep.columns
        and "batch_size" in sweep.columns
    ):
        made = pl.col("batch_size") / pl.col("predicted_decode_s")
        parts.append(sweep.select("value", y=made, kind=pl.lit("predicted")))
    elif predicted_column in sweep.columns:
        parts.append(
            sweep.select(
                "value", y=pl.col(predicted_column).cast(pl.Float64), kind=pl.lit("predicted")
            )
        )
    if measured is not None and column in measured.columns:
        parts.append(
            measured.select(
                pl.col("value").cast(pl.Int64),
                y=pl.col(column).cast(pl.Float64),
                kind=pl.lit("measured"),
            )
        )
    return pl.concat(parts).drop_nulls("y").filter(pl.col("y") > 0)


def _panel(rows: pl.DataFrame, label: str, over: str, *, time: bool) -> alt.LayerChart:
    width = (theme.inner() - 2 * _APART) // 3 - 46
    if time:
        unit = theme.time_unit(1e9 * draw.float_of(rows["y"].max()))
        rows = rows.with_columns(
            y=pl.col("y") * 1e9 / unit.ns,
            said=(pl.col("y") * 1e9).map_elements(format_ns, return_dtype=pl.String),
        )
        axis = f"{unit.symbol} (log scale)"
    else:
        rows = rows.with_columns(
            said=pl.col("y").map_elements(lambda v: f"{v:,.0f}", return_dtype=pl.String)
        )
        axis = "tokens/s (log scale)"
    ticks = rows["value"].unique().sort().to_list()
    few = [tick for n, tick in enumerate(ticks) if n % (1 + (len(ticks) - 1) // 5) == 0]
    powers = alt.Scale(type="log", base=2, nice=False)
    x = alt.X("value:Q", scale=powers, axis=theme.titled_axis(over, values=few, grid=False))
    y = alt.Y(
        "y:Q", scale=alt.Scale(type="log", nice=True), axis=theme.titled_axis(axis, tickCount=4)
    )
    tips = draw.tips("kind:N", ("value:Q", over), ("said:N", label))
    marks: list[alt.Chart] = []
    for kind, shade in KINDS.items():
        some = rows.filter(kind=kind)
        if some.is_empty():
            continue
        base = alt.Chart(draw.inline(some))
        if kind != "measured":
            dash = [1, 0] if kind == "least time" else [5, 3]
            marks.append(
                base.mark_line(color=shade, strokeWidth=2, strokeDash=dash).encode(x=x, y=y)
            )
        shape = "circle" if kind != "measured" else "diamond"
        size = 30 if kind != "measured" else 80
        point = base.mark_point(filled=True, opacity=1, color=shade, shape=shape, size=size)
        marks.append(point.encode(x=x, y=y, tooltip=tips))
    return theme.layered(*marks).properties(
        width=width, height=_HEIGHT, title=theme.panel_heading(label)
    )


@draw.chart_of("llmprof.theory.sweep(model, device)")
def theory_memory(sweep: pl.DataFrame, *, title: str | None = None) -> alt.LayerChart:
    """Memory of a rank over a range: weights, KV cache, activations, and the device's memory.

    Parameters
    ----------
    sweep : polars.DataFrame
        Rows of ``theory.sweep(model, device)``.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.LayerChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or there are no rows.
    """
    parts = {
        "weights_bytes": "weights",
        "kv_cache_bytes": "KV cache",
        "activations_bytes": "activations",
    }
    draw.require(sweep, ["over", "value", "device_bytes", *parts], chart="theory_memory")
    table = dict(
        zip(
            parts.values(),
            map(theme.STAGES.__getitem__, ("gate_up_proj", "attention", "norm")),
            strict=True,
        )
    )
    rows = (
        sweep.sort("value")
        .select("value", *parts)
        .unpivot(index="value", variable_name="part", value_name="bytes")
    )
    rows = rows.with_columns(
        part=pl.col("part").replace_strict(parts),
        gb=pl.col("bytes") / 1e9,
        at=pl.col("value").cast(pl.String),
    )
    end = pl.col("gb").cum_sum().over("value")
    order = {name: n for n, name in enumerate(table)}
    rows = rows.sort(
        "value", pl.col("part").replace_strict(order, return_dtype=pl.Int64)
    ).with_columns(start=end - pl.col("gb"), end=end)
    over = OVER.get(str(sweep["over"][0]), "value").removesuffix(" (log scale)")
    names = rows["at"].unique(maintain_order=True).to_list()
    x = alt.X(
        "at:N",
        sort=None,
        scale=alt.Scale(domain=names),
        axis=alt.Axis(title=over, labelAngle=0, ticks=False),
    )
    limit = sweep["device_bytes"][0]
    top = max(draw.float_of(rows["end"].max()), draw.float_of(limit) / 1e9 if limit else 0.0)
    y = alt.Y(
        "start:Q", scale=alt.Scale(domain=[0, top * 1.08]), axis=theme.titled_axis("GB on a rank")
    )
    legend = alt.Legend(title=None, orient="top", direction="horizontal", symbolType="square")
    shade = alt.Color("part:N", scale=theme.shades(table), sort=None, legend=legend)
    tips = draw.tips("part:N", ("at:N", over), ("gb:Q", "GB", ",.2f"))
    bars = (
        alt.Chart(draw.inline(rows))
        .mark_bar()
        .encode(x=x, y=y, y2=alt.Y2("end:Q"), color=shade, tooltip=tips)
    )
    marks = [bars]
    fit = (
        sweep.filter(pl.col("fits").fill_null(False)) if "fits" in sweep.columns else sweep.clear()
    )
    if limit:
        line = pl.DataFrame(
            {
                "limit": [draw.float_of(limit) / 1e9],
                "label": [f"the device has {draw.float_of(limit) / 1e9:,.0f} GB"],
            }
        )
        level = alt.Y("limit:Q", scale=alt.Scale(domain=[0, top * 1.08]))
        marks.append(
            alt.Chart(draw.inline(line))
            .mark_rule(color=theme.INK, strokeWidth=1.5, strokeDash=[6, 4])
            .encode(y=level)
        )
        text = alt.Chart(draw.inline(line)).mark_text(
            align="left", baseline="bottom", dy=-4, fontSize=theme.TEXT_PX, color=theme.MUTED
        )
        marks.append(text.encode(x=alt.XValue(4), y=level, text=alt.Text("label:N")))
    sentence = "Memory of a rank"
    if limit and fit.height:
        most = fit.sort("value").row(-1, named=True)
        sentence = f"{int(most['value']):,} {over} is the most drawn here that fits"
    elif limit:
        sentence = "Nothing drawn here fits the device"
    chart = theme.layered(*marks).properties(width=theme.inner() - 70, height=300)
    note = "Cache of whole requests to their ends; activations of a step of at most 16,384 tokens."
    return theme.finish_chart(chart, title or sentence, note)


@draw.chart_of(
    "llmprof.theory.calibrated(device).predict(observations)",
    "model kind requests context measured_s predicted_s bound_s",
)
def predicted(frame: pl.DataFrame, *, title: str | None = None) -> alt.LayerChart:
    """Predicted against measured times of a calibration, with the bound of each.

    Logarithmic axes. On the line, prediction and measurement agree; the band is 25 %.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of ``theory.calibrated(device).predict(observations)``.
    title : str, optional
        Title of the chart; by default it says what is shown.

    Returns
    -------
    altair.LayerChart
        900 px wide.

    Raises
    ------
    AnalysisError
        A column is missing, or there are no rows.
    """
    rows = frame.select(
        *("model", "kind", "requests", "context"),
        measured=pl.col("measured_s") * 1e3,
        predicted=pl.col("predicted_s") * 1e3,
        bound=pl.col("bound_s") * 1e3,
        error=100 * (pl.col("predicted_s") / pl.col("measured_s") - 1),
    )
    low = 0.7 * min(draw.float_of(rows["measured"].min()), draw.float_of(rows["predicted"].min()))
    high = 1.4 * max(draw.float_of(rows["measured"].max()), draw.float_of(rows["predicted"].max()))
    scale = theme.exact_scale(low, high, type="log")
    x = alt.X(
        "measured:Q", scale=scale, axis=theme.titled_axis("measured (ms, log scale)", tickCount=6)
    )
    y = alt.Y(
        "predicted:Q", scale=scale, axis=theme.titled_axis("predicted (ms, log scale)", tickCount=6)
    )
    ends = pl.DataFrame({"measured": [low, high]}).with_columns(
        predicted="measured", under=pl.col("measured") * 0.75, over=(pl.col("measured") * 1.25)
    )
    base = alt.Chart(draw.inline(ends))
    band = base.mark_area(color="#EDF0F3", clip=True).encode(
        x=x, y=alt.Y("under:Q", scale=scale), y2=alt.Y2("over:Q")
    )
    line = base.mark_line(color=theme.MUTED, strokeWidth=1).encode(x=x, y=y)
    models = rows["model"].unique().sort().to_list()
    shades = [
        "#0072B2",
        "#D55E00",
        "#009E73",
        "#CC79A7",
        "#8B6F47",
        "#56B4E9",
        "#332288",
        "#999933",
        "#B2182B",
    ]
    colour = alt.Color(
        "model:N",
        scale=alt.Scale(domain=models, range=[shades[n % len(shades)] for n in range(len(models))]),
        legend=alt.Legend(
            title=None, orient="top", direction="horizontal", symbolType="circle", columns=5
        ),
    )
    shape = alt.Shape(
        "kind:N",
        scale=alt.Scale(
            domain=["decode", "prefill", "stage"], range=["circle", "square", "triangle-up"]
        ),
        legend=alt.Legend(title=None, orient="top", direction="horizontal"),
    )
    tips = draw.tips("model:N", "kind:N", "requests:Q", "context:Q")
    tips += draw.tips(
        ("measured:Q", None, ",.3f"), ("predicted:Q", None, ",.3f"), ("bound:Q", None, ",.3f")
    )
    tips.append(alt.Tooltip("error:Q", format="+.1f", title="error (%)"))
    points = alt.Chart(draw.inline(rows)).mark_point(
        filled=True, size=70, opacity=0.85, stroke=theme.PAPER, strokeWidth=0.7
    )
    drawn = points.encode(x=x, y=y, color=colour, shape=shape, tooltip=tips)
    chart = theme.layered(band, line, drawn).properties(width=theme.inner() - 70, height=430)
    errors = rows["error"].abs()
    middle, worst = (
        theme.percent(draw.float_of(errors.median())),
        theme.percent(draw.float_of(errors.max())),
    )
    sentence = f"Predictions are off by {middle} in the median, {worst} at worst"
    notes = "A point is a measured step. The band is 25 % to both sides. Predictions are no bounds."
    return theme.finish_chart(chart, title or sentence, notes)
