"""The notebooks as a user runs them, and the committed files as a reader sees them."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest

import llmprof
from tests.notebook.truth import cells

nbformat = pytest.importorskip("nbformat")
papermill = pytest.importorskip("papermill")

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def execute(name: str, folder: Path, **parameters):
    """Run a notebook with papermill and return it."""
    out = folder / name
    papermill.execute_notebook(
        str(ROOT / "notebooks" / name),
        str(out),
        parameters=parameters,
        kernel_name="python3",
        cwd=str(ROOT / "notebooks"),
        progress_bar=False,
    )
    return nbformat.read(out, as_version=4)


def figures(notebook) -> dict:
    """What the cell tagged ``figures`` shows as JSON."""
    (cell,) = [c for c in notebook.cells if "figures" in c.metadata.get("tags", [])]
    (found,) = [o.data["application/json"] for o in cell.outputs if "data" in o]
    return found


read_once = functools.cache(llmprof.read)


def here(name: str, **parameters) -> tuple[Any, str]:
    """The figures of a notebook that runs in this process, and all that it says.

    How a notebook is executed and its outputs are rendered is tested with papermill on the recording it was written
    for; on others its code runs here, without a kernel, and each chart is checked against Vega-Lite's schema.
    """
    found, said = [], []
    for kind, value in cells(ROOT / "notebooks" / name, parameters, {"read": read_once}):
        if kind == "figures":
            found.append(json.loads(json.dumps(value)))
        elif kind == "said":
            said.append(value)
        elif kind == "chart":
            value.to_dict()
    (figures_shown,) = found
    return figures_shown, "\n".join(said)


on_others = pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_committed_notebooks_are_executed_and_clean(path):
    text = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    code = [c for c in notebook.cells if c.cell_type == "code"]
    assert code[0].metadata.tags == ["parameters"]
    assert [c.execution_count for c in code] == list(range(1, len(code) + 1)), "not the outputs of one run from the top"
    assert not [o for c in code for o in c.outputs if o.output_type == "error"]
    assert not [o for c in code for o in c.outputs if o.output_type == "stream" and o.name == "stderr"]
    assert "papermill" not in json.dumps(notebook.metadata)
    sources = "\n".join(c.source for c in notebook.cells)
    shown = json.dumps([list(c.outputs) for c in code])
    pictures = re.sub(r'"image/png": "[^"]*"', "", shown)
    for text_of in (sources, pictures):
        assert not re.search(r"(?<![\w.])/(?:home|root|work|tmp|Users)/", text_of), "an absolute path"
    assert "<script" not in pictures


@pytest.mark.slow
def test_gpu_timeline_tells_the_story_of_its_capture(tmp_path):
    found = figures(execute("01_gpu_timeline.ipynb", tmp_path))
    assert found["ranks"] == 4
    assert found["rank"] == 3
    assert found["layers"] == 28
    assert found["step_share_covered"] >= 0.99
    assert found["stage_share_covered"] >= 0.97
    assert found["first_finding"] == "host_bound"
    custom, nccl = found["all_reduce"], found["all_reduce_nccl"]
    assert custom["late_rank"] == nccl["late_rank"] == 3
    assert custom["calls_a_rank"] == 627
    assert nccl["calls_a_rank"] == 684
    assert custom["late_share"] == 1.0
    assert nccl["late_share"] > 0.95
    assert custom["others_waiting"] > 0.98
    assert nccl["others_waiting"] > 0.98
    assert custom["end_spread_ns"] < 4_000
    assert nccl["end_spread_ns"] < 4_000
    assert custom["median_transfer_ns"] == pytest.approx(4_300, abs=200)
    assert nccl["median_transfer_ns"] == pytest.approx(12_200, abs=300)
    # the Python side of a layer with GQA and FFN: about a millisecond, longest on the late rank
    hosts = found["layer_host_us"]
    assert 700 < min(hosts.values()) < max(hosts.values()) < 2_500
    assert max(hosts, key=hosts.get) == "3"
    eager, graphs = found["decode"]
    assert eager["kernels"] == graphs["kernels"] == eager["launch_calls"] == 472
    assert graphs["launch_calls"] < 30
    assert eager["step_ms"] / graphs["step_ms"] > 15
    assert found["pipeline_layers"] == [14]


@pytest.mark.slow
@pytest.mark.parametrize(
    "sample", ["torch_tp1_eager", "torch_cpu_tp2_layer_annotations", "torch_transformers_generate"]
)
@on_others
def test_gpu_timeline_runs_on_other_traces(sample):
    found, _ = here("01_gpu_timeline.ipynb", trace=str(ROOT / "sample_traces" / sample), comparisons=False)
    assert found["layers"] in {28, 4, 8}
    assert found["all_reduce_nccl"] is None


@pytest.mark.slow
def test_kernel_drilldown_ends_at_the_bound_and_the_roofline(tmp_path):
    found = figures(execute("02_kernel_drilldown.ipynb", tmp_path))
    assert found["ranks"] == 2
    assert found["stage"] == "gate_up_proj"
    # 3584 x 18944 bfloat16 weights over 4.8 TB/s are 28.3 us; the kernel takes 36.4 us
    assert found["share_of_bound"] == pytest.approx(28.29 / 36.44, rel=0.01)
    assert found["command"][0] == "ncu"
    assert "--clock-control" in found["command"]
    assert found["kernels"] == 24
    assert found["layers"] == [0, 1]
    assert found["flops_ratio"] == pytest.approx(1, abs=0.002)
    assert sum(found["bounds"].values()) == 24


@pytest.mark.slow
def test_launch_and_sweep_runs_an_engine_and_reads_what_it_recorded(tmp_path):
    found = figures(execute("03_launch_and_sweep.ipynb", tmp_path, results=str(tmp_path / "results")))
    assert found["states"] == ["finished", "finished"]
    assert found["ranks"] == [[0], [0, 1]]
    # a prefill and 7 decode steps; the scheduler may split the prefill of four requests in two
    assert all(8 <= steps <= 10 for steps in found["steps"])
    assert dict(found["requests"]) == {"plain": 12, "profiled": 4, "warmup": 4}
    assert found["output_tokens"] == [8]
    # two a layer: four layers
    assert found["all_reduces_a_step"] == pytest.approx(8, abs=1)
    assert found["points"] == ["finished"] * 4
    assert found["shares"] == pytest.approx([1.0] * 4)
    assert set(found["where"]) >= {"prefill", "decode"}
    (sweep,) = (tmp_path / "results").glob("*_sweep_*")
    assert len(list(sweep.glob("*/traces/*"))) >= 4
    # what was recorded on an H200: 8 points in one engine; 40 requests, whose parts add up to the ns
    assert (found["quick"]["points"], found["quick"]["starts"]) == (8, 1)
    assert (found["served"]["requests"], found["served"]["unexplained_ns"]) == (40, 0)
    assert "prefill of others: 610 ms of 978 ms" in found["served"]["title"]
    assert found["served"]["first_finding"] == "slow_first_tokens"


@pytest.mark.slow
def test_explorers_tour_finds_the_late_rank(tmp_path):
    executed = execute("04_explorers.ipynb", tmp_path)
    pictures = [o for c in executed.cells for o in c.get("outputs", []) if "image/png" in o.get("data", {})]
    assert len(pictures) == 6, "a picture for each explorer"
    found = figures(executed)
    assert found["ranks"] == 4
    assert found["late_rank"] == 3
    assert found["wait_share"] > 0.95
    assert found["cell_events"] == 16
    tabs = ["Findings", "Timeline", "Layers", "Overlap", "Collectives", "Ranks", "What if", "Kernels", "Compare"]
    assert found["tabs"] == tabs
    assert found["picked_launches"] == 2688
    assert any("cross_device_reduce_1stage" in name for name in found["vanished"])


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["torch_tp1_eager", "torch_cpu_tp2_layer_annotations"])
@on_others
def test_explorers_tour_runs_on_other_traces(sample):
    found, _ = here("04_explorers.ipynb", trace=str(ROOT / "sample_traces" / sample))
    assert found["kernels"] > 0


@pytest.mark.slow
def test_roofline_notebook_finds_nothing_below_the_bound_and_predicts_a_model_it_has_not_seen(tmp_path):
    found = figures(execute("06_roofline.ipynb", tmp_path))
    assert found["below_bound"] == found["recordings_below_bound"] == 0
    assert found["least_explained"] > 0.95
    assert found["decode_reaches"] == pytest.approx(0.362, abs=0.005)
    median, worst = found["predicted"]["decode"]
    assert median < 0.1
    assert worst < 0.25
    assert found["reasons"][0] == "fixed cost of kernels"
    assert found["scaling"]["bound"] == pytest.approx(3.96, abs=0.05)
    assert found["scaling"]["measured"] == pytest.approx(2.05, abs=0.1)


@pytest.mark.slow
def test_npu_timeline_tells_the_story_of_its_synthetic_capture(tmp_path):
    found = figures(execute("05_npu_timeline.ipynb", tmp_path))
    assert found["synthetic"] is True
    assert (found["ranks"], found["steps"]) == (2, 6)
    assert (found["layers"], found["latent_layers"], found["expert_layers"]) == (5, 5, 4)
    assert found["largest_difference_ns"] <= 10
    assert found["waits"] > 50
    assert found["waits_without_stream"] == 0
    changes = {(row["variant"], row["phase"]): row for row in found["changes"]}
    # the ground truth of the generator: halves hide nearly all, the split alone moves less
    assert changes["baseline", "prefill"]["overlap_ratio"] == 0
    assert changes["micro_batch", "prefill"]["overlap_ratio"] > 0.9
    assert changes["split", "prefill"]["communication_ms"] < changes["baseline", "prefill"]["communication_ms"]
    assert changes["both", "prefill"]["step_ms"] < changes["baseline", "prefill"]["step_ms"]
    assert changes["micro_batch", "decode"]["step_ms"] > changes["baseline", "decode"]["step_ms"]


@pytest.mark.slow
@on_others
def test_npu_timeline_does_not_tell_the_samples_story_of_another_recording(shared):
    """A training step of AlexNet: no latent attention, no experts, no layers; and it says so."""
    folder = shared / "real" / "ascend" / "msinsight_level1" / "text"
    found, shown = here("05_npu_timeline.ipynb", trace=str(folder))
    assert found["synthetic"] is False
    assert (found["layers"], found["latent_layers"], found["expert_layers"]) == (0, 0, 0)
    assert found["changes"] is None
    assert found["largest_difference_ns"] <= 1000
    assert (found["waits"], found["waits_without_stream"]) == (10, 0)
    assert "There are no layers in this recording" in shown
    assert "None of its operators is one of latent attention" in shown
    assert "None of its operators is one of a mixture of experts" in shown
    assert "All of this is synthetic" not in shown


@pytest.mark.slow
def test_operator_timing_notebook_says_what_timing_costs_and_how_right_it_is(tmp_path):
    found = figures(execute("07_operator_timing.ipynb", tmp_path))
    assert found["steps"] == 20
    assert found["overhead_of_the_run"] < 0.03
    assert found["overhead_events"] < found["overhead_synchronize"]
    assert found["overhead_default"] < 0.04  # of a timed step; every second one is timed
    assert found["layers_within"] > 0.99  # of 336, within 3 % of the trace
    assert found["worst_layer"] < 0.05
    assert found["kinds"] == ["all_gather", "all_reduce"]
    assert found["stages"] == ["recv"]


@pytest.mark.slow
def test_hardware_notebook_reaches_the_known_limits_of_an_h200(tmp_path):
    found = figures(execute("08_hardware_and_scaling.ipynb", tmp_path))
    assert found["copy_gb_per_s"] == pytest.approx(4300, rel=0.03)
    assert found["bf16_tflop_per_s"] == pytest.approx(790, rel=0.03)
    assert found["tp_decode_speedup"] == pytest.approx(1.45, abs=0.02)
    assert found["pp_decode_speedup"] == pytest.approx(1.0, abs=0.02)
    assert 0.05 < found["communication_decode"] < 0.15
    assert found["padding_experts_ratio"] == pytest.approx(1.23, abs=0.01)
    assert found["suggestions"][0] == "tensor_parallel_first"


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["bandwidth_test_", "latency_analysis_tp1", ""], ids=["bandwidth", "points", "both"])
def test_hardware_notebook_runs_on_results_of_one_device(tmp_path, kept):
    """What a user of one GPU has: no links, no second layout, perhaps one of the two experiments only."""
    data, results = ROOT / "notebooks" / "data" / "h200", tmp_path / "results"
    results.mkdir()
    measured = json.loads((data / "bandwidth_test_h200x2.json").read_text("utf-8"))
    one = {"world": 1, "devices": measured["devices"][:1], "p2p": [], "p2p_ranks": [], "all_reduce": []}
    for name, text in (
        ("bandwidth_test_1.json", json.dumps(measured | one)),
        ("latency_analysis_tp1.json", (data / "latency_analysis_tp1.json").read_text("utf-8")),
    ):
        if name.startswith(kept):
            (results / name).write_text(text, "utf-8")
    found, _ = here("08_hardware_and_scaling.ipynb", results=str(results))
    assert found["one_way_gb_per_s"] is found["tp_decode_speedup"] is found["communication_decode"] is None
    assert (found["copy_gb_per_s"] is None) == kept.startswith("latency")
    assert found["bend"] == (None if kept.startswith("bandwidth") else 1024)


@pytest.mark.slow
def test_many_ranks_finds_the_host_that_it_made_slow(tmp_path):
    found = figures(execute("09_many_ranks.ipynb", tmp_path, dataset=str(tmp_path / "dataset")))
    assert found["synthetic"]
    assert (found["ranks"], found["nodes"], found["since_step"]) == (32, 4, 8)
    # of 20 exchanges between the hosts the slow one is last in those of the 12 slow steps
    late = found["late_group"]
    assert (late["by"], late["group"], late["ranks"], late["calls"]) == ("node", "host2", list(range(16, 24)), 20)
    assert late["share_last"] == pytest.approx(0.6)
    assert found["picked_rows"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["torch_tp4_eager_nccl", "torch_tp1_cudagraph", "torch_cpu_tp2_layer_annotations"])
@on_others
def test_many_ranks_runs_on_other_traces(sample):
    found, _ = here("09_many_ranks.ipynb", trace=str(ROOT / "sample_traces" / sample))
    assert not found["synthetic"]
    assert found["late_group"] is None
    assert found["ranks"] == {"torch_tp4_eager_nccl": 4, "torch_tp1_cudagraph": 1}.get(sample, 2)


@pytest.mark.slow
def test_what_would_i_gain_goes_from_a_finding_to_a_decision(tmp_path):
    found = figures(execute("10_what_would_i_gain.ipynb", tmp_path))
    assert (found["pace"], found["first_finding"]) == ("host", "host_bound")
    assert found["changes"] == ["no-host-delay:decode", "scale:attention:0.5", "scale:linear:0.5"]
    graphs, attention, linear, together = found["gains_ns"]
    # 34.4 ms become 4.9; faster kernels alone gain less than 1 % where the host sets the pace
    assert graphs == pytest.approx(29.5e6, rel=0.02)
    assert max(attention, linear) < 0.01 * 34.4e6
    assert together > graphs
    checked = found["checked"]
    assert checked["predicted_ns"] == pytest.approx(checked["recorded_ns"], rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["torch_tp4_cudagraph", "torch_cpu_tp2_layer_annotations"])
@on_others
def test_what_would_i_gain_reads_other_recordings(sample):
    found, _ = here("10_what_would_i_gain.ipynb", trace=str(ROOT / "sample_traces" / sample))
    assert found["checked"] is None
