import json
import math
import os
import re
import signal
import stat
import subprocess
import sys
import time

import polars as pl
import psutil
import pytest

from llmprof import analyze
from llmprof.errors import CaptureError, LaunchError, NotCapturedError, ReadError, TraceWarning
from llmprof.run.batch import BatchRunner, open_sweep
from llmprof.run.launch import ExperimentConfig, ExperimentRunner, open_run, resume
from llmprof.run.launch.run import folder as run_folder
from llmprof.run.launch.run import profilers as run_ncu
from llmprof.run.launch.run import requests as run_requests
from llmprof.run.launch.run import results, runner
from llmprof.run.launch.run.folder import UNIMPORTED
from llmprof.run.launch.run.results import check_capture, energy, energy_summary
from llmprof.trace import Trace
from llmprof.trace.storage import files
from tests.analyze.builders import GEMM, NORM, forward, kernels, labels, launches
from tests.building import table_of
from tests.launch.vllm_stand_in import StandInVllm
from tests.processes import still_running

ALWAYS = {
    "config.yaml",
    "experiment.log",
    "summary.json",
    "gpu_info.json",
    "generated_output.txt",
    "metrics.json",
    "inference_script.pyz",
    "manifest.json",
    "worker.json",
    "events.jsonl",
    "state.json",
}
LINKS = {"vllm_profile.nsys-rep", "vllm_profile.sqlite"}
NSYS = {"report.nsys-rep", "report.sqlite", "nsys_metrics.json", "nsys_summary.csv", *LINKS}
NCU = {"report.ncu-rep", "ncu_metrics.json"}


def names(run):
    return {p.name for p in run.folder.path.iterdir() if not p.name.startswith(".")}


def program(run, out):
    return [sys.executable, str(run.folder.script), "--out", str(out)]


def test_inference_only_measures_requests(stand_ins):
    run = ExperimentRunner(stand_ins.config(profile_mode="inference_only", prompt=["a", "b"])).run()
    assert run.state == "finished"
    assert names(run) == ALWAYS
    assert run.requests.filter(phase="plain").height == 2 * 2
    assert json.loads(run.folder.metrics.read_text())["summary"]
    with pytest.raises(NotCapturedError, match="records no timeline; run it in mode torch"):
        _ = run.trace
    with pytest.raises(NotCapturedError, match="measures no hardware counters"):
        _ = run.metrics


def test_torch_gives_a_trace(stand_ins, sample_trace):
    said = []
    stand_ins.how(sample="torch_tp1_eager", notes=["engine option x ignored"])
    run = ExperimentRunner(stand_ins.config(), progress=lambda *what: said.append(what)).run()
    assert names(run) == ALWAYS | {"traces"}
    assert run.trace.ranks == [0]
    steps = analyze.steps(sample_trace("torch_tp1_eager")).height
    assert analyze.steps(run.trace).height == steps
    assert run.summary["capture"]["steps"] == {"0": steps}
    assert "engine option x ignored" in run.summary["notes"]
    overhead = {row["metric"]: row["overhead"] for row in run.summary["overhead"]}
    assert overhead["ttft_ns"] == pytest.approx(0.2)
    tokens = run.trace.meta["without_profiler"]
    assert tokens["profiled_ns"] / tokens["plain_ns"] - 1 == pytest.approx(overhead["tpot_ns"])
    assert ("plain", 1, 2) in said
    again = open_run(run.folder.path)
    assert (again.config, again.summary) == (run.config, run.summary)
    assert repr(again) == f"<Run {run.folder.path.name}: finished>"


def shown_while_stopping(stand_ins, show, **how):
    """Run an engine that stops when its results were shown."""
    shown = stand_ins.folder / "shown"
    stand_ins.how(sample="torch_tp1_eager", stops=str(shown), **how)

    def told(run):
        try:
            show(run)
        finally:
            shown.touch()

    return ExperimentRunner(stand_ins.config(), show=told).run()


def test_results_are_shown_while_the_engine_stops(stand_ins):
    seen = []

    def show(run):
        (run.folder.path / "report").mkdir()
        (run.folder.path / "report" / "index.html").touch()
        seen.append((run.state, run.summary["capture"]["imported"], run.trace.ranks))

    run = shown_while_stopping(stand_ins, show, notes=["told by the engine"])
    assert seen == [("running", True, [0])]
    assert run.state == "finished"
    assert "told by the engine" in run.summary["notes"]
    assert not run_folder.changed_files(run.folder)
    said = json.loads(run.folder.manifest.read_text())
    assert "report/index.html" not in {row["name"] for row in said["files"]}
    assert said["commands"][0]["status"] == 0
    stages = [one["name"] for one in run.folder.state["stages"]]
    assert stages == [
        "start",
        "model",
        "engine",
        "import",
        "check",
        "show",
        "stop",
        "write",
        "done",
    ]
    assert all(ns >= 0 for ns in run.times.values())
    whole = sum(one["dur_ns"] for one in run.folder.state["stages"])
    assert sum(run.times.values()) == whole > 0


def test_what_was_not_shown_is_kept(stand_ins):
    def interrupted(run):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shown_while_stopping(stand_ins, interrupted)
    (path,) = (stand_ins.folder / "results").iterdir()
    run = open_run(path)
    assert run.state == "finished"
    seen = []
    assert resume(path, show=seen.append).folder == run.folder
    assert [one.folder for one in seen] == [run.folder]


def test_an_engine_that_fails_as_it_stops_is_a_failure(stand_ins):
    with pytest.raises(LaunchError, match="cannot stop"):
        shown_while_stopping(stand_ins, lambda run: None, fail="stop", says="cannot stop")
    (path,) = (stand_ins.folder / "results").iterdir()
    assert open_run(path).state == "failed"


def test_an_engine_stops_by_itself_if_its_capture_is_wrong(stand_ins, monkeypatch):
    shown = stand_ins.folder / "shown"
    stand_ins.how(sample="torch_tp4_eager_nccl", ranks=2, stops=str(shown))
    check = results.check_capture

    def checked(*given):
        shown.touch()
        return check(*given)

    monkeypatch.setattr(results, "check_capture", checked)
    with pytest.raises(CaptureError, match="none of ranks 2 and 3"):
        ExperimentRunner(stand_ins.config(tensor_parallel_size=4)).run()
    (path,) = (stand_ins.folder / "results").iterdir()
    folder = open_run(path).folder
    assert json.loads(folder.events.read_text().splitlines()[-1])["event"] == "done"
    assert folder.state["state"] == "failed"


def test_nsys_records_exports_and_counts(stand_ins):
    stand_ins.install("nsys")
    run = ExperimentRunner(stand_ins.config(profile_mode="nsys")).run()
    assert names(run) == ALWAYS | NSYS
    folder = run.folder.path
    assert stand_ins.argv == [
        [
            "nsys",
            "profile",
            "--trace=cuda,nvtx",
            "--sample=none",
            "--cpuctxsw=none",
            "--cuda-graph-trace=node",
            "--trace-fork-before-exec=true",
            "--capture-range=cudaProfilerApi",
            "--capture-range-end=stop",
            "--force-overwrite=true",
            f"--output={folder}/report",
            *program(run, folder),
        ],
        [
            "nsys",
            "export",
            "--type=sqlite",
            "--force-overwrite=true",
            f"--output={folder}/report.sqlite",
            f"{folder}/report.nsys-rep",
        ],
    ]
    numbers = json.loads(run.folder.nsys_metrics.read_text())
    assert numbers["kernels"] == run.trace.kernels.height == 3312
    assert numbers["kernel_time_ns"] == run.trace.kernels["dur_ns"].sum()
    assert numbers["summary"]["kernels"] == 3312
    assert numbers["summary"]["kernel_names"] == run.trace.kernels["name"].n_unique()
    first = numbers["top_kernels"][0]
    assert numbers["summary"]["top_kernels"][0] == first
    for name in LINKS:
        assert (folder / name).samefile(folder / name.replace("vllm_profile", "report"))
    assert first["time_percentage"] == pytest.approx(
        100 * first["total_ns"] / numbers["kernel_time_ns"]
    )
    assert sum(row["total_ns"] for row in numbers["categories"]) == sum(
        row["kernel_time_ns"] + row["copy_time_ns"] for row in numbers["ranks"]
    )
    summary = pl.read_csv(run.folder.nsys_summary)
    assert summary["count"].sum() == 3312
    assert summary["name"].to_list() == analyze.nsys.cuda_gpu_kern_sum(run.trace)["name"].to_list()
    assert run.summary["top_kernels"][0]["name"] == summary["name"][0]


def test_nsys_then_ncu_on_the_most_expensive_kernels(stand_ins):
    stand_ins.install("nsys", "ncu")
    run = ExperimentRunner(stand_ins.config(profile_mode="nsys_ncu", ncu_options={"top": 3})).run()
    folder = run.folder.path
    assert names(run) == ALWAYS | NSYS | NCU | {"kernel_comparison.csv", "nsys", "ncu"}
    nsys, _, ncu = stand_ins.argv
    assert nsys[-4:] == program(run, folder / "nsys")
    assert ncu == [
        "ncu",
        "--target-processes",
        "all",
        "--profile-from-start",
        "off",
        "--replay-mode",
        "kernel",
        "--graph-profiling",
        "node",
        "--clock-control",
        "none",
        "--filter-mode",
        "per-gpu",
        "--kernel-name-base",
        "function",
        "--devices",
        "0",
        "--kernel-name",
        "regex:^(nvjet_sm90_tst_192x8_64x8_2x1_v_bz_TNT|"
        "nvjet_sm90_tst_128x8_64x12_4x1_v_bz_splitK_TNT|nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT)$",
        "--launch-skip",
        ncu[20],
        "--launch-count",
        "3",
        "--set",
        "full",
        "--force-overwrite",
        "--export",
        f"{folder}/report",
        sys.executable,
        f"{folder}/ncu/inference_script.pyz",
        "--out",
        f"{folder}/ncu",
    ]
    heavy = analyze.nsys.cuda_gpu_kern_sum(run.trace)["name"].to_list()[:3]
    assert [name.split("(")[0] for name in heavy] == ncu[18].removeprefix("regex:^(").removesuffix(
        ")$"
    ).split("|")
    job = json.loads(
        (folder / "ncu" / "inference_script.pyz").read_text().split('r"""', 1)[1].split('"""')[0]
    )
    assert (job["plain"], job["profiler"], job["max_tokens"]) == (False, "cuda", 4)
    assert run.metrics.kernels.height == 24
    assert len(json.loads(run.folder.ncu_metrics.read_text())["launches"]) == 24
    comparison = pl.read_csv(run.folder.kernel_comparison)
    assert comparison["launches"].sum() == 24
    assert comparison["name"].head(3).to_list() == heavy
    assert comparison["total_ns"].is_sorted(descending=True, nulls_last=True)
    assert {"name", "share", "total_ns", "ncu_mean_ns", "ratio", "bound_by"} <= set(
        comparison.columns
    )
    assert any(note.startswith("ncu profiles 3 launches of nvjet") for note in run.summary["notes"])
    assert [one["pass"] for one in json.loads(run.folder.manifest.read_text())["commands"]] == [
        "nsys",
        "ncu",
        "import",
    ]


def test_ncu_alone(stand_ins):
    stand_ins.install("ncu")
    run = ExperimentRunner(
        stand_ins.config(profile_mode="ncu", ncu_options={"launch_count": 5})
    ).run()
    assert names(run) == ALWAYS | NCU
    (argv,) = stand_ins.argv
    assert argv[argv.index("--launch-count") + 1] == "5"
    assert '"max_tokens": 16' in run.folder.script.read_text(), (
        "who counts launches gets the whole run"
    )
    assert argv[-4:] == program(run, run.folder.path)
    with pytest.raises(NotCapturedError, match="mode ncu records no timeline"):
        _ = run.trace
    run = ExperimentRunner(stand_ins.config(profile_mode="ncu")).run()
    assert '"max_tokens": 4' in run.folder.script.read_text()
    assert any("ends after 4 output tokens" in note for note in run.summary["notes"])


def test_the_manifest_has_versions_commands_environment_and_hashes(stand_ins, monkeypatch):
    stand_ins.install("nsys", "ncu")
    monkeypatch.setenv("HF_TOKEN", "precious")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("HOME_OF_MINE", "private")
    run = ExperimentRunner(
        stand_ins.config(profile_mode="nsys", environment={"MINE": "x", "MY_API_KEY": "k"})
    ).run()
    said = json.loads(run.folder.manifest.read_text())
    assert said["versions"]["nsys"].endswith("2024.2.3.38-242334140272v0")
    assert said["versions"]["ncu"] == "Version 2025.3.1.0 (build 36398880)"
    assert said["versions"]["engine"] == "vllm"
    assert said["commands"][0]["argv"][1:] == stand_ins.argv[0][1:]
    assert said["commands"][0]["status"] == 0
    assert said["environment"]["NCCL_DEBUG"] == "WARN"
    assert said["environment"]["MINE"] == "<removed>", "not known to be harmless"
    assert said["environment"]["MY_API_KEY"] == "<removed>"
    assert not {"HF_TOKEN", "HOME_OF_MINE", "PATH"} & set(said["environment"])
    texts = "".join(path.read_text() for path in run.folder.path.glob("*.json"))
    assert not {"precious", "private"} & set(re.findall(r"\w+", texts))
    listed = {row["name"] for row in said["files"]}
    assert listed == names(run) - {"manifest.json", "state.json", *LINKS}
    assert run_folder.changed_files(run.folder) == []
    run.folder.output.write_text("other")
    run.folder.worker.unlink()
    assert run_folder.changed_files(run.folder) == ["generated_output.txt", "worker.json"]


def test_monitors_run_beside_the_engine(stand_ins):
    stand_ins.how(sample="torch_tp1_eager")
    run = ExperimentRunner(stand_ins.config(monitor_hz=20)).run()
    assert run.folder.monitors.is_file()
    assert set(pl.read_parquet_schema(run.folder.monitors)) == {
        "time_ns",
        "device",
        "name",
        "unit",
        "value",
    }
    assert "kernels" in run.trace.tables
    pl.DataFrame({"x": [1]}).write_parquet(run.folder.monitors)
    for damage in (run.folder.monitors.read_bytes(), b"PAR1 and no more", b""):
        run.folder.monitors.write_bytes(damage)
        with pytest.warns(TraceWarning, match=r"monitors\.parquet has no readable samples"):
            assert open_run(run.folder.path).trace.kernels.height


# --- importing


def test_a_raw_capture_alone_is_no_success_that_claims_kernels(stand_ins):
    stand_ins.install("nsys")
    stand_ins.how("STAND_IN_NSYS", writes="qdstrm")
    with pytest.warns(
        TraceWarning,
        match=r"not imported: nsys wrote raw data only \(report\.qdstrm\).*run --resume",
    ):
        run = ExperimentRunner(stand_ins.config(profile_mode="nsys")).run()
    assert run.state == UNIMPORTED
    assert "nsys_metrics.json" not in names(run)
    assert run.summary["capture"]["imported"] is False
    assert "top_kernels" not in run.summary
    assert run.requests.filter(phase="profiled").height == 1
    with pytest.raises(NotCapturedError, match=r"has no report\.sqlite; nsys wrote raw data only"):
        _ = run.trace


def test_a_raw_capture_is_imported_where_the_importer_is(stand_ins):
    stand_ins.install("nsys")
    stand_ins.how("STAND_IN_NSYS", writes="qdstrm")
    importer = stand_ins.folder / "host-linux-x64" / "QdstrmImporter"
    importer.parent.mkdir()
    importer.write_text(
        f"#!{sys.executable}\nimport os, sys\nassert sys.argv[1] == '-i' and open(sys.argv[2]).read() == 'raw'\n"
        "assert os.environ['LD_LIBRARY_PATH'].startswith(os.path.dirname(sys.argv[0]))\n"
        "open(sys.argv[sys.argv.index('-o') + 1], 'w').write('nsys_tp1_layer_nvtx')\n"
    )
    importer.chmod(importer.stat().st_mode | stat.S_IXUSR)
    run = ExperimentRunner(stand_ins.config(profile_mode="nsys")).run()
    assert run.state == "finished"
    assert run.trace.kernels.height == 3312


def test_a_report_that_cannot_be_exported_here_is_kept(stand_ins):
    stand_ins.install("nsys")
    stand_ins.how("STAND_IN_NSYS", export="fails")
    with pytest.warns(TraceWarning, match="is newer than this nsys"):
        run = ExperimentRunner(stand_ins.config(profile_mode="nsys")).run()
    assert run.state == UNIMPORTED
    assert run.folder.nsys_report.exists()


def test_what_was_recorded_of_a_machine_stays_where_another_imports_it(stand_ins, monkeypatch):
    stand_ins.install("nsys")
    stand_ins.how("STAND_IN_NSYS", writes="qdstrm")
    monkeypatch.setattr(
        run_folder, "machine", lambda worker: {"gpus": [{"name": "A"}] * 2, "cores": 64}
    )
    with pytest.warns(TraceWarning, match="not imported"):
        folder = ExperimentRunner(stand_ins.config(profile_mode="nsys")).run().folder
    state = folder.state | {"started": "2026-01-01T00:00:00+00:00"}
    files.write_json(folder.path / "state.json", state)
    recorded = json.loads(folder.manifest.read_text())["versions"]
    monkeypatch.setattr(run_folder, "machine", lambda worker: {"gpus": [], "cores": 2})
    monkeypatch.setattr(run_folder, "tool_version", lambda name: None)
    folder.nsys_report.write_text("nsys_tp1_layer_nvtx")
    seen = []
    monkeypatch.setattr(runner, "gather_run", lambda folder: seen.append(folder.state["stage"]))
    run = resume(folder.path)
    assert run.state == "finished"
    assert json.loads(folder.gpu_info.read_text()) == {"gpus": [{"name": "A"}] * 2, "cores": 64}
    assert folder.state["started"] == run.summary["started"] == state["started"]
    assert json.loads(folder.manifest.read_text())["versions"] == recorded
    assert seen == ["import"], "if this process is killed, the engine need not run again"
    with pytest.warns(TraceWarning, match="not imported"):
        again = ExperimentRunner(run.config).run_in(folder)
    assert again.folder.state["started"] > state["started"]
    assert json.loads(folder.gpu_info.read_text())["cores"] == 2


def test_a_run_goes_on_where_ncu_is_not(stand_ins):
    stand_ins.install("nsys", "ncu")
    stand_ins.how("STAND_IN_NSYS", writes="qdstrm")
    with pytest.warns(TraceWarning, match="not imported"):
        run = ExperimentRunner(stand_ins.config(profile_mode="nsys_ncu")).run()
    (stand_ins.bin / "ncu").unlink()
    run.folder.nsys_report.write_text("nsys_tp1_layer_nvtx")
    again = resume(run.folder.path)
    assert again.state == "finished"
    assert any(
        "the metrics of ncu from an earlier attempt were kept" in note
        for note in again.summary["notes"]
    )


# --- going on


def test_an_interrupted_run_is_run_again_in_its_folder(stand_ins):
    stand_ins.how(fail="start", says="RuntimeError: broken")
    with pytest.raises(LaunchError) as caught:
        ExperimentRunner(stand_ins.config()).run()
    folder = open_run(caught.value.facts["folder"]).folder
    (folder.path / "left over").touch()
    stand_ins.how(sample="torch_tp1_eager")
    run = resume(folder.path)
    assert (run.folder, run.state) == (folder, "finished")
    assert names(run) == ALWAYS | {"traces"}


def test_a_capture_that_failed_its_check_is_checked_again_without_the_engine(stand_ins):
    stand_ins.how(sample="torch_tp4_eager_nccl", ranks=2)
    with pytest.raises(CaptureError, match="none of ranks 2 and 3") as caught:
        ExperimentRunner(stand_ins.config(tensor_parallel_size=4)).run()
    folder = open_run(caught.value.facts["folder"]).folder
    assert folder.state["state"] == "failed"
    stand_ins.how(fail="start", says="must not run")
    with pytest.raises(CaptureError, match="none of ranks 2 and 3"):
        resume(folder.path)


def test_an_interrupted_ncu_is_all_that_is_made_again(stand_ins):
    stand_ins.install("nsys", "ncu")
    stand_ins.how("STAND_IN_NCU", writes="nothing")
    with pytest.raises(CaptureError, match="ncu wrote no report") as caught:
        ExperimentRunner(stand_ins.config(profile_mode="nsys_ncu")).run()
    folder = open_run(caught.value.facts["folder"]).folder
    folder.set_state("interrupted", stage="ncu")
    stand_ins.how("STAND_IN_NCU")
    run = resume(folder.path)
    assert run.state == "finished"
    assert "kernel_comparison.csv" in names(run)
    assert [(argv[0], argv[1]) for argv in stand_ins.argv] == [
        ("nsys", "profile"),
        ("nsys", "export"),
        ("ncu", "--target-processes"),
        ("ncu", "--target-processes"),
    ]
    passes = [one["pass"] for one in json.loads(run.folder.manifest.read_text())["commands"]]
    assert passes == ["nsys", "ncu", "ncu"]
    assert sum(" launches of nvjet" in note for note in run.summary["notes"]) == 1
    assert resume(folder.path).folder == run.folder, "nothing is left to do"


# --- the choice of kernels


def chosen(names, **options):
    frame = kernels(names)
    return run_ncu.choose_launches(Trace({"kernels": frame, "runtime": launches(frame)}), **options)


def test_the_most_expensive_functions_and_the_shortest_stretch_with_all_of_them():
    a, b, c = "gemm_a", "gemm_b", "gemm_c"
    # of a, b (c is cheap): a a b a b b a -> the earliest of the shortest stretches is a b (launches
    # 1, 2)
    found = chosen(
        [(a, 50), (c, 1), (a, 50), (b, 50), (c, 1), (a, 50), (b, 50), (b, 50), (a, 50)], top=2
    )
    assert set(found.functions) == {a, b}
    assert (found.skip, found.count, found.steps) == (1, 2, None)
    assert found.device == 0
    assert found.share == pytest.approx(350 / 352)
    assert found.elsewhere == ()


def test_a_steady_step_is_chosen_early_and_ends_the_run_early():
    """Prefill, then five decode steps that take most of the time: the second of them is taken."""
    step = [(GEMM, 40), (NORM, 5)] * 2
    parts = [kernels([("prefill", 30), (GEMM, 40), (NORM, 5)], start=0)]
    parts += [kernels(step, start=1000 * n, first=100 * n) for n in range(1, 6)]
    frame = pl.concat(parts)
    marks = [("execute_context_1(64)_generation_0(0)", -20, 100)]
    marks += [("execute_context_0(0)_generation_1(1)", 1000 * n - 20, 300) for n in range(1, 6)]
    trace = Trace({"kernels": frame, "runtime": launches(frame), "markers": labels(marks)})
    found = run_ncu.choose_launches(trace, top=2)
    # 2 launches of the prefill, 4 of the first decode step; the second one is the third step
    assert (found.skip, found.count, found.steps) == (2 + 4, 2, 3)
    assert found.functions == (GEMM, "fused_add_rms_norm_kernel")


STEP = "execute_context_0(0)_generation_4(4)"
CUDA = {"platform": "cuda"}


def config(**values):
    return ExperimentConfig.from_dict({"model": "random:tiny"} | values)


def whole(ranks=1, *, labelled=True):
    """Two labelled steps of a small model on each rank."""
    parts, calls, marks = [], [], []
    for rank in range(ranks):
        for step in range(2):
            at = 100 + 1000 * step
            part = kernels(forward(2), start=at, rank=rank, first=1 + 100 * step)
            parts.append(part)
            calls.append(launches(part))
            marks.append(labels([(STEP, at - 20, 400)], rank=rank))
    tables = {"kernels": pl.concat(parts), "runtime": pl.concat(calls), "markers": pl.concat(marks)}
    return Trace(tables if labelled else {k: v for k, v in tables.items() if k != "markers"})


def test_a_whole_capture_is_described():
    found = check_capture(
        whole(2),
        config(tensor_parallel_size=2),
        CUDA | {"stages": [{"name": "profiled", "dur_ns": 2000}]},
    )
    kernels_of_a_rank = 2 * len(forward(2))
    assert found["ranks"] == {0: kernels_of_a_rank, 1: kernels_of_a_rank}
    assert found["events_are"] == "kernels"
    assert found["steps"] == {0: 2, 1: 2}
    assert found["steps_from"] == ["vllm"]
    assert found["step_share"] == {0: 1.0, 1: 1.0}
    # from the first label (80) to the end of the second (1080 + 400)
    assert found["window_share"] == pytest.approx(1400 / 2000)
    assert found["warnings"] == []


@pytest.mark.parametrize("mode", ["torch", "nsys"])
def test_a_missing_rank_is_an_error_with_its_cause(mode):
    with pytest.raises(
        CaptureError,
        match=r"kernels of ranks 0 and 1, but none of ranks 2 and 3; expected kernels of all 4 ranks",
    ) as caught:
        check_capture(whole(2), config(tensor_parallel_size=4, profile_mode=mode), CUDA)
    assert caught.value.facts["missing"] == [2, 3]
    assert ("spawned" in caught.value.hint) is (mode == "nsys")


EMPTY = kernels([])


@pytest.mark.parametrize(
    ("tables", "mode", "found", "why"),
    [
        ({}, "nsys", "the capture is empty", "followed no process"),
        ({"kernels": EMPTY}, "nsys", "no kernels", "followed no process"),
        (
            {"kernels": EMPTY, "runtime": launches(kernels(["a"]))},
            "nsys",
            "no kernels",
            "older than the driver",
        ),
        ({"runtime": launches(kernels(["a"]))}, "torch", "empty: .*no device activity", "CUPTI"),
        ({"kernels": EMPTY}, "torch", "no kernels", "no step ran in the profiled window"),
    ],
)
def test_an_empty_capture_is_an_error_with_its_cause(tables, mode, found, why):
    with pytest.raises(CaptureError, match=found) as caught:
        check_capture(Trace(tables), config(profile_mode=mode), CUDA)
    assert why in caught.value.hint


def test_a_run_on_a_gpu_with_operators_only_is_empty(sample_trace):
    with pytest.raises(CaptureError, match=r"no kernels.*CUPTI"):
        check_capture(
            sample_trace("torch_cpu_tp2_layer_annotations"), config(tensor_parallel_size=2), CUDA
        )


def test_what_is_odd_is_a_warning():
    stages = [{"name": "profiled", "dur_ns": 20_000}]
    outside = kernels([("other", 5000)], start=0, first=900)
    trace = whole()
    trace = Trace(
        {**trace.tables, "kernels": pl.concat([trace.kernels.select(outside.columns), outside])}
    )
    found = check_capture(trace, config(max_iterations=2), CUDA | {"stages": stages})
    assert len(found["warnings"]) == 2
    assert "of the time of rank 0 lies in steps" in found["warnings"][0]
    assert "% of the profiled time (max_iterations is 2)" in found["warnings"][1]


# --- energy of the repeats of a run, with hand-computed answers


S = 10**9
T0 = 1_700_000_000 * S


def samples(watts=(100.0, 300.0), step_s=0.5, until_s=20.0):
    rows = [
        (T0 + round(k * step_s * S), device, "gpu.energy", power * k * step_s)
        for k in range(int(until_s / step_s))
        for device, power in enumerate(watts)
    ]
    return table_of("time_ns device name value", rows)


def worker(*stages):
    return {
        "stages": [
            {"name": n, "repeat": r, "start_ns": T0 + int(a * S), "dur_ns": int(d * S)}
            for n, r, a, d in stages
        ],
        "requests": [
            {"phase": n, "repeat": r, "output_tokens": 40} for n, r, *_ in stages for _ in range(2)
        ],
    }


def test_joules_are_those_of_all_gpus_between_the_ends_of_a_repeat():
    found = energy(
        samples(), worker(("warmup", 0, 0.0, 1.0), ("plain", 0, 1.25, 4.0), ("plain", 1, 6.0, 2.0))
    )
    # 400 W for 4 s and for 2 s, 80 tokens each
    assert found["joules"].to_list() == pytest.approx([1600.0, 800.0])
    assert found["watts"].to_list() == pytest.approx([400.0, 400.0])
    assert found["joules_per_output_token"].to_list() == pytest.approx([20.0, 10.0])
    assert found["devices"].to_list() == [2, 2]
    assert found["samples"].to_list() == [8, 5]
    (of_phase,) = energy_summary(found)
    assert of_phase["joules_per_output_token"] == pytest.approx(15.0)
    # deviation 7.071, t(1) = 12.706: 12.706 * 7.071 / sqrt(2) = 63.53
    assert of_phase["ci95_high"] - of_phase["ci95_low"] == pytest.approx(2 * 63.53, rel=1e-3)


def test_there_is_no_energy_of_a_repeat_that_is_too_short_for_the_counter_or_without_one():
    assert energy(samples(), worker(("plain", 0, 1.1, 0.6))).is_empty()
    with pytest.raises(NotCapturedError, match="no counter of energy"):
        energy(samples().with_columns(name=pl.lit("gpu.power")), worker())


# --- requests of a run, with answers computed by hand


MS = 1_000_000


def request(phase, repeat, request, **times):
    """A request of 64 + 5 tokens."""
    unknown = dict.fromkeys(
        ("ttft_s", "tpot_s", "itl_s", "queue_s", "prefill_s", "decode_s", "e2e_s")
    )
    head = {
        "phase": phase,
        "repeat": repeat,
        "request": request,
        "start_ns": None,
        "prompt_tokens": 64,
    }
    return head | {"output_tokens": 5, "finish_reason": "length"} | unknown | times


def worker_with(plain=(1.0, 1.2), profiled=(2.2,)):
    """Two requests a repeat; the wall time of each repeat is given (s)."""
    requests = [request("warmup", 0, 0, ttft_s=9.0)]
    stages = [{"name": "import", "start_ns": 0, "dur_ns": 5, "repeat": None}]
    for phase, walls in (("plain", plain), ("profiled", profiled)):
        for repeat, wall in enumerate(walls):
            stages.append(
                {"name": phase, "start_ns": 0, "dur_ns": round(wall * 1e9), "repeat": repeat}
            )
            for k in range(2):
                times = {
                    "ttft_s": wall / 10 + k / 100,
                    "decode_s": wall / 2,
                    "itl_s": [wall / 8] * 4,
                }
                requests.append(request(phase, repeat, k, **times))
    return {
        "requests": requests,
        "stages": stages,
        "kv_cache": {"blocks": 7},
        "peak_memory_bytes": {"0": 5},
    }


def summary_of(frame, metric, phase="plain"):
    (row,) = run_requests.summarize(frame).filter(phase=phase, metric=metric).to_dicts()
    return row


def test_requests_have_times_in_ns_and_the_wall_time_of_their_repeat():
    frame = run_requests.requests_of(worker_with())
    row = frame.row(1, named=True)
    assert row["phase"] == "plain"
    assert row["ttft_ns"] == 100 * MS
    assert row["itl_ns"] == [125 * MS] * 4
    assert row["wall_ns"] == 1000 * MS
    assert row["e2e_ns"] is None
    assert frame.row(0, named=True)["wall_ns"] is None
    each = run_requests.repeats(run_requests.requests_of(worker_with()))
    assert each.select("phase", "repeat").rows() == [
        ("warmup", 0),
        ("plain", 0),
        ("plain", 1),
        ("profiled", 0),
    ]
    plain = each.row(1, named=True)
    assert plain["requests"] == 2
    assert plain["output_tokens_per_s"] == pytest.approx(10.0)
    assert plain["tokens_per_s"] == pytest.approx(138.0)
    assert plain["requests_per_s"] == pytest.approx(2.0)
    assert each.row(0, named=True)["tokens_per_s"] is None


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"requests": None},
        {"requests": [3]},
        {"requests": [request("plain", 0, 0, ttft_s="soon")]},
    ],
    ids=["no-key", "null", "not-mappings", "text-for-time"],
)
def test_a_file_of_another_kind_is_refused(bad):
    with pytest.raises(ReadError, match=r"worker\.json"):
        run_requests.requests_of(bad)


def test_mean_deviation_and_interval_are_over_the_repeats_and_percentiles_over_the_requests():
    row = summary_of(run_requests.requests_of(worker_with()), "ttft_ns")
    # repeats: (100 + 110) / 2 and (120 + 130) / 2 ms
    assert row["mean"] == pytest.approx(115 * MS)
    assert row["std"] == pytest.approx(math.sqrt(200) * MS)
    assert row["ci95_high"] - row["mean"] == pytest.approx(12.706 * 10 * MS)
    assert row["p50"] == pytest.approx(115 * MS)
    assert row["p90"] == pytest.approx(127 * MS)
    assert (row["n"], row["repeats"], row["unit"]) == (4, 2, "ns")
    assert row["spread"] == pytest.approx(20 / 115)
    assert row["agree"] is False
    (words,) = run_requests.disagreements(
        run_requests.summarize(run_requests.requests_of(worker_with()))
    )
    assert words.startswith("the 2 plain repeats disagree: ")
    calm = run_requests.summarize(run_requests.requests_of(worker_with()), tolerance=0.5)
    assert run_requests.disagreements(calm) == []


def test_overhead_is_profiled_over_plain_and_clear_beyond_the_noise():
    calm = run_requests.overhead(
        run_requests.requests_of(worker_with((1.0, 1.01, 0.99), (2.0, 2.2)))
    )
    row = calm.row(0, named=True)
    assert row["metric"] == "wall_ns"
    assert row["overhead"] == pytest.approx(1.1)
    assert row["noise"] == pytest.approx(4.303 * 10 * MS * math.sqrt(4 / 3))
    assert row["clear"] is True
    noisy = run_requests.overhead(run_requests.requests_of(worker_with((1.0, 3.0), (2.2,)))).row(
        0, named=True
    )
    assert noisy["clear"] is False
    one = run_requests.overhead(run_requests.requests_of(worker_with((1.0,), (2.0,)))).row(
        0, named=True
    )
    assert one["clear"] is None


@pytest.mark.parametrize(
    ("plain", "profiled"), [((), (1.0,)), ((1.0,), ())], ids=["no-plain", "no-profiled"]
)
def test_overhead_needs_both_kinds_of_repeats(plain, profiled):
    with pytest.raises(NotCapturedError, match=f"no {'profiled' if plain else 'plain'} repeats"):
        run_requests.overhead(run_requests.requests_of(worker_with(plain, profiled)))


# --- one start of an engine for several points, on a stand-in for vLLM through the real script and
# runner


pytestmark = pytest.mark.filterwarnings("ignore:.*repeats disagree:llmprof.errors.TraceWarning")


def series_config(vllm, **values):
    usual = {
        "model": str(vllm.model),
        "results_dir": str(vllm.folder / "results"),
        "python": sys.executable,
        "repeat": 2,
        "profile_mode": "inference_only",
        "monitor_hz": 0,
        "input_tokens": 8,
        "max_model_len": 128,
    }
    return ExperimentConfig.from_dict(usual | values)


def sweep(vllm, parameters, **options):
    return BatchRunner(series_config(vllm), check=False, **options).run_parameter_sweep(parameters)


GRID = {"batch_size": [1, 2, 3], "max_tokens": [4, 8]}


def test_a_sweep_of_six_points_starts_the_engine_once(vllm):
    told = []
    done = sweep(vllm, GRID, progress=lambda *what: told.append(what))
    assert done.comparison["state"].to_list() == ["finished"] * 6
    assert len(vllm.calls("LLM")) == 1
    sizes = [
        (len(call["prompts"]), call["sampling"][0]["max_tokens"]) for call in vllm.calls("generate")
    ]
    assert sizes == [
        (b, t) for b in (1, 2, 3) for t in (4, 8) for _ in range(3)
    ]  # a warm-up and two repeats
    assert done.state["starts"] == [{"points": [0, 1, 2, 3, 4, 5], "starts": 1}]
    for point, folder in enumerate(done.runs):
        run = open_run(folder)
        assert run.state == "finished"
        assert run.worker["engine_start"] == {"point": point, "points": 6}
        assert run.config.batch_size == (1, 1, 2, 2, 3, 3)[point]
        assert run.requests.filter(phase="plain").height == 2 * run.config.batch_size
        assert (
            f"point {point + 1} of 6 that one start of the engine measured" in run.summary["notes"]
        )
    assert ("batch_size=2, max_tokens=8: plain 2 of 2", 3, 6) in told
    assert told[-1] == ("sweep", 6, 6)


def test_purists_and_what_the_engine_must_know_get_another_start(vllm):
    done = sweep(vllm, {"max_model_len": [64, 128], "batch_size": [1, 2]})
    assert done.comparison["state"].to_list() == ["finished"] * 4
    assert [call["values"]["max_model_len"] for call in vllm.calls("LLM")] == [64, 128]
    assert (
        sweep(vllm, {"batch_size": [1, 2]}, fresh_engine=True).comparison["state"].to_list()
        == ["finished"] * 2
    )
    assert len(vllm.calls("LLM")) == 2 + 2


def test_a_pipeline_on_a_cpu_holds_one_session_of_the_profiler_a_start(tmp_path, monkeypatch):
    """A second session can crash its first worker, so each point has a start of its own, without
    a warm-up.
    """
    vllm = StandInVllm(tmp_path, version="0.33.0+cpu")
    for name, value in vllm.environment({"traces": True}).items():
        monkeypatch.setenv(name, value)
    values = series_config(vllm, profile_mode="torch", pipeline_parallel_size=2)
    done = BatchRunner(values, check=False).run_parameter_sweep({"batch_size": [1, 2, 3]})
    assert all("the capture is empty" in why for why in done.failed.values()), (
        "a stand-in has no kernels"
    )
    assert len(vllm.calls("LLM")) == len(vllm.calls("start_profile")) == 3
    sizes = [len(call["prompts"]) for call in vllm.calls("generate")]
    assert (sizes, set(sizes)) == (sorted(sizes), {1, 2, 3}), (
        "one point after the other, none twice"
    )
    for point in done.state["points"]:
        worker = json.loads((done.folder / point["run"] / "worker.json").read_text())
        assert any(
            note.startswith("one point for each start of the engine") for note in worker["notes"]
        ) == (point["point"] < 2)


def test_an_engine_that_dies_is_started_once_more_for_what_is_left(vllm):
    vllm.how(dies_at=2)  # prompts in a batch
    done = sweep(vllm, {"batch_size": [1, 2, 3, 4]})
    assert done.comparison["state"].to_list() == ["finished", "failed", "finished", "finished"]
    assert "it was killed by SIGKILL" in done.failed["batch_size=2"]
    assert len(vllm.calls("LLM")) == 2
    assert done.state["starts"] == [{"points": [0, 1, 2, 3], "starts": 2}]
    assert [point["start"] for point in done.state["points"]] == [1, 1, 2, 2]
    vllm.how(fails="torch.OutOfMemoryError: CUDA out of memory")
    done = sweep(vllm, {"batch_size": [1, 2, 3]})
    assert done.comparison["state"].to_list() == ["failed"] * 3
    assert all("out of memory" in error for error in done.failed.values())
    assert len(vllm.calls("LLM")) == 2 + 1


def test_a_point_that_the_engine_refuses_does_not_end_the_others(vllm):
    vllm.how(refuses_at=2)
    done = sweep(vllm, {"batch_size": [1, 2, 3]})
    assert done.comparison["state"].to_list() == ["finished", "failed", "finished"]
    assert "raise max_model_len" in done.failed["batch_size=2"]
    assert len(vllm.calls("LLM")) == 1


@pytest.mark.parametrize(
    "how", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL]
)
def test_an_interrupted_series_keeps_its_points_and_leaves_nothing_running(vllm, how):
    """The runner is stopped at the third of four points; what was measured is only read
    afterwards.
    """
    vllm.how(hangs_at=3, child=True)
    code = """
import json, sys
from llmprof.run.batch import BatchRunner
from llmprof.run.launch import ExperimentConfig
config = ExperimentConfig.from_dict(json.loads(sys.argv[1]))
BatchRunner(config, check=False).run_parameter_sweep({"batch_size": [1, 2, 3, 4]}, folder=sys.argv[2])
"""
    folder = vllm.folder / "sweep"
    argv = [sys.executable, "-c", code, json.dumps(series_config(vllm).to_dict()), str(folder)]
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL, start_new_session=True)
    until = time.monotonic() + 180
    while time.monotonic() < until and not any(
        len(call["prompts"]) == 3 for call in vllm.calls("generate")
    ):
        time.sleep(0.05)
    below = psutil.Process(process.pid).children(recursive=True)
    (child,) = vllm.calls("child")
    assert child["pid"] in {one.pid for one in below}
    process.send_signal(how)
    process.wait(60)
    assert still_running(below) == []
    states = open_sweep(folder).comparison["state"].to_list()
    assert states == (
        ["interrupted"] * 3 + ["pending"] if how == signal.SIGINT else ["running"] * 4
    )
    before = len(vllm.calls("generate"))
    vllm.how()
    done = BatchRunner.resume(folder, check=False)
    assert done.comparison["state"].to_list() == ["finished"] * 4
    asked = [len(call["prompts"]) for call in vllm.calls("generate")[before:]]
    assert sorted(set(asked)) == [3, 4], "the first two were measured before"


def test_each_point_can_be_repeated_by_its_own_script(vllm):
    done = sweep(vllm, {"batch_size": [1, 2]})
    run = open_run(done.runs[1])
    run.folder.summary.unlink()
    run.folder.set_state("interrupted", stage="import")
    assert resume(run.folder.path, check=False).summary["metrics"]
    script = open_run(done.runs[1]).folder.script
    out = vllm.folder / "again"
    subprocess.run([sys.executable, str(script), "--out", str(out)], env=os.environ, check=True)
    assert len(json.loads((out / "worker.json").read_text())["requests"]) == 2 * 3
    script = done.folder / "engine-1" / "inference_script.pyz"
    subprocess.run(
        [sys.executable, str(script), "--out", str(vllm.folder / "all")], env=os.environ, check=True
    )
    assert len(list((vllm.folder / "all").glob("*/worker.json"))) == 2
