"""Runs of mode ops on this machine's CPU: one engine on one rank and one on two."""

import polars as pl
import pytest

from llmprof import analyze
from llmprof.analyze.operator_times import timed_calls, timed_steps
from llmprof.run.launch import ExperimentConfig, ExperimentRunner
from llmprof.run.launch.config.options import sized
from llmprof.run.operator_timing import communication_times, operator_times, timers

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")]


@pytest.mark.parametrize("ranks", [1, 2])
def test_operators_of_a_run(engine_python, tmp_path, ranks):
    """Four layers on every rank; two all-reduces a layer and one of the embedding on two ranks,
    none on one.
    """
    size = sized("quick", profile_steps=2, num_tokens=4, max_seq_len=128, functional=ranks == 2)
    config = ExperimentConfig(
        model="random:tiny",
        python=engine_python,
        results_dir=str(tmp_path),
        repeat=1,
        batch_size=2,
        input_tokens=32,
        tensor_parallel_size=ranks,
        timeout_s=1500,
        **size,
        # vLLM's core in the process of the script: importing vLLM is most of what a process costs
        # here
        environment={"OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
    )
    run = ExperimentRunner(config, check=False).run()
    assert run.state == "finished"
    assert any("eager" in note for note in run.summary["notes"])
    trace = run.trace
    assert timed_steps(trace)["rank"].unique().to_list() == list(range(ranks))
    assert timed_steps(trace).filter(rank=0)["phase"].to_list() == ["prefill", "decode"]
    assert timers(trace)[0]["clock"] == "perf_counter of the host"  # a CPU: and it says so
    layers = timed_calls(trace).filter(kind="layer")
    assert layers.group_by("rank", "step").len()["len"].to_list() == [4] * (2 * ranks)
    steps = timed_steps(trace).select("rank", "step", _step="dur_ns")
    inside = (
        layers.group_by("rank", "step").agg(pl.col("dur_ns").sum()).join(steps, on=["rank", "step"])
    )
    assert (inside["dur_ns"] < inside["_step"]).all()
    operators = set(operator_times(trace)["operator"])
    assert {"self_attn.qkv_proj", "mlp.down_proj", "model.embed_tokens"} <= operators
    assert any("aten::" in one for one in operators) == (ranks == 2)
    assert set(analyze.steps(run.trace)["phase"]) == {"prefill", "decode"}
    comm = communication_times(trace)
    if ranks == 1:
        assert comm.is_empty()
    else:
        counted = timers(trace)[0]["collectives_seen"]
        assert counted["all_reduce"] == 2 * (2 * 4 + 1)
        assert (comm.filter(kind="all_reduce")["bytes"] > 0).all()
