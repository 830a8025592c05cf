"""Hostile names in charts stay text, through every door by which a chart, or what holds it,
becomes HTML.
"""

import io
import json

import altair as alt
import nbformat
import pytest
from altair.utils import _show
from ipywidgets import Widget
from ipywidgets.embed import embed_snippet
from nbconvert import HTMLExporter

import llmprof
from llmprof import charts, explore, report
from llmprof.charts.base.dark import _mime_bundle
from tests.charts.test_every_chart import named

EVIL = "gemm</script></style><img src=x onerror='window.ran=1'><script>window.ran=1</script><!--<script>"
RAN = "Boolean(window.ran || document.querySelector('img[src=x]'))"
STATE = "application/vnd.jupyter.widget-state+json"


def given(chart, renderer):
    """HTML that a notebook is given with a renderer of Altair."""
    with alt.renderers.enable(renderer):
        shown = chart._repr_mimebundle_()
    return (shown[0] if isinstance(shown, tuple) else shown)["text/html"]


def saved(chart, **options):
    file = io.StringIO()
    chart.save(file, format="html", **options)
    return file.getvalue()


def opened(chart, monkeypatch):
    """The page that Altair would open in a browser."""
    pages = []
    monkeypatch.setattr(_show, "open_html_in_browser", lambda page, **_: pages.append(page))
    with alt.renderers.enable("browser"):
        chart.show()
    return pages[0]


def exported(*shown, template="lab"):
    """A notebook with these outputs, as nbconvert writes it."""
    bundles = [one if isinstance(one, tuple) else (one, {}) for one in shown]
    outputs = [
        nbformat.v4.new_output("display_data", data, metadata=about) for data, about in bundles
    ]
    kept = (
        Widget.get_manager_state()
        if any("widget-view" in kind for data, _ in bundles for kind in data)
        else None
    )
    metadata = {"widgets": {STATE: kept}} if kept else {}
    cell = nbformat.v4.new_code_cell("chart", outputs=json.loads(json.dumps(outputs)))
    return HTMLExporter(template_name=template).from_notebook_node(
        nbformat.v4.new_notebook(cells=[cell], metadata=metadata)
    )[0]


CHARTS = [
    "timeline",
    "kernels",
    "roofline, of operators",
    "flame",
    "sweep_time",
    "theory_structure",
]
"""Charts of kernels, operators, runs and models: of layers, columns, rows and one mark."""

HTML_OF_ALTAIR = ["default", "html", "colab", "kaggle", "zeppelin", "olli"]
DOORS = {
    **{f"renderer {name}": lambda chart, name=name: given(chart, name) for name in HTML_OF_ALTAIR},
    "to_html": lambda chart: chart.to_html(),
    "to_html of a part": lambda chart: chart.to_html(
        fullhtml=False, requirejs=True, json_kwds={"indent": 2}
    ),
    "save": saved,
    "nbconvert": lambda chart: exported(
        {"text/html": given(chart, "default")}, _mime_bundle(chart.to_dict())
    ),
    "nbconvert, classic": lambda chart: exported(
        {"text/html": given(chart, "html")}, template="classic"
    ),
    "charts.to_html": lambda chart: charts.to_html(chart, title=EVIL),
}


@pytest.fixture
def page(browser):
    """A page that asks nothing of a network."""
    page = browser.new_page()
    page.route("http*://**", lambda route: route.abort())
    yield page
    page.close()


def ran(page, html):
    """Whether a page runs what a name in it says."""
    page.goto("about:blank")
    page.set_content(html)
    return page.evaluate(RAN)


def titled(name):
    return named(name, EVIL).properties(title=EVIL)


QUICK = ("renderer default", "to_html", "save")


@pytest.mark.parametrize(
    "door", [pytest.param(door, marks=[pytest.mark.smoke] * (door in QUICK)) for door in DOORS]
)
def test_a_chart_runs_nothing_through_any_door(page, door):
    write = DOORS[door]
    assert ran(page, alt.Chart({"values": [{}]}).mark_point().properties(title=EVIL).to_html())
    for name in CHARTS if door in ("to_html", "renderer default") else CHARTS[:2]:
        html = write(titled(name))
        assert "gemm" in html
        assert not ran(page, html), name


def parts():
    """Charts that Altair's operators and methods make of parts of ours."""
    whole = titled("timeline")
    layers, one = whole.copy(), named("kernels", EVIL).vconcat[0]
    for attribute in ("background", "config", "padding"):
        layers[attribute] = alt.Undefined
    yield from (
        whole.configure_view(stroke=None),
        whole.interactive(),
        whole.copy(),
        whole.copy(deep=["layer"]),
    )
    yield from (
        layers | one,
        layers & one,
        one | layers,
        layers + whole.layer[0],
        (layers | one) & layers,
    )
    mark = whole.layer[0].properties(title=EVIL)
    yield from (
        mark + mark,
        mark | mark,
        mark & mark,
        mark.repeat(["x", "y"]),
        mark.facet("lane:N", columns=2),
    )
    yield mark.facet("lane:N", columns=2) | (mark.repeat(["x"]) & mark)


@pytest.mark.smoke
# the same chart stands twice in one
@pytest.mark.filterwarnings("ignore:Automatically deduplicated selection parameter")
def test_what_is_made_of_charts_runs_nothing(page, monkeypatch):
    for number, chart in enumerate(parts()):
        html = chart.to_html()
        assert "gemm" in html
        for text in (html, given(chart, "default"), saved(chart), opened(chart, monkeypatch)):
            assert not ran(page, text), number


def test_drawn_names_stay_text(page, tmp_path):
    """Pages that have Vega inside draw, and say what the pointer is on."""
    chart = titled("kernels")
    ours, picture, of_altair = (
        tmp_path / name for name in ("ours.html", "picture.svg", "altair.html")
    )
    charts.save(chart, ours)
    charts.save(chart, picture)
    chart.save(of_altair, inline=True)
    for path in (ours, picture, of_altair):
        page.goto(path.as_uri())
        drawn = page.locator("canvas.marks, svg").first
        drawn.wait_for()
        box = drawn.bounding_box()
        if path is not picture:
            for y in range(
                int(box["y"]), int(box["y"] + box["height"]), 8
            ):  # over the bar of the kernel
                page.mouse.move(box["x"] + 0.4 * box["width"], y)
                if said := page.locator("#vg-tooltip-element.visible").all_text_contents():
                    break
            assert "gemm</script>" in said[0]
        assert not page.evaluate(RAN)


@pytest.mark.smoke
def test_what_holds_charts_and_names_runs_nothing(page, tmp_path):
    """The report, its cards, and widgets in exported pages."""
    recording = tmp_path / f"{EVIL.replace('/', '_')}.json"
    event = {"ph": "X", "pid": 0, "tid": 7, "dur": 5}
    kernels = [
        {**event, "cat": "kernel", "name": EVIL, "ts": 10 * i, "args": {"stream": 7, "device": 0}}
        for i in range(9)
    ]
    ops = [{**event, "cat": "cpu_op", "name": EVIL, "tid": 1, "ts": 10 * i} for i in range(9)]
    recording.write_text(json.dumps({"traceEvents": kernels + ops}), "utf-8")
    trace = llmprof.read(recording, cache=False)
    found = trace.findings()
    widgets = [explore.kernels(trace), explore.timeline(trace)]
    pages = {
        "report": report.html(trace, title=EVIL),
        "cards": exported({"text/html": trace._repr_html_() + found._repr_html_()}),
        "widgets in nbconvert": exported(*(one._repr_mimebundle_() for one in widgets)),
        "widgets in a page": embed_snippet(widgets),
    }
    for name, html in pages.items():
        assert "gemm" in html, name
        assert not ran(page, html), name
