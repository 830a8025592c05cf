"""HTML page of a report: sections, figures and tables as records, and their rendering with one
copy of Vega.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import jinja2
import msgspec
import polars as pl
from altair.utils.schemapi import debug_mode
from markupsafe import Markup, escape

from llmprof import __version__
from llmprof.analyze.catalog import Analysis
from llmprof.charts import bars
from llmprof.charts.base.dark import dark_colours
from llmprof.charts.base.save import check_room, safe_json, spec_json, vega_bundle
from llmprof.charts.base.theme import CATEGORIES, narrow
from llmprof.errors import AnalysisError, NotCapturedError, guarded
from llmprof.findings.card import (
    chain_findings,
    first_sentence,
    headline_number,
    not_predicted,
    so,
    times_in_words,
)
from llmprof.names.readable import without_common_start
from llmprof.report.cards import MEASURES
from llmprof.text import sentence, shorten, unbroken
from llmprof.trace import Trace
from llmprof.units import format_ns, format_share

if TYPE_CHECKING:
    import altair as alt


def source_hash(script: str) -> str:
    """Hash of a script for a Content-Security-Policy: only a script with this content runs."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def twice(draw: Callable[[], alt.TopLevelMixin]) -> tuple[str, str]:
    """Specifications of a chart for a desk and for a telephone; the second is empty where they
    are the same.
    """
    check_room()
    with debug_mode(
        False
    ):  # Altair checks each part against its schema, which takes a third of the time
        wide = spec_json(draw())
        with narrow():
            small = spec_json(draw())
    return wide, "" if small == wide else small


def pack_specifications(spec: str, small: str = "") -> str:
    """Both specifications of a chart as one JSON for a page: their data once, as columns, with
    nine digits.
    """
    tables: dict[str, Any] = {}
    out: dict[str, Any] = {"tables": tables}
    for key, text in (("wide", spec), ("narrow", small)):
        if text:
            chart = msgspec.json.decode(text)
            sets = chart.get("datasets", {})
            tables |= {name: _columns(rows) for name, rows in sets.items() if name not in tables}
            out[key] = chart | {"datasets": list(sets)}
    return safe_json(out)


def _columns(rows: Any) -> Any:
    """Rows of the same columns as columns; anything else as it is."""
    if not rows or not all(
        isinstance(row, Mapping) and row.keys() == rows[0].keys() for row in rows
    ):
        return rows
    return {name: _column([row[name] for row in rows]) for name in rows[0]} if rows[0] else rows


def _column(values: list[Any]) -> Any:
    """Values with nine digits; texts that come again and again as their places in a list of
    them.
    """
    distinct = (
        list(dict.fromkeys(values)) if all(isinstance(value, str) for value in values) else values
    )
    if 2 * len(distinct) > len(values):
        return [_short(value) for value in values]
    places = {word: place for place, word in enumerate(distinct)}
    return {"words": distinct, "at": [places[value] for value in values]}


def _short(value: Any) -> Any:
    """A number with nine digits: a nanosecond of a second."""
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    cut = float(f"{value:.9g}")
    return int(cut) if cut.is_integer() and abs(cut) < 1e15 else cut


@dataclass(frozen=True, slots=True)
class Absent:
    """A part that the report cannot show, with the reason and the remedy."""

    part: str
    captured: bool
    found: str
    hint: str


@dataclass(frozen=True, slots=True)
class ReportFigure:
    """One chart, or the reason why there is none."""

    name: str
    shows: str
    spec: str = ""
    note: str = ""
    small: str = ""
    absent: Absent | None = None


CellKind = Literal["text", "name", "chip", "number", "time", "gain", "share"]


@dataclass(frozen=True, slots=True)
class ReportColumn:
    """One column of a table: its heading, the format of its values, and further marks in its
    cells.
    """

    key: str
    head: str
    kind: CellKind = "text"
    width: int = 44
    """Most characters of a name; a longer name is cut in the middle, and its tooltip has the
    full name.
    """
    full: str = ""
    """Column with the full name, if this column has a shorter form."""


def columns_of_kind(kind: CellKind, **heads: str) -> tuple[ReportColumn, ...]:
    """Columns of one kind: their headings by key."""
    return tuple(ReportColumn(key, head, kind) for key, head in heads.items())


@dataclass(frozen=True, slots=True)
class ReportTable:
    """Table to display; ``frame`` has the columns that ``columns`` name."""

    name: str
    caption: str
    columns: tuple[ReportColumn, ...]
    frame: pl.DataFrame
    sortable: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Section: a question, how to read the answer, and its figures and tables."""

    anchor: str
    question: str
    words: str
    blocks: list[ReportFigure | ReportTable | Absent] = field(default_factory=list)
    evidence: tuple[str, ...] = ()
    stands: bool = True
    """Whether it is shown at once, not folded."""

    @property
    def figures(self) -> list[ReportFigure]:
        """The figures among the blocks."""
        return [block for block in self.blocks if isinstance(block, ReportFigure)]

    @property
    def shows(self) -> bool:
        """Whether it has a figure or a table, and not only reasons why there is none."""
        return any(
            isinstance(block, ReportTable) or (isinstance(block, ReportFigure) and block.spec)
            for block in self.blocks
        )


@dataclass(frozen=True, slots=True)
class Contents:
    """Contents of a report, before it is written."""

    title: str
    facts: list[tuple[str, str]]
    sections: list[Section]
    frames: dict[str, pl.DataFrame]
    files: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    shares: pl.DataFrame = field(default_factory=pl.DataFrame)
    reading: list[tuple[str, str]] = field(default_factory=list)
    findings: pl.DataFrame = field(default_factory=pl.DataFrame)
    absent: list[Absent] = field(default_factory=list)
    path: str = "PATH"
    """Path of the recording, for the commands that the page shows."""
    time_went: Sequence[str] = ()
    """Where the recorded time went, and that of the requests, as sentences."""
    changes: Mapping[str, str] = field(default_factory=dict)
    """Command that tries a change, by the rule of the findings that it answers."""
    parts: pl.DataFrame | None = None
    """What a mean step of each rank is made of: ``rank, part, ns``."""
    of_trace: bool = True
    """Whether it is of one trace, which has findings and a coverage."""

    @property
    def figures(self) -> list[ReportFigure]:
        """All figures in the order of the page."""
        return [figure for section in self.sections for figure in section.figures]


def run_analysis(analysis: Analysis, trace: Trace, **more: object) -> pl.DataFrame | Absent:
    """Frame of an analysis, or the reason why there is none."""
    return attempt(analysis.name, lambda: analysis.function(trace, **analysis.options, **more))


T = TypeVar("T")


def attempt(part: str, make: Callable[[], T]) -> T | Absent:
    """Result of a function, or the reason why there is none: data that are missing, or a fault,
    which is warned of.
    """
    try:
        with guarded(part):
            return make()
    except NotCapturedError as error:
        return Absent(part, captured=False, found=error.found, hint=error.hint)
    except AnalysisError as error:
        return Absent(part, captured=True, found=error.found, hint=error.hint)


UNKNOWN = "–"
"""Text in place of a value that the capture lacks."""

SEVERITIES = {"high": "high", "medium": "medium", "low": "low", "info": "for information"}

_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
_CLASSES = {
    "number": "num",
    "time": "num",
    "gain": "num",
    "share": "share",
    "name": "kernel",
    "chip": "",
    "text": "",
}


def page(contents: Contents) -> str:
    """The report as one HTML document that loads nothing and runs only its own two scripts."""
    script = files("llmprof.report").joinpath("page.js").read_text("utf-8")
    scripted = vega_bundle() if any(figure.spec for figure in contents.figures) else ""
    scripts = f"{source_hash(scripted)} {source_hash(script)}"
    causes, effects, known = chain_findings(contents.findings)
    for row in causes:
        row["change"] = contents.changes.get(row["rule"])
    return render(
        "page.html",
        contents=contents,
        policy=Markup(_POLICY.format(scripts=scripts)),  # noqa: S704
        css=files("llmprof.report").joinpath("page.css").read_text("utf-8"),
        bars=lambda lead: Markup(bars.step_bars(contents.parts, lead)),  # noqa: S704 - it escapes its texts
        missing_findings=next(
            (absent for absent in contents.absent if absent.part == "findings"), None
        ),
        of=times_in_words(contents.findings, contents.time_went),
        not_predicted=not_predicted(contents.findings),
        causes=causes,
        effects=effects,
        known=known,
        shown=[section for section in contents.sections if section.shows],
        places={
            row["order"]: evidence_place(row, contents.sections)
            for row in contents.findings.iter_rows(named=True)
        },
        library=scripted,
        dark=Markup(  # noqa: S704
            json.dumps(dark_colours(spec for f in contents.figures for spec in (f.spec, f.small)))
        ),
        script=script,
    )


_FIGURES: Final = {
    "speed_of_light": "kernel_time",
    "activity": "step_timeline",
    "requests": "request_waterfall",
}
"""Figure that shows the evidence of a finding, if its name differs from that of the analysis."""
_OF_CONDITION: Final = {
    "stage": "breakdown",
    "category": "categories",
    "name": "kernels",
    "dur_ns": "kernels",
}
"""Figure or table for the ``trace.events``, by the column in the condition of a
finding.
"""


def evidence_place(row: Mapping[str, Any], sections: Sequence[Section]) -> str | None:
    """Place in a page that shows the evidence of a finding."""
    evidence = str(row["evidence"])
    figures = [_FIGURES.get(evidence, evidence)]
    if evidence == "events":
        column = str(row["where"]).partition(" ")[0]
        figures = [_OF_CONDITION.get(column, "breakdown"), "breakdown", "kernels"]
    ids: dict[str, str] = {}
    for block in (block for section in sections for block in section.blocks):
        if isinstance(block, ReportTable) or (isinstance(block, ReportFigure) and block.spec):
            ids.setdefault(block.name, _id(block))
    if (place := next((ids[name] for name in figures if name in ids), None)) is not None:
        return place
    return next(
        (section.anchor for section in sections if section.shows and evidence in section.evidence),
        None,
    )


def by_share(sections: Sequence[Section], findings: pl.DataFrame) -> list[Section]:
    """Sections in the order of the time of their findings; sections without findings follow in
    their order.
    """
    if not findings.height:
        return list(sections)
    shares: dict[str, float] = {}
    for row in findings.iter_rows(named=True):
        place = evidence_place(row, sections)
        anchor = next(
            (one.anchor for one in sections if place in [one.anchor, *map(_id, one.blocks)]), None
        )
        if anchor is not None:
            shares[anchor] = max(shares.get(anchor, 0.0), float(row["share"]))
    return sorted(sections, key=lambda section: -shares.get(section.anchor, 0.0))


def _id(block: ReportFigure | ReportTable | Absent) -> str:
    """Id of a block in the page."""
    return "" if isinstance(block, Absent) else f"{_macro(block)}-{block.name}"


def _macro(block: ReportFigure | ReportTable) -> str:
    """The template's macro for a block."""
    return "table" if isinstance(block, ReportTable) else "figure"


def render(template: str, **values: object) -> str:
    """Render a template of ``templates/``; all values are escaped."""
    return _environment().get_template(template).render(values)


def table_html(rows: ReportTable) -> str:
    """A table as HTML."""
    parts: jinja2.environment.TemplateModule = _environment().get_template("parts.html").module
    return str(parts.table(rows))  # type: ignore[attr-defined]


_BOTH_WAYS = (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that change the direction of text."""
_INVISIBLE = dict.fromkeys(
    {*range(32), *range(127, 160), *_BOTH_WAYS} - {ord("\t"), ord("\n")},
    "\N{REPLACEMENT CHARACTER}",
)
_HIDDEN = re.compile(f"[{''.join(map(chr, _INVISIBLE))}\ud800-\udfff]")
"""The same, and halves of characters."""


def _short_names(rows: ReportTable) -> dict[str, dict[str, str]]:
    """Short forms of the names in a table by column, which are cut in the middle; where that
    would make them alike, what they begin with alike is cut.
    """
    forms = {}
    for column in rows.columns:
        if column.kind == "name":
            names = rows.frame[column.key].cast(pl.String).drop_nulls().unique().to_list()
            short = [shorten(name, column.width) for name in names]
            if len(set(short)) < len(names):
                short = without_common_start(names, column.width)
            forms[column.key] = dict(zip(names, short, strict=True))
    return forms


def visible_text(value: object) -> object:
    """A text with visible control characters; other values are returned unchanged."""
    if not isinstance(value, str) or not _HIDDEN.search(value):
        return value
    text = value.translate(_INVISIBLE).encode("utf-8", "replace").decode()
    return Markup(text) if isinstance(value, Markup) else text  # noqa: S704 - it was markup before


def words(value: object) -> Markup:
    """A sentence in HTML, in which no line breaks between a number and its unit."""
    return escape(unbroken(str(visible_text(str(value)))))


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def _gain(ns: float) -> str:
    return "< 1 us" if 0 < ns < 1000 else format_ns(ns)  # below it a replay says nothing


_WRITERS: dict[str, Callable[[float], str]] = {
    "number": _number,
    "time": format_ns,
    "gain": _gain,
    "share": format_share,
}


def _shown(section: Section) -> list[tuple[str, ReportFigure | ReportTable]]:
    """Figures and tables in order, each with the name of its macro."""
    return [
        (_macro(block), block)
        for block in section.blocks
        if isinstance(block, ReportTable)
        or (isinstance(block, ReportFigure) and block.absent is None)
    ]


def absents(sections: Sequence[Section]) -> list[list[Absent]]:
    """What sections lack, in their order; parts that are absent for the same reason stand with
    the first of them.
    """
    by_reason: dict[tuple[str, str | None], dict[str, Absent]] = {}
    for block in (block for section in sections for block in section.blocks):
        absent = (
            block.absent
            if isinstance(block, ReportFigure)
            else block
            if isinstance(block, Absent)
            else None
        )
        if absent is not None:
            said = absent.found, None if absent.captured else absent.hint
            by_reason.setdefault(said, {}).setdefault(absent.part, absent)
    return [list(parts.values()) for parts in by_reason.values()]


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("llmprof.report"),
        autoescape=True,
        finalize=visible_text,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {
        "absents": absents,
        "shown": _shown,
        "category_colour": lambda category: CATEGORIES.get(str(category), CATEGORIES["other"]),
        "cell_class": _CLASSES.__getitem__,
        "figure": lambda value, kind: _WRITERS[kind](value),
        "first_sentence": first_sentence,
        "number_of": headline_number,
        "packed": lambda figure: pack_specifications(figure.spec, figure.small),
        "head_class": lambda kind: "" if kind == "name" else _CLASSES[kind],
        "sentence": sentence,
        "share": lambda value: format_share(
            float(value) if isinstance(value, int | float) else None
        ),
        "short_names": _short_names,
        "so": so,
        "words": words,
    }
    environment.tests["unknown"] = lambda value: (
        value is None or (isinstance(value, float) and not math.isfinite(value))
    )
    environment.globals |= {
        "MEASURES": MEASURES,
        "SEVERITIES": SEVERITIES,
        "UNKNOWN": UNKNOWN,
        "version": __version__,
    }
    return environment
