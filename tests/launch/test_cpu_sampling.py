"""Samplers of the CPU around a run: command lines, what goes wrong, and samples on the clock of
the timeline.
"""

import json
import shutil
import stat
import sys

import polars as pl
import pytest

import llmprof
from llmprof import analyze
from llmprof.errors import ConfigError, LaunchError, TraceWarning
from llmprof.readers.reading import with_cpu_samples
from llmprof.readers.saved import CPU_CLOCK, CPU_TABLE, CPU_TEXT
from llmprof.run.launch import ExperimentRunner, open_run
from llmprof.run.launch.run import passes, profilers
from llmprof.run.launch.run.series import groups
from llmprof.trace import Trace
from tests.analyze.builders import kernels

SCRIPT = """python3 12/34 [003] 100.000001000:    1000000 cpu-clock:
\t    7f01 forward (/app)
\t    7f02 main (/app)

python3 12/34 [003] 100.000501000:    1000000 cpu-clock:
\t    7f02 main (/app)

"""
PERF = f"""import subprocess, sys
if sys.argv[1] == "record":
    open(sys.argv[sys.argv.index("-o") + 1], "w").write("data")
    sys.exit(subprocess.call(sys.argv[sys.argv.index("--") + 1:]))
assert open(sys.argv[sys.argv.index("-i") + 1]).read() == "data"
if "--fail" in open(__file__).read().splitlines()[-1]:
    sys.exit("perf: no symbols")
print({SCRIPT!r}, end="")
"""


def install(stand_ins, last=""):
    path = stand_ins.bin / "perf"
    path.write_text(f"#!{sys.executable}\n{PERF}# {last}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_command_lines(tmp_path, stand_ins, monkeypatch):
    assert profilers.wrapped("none", tmp_path, ["a", "b"]) == ["a", "b"]
    perf = profilers.wrapped("perf", tmp_path, ["a", "b c"])
    assert perf[:2] == ["perf", "record"]
    assert perf[perf.index("-k") + 1] == "CLOCK_MONOTONIC"
    assert perf[perf.index("--") + 1 :] == ["a", "b c"]
    vtune = profilers.wrapped("vtune", tmp_path, ["a"], executable="/opt/vtune")
    assert vtune == [
        "/opt/vtune",
        "-collect",
        "hotspots",
        "-result-dir",
        str(tmp_path / "vtune"),
        "--",
        "a",
    ]
    (_, argv), *_ = passes.plan(stand_ins.config(cpu_sampler="perf"))
    assert argv[:2] == ["perf", "record"]
    assert "inference_script.pyz" in argv[-3] + argv[-1] + " ".join(argv)
    with pytest.raises(
        ConfigError, match=r"cpu_sampler perf does not work with profile_mode nsys.*one profiler"
    ):
        stand_ins.config(cpu_sampler="perf", profile_mode="nsys")
    with pytest.raises(ConfigError, match="cpu_sampler"):
        stand_ins.config(cpu_sampler="gprof")
    configs = [stand_ins.config(profile_mode="torch", max_tokens=tokens) for tokens in (4, 8)]
    assert groups(configs) == [[0, 1]]
    sampled = groups([config.replace(cpu_sampler="perf") for config in configs])
    assert sampled == [[0], [1]], "an engine that points share would not be sampled"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match=r"vtune is not on PATH.*Intel VTune"):
        profilers.start("vtune", tmp_path)


def test_samples_stand_on_the_clock_of_the_timeline(tmp_path):
    (tmp_path / CPU_TEXT).write_text(SCRIPT)
    (tmp_path / CPU_CLOCK).write_text(json.dumps({"epoch_minus_monotonic_ns": 10**18}))
    epoch = 10**18 + 100 * 10**9
    trace = with_cpu_samples(
        tmp_path, Trace({"kernels": kernels(["a"])}, {"start_epoch_ns": epoch})
    )
    assert trace.samples["time_ns"].to_list() == [1_000, 501_000]
    assert trace.kernels.height == 1
    assert analyze.hotspots(trace.select(window=(0, 100_000)))["name"].to_list() == [
        "forward",
        "main",
    ]
    bare = with_cpu_samples(tmp_path, Trace({"kernels": kernels(["a"])}))
    assert bare.samples["time_ns"].null_count() == 2


def test_a_report_of_vtune_has_sums_only(tmp_path):
    (tmp_path / CPU_TABLE).write_text(
        "Function Stack,CPU Time:Self,Module\nTotal,0,\n main,1.5,app\n"
    )
    trace = with_cpu_samples(tmp_path, Trace({"kernels": kernels(["a"])}))
    assert trace.samples.select("name", "value", "time_ns").rows() == [
        ("main", 1_500_000_000, None)
    ]
    trace = Trace({"kernels": kernels(["a"])})
    assert with_cpu_samples(tmp_path / "none", trace) is trace


def test_samples_of_a_run_are_read_with_its_folder(tmp_path, root):
    """They are in ``llmprof.read(RUN)`` as in ``Run.trace``, unless other tables are asked for."""
    folder = tmp_path / "run"
    shutil.copytree(root / "sample_traces/run_torch_tp1", folder)
    (folder / CPU_TEXT).write_text(SCRIPT)
    (folder / CPU_CLOCK).write_text(json.dumps({"epoch_minus_monotonic_ns": 10**18}))
    trace = llmprof.read(folder)
    assert (
        trace.samples["name"].to_list()
        == open_run(folder).trace.samples["name"].to_list()
        == ["forward", "main"]
    )
    assert not llmprof.read(folder, tables=["kernels"]).has("samples")
    (folder / CPU_TEXT).write_text("nothing of perf")
    with pytest.warns(TraceWarning, match="no samples of the CPU"):
        assert not llmprof.read(folder).has("samples")


def test_a_run_with_perf_around_it(stand_ins):
    install(stand_ins)
    stand_ins.how(sample="torch_tp1_eager")
    run = ExperimentRunner(stand_ins.config(cpu_sampler="perf")).run()
    assert run.state == "finished"
    there = {path.name for path in run.folder.path.iterdir()}
    assert {CPU_TEXT, CPU_CLOCK} <= there
    assert "perf.data" not in there
    assert run.trace.samples.filter(pl.col("unit") == "ns").height == 2
    assert run.trace.has("kernels")
    assert analyze.hotspots(run.trace)["name"].to_list() == ["main", "forward"]


def test_a_sampler_that_fails_costs_nothing_else(stand_ins):
    install(stand_ins, "--fail")
    stand_ins.how(sample="torch_tp1_eager")
    run = ExperimentRunner(stand_ins.config(cpu_sampler="perf")).run()
    assert run.state == "finished"
    assert any(
        "gave no samples of the CPU: perf: no symbols" in note for note in run.summary["notes"]
    )
    assert not run.trace.has("samples")
