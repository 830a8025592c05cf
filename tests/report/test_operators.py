"""Files of the results of mode ops."""

import gzip
import json
import shutil
import warnings

import altair as alt
import polars as pl
import pytest

from llmprof import Visualizer
from llmprof.errors import AnalysisError, ReadError
from llmprof.readers import bundled
from llmprof.report import operators as charts
from llmprof.report.operators import operators_section, read_run, write_operators
from llmprof.run.launch import open_run
from llmprof.run.operator_timing import timing_suggestions
from tests.building import table_of
from tests.readers.test_ops import BEGIN, document, write

FILES = {
    "detailed_timings.csv",
    "analysis_report.json",
    "comm_analysis.json",
    "comprehensive_report.json",
    "README.md",
}


def test_all_files_and_what_is_in_them(tmp_path):
    """Layer 0 took 36 us without the timing of its operators; its MLP took 25."""
    folder = write(tmp_path, document())
    made = write_operators(folder, extra_charts={"mine": lambda trace: alt.Chart().mark_point()})
    assert {path.name for path in made} == FILES | {
        f"{name}.png" for name in (*charts.CHARTS, "mine")
    }
    layer = json.loads((tmp_path / "ops" / "analysis_report.json").read_text())["layer_breakdown"][
        "0"
    ]
    assert (layer["total_ns"], layer["average_ns"], layer["count"]) == (36_000, 36_000, 1)
    assert layer["operations"]["mlp"]["total_ns"] == 25_000
    comm = json.loads((tmp_path / "ops" / "comm_analysis.json").read_text())
    assert comm["by_type"]["all_reduce"]["count"] == 1
    assert comm["share"] == pytest.approx(4 / 110)
    assert pl.read_csv(tmp_path / "ops" / "detailed_timings.csv").height == 10
    whole = json.loads((tmp_path / "ops" / "comprehensive_report.json").read_text())
    assert whole["run"]["clock"] == "CUDA events"
    assert {
        "steps",
        "overhead",
        "layers",
        "operators",
        "communication",
        "bounds",
        "suggestions",
    } <= whole.keys()


def test_communication_longer_than_the_step_is_unknown(tmp_path):
    waited = document()["collectives"] | {"end_ns": [BEGIN + 100_000]}
    folder = write(tmp_path, document(collectives=waited))
    write_operators(folder, extra_charts={})
    comm = json.loads((tmp_path / "ops" / "comm_analysis.json").read_text())
    assert comm["share"] is None
    assert [one["share"] for one in comm["share_by_phase"]] == [None]
    drawn = charts.compute_vs_communication(read_run(folder)).to_dict()
    assert {row.get("part") for rows in drawn["datasets"].values() for row in rows} <= {
        "unknown",
        None,
    }


def test_nothing_to_draw_is_said(tmp_path):
    nothing = {key: [] for key in document()["calls"]}
    trace = read_run(write(tmp_path, document(calls=nothing)))
    for draw in (
        charts.layer_performance_heatmap,
        charts.operation_time_distribution,
        charts.performance_bottlenecks,
    ):
        with pytest.raises(AnalysisError):
            draw(trace)
    with pytest.raises(ReadError):
        write_operators(tmp_path / "ops_rank7.json.gz")


def test_suggestions(tmp_path):
    """Of 110 us the MLP takes 50 and attention 20; the device ended each of the 5 calls as the
    host did.
    """
    trace = read_run(write(tmp_path, document()))
    bounds = table_of(
        "phase stage calls total_ns bound_ns times_bound communicates",
        [
            ("decode", stage, 4, 1e6, bound, 1e6 / bound, stage == "o_proj")
            for stage, bound in (
                ("mlp", 200_000.0),
                ("norm", 7_000.0),
                ("lm_head", 500_000.0),
                ("o_proj", 100_000.0),
            )
        ],
    )
    found = timing_suggestions(trace, bounds).rows()
    assert found == [
        ("above_bound", "decode", "mlp", 5.0),
        ("dominates", "decode", "mlp", pytest.approx(50 / 110)),
        ("launch_bound", "decode", None, 1.0),
    ]
    assert charts.advised(trace, bounds)["suggestion"].len() == 3
    # on the clock of a host nothing is known of a device
    on_cpu = timing_suggestions(read_run(write(tmp_path, document(platform="cpu"))))
    assert on_cpu["rule"].to_list() == ["dominates"]


def test_the_bounds_of_stages(tmp_path):
    """Of eight stages that a two-rank run timed, those with the all-reduce inside are marked."""
    trace = read_run(bundled.notebook_data("h200") / "tp2")
    bounds = charts._bounds(trace, "qwen2.5-7b")
    assert set(bounds.filter("communicates")["stage"]) == {"o_proj", "down_proj", "lm_head"}
    assert charts._bounds(trace, None) is None


@pytest.mark.slow
def test_the_report_of_a_run_shows_its_timings(tmp_path, root):
    """Layers, operators and their table are in the page of a run in mode ops; without its files
    the page says so.
    """
    folder = tmp_path / "run"
    shutil.copytree(
        root / "sample_traces/run_torch_tp1",
        folder,
        ignore=shutil.ignore_patterns("traces", "report"),
    )
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("profile_mode: torch", "profile_mode: ops"))
    (folder / "traces").mkdir()
    (folder / "traces/ops_rank0.json.gz").write_bytes(
        gzip.compress(json.dumps(document()).encode(), mtime=0)
    )
    section = operators_section(open_run(folder))
    names = ["ops_layers", "ops_operators", "ops_communication", "ops_memory", "operators"]
    assert [block.name for block in section.blocks] == names
    table = section.blocks[-1].frame
    # mlp 25 us and attn 10 us of layer 0 stand for both layers; lm_head 8 and 9 us
    assert dict(table.select("operator", "step_ns").rows()) == {
        "mlp": 50_000,
        "attn": 20_000,
        "lm_head": 8_500,
    }
    with warnings.catch_warnings(action="ignore"):
        page = Visualizer(folder).generate_report_html().read_text()
    assert "Where does the time of a step go, layer by layer?" in page
    (folder / "traces/ops_rank0.json.gz").unlink()
    (absent,) = operators_section(open_run(folder)).blocks
    assert absent.found
