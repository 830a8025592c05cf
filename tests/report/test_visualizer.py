"""Charts and report of a run folder."""

import json

import polars as pl
import pytest

from llmprof.errors import NotCapturedError, OutputError, ReadError
from llmprof.report import Visualizer
from llmprof.report import run as report_run
from llmprof.run import launch
from llmprof.run.launch import Run as RealRun
from llmprof.trace import Trace
from tests.charts import specs
from tests.report.builders import build
from tests.report.runs import Run, counters


@pytest.fixture
def folder_of(tmp_path, monkeypatch):
    """Make a run folder whose trace is the one given."""

    def make(trace, **values):
        run = Run(tmp_path, **values)

        def timeline(self):
            if trace is None:
                raise NotCapturedError(
                    "a run in mode inference_only records no timeline", hint="run it in mode torch"
                )
            return trace

        monkeypatch.setattr(RealRun, "trace", property(timeline))
        return run

    return make


def with_counters(trace):
    return Trace({**trace.tables, "counters": counters()}, trace.meta, trace.coverage)


@pytest.mark.slow
def test_pictures_of_a_run_with_a_trace(folder_of):
    run = folder_of(with_counters(build()), experiment_name="mine")
    visualizer = Visualizer(run.folder.path)
    written = visualizer.create_all_visualizations()
    assert [path.name for path in written] == [
        f"mine_{name}.png"
        for name in ("kernel_time", "cuda_api", "requests", "counters", "dashboard")
    ]
    assert visualizer.missing == {}
    for path in written:
        assert path.parent == run.folder.path
        width, height, colours = specs.image(path.read_bytes())
        assert 1700 < width < 2000
        assert height > 300
        assert colours > 20
    assert not list(run.folder.path.glob(".*png*"))


def test_a_run_without_a_trace_has_its_requests_and_says_what_is_missing(folder_of):
    run = folder_of(None, profile_mode="inference_only")
    visualizer = Visualizer(run.folder.path)
    written = visualizer.create_all_visualizations()
    assert [path.name for path in written] == [
        "tiny_inference_only_requests.png",
        "tiny_inference_only_dashboard.png",
    ]
    assert set(visualizer.missing) == {"kernel_time", "cuda_api", "counters"}
    assert "inference_only" in visualizer.missing["kernel_time"]
    page = visualizer.generate_report_html()
    assert page == run.folder.path / "report" / "index.html"
    text = page.read_text("utf-8")
    assert "How fast were the requests?" in text
    assert "A run in mode inference_only records no timeline." in text
    assert "the repeats disagree" in text
    assert (page.parent / "requests.csv").is_file()
    beside = run.folder.path / "visualization"
    links = {path.name for path in written} | {"report", "tiny_inference_only_report.html"}
    assert {path.name for path in beside.iterdir()} == links
    assert (beside / "tiny_inference_only_report.html").samefile(page)
    assert (beside / "report" / "index.html").read_text("utf-8") == text
    assert (beside / written[0].name).read_bytes() == written[0].read_bytes()


def test_monitors_of_a_run_without_a_trace_begin_with_the_first_measured_batch(folder_of):
    run = folder_of(None, profile_mode="inference_only")
    told = json.loads(run.folder.worker.read_text("utf-8"))
    for stage in told["stages"]:
        stage["start_ns"] = 1_000_000_000_000
    run.folder.worker.write_text(json.dumps(told), "utf-8")
    counters().drop("rank").with_columns(pl.col("time_ns") + 999_500_000_000).write_parquet(
        run.folder.monitors
    )
    found = report_run.monitor_samples(launch.open_run(run.folder.path))
    assert found["time_ns"].min() == -500_000_000
    visualizer = Visualizer(run.folder.path)
    assert f"{run.config.name}_counters.png" in {
        path.name for path in visualizer.create_all_visualizations()
    }


@pytest.mark.slow
def test_the_report_has_the_run_before_its_trace(folder_of):
    run = folder_of(with_counters(build()))
    told = []
    page = Visualizer(
        run.folder.path, progress=lambda what, done, total: told.append(what)
    ).generate_report_html()
    text = page.read_text("utf-8")
    places = [
        text.index(f'<section id="{anchor}"')
        for anchor in ("findings", "requests", "machine", "steps")
    ]
    assert places == sorted(places)
    for words in ("random:tiny", "vllm 0.32.0", "25.0 % used at most", "What the profiler costs"):
        assert words in text
    assert {path.name for path in page.parent.glob("*.png")} >= {
        "requests.png",
        "counters.png",
        "breakdown.png",
    }
    assert json.loads((run.folder.path / "summary.json").read_text()) == {
        "warnings": ["the repeats disagree"]
    }
    assert any(what.startswith("analysing") for what in told)


def test_hardware_metrics_of_a_run_under_ncu(folder_of, monkeypatch):
    import llmprof

    run = folder_of(None, profile_mode="ncu")
    text = Visualizer(run.folder.path).generate_report_html().read_text("utf-8")
    assert "Not captured: kernels against the roofs; what the warps wait for." in text
    monkeypatch.setattr(
        RealRun, "metrics", property(lambda self: llmprof.sample_metrics("ncu_tp1_eager"))
    )
    page = Visualizer(run.folder.path).generate_report_html()
    assert {path.name for path in page.parent.glob("*.png")} == {
        "requests.png",
        "request_latency.png",
        "roofline.png",
        "stalls.png",
    }


def test_only_run_folders(tmp_path):
    with pytest.raises(ReadError, match="not a run folder"):
        Visualizer(tmp_path)


def test_a_folder_that_cannot_be_written(folder_of, monkeypatch):
    run = folder_of(None, profile_mode="inference_only")

    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("llmprof.trace.storage.files.os.fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        Visualizer(run.folder.path).create_all_visualizations()
