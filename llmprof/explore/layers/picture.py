"""Picture of the heat map for where no kernel runs: drawn from its cells at once, since the
widget waits for it.
"""

import base64
import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import vl_convert as vlc
from numpy.typing import NDArray

from llmprof.charts.base.dark import on_any
from llmprof.charts.base.theme import INK, MISSING, MUTED, PAPER, PHASES, RULE, ink_on
from llmprof.explore.base.widget import png_of
from llmprof.units import format_ns

WIDTH: Final = 1000
MOST_RANKS: Final = 8
"""Most ranks in a picture, the first ones."""

FEW: Final = 20_000
"""Most cells of a picture with larger pixels."""

LEFT, HEAD, FOOT, STRIP, TALL, GAP = 40, 44, 34, 18, 300, 30
"""Room left of the cells, above and below them, height of the strip of phases and of all cells,
between panels (px).
"""

# viridis (van der Walt and Smith) from bright to dark, and blue - white - red for gaps, as the
# widget has them
RAMP: Final = (
    (253, 231, 37),
    (173, 220, 48),
    (94, 201, 98),
    (40, 174, 128),
    (33, 145, 140),
    (44, 114, 142),
    (59, 82, 139),
    (71, 45, 123),
    (68, 1, 84),
)
GAPS: Final = (
    (33, 102, 172),
    (103, 169, 207),
    (209, 229, 240),
    (247, 247, 247),
    (253, 219, 199),
    (239, 138, 98),
    (178, 24, 43),
)

_FONT: Final = 'font-family="Liberation Sans, Arial, sans-serif" font-size="12"'


Scales: TypeAlias = "dict[str | None, dict[str, Any]]"
"""Scale of colours of each phase."""


@dataclass(frozen=True)
class CellsPanel:
    """Cells of one rank: first step and phase of each column, the layers, and values by both
    (ns).
    """

    rank: int
    columns: Sequence[tuple[int, str | None]]
    layers: Sequence[int]
    values: NDArray[np.float32]


def cells_picture(
    panels: Sequence[CellsPanel], scales: Scales, title: str, notes: Sequence[str]
) -> bytes:
    """PNG image of the cells of some ranks, two beside each other."""
    few = sum(panel.values.size for panel in panels) <= FEW
    return vlc.svg_to_png(on_any(_svg(panels, scales, title, notes)), scale=1.5 if few else 1)


def _svg(panels: Sequence[CellsPanel], scales: Scales, title: str, notes: Sequence[str]) -> str:
    """The picture as SVG; parameters as of :func:`cells_picture`."""
    across = min(2, len(panels))
    wide = (WIDTH - GAP * (across - 1)) // across
    parts = [_text(8, 20, title, ink=INK, bold=True), _text(8, 38, " ".join(notes))]
    y = 52
    for phase, scale in scales.items():
        parts += _key(phase, scale, y)
        y += 18
    for first in range(0, len(panels), across):
        beside = panels[first : first + across]
        for i, panel in enumerate(beside):
            parts += _panel(panel, scales, i * (wide + GAP), y, wide)
        y += HEAD + max(_row(panel) * len(panel.layers) for panel in beside) + FOOT
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH}'
        f' {y}">'
    )
    return f'{head}<rect width="{WIDTH}" height="{y}" fill="{PAPER}"/>{"".join(parts)}</svg>'


def _colours(values: NDArray[np.float32], scale: dict[str, Any]) -> NDArray[np.uint8]:
    """Red, green and blue (0 to 255) of values (ns) on a scale; grey where there is no value."""
    low, high = scale["low"], scale["high"]
    if high <= low:
        share = np.full(values.shape, 0.5)
    elif scale["log"]:
        share = np.log(np.maximum(values, low) / low) / np.log(high / low)
    else:
        share = (values - low) / (high - low)
    ramp = GAPS if scale["diverging"] else RAMP
    shade = np.clip(np.nan_to_num(share), 0, 1) * (len(ramp) - 1)
    stops = np.arange(len(ramp))
    mixed = np.stack(
        [np.interp(shade, stops, [stop[c] for stop in ramp]) for c in range(3)], axis=-1
    )
    none = [int(MISSING[i : i + 2], 16) for i in (1, 3, 5)]
    return np.where(np.isnan(values)[..., None], none, np.rint(mixed)).astype(np.uint8)


def _row(panel: CellsPanel) -> int:
    return max(3, min(12, TALL // len(panel.layers)))


def _panel(panel: CellsPanel, scales: Scales, x: float, y: float, wide: float) -> Iterator[str]:
    count, row = len(panel.columns), _row(panel)
    left, top, tall = x + LEFT, y + HEAD, row * len(panel.layers)
    step = (wide - LEFT - 12) / count
    yield _text(left, y + 14, f"rank {panel.rank}", ink=INK, bold=True)
    yield _text(x + 4, top - 6, "layer")
    of_column = [phase for _, phase in panel.columns]
    pixels = np.empty((count, len(panel.layers), 3), np.uint8)
    for phase in dict.fromkeys(of_column):
        chosen = np.array([phase_of_column == phase for phase_of_column in of_column])
        pixels[chosen] = _colours(panel.values[chosen], scales[phase])
    image = base64.b64encode(png_of(pixels.transpose(1, 0, 2))).decode("ascii")
    yield (
        f'<image x="{left:.1f}" y="{top}" width="{step * count:.1f}" height="{tall}"'
        ' preserveAspectRatio="none" image-rendering="optimizeSpeed"'
        f' href="data:image/png;base64,{image}"/>'
    )
    first = 0
    for i in range(1, count + 1):
        if i < count and of_column[i] == of_column[first]:
            continue
        yield from _phase(
            of_column[first], left + first * step, top - STRIP - 2, (i - first) * step
        )
        first = i
    for i in range(0, len(panel.layers), max(1, -(-15 // row))):
        yield _text(left - 6, top + (i + 0.5) * row + 4, str(panel.layers[i]), anchor="end")
    widest = 7 * len(str(panel.columns[-1][0])) + 12
    for i in range(0, count, max(1, round(-(-widest // step)))):
        middle = left + (i + 0.5) * step
        yield f'<path d="M{middle:.1f} {top + tall}v4" stroke="{RULE}"/>'
        yield _text(middle, top + tall + 16, str(panel.columns[i][0]), anchor="middle")
    yield _text(left + count * step, top + tall + 30, "step", anchor="end")


def _phase(phase: str | None, x: float, y: float, wide: float) -> Iterator[str]:
    fill, name = PHASES.get(phase or "", "#9AA5B1"), phase or ""
    yield (
        f'<rect x="{x:.1f}" y="{y}" width="{max(0.5, wide - 1):.1f}" height="{STRIP - 3}"'
        f' fill="{fill}"/>'
    )
    text = next((text for text in (name, name[:1]) if 7 * len(text) + 4 <= wide), "")
    if text:
        yield _text(x + wide / 2, y + 12, text, ink=ink_on(fill), anchor="middle")


def _key(phase: str | None, scale: dict[str, Any], y: float) -> Iterator[str]:
    """Ramp of colours of a phase, between the ends of its scale."""
    more = scale["most"] > scale["high"]
    size = 160
    ramp = np.array([GAPS if scale["diverging"] else RAMP], np.uint8)
    shares = np.linspace(0, ramp.shape[1] - 1, size)
    line = np.stack(
        [np.interp(shares, np.arange(ramp.shape[1]), ramp[0, :, c]) for c in range(3)], axis=-1
    )
    image = base64.b64encode(png_of(np.rint(line)[None].astype(np.uint8))).decode("ascii")
    yield _text(8, y + 9, f"{phase or 'no phase'}{' (log)' if scale['log'] else ''}")
    low = f"{'≤ ' if scale['diverging'] and more else ''}{format_ns(scale['low'])}"
    yield _text(200, y + 9, low, anchor="end")
    yield (
        f'<image x="208" y="{y}" width="{size}" height="11" preserveAspectRatio="none" '
        f'href="data:image/png;base64,{image}"/>'
    )
    yield _text(216 + size, y + 9, f"{'≥ ' if more else ''}{format_ns(scale['high'])}")


def _text(
    x: float, y: float, text: str, *, ink: str = MUTED, anchor: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" {_FONT}{weight} fill="{ink}"'
        f' text-anchor="{anchor}">{html.escape(text)}</text>'
    )
