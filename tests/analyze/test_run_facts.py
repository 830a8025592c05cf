"""What ran, as far as a trace says it, on recordings whose model, engine and device are known."""

import re

import polars as pl
import pytest

import llmprof
from llmprof.analyze import findings
from llmprof.analyze.step_times import step_windows
from llmprof.findings.facts import recorded_time, run_facts
from llmprof.findings.scope import scope_of
from llmprof.trace import Trace
from llmprof.units import format_ns
from tests.analyze.builders import GEMM, kernels, labels, launches


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "known", "batch"),
    [
        ("captures/nsys_tp1_layer_nvtx", ("Qwen3, 36 layers", "vLLM", "NVIDIA H200"), 4),
        (
            "captures/torch_tp4_eager_nccl",
            ("name unknown, 28 layers", "vLLM", "4 x NVIDIA H200"),
            4,
        ),
        (
            "captures/torch_transformers_generate",
            ("name unknown, 8 layers", None, "NVIDIA H200"),
            4,
        ),
        ("real/nsys/nsysai_mfu_2gpu_before.sqlite", (None, None, "2 devices, name unknown"), None),
    ],
)
def test_what_ran(path, known, batch, shared):
    trace = llmprof.read(shared / path)
    found = dict(run_facts(trace).select("what", "value").iter_rows())
    assert (found["model"], found["engine"], found["device"]) == known
    assert (
        (found["batch"] is None)
        if batch is None
        else found["batch"].startswith(f"{batch} requests in decode")
    )
    if found["step time"] is not None:
        # the same time that findings call their denominator
        assert f"{found['step time']} on average" in scope_of(trace).denominator


def test_long_first_steps_are_no_part_of_the_mean():
    """Two steps of start-up (900 and 60 us), then six of 2 us (the last to its own end, 1 us)."""
    at = [0, 900, 960, 962, 964, 966, 968, 970]
    run = pl.concat([kernels([(GEMM, 1000)], start=1000 * us, first=1 + us) for us in at])
    marks = labels([(f"ProfilerStep#{n}", 1000 * us, 50) for n, us in enumerate(at)])
    trace = Trace({"kernels": run, "runtime": launches(run, lead=0), "markers": marks})
    scope = scope_of(trace)
    assert (scope.parts, scope.span_ns) == (6, 11_000)
    assert scope.steps["step"].to_list() == [2, 3, 4, 5, 6, 7]
    went, _ = recorded_time(trace)
    assert "steps 1.1 % (6 steps)" in went
    assert "the first 2 steps 98.9 % (960 us;" in went
    few = Trace(
        {"kernels": run.head(6), "runtime": launches(run.head(6), lead=0), "markers": marks.head(6)}
    )
    assert scope_of(few).parts == 6  # four others are too few to say what is usual


@pytest.mark.parametrize("name", ["torch_tp1_eager", "nsys_tp2_cudagraph", "torch_pp2_eager"])
def test_a_step_has_one_time_or_says_of_which_steps(name, sample_trace):
    trace = sample_trace(name)
    scope = scope_of(trace)
    mean = scope.span_ns / scope.parts
    # findings, the facts of report and notebook, and the steps themselves
    assert f": {format_ns(mean)} on average" in scope.denominator
    assert dict(run_facts(trace).select("what", "value").iter_rows())["step time"] == format_ns(
        mean
    )
    chosen = step_windows(trace).join(
        scope.windows.select("rank", "step").unique(), on=["rank", "step"], how="semi"
    )
    assert chosen["dur_ns"].mean() == pytest.approx(mean)
    # a replay is of the same steps, or the sentence counts those that it is of
    for row in (
        findings(trace)
        .filter(pl.col("predicted_ns").is_not_null(), scope=scope.words)
        .iter_rows(named=True)
    ):
        of_all = f" of {format_ns(mean)}" in row["prediction"]
        some = re.search(r"mean of (\d+) of the (\d+) steps", row["prediction"])
        of_ends = "from the end of the step before" in row["prediction"]
        assert (
            of_all
            or of_ends
            or "as long as before" in row["prediction"]
            or (some and int(some[1]) < int(some[2]))
        )
