"""The files of a report: all of them or none, and nothing of others is touched."""

import json
import shutil

import polars as pl
import pytest

from llmprof import analyze, report
from llmprof.charts.base import save
from llmprof.errors import OutputError
from llmprof.readers import bundled
from llmprof.report import folder as report_folder
from tests.samples import sample

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def written(small, tmp_path_factory):
    return report.write(
        small, tmp_path_factory.mktemp("report") / "deep" / "folder", title="A title"
    )


def test_page_pngs_csvs_and_summary(written):
    assert written.index.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert "<title>A title</title>" in written.index.read_text("utf-8")
    assert {path.stem for path in written.pngs} == {
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
    assert all(path.read_bytes().startswith(PNG) for path in written.pngs)
    present = sorted(path.name for path in written.folder.iterdir())
    assert present == sorted(
        p.name for p in (*written.pngs, *written.csvs, written.index, written.summary)
    )


def test_csvs_and_the_summary_are_for_programs(written, small):
    by_name = {path.stem: path for path in written.csvs}
    assert pl.read_csv(by_name["steps"]).height == analyze.steps(small).height == 6
    kernels = pl.read_csv(by_name["kernels"])
    assert kernels["total_ns"].sum() == small.kernels["dur_ns"].sum()
    assert set(by_name) == {
        "findings",
        "coverage",
        "steps",
        "layers",
        "overlap",
        "collectives",
        "idle",
        "launch_delay",
        "kernels",
        "fusion",
        "opportunities",
    }
    said = json.loads(written.summary.read_text("utf-8"))
    assert said["findings"] == analyze.findings(small).to_dicts()
    assert said["meta"]["device"] == "Test GPU"
    assert said["ranks"] == [0, 1]
    assert {row["kind"] for row in said["coverage"]} >= {"step", "stage", "category"}
    assert said["frames"]["steps"] == {"rows": 6, "written": 6}
    assert said["reading"]["events"] == 18
    found = {one["found"] for one in said["absent"] if "bound" not in one["found"]}
    assert found == {"the recording has 2 ranks, and a map of ranks is drawn from 8"}


@pytest.mark.usefixtures("quick")
def test_what_is_absent_is_in_the_summary(small, tmp_path):
    tables = {name: frame for name, frame in small.tables.items() if name != "runtime"}
    said = json.loads(
        report.write(type(small)(tables, small.meta), tmp_path).summary.read_text("utf-8")
    )
    delay = next(a for a in said["absent"] if a["part"] == "launch_delay")
    assert delay["captured"] is False
    assert "ProfilerActivity" in delay["hint"]
    assert "launch_delay.csv" not in said["files"]


@pytest.mark.usefixtures("quick")
def test_without_tables_the_page_is_the_same(small, tmp_path):
    whole = report.write(small, tmp_path / "whole")
    alone = report.write(small, tmp_path / "alone", tables=False)
    assert alone.index.read_text("utf-8") == whole.index.read_text("utf-8")
    assert alone.csvs == ()
    first, second = (json.loads(one.summary.read_text("utf-8")) for one in (whole, alone))
    assert {**first, "frames": {}, "files": second["files"]} == second


@pytest.mark.usefixtures("quick")
def test_a_second_report_replaces_the_first_and_leaves_the_rest(small, tmp_path):
    report.write(small, tmp_path)
    (tmp_path / "notes.csv").write_text("mine")
    tables = {name: frame for name, frame in small.tables.items() if name != "runtime"}
    report.write(type(small)(tables, small.meta), tmp_path)
    assert not (tmp_path / "launch_delay.png").exists()
    assert not (tmp_path / "launch_delay.csv").exists()
    assert (tmp_path / "steps.csv").exists()
    assert (tmp_path / "notes.csv").read_text() == "mine"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("listed", [["../victim.csv", "sub/victim.csv"], "victim.csv", [7], None])
def test_a_summary_cannot_name_files_elsewhere(small, tmp_path, listed):
    folder = tmp_path / "report"
    (folder / "sub").mkdir(parents=True)
    victims = [tmp_path / "victim.csv", folder / "sub" / "victim.csv", folder / "victim.csv"]
    for victim in victims:
        victim.write_text("mine")
    (folder / "summary.json").write_text(json.dumps({"llmprof": "0", "files": listed}))
    report.write(small, folder)
    assert all(victim.exists() for victim in victims)


@pytest.mark.usefixtures("quick")
def test_a_failure_leaves_the_folder_as_it_was(small, tmp_path, monkeypatch):
    report.write(small, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report_folder, "page", fail)
    with pytest.raises(OutputError, match=r"cannot write the report to .*No space left on device"):
        report.write(small, tmp_path, title="another")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_folder_that_cannot_be_written(small, tmp_path, place):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="cannot write the report to"):
        report.write(small, tmp_path / place)
    assert (tmp_path / "file").read_text() == "mine"


def test_vega_is_kept_in_the_cache_and_a_damaged_one_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("LLMPROF_CACHE", str(tmp_path))
    monkeypatch.setattr(save.vlc, "javascript_bundle", lambda *_, **__: "let vegaEmbed;\r\nlet x;")
    save.vega_bundle.cache_clear()
    assert save.vega_bundle() == "let vegaEmbed;\nlet x;"
    (kept,) = (tmp_path / "vega").iterdir()
    monkeypatch.setattr(
        save.vlc, "javascript_bundle", lambda *_, **__: pytest.fail("bundled again")
    )
    save.vega_bundle.cache_clear()
    assert save.vega_bundle() == "let vegaEmbed;\nlet x;"
    kept.write_text("let vegaEmbed; </script>")
    save.vega_bundle.cache_clear()
    with pytest.raises(OutputError, match="cannot stand in a page"):
        save.vega_bundle()
    save.vega_bundle.cache_clear()


@pytest.mark.slow
def test_reports_of_real_captures(sample_trace, tmp_path):
    written = report.write(sample_trace("torch_tp4_eager_nccl"), tmp_path)
    assert 1_000_000 < written.index.stat().st_size < 4_000_000
    assert len(written.pngs) >= 8
    assert written.findings.height >= 3


@pytest.mark.slow
def test_reports_of_every_bundled_capture(run, tmp_path):
    for row in bundled.samples().rows(named=True):
        code, _, err = run(
            "report", f"sample:{row['name']}", "-o", str(tmp_path / row["name"]), "--no-progress"
        )
        assert (code, "failed: " in err) == (0, False), row["name"]


@pytest.mark.slow
def test_reports_of_every_folder_that_was_captured(run, shared, tmp_path):
    folders = [
        path
        for path in (shared / "captures").iterdir()
        if path.is_dir() and not (path / "grid.py").exists()
    ]
    for path in folders:
        shutil.copytree(path, copy := tmp_path / path.name)
        code, _, err = run(
            "report", str(copy), "-o", str(tmp_path / f"{path.name}_report"), "--no-progress"
        )
        assert (code, "failed: " in err) == (0, False), path.name
        if (copy / "state.json").is_file():
            code, out, err = run(f"run --resume {copy} --no-progress")
            assert (code, err, "finished" in out) == (0, "", True), path.name
            assert (copy / "report" / "index.html").is_file()


@pytest.mark.slow
def test_a_report_says_how_near_a_known_model_comes_to_its_bound(tmp_path):
    trace = sample("torch_tp1_cudagraph")
    written = report.write(trace, tmp_path / "known", model="Qwen2.5-1.5B")
    text = written.index.read_text()
    assert "How near does it come to the bound?" in text
    assert "bound_gap.png" in {path.name for path in written.pngs}
    wrong = report.write(trace, tmp_path / "wrong", model="Qwen3-8B")
    assert "28 layers in a step" in wrong.index.read_text()
