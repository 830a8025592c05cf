"""Tiles: figures in large print, side by side."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from llmprof.charts._data import constant
from llmprof.charts._palette import INK, MUTED
from llmprof.charts._theme import layered

_HEIGHT, _GAP, _LARGE, _SMALL = 62, 10, 21, 12
_FILL = "#F4F6F8"


def tiles(figures: Sequence[tuple[str, str]], width: int) -> alt.LayerChart:
    """Figures as tiles of equal width.

    Parameters
    ----------
    figures : sequence of (str, str)
        What it is, and the figure.
    width : int
        Of all together (px).
    """
    each = (width + _GAP) / len(figures) - _GAP
    lefts = [i * (each + _GAP) for i in range(len(figures))]
    boxes, heads, values = [], [], []
    for left, (name, figure) in zip(lefts, figures, strict=True):
        boxes.append({"x": left, "end": left + each})
        heads.append({"x": left + 12, "text": name})
        values.append({"x": left + 12, "text": figure})
    x = alt.X("x:Q", scale=alt.Scale(domain=[0, width], nice=False), axis=None)
    box = alt.Chart(constant(*boxes)).mark_rect(color=_FILL, cornerRadius=5)
    head = alt.Chart(constant(*heads)).mark_text(align="left", baseline="middle", fontSize=_SMALL, color=MUTED)
    value = alt.Chart(constant(*values)).mark_text(
        align="left", baseline="middle", fontSize=_LARGE, fontWeight="bold", color=INK
    )
    return layered(
        box.encode(x=x, x2="end:Q", y=alt.value(0), y2=alt.value(_HEIGHT)),
        head.encode(x=x, y=alt.value(17), text="text:N"),
        value.encode(x=x, y=alt.value(42), text="text:N"),
    ).properties(width=width, height=_HEIGHT)
