"""The page: contents in, one HTML document out that loads nothing and runs nothing but its own two scripts."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable
from importlib.resources import files

from llmprof import __version__
from llmprof.report import vega
from llmprof.report.about import MEASURES
from llmprof.report.parts import Absent, Column, Contents, Figure, Section, Table
from llmprof.units import format_ns, format_share


def text(value: object) -> str:
    """A value as text in HTML, attributes included; control characters become visible."""
    out = "".join("\N{REPLACEMENT CHARACTER}" if ord(c) < 32 and c not in "\t\n" else c for c in str(value))
    return html.escape(out.encode("utf-8", "replace").decode(), quote=True)


def prose(value: object) -> str:
    """A sentence as text in HTML, each figure on one line with its unit."""
    return _UNIT.sub("\\1&nbsp;\\2", text(value))


_UNIT = re.compile(r"(\d) (%|[num]?s\b|[KMG]?i?B\b)")


def meter(share: float | None) -> str:
    """A bar as long as a share of one."""
    width = 0.0 if share is None else 100 * min(1.0, max(0.0, share))
    return f'<span class="meter"><i style="width:{width:.1f}%"></i></span>'


def sentence(words: str) -> str:
    """Words with a capital and a full stop."""
    return words[:1].upper() + words[1:].rstrip(".") + "." if words else ""


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
    from llmprof.charts.base.theme import CATEGORIES

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


def _cell_number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def _share(value: float) -> str:
    return "< 0.1 %" if 0 < value < 0.0005 else format_share(value)


_WRITERS: dict[str, Callable[[float], str]] = {"number": _cell_number, "time": format_ns, "share": _share}


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="llmprof {version}">
<title>{title}</title>
<style>{css}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p class="made">Report of llmprof {version}. Everything is in this file; it loads nothing from anywhere.</p>
<nav aria-label="Sections">{nav}</nav>
</header>
<main>
<noscript><p class="warn">The charts need JavaScript. The PNG files beside this page show the same.</p></noscript>
{warnings}
{about}
{findings}
{sections}
</main>
<footer><p>{footer}</p></footer>
{data}
<script>{library}</script>
<script>{script}</script>
</body>
</html>
"""

_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)

SEVERITIES = {"high": "high", "medium": "medium", "low": "low", "info": "for information"}


def page(contents: Contents) -> str:
    """The report as one HTML document.

    Parameters
    ----------
    contents : Contents
        What it says; every text of it is taken as text.

    Returns
    -------
    str
        The document, Vega included (about 0.9 MB).
    """
    script = files("llmprof.report").joinpath("page.js").read_text("utf-8")
    library = vega.library()
    data = "\n".join(
        f'<script type="application/json" data-chart="{text(figure.name)}">{figure.spec}</script>'
        for figure in contents.figures
        if figure.spec
    )
    return _PAGE.format(
        policy=_POLICY.format(scripts=f"{vega.source_hash(library)} {vega.source_hash(script)}"),
        version=text(__version__),
        title=text(contents.title),
        css=files("llmprof.report").joinpath("page.css").read_text("utf-8"),
        nav=_nav(contents),
        warnings=_warnings(contents.warnings),
        about=_about(contents),
        findings=_findings(contents) if contents.of_trace else "",
        sections="\n".join(_section(section) for section in contents.sections),
        footer="Times are of the run under its profiler, which adds to the host side. Shares name what they are of; "
        "a dash stands for what the capture does not tell.",
        data=data,
        library=library,
        script=script,
    )


def _nav(contents: Contents) -> str:
    findings = [("findings", "Findings")] if contents.of_trace else []
    links = [*findings, *((section.anchor, section.question) for section in contents.sections)]
    return "".join(f'<a href="#{text(anchor)}">{text(words)}</a>' for anchor, words in links)


def _warnings(warnings: list[str]) -> str:
    if not warnings:
        return ""
    return '<div class="warn" role="note">' + "".join(f"<p>{text(w)}</p>" for w in warnings) + "</div>"


def _about(contents: Contents) -> str:
    listed = "".join(f"<li>{text(name)}: {text(what)}</li>" for name, what in contents.files)
    count = len(contents.files)
    files_read = (
        f"<details><summary>{count} file{'s' * (count != 1)} read</summary><ul>{listed}</ul></details>" if count else ""
    )
    return (
        '<div class="pair">'
        f'<div class="card"><h3>What ran</h3>{_pairs(contents.facts)}{files_read}</div>'
        f'<div class="card"><h3>What this report covers</h3>{_shares(contents)}{_pairs(contents.reading)}</div>'
        "</div>"
    )


def _pairs(pairs: list[tuple[str, str]]) -> str:
    return "<dl>" + "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in pairs) + "</dl>"


def _shares(contents: Contents) -> str:
    if not contents.of_trace:
        return ""
    if not contents.shares.height:
        return "<p>How much of the device time has a step or a stage is not known.</p>"
    rows = []
    for row in contents.shares.iter_rows(named=True):
        least, share = row["least"], row["share"]
        uneven = least is not None and share - least > 0.005
        worst = f"<small>rank {row['rank']}: {text(format_share(least))}</small>" if uneven else ""
        words = MEASURES.get(row["measure"], row["measure"])
        rows.append(
            f"<tr><td>{text(words)}</td><td>{meter(share)}</td><td>{text(format_share(share))}{worst}</td></tr>"
        )
    of = contents.shares["of"][0]
    return f'<p class="of">Share of the {text(of)} that has …</p><table class="shares">{"".join(rows)}</table><hr>'


def _findings(contents: Contents) -> str:
    head = '<section id="findings"><h2>What takes the time</h2>'
    missing = next((a for a in contents.absent if a.part == "findings"), None)
    if missing is not None:
        return f"{head}{_absent(missing)}</section>"
    if not contents.findings.height:
        return f'{head}<div class="card"><p>No rule found anything worth saying in this capture.</p></div></section>'
    scopes = contents.findings["scope"].unique().to_list() if "scope" in contents.findings.columns else []
    words = f'<p class="words">Shares of time are of {text(scopes[0])}.</p>' if len(scopes) == 1 and scopes[0] else ""
    anchors = {name: section.anchor for section in contents.sections for name in section.evidence}
    cards = "".join(_finding(row, anchors) for row in contents.findings.iter_rows(named=True))
    return f'{head}{words}<ol class="findings">{cards}</ol></section>'


def _finding(row: dict[str, object], anchors: dict[str, str]) -> str:
    severity = str(row["severity"])
    figure, unit = figure_of(row["figure"], str(row["unit"] or ""))
    evidence = str(row["evidence"] or "")
    link = f'<a href="#{text(anchors[evidence])}">{text(evidence)}</a>' if evidence in anchors else text(evidence)
    advice = f'<p class="try"><b>Try:</b> {prose(row["suggestion"])}</p>' if row["suggestion"] else ""
    detail = f'<p class="detail">{prose(row["detail"])}</p>' if row["detail"] else ""
    tone = severity if severity in SEVERITIES else "low"
    return (
        f'<li class="card finding {tone}"><div class="figure"><b>{text(figure)}</b><span>{text(unit)}</span></div>'
        f"<div><h3>{prose(row['title'])}</h3></div><div>{detail}{advice}</div>"
        f'<p class="foot"><span class="tag">{text(SEVERITIES.get(severity, severity))}</span>'
        f"Share of the time: {text(format_share(_number(row['share_of_time'])))} · Evidence: {link}</p></li>"
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _section(section: Section) -> str:
    return (
        f'<section id="{text(section.anchor)}"><h2>{text(section.question)}</h2>'
        f'<p class="words">{text(section.words)}</p>{_blocks(section)}</section>'
    )


def _blocks(section: Section) -> str:
    """Figures and tables in order; what is absent for one reason is said once, where the first of it would be."""
    absents: dict[tuple[str, str], list[Absent]] = {}
    out: list[str | tuple[str, str]] = []
    for block in section.blocks:
        absent = block.absent if isinstance(block, Figure) else block if isinstance(block, Absent) else None
        if absent is not None:
            if (absent.found, absent.hint) not in absents:
                out.append((absent.found, absent.hint))
            absents.setdefault((absent.found, absent.hint), []).append(absent)
        elif isinstance(block, Figure):
            out.append(_figure(block))
        elif isinstance(block, Table):
            out.append(table(block))
    return "".join(_absent(*absents[part]) if isinstance(part, tuple) else part for part in out)


def _figure(figure: Figure) -> str:
    note = f"<figcaption>{text(figure.note)}</figcaption>" if figure.note else ""
    name, shows = text(figure.name), text(figure.shows)
    return f'<figure class="card"><div class="chart" id="chart-{name}" aria-label="{shows}"></div>{note}</figure>'


def _absent(*absents: Absent) -> str:
    """What is missing for one reason, and what would record it."""
    first = absents[0]
    why = "Nothing to show" if first.captured else "Not captured"
    option = f" To have it, {text(first.hint)}." if first.hint and not first.captured else ""
    parts = text("; ".join(absent.part for absent in absents))
    return f'<div class="card absent"><p><b>{why}: {parts}.</b> {text(sentence(first.found))}{option}</p></div>'
