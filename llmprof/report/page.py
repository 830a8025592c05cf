"""The HTML pages of reports: templates of Jinja in ``templates/``, and how values are written in them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files

import jinja2
from markupsafe import Markup, escape

from llmprof import __version__
from llmprof.report import parts as report_parts
from llmprof.report.cards import MEASURES
from llmprof.report.parts import Absent, Contents, Figure, Section, Table
from llmprof.units import format_ns, format_share

UNKNOWN = "–"
"""What stands for a value that the capture does not tell."""

SEVERITIES = {"high": "high", "medium": "medium", "low": "low", "info": "for information"}

_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
_UNIT = re.compile(r"(\d) (%|[num]?s\b|[KMG]?i?B\b)")
_CLASSES = {"number": "num", "time": "num", "share": "share", "name": "kernel", "chip": "", "text": ""}
_BLOCK = tuple[str, Figure | Table | list[Absent]]


def page(contents: Contents) -> str:
    """The report as one HTML document that loads nothing and runs nothing but its own two scripts.

    Parameters
    ----------
    contents : Contents
        What it says; every text of it is escaped.

    Returns
    -------
    str
        The document, Vega included (about 0.9 MB).
    """
    script = files("llmprof.report").joinpath("page.js").read_text("utf-8")
    library = report_parts.library()
    scripts = f"{report_parts.source_hash(library)} {report_parts.source_hash(script)}"
    known = "denominator" in contents.findings.columns
    of = contents.findings["denominator"].unique().to_list() if known else []
    return render(
        "page.html",
        contents=contents,
        policy=Markup(_POLICY.format(scripts=scripts)),  # noqa: S704
        css=files("llmprof.report").joinpath("page.css").read_text("utf-8"),
        missing_findings=next((absent for absent in contents.absent if absent.part == "findings"), None),
        denominator=of[0] if len(of) == 1 else None,
        anchors={name: section.anchor for section in contents.sections for name in section.evidence},
        library=library,
        script=script,
    )


def render(template: str, **values: object) -> str:
    """A template of ``templates/`` with its values, all escaped.

    Parameters
    ----------
    template : str
        Name of the file.
    **values : object
        What the template names.

    Returns
    -------
    str
        HTML.
    """
    return _environment().get_template(template).render(values)


def table(rows: Table) -> str:
    """A table as HTML.

    Parameters
    ----------
    rows : Table
        What it shows.
    """
    parts: jinja2.environment.TemplateModule = _environment().get_template("parts.html").module
    return str(parts.table(rows))  # type: ignore[attr-defined]


def clean(value: object) -> object:
    """A text whose control characters are visible; anything else as it is."""
    if not isinstance(value, str):
        return value
    visible = "".join("\N{REPLACEMENT CHARACTER}" if ord(c) < 32 and c not in "\t\n" else c for c in value)
    text = visible.encode("utf-8", "replace").decode()
    return Markup(text) if isinstance(value, Markup) else text  # noqa: S704 - it was markup before


def words(value: object) -> Markup:
    """A sentence in HTML, each figure on one line with its unit."""
    return Markup(_UNIT.sub("\\1&nbsp;\\2", str(escape(clean(str(value))))))  # noqa: S704 - escaped here


def sentence(text: str) -> str:
    """Words with a capital and a full stop."""
    return text[:1].upper() + text[1:].rstrip(".") + "." if text else ""


def shorten(name: str, limit: int = 96) -> str:
    """A name of at most ``limit`` characters; the middle is what goes."""
    head = limit * 2 // 3
    return name if len(name) <= limit else f"{name[:head]}…{name[head + 1 - limit :]}"


def figure_of(figure: object, unit: object) -> tuple[str, str]:
    """Figure of a finding and what it is, both for people.

    Parameters
    ----------
    figure : float or None
        In the unit.
    unit : str or None
        Begins with ``share`` or ``ns``, or is anything else.

    Returns
    -------
    (str, str)
        ``("98.1 %", "of the time")`` for 0.981 and ``share of the time``.
    """
    unit = str(unit or "")
    if not isinstance(figure, int | float) or not math.isfinite(figure):
        return UNKNOWN, unit
    kind, _, rest = unit.partition(" ")
    if kind == "share":
        return format_share(figure), rest or unit
    if kind == "ns":
        return format_ns(figure), rest.removeprefix("of ")
    if kind == "ratio":
        return f"{figure:.2f} ×", rest or unit
    return f"{figure:,.4g}", unit


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def _share(value: float) -> str:
    return "< 0.1 %" if 0 < value < 0.0005 else format_share(value)


_WRITERS: dict[str, Callable[[float], str]] = {"number": _number, "time": format_ns, "share": _share}


def _is_unknown(value: object) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def _blocks(section: Section) -> list[_BLOCK]:
    """Figures and tables in order; what is absent for one reason is said once, where the first of it would be."""
    absents: dict[tuple[str, str], list[Absent]] = {}
    blocks: list[_BLOCK] = []
    for block in section.blocks:
        absent = block.absent if isinstance(block, Figure) else block if isinstance(block, Absent) else None
        if absent is not None:
            reason = (absent.found, absent.hint)
            if reason not in absents:
                blocks.append(("absent", absents.setdefault(reason, [])))
            absents[reason].append(absent)
        elif isinstance(block, Figure):
            blocks.append(("figure", block))
        elif isinstance(block, Table):
            blocks.append(("table", block))
    return blocks


def _category_colour(category: object) -> str:
    """Colour of a category of kernel, the same as in the charts."""
    from llmprof.charts.base.theme import CATEGORIES

    return CATEGORIES.get(str(category), "#8A94A0")


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("llmprof.report"),
        autoescape=True,
        finalize=clean,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {
        "blocks": _blocks,
        "category_colour": _category_colour,
        "cell_class": _CLASSES.__getitem__,
        "figure": lambda value, kind: _WRITERS[kind](value),
        "figure_of": figure_of,
        "head_class": lambda kind: "" if kind == "name" else _CLASSES[kind],
        "sentence": sentence,
        "share": lambda value: format_share(float(value) if isinstance(value, int | float) else None),
        "shorten": shorten,
        "words": words,
    }
    environment.tests["unknown"] = _is_unknown
    environment.globals |= {"MEASURES": MEASURES, "SEVERITIES": SEVERITIES, "UNKNOWN": UNKNOWN, "version": __version__}
    return environment
