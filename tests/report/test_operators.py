"""Files of the results of mode ops."""

import gzip
import json
import shutil
import warnings

import altair as alt
import polars as pl
import pytest

from llmprof import Visualizer
from llmprof.charts.base import theme
from llmprof.errors import AnalysisError, ReadError
from llmprof.readers import bundled
from llmprof.report import operators as charts
from llmprof.report.operators import operators_section, read_run, write_operators
from llmprof.run.launch import open_run
from llmprof.run.operator_timing import timing_suggestions
from tests.building import table_of
from tests.charts import specs
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
    module = json.loads((tmp_path / "ops" / "analysis_report.json").read_text())["layer_breakdown"][
        "model.layers.0.mlp"
    ]
    assert module == {"total_time": 25e-6, "avg_time": 25e-6, "count": 1, "operations": {}}
    comm = json.loads((tmp_path / "ops" / "comm_analysis.json").read_text())
    assert comm["by_type"]["all_reduce"]["count"] == 1
    assert comm["share"] == pytest.approx(4 / 110)
    named = comm["communication_analysis"]  # 2,000 bytes in 2 us
    assert named["total_comm_time"] == pytest.approx(2e-6)
    assert named["comm_percentage"] == pytest.approx(100 * 4 / 110)
    assert named["by_operation_type"] == comm["by_operation_type"]
    assert comm["by_operation_type"]["all_reduce"] == {
        "count": 1,
        "total_time": pytest.approx(2e-6),
        "avg_bandwidth_gbps": pytest.approx(1.0),
    }
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


def test_charts_have_units_that_fit_and_the_colour_of_communication(tmp_path):
    trace = read_run(write(tmp_path, document()))
    bandwidth = charts.bandwidth_analysis(trace).to_dict()
    assert specs.rows(charts.bandwidth_analysis(trace), "bar", "median")[0]["median"] == 1.0
    assert theme.COMMUNICATION in json.dumps(bandwidth)
    assert theme.COMMUNICATION in json.dumps(charts.compute_vs_communication(trace).to_dict())
    slow = document()
    for end in ("end_ns", "host_end_ns"):
        slow["calls"][end] = [ns + 400_000_000 for ns in slow["calls"][end]]
        slow["steps"][end] = [ns + 500_000_000 for ns in slow["steps"][end]]
    drawn = charts.operation_time_distribution(read_run(write(tmp_path, slow)))
    assert "ms" in json.dumps(drawn.to_dict())
    assert all(400 < row["time"] < 401 for row in specs.rows(drawn, "boxplot", "time"))


def test_operators_of_a_step_are_means_over_the_ranks(tmp_path):
    """As the suggestions: an operator that takes 25 us on one rank and 75 on another takes 50."""
    other = document() | {"rank": 1}
    other["calls"]["end_ns"] = [*other["calls"]["end_ns"]]
    other["calls"]["end_ns"][3] += 50_000
    trace = read_run(write(tmp_path, document(), other))
    rows = charts.operators_of_a_step(trace).filter(operator="mlp")
    assert rows["step_ns"].item() == 2 * 50_000  # in two layers


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
