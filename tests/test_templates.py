"""Templates and what fills them: each value once there and once not, by the types of the
records.
"""

import ast
import dataclasses
import itertools
from pathlib import Path
from typing import get_args

import jinja2
import polars as pl
import pytest
from jinja2 import nodes

import llmprof
from llmprof.cli.analyze import findings_text
from llmprof.explore import tabs
from llmprof.findings.document import findings_schema
from llmprof.findings.facts import STEP_PARTS
from llmprof.findings.frame import SCHEMA, Findings
from llmprof.report import cards, page
from llmprof.report.page import (
    Absent,
    CellKind,
    Contents,
    ReportColumn,
    ReportFigure,
    ReportTable,
    Section,
)
from llmprof.run.live import page as live_page
from llmprof.run.live.watching import finding_rows
from tests.building import table_of

PACKAGE = Path(llmprof.__file__).parent


def templates():
    """Files of templates, and texts of modules that use them."""
    found = {str(path): path.read_text("utf-8") for path in PACKAGE.rglob("templates/**/*.*")}
    for path in PACKAGE.rglob("*.py"):
        if "import jinja2" in (code := path.read_text("utf-8")):
            texts = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant))
            found |= {
                f"{path}:{node.lineno}": node.value for node in texts if isinstance(node.value, str)
            }
    return {name: text for name, text in found.items() if "{{" in text}


def test_every_if_in_an_expression_has_an_else():
    found = {
        name: expression.lineno
        for name, text in templates().items()
        for expression in jinja2.Environment().parse(text).find_all(nodes.CondExpr)
        if expression.expr2 is None
    }
    assert found == {}


ROW = findings_schema()["properties"]["findings"]["items"]["properties"]
VALUES = {"integer": 1, "number": 0.25, "string": "a text", "boolean": True}
OPTIONAL = [name for name, told in ROW.items() if "null" in told["type"]]


def row(absent, **values):
    """A finding with a value of its type in every column but the absent ones."""
    kinds = {
        name: told["type"] if isinstance(told["type"], str) else told["type"][0]
        for name, told in ROW.items()
    }
    usual = {
        name: told["enum"][0] if "enum" in told else VALUES[kinds[name]]
        for name, told in ROW.items()
    }
    return usual | dict.fromkeys(absent) | values


def rows():
    """A loss, what follows from it, and a fact: without one value, with one alone, and each
    severity, unit and flag.
    """
    sets = [
        *({name} for name in OPTIONAL),
        *(set(OPTIONAL) - {name} for name in OPTIONAL),
        set(),
        set(OPTIONAL),
    ]
    enums = [(name, value) for name, told in ROW.items() for value in told.get("enum", ())]
    enums += [
        (name, value)
        for name, told in ROW.items()
        if "boolean" in told["type"]
        for value in (True, False)
    ]
    variants = [(absent, {}) for absent in sets] + [(set(), {name: value}) for name, value in enums]
    for absent, values in variants:
        cause = row(absent, **values) | {"follows_from": None}
        effect = row(absent, order=2, rule="effect", **values) | {"follows_from": cause["rule"]}
        fact = row(absent, order=3, rule="fact", **values | {"severity": "info"})
        for listed in ([cause, effect, fact], [effect], [fact]):
            parts = table_of("rank part ns", [(0, part, 1e6) for part in STEP_PARTS])
            found = Findings(pl.DataFrame(listed, schema=SCHEMA), parts=parts)
            yield f"{absent or ''} {values or ''}", found


PAGES = {
    "report": lambda found: page.page(
        Contents("Title", [], [], {}, findings=found.frame, parts=found.parts)
    ),
    "card": cards.of_findings,
    "terminal": lambda found: findings_text(found.frame, 100, ["run"]),
    "explorer": lambda found: (
        "".join(map(tabs.finding_html, found.to_dicts()))
        + "".join(map(tabs.fact_html, found.to_dicts()))
    ),
    "watch": lambda found: live_page.watch_page(
        pl.DataFrame(WATCHED), WATCH, finding_rows(found.to_dicts()), every_s=0
    ),
}
WATCHED = {name: [1.0, None, 2.0] for name in live_page.LINES}
WATCH = {"scrapes": 1, "lost": 0, "when": None, "holds": False, "says": None, "events": []}


@pytest.mark.parametrize("name", PAGES)
def test_findings_are_shown_whatever_they_lack(name):
    for variant, found in rows():
        shown = PAGES[name](found)
        assert found["title"][0].lower() in shown.lower(), variant
        assert not {"None", "nan", "Undefined"} & set(
            shown.replace("<", " ").replace(">", " ").split()
        ), variant


def test_a_gain_without_the_profiler_is_no_bar_of_steps_under_it():
    bars = {}
    for plain in (True, False, None):
        found = Findings(
            pl.DataFrame(
                [row({"follows_from"}, predicted_ns=5e5, predicted_plain=plain)], schema=SCHEMA
            ),
            parts=pl.DataFrame({"rank": [0], "part": ["compute"], "ns": [1e6]}),
        )
        bars[plain] = [PAGES[name](found).count('class="bar"') for name in ("report", "card")]
    assert bars == {True: [1, 1], False: [2, 2], None: [2, 2]}


def cells():
    """A table with each kind of column, whose rows have and lack each value."""
    values = {
        kind: [None, "x"] if kind in {"text", "name", "chip"} else [None, float("nan"), 1.5]
        for kind in get_args(CellKind)
    }
    shown = tuple(ReportColumn(kind, kind, kind, full="name" * (kind == "name")) for kind in values)
    every = [
        dict(zip(values, cell, strict=True)) for cell in itertools.zip_longest(*values.values())
    ]
    return ReportTable("table", "Caption", shown, pl.DataFrame(every), sortable=True, note="Note")


def whole():
    """A page that has everything."""
    absent = [
        Absent("part", captured=captured, found=f"found {captured}", hint="hint")
        for captured in (True, False)
    ]
    blocks = [
        ReportFigure("one", "shows", "{}", note="Note", small="{}"),
        ReportFigure("two", "b", absent=absent[0]),
        cells(),
    ]
    shares = {
        "kind": ["step", "other"],
        "share": [0.5, None],
        "least": [None, 0.1],
        "rank": [1, None],
        "denominator": ["x"] * 2,
    }
    return Contents(
        "Title",
        [("Fact", "value")],
        [Section("a", "Question?", "Words.", [*blocks, *absent], ("idle",))],
        {},
        files=[("rank0.json", "1 event")],
        warnings=["Warning"],
        shares=pl.DataFrame(shares),
        reading=[("Events", "1")],
        findings=pl.DataFrame([row({"follows_from"})], schema=SCHEMA),
        path="run",
        absent=[Absent("findings", captured=True, found="none", hint="")],
        time_went=["Recorded time: 1 s"],
        changes={"a text": "llmprof try"},
        parts=pl.DataFrame({"rank": [0], "part": ["compute"], "ns": [1e6]}),
    )


def usual(field):
    """What a field of a record is where it is not given."""
    return (
        field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    )


def without(record):
    """The record without one of the values that it may lack, and without all of them but one."""
    may = [field for field in dataclasses.fields(record) if usual(field) is not dataclasses.MISSING]
    for field in may:
        yield dataclasses.replace(record, **{field.name: usual(field)})
        yield dataclasses.replace(
            record, **{other.name: usual(other) for other in may if other is not field}
        )


def test_a_page_is_shown_whatever_it_lacks(monkeypatch):
    monkeypatch.setattr(page, "vega_bundle", lambda: "")
    full = whole()
    (section,) = full.sections
    blocks = [[one] for block in section.blocks for one in (block, *without(block))]
    of_sections = [dataclasses.replace(section, blocks=blocks_) for blocks_ in [*blocks, []]]
    pages = [
        full,
        *without(full),
        *(dataclasses.replace(full, sections=[one]) for one in of_sections),
    ]
    for one in [*pages, *(dataclasses.replace(one, of_trace=False) for one in pages)]:
        shown = page.page(one)
        assert shown.count("Title") == 2
        assert shown.rstrip().endswith("</html>")


@pytest.mark.parametrize(
    "part",
    [
        "warnings",
        "facts",
        "tables",
        "findings",
        "known",
        "lines",
        "next",
        "sentences",
        "actions",
        "folded",
        "about",
    ],
)
def test_a_card_is_shown_with_one_part(part):
    finding = row(set(), number="1", meaning="a step", effects=[], show="code")
    of_part = {
        "findings": [finding],
        "known": [finding],
        "tables": [cards.CardTable("T", "a", ["b"])],
    }
    shown = cards.card("Title", picture="", **{part: of_part.get(part, [("a", "b")])})
    assert len(shown) > len(cards.card("Title"))
