from __future__ import annotations

import json
import stat
import sys

import polars as pl
import pytest

from llmprof import analyze
from llmprof.errors import CaptureError, LaunchError, NotCapturedError, TraceWarning
from llmprof.launch import ExperimentRunner, open_run, resume
from llmprof.launch.run import folder as run_folder
from llmprof.launch.run import profilers as run_ncu
from llmprof.launch.run.folder import UNIMPORTED
from llmprof.trace import Trace
from tests.analyze.builders import GEMM, NORM, kernels, labels, launches

ALWAYS = {
    "config.yaml", "experiment.log", "summary.json", "gpu_info.json", "generated_output.txt", "metrics.json",
    "inference_script.py", "manifest.json", "worker.json", "events.jsonl", "state.json",
}  # fmt: skip
NSYS = {"report.nsys-rep", "report.sqlite", "nsys_metrics.json", "nsys_summary.csv"}
NCU = {"report.ncu-rep", "ncu_metrics.json"}


def names(run) -> set[str]:
    return {p.name for p in run.folder.path.iterdir() if not p.name.startswith(".")}


def program(run, out) -> list[str]:
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
    assert ("plain", 1, 2) in said
    again = open_run(run.folder.path)
    assert (again.config, again.summary) == (run.config, run.summary)
    assert repr(again) == f"<Run {run.folder.path.name}: finished>"


def test_nsys_records_exports_and_counts(stand_ins):
    stand_ins.install("nsys")
    run = ExperimentRunner(stand_ins.config(profile_mode="nsys")).run()
    assert names(run) == ALWAYS | NSYS
    folder = run.folder.path
    assert stand_ins.argv == [
        ["nsys", "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--cuda-graph-trace=node",
         "--trace-fork-before-exec=true", "--capture-range=cudaProfilerApi", "--capture-range-end=stop",
         "--force-overwrite=true", f"--output={folder}/report", *program(run, folder)],
        ["nsys", "export", "--type=sqlite", "--force-overwrite=true", f"--output={folder}/report.sqlite",
         f"{folder}/report.nsys-rep"],
    ]  # fmt: skip
    numbers = json.loads(run.folder.nsys_metrics.read_text())
    assert numbers["kernels"] == run.trace.kernels.height == 3312
    assert numbers["kernel_time_ns"] == run.trace.kernels["dur_ns"].sum()
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
        "ncu", "--target-processes", "all", "--profile-from-start", "off", "--replay-mode", "kernel",
        "--graph-profiling", "node", "--clock-control", "none", "--filter-mode", "per-gpu",
        "--kernel-name-base", "function", "--devices", "0",
        "--kernel-name", "regex:^(nvjet_sm90_tst_192x8_64x8_2x1_v_bz_TNT|"
        "nvjet_sm90_tst_128x8_64x12_4x1_v_bz_splitK_TNT|nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT)$",
        "--launch-skip", ncu[20], "--launch-count", "3", "--set", "full", "--force-overwrite",
        "--export", f"{folder}/report", sys.executable, f"{folder}/ncu/inference_script.py", "--out", f"{folder}/ncu",
    ]  # fmt: skip
    heavy = analyze.nsys.cuda_gpu_kern_sum(run.trace)["name"].to_list()[:3]
    assert [name.split("(")[0] for name in heavy] == ncu[18].removeprefix("regex:^(").removesuffix(")$").split("|")
    job = json.loads((folder / "ncu" / "inference_script.py").read_text().split('r"""', 1)[1].split('"""')[0])
    assert (job["plain"], job["profiler"], job["max_tokens"]) == (False, "cuda", 4)
    assert run.metrics.kernels.height == 24
    assert len(json.loads(run.folder.ncu_metrics.read_text())["launches"]) == 24
    comparison = pl.read_csv(run.folder.kernel_comparison)
    assert comparison["launches"].sum() == 24
    assert comparison["name"].head(3).to_list() == heavy
    assert comparison["total_ns"].is_sorted(descending=True, nulls_last=True)
    assert {"name", "share", "total_ns", "ncu_mean_ns", "ratio", "bound"} <= set(comparison.columns)
    assert any(note.startswith("ncu profiles 3 launches of nvjet") for note in run.summary["notes"])
    assert [one["pass"] for one in json.loads(run.folder.manifest.read_text())["commands"]] == ["nsys", "ncu", "import"]


def test_ncu_alone(stand_ins):
    stand_ins.install("ncu")
    run = ExperimentRunner(stand_ins.config(profile_mode="ncu", ncu_options={"launch_count": 5})).run()
    assert names(run) == ALWAYS | NCU
    (argv,) = stand_ins.argv
    assert argv[argv.index("--launch-count") + 1] == "5"
    assert '"max_tokens": 16' in run.folder.script.read_text(), "who counts launches gets the whole run"
    assert argv[-4:] == program(run, run.folder.path)
    with pytest.raises(NotCapturedError, match="mode ncu records no timeline"):
        _ = run.trace
    run = ExperimentRunner(stand_ins.config(profile_mode="ncu")).run()
    assert '"max_tokens": 4' in run.folder.script.read_text()
    assert (
        "the run under ncu ends after 4 output tokens: steps are slow under ncu, and these are enough"
        in run.summary["notes"]
    )


def test_the_manifest_has_versions_commands_environment_and_hashes(stand_ins, monkeypatch):
    stand_ins.install("nsys", "ncu")
    monkeypatch.setenv("HF_TOKEN", "precious")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("HOME_OF_MINE", "private")
    run = ExperimentRunner(stand_ins.config(profile_mode="nsys", environment={"MINE": "x", "MY_API_KEY": "k"})).run()
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
    assert not any(
        word in path.read_text() for word in ("precious", "private") for path in run.folder.path.glob("*.json")
    )
    listed = {row["name"] for row in said["files"]}
    assert listed == names(run) - {"manifest.json", "state.json"}
    assert run_folder.changed(run.folder) == []
    run.folder.output.write_text("other")
    run.folder.worker.unlink()
    assert run_folder.changed(run.folder) == ["generated_output.txt", "worker.json"]


def test_monitors_run_beside_the_engine(stand_ins):
    stand_ins.how(sample="torch_tp1_eager")
    run = ExperimentRunner(stand_ins.config(monitor_hz=20)).run()
    assert run.folder.monitors.is_file()
    assert set(pl.read_parquet_schema(run.folder.monitors)) == {"time_ns", "device", "name", "unit", "value"}
    assert "kernels" in run.trace.tables


@pytest.mark.parametrize("content", [b"PAR1 and no more", b"", "another table"])
def test_damaged_samples_of_the_monitors_do_not_cost_the_trace(stand_ins, content):
    stand_ins.how(sample="torch_tp1_eager")
    run = ExperimentRunner(stand_ins.config(monitor_hz=20)).run()
    if isinstance(content, bytes):
        run.folder.monitors.write_bytes(content)
    else:
        pl.DataFrame({"x": [1]}).write_parquet(run.folder.monitors)
    with pytest.warns(TraceWarning, match=r"no counters of the monitors: monitors\.parquet has no readable samples"):
        assert open_run(run.folder.path).trace.kernels.height


# --- importing


def test_a_raw_capture_alone_is_no_success_that_claims_kernels(stand_ins):
    stand_ins.install("nsys")
    stand_ins.how("STAND_IN_NSYS", writes="qdstrm")
    with pytest.warns(TraceWarning, match=r"not imported: nsys wrote raw data only \(report\.qdstrm\).*run --resume"):
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
    with pytest.warns(
        TraceWarning, match=r"is newer than this nsys; on a machine with Nsight Systems, run `nsys export"
    ):
        run = ExperimentRunner(stand_ins.config(profile_mode="nsys")).run()
    assert run.state == UNIMPORTED
    assert run.folder.nsys_report.exists()


def test_without_a_timeline_ncu_takes_the_first_launches(stand_ins):
    stand_ins.install("nsys", "ncu")
    stand_ins.how("STAND_IN_NSYS", writes="qdstrm")
    with pytest.warns(TraceWarning, match="not imported"):
        run = ExperimentRunner(stand_ins.config(profile_mode="nsys_ncu")).run()
    assert run.state == UNIMPORTED
    assert "--kernel-name" not in stand_ins.argv[-1]
    assert stand_ins.argv[-1][stand_ins.argv[-1].index("--launch-count") + 1] == "24"
    assert "ncu_metrics.json" in names(run)
    assert "kernel_comparison.csv" not in names(run)
    run.folder.nsys_report.write_text("nsys_tp1_layer_nvtx")
    assert resume(run.folder.path).state == "finished"
    assert "kernel_comparison.csv" in names(run)


def test_a_run_goes_on_where_ncu_is_not(stand_ins):
    stand_ins.install("nsys", "ncu")
    stand_ins.how("STAND_IN_NSYS", writes="qdstrm")
    with pytest.warns(TraceWarning, match="not imported"):
        run = ExperimentRunner(stand_ins.config(profile_mode="nsys_ncu")).run()
    (stand_ins.bin / "ncu").unlink()
    run.folder.nsys_report.write_text("nsys_tp1_layer_nvtx")
    again = resume(run.folder.path)
    assert again.state == "finished"
    assert any("the metrics of ncu from an earlier attempt were kept" in note for note in again.summary["notes"])


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
        ("nsys", "profile"), ("nsys", "export"), ("ncu", "--target-processes"), ("ncu", "--target-processes"),
    ]  # fmt: skip
    passes = [one["pass"] for one in json.loads(run.folder.manifest.read_text())["commands"]]
    assert passes == ["nsys", "ncu", "ncu"]
    assert sum(" launches of nvjet" in note for note in run.summary["notes"]) == 1
    assert resume(folder.path).folder == run.folder, "nothing is left to do"


# --- the choice of kernels


def chosen(names, **options):
    frame = kernels(names)
    return run_ncu.choose(Trace({"kernels": frame, "runtime": launches(frame)}), **options)


def test_the_most_expensive_functions_and_the_shortest_stretch_with_all_of_them():
    a, b, c = "gemm_a", "gemm_b", "gemm_c"
    # of a, b (c is cheap): a a b a b b a -> the earliest of the shortest stretches is a b (launches 1, 2)
    found = chosen([(a, 50), (c, 1), (a, 50), (b, 50), (c, 1), (a, 50), (b, 50), (b, 50), (a, 50)], top=2)
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
    found = run_ncu.choose(trace, top=2)
    # 2 launches of the prefill, 4 of the first decode step; the second one is the third step
    assert (found.skip, found.count, found.steps) == (2 + 4, 2, 3)
    assert found.functions == (GEMM, "fused_add_rms_norm_kernel")
