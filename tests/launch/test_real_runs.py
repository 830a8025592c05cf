"""Real runs through the runner on the CPU: a run folder, requests, a checked capture, and no
process left.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import polars as pl
import psutil
import pytest

from llmprof import analyze
from llmprof.run.batch import BatchRunner
from llmprof.run.launch import ExperimentConfig, ExperimentRunner, open_run
from llmprof.run.launch.run import folder as run_folder
from tests.processes import still_running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*repeats disagree:llmprof.errors.TraceWarning"),
]

OUTPUT = 5
CORE_WITHIN = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""vLLM's core runs in the process of the script: importing vLLM (12 s) is most of what a process
costs here.
"""


@pytest.fixture
def config(engine_python, tmp_path):
    """A small run of the engine."""

    def made(**values):
        usual = {
            "model": "random:tiny",
            "python": engine_python,
            "results_dir": str(tmp_path),
            "eager": True,
            "repeat": 1,
            "max_tokens": OUTPUT,
            "batch_size": 2,
            "input_tokens": 32,
            "max_model_len": 128,
            "timeout_s": 1500,
        }
        return ExperimentConfig.from_dict(usual | values)

    return made


def commands_with(word):
    """Command lines of processes that name a folder, ours left out."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            if word in line and process.pid != os.getpid():
                found.append(line)
    return found


def writing_to(folder):
    """Processes whose output goes to a file of a folder: vLLM renames its workers, so command
    lines do not tell.
    """
    found = []
    for number in (1, 2):
        for link in Path("/proc").glob(f"[0-9]*/fd/{number}"):
            with contextlib.suppress(OSError):
                if str(link.readlink()).startswith(str(folder)):
                    found.append(str(link))
    return found


def check_worker(worker):
    """What the engine's script wrote of the machine and of each request."""
    assert worker["platform"] == "cpu"
    for one in worker["requests"]:
        assert one["finish_reason"] == "length"
        assert 0 < one["ttft_s"] < one["e2e_s"]
        if one["itl_s"] is not None:  # of a server and of transformers
            # a server that is faster than its client sends two tokens at once
            assert 0 < len(one["itl_s"]) <= one["output_tokens"] - 1
            assert sum(one["itl_s"]) == pytest.approx(
                one["e2e_s"] - one["ttft_s"], rel=0.05, abs=0.05
            )


def check_steps(trace, requests):
    """The steps of every rank computed each token of the prompts, and each further token of the
    answers.
    """
    steps = analyze.steps(trace).filter(pl.col("phase") != "empty")
    for rank in (rank for rank in trace.ranks if rank >= 0):
        mine = steps.filter(rank=rank)
        assert mine["prefill_tokens"].sum() == requests["prompt_tokens"].sum()
        assert mine["decode_tokens"].sum() == requests.height * (OUTPUT - 1)


def check_run(run, ranks):
    """What holds for a run of any engine; returns its trace and the labelled events."""
    assert run.state == "finished"
    capture = run.summary["capture"]
    assert sorted(capture["ranks"]) == [str(rank) for rank in range(ranks)]
    assert capture["events_are"] == "operators"
    assert min(capture["step_share"].values()) > 0.6
    trace = run.trace
    assert [rank for rank in trace.ranks if rank >= 0] == list(range(ranks))
    labelled = trace.events
    for (rank,), rows in labelled.group_by("rank"):
        assert {"attention", "norm", "qkv_proj"} <= set(rows["stage"]), rank
    assert analyze.findings(trace).height
    profiled = run.requests.filter(phase="profiled")
    assert set(profiled["output_tokens"]) == {OUTPUT}
    assert run.requests.filter(phase="plain").height == profiled.height
    assert {row["metric"] for row in run.summary["overhead"]} >= {"ttft_ns", "e2e_ns"}
    if run.config.engine == "vllm":
        joined = analyze.requests(run)
        assert joined["request"].to_list() == profiled["request"].to_list()
        assert (joined["rest_ns"].abs() <= 0.01 * joined["e2e_ns"]).all(), (
            "parts add up to the latency"
        )
        assert joined["steps"].to_list() == [OUTPUT] * joined.height
    check_worker(run.worker)
    assert run.folder.output.stat().st_size > 0
    assert run_folder.changed_files(run.folder) == []
    return trace, labelled


@pytest.mark.parametrize(
    ("values", "ranks"),
    [
        pytest.param(
            {"tensor_parallel_size": 2, "layer_annotations": True, "environment": CORE_WITHIN},
            2,
            id="two ranks",
        ),
        pytest.param(
            {
                "served": True,
                "server": {"num_prompts": 4, "max_concurrency": 2, "health_timeout_s": 1000},
                "input_tokens": None,
                "load": {"input": "16:40"},
            },
            1,
            id="served",
        ),
        pytest.param(
            {"pipeline_parallel_size": 2, "eager": None, "environment": CORE_WITHIN},
            2,
            id="pipeline",
        ),
        pytest.param({"engine": "transformers"}, 1, id="transformers"),
    ],
)
def test_a_real_run_ends_in_a_trace_that_the_analyses_accept(config, tmp_path, values, ranks):
    said = []
    run = ExperimentRunner(config(**values), progress=lambda *what: said.append(what[0])).run()
    trace, labelled = check_run(run, ranks)
    assert trace.counters.height, "the monitors ran beside it"
    profiled = run.requests.filter(phase="profiled")
    if run.config.served:
        assert profiled["prompt_tokens"].n_unique() > 1, "distinct prompts"
        for one in run.worker["requests"]:
            assert one["ttft_s"] + sum(one["itl_s"]) == pytest.approx(one["e2e_s"])
        assert run.worker["kv_cache"]["tokens"] > 0
    if "pipeline_parallel_size" not in values:
        check_steps(trace, profiled)
    if "tensor_parallel_size" in values:
        assert sorted(run.worker["peak_memory_bytes"]) == ["0", "1"]
        assert set(labelled.filter(category="collective")["rank"]) == {0, 1}
        assert (
            trace.markers["name"]
            .cast(pl.String)
            .str.starts_with("layer::model.layers.3.self_attn")
            .any()
        )
    if run.config.engine == "transformers":
        assert all(one["itl_s"] for one in run.worker["requests"])
        assert set(labelled["layer"].drop_nulls()) == {0, 1, 2, 3}
    assert "checking the machine" in said
    assert commands_with(str(tmp_path)) == []
    assert writing_to(tmp_path) == []


@pytest.mark.filterwarnings(
    "ignore:the trace spans only"
)  # how much, depends on how busy the machine is
@pytest.mark.filterwarnings("ignore:.*count their ranks from 0:llmprof.errors.TraceWarning")
def test_prefill_and_decode_on_engines_of_their_own(config, run):
    """Keys and values go through shared storage; what both engines logged agrees."""
    options = {"num_prompts": 3, "max_concurrency": 2, "health_timeout_s": 1000}
    values = {"disaggregate": "1+1", "server": options, "input_tokens": 72, "dtype": "float32"}
    made = ExperimentRunner(config(**values, engine_args={"block_size": 32})).run()
    assert made.state == "finished"
    prefill, decode = (
        made.folder.path.joinpath(f"{kind}-server.log").read_text()
        for kind in ("prefill", "decode")
    )
    assert "External Cache Hit" in decode
    assert "External Cache Hit" not in prefill
    profiled = made.requests.filter(phase="profiled")
    sides = analyze.transfer(made.trace, by="instance").rows_by_key("kind", named=True)
    (first,), (then,) = sides["prefill"], sides["decode"]
    assert first["prefill_tokens"] == profiled["prompt_tokens"].sum()
    # of 72 tokens 64 lie in whole blocks
    assert then["prefill_tokens"] == 8 * profiled.height
    assert then["decode_tokens"] == (OUTPUT - 1) * profiled.height
    assert first["connector"] == "shared storage"
    found = analyze.transfer(made.trace, by="request", requests=made.requests)
    parts = ("queue", "prefill", "transfer", "decode", "delivery")
    whole = found.select(pl.sum_horizontal(f"{part}_ns" for part in parts)).to_series()
    assert (found["ttft_ns"] - whole).abs().max() < 1_000
    assert found["request"].sort().to_list() == profiled["request"].to_list()
    assert not (made.folder.path / "kv").exists()
    assert run_folder.changed_files(made.folder) == []
    code, told, _ = run(f"analyze {made.folder.path} transfer --by request --json")
    assert code == 0
    assert len(json.loads(told)) == profiled.height


# how much of the time three of five steps take depends on the machine
@pytest.mark.filterwarnings("ignore:the trace spans only")
def test_transformers_stops_the_profiler_after_some_steps(config):
    values = {
        "engine": "transformers",
        "max_iterations": 3,
        "engine_args": {"frob": 1},
        "temperature": 0.5,
    }
    run = ExperimentRunner(
        config(**values, environment={"OMP_NUM_THREADS": "1"}), check=False
    ).run()
    assert analyze.steps(run.trace)["phase"].to_list() == ["prefill", "decode", "decode"]
    assert "engine option frob ignored: transformers does not know it" in run.worker["notes"]


def test_a_real_sweep_starts_the_engine_once_and_its_points_are_runs(config, tmp_path):
    """On one rank; the last point is checked as a run by itself is."""
    base = config(
        prompt=["Where does the time go?", "In waiting."],
        input_tokens=None,
        engine_args={"frob": 1, "kv_cache_memory_bytes": 2**26},
        environment={
            "OMP_NUM_THREADS": "1"
        },  # threads that spin for each other take a busy machine's time
    )
    grid = {"batch_size": [1, 2], "max_tokens": [2, OUTPUT]}
    done = BatchRunner(base, check=False).run_parameter_sweep(grid)
    assert done.comparison["state"].to_list() == ["finished"] * 4
    assert [path.name for path in done.folder.glob("engine-*")] == ["engine-1"]
    runs = [open_run(run) for run in done.runs]
    assert len({run.worker["stages"][1]["start_ns"] for run in runs}) == 1
    for run, (batch, tokens) in zip(runs, [(1, 2), (1, OUTPUT), (2, 2), (2, OUTPUT)], strict=True):
        profiled = run.requests.filter(phase="profiled")
        assert (profiled.height, set(profiled["output_tokens"])) == (batch, {tokens})
        assert analyze.steps(run.trace).filter(pl.col("phase") != "empty").height == tokens
        assert run.worker["dropped_engine_args"] == ["frob"]
        cache = run.worker["kv_cache"]
        assert cache["bytes"] == 2**26
        assert cache["tokens"] == cache["blocks"] * cache["block_size"]
    trace, _ = check_run(runs[3], 1)
    check_steps(trace, runs[3].requests.filter(phase="profiled"))
    assert commands_with(str(tmp_path)) == []
    assert writing_to(tmp_path) == []


def test_an_interrupt_leaves_no_process_of_a_real_engine(config, tmp_path):
    """vLLM renames its processes and gives them sessions of their own; all of them end."""
    code = """
import json, sys
from llmprof.run.launch import ExperimentConfig, ExperimentRunner
ExperimentRunner(ExperimentConfig.from_dict(json.loads(sys.argv[1])), check=False).run()
"""
    core_beside = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1"
    }  # script, core and worker: a chain of three processes
    values = config(repeat=100_000, max_tokens=64, environment=core_beside).to_dict()
    runner = subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(values)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    watchdog = threading.Timer(1200, runner.kill)
    watchdog.start()
    try:
        while runner.poll() is None and not any(
            '"plain"' in path.read_text() for path in tmp_path.glob("*/events.jsonl")
        ):
            time.sleep(0.2)
        workers = psutil.Process(runner.pid).children(recursive=True)
        assert len(workers) >= 3, "script, guard and two workers"
        runner.send_signal(signal.SIGINT)
        _, said = runner.communicate()
    finally:
        watchdog.cancel()
        runner.kill()
    assert "KeyboardInterrupt" in said
    assert still_running(workers, seconds=300) == []
    assert writing_to(tmp_path) == []
    (path,) = tmp_path.iterdir()
    run = open_run(path)
    assert (run.state, run.folder.state["stage"]) == ("interrupted", "engine")
