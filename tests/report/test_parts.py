"""The parts of a report: what is drawn of a big trace, words, figures and cells."""

import json
import re
import subprocess
import sys

import altair as alt
import polars as pl
import pytest

import llmprof
from llmprof import analyze
from llmprof.analyze.events import typical_step
from llmprof.charts.bars import COLOURS, step_bars
from llmprof.charts.base import theme
from llmprof.errors import AnalysisError, NotCapturedError
from llmprof.findings.card import chain_findings, headline_number
from llmprof.report import figures, page, sections, tables
from llmprof.report.page import Absent, ReportColumn, ReportFigure, ReportTable, table_html
from llmprof.report.tables import steps_table
from llmprof.trace import Trace
from llmprof.trace.platforms import ON_HOST
from tests.building import table_of


def test_what_is_large_is_drawn_in_part(monkeypatch, small):
    frame = pl.DataFrame({"rank": list(range(8))})
    kept, note = figures.fewer_ranks(frame, cells=10, limit=39, file="x.csv")
    assert kept["rank"].to_list() == [0, 2, 5]
    assert note == "Drawn: 3 of 8 ranks (0, 2, 5); x.csv has all."
    frame = pl.DataFrame({"rank": [0] * 10 + [1] * 10, "step": list(range(10)) * 2})
    kept, note = figures.fewer_steps(frame, limit=7, file="x.csv")
    assert kept["step"].to_list() == [0, 3, 6, 9, 0, 3, 6, 9]
    assert note == "Drawn: one step in 3, 8 of 20 rows; x.csv has all."
    monkeypatch.setattr(figures, "MAX_CELLS", 3)
    chart = figures.make_figure(small, figures.LAYERS)
    assert chart.spec
    assert chart.note == "Drawn: 1 of 2 ranks (0); analyze.layers(trace) has all."


def test_the_typical_step_has_the_median_span():
    kernels = [
        {
            "rank": 0,
            "device": 0,
            "stream": 7,
            "start_ns": start,
            "dur_ns": dur,
            "name": "flash_fwd",
            "correlation": i,
        }
        for i, (start, dur) in enumerate(
            [(1_000, 100), (2_000, 120), (3_000, 90), (4_000, 105), (5_000, 110)]
        )
    ]
    labels = [
        {
            "rank": 0,
            "thread": 1,
            "start_ns": k["start_ns"] - 10,
            "dur_ns": 5,
            "domain": "user",
            "on_device": False,
        }
        | {"name": "execute_context_0(0)_generation_1(1)"}
        for k in kernels
    ]
    calls = [
        {
            "rank": 0,
            "thread": 1,
            "start_ns": k["start_ns"] - 8,
            "dur_ns": 2,
            "name": "cudaLaunchKernel",
        }
        | {"api": "runtime", "correlation": k["correlation"]}
        for k in kernels
    ]
    trace = Trace(
        {
            "kernels": pl.DataFrame(kernels),
            "markers": pl.DataFrame(labels),
            "runtime": pl.DataFrame(calls),
        }
    )
    # the first decode step is left out of the steady state: 120, 90, 105, 110 remain, the lower
    # median is 105
    assert typical_step(trace) == 3
    rows = [
        (0, 0, 0, 10),
        (0, 1, 10, 10),
        (0, 2, 20, 10),
        (1, 0, 500, 10),
        (1, 1, 510, 10),
        (1, 2, 520, 10),
    ]
    events = table_of("rank layer start_ns dur_ns", rows)
    assert figures.middle_layer(events) == (1, 10, 20)
    beside = events.with_columns(
        pl.when(pl.col("rank") == 1)
        .then(pl.col("start_ns") - 498)
        .otherwise("start_ns")
        .alias("start_ns")
    )
    assert figures.middle_layer(beside) == (1, 10, 22)
    with pytest.raises(AnalysisError, match="no layer was found"):
        figures.middle_layer(events.with_columns(layer=pl.lit(None, dtype=pl.Int32)))


def test_steps_by_phase():
    steps = pl.DataFrame(
        {
            "rank": [0, 0, 1, 1],
            "step": [0, 1, 0, 1],
            "phase": ["decode", "prefill", "decode", "prefill"],
            "host_dur_ns": [10, None, 30, None],
            "dur_ns": [100, 500, 300, 700],
            "prefill_tokens": [0, 64, 0, 64],
            "decode_requests": [4, 0, 4, 0],
            "source": ["vllm"] * 4,
        }
    )
    rows = steps_table(steps).frame.rows(named=True)
    assert [row["phase"] for row in rows] == ["prefill", "decode"]
    assert rows[1] == {
        "phase": "decode",
        "steps": 1,
        "prefill_tokens": 0,
        "decode_requests": 4,
        "mean": 200,
        "median": 200,
        "least": 100,
        "most": 300,
        "host": 20,
    }
    assert rows[0]["host"] is None
    assert steps_table(steps).note.endswith("vLLM's labels.")
    # the median is shown where it is another time than the mean
    assert "median" not in {column.key for column in steps_table(steps).columns}
    skewed = pl.concat([steps, steps.filter(rank=0, step=0)]).with_columns(phase=pl.lit("other"))
    made = steps_table(skewed)
    assert made.frame.select("phase", "mean", "median").rows() == [("unknown", 340.0, 300.0)]
    assert {"mean", "median"} <= {column.key for column in made.columns}


def test_cells_have_units_and_unknown_is_no_zero():
    columns = (
        ReportColumn("n", "runs", "number"),
        ReportColumn("t", "time", "time"),
        ReportColumn("s", "share", "share"),
    )
    frame = pl.DataFrame({"n": [1234, None], "t": [4200.0, float("nan")], "s": [0.0001, 0.25]})
    made = table_html(ReportTable("x", "caption", columns, frame))
    assert ">1,234<" in made
    assert ">4.20 us<" in made
    assert ">&lt; 0.1 %<" in made
    assert ">25.0 %<" in made
    assert made.count(">–<") == 2


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"figure": 4.2e6, "unit": "ns a step", "scope": "steps"}, ("4.20 ms", "a step")),
        (
            {"figure": 4.2e6, "unit": "ns a step", "scope": "mixed steps"},
            ("4.20 ms", "a mixed step"),
        ),
        (
            {"figure": 7e9, "unit": "ns a rank", "scope": "whole recording"},
            ("7.00 s", "of the recorded time"),
        ),
        (
            {
                "figure": 9e6,
                "unit": "ns a step",
                "scope": "steps",
                "predicted_ns": 5e6,
                "predicted_low_ns": 4e6,
                "predicted_high_ns": 6e6,
                "predicted_plain": True,
            },
            ("5.00 ms", "saved a step without the profiler, predicted, 4.00 ms to 6.00 ms"),
        ),
    ],
)
def test_the_number_of_a_finding(row, said):
    assert headline_number(row) == said


def test_bars_add_up_and_the_remedy_is_shorter():
    parts = pl.DataFrame(
        {"rank": [0, 0, 1], "part": ["compute", "wait", "late"], "ns": [1e6, 3e6, 4e6]}
    )
    made = step_bars(parts, {"predicted_ns": 3e6})
    assert re.findall(r"width:([\d.]+)%", made) == ["24.88", "74.62", "99.50", "24.88"]
    assert re.findall(r'class="sum"[^>]*>([^<]*)<', made) == ["4.00 ms", "4.00 ms", "1.00 ms"]
    assert (
        step_bars(parts, {"predicted_ns": 5e6}).count('class="bar"') == 2
    )  # no step gets shorter than nothing
    assert step_bars(None, {}) == ""
    many = pl.concat(
        [
            parts.filter(rank=0).with_columns(rank=pl.lit(rank), ns=pl.col("ns") * rank)
            for rank in range(64)
        ]
    )
    assert step_bars(many, {}).count('class="bar"') == 8
    assert ">rank 63<" in step_bars(many, {})


@pytest.mark.parametrize(("kind", "captured"), [(NotCapturedError, False), (AnalysisError, True)])
def test_a_figure_that_cannot_be_drawn_says_why(kind, captured):
    def refuse(subject):
        raise kind("none", hint="record it")

    drawn = figures.make_figure(None, figures.Drawing("x", "something", refuse))
    assert (drawn.spec, drawn.absent.captured, drawn.absent.found, drawn.absent.hint) == (
        "",
        captured,
        "none",
        "record it",
    )


def test_the_data_of_a_chart_stand_in_a_page_once_as_columns():
    rows = [{"name": name, "x": 0.1234567890123, "n": 1} for name in ("a", "a", "a", "b", "b", "b")]
    other = [{"x": 1.0}, {"y": None}]
    wide = {
        "datasets": {"data-1": rows, "data-2": other},
        "layer": [{"data": {"name": "data-1"}}],
        "width": 900,
    }
    small = {"datasets": {"data-1": rows}, "width": 326}
    text = page.pack_specifications(json.dumps(wide), json.dumps(small))
    assert json.loads(text) == {
        "tables": {
            "data-1": {
                "name": {"words": ["a", "b"], "at": [0, 0, 0, 1, 1, 1]},
                "x": [0.123456789] * 6,
                "n": [1] * 6,
            },
            "data-2": other,
        },
        "wide": {
            "datasets": ["data-1", "data-2"],
            "layer": [{"data": {"name": "data-1"}}],
            "width": 900,
        },
        "narrow": {"datasets": ["data-1"], "width": 326},
    }
    assert "narrow" not in json.loads(page.pack_specifications(json.dumps(wide)))


def test_a_chart_is_laid_out_twice_and_the_layout_is_given_back():
    widths = []

    def draw():
        widths.append(theme.inner())
        if len(widths) == 3:
            raise AnalysisError("no")
        return alt.Chart().mark_point().properties(width=theme.inner())

    wide, small = page.twice(draw)
    assert widths == [864, 318]
    assert [json.loads(one)["width"] for one in (wide, small)] == [864, 318]
    with pytest.raises(AnalysisError), theme.narrow():
        draw()
    assert theme.inner() == 864
    assert page.twice(lambda: alt.Chart().mark_point())[1] == ""


def test_chains_of_kernels_as_a_table_and_a_sentence_where_there_are_none(small):
    found = analyze.fusion(small)
    none = tables.fusion_table(found.clear())
    assert isinstance(none, Absent)
    assert none.captured
    given = {
        "name": "norm + quantize",
        "category": "norm + quantize",
        "length": 3,
        "per_step": 3.0,
    }

    def chains(*gains, share=0.0):
        rows = [
            given | {"gain_ns": ns, "recorded_ns": ns and 1000.0, "total_ns": 500, "share": share}
            for ns in gains
        ]
        return pl.concat([found.clear(), pl.DataFrame(rows)], how="diagonal_relaxed")

    assert isinstance(
        tables.fusion_table(chains(9.9)), Absent
    )  # below 1 % of a step, as in the findings
    assert isinstance(tables.fusion_table(chains(9.9, None)), Absent)
    (row,) = tables.fusion_table(chains(9.9, 200.0, None)).frame.rows(named=True)
    assert (row["chain"], row["launches"], row["gain_share"]) == (
        "norm + quantize",
        6.0,
        0.2,
    )
    assert tables.fusion_table(chains(9.9, None, share=0.06)).frame["gain_ns"].to_list() == [
        None
    ]  # not replayed
    assert tables.fusion_table(chains(None, None)).frame.height == 2  # no chain was replayed


def test_sections_ask_what_the_recording_can_answer(small):
    """Without steps and collectives the headings speak of neither."""
    frames = {"steps": analyze.steps(small), "collectives": analyze.collectives(small)}
    planned = sections.report_sections()
    drawn = {
        drawing.name: ReportFigure(drawing.name, drawing.shows, spec="{}")
        for section in planned
        for one in section.analyses
        for drawing in one.figures
    }

    def heads(frames):
        made = sections.page_sections(planned, drawn, frames)
        return {one.anchor: f"{one.question} {one.words}" for one in made}

    full, bare = heads(frames), heads({name: frame.clear() for name, frame in frames.items()})
    assert full["steps"].startswith("Where does a step go?")
    assert "kernels and copies" in full["steps"]
    assert "waiting" in full["communication"]
    assert "No steps were found" in bare["steps"]
    assert "ollecti" not in bare["communication"]
    # a run on the CPU has operators and threads, with tables that say so
    on_host = sections.page_sections(
        planned, drawn, frames | {"kernels": analyze.kernels(small)}, ON_HOST
    )
    said = " ".join(f"{one.question} {one.words}" for one in on_host)
    assert "Which operators are hot?" in said
    for anchor in ("steps", "kernels", "communication", "layers", "timeline"):
        [one] = [one for one in on_host if one.anchor == anchor]
        assert "{" not in one.question + one.words
        assert not re.search(r"\b(kernels?|streams?|device time)\b", one.question + one.words)
        heads = {
            column.head
            for block in one.blocks
            if isinstance(block, ReportTable)
            for column in block.columns
        }
        assert not {"kernel", "device time"} & heads


# --- cards: what a trace, a run, metrics and findings say of themselves in a notebook


HOSTILE = '<script>alert(1)</script>"\x1b[31m'


def test_a_trace_says_ranks_steps_coverage_and_what_to_ask(sample_trace):
    shown = sample_trace("torch_tp4_eager_nccl")._repr_html_()
    for words in (
        "4 ranks",
        "28 layers",
        "NVIDIA H200",
        "prefill",
        "decode",
        "analyze.findings(trace)",
    ):
        assert words in shown
    bundle = sample_trace("torch_tp4_eager_nccl").summary()._repr_mimebundle_()
    assert bundle["text/html"] == shown
    assert bundle["text/plain"].startswith("<Trace 4 ranks")


def test_warnings_and_names_are_escaped():
    kernels = pl.DataFrame({"rank": [0], "start_ns": [0], "dur_ns": [5], "name": [HOSTILE]})
    meta = {
        "device": HOSTILE,
        "world_size": 4,
        "missing_ranks": [1, 2, 3],
        "versions": {HOSTILE: HOSTILE},
    }
    shown = Trace({"kernels": kernels}, meta, {"warnings": [HOSTILE]})._repr_html_()
    assert "<script>" not in shown
    assert "\x1b" not in shown
    assert "Ranks 1-3 of 4 are missing" in shown
    assert shown.count("class=&quot;") == 0


@pytest.mark.parametrize("tables", [{}, {"kernels": llmprof.trace.schema.empty("kernels")}])
def test_a_trace_of_nothing_shows_itself(tables):
    assert "no rank" in Trace(tables)._repr_html_()


def test_metrics_show_their_longest_launches():
    metrics = llmprof.sample_metrics("ncu_tp1_eager")
    shown = metrics._repr_html_()
    assert "Hardware metrics of 24 launches" in shown
    assert "analyze.ncu.speed_of_light(metrics)" in shown
    found = metrics.findings()
    causes, effects, facts = chain_findings(found.frame)
    assert [row["order"] for row in causes] == found["order"].to_list()
    assert (effects, facts) == ({}, [])
    assert found["rule"].n_unique() < found.height
    assert f"{found.height} findings" in found._repr_html_()


def test_findings_are_sentences_and_a_frame(sample_trace):
    found = sample_trace("torch_tp4_eager_nccl").findings()
    shown = found._repr_html_()
    ranked = (pl.col("severity") != "info") | (pl.col("rule") == "heaviest_stage")
    causes = found.filter(ranked, pl.col("follows_from").is_null())
    assert f"{causes.height} findings" in shown
    assert found.time_went[0] in shown
    assert found["evidence"][0] in shown
    assert "One finding" in found.head(1)._repr_html_()
    for some in (found.head(2), found.filter(severity="low")):
        assert found.time_went[0] in some._repr_html_()
    assert isinstance(found.select("title"), pl.DataFrame)
    assert found[0].equals(found.frame.head(1))
    assert [row["order"] for row in found] == list(range(1, len(found) + 1))


@pytest.mark.parametrize("name", ["timeline", "layers", "overlap", "collectives", "kernels"])
def test_explorers_say_what_they_show_where_no_widget_can(sample_trace, name):
    widget = getattr(llmprof.explore, name)(
        sample_trace("torch_tp1_eager"), rank=0, window=[0, 1_000_000]
    )
    data = widget._repr_mimebundle_()[0]
    assert data["text/plain"].startswith(f"<{type(widget).__name__} of Trace 1 rank")
    assert "0 ns to 1.00 ms" in data["text/plain"] or "to 1 ms" in data["text/plain"]
    assert "0x" not in data["text/plain"]


# --- A report where the charts cannot be drawn: everything else is in it


resource = pytest.importorskip("resource")

PROGRAM = """
import resource, sys
from tests.report.builders import build
from llmprof import report
trace = build()
resource.setrlimit(resource.RLIMIT_AS, (16 << 30, resource.RLIM_INFINITY))
report.write(trace, sys.argv[1])
"""


def test_a_limit_of_the_address_space_costs_the_pictures_not_the_report(tmp_path):
    folder = tmp_path / "report"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    assert summary["findings"]
    assert any("address space" in absent["found"] for absent in summary["absent"])
    assert list(folder.glob("*.csv"))
    assert not list(folder.glob("*.png"))
    assert "Where the time goes" in (folder / "index.html").read_text("utf-8")


def test_bars_have_the_colours_of_the_charts_and_ink_that_is_read_on_them():
    of_charts = [theme.COMPUTE, theme.COMMUNICATION, theme.UNMATCHED, theme.WAIT, theme.COPY]
    assert list(COLOURS.values()) == [*of_charts, theme.CAUSES["host_bound"], theme.REST]
    parts = pl.DataFrame({"rank": 0, "part": [*COLOURS], "ns": 1e6})
    for ink, ground in re.findall(r"color:(#\w+);background-color:(#\w+)", step_bars(parts, {})):
        assert theme.contrast({"#fff": theme.WHITE, "#000": theme.BLACK}[ink], ground) >= 4.5
