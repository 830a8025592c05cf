"""What holds for every chart: valid, drawn, readable, the same each time, and text stays text."""

import hashlib
import json
import re
import subprocess
import sys
from functools import cache

import altair as alt
import polars as pl
import pytest
import vl_convert

from llmprof import charts
from llmprof.charts import themed
from llmprof.charts.base.dark import dark_colours, in_the_dark, notebook_style
from llmprof.charts.base.save import to_png_bytes, vega_bundle, vega_lite_version
from llmprof.charts.base.script import ScriptSafe
from llmprof.charts.base.theme import INK, MUTED, NARROW, PAPER
from llmprof.errors import AnalysisError
from tests.charts import frames, specs

pytestmark = pytest.mark.xdist_group("charts")  # they look at the same charts


CHARTS = {
    "timeline": (lambda f: charts.timeline(f, window=(26_500_000, 27_300_000)), frames.attributed),
    "timeline, merged": (charts.timeline, frames.attributed),
    "timeline, by stage": (
        lambda f: charts.timeline(f.filter(rank=0), lane="stage"),
        frames.attributed,
    ),
    "timeline, by category": (
        lambda f: charts.timeline(f, lane="category", color="category"),
        frames.attributed,
    ),
    "layers": (charts.layers, frames.layered),
    "ranks": (charts.ranks, frames.ranked),
    "ranks, of groups": (charts.ranks, frames.late),
    "utilization": (charts.utilization, frames.used),
    "breakdown": (charts.breakdown, frames.attributed),
    "breakdown, by rank": (
        lambda f: charts.breakdown(f, rows="rank", color="category"),
        frames.attributed,
    ),
    "overlap": (charts.overlap, frames.overlapped),
    "collectives": (charts.collectives, frames.called),
    "idle": (charts.idle, frames.idled),
    "critical_path": (charts.critical_path, frames.path),
    "diff": (charts.diff, frames.compared),
    "flame": (charts.flame, frames.stacked),
    "launch_delay": (charts.launch_delay, frames.delayed),
    "roofline": (charts.roofline, frames.profiled),
    "roofline, by bound": (
        lambda f: charts.roofline(f.drop("stage"), peaks="NVIDIA H200"),
        frames.profiled,
    ),
    "roofline, of operators": (lambda f: charts.roofline(f, peaks="NVIDIA H200"), frames.operated),
    "opportunities": (charts.opportunities, frames.gained),
    "stalls": (charts.stalls, frames.stalled),
    "counters": (charts.counters, frames.sampled),
    "latencies": (charts.latencies, frames.requested),
    "requests": (charts.requests, frames.joined_requests),
    "kernels": (charts.kernels, frames.summed),
    "cuda_api": (charts.cuda_api, frames.called_api),
    "latencies, summed": (charts.latencies, frames.summarised),
    "sweep_latency": (charts.sweep_latency, frames.swept),
    "sweep_throughput": (charts.sweep_throughput, frames.swept),
    "sweep_scaling": (charts.sweep_scaling, frames.swept),
    "sweep_time": (charts.sweep_time, frames.went),
    "trial_effects": (charts.trial_effects, frames.tried),
    "study_pareto": (charts.study_pareto, frames.studied),
    "study_slices": (charts.study_slices, frames.sliced),
    "dashboard": (
        lambda f: charts.dashboard(
            figures=[("Each further token", "4.60 ms"), ("Peak memory", "55.0 GiB")],
            request_summary=f,
            where=frames.went().filter(point=0),
            kernels=frames.summed(),
            counters=frames.sampled(),
            subtitle="one run",
        ),
        frames.summarised,
    ),
    "theory_structure": (charts.theory_structure, frames.by_theory),
    "theory_shares": (charts.theory_shares, frames.by_theory),
    "theory_parameters": (charts.theory_parameters, frames.weighed),
    "theory_roofline": (lambda f: charts.theory_roofline(f, "H200"), frames.by_theory),
    "theory_curves": (charts.theory_curves, frames.ranged),
    "theory_memory": (charts.theory_memory, frames.ranged),
    "roofline, of a model": (charts.roofline, frames.joined),
    "predicted": (charts.predicted, frames.predictions),
}
_RATES = ("ranks, of groups", "sweep_throughput", "sweep_scaling", "trial_effects", "study_slices")
_RATES += ("theory_shares", "theory_parameters", "theory_memory")
"""Charts without a time."""

_NAMED = {
    "latencies, summed": ("phase", "metric"),
    "sweep_time": ("part",),
    "trial_effects": ("verdict",),
    "study_pareto": ("kind",),
}
"""Columns whose names llmprof gives."""

HOSTILE = "\"><img src=x onerror='alert(1)'></script><script>alert(2)</script>${1+1}\u2028\\"


@cache
def drawn(name):
    """A chart and its specification, made once for the tests that only look at them."""
    make, frame = CHARTS[name]
    chart = make(frame())
    return chart, chart.to_dict()  # Altair checks it against the schema of Vega-Lite


def scales(node):
    """Names and colours of the scales that have both and a legend."""
    if isinstance(node, dict):
        scale = node.get("scale")
        if isinstance(scale, dict) and node.get("legend", True) is not None and "range" in scale:
            names, colours = scale.get("domain"), scale["range"]
            if (
                isinstance(names, list)
                and isinstance(colours, list)
                and all(isinstance(one, str) for one in colours)
            ):
                yield names, colours
        for value in node.values():
            yield from scales(value)
    elif isinstance(node, list):
        for value in node:
            yield from scales(value)


def digests(nth):
    """What tells the specification of every nth chart from another, of charts made now."""
    found = {}
    for name, (make, frame) in list(CHARTS.items())[::nth]:
        text = json.dumps(make(frame()).to_dict(validate=False))
        found[name] = hashlib.sha256(text.encode()).hexdigest()
    return found


def values_of(node, key):
    """Every text under a key, at any depth."""
    if isinstance(node, dict):
        found = [one for one in [node.get(key)] if isinstance(one, str)]
        return found + [one for value in node.values() for one in values_of(value, key)]
    if isinstance(node, list):
        return [one for value in node for one in values_of(value, key)]
    return []


@pytest.mark.parametrize("name", CHARTS)
def test_every_column_that_a_chart_reads_is_in_its_rows(name):
    _, spec = drawn(name)
    made = set(values_of({key: spec[key] for key in spec if key != "datasets"}, "as"))
    for unit in specs.marks(spec):
        read = set(values_of(unit.get("encoding", {}), "field"))
        held = set().union(*unit["rows"])
        assert not unit["rows"] or read <= held | made, read - held - made


@pytest.mark.parametrize("name", CHARTS)
def test_every_chart_is_valid_readable_and_drawn(name):
    chart, spec = drawn(name)
    text = json.dumps(spec)
    assert spec["background"] == PAPER
    assert spec["title"]["text"]
    assert spec["title"]["subtitle"]
    of_an_axis = re.compile(r"\((ns|us|ms|s)(, log scale)?\)|time \((ns|us|ms|s)\)")
    shown = any(of_an_axis.search(one) for one in specs.texts_of(spec)) or re.search(
        r"\b(us|ms)\b", text
    )
    assert name in _RATES or shown
    sizes = re.findall(
        r'"(?:fontSize|labelFontSize|titleFontSize|subtitleFontSize)": ([0-9.]+)', text
    )
    assert min(map(float, sizes)) >= 11

    width, height, colours = specs.image(to_png_bytes(chart, scale=0.25))
    assert 200 <= width <= 235  # 900 px, and a little more where labels overhang
    assert 50 <= height <= 500
    assert colours > 20

    # no legend has a colour twice, and in the dark nothing keeps the colours of light paper
    for names, palette in scales(spec):
        used = [colour for colour in palette[: len(names)] if colour.startswith("#")]
        assert len(set(used)) == len(used), dict(zip(names, palette, strict=False))
        assert len({in_the_dark(colour) for colour in used}) == len(used), dict(
            zip(names, palette, strict=False)
        )
    assert not {PAPER, INK, MUTED} & set(
        re.findall(r"#[0-9A-Fa-f]{6}", json.dumps(themed(chart, "dark")))
    )
    assert chart.to_dict(validate=False) == spec
    style = notebook_style()
    for light, now in dark_colours([text]).items():
        assert f'[fill="{light.upper()}" i]{{fill:{now}}}' in style


def parts_of(chart):
    """A chart and its parts, and theirs."""
    yield chart
    for name in ("layer", "vconcat", "hconcat", "concat"):
        for part in vars(chart)["_kwds"].get(name) or ():
            yield from parts_of(part)


@pytest.mark.parametrize("name", CHARTS)
def test_every_part_of_a_chart_writes_safe_html(name):
    assert [part for part in parts_of(drawn(name)[0]) if not isinstance(part, ScriptSafe)] == []


@pytest.mark.parametrize("nth", [pytest.param(1, marks=pytest.mark.slow), 13])
def test_is_the_same_each_time_and_in_another_process(nth):
    code = f"import json; from tests.charts.test_every_chart import digests; print(json.dumps(digests({nth})))"
    other = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "1"},
    )
    assert json.loads(other.stdout) == digests(nth)


@pytest.mark.parametrize(
    "name", sorted({*CHARTS} & {*charts.__all__} - {"dashboard", "theory_roofline"})[::2]
)
def test_a_missing_column_is_named_and_an_empty_frame_is_an_error(name):
    make, frame, needed = getattr(charts, name), CHARTS[name][1](), 0
    for column in frame.columns:
        found = None
        try:
            make(frame.drop(column))
        except AnalysisError as error:
            found = error
        if found is not None:
            assert f"{name}()" in str(found) or "the sweep has no parameters" in str(found)
            assert found.facts.get("missing", [column]) == [column]
            needed += 1
    assert needed >= 2
    with pytest.raises(AnalysisError, match=rf"{name}\(\)"):
        make(frame.clear())


NULL = pl.lit(None, pl.Float64)
REFUSED = {
    "no change": (
        lambda: charts.diff(frames.compared().with_columns(delta_ns=pl.lit(0))),
        "no time differs",
    ),
    "a phase of one trace": (
        lambda: charts.diff(frames.compared().filter(phase="mixed")),
        "no time differs",
    ),
    "a window behind": (
        lambda: charts.timeline(frames.attributed(), window=(10**11, 2 * 10**11)),
        "no event lies",
    ),
    "an empty window": (
        lambda: charts.timeline(frames.attributed(), window=(5_000, 5_000)),
        "no event lies between",
    ),
    "a window turned": (
        lambda: charts.timeline(frames.attributed(), window=(9_000, 1_000)),
        "does not end after it",
    ),
    "a lane": (
        lambda: charts.timeline(frames.attributed(), lane="device"),
        r"lane='device'.*one of stream, stage",
    ),
    "a colour": (lambda: charts.timeline(frames.attributed(), color="phase"), "color='phase'"),
    "no operations": (
        lambda: charts.roofline(frames.profiled().with_columns(flop_per_s=0.0)),
        "nothing has float",
    ),
    "no bytes": (
        lambda: charts.roofline(frames.profiled().with_columns(intensity=NULL)),
        "nothing has",
    ),
    "no shares": (
        lambda: charts.stalls(frames.stalled().with_columns(share=NULL)),
        "no launch has a share",
    ),
    "zeros": (
        lambda: charts.counters(frames.sampled().with_columns(value=0.0)),
        "all counters stay at zero",
    ),
    "warm-up": (
        lambda: charts.latencies(frames.requested().filter(phase="warmup")),
        "reported no latency",
    ),
    "no stack": (lambda: charts.flame(frames.stacked().with_columns(value=pl.lit(0))), "flame"),
    "layers by stage": (
        lambda: charts.layers(pl.concat([frames.layered()] * 2)),
        "has several rows in a step",
    ),
    "no host": (
        lambda: charts.layers(frames.layered().with_columns(host_dur_ns=NULL), value="host_dur_ns"),
        "no row has a step, a layer and host_dur_ns",
    ),
    "no such value": (
        lambda: charts.layers(frames.layered(), value="kernels"),
        "value='kernels'",
    ),
    "no waits": (
        lambda: charts.ranks(frames.ranked().with_columns(wait_ns=NULL), value="wait_ns"),
        "not known",
    ),
    "no time": (lambda: charts.kernels(frames.summed().with_columns(total_ns=pl.lit(0))), "zero"),
    "no latency": (
        lambda: charts.sweep_latency(
            frames.swept().with_columns(ttft_ns=NULL, tpot_ns=NULL, e2e_ns=NULL)
        ),
        "no point has a latency",
    ),
    "nothing scales": (
        lambda: charts.sweep_scaling(frames.swept(), parameters=["state"]),
        "no parameter is a number",
    ),
    "over a text": (
        lambda: charts.sweep_scaling(frames.swept(), over="state"),
        "no parameter is a number",
    ),
    "no panel": (charts.dashboard, "neither metrics nor a trace"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_drawn_is_refused(case):
    draw, words = REFUSED[case]
    with pytest.raises(AnalysisError, match=words):
        draw()


def named(name, text):
    """A chart in which every name that may come from outside is this text."""
    make, frame = CHARTS[name]
    rows = frame()
    kept = {"source", "status", "kind", *_NAMED.get(name, ())}
    of_type = {pl.String: text, pl.List(pl.String): [text]}
    hostile = rows.with_columns(
        pl.lit(of_type[dtype]).alias(c)
        for c, dtype in rows.schema.items()
        if dtype in of_type and c not in kept
    )
    return make(hostile.head(1) if name == "diff" else hostile)


@pytest.mark.parametrize("name", [*CHARTS][::4])
def test_hostile_names_stay_text(name):
    chart = named(name, HOSTILE)
    page = charts.to_html(chart, title=HOSTILE)
    spec = json.loads(json.dumps(chart.to_dict(validate=False)))
    assert json.loads(_spec_of(page)) == spec
    ours = page.replace(vega_bundle(), "")
    assert ours.count("<script") == ours.count("</script>") == 4
    of_altair = chart.to_html()
    assert json.loads(of_altair.partition("var spec = ")[2].partition(";\n")[0]) == spec
    for text in (ours, of_altair):
        for tag in ("<img", "<script>alert", "'alert(1)'>"):
            assert tag not in text


def test_charts_leave_altair_as_it_was():
    before = (alt.data_transformers.active, dict(alt.data_transformers.options), alt.theme.active)
    chart = charts.timeline(frames.attributed(), max_bars=100_000)
    assert sum(len(unit["rows"]) for unit in specs.marks(chart.to_dict())) > 5_000
    assert (
        alt.data_transformers.active,
        dict(alt.data_transformers.options),
        alt.theme.active,
    ) == before


def _spec_of(page):
    found = re.search(r'<script id="spec" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found
    return found.group(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name
        for name in CHARTS
        if name.split("_")[0] not in {"theory", "diff", "predicted", "dashboard"}
    ],
)
def test_a_chart_of_a_report_fits_on_a_telephone(name):
    maker, frame = CHARTS[name]
    with charts.narrow():
        spec = maker(frame()).to_dict()
    svg = vl_convert.vegalite_to_svg(json.dumps(spec), vl_version=vega_lite_version())
    width = float(re.search(r'viewBox="0 0 ([\d.]+) ', svg)[1])
    assert NARROW - 40 <= width <= NARROW + 22  # text of other fonts is a little wider
    assert spec["config"]["axis"]["labelFontSize"] >= 12
    assert spec["config"]["title"]["subtitleFontSize"] >= 12


def test_an_import_of_charts_is_quick_and_leaves_the_users_libraries_alone():
    code = """if True:
        import sys
        import llmprof.charts.base
        print({"rfc3987_syntax", "lark"} & set(sys.modules))
        print([one for one in sys.meta_path if type(one).__module__.startswith("llmprof")])
        import rfc3987_syntax
        print(rfc3987_syntax.is_valid_syntax("iri", "http://example.org/a"))
        # what is imported meanwhile may add a finder of its own
        if "six" in sys.modules:
            import six.moves
    """
    pytest.importorskip("rfc3987_syntax")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:3] == ["set()", "[]", "True"]
