"""The notebooks as a user runs them, and the committed files as a reader sees them."""

import ast
import functools
import importlib
import json
import re
from pathlib import Path

import altair as alt
import polars as pl
import pytest

import llmprof
from llmprof.errors import AnalysisError, NotCapturedError
from tests.samples import sample

nbformat = pytest.importorskip("nbformat")
papermill = pytest.importorskip("papermill")

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SAMPLES = ROOT / "sample_traces"
VEGA_LITE = "application/vnd.vegalite.v5+json"
on_others = pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")


class Executed:
    """A notebook that ran in this process: what it showed, its names, and the cells that
    refused, with the reason.
    """

    def __init__(self):
        self.shown = []
        self.refused = {}
        self.names = {}

    def of(self, kind):
        """The shown objects whose class has this in its name."""
        return [
            one
            for one in self.shown
            if kind in " ".join(base.__name__ for base in type(one).__mro__)
        ]


@pytest.fixture
def here(monkeypatch):
    """Run a notebook without a kernel: its code, not how the outputs are rendered, and each
    trace is read once.
    """
    from IPython.core.formatters import DisplayFormatter
    from IPython.core.interactiveshell import InteractiveShell

    executed = Executed()

    class Formatter(DisplayFormatter):
        def format(self, obj, include=None, exclude=None):
            executed.shown.append(obj)
            return {}, {}

    shell = InteractiveShell.instance()
    cell_number = 0

    def note(result):  # before the extension passes over what was not recorded
        if isinstance(result.error_in_exec, NotCapturedError | AnalysisError):
            executed.refused[cell_number] = result.error_in_exec

    shell.events.register("post_run_cell", note)
    shell.display_formatter = Formatter()
    shell.displayhook.write_output_prompt = shell.displayhook.finish_displayhook = lambda: None
    monkeypatch.setattr(llmprof, "read", functools.cache(llmprof.read))
    monkeypatch.setattr(llmprof, "sample", sample)
    renderer, formats = alt.renderers.active, pl.Config.save()

    def run(name, **parameters):
        nonlocal cell_number
        for number, cell in enumerate(
            json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text("utf-8"))["cells"]
        ):
            if cell["cell_type"] != "code":
                continue
            cell_number = number
            shell.run_cell("".join(cell["source"])).raise_error()
            tags = cell["metadata"]["tags"]
            if "parameters" in tags:
                assert set(parameters) <= set(shell.user_ns), f"{name} has no such parameter"
                shell.user_ns.update(parameters)
        executed.names = shell.user_ns
        for chart in executed.of("TopLevelMixin"):
            chart.to_dict()  # against Vega-Lite's schema
        return executed

    yield run
    InteractiveShell.clear_instance()
    pl.Config.load(formats)
    alt.renderers.enable(renderer)


def execute(name, folder, **parameters):
    """Run a notebook with papermill, in a kernel, and return it."""
    out = folder / f"{name}.ipynb"
    source = ROOT / "notebooks" / out.name
    papermill.execute_notebook(
        str(source),
        str(out),
        parameters,
        kernel_name="python3",
        cwd=str(source.parent),
        progress_bar=False,
    )
    return nbformat.read(out, as_version=4)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_committed_notebooks_are_executed_and_clean(path):
    text = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    code = [c for c in notebook.cells if c.cell_type == "code"]
    assert code[0].metadata.tags == ["parameters"]
    assert [c.execution_count for c in code] == list(range(1, len(code) + 1)), (
        "not the outputs of one run from the top"
    )
    assert not [o for c in code for o in c.outputs if o.output_type == "error"]
    assert not [
        o for c in code for o in c.outputs if o.output_type == "stream" and o.name == "stderr"
    ]
    assert not [o for c in code for o in c.outputs if "text/markdown" in o.get("data", {})], (
        "a cell that refused"
    )
    assert "papermill" not in json.dumps(notebook.metadata)
    assert not [c for c in code if "raises-exception" in c.metadata.tags]
    for cell, data in ((c, o.data) for c in code for o in c.outputs if "data" in o):
        if "image/png" in data:  # explorers need a kernel: without one they are their picture
            assert VEGA_LITE in data or re.search(
                "explore|timeline$|layers$|kernels$|compare", cell.source
            )
        heads, *rows = re.findall(r"<tr>(.*?)</tr>", data.get("text/html", ""), re.DOTALL) or [""]
        columns = re.findall(r"<th>(.*?)</th>", heads)
        for cells in (re.findall(r"<td>(.*?)</td>", row) for row in rows):
            for column, value in zip(columns, cells, strict=False):
                assert not (column.endswith("_ns") and re.fullmatch(r"[\d.]+", value)), column
    sources = "\n".join(c.source for c in notebook.cells)
    shown = json.dumps([list(c.outputs) for c in code])
    pictures = re.sub(r'"image/png": "[^"]*"', "", shown)
    for text_of in (sources, pictures):
        assert not re.search(r"(?<![\w.])/(?:home|root|work|tmp|Users)/", text_of), (
            "an absolute path"
        )
    assert "<script" not in pictures


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_papermill_lists_each_parameter_with_its_type_and_meaning(path, caplog):
    (cell,) = [
        c
        for c in nbformat.read(path, as_version=4).cells
        if c.metadata.get("tags") == ["parameters"]
    ]
    found = papermill.inspect_notebook(str(path))
    assert list(found) == [re.match(r"\w+", line)[0] for line in cell.source.splitlines()]
    assert {one["inferred_type_name"] for one in found.values()} <= {"str", "int"}
    assert all(one["help"] for one in found.values())
    takes_no_trace = ("03_launch_and_sweep", "08_hardware_and_scaling")
    assert ("path" in found) == (path.stem not in takes_no_trace)
    assert not caplog.records


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_the_text_names_no_device_model_or_figure_of_a_recording(path):
    """It explains how to read a picture, and holds for any recording."""
    devices = r"\b(?:[HABV]\d{2,3}0|L40S?|MI\d{3}\w?|910[A-D]\d?)\b"
    models = r"\b(?:Qwen|Llama|DeepSeek|Mi[sx]tral|OLMoE)[\w.\-]*"
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            text = re.sub(r"```.*?```|`[^`]*`", "", cell.source, flags=re.DOTALL)
            assert not re.search(
                rf"{devices}|{models}|\d+(?:\.\d+)? (?:ns|us|ms|GB/s|TB/s)\b", text
            ), text


@pytest.mark.slow
def test_a_cell_that_a_recording_has_no_data_for_says_so_and_the_next_ones_run(tmp_path):
    executed = execute(
        "01_gpu_timeline", tmp_path, path=str(SAMPLES / "torch_cpu_tp2_layer_annotations")
    )
    outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
    said = [
        output.data["text/markdown"]
        for output in outputs
        if "text/markdown" in output.get("data", {})
    ]
    assert len(said) == 2
    assert all("this capture holds no kernels" in one for one in said)
    assert executed.cells[-2].execution_count is not None
    assert not [output for output in outputs if output.output_type == "error"]


@pytest.mark.slow
def test_explorers_have_a_picture_each(tmp_path):
    executed = execute("04_explorers", tmp_path)
    pictures = [
        o for c in executed.cells for o in c.get("outputs", []) if "image/png" in o.get("data", {})
    ]
    assert len(pictures) == 7


# Of its own recordings a notebook refuses nothing: (data frames, charts, widgets) that it shows.
OWN = {
    "00_my_trace": (1, 2, 0),
    "01_gpu_timeline": (9, 8, 1),
    "02_kernel_drilldown": (1, 5, 0),
    "04_explorers": (3, 0, 7),
    "05_npu_timeline": (12, 12, 4),
    "06_roofline": (1, 4, 0),
    "07_operator_timing": (8, 3, 0),
    "08_hardware_and_scaling": (5, 5, 0),
    "09_many_ranks": (2, 4, 1),
    "10_what_would_i_gain": (5, 1, 0),
    "12_a_case": (6, 2, 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
@on_others
def test_a_notebook_shows_all_of_its_own_recordings(here, name):
    done = here(name)
    assert done.refused == {}
    assert (
        len(done.of("DataFrame")),
        len(done.of("TopLevelMixin")),
        len(done.of("Widget")),
    ) == OWN[name]


# What other recordings do not hold: the number of cells that say so.
_REAL = "chrome/tracelens/mi300__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
OTHERS = [
    ("00_my_trace", "torch_tp1_cudagraph", 0),
    ("00_my_trace", "nsys_transformers_generate", 0),
    ("00_my_trace", "ascend/msinsight_level1/text", 0),
    ("00_my_trace", _REAL, 0),
    ("00_my_trace", "torch_cpu_tp2_layer_annotations", 0),
    ("01_gpu_timeline", "torch_tp1_cudagraph", 1),  # no collective
    ("01_gpu_timeline", "nsys_transformers_generate", 3),  # no operators either
    (
        "01_gpu_timeline",
        "ascend/msinsight_level1/text",
        4,
    ),  # no layers: a training step; no name of the device
    ("01_gpu_timeline", _REAL, 1),
    (
        "02_kernel_drilldown",
        "torch_cpu_tp2_layer_annotations",
        2,
    ),  # no model named, no kernel to profile
    ("04_explorers", "torch_tp1_eager", 0),
    ("04_explorers", "ascend/msinsight_level1/text", 0),
    ("05_npu_timeline", "ascend/msinsight_level1/text", 1),
    (
        "05_npu_timeline",
        "../strangers/ascend/msinsight_st_level2",
        7,
    ),  # training of an LLM, without operators
    ("05_npu_timeline", "torch_tp1_cudagraph", 7),  # a recording of a GPU
    ("06_roofline", "torch_tp1_cudagraph", 3),
    ("09_many_ranks", "torch_tp4_eager_nccl", 1),  # no groups
    ("10_what_would_i_gain", "torch_cpu_tp2_layer_annotations", 0),
    ("12_a_case", "torch_tp1_eager", 0),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "recording", "refusals"), OTHERS)
@on_others
def test_a_notebook_reads_other_recordings(here, request, name, recording, refusals):
    path = (
        request.getfixturevalue("shared") / "real" / recording
        if "/" in recording
        else SAMPLES / recording
    )
    done = here(name, path=str(path))
    assert len(done.refused) == refusals, done.refused


@pytest.mark.slow
def test_calls_of_an_attention_and_the_share_of_the_device_that_a_grid_fills(here):
    done = here("01_gpu_timeline")
    (calls,) = [frame for frame in done.of("DataFrame") if "inside" in frame.columns]
    assert calls["name"].to_list() == [
        "aten::split_with_sizes",
        "_C::rotary_embedding",
        "aten::empty",
        *["aten::view"] * 4,
        "vllm::unified_kv_cache_update",
        "vllm::unified_attention_with_output",
        "aten::view",
        "aten::linear",
    ]
    assert calls["kernels"].to_list() == [0, 1, 0, 0, 0, 0, 0, 1, 2, 0, 1]
    (filled,) = [frame for frame in done.of("DataFrame") if "filled_share" in frame.columns]
    # of the 132 SMs of an H200; the split-K attention has a block for each
    assert filled.filter(stage="attention")["filled_share"].to_list() == [
        1.0,
        pytest.approx(1 / 132),
    ]
    (sides,) = [frame for frame in done.of("DataFrame") if "article_host_ns" in frame.columns]
    late = sides.filter(rank=3, phase="decode").row(0, named=True)
    assert late["host_over_busy"] == pytest.approx(late["host_dur_ns"] / late["busy_ns"])
    assert sides["article_host_ns"].unique().to_list() == [700_000]


@pytest.mark.slow
@pytest.mark.parametrize(("kept", "refused"), [("bandwidth_test_", 2), ("latency_analysis_tp1", 1)])
def test_results_of_one_device_and_of_one_experiment(here, tmp_path, kept, refused):
    """What a user of one GPU has: no links, no second layout, and one of the two experiments."""
    (source,) = (ROOT / "notebooks" / "data" / "h200").glob(f"{kept}*.json")
    document = json.loads(source.read_text("utf-8"))
    if kept.startswith("bandwidth"):
        document |= {
            "world": 1,
            "devices": document["devices"][:1],
            "p2p": [],
            "p2p_ranks": [],
            "all_reduce": [],
        }
    (tmp_path / source.name).write_text(json.dumps(document), "utf-8")
    done = here("08_hardware_and_scaling", results=str(tmp_path))
    assert len(done.refused) == refused


@pytest.mark.slow
def test_late_ranks_are_the_host_that_was_made_slow(here):
    done = here("09_many_ranks")
    late = (
        llmprof.analyze.ranks(done.names["trace"], by="group")
        .filter(kind="node")
        .row(0, named=True)
    )
    # of 20 exchanges between the hosts the slow one is last in those of the 12 slow steps
    assert (late["group"], late["ranks"], late["count"]) == ("host2", list(range(16, 24)), 20)
    assert late["last_share"] == pytest.approx(0.6)


@pytest.mark.slow
def test_a_prediction_is_near_what_was_recorded_after_the_change(here):
    done = here("10_what_would_i_gain")
    checked = done.shown[-1].row(0, named=True)
    assert checked["predicted_ns"] == pytest.approx(checked["found_ns"], rel=0.15)


@pytest.mark.slow
def test_the_case_is_decided_by_a_remedy_whose_prediction_held(here):
    done = here("12_a_case")
    *_, before_and_after, share, _ = done.of("DataFrame")
    deployed, changed = before_and_after["within_limit_share"]
    assert deployed < 0.9 < changed
    row = share.row(0, named=True)
    assert row["low_share"] < row["measured_share"] < row["high_share"]


@pytest.mark.slow
def test_a_model_outside_of_the_fit_is_predicted(here):
    names = here("06_roofline").names
    theory, measured = names["theory"], names["measured"].filter(model=names["left_out"])
    found = (
        names["fit"].predict(theory.observations(measured, names["names"])).filter(kind="decode")
    )
    assert found["error"].abs().median() < 0.1
    assert found["error"].abs().max() < 0.25


@pytest.mark.slow
@on_others
def test_launch_and_sweep_runs_an_engine_and_reads_what_it_recorded(here, tmp_path):
    names = here("03_launch_and_sweep", results=str(tmp_path / "results")).names
    one, two, sweep = names["one"], names["two"], names["sweep"]
    assert [one.state, two.state] == ["finished"] * 2
    assert [[rank for rank in run.trace.ranks if rank >= 0] for run in (one, two)] == [[0], [0, 1]]
    steps = llmprof.analyze.steps(two.trace)
    # a prefill and 7 decode steps; the scheduler may split the prefill of four requests in two
    assert 8 <= steps["step"].n_unique() <= 10
    assert dict(one.requests.group_by("phase").len().iter_rows()) == {
        "plain": 12,
        "profiled": 4,
        "warmup": 4,
    }
    assert one.requests["output_tokens"].unique().to_list() == [8]
    # two a layer: four layers
    calls = llmprof.analyze.collectives(two.trace).filter(kind="all_reduce")
    assert calls.height / steps.height == pytest.approx(8, abs=1)
    assert sweep.comparison["state"].to_list() == ["finished"] * 4
    assert sweep.comparison.select(
        pl.sum_horizontal(pl.col("^share_.*$"))
    ).to_series().to_list() == pytest.approx([1.0] * 4)
    # what was recorded on a GPU: 40 requests, whose parts add up to the ns
    joined = names["joined"]
    assert (joined.height, joined["rest_ns"].abs().max()) == (40, 0)
    assert (
        "slow_first_tokens"
        in llmprof.analyze.findings(names["served"].trace, requests=joined)["rule"][:2]
    )


@pytest.mark.slow
@on_others
def test_a_change_is_tried_and_decided_on_an_engine(here, tmp_path):
    verdict = here(
        "11_from_finding_to_decision", results=str(tmp_path / "results"), most_pairs=3
    ).names["verdict"]
    assert verdict.pairs.filter(metric="output_tokens_per_s").height == 3
    # two requests at once in place of eight: seats that no step can give back, which three pairs
    # may leave unknown
    assert verdict.verdict in {"better", "unknown"}
    assert (verdict.keep == {"engine_args.max_num_seqs": 8}) == (verdict.verdict == "better")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_notebook_imports_exists(path):
    """Running them all is slow: this is seen in every run."""
    cells = nbformat.read(path, as_version=4).cells
    code = "\n".join(
        line
        for c in cells
        if c.cell_type == "code"
        for line in c.source.split("\n")
        if line[:1] != "%"
    )
    imports = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    own = [
        (node.module, alias.name)
        for node in imports
        for alias in node.names
        if str(node.module).startswith("llmprof")
    ]
    assert own or "import llmprof" in code
    for module, name in own:
        assert hasattr(importlib.import_module(module), name) or importlib.import_module(
            f"{module}.{name}"
        )
