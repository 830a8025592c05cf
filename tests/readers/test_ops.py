"""Reader of timings of operators: the trace they make, several ranks, and broken files."""

import gzip
import json

import pytest

import llmprof
from llmprof import analyze
from llmprof.analyze.operator_times import layer_times, timed_calls, timed_steps
from llmprof.errors import MixedRunsError, NotCapturedError, ReadError
from llmprof.readers.ops import READER
from llmprof.run.operator_timing import communication_times, operator_times
from llmprof.trace import Trace

BEGIN = 1_700_000_000_000_000_000


def document(rank=0, **changes):
    """Two decode steps of a model with two layers: 100 us each; in the first, the operators of
    layer 0 are timed.
    """
    names = [
        "model.layers.0",
        "model.layers.0.attn",
        "model.layers.0.mlp",
        "model.layers.1",
        "lm_head",
        "M",
    ]
    kinds = ["layer", "module", "module", "layer", "module", "model"]
    # step, name, start and duration in us
    rows = [
        (0, 5, 0, 100),
        (0, 0, 5, 40),
        (0, 1, 6, 10),
        (0, 2, 18, 25),
        (0, 3, 45, 42),
        (0, 4, 90, 8),
        (3, 5, 200, 100),
        (3, 0, 205, 36),
        (3, 3, 241, 44),
        (3, 4, 290, 9),
    ]
    times = {
        "start_ns": [BEGIN + s * 1000 for _, _, s, _ in rows],
        "end_ns": [BEGIN + (s + d) * 1000 for _, _, s, d in rows],
    }
    calls = {
        "step": [r[0] for r in rows],
        "name": [r[1] for r in rows],
        "shapes": [[[4, 16]]] * 10,
        "values": [None] * 10,
        "bytes_before": [None] * 10,
        "bytes_after": [None] * 10,
        **times,
        "host_start_ns": times["start_ns"],
        "host_end_ns": times["end_ns"],
    }
    steps = {
        "step": [0, 3],
        "label": ["execute_context_0(0)_generation_4(4)"] * 2,
        "phase": ["decode"] * 2,
        "method": ["events"] * 2,
        "held": [False] * 2,
        "start_ns": [BEGIN, BEGIN + 200_000],
        "end_ns": [BEGIN + 110_000, BEGIN + 310_000],
        "host_start_ns": [BEGIN, BEGIN + 200_000],
        "host_end_ns": [BEGIN + 110_000, BEGIN + 310_000],
        "bytes_before": [5, 6],
        "bytes_after": [7, 8],
    }
    comm = {
        "step": [0],
        "kind": ["all_reduce"],
        "group": ["tp"],
        "world": [2],
        "dtype": ["bfloat16"],
        "in_elements": [1000],
        "out_elements": [1000],
        "element_bytes": [2],
        "waits": [False],
        "layer": [0],
        "start_ns": [BEGIN + 40_000],
        "end_ns": [BEGIN + 42_000],
        "host_start_ns": [BEGIN + 40_000],
        "host_end_ns": [BEGIN + 42_000],
    }
    made = {
        "format": "llmprof-ops",
        "version": 1,
        "rank": rank,
        "world_size": 1,
        "platform": "cuda",
        "device": "NVIDIA H200",
        "clock": "CUDA events",
        "torch": "2.11.0",
        "model": "M",
        "layer_path": "model.layers",
        "layers": [0, 1],
        "options": {"method": "events", "cycle": []},
        "names": names,
        "kinds": kinds,
        "notes": [],
        "pid": 7,
        "collectives_seen": {"all_reduce": 8},
        "calls": calls,
        "steps": steps,
        "collectives": comm,
        "entries": {"at_ns": [BEGIN], "phase": ["decode"], "method": ["events"]},
    }
    return made | changes


def write(folder, *documents):
    for one in documents:
        with gzip.open(folder / f"ops_rank{one['rank']}.json.gz", "wt") as file:
            json.dump(one, file, separators=(",", ":"))
    return folder


def test_the_trace_has_steps_modules_operators_and_collectives(tmp_path):
    trace = llmprof.read(write(tmp_path, document()))
    assert trace.meta["format"] == "ops"
    assert trace.meta["device"] == "NVIDIA H200"
    steps = analyze.steps(trace)
    assert steps["phase"].to_list() == ["decode", "decode"]
    assert steps["decode_tokens"].to_list() == [4, 4]
    # a call with others inside is no operator; the model itself is neither
    ops = trace.ops.filter(kind="op").select("name", "timer_layer", "dur_ns").rows()
    assert ("attn", 0, 10_000) in ops
    assert ("layer", 1, 42_000) in ops
    assert ("layer", 0, 40_000) not in ops
    assert len(ops) == 7
    stages = analyze.layers(trace, stages=True).select("step", "layer", "stage", "dur_ns").rows()
    assert (0, 0, "attention", 10_000) in stages
    # a layer that was timed as a whole has no stage
    assert {(step, layer) for step, layer, _, _ in stages} == {(0, 0)}
    kernels = dict(analyze.kernels(trace).select("name", "count").rows())
    assert kernels == {"layer": 3, "attn": 1, "mlp": 1, "lm_head": 2}
    row = analyze.collectives(trace).row(0, named=True)
    assert (row["kind"], row["bytes"], row["group"], row["world"]) == ("all_reduce", 2000, "tp", 2)
    assert trace.memory["allocated_bytes"].to_list() == [5, 7, 6, 8]


def test_operators_stand_for_all_layers(tmp_path):
    """The MLP took 25 us in the one layer of two that was sampled: 50 us of a step of 110."""
    times = operator_times(llmprof.read(write(tmp_path, document())))
    mlp = times.filter(operator="mlp").row(0, named=True)
    assert (mlp["layers"], mlp["calls_a_step"], mlp["step_ns"]) == (1, 2.0, 50_000)
    assert mlp["share"] == pytest.approx(50 / 110)
    head = times.filter(operator="lm_head").row(0, named=True)
    assert (head["count"], head["calls_a_step"], head["median_ns"]) == (2, 1.0, 8_500)
    trace = llmprof.read(write(tmp_path, document()))
    for of in (
        analyze.findings,
        analyze.idle,
        analyze.overlap,
        analyze.critical_path,
        analyze.stream_gaps,
    ):
        with pytest.raises(NotCapturedError, match="samples of steps"):
            of(trace)


def test_communication_of_a_step_follows_from_all_calls(tmp_path):
    """One layer of two was sampled in one step of two: its call of 2 us stands for two a step of
    110 us.
    """
    row = communication_times(llmprof.read(write(tmp_path, document()))).row(0, named=True)
    assert (row["per_step"], row["step_ns"]) == (2.0, 4_000)
    assert row["share"] == pytest.approx(4 / 110)
    assert row["algorithm_gbps"] == 1.0
    # The timed call waited 60 us: two of them a step would be 120 us of a step of 110.
    waited = document()["collectives"] | {"end_ns": [BEGIN + 100_000]}
    row = communication_times(llmprof.read(write(tmp_path, document(collectives=waited)))).row(
        0, named=True
    )
    assert (row["per_step"], row["step_ns"], row["share"]) == (2.0, 120_000, None)


def test_ranks_of_one_run_go_together_and_others_do_not(tmp_path):
    folder = write(tmp_path, document(0, world_size=2), document(1, world_size=2))
    trace = llmprof.read(folder)
    assert timed_steps(trace)["rank"].to_list() == [0, 0, 1, 1]
    assert trace.ranks == [0, 1]
    assert timed_calls(trace).group_by("rank").len()["len"].to_list() == [10, 10]
    with pytest.raises(NotCapturedError, match="no timings of operators"):
        layer_times(Trace({}, {}))
    write(tmp_path, document(1, world_size=4))
    with pytest.raises(MixedRunsError):
        llmprof.read(folder)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "damaged"),
        (b"{}", "no timings"),
        (gzip.compress(b'{"format":"llmprof-ops","version":1}', mtime=0)[:-9], "damaged"),
        (gzip.compress(b'{"format":"llmprof-ops","version":1}', mtime=0), "invalid tables"),
        (gzip.compress(b'{"format":"llmprof-ops","version":9}', mtime=0), "version 9"),
        (json.dumps(document(calls={})).encode(), "invalid tables"),
        (json.dumps(document(names=[])).encode(), "invalid tables"),
        (
            json.dumps(document(steps=document()["steps"] | {"step": ["a", None]})).encode(),
            "invalid tables",
        ),
    ],
)
def test_broken_files(tmp_path, content, words):
    path = tmp_path / "ops_rank0.json.gz"
    path.write_bytes(content)
    with pytest.raises(ReadError, match=words):
        READER.read(path, None)
