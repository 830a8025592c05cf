"""The page: self-contained, safe with any name, and silent about nothing."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import polars as pl
import pytest

from llmprof import analyze, report
from llmprof.errors import AnalysisError, TraceWarning
from llmprof.findings.scope import scope_of
from llmprof.report import cards, figures, folder, page, sections
from llmprof.report.page import ReportColumn, ReportFigure, ReportTable, Section, table_html
from llmprof.trace import Trace
from tests.analyze.builders import GEMM, kernels, labels, launches
from tests.charts import specs
from tests.report.conftest import PNG
from tests.test_errors import Panic


class Parsed(HTMLParser):
    """Elements of a page, with the text of scripts."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.elements = []
        self.scripts = []
        self.words = []
        self._inside = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside.append(tag)
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data):
        if self._inside and self._inside[-1] == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        elif not self._inside:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def policy(parsed):
    (content,) = [
        a["content"] for _, a in parsed.elements if a.get("http-equiv") == "Content-Security-Policy"
    ]
    return dict(part.strip().split(" ", 1) for part in content.split(";"))


@pytest.fixture(scope="module")
def hostile_page(hostile):
    return report.html(hostile, title="<b>title</b> & 'more'")


@pytest.fixture(scope="module")
def parsed(hostile_page):
    return Parsed(hostile_page)


def test_nothing_is_loaded_and_no_name_becomes_an_element(parsed):
    runnable = [
        text for attributes, text in parsed.scripts if attributes.get("type") != "application/json"
    ]
    assert len(runnable) == 2
    hashes = {
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in runnable
    }
    assert set(policy(parsed)["script-src"].split()) == hashes
    said = policy(parsed)
    assert said["default-src"] == "'none'"
    assert said["img-src"] == "data: blob:"
    assert not re.search(r"https?:|\*|unsafe-eval", " ".join(said.values()))
    allowed = {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "header",
        "h1",
        "p",
        "nav",
        "a",
        "main",
        "noscript",
        "div",
        "h2",
        "h3",
        "dl",
        "dt",
        "dd",
        "details",
        "summary",
        "ul",
        "li",
        "table",
        "tr",
        "td",
        "th",
        "span",
        "i",
        "hr",
        "section",
        "ol",
        "b",
        "small",
        "caption",
        "thead",
        "tbody",
        "button",
        "figure",
        "figcaption",
        "footer",
        "script",
        "code",
    }
    assert {tag for tag, _ in parsed.elements} <= allowed
    for tag, attributes in parsed.elements:
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith("#"), tag
        assert not [name for name in attributes if name.startswith("on")], tag
    assert "<b>title</b> & 'more'" in parsed.text
    titles = [
        attributes["title"]
        for tag, attributes in parsed.elements
        if tag == "td" and "title" in attributes
    ]
    assert "gemm</script><script>document.body.id='broken'</script>" in titles
    assert any("<script>alert(1)</script>" in title for title in titles)
    assert not any("\x00" in title or "\x1b" in title for title in titles)


def test_specifications_are_data_that_parse(parsed):
    content = [
        (a, json.loads(text)) for a, text in parsed.scripts if a.get("type") == "application/json"
    ]
    specs = {a["data-chart"]: spec for a, spec in content if "data-chart" in a}
    (colours,) = (table for a, table in content if a.get("id") == "dark-colours")
    assert set(colours) & {"#1F2933", "#FEFEFE"}
    assert set(specs) == {
        "breakdown",
        "categories",
        "layers",
        "overlap",
        "collectives",
        "idle",
        "launch_delay",
        "step_timeline",
        "layer_timeline",
        "critical_path",
    }
    places = {attributes["id"] for tag, attributes in parsed.elements if "id" in attributes}
    assert {f"chart-{name}" for name in specs} <= places
    names = json.dumps(specs["step_timeline"])
    assert "<!--<script>" in names
    ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = {attributes["href"] for tag, attributes in parsed.elements if tag == "a"}
    assert {link.removeprefix("#") for link in links} <= set(ids)


def test_what_was_not_captured_is_said_with_its_option():
    text = Parsed(report.html(Trace({}))).text
    assert (
        "Not captured: findings. This capture holds no kernels, copies or operators. To have it, record"
        in text
    )
    (parts,) = re.findall(
        r"Not captured: ([^.]*time by phase and stage; [^.]*)\. This capture holds no kernels, copies",
        text,
    )
    assert {"time by rank and category", "time of each kernel"} <= set(
        parts.split("; ")
    )  # for the same reason
    assert "no rank" in text
    assert not re.search(r"\b0(\.0)? ?(%|ns|us|ms)", text)


def test_without_launches_the_delay_is_absent_and_not_zero(small):
    tables = {name: frame for name, frame in small.tables.items() if name != "runtime"}
    absent = figures.make_figure(Trace(tables, small.meta), figures.LAUNCH_DELAY).absent
    assert absent is not None
    assert not absent.captured
    assert "host activity (torch: ProfilerActivity.CUDA" in absent.hint


def test_a_chart_in_which_everything_is_other_is_left_out(small):
    unknown = small.tables["kernels"].with_columns(
        name=pl.lit("acme"), op_id=None, correlation=None
    )
    trace = Trace({"kernels": unknown})
    for drawing, reason in (
        (figures.BREAKDOWN, "known stage"),
        (figures.CATEGORIES, "known category"),
    ):
        absent = figures.make_figure(trace, drawing).absent
        assert absent is not None
        assert absent.captured
        assert reason in absent.found
        assert figures.make_figure(small, drawing).absent is None


def test_a_chart_of_what_is_mostly_unknown_is_left_out():
    of = {
        "cause": ["host-bound", "unknown"],
        "part": ["compute", "unexplained"],
        "category": ["gemm", None],
    }
    for column, (known, unknown) in of.items():
        little = pl.DataFrame({column: [known, unknown], "dur_ns": [10, 90]})
        with pytest.raises(AnalysisError, match=re.escape("90.0 %")):
            cards.some_known(little, column)
        assert cards.some_known(little.with_columns(dur_ns=pl.Series([11, 89])), column).height == 2


def test_charts_and_findings_are_of_the_same_steps():
    at = [0, 900, 960, 962, 964, 966, 968, 970]
    run = pl.concat([kernels([(GEMM, 1000)], start=1000 * start, first=1 + start) for start in at])
    marks = labels([(f"ProfilerStep#{n}", 1000 * start, 50) for n, start in enumerate(at)])
    trace = Trace({"kernels": run, "markers": marks, "runtime": launches(run, lead=0)})
    chart = figures.make_figure(trace, figures.OVERLAP)
    assert "first 2 steps" in chart.note
    assert scope_of(trace).parts == 6
    _, note = figures.draw_chart(trace, figures.IDLE)
    assert "first 2 steps" in note
    drawn, _ = figures.draw_chart(trace, figures.OVERLAP)
    assert "6.00 us" in json.dumps(drawn.to_dict())  # six steps of 1 us


def test_operators_of_a_run_on_the_cpu_are_no_kernels(sample_trace):
    trace = sample_trace("torch_cpu_tp2_layer_annotations")
    for drawing in (figures.BREAKDOWN, figures.CATEGORIES):
        spec = figures.make_figure(trace, drawing).spec
        assert "Operators on the host" in spec
        assert "operator time" in spec
        assert "device time" not in spec.lower()
    drawn = (figures.OVERLAP, figures.STEP_TIMELINE, figures.LAYER_TIMELINE, figures.COLLECTIVES)
    for drawing in drawn:
        words = " ".join(
            specs.texts_of(json.loads(figures.make_figure(trace, drawing).spec))
        ).lower()
        assert not re.search(r"\b(device time|streams?|kernels?)\b", words), drawing
    assert '"thread ' in figures.make_figure(trace, figures.STEP_TIMELINE).spec
    assert cards.shares(analyze.coverage(trace))["kind"].to_list() == [
        "step",
        "stage",
        "category",
    ]


@pytest.mark.usefixtures("quick")
def test_losses_and_missing_ranks_stand_at_the_top(small):
    meta = small.meta | {"world_size": 4, "missing_ranks": [2, 3]}
    lost = {
        "rank": 1,
        "file": "rank1.json",
        "truncated": "the file ends inside an event",
        "lost_bytes": 1234,
    }
    coverage = small.coverage | {"files": [lost], "lost_bytes": 1234, "lost_pieces": 1}
    parsed = Parsed(report.html(Trace(small.tables, meta, coverage)))
    assert "Ranks 2-3 of 4 are missing: waiting for them cannot be seen." in parsed.text
    assert "rank1.json: the file ends inside an event; 1,234 bytes were lost." in parsed.text
    assert "1,234 bytes, about 1 event" in parsed.text
    order = [parsed.text.index(words) for words in ("are missing", "Show me")]
    assert order == sorted(order)


def sections_of(*blocks):
    return [
        Section(anchor, f"{anchor}?", "", shown, evidence) for anchor, evidence, shown in blocks
    ]


def finding(evidence, where="true", share=0.5):
    return {"order": 1, "evidence": evidence, "where": where, "share": share}


def test_each_finding_leads_to_what_shows_its_evidence():
    table = ReportTable("kernels", "", (), pl.DataFrame())
    sections = sections_of(
        (
            "steps",
            ("steps",),
            [ReportFigure("breakdown", "a", "{}"), ReportFigure("categories", "b", "{}")],
        ),
        (
            "communication",
            ("overlap", "collectives"),
            [ReportFigure("overlap", "c", "{}"), ReportFigure("all_reduce", "d")],
        ),
        ("idle", ("idle",), [ReportFigure("idle", "e", "{}")]),
        ("kernels", ("kernels",), [table]),
    )
    assert page.evidence_place(finding("events", "stage = 'norm'"), sections) == "figure-breakdown"
    assert (
        page.evidence_place(finding("events", "category IN ('copy', 'fill')"), sections)
        == "figure-categories"
    )
    assert page.evidence_place(finding("events", "dur_ns < 5000"), sections) == "table-kernels"
    assert page.evidence_place(finding("idle"), sections) == "figure-idle"
    assert page.evidence_place(finding("collectives"), sections) == "communication", (
        "its figure is empty"
    )
    assert page.evidence_place(finding("launch_path"), sections) is None


def test_what_is_empty_has_no_section_but_one_line(small):
    tables = {
        name: frame for name, frame in small.select(rank=0).tables.items() if name != "runtime"
    }
    text = report.html(Trace(tables, {"world_size": 1}))
    parsed = Parsed(text)
    coverage = text[text.index('id="coverage"') :]
    assert 'class="absent"' in coverage
    links = {
        attributes["href"]
        for tag, attributes in parsed.elements
        if tag == "a" and "href" in attributes
    }
    sections = {attributes["id"] for tag, attributes in parsed.elements if tag == "section"}
    assert {
        link.removeprefix("#") for link in links if not link.startswith(("#figure-", "#table-"))
    } <= sections
    assert 'class="card absent"' not in text
    text = report.html(Trace({}))
    sections = {attributes["id"] for tag, attributes in Parsed(text).elements if tag == "section"}
    assert sections == {"findings", "coverage"}
    assert 'class="absent"' in text


@pytest.mark.usefixtures("quick")
def test_a_finding_names_the_command_that_opens_its_place(small):
    text = Parsed(report.html(small, path="runs/my run")).text
    assert "llmprof explore runs/my run --finding 1" in text
    assert 'explore.open(llmprof.read("runs/my run")).show_finding(1)' in text
    assert "llmprof export runs/my run -o tables.xlsx" in text


@pytest.mark.usefixtures("quick")
def test_a_part_that_fails_costs_no_other(small, tmp_path, monkeypatch):
    every = report.write(small, tmp_path / "every")

    def broken(*_, **options):
        raise Panic("a bug")

    def run(analysis, trace, **more):
        return (
            page.attempt("idle", broken)
            if analysis.name == "idle"
            else page.run_analysis(analysis, trace, **more)
        )

    left = iter([broken])
    monkeypatch.setattr(folder, "run_analysis", run)
    first, *others = sections.SECTIONS
    steps, *more = first.analyses
    first = replace(first, analyses=(replace(steps, table=broken), *more))
    monkeypatch.setattr(sections, "SECTIONS", (first, *others))
    monkeypatch.setattr(folder, "png", lambda spec: next(left, lambda: PNG)())
    with pytest.warns(TraceWarning, match="Panic: a bug") as warned:
        some = report.write(small, tmp_path / "some")
    assert len(warned) == 3
    assert len(some.pngs) == len(every.pngs) - 1
    assert {path.name for path in every.csvs} - {path.name for path in some.csvs} == {"idle.csv"}
    assert all(path.is_file() for path in (some.index, some.summary, *some.pngs, *some.csvs))
    absent = json.loads(some.summary.read_text("utf-8"))["absent"]
    assert [row["found"] for row in absent if row["part"] == "idle"] == [
        "idle failed: Panic: a bug"
    ]


def test_a_figure_that_fails_is_absent_with_the_reason(small):
    def broken(subject):
        raise Panic("a bug")

    with pytest.warns(TraceWarning, match="Panic: a bug"):
        drawn = figures.make_figure(small, figures.Drawing("mine", "all of it", broken))
    assert drawn.absent is not None
    assert (drawn.spec, drawn.absent.captured) == ("", True)


def test_names_that_differ_in_the_middle_stay_apart():
    names = [f"experiment_of_some_length_batch-{n}_and_more_of_it_20261129-052843" for n in (1, 2)]
    table = ReportTable(
        "a", "b", (ReportColumn("run", "run", "name"),), pl.DataFrame({"run": names})
    )
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", table_html(table))
    assert len(set(cells)) == 2
    assert max(map(len, cells)) <= 44
