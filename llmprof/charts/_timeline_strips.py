"""Strips above the lanes of a timeline: where each step and each layer was, and what is written on them."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from llmprof.charts._bars import fitting
from llmprof.charts._data import number
from llmprof.charts._palette import PHASES, ink_on
from llmprof.charts._theme import text_px
from llmprof.charts._timeline_layout import GAP, STRIP, Window

LAYERS = ("#C6CDD6", "#DFE4EA")
"""Greys that layers take in turn."""

_COLUMNS = ["label", "phase", "start", "end", "top", "bottom"]
UNLABELLED = 0.25
"""Share of a row of steps without room for their text from which they share one."""

NARROW = 3
"""Spans that are narrower than this in the median (px) are merged (steps) or left out (layers)."""


@dataclass(frozen=True, slots=True)
class Strip:
    """Spans (``rank, step, to_step, layer, phase, start, end, top, bottom, colour``) and the texts on them."""

    spans: pl.DataFrame
    texts: pl.DataFrame


def steps(frame: pl.DataFrame, heads: pl.DataFrame, window: Window) -> Strip:
    """Steps of each rank, coloured by phase.

    Steps in a row of one phase share a text where they have no room for their own; they are merged where they are
    too narrow to be told apart.
    """
    spans = _spans(frame, heads, window, ["step"], row=0).with_columns(to_step="step", layer=pl.lit(None, pl.Int32))
    run = (pl.col("phase") != pl.col("phase").shift()).fill_null(value=True).cum_sum().over("rank")
    spans = spans.with_columns(run=run, label=_own(spans, "step"))
    runs = spans.group_by("rank", "run", maintain_order=True).agg(
        pl.col("phase", "layer", "step", "start", "top", "bottom").first(),
        pl.col("end", "to_step").last(),
        unlabelled=pl.col("px").filter(pl.col("label").is_null()).sum() / pl.col("px").sum(),
        px=pl.col("px").sum(),
    )
    shared = runs.filter(pl.col("unlabelled") > UNLABELLED)
    columns = shared.select("step", "to_step", "phase", "px").iter_rows()
    labels = [fitting((f"steps {a} to {b} · {phase}", phase, f"{a}–{b}"), px, margin=4) for a, b, phase, px in columns]
    shared = shared.with_columns(label=pl.Series(labels, dtype=pl.String))
    alone = spans.join(shared.select("rank", "run"), on=["rank", "run"], how="anti")
    texts = pl.concat([alone.select(_COLUMNS), shared.select(_COLUMNS)]).drop_nulls("label")
    plates = _plates(shared.drop_nulls("label"), window)
    drawn = runs if number(spans["px"].median()) < NARROW else pl.concat([spans.select(plates.columns), plates])
    return Strip(_coloured(drawn, _phase_colour()), _coloured(texts, _phase_colour()))


def _plates(shared: pl.DataFrame, window: Window) -> pl.DataFrame:
    """Boxes behind the shared texts, so that no line between steps runs through them."""
    middle, half = (pl.col("start") + pl.col("end")) / 2, pl.col("text_px") * window.px_ns / window.unit.ns / 2
    sized = shared.with_columns(text_px=pl.Series([text_px(t) + 8 for t in shared["label"]], dtype=pl.Float64))
    placed = sized.with_columns(start=middle - half, end=middle + half)
    return placed.select("rank", "step", "to_step", "layer", "phase", "start", "end", "top", "bottom")


def layers(frame: pl.DataFrame, heads: pl.DataFrame, window: Window) -> Strip | None:
    """Layers of each step and rank in two greys in turn; nothing where they are too narrow."""
    spans = _spans(frame, heads, window, ["step", "layer"], row=1)
    if spans.is_empty() or number(spans["px"].median()) < NARROW:
        return None
    spans = spans.with_columns(to_step="step", label=_own(spans, "layer"))
    if spans["label"].null_count() > spans.height / 2:
        spans = spans.with_columns(label=pl.lit(None, pl.String))
    grey = pl.when(pl.col("layer") % 2 == 0).then(pl.lit(LAYERS[0])).otherwise(pl.lit(LAYERS[1]))
    drawn = _coloured(spans, grey)
    return Strip(drawn, drawn.drop_nulls("label"))


def _spans(frame: pl.DataFrame, heads: pl.DataFrame, window: Window, columns: list[str], *, row: int) -> pl.DataFrame:
    """Extent of each step, or of each layer of a step, on a rank."""
    found = frame.drop_nulls(columns).group_by("rank", *columns, maintain_order=True)
    spans = found.agg(pl.col("phase").first(), first=pl.col("from_ns").min(), last=pl.col("to_ns").max())
    spans = spans.join(heads.select("rank", head="top"), on="rank").sort("rank", "first", *columns)
    top = pl.col("head") + row * (STRIP + GAP)
    return spans.select(
        "rank",
        *columns,
        pl.col("phase").fill_null("other"),
        start=window.at(pl.col("first")),
        end=window.at(pl.col("last")),
        px=(pl.col("last") - pl.col("first")) / window.px_ns,
        top=top,
        bottom=top + STRIP,
    )


def _own(spans: pl.DataFrame, kind: str) -> pl.Series:
    """What a span has room for: ``step 3 · decode``, ``step 3`` or ``3``."""
    labels = []
    for name, phase, px in spans.select(kind, "phase", "px").iter_rows():
        texts = (f"{kind} {name}", f"{name}")
        labels.append(fitting((f"step {name} · {phase}", *texts) if kind == "step" else texts, px, margin=2))
    return pl.Series("label", labels, dtype=pl.String)


def _phase_colour() -> pl.Expr:
    return pl.col("phase").replace_strict(PHASES, default=PHASES["other"], return_dtype=pl.String)


def _coloured(spans: pl.DataFrame, fill: pl.Expr) -> pl.DataFrame:
    inks = {name: ink_on(name) for name in (*PHASES.values(), *LAYERS)}
    ink = pl.col("colour").replace_strict(inks, return_dtype=pl.String)
    return spans.with_columns(colour=fill).with_columns(ink=ink)
