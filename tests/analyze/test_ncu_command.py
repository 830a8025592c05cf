import itertools
import re
from pathlib import Path

import polars as pl
import pytest

import llmprof
from llmprof.analyze import ncu
from llmprof.errors import AnalysisError
from llmprof.names import kernels as names_kernels
from llmprof.trace import Trace

SHARED = Path(__file__).parents[2] / ".." / "shared" / "captures"
needs_captures = pytest.mark.skipif(not SHARED.is_dir(), reason="the captures are not here")

RUN = ["python3", "serve.py", "--tp", "1"]
GEMM, NORM, COMM = (
    "void gemm<4>(int)",
    "void ns::norm<float>(int)",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)",
)


def trace_of(
    names,
    *,
    launched=None,
    rank=0,
    device=0,
):
    n = len(names)
    same = {"rank": rank, "device": device, "stream": 7, "dur_ns": 50}
    rows = {"name": names, "start_ns": range(1000, 1000 + 100 * n, 100), "correlation": range(n)}
    kernels = pl.DataFrame(rows | same, schema_overrides={"device": pl.Int32})
    if launched is None:
        return Trace({"kernels": kernels})
    calls = [(i, at) for i, at in enumerate(launched) if at is not None]
    rows = {"start_ns": [at for _, at in calls], "correlation": [i for i, _ in calls]}
    runtime = pl.DataFrame(
        rows | {"rank": rank, "dur_ns": 5, "name": "cudaLaunchKernel", "api": "runtime"}
    )
    return Trace({"kernels": kernels, "runtime": runtime})


def options(command):
    inside = command[1 : command.index(RUN[0])]
    return {name: value for name, value in itertools.pairwise(inside) if name.startswith("--")}


def test_the_command_profiles_one_launch_of_a_kernel_and_leaves_the_clocks_alone():
    names = [GEMM, NORM, GEMM, COMM, GEMM]
    command = ncu.command(trace_of(names, device=3), RUN, kernel=4)
    assert command[0] == "ncu"
    assert command[-len(RUN) :] == RUN
    chosen = options(command)
    assert chosen["--kernel-name"] == "regex:^(gemm)$"
    assert (chosen["--launch-skip"], chosen["--launch-count"]) == ("2", "1")
    assert (
        chosen["--clock-control"],
        chosen["--profile-from-start"],
        chosen["--target-processes"],
    ) == (
        "none",
        "off",
        "all",
    )
    assert (chosen["--devices"], chosen["--filter-mode"], chosen["--set"]) == (
        "3",
        "per-gpu",
        "full",
    )
    assert chosen["--kernel-name-base"] == "function"


@pytest.mark.parametrize("kernel", [GEMM, "gemm"])
def test_a_kernel_is_named_in_full_or_by_its_function(kernel):
    command = ncu.command(
        trace_of([NORM, GEMM, GEMM]), RUN, kernel=kernel, from_start=True, sections="basic"
    )
    chosen = options(command)
    assert (chosen["--launch-skip"], chosen["--launch-count"], chosen["--set"]) == (
        "0",
        "1",
        "basic",
    )
    assert "--profile-from-start" not in command
    assert (
        options(ncu.command(trace_of([GEMM, GEMM]), RUN, kernel=kernel, launches=5))[
            "--launch-count"
        ]
        == "2"
    )


def test_launches_are_counted_in_the_order_of_the_host_and_not_of_the_device():
    # the second gemm was launched first, on another stream, and waited
    trace = trace_of([GEMM, GEMM, GEMM], launched=[20, 10, 30])
    assert [
        options(ncu.command(trace, RUN, kernel=event))["--launch-skip"] for event in range(3)
    ] == ["1", "0", "2"]
    trace = trace_of([GEMM, GEMM, GEMM], launched=[None, 1050, 1150])
    assert options(ncu.command(trace, RUN, kernel=2))["--launch-skip"] == "1"
    with pytest.raises(AnalysisError, match="before the window"):
        ncu.command(trace, RUN, kernel=0)


def test_names_become_expressions_for_exactly_themselves():
    name = "weird.kernel$[x]|rm -rf *\x00\nend"
    command = ncu.command(trace_of([name, "weirdXkernel"]), RUN, kernel=name)
    found = options(command)["--kernel-name"]
    assert found.startswith("regex:^(")
    assert "\x00" not in found
    assert "\n" not in found
    function = names_kernels.function(pl.Series([name]))[0]
    assert re.search(found.removeprefix("regex:"), function, re.DOTALL)
    assert not re.search(found.removeprefix("regex:"), "weirdXkernel")
    assert all(isinstance(argument, str) for argument in command)


def test_collectives_are_refused_with_the_reason():
    with pytest.raises(AnalysisError, match="wait for ever"):
        ncu.command(trace_of([GEMM, COMM]), RUN, kernel=1)
    names = ["void device_kernel<gemm_universal>(x)", "void device_kernel<cross_device_reduce>(x)"]
    with pytest.raises(AnalysisError, match="collectives too"):
        ncu.command(trace_of(names), RUN, kernel=0)


@pytest.mark.parametrize(
    ("program", "asked", "message"),
    [
        (RUN, {}, "no launches were chosen"),
        ([], {"kernel": GEMM}, "program"),
        (["--clock-control", "base"], {"kernel": GEMM}, "program"),
        (RUN, {"kernel": "nothing"}, "no kernel of this trace has kernel 'nothing'"),
        (RUN, {"kernel": GEMM, "rank": 7}, "rank 7"),
        (RUN, {"kernel": GEMM, "launches": 0}, "at least 1"),
    ],
)
def test_what_cannot_be_done_is_refused(program, asked, message):
    with pytest.raises(AnalysisError, match=message):
        ncu.command(trace_of([GEMM]), program, **asked)


def test_a_device_that_is_not_known_is_left_out():
    assert "--devices" not in ncu.command(trace_of([GEMM], device=None), RUN, kernel=0)


@needs_captures
@pytest.mark.parametrize(
    ("layer", "stage", "phase"),
    [(3, "attention", "decode"), (0, "qkv_proj", "prefill"), (5, None, None)],
)
def test_a_layer_and_stage_of_a_run_are_counted_as_by_hand(layer, stage, phase):
    trace = llmprof.read(SHARED / "torch_tp1_eager")
    chosen = options(ncu.command(trace, RUN, layer=layer, stage=stage, phase=phase))
    events = trace.events.filter(pl.col("source") == "kernel").sort("launch_start_ns")
    wanted = [
        row["layer"] == layer and stage in (None, row["stage"]) and phase in (None, row["phase"])
        for row in events.iter_rows(named=True)
    ]
    step = events["step"][wanted.index(True)]
    wanted = [w and s == step for w, s in zip(wanted, events["step"], strict=True)]
    functions = names_kernels.function(events["name"]).to_list()
    mine = {f for f, w in zip(functions, wanted, strict=True) if w}
    assert set(re.fullmatch(r"regex:\^\((.*)\)\$", chosen["--kernel-name"])[1].split("|")) == mine
    passing = [w for f, w in zip(functions, wanted, strict=True) if f in mine]
    assert int(chosen["--launch-skip"]) == passing.index(True)
    last = len(passing) - 1 - passing[::-1].index(True)
    assert int(chosen["--launch-count"]) == last - passing.index(True) + 1


def test_kernels_of_another_vendor_are_refused():
    of_amd = Trace(trace_of([GEMM]).tables, meta={"device": "AMD Instinct MI300X"})
    with pytest.raises(AnalysisError, match="AMD Instinct MI300X"):
        ncu.command(of_amd, RUN, kernel=0)
