"""Steps from labels: by launch, without launches, on the device only, nested, and on several
ranks.
"""

import polars as pl
import pytest

from llmprof.analyze import steps
from llmprof.label.steps.steps import step_of_events
from llmprof.trace import Trace
from tests.analyze.builders import ATTENTION, GEMM, forward, kernels, labels, launches, ops

PREFILL = "execute_context_4(256)_generation_0(0)"
DECODE = "execute_context_0(0)_generation_4(4)"
EMPTY = "execute_context_0(0)_generation_0(0)"


def launched_at(times, starts, *, dur=10, rank=0):
    """Kernels that start at some times and were launched at others."""
    run = kernels([GEMM] * len(times), rank=rank, dur=dur, first=1 + 1000 * rank)
    run = run.with_columns(start_ns=pl.Series(starts, dtype=pl.Int64))
    calls = launches(run).with_columns(
        start_ns=pl.Series(times, dtype=pl.Int64), dur_ns=pl.lit(2, dtype=pl.Int64)
    )
    return {"kernels": run, "runtime": calls}


def test_a_step_has_what_was_launched_from_its_label_to_the_next():
    # the host is ahead: the second step is labelled at 100 while the first one's kernels run until
    # 190
    tables = launched_at([10, 20, 90, 110, 120], [50, 100, 180, 190, 300])
    tables["markers"] = labels([(PREFILL, 0, 60), (DECODE, 100, 50)])
    trace = Trace(tables)
    found = steps(trace)
    assert found.select(
        "rank", "step", "phase", "host_start_ns", "host_dur_ns", "start_ns", "dur_ns"
    ).rows() == [
        (
            0,
            0,
            "prefill",
            0,
            60,
            50,
            140,
        ),  # the launch at 90 is after the label's end: sampling belongs to its step
        (0, 1, "decode", 100, 50, 190, 120),
    ]
    assert found.select(
        "prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens"
    ).rows() == [
        (4, 256, 0, 0),
        (0, 0, 4, 4),
    ]
    assert found["name"].to_list() == [PREFILL, DECODE]
    assert found["source"].to_list() == ["vllm", "vllm"]
    assert step_of_events(trace)["step"].to_list() == [0, 0, 0, 1, 1]
    assert step_of_events(trace)["step_by"].unique().to_list() == ["launch"]


def test_passes_of_padding_after_an_empty_step_belong_to_no_step():
    """A rank without requests runs passes for the experts of other ranks, which nothing labels;
    then requests come.
    """
    padding = list(range(200, 280, 10))
    tables = launched_at([10, 20, *padding, 310], [15, 25, *[at + 5 for at in padding], 315], dur=4)
    tables["markers"] = labels([(DECODE, 0, 50), (EMPTY, 100, 20), (DECODE, 300, 50)])
    assert step_of_events(Trace(tables))["step"].to_list() == [0, 0, *[None] * 8, 2]
    # one product less is no pass: a head, or what the next step receives from another stage of a
    # pipeline
    tables = launched_at(
        [10, 20, *padding[1:], 310], [15, 25, *[at + 5 for at in padding[1:]], 315], dur=4
    )
    tables["markers"] = labels([(DECODE, 0, 50), (EMPTY, 100, 20), (DECODE, 300, 50)])
    assert step_of_events(Trace(tables))["step"].to_list() == [0, 0, *[2] * 7, 2]
    assert steps(Trace(tables))["phase"].to_list() == ["decode", "empty", "decode"]


def test_kernels_without_a_launch_follow_what_ran_before_them_on_their_stream():
    tables = launched_at([10, 20, 110, 120], [50, 60, 200, 210])
    unknown = kernels([GEMM] * 3, first=900).with_columns(start_ns=pl.Series([5, 70, 220]))
    other_stream = kernels([GEMM], first=990, stream=8).with_columns(
        start_ns=pl.Series([80], dtype=pl.Int64)
    )
    tables["kernels"] = pl.concat([tables["kernels"], unknown, other_stream])
    tables["markers"] = labels([(PREFILL, 0, 60), (DECODE, 100, 50)])
    found = step_of_events(Trace(tables)).join(
        Trace(tables).kernels.with_row_index("event").select("event", "start_ns"), on="event"
    )
    assert found.select("start_ns", "step", "step_by").rows() == [
        (5, None, None),  # before anything whose step is known
        (50, 0, "launch"),
        (60, 0, "launch"),
        (70, 0, "device"),
        (80, None, None),
        (200, 1, "launch"),
        (210, 1, "launch"),
        (220, 1, "device"),
    ]


def test_an_empty_step_has_no_span_and_leaves_its_tail_to_the_next():
    tables = launched_at([10, 130, 210], [20, 140, 220])
    tables["markers"] = labels([(DECODE, 0, 50), (EMPTY, 100, 20), (DECODE, 200, 50)])
    found = steps(Trace(tables))
    assert found.select("phase", "start_ns", "dur_ns").rows() == [
        ("decode", 20, 120),
        ("empty", None, None),
        ("decode", 140, 90),
    ]


def test_labels_on_the_device_only():
    # the profiler projects a label onto each stream it reached; 7 has them all
    run = pl.concat([kernels([GEMM] * 6, pause=10), kernels([GEMM], start=35, stream=9, first=50)])
    on_7 = labels([(PREFILL, 0, 50), (DECODE, 60, 50)], on_device=True).with_columns(
        stream=pl.lit(7, dtype=pl.Int64)
    )
    on_9 = labels([(PREFILL, 35, 10)], on_device=True).with_columns(
        stream=pl.lit(9, dtype=pl.Int64)
    )
    trace = Trace({"kernels": run, "markers": pl.concat([on_7, on_9])})
    found = steps(trace)
    assert found.select(
        "step", "phase", "host_start_ns", "host_dur_ns", "start_ns", "dur_ns"
    ).rows() == [
        (0, "prefill", None, None, 0, 60),
        (1, "decode", None, None, 60, 50),
    ]
    assert step_of_events(trace).filter(pl.col("step") == 0).height == 4
    assert step_of_events(trace)["step_by"].unique().to_list() == ["time"]


def test_labels_on_the_host_count_where_launches_are_known():
    run = kernels([GEMM] * 4, pause=10)
    host = labels([(PREFILL, -100, 50), (DECODE, -50, 50)])
    device = labels([(PREFILL, 0, 30), (DECODE, 40, 30)], on_device=True)
    assert steps(Trace({"kernels": run, "markers": pl.concat([host, device])}))[
        "start_ns"
    ].to_list() == [0, 40]
    # without them nothing says which step a kernel belongs to
    alone = Trace({"kernels": run, "markers": host})
    assert steps(alone)["dur_ns"].to_list() == [None, None]
    assert step_of_events(alone)["step"].null_count() == 4
    tables = launched_at([10, 110], [50, 300])
    tables["markers"] = pl.concat(
        [
            labels([(PREFILL, 0, 60), (DECODE, 100, 50)]),
            labels([(PREFILL, 50, 10), (DECODE, 300, 10)], on_device=True),
        ]
    )
    assert steps(Trace(tables))["host_start_ns"].to_list() == [0, 100]


def test_a_label_inside_another_begins_a_step_of_its_own():
    tables = launched_at([10, 30, 60], [100, 200, 300])
    tables["markers"] = labels(
        [("step[DECODE bs=4 toks=4]", 0, 100), ("step[TARGET_VERIFY bs=4 toks=16]", 20, 30)]
    )
    found = steps(Trace(tables))
    assert found["host_start_ns"].to_list() == [0, 20]
    assert step_of_events(Trace(tables))["step"].to_list() == [0, 1, 1]


def test_labels_in_the_form_of_vllm_beside_those_of_sglang_are_sglangs():
    tables = launched_at([10, 30, 60], [100, 200, 300])
    tables["markers"] = labels([(DECODE, 0, 100), ("step[DECODE bs=4]", 5, 80)])
    assert steps(Trace(tables)).select("source", "decode_requests").rows() == [("sglang", 4)]


@pytest.mark.parametrize(
    ("inner", "source"),
    [(DECODE, "vllm"), ("step[DECODE bs=4 toks=4]", "sglang"), ("capture_8_FULL", "capture")],
)
def test_the_engines_labels_count_before_the_profilers(inner, source):
    tables = launched_at([10, 30, 80], [40, 50, 90])
    tables["markers"] = labels([("ProfilerStep#3", 0, 100), (inner, 20, 50)])
    found = steps(Trace(tables))
    if source == "capture":  # a capture is part of whatever runs around it, and ends with its label
        assert found["source"].to_list() == ["profiler_step", "capture"]
        assert step_of_events(Trace(tables))["step"].to_list() == [0, 1, None]
    else:
        assert found["source"].to_list() == [source]
        assert step_of_events(Trace(tables))["step"].to_list() == [None, 0, 0]


def test_profiler_steps():
    tables = launched_at([10, 110], [20, 120])
    tables["markers"] = labels(
        [("ProfilerStep#7", 0, 100), ("ProfilerStep#8", 100, 100), ("Optimizer.step", 50, 10)]
    )
    found = steps(Trace(tables))
    assert found.select("step", "phase", "source", "name").rows() == [
        (0, "other", "profiler_step", "ProfilerStep#7"),
        (1, "other", "profiler_step", "ProfilerStep#8"),
    ]
    assert found["prefill_requests"].null_count() == 2


def test_runs_of_an_onnx_session():
    tables = launched_at([10, 110], [20, 120])
    runs = [("model_run", 5, 50), ("SequentialExecutor::Execute", 6, 40), ("model_run", 105, 50)]
    tables["markers"] = labels([("session_initialization", 0, 4), *runs])
    found = steps(Trace(tables)).select("step", "phase", "source", "start_ns").rows()
    assert found == [(0, "other", "onnxruntime", 20), (1, "other", "onnxruntime", 120)]


def test_iterations_of_mindspore():
    """The profiler's step trace is of the device; what refreshes an iteration is a part of it."""
    tables = {"kernels": launched_at([10, 110], [20, 120])["kernels"]}
    parts = [("Iteration 1", 15, 50), ("Iteration Refresh 1", 60, 5), ("Iteration 2", 115, 50)]
    tables["markers"] = labels(parts, on_device=True)
    found = steps(Trace(tables)).select("step", "source", "start_ns").rows()
    assert found == [(0, "mindspore", 20), (1, "mindspore", 120)]


def test_ranks_have_steps_of_their_own():
    zero = launched_at([10, 110], [20, 120])
    one = launched_at([15, 65, 215], [30, 70, 220], rank=1)
    tables = {name: pl.concat([zero[name], one[name]]) for name in zero}
    tables["markers"] = pl.concat(
        [
            labels([(PREFILL, 0, 50), (DECODE, 100, 50)]),
            labels([(PREFILL, 10, 50), (DECODE, 200, 50)], rank=1),
        ]
    )
    found = steps(Trace(tables))
    assert found.select("rank", "step", "start_ns", "dur_ns").rows() == [
        (0, 0, 20, 100),
        (0, 1, 120, 10),
        (1, 0, 30, 190),
        (1, 1, 220, 10),
    ]


def test_steps_of_the_profiler_among_operators():
    tables = launched_at([10, 110], [20, 120])
    tables["ops"] = ops(
        [("ProfilerStep#7", 0, 100, 1), ("aten::mm", 5, 10, 2), ("ProfilerStep#8", 100, 100, 3)]
    )
    assert steps(Trace(tables)).select("step", "source", "start_ns").rows() == [
        (0, "profiler_step", 20),
        (1, "profiler_step", 120),
    ]


def test_each_step_of_the_optimizer_ends_a_step():
    # kernels launched at 10 and 90, at 110 and 190, and one after the last step of the optimizer
    tables = launched_at([10, 90, 110, 190, 310], [20, 95, 115, 195, 320])
    ranges = [
        ("Optimizer.step#SGD.step", 80, 20),
        ("Optimizer.zero_grad#SGD", 102, 5),
        ("Optimizer.step#SGD.step", 180, 20),
    ]
    tables["markers"] = labels(ranges)
    found = steps(Trace(tables))
    assert found.select(
        "step", "source", "phase", "host_start_ns", "host_dur_ns", "start_ns", "dur_ns"
    ).rows() == [
        (0, "optimizer", "other", 10, 90, 20, 95),
        (1, "optimizer", "other", 100, 100, 115, 90),
    ]
    assert step_of_events(Trace(tables))["step"].to_list() == [0, 0, 1, 1, None]
    tables["markers"] = labels(ranges[:1])
    assert steps(Trace(tables)).is_empty()  # one says nothing of how the program repeats


def test_of_ranges_around_execute_model_the_outermost_is_a_step():
    tables = launched_at([10, 110], [20, 120])
    ranges = [
        ("Worker.execute_model", 0, 50),
        ("GPUModelRunner.execute_model", 5, 40),
        ("Worker.execute_model", 100, 50),
    ]
    tables["markers"] = labels(ranges)
    assert steps(Trace(tables)).select("step", "source", "start_ns").rows() == [
        (0, "execute_model", 20),
        (1, "execute_model", 120),
    ]


CONTEXT = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 128> >"


@pytest.mark.parametrize(
    ("lengths", "context", "phases"),
    [
        ((900, 10, 10, 10, 10), True, ["prefill", *["decode"] * 4]),
        ((10, 10, 900, 10, 10), True, ["decode", "decode", "mixed", "decode", "decode"]),
        (
            (900, 10, 10, 10, 10),
            False,
            ["other"] * 5,
        ),  # longer with the same kernels: nothing says why
        ((10, 10, 10, 10, 10), False, ["other"] * 5),
    ],
)
def test_phases_by_the_work_of_steps_without_labels(lengths, context, phases):
    passes = []
    for length in lengths:
        for name in forward(2):
            passes.append((name, length if name == GEMM else 10))
            passes += [(CONTEXT, 50)] if context and length > 10 and name == ATTENTION else []
    run = kernels(passes, dur=10)
    found = steps(Trace({"kernels": run, "runtime": launches(run)}))
    assert found["phase"].to_list() == phases
    assert found["source"].unique().to_list() == ["inferred"]


def test_labels_of_one_program_on_several_devices_are_steps_of_one():
    marks = [labels([(f"jit_step({9})", 1000 * n, 900) for n in range(4)], on_device=True)] * 2
    marks = [
        one.with_columns(device=pl.lit(device, dtype=pl.Int32), stream=pl.lit(7, dtype=pl.Int64))
        for device, one in enumerate(marks)
    ]
    run = [
        kernels([GEMM, GEMM], start=1000 * n, first=10 * n).with_columns(
            device=pl.lit(device, dtype=pl.Int32)
        )
        for n in range(4)
        for device in range(2)
    ]
    trace = Trace({"kernels": pl.concat(run), "markers": pl.concat(marks)})
    assert steps(trace)["start_ns"].to_list() == [0, 1000, 2000, 3000]
    assert trace.events["step"].to_list() == [n for n in range(4) for _ in range(4)]
