"""Snapshots and timelines of PyTorch's memory: against its own statistics, by hand, and hostile."""

import collections
import gzip
import json
import os
import pickle
import pickletools
import re
import struct
import warnings

import polars as pl
import pytest

import llmprof
from llmprof import analyze
from llmprof.errors import ReadError, TraceWarning
from llmprof.readers.redaction import redact
from llmprof.readers.registry import detect
from llmprof.readers.torch_memory.reader import data_of


@pytest.fixture(scope="module")
def files(root):
    return root / "tests" / "readers" / "memory_files"


def truth(files, name):
    return json.loads((files / f"{name}.truth.json").read_text())


DATA = {
    "segments": [
        {"a": 1, "b": [True, None, 2.5, -7, 2**40, -(2**70), "ü" * 300], "t": (1, 2), "e": ()}
    ],
    "shared": ["x"] * 3,
    "long": list(range(1200)),
    "three": (1, 2, 3),
    "four": (1, 2, 3, 4),
    300: {"y": 70000},
}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_data_is_what_pickle_gives(protocol):
    assert data_of(pickle.dumps(DATA, protocol)) == DATA


def test_the_real_snapshots_are_what_pickle_gives(files):
    for path in sorted(files.glob("*.pickle.gz")):
        data = gzip.decompress(path.read_bytes())
        assert data_of(data) == pickle.loads(data)


class Attack:
    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.mkdir, (str(self.place),)


@pytest.mark.parametrize("protocol", [2, 4])
def test_nothing_is_run(tmp_path, protocol):
    path = tmp_path / "snapshot.pickle"
    document = {"segments": [], "device_traces": [Attack(tmp_path / "ran")]}
    path.write_bytes(pickle.dumps(document, protocol))
    assert detect(path) == "torch-snapshot"
    with pytest.raises(ReadError, match="unpickling it could run any code"):
        llmprof.read(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("value", [collections.OrderedDict(a=1), {1, 2}, b"bytes", 1j, range(3)])
def test_what_is_no_plain_data_is_refused(value):
    with pytest.raises(ReadError, match="pickle"):
        data_of(pickle.dumps({"segments": value}, 4))


def test_every_other_operation_is_refused():
    known = set("\x94hj\x8cKMJ\x8a(}])useat\x85\x86\x87N\x88\x89GX\x8dqr\x95\x80.")
    for op in pickletools.opcodes:
        if op.code in known:
            continue
        with pytest.raises(ReadError):
            data_of(b"\x80\x04]" + op.code.encode("latin-1") + b"\x01\x02\x03\x04\n.")
    for op in (
        b"X" + struct.pack("<I", 2**31),
        b"\x8d" + struct.pack("<Q", 2**62),
        b"r" + struct.pack("<I", 2**32 - 1),
    ):
        with pytest.raises(ReadError):
            data_of(b"\x80\x04" + op)
    assert data_of(b"\x80\x04]r\xff\xff\xff\xff.") == []


@pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")
def test_every_cut_is_refused(files, tmp_path):
    data = gzip.decompress((files / "torch_no_history.pickle.gz").read_bytes())
    for cut in range(30, len(data) - 1, 41):
        path = tmp_path / "cut.pickle"
        path.write_bytes(data[:cut])
        with pytest.raises(ReadError):
            llmprof.read(path, format="torch-snapshot", cache=False)


@pytest.mark.parametrize("name", ["torch_history", "vllm_history"])
def test_a_snapshot_against_the_statistics_of_the_allocator(files, name):
    trace = llmprof.read(files / f"{name}.pickle.gz")
    said = truth(files, name)
    rows = trace.memory
    assert rows["allocated_bytes"].max() == said["requested_bytes.all.peak"]
    assert rows["allocated_bytes"][-1] == said["requested_bytes.all.current"]
    assert rows["reserved_bytes"].max() == said["reserved_bytes.all.peak"]
    assert rows["reserved_bytes"][-1] == said["reserved_bytes.all.current"]
    sizes = rows["bytes"].drop_nulls()
    assert sizes.filter(sizes > 0).sum() == said["requested_bytes.all.allocated"]
    assert -sizes.filter(sizes < 0).sum() == said["requested_bytes.all.freed"]
    counters = dict(trace.counters.select("name", "value").iter_rows())
    assert counters["memory: allocated blocks"] == said["allocated_bytes.all.current"]
    assert (
        counters["memory: free in segments that are in use"]
        == said["inactive_split_bytes.all.current"]
    )
    assert counters["memory: segments"] == said["num_device_alloc"] - said["num_device_free"]


def test_the_kv_cache_of_vllm_is_told_from_weights(files):
    trace = llmprof.read(files / "vllm_history.pickle.gz")
    said = truth(files, "vllm_history")
    held = analyze.memory(trace, by="holder")
    parts = dict(held.group_by("part").agg(pl.col("bytes").sum()).iter_rows())
    # blocks x tokens a block x (keys and values) x 8 layers x 2 heads x 128 x 2 bytes
    assert parts["KV cache"] == said["num_gpu_blocks"] * said["block_size"] * 2 * 8 * 2 * 128 * 2
    # Qwen2.5-1.5B with 8 layers: embedding, and by layer qkv with bias, o, gate and up, down, two
    # norms; a last norm; with the rotary embedding's table of 32,768 positions
    layer = 1536 * 2048 + 2048 + 1536 * 1536 + 3 * 1536 * 8960
    weights = 2 * (151936 * 1536 + 8 * (layer + 2 * 1536) + 1536) + 2 * 32768 * 128
    assert parts["weights"] == pytest.approx(weights, rel=0.001)
    assert held.filter(part="KV cache")["blocks"].sum() == 8
    assert held["bytes"].sum() == said["requested_bytes.all.peak"]
    assert held["share"].sum() == pytest.approx(1)


def test_without_history_what_is_held_is_known(files):
    with pytest.warns(TraceWarning, match="has no history"):
        trace = llmprof.read(files / "torch_no_history.pickle.gz")
    assert (
        trace.memory["allocated_bytes"][-1]
        == truth(files, "torch_history")["requested_bytes.all.current"]
    )
    found = analyze.memory(trace).row(0, named=True)
    assert found["count"] == 0
    assert found["first_bytes"] == found["peak_allocated_bytes"] == 74483712


def event(action, address, size, at, frames=()):
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": at,
        "frames": list(frames),
    }


FRAME = {"filename": "/home/me/model.py", "line": 3, "name": "forward"}
SNAPSHOT = {
    "segments": [
        {
            "device": 0,
            "address": 1000,
            "total_size": 4096,
            "stream": 0,
            "segment_type": "small",
            "blocks": [
                {
                    "size": 512,
                    "requested_size": 500,
                    "address": 1000,
                    "state": "active_allocated",
                    "frames": [],
                },
                {
                    "size": 512,
                    "requested_size": 400,
                    "address": 1512,
                    "state": "active_allocated",
                    "frames": [],
                },
                {
                    "size": 3072,
                    "requested_size": 0,
                    "address": 2024,
                    "state": "inactive",
                    "frames": [],
                },
            ],
        }
    ],
    "device_traces": [
        [
            event("free_requested", 9000, 300, 10),  # allocated before the history
            event("free_completed", 9000, 300, 11),
            event("segment_free", 9000, 2048, 12),
            event("alloc", 1512, 400, 20, [FRAME]),
            event("alloc", 2024, 1000, 30),
            event("free_requested", 2024, 1000, 40),
            {
                "action": "oom",
                "size": 99,
                "device_free": 5,
                "time_us": 41,
                "stream": 0,
                "frames": [],
            },
        ]
    ],
}


@pytest.mark.parametrize("kind", ["pickle", "json"])
def test_a_snapshot_by_hand(tmp_path, kind):
    path = tmp_path / f"snapshot.{kind}"
    path.write_bytes(pickle.dumps(SNAPSHOT) if kind == "pickle" else json.dumps(SNAPSHOT).encode())
    trace = llmprof.read(path)
    rows = trace.memory.select(
        "time_ns", "torch_action", "bytes", "allocated_bytes", "reserved_bytes"
    ).rows()
    assert rows == [
        (0, "held", None, 0, 6144),
        (0, "held", 300, 300, 6144),
        (0, "held", 500, 800, 6144),
        (0, "free_requested", -300, 500, 6144),
        (2000, "segment_free", None, 500, 4096),
        (10000, "alloc", 400, 900, 4096),
        (20000, "alloc", 1000, 1900, 4096),
        (30000, "free_requested", -1000, 900, 4096),
        (31000, "oom", None, 900, 4096),
    ]
    counters = dict(trace.counters.select("name", "value").iter_rows())
    assert counters["memory: rounding of blocks"] == 124
    assert counters["memory: largest free block"] == 3072
    found = analyze.memory(trace).row(0, named=True)
    assert (found["peak_allocated_bytes"], found["peak_time_ns"], found["first_bytes"]) == (
        1900,
        20000,
        800,
    )
    assert found["fragmentation"] == pytest.approx((4096 - 1900) / 4096)
    assert (found["count"], found["allocated_bytes"]) == (2, 1400)
    assert found["released_bytes"] == 1300
    held = analyze.memory(trace, by="holder").select("part", "holder", "bytes").rows()
    assert set(held) == {
        ("temporary", None, 1000),
        ("before the recording", None, 500),
        (None, "model.py(3): forward", 400),
    }


def test_paths_are_taken_out(tmp_path):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(SNAPSHOT))
    redact(path, tmp_path / "copy")
    copy = llmprof.read(tmp_path / "copy")
    assert copy.memory["allocated_bytes"].max() == 1900
    assert "/home/me" not in str(copy.memory.rows())


HOSTILE = [
    {"segments": []},
    {"segments": "x"},
    {"segments": [{"total_size": -1}], "device_traces": [[1, None, {"action": 3}]]},
    {
        "segments": [{"total_size": 10, "device": 0, "blocks": [{"size": "x"}, 7]}],
        "device_traces": 5,
    },
    {
        "segments": [{"total_size": 2**80, "blocks": []}],
        "device_traces": [[event("alloc", -5, 2**70, 1)]],
    },
    {
        "segments": [{"total_size": 10, "blocks": None}],
        "device_traces": [[event("alloc", 5, 10, "x")] * 3],
    },
]


@pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")
@pytest.mark.parametrize("document", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_snapshots(tmp_path, document):
    path = tmp_path / "s.json"
    path.write_text(json.dumps(document))
    try:
        trace = llmprof.read(path, format="torch-snapshot", cache=False)
    except ReadError as error:
        assert str(error)  # noqa: PT017
    else:
        assert trace.memory["allocated_bytes"].is_between(0, 2**63 - 1).all()


@pytest.mark.parametrize("name", ["timeline.json.gz", "timeline.raw.json.gz"])
def test_real_timelines(files, name):
    with pytest.warns(TraceWarning, match="has categories"):
        trace = llmprof.read(files / name)
    document = json.loads(gzip.decompress((files / name).read_bytes()))
    rows = trace.memory
    if "raw" in name:
        assert rows.height == len(document)
        assert rows["bytes"].sum() == sum(row[2] for row in document)
        assert rows["allocated_bytes"].max() == max(
            sum(row[2] for row in sorted(document, key=lambda r: r[0])[: k + 1])
            for k in range(len(document))
        )
        held = analyze.memory(trace, by="holder")
        known = {"weights", "activations", "temporary", "inputs", "before the recording"}
        assert set(held["part"].drop_nulls()) <= known
        assert held.filter(part="weights")["bytes"].sum() > 0
    else:
        assert rows["allocated_bytes"].to_list() == [sum(row) for row in document[1]]
        assert trace.counters.filter(name="memory: parameter")["value"].max() == max(
            row[1] for row in document[1]
        )


def test_memory_events_of_a_trace_against_the_statistics(files):
    trace = llmprof.read(files / "torch_memory.json.gz")
    said = truth(files, "torch_memory")
    found = analyze.memory(trace).row(0, named=True)
    assert found["peak_allocated_bytes"] == said["max_memory_allocated"]
    assert found["peak_reserved_bytes"] == said["max_memory_reserved"]
    assert found["last_bytes"] == found["first_bytes"] == said["allocated_bytes.all.current"]
    steps = analyze.memory(trace, by="step")
    assert steps["step"].to_list() == list(range(6))
    assert steps["phase"].to_list() == ["prefill", *["decode"] * 5]
    assert (steps["allocated_bytes"] - steps["released_bytes"]).sum() == 0
    assert steps["peak_allocated_bytes"].max() == found["peak_allocated_bytes"]
    ops = analyze.memory(trace, by="operator")
    assert ops["operator"][0] == "aten::addmm"
    assert (
        ops["allocated_bytes"].sum() == found["allocated_bytes"] == steps["allocated_bytes"].sum()
    )


@pytest.mark.parametrize("context", ["shadow", "python"])
def test_real_profiles_of_proton(files, context):
    path = files / f"proton_{context}.hatchet"
    text = path.read_text()
    with warnings.catch_warnings(
        action="ignore", category=TraceWarning
    ):  # launch hooks are leaves without a time
        trace = llmprof.read(path)
    found = trace.totals.filter(kind="kernel")
    times = [int(n) for n in re.findall(r'"time \(ns\)": (\d+)', text)]
    assert found["total_ns"].sum() == sum(times)
    assert found.filter(name="add_kernel")["count"].sum() == 3
    assert found["device"].drop_nulls().unique().to_list() == [0]
    if context == "shadow":
        assert found["scope"].drop_nulls().unique().sort().to_list()[:2] == [
            "step0\nadd",
            "step0\nmm",
        ]
