"""Cells of the report's tables, and figures of findings, as people read them."""

from __future__ import annotations

import math
from collections.abc import Callable

from llmprof.report._html import meter, text
from llmprof.report._parts import Column, Table
from llmprof.units import format_ns, format_share

UNKNOWN = "–"


def figure_of(figure: object, unit: str) -> tuple[str, str]:
    """Figure of a finding and what it is, both for people.

    Parameters
    ----------
    figure : float or None
        In the unit.
    unit : str
        Begins with ``share`` or ``ns``, or is anything else.

    Returns
    -------
    (str, str)
        ``("98.1 %", "of the time")`` for 0.981 and ``share of the time``.
    """
    if not isinstance(figure, int | float) or not math.isfinite(figure):
        return UNKNOWN, unit
    words = unit.split(" ", 1)
    rest = words[1] if len(words) > 1 else ""
    if words[0] == "share":
        return format_share(figure), rest or unit
    if words[0] == "ns":
        return format_ns(figure), rest.removeprefix("of ")
    if words[0] == "ratio":
        return f"{figure:.2f} ×", rest or unit
    return f"{figure:,.4g}", unit


def shorten(name: str, limit: int = 96) -> str:
    """A name of at most ``limit`` characters; the middle is what goes."""
    head = limit * 2 // 3
    return name if len(name) <= limit else f"{name[:head]}…{name[head + 1 - limit :]}"


def chips() -> dict[str, str]:
    """Colour of each category of kernel, the same as in the charts."""
    from llmprof.charts._palette import CATEGORIES

    return CATEGORIES


def table(rows: Table) -> str:
    """A table as HTML.

    Parameters
    ----------
    rows : Table
        What it shows.
    """
    heads = "".join(_head(column, sortable=rows.sortable) for column in rows.columns)
    body = "".join(
        "<tr>" + "".join(_cell(row[column.key], column) for column in rows.columns) + "</tr>"
        for row in rows.frame.iter_rows(named=True)
    )
    note = f'<p class="small">{text(rows.note)}</p>' if rows.note else ""
    return (
        f'<div class="card" id="table-{text(rows.name)}"><div class="scroll"><table class="data">'
        f"<caption>{text(rows.caption)}</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>{note}</div>"
    )


_CLASSES = {"number": "num", "time": "num", "share": "share", "name": "kernel", "chip": "", "text": ""}


def _head(column: Column, *, sortable: bool) -> str:
    words = text(column.head)
    inner = f'<button type="button" title="sort by this column">{words}</button>' if sortable else words
    style = "" if column.kind == "name" else _CLASSES[column.kind]
    return f'<th scope="col" class="{style}">{inner}</th>'


def _cell(value: object, column: Column) -> str:
    style = _CLASSES[column.kind]
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return f'<td class="{style} unknown" data-value="-1">{UNKNOWN}</td>'
    if isinstance(value, int | float) and column.kind in ("number", "time", "share"):
        inner = _WRITERS[column.kind](value)
        bar = meter(value) if column.kind == "share" else ""
        return f'<td class="{style}" data-value="{value!r}">{text(inner)}{bar}</td>'
    if column.kind == "chip":
        colour = chips().get(str(value), "#8A94A0")
        return f'<td><span class="chip"><i style="background:{colour}"></i>{text(value)}</span></td>'
    if column.kind == "name":
        return f'<td class="{style}" title="{text(value)}" data-value="{text(value)}">{text(shorten(str(value)))}</td>'
    return f'<td class="{style}">{text(value)}</td>'


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def _share(value: float) -> str:
    return "< 0.1 %" if 0 < value < 0.0005 else format_share(value)


_WRITERS: dict[str, Callable[[float], str]] = {"number": _number, "time": format_ns, "share": _share}
