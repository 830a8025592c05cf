"""Numbers as people read them, in a table that fits a terminal and a README."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown table with its columns aligned, the first to the left and the others to the
    right.
    """
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    pads = [str.ljust, *[str.rjust] * (len(head) - 1)]
    cells = [
        [pad(cell, w) for pad, cell, w in zip(pads, row, widths, strict=True)]
        for row in (head, *rows)
    ]
    rule = [w * "-" if i == 0 else (w - 1) * "-" + ":" for i, w in enumerate(widths)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (cells[0], rule, *cells[1:]))


def seconds(value: float) -> str:
    if value < 0.1:
        return f"{value * 1e3:.1f} ms"
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"


def size(value: float) -> str:
    return f"{value / 1e9:.2f} GB" if value >= 1e9 else f"{value / 1e6:.0f} MB"


def ratio(value: float) -> str:
    return f"{value:.2f}x" if value < 10 else f"{value:.0f}x"
