"""Every form in which Chrome traces come: see the list of formats in the design notes, 1 to 13."""

import gzip
import json

import pytest

from llmprof import analyze
from llmprof.readers.common.reader import combine
from llmprof.trace import Trace, schema
from tests.readers.traces import collectives_of, event, kernel, launch, op, read_one, text_of, write


@pytest.fixture
def read(tmp_path):
    """Reads text as one file."""

    def read(text, **options):
        if isinstance(text, list):
            text = text_of(text)
        return read_one(write(tmp_path / "trace.json", text), **options)

    return read


def names(part, table="kernels"):
    return part.tables[table]["name"].to_list()


def test_bare_list_that_is_never_closed_keeps_every_event(read):
    part = read(b"[\n" + b"".join(json.dumps(kernel(n)).encode() + b",\n" for n in "abc"))
    assert names(part) == [*"abc"]
    assert part.coverage["truncated"] == "the list of events is not closed"
    assert part.coverage["lost_bytes"] == 0


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_white_space_line_ends_and_byte_order_mark(read, indent, newline, mark):
    text = (
        mark
        + json.dumps({"a": 1, "traceEvents": [kernel("a"), kernel("b")], "z": 2}, indent=indent)
        + "\n"
    )
    part = read(text.replace("\n", newline).encode())
    assert names(part) == ["a", "b"]
    assert not part.losses()


@pytest.mark.parametrize("name", ["trace.json.gz", "trace.json", "trace.pt.trace"])
def test_gzip_is_known_by_content(tmp_path, name):
    path = write(tmp_path / name, gzip.compress(text_of([kernel("a")])))
    assert names(read_one(path)) == ["a"]


@pytest.mark.parametrize("rank", [-1, "x", None, True, 1.5, 2**40, [0]])
def test_a_rank_that_is_none_is_none(read, rank):
    assert (
        read(text_of([kernel()], distributedInfo={"rank": rank, "world_size": rank})).head["rank"]
        is None
    )


def test_the_key_of_the_events_may_stand_elsewhere_too(read):
    text = b'{"meta": {"traceEvents": [], "note": "\\"traceEvents\\": [1]"}, "args": "traceEvents", "traceEvents": ['
    assert names(read(text + json.dumps(kernel("a")).encode() + b"]}")) == ["a"]


@pytest.mark.parametrize(
    ("ts", "dur", "start_ns", "dur_ns"),
    [
        ("1669783687464181", "0", 1669783687464181000, 0),  # Kineto up to 2023
        ("1669783687464181", "45", 1669783687464181000, 45000),
        ("1712195495521948.319", "3.001", 1712195495521948319, 3001),  # 2024, past float64
        ("1712195495521948.001", "0.999", 1712195495521948001, 999),
        ("4366402935720.351", "2.784", 4366402935720351, 2784),  # from a base
        ("15057.495", "1.312", 15057495, 1312),
        ('"1736405443909176.934"', '"2.260"', 1736405443909176934, 2260),  # Ascend
        ('"1736405443909176.934\\t"', '" 2.26"', 1736405443909176934, 2260),
        ('"8306017670485"', '"154889"', 8306017670485000, 154889000),  # rpd
        ("8", "9665", 8000, 9665000),
        ("0.0005", "0.0004", 1, 0),  # to the nearest
        ("-3.250", "1", -3250, 1000),
        ('"-3.25"', '"1"', -3250, 1000),
        ("1e3", "1.5e-2", 1000000, 15),
        ('"1e3"', '"+1.5"', 1000000, 1500),
        ("1712195495521948.3190", "1.00000001", 1712195495521948319, 1000),
        (
            "1712195495521948.2",
            "0.30000000000000004",
            1712195495521948200,
            300,
        ),  # written again by another program
        ("1712195495521948.25", "0.0004999", 1712195495521948250, 0),
    ],
)
def test_times_of_every_form_are_exact(read, ts, dur, start_ns, dur_ns):
    text = '[{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": %s, "dur": %s}]'
    kernels = read((text % (ts, dur)).encode()).tables["kernels"]
    assert kernels.select("start_ns", "dur_ns").row(0) == (start_ns, dur_ns)


@pytest.mark.parametrize(
    "ts", ["null", '""', '"x"', "1e300", '"nan"', '"inf"', "true", "[1]", "{}", str(2**70), '"1,5"']
)
def test_an_event_whose_time_is_no_time_is_left_out_and_counted(read, ts):
    text = (
        f'[{{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": {ts}, "dur": 1}}, '
    )
    part = read((text + json.dumps(kernel("a")) + "]").encode())
    assert names(part) == ["a"]
    assert part.coverage["skipped"] == {"event without a time or name": 1}
    assert "1 event without a time or name" in " ".join(part.losses())


def test_events_without_time_name_or_category(read):
    part = read(
        [
            {"ph": "X", "cat": "kernel", "ts": 1},
            {"ph": "X", "cat": "kernel", "name": "a"},
            kernel("b"),
            {"ph": "X"},
        ]
    )
    assert names(part) == ["b"]
    assert part.coverage["skipped"]["event without a time or name"] == 3


@pytest.mark.parametrize("base", [1790857026000000000, "1790857026000000000"])
@pytest.mark.parametrize("before", [True, False])
def test_base_before_and_after_the_events(read, base, before):
    events = [kernel("a", 4366402935720.351), op(ts=4366402935719.5)]
    keys = {"baseTimeNanoseconds": base, "traceEvents": events}
    text = json.dumps(keys if before else dict(reversed(keys.items())))
    part = read(text.encode())
    assert part.tables["kernels"]["start_ns"].item() == 1790857026000000000 + 4366402935720351
    assert part.span_ns()[0] == 1790857026000000000 + 4366402935719500
    assert part.head["absolute"]


@pytest.mark.parametrize("base", [0, None, "x", [], -5, 2**63, 1e300])
def test_a_base_that_is_none_counts_as_zero(read, base):
    part = read(text_of([kernel(ts=5)], baseTimeNanoseconds=base))
    assert part.tables["kernels"]["start_ns"].item() == 5000
    assert not part.head["absolute"]


def test_identifiers_of_any_type(read):
    events = [
        event("Kernel", "k", pid=0, tid="stream 7", args={"device": 0}),
        event(
            "Memcpy",
            "Memcpy HtoD (Pinned -> Device)",
            pid=1,
            tid="stream 20",
            args={"device": 1, "stream": 21},
        ),
    ]
    part = read(events)
    assert part.tables["kernels"].select("device", "stream").row(0) == (0, 7)
    assert part.tables["copies"].select("device", "stream").row(0) == (1, 21)
    huge = 2**64 + 5
    args = {"External id": huge, "correlation": huge, "Comms Id": 15384263132343452021, "stream": 7}
    kernels = read([kernel("a", **args), kernel("b", **args)]).tables["kernels"]
    assert kernels["correlation"].n_unique() == 1
    assert kernels["correlation"].null_count() == 0
    assert kernels["correlation"][0] == kernels["op_id"][0] < 0
    given = [
        (12, 7),
        ("12", "7"),
        ("12", "thread 7"),
        (2**40, 140234567890123),
        (None, None),
        ("", " "),
    ]
    ops = read([op() | {"pid": pid, "tid": tid} for pid, tid in given]).tables["ops"]
    assert ops.select("process", "thread").rows() == [
        (12, 7),
        (12, 7),
        (12, 7),
        (2**40, 140234567890123),
        (None, None),
        (None, None),
    ]


@pytest.mark.parametrize(
    ("pid", "device"),
    [(3, 3), ("Device 3", 3), ("GPU 3", 3), (783658, None), (-1, None), ("x", None), (2**70, None)],
)
def test_device_from_the_process_only_where_it_can_be_one(read, pid, device):
    assert read([event("kernel", pid=pid)]).tables["kernels"]["device"].item() == device


@pytest.mark.parametrize(
    ("category", "table"),
    [
        ("kernel", "kernels"),
        ("Kernel", "kernels"),
        ("gpu_memcpy", "copies"),
        ("Memcpy", "copies"),
        ("gpu_memset", "copies"),
        ("Memset", "copies"),
        ("cuda_runtime", "runtime"),
        ("Runtime", "runtime"),
        ("cuda_driver", "runtime"),
        ("xpu_runtime", "runtime"),
        ("privateuse1_runtime", "runtime"),
        ("cpu_op", "ops"),
        ("Operator", "ops"),
        ("Node", "ops"),
        ("user_annotation", "markers"),
        ("gpu_user_annotation", "markers"),
        ("overhead", "markers"),
        ("cuda_sync", "markers"),
        ("Session", "markers"),
        ("enqueue", "markers"),
        ("a category of the future", "markers"),
        (None, "markers"),
        ("", "markers"),
    ],
)
def test_categories_of_every_year_and_vendor(read, category, table):
    part = read([event(category, "x", 1.5, 2.5)])
    assert [name for name, frame in part.tables.items() if frame.height] == [table]
    assert part.tables[table].select("name", "start_ns", "dur_ns").row(0) == ("x", 1500, 2500)
    assert Trace({table: part.tables[table].with_columns(rank=0)}).table(table).height == 1


def test_sides_of_markers_and_calls(read):
    markers = read(
        [event("user_annotation"), event("gpu_user_annotation", pid=2), event(None)]
    ).tables["markers"]
    assert sorted(markers.select("domain", "on_device", "device").rows()) == [
        ("annotation", False, None),
        ("gpu_user_annotation", True, 2),
        ("user_annotation", False, None),
    ]
    runtime = read(
        [launch(correlation=5), event("cuda_driver", "cuLaunchKernel", args={"correlation": 6})]
    ).tables["runtime"]
    assert runtime.select("api", "correlation").rows() == [("runtime", 5), ("driver", 6)]


@pytest.mark.parametrize("key", ["Input Dims", "Input dims"])
def test_shapes_under_every_name(read, key):
    args = {key: [[1, 2], []], "Input type": ["float", "Scalar"]}
    assert read([op(**args), op()]).tables["ops"].select("shapes", "dtypes").rows() == [
        ("[[1, 2], []]", '["float", "Scalar"]'),
        (None, None),
    ]


def test_shapes_of_onnx_runtime_become_lists_and_texts_are_none(read):
    onnx = event("Node", args={"input_type_shape": [{"float": [1, 64]}, {"int64": []}]})
    text = op(**{"Input Dims": "32,3,224;7", "Input type": "float;long"})
    assert read([text, onnx]).tables["ops"].select("shapes", "dtypes").rows() == [
        (None, None),
        ("[[1, 64], []]", '["float", "int64"]'),
    ]


def test_many_kernels_of_one_launch_and_kernels_without_one(read, tmp_path):
    part = read(
        [
            launch("cudaGraphLaunch", correlation=9),
            *(kernel(f"k{i}", i, correlation=9) for i in range(3)),
            kernel(),
        ]
    )
    assert part.tables["kernels"]["correlation"].to_list() == [9, 9, 9, None]
    assert part.tables["runtime"]["correlation"].to_list() == [9]
    part = read([kernel("c", 9, 1), kernel("a", 1, 20), kernel("b", 2, 3)])
    assert names(part) == ["c", "a", "b"]
    trace = Trace({"kernels": part.tables["kernels"].with_columns(rank=0)})
    assert trace.kernels["name"].to_list() == ["a", "b", "c"]


def test_geometry_of_kernels(read):
    args = {
        "grid": [4, 2, 1],
        "block": [128, 1, 1],
        "registers per thread": 32,
        "shared memory": 49152,
        "est. achieved occupancy %": 31,
        "graph node id": 12,
    }
    kernels = read([kernel(**args), kernel(), kernel(grid=[2**31 - 1, 1, 1])]).tables["kernels"]
    columns = [
        "grid_x",
        "grid_y",
        "grid_z",
        "block_x",
        "registers",
        "shared_bytes",
        "est_occupancy_pct",
        "graph_node",
    ]
    assert kernels.select(columns).rows() == [
        (4, 2, 1, 128, 32, 49152, 31.0, 12),
        (None,) * 8,
        (2**31 - 1, 1, 1, *(None,) * 5),
    ]


@pytest.mark.parametrize(
    "args",
    [
        {"grid": [2**40, 1, 1]},
        {"grid": [1, 2]},
        {"grid": "x"},
        {"grid": None},
        {"registers per thread": 2**40},
        {"stream": [1]},
        {"shared memory": 1e300},
        {"bytes": {}},
        {"correlation": 1.5},
        {"device": 2**70},
        {"est. achieved occupancy %": "x"},
    ],
)
def test_an_argument_that_does_not_fit_costs_itself_only(read, args):
    kernels = read([kernel("a", **args), kernel("b", grid=[4, 2, 1])]).tables["kernels"]
    assert kernels["name"].to_list() == ["a", "b"]
    assert kernels["grid_x"].to_list() == [None, 4]
    assert schema.conform(kernels.with_columns(rank=0), "kernels").height == 2


@pytest.mark.parametrize("args", ["null", "[]", "[1, 2]", '"text"', "7", "{}"])
def test_arguments_that_are_no_object(read, args):
    text = f'[{{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 3, "dur": 1, "args": {args}}}]'
    assert read(text.encode()).tables["kernels"].select("name", "device", "stream").row(0) == (
        "k",
        0,
        7,
    )


def test_collectives_by_their_metadata_and_on_the_host(read):
    args = {
        "Collective name": "_allgather_base",
        "In msg nelems": 1000,
        "Out msg nelems": 4000,
        "Group size": 4,
        "dtype": "BFloat16",
        "Process Group Name": "15",
        "Process Group Ranks": "[0, 1, 2, 3]",
    }
    found = collectives_of(read([kernel("ncclDevKernel_Generic", **args), kernel("x")]))
    columns = [
        "kind",
        "world",
        "dtype",
        "in_elements",
        "out_elements",
        "bytes",
        "bytes_source",
        "group",
        "group_ranks",
    ]
    assert found.select(columns).row(0) == (
        "all_gather",
        4,
        "BFloat16",
        1000,
        4000,
        8000,
        "metadata",
        "15",
        "[0, 1, 2, 3]",
    )
    events = [
        kernel(
            "ncclDevKernel_SendRecv",
            **{"Collective name": n, r: 1, "In msg nelems": 5, "dtype": "Float"},
        )
        for n, r in (("send", "Dst Rank"), ("recv", "Src Rank"))
    ]
    found = collectives_of(read(events))
    assert found.select("kind", "peer", "bytes").rows() == [
        ("send_recv", 1, 20),
        ("send_recv", 1, 20),
    ]
    assert read([event("user_annotation", "gloo:all_reduce"), op()]).tables["ops"].height == 2
    found = collectives_of(read([op("_C::shm_allreduce", 4, 2), op("aten::mm")]))
    assert found.select("kind", "algorithm", "on_device", "device").rows() == [
        ("all_reduce", "shared_memory", False, None)
    ]


@pytest.mark.parametrize(
    ("name", "described"),
    [
        ("Memcpy HtoD (Pageable -> Device)", ("HtoD", "pageable", "device")),
        ("Memcpy DtoH (Device -> Pinned)", ("DtoH", "device", "pinned")),
        ("Memcpy DtoD (Device -> Device)", ("DtoD", "device", "device")),
        ("Memcpy PtoP (Device -> Device)", ("PtoP", "device", "device")),
        ("Memset (Device)", ("memset", None, None)),
        ("CopyHostToDevice", ("HtoD", None, None)),
        ("MEMCPY_ASYNC", ("unknown", None, None)),
    ],
)
def test_kinds_of_copies(read, name, described):
    copies = read([event("gpu_memcpy", name, args={"bytes": 64})]).tables["copies"]
    assert copies.select("kind", "src_kind", "dst_kind", "bytes").row(0) == (*described, 64)


@pytest.mark.parametrize("category", ["cpu_instant_event", None])
def test_memory_events(read, category):
    args = {"Device Type": 1, "Device Id": 0, "Addr": 139926520725504, "Bytes": -512}
    args |= {"Total Allocated": 5, "Total Reserved": 9}
    instant = {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 2, "ts": 1.5}
    on_host = {"Device Type": 0, "Device Id": -1, "Addr": 2**64 - 8, "Bytes": 16}
    events = [instant | {"cat": category, "args": a} for a in (args, on_host)]
    part = read(
        [{k: v for k, v in e.items() if v is not None} for e in events]
        + [instant | {"name": "mark"}]
    )
    columns = [
        "time_ns",
        "device",
        "on_device",
        "bytes",
        "allocated_bytes",
        "reserved_bytes",
        "thread",
    ]
    assert part.tables["memory"].select(columns).rows() == [
        (1500, 0, True, -512, 5, 9, 2),
        (1500, None, False, 16, None, None, 2),
    ]
    assert part.tables["memory"]["address"][0] == 139926520725504
    assert part.coverage["skipped"] == {"instant": 1}


def test_counters(read):
    def sample(name, args, ts="7.5"):
        return {"ph": "C", "name": name, "pid": 1, "ts": ts, "args": args}

    events = [
        sample("AI Core Freq", {"MHz": 1800}),
        sample("HBM 0/Read", {"Read(MB/s)": 1.5}),
        sample("bandwidth", {"value": 3, "acc_id": 1}),
        sample("depth", {"depth": "4", "note": "text", "flag": True, "none": None}),
        sample("no values", {}),
        sample("no object", [1]),
        sample("no time", {"x": 1}, None),
    ]
    counters = read(events).tables["counters"]
    assert counters.select("name", "value", "unit").rows() == [
        ("AI Core Freq", 1800.0, "MHz"),
        ("HBM 0/Read", 1.5, "MB/s"),
        ("bandwidth.value", 3.0, None),
        ("bandwidth.acc_id", 1.0, None),
        ("depth.depth", 4.0, None),
    ]
    assert set(counters["time_ns"]) == {7500}


def test_samples_of_cupti_that_kineto_writes(read):
    """An event of each sample, with the device as its process and all metrics as arguments."""
    active = "sm__cycles_active.avg.pct_of_peak_sustained_elapsed"
    moved = "dram__bytes_read.sum.per_second"

    def sample(ts, args):
        place = {"pid": 2, "tid": 0, "cat": "hardware_counters", "ts": ts}
        return {"ph": "C", "name": "CUPTI PM Sampling", "args": args} | place

    counters = read([sample(1, {active: 40.5, moved: 2e12}), sample(2, {active: 80})])
    assert counters.tables["counters"].select(
        "device", "time_ns", "name", "value", "unit"
    ).rows() == [
        (2, 1000, active, 40.5, "%"),
        (2, 1000, moved, 2e12, "B/s"),
        (2, 2000, active, 80.0, "%"),
    ]


def test_what_was_not_recorded_is_absent_and_not_empty(read):
    assert read([op()]).tables.keys() == {"ops"}
    assert "memory" not in read([op(), {"ph": "i", "name": "Record Window End", "ts": 1}]).tables


def process_name(pid, name):
    return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}


@pytest.mark.parametrize("named_first", [True, False])
@pytest.mark.parametrize("block_bytes", [64, 1 << 20])
def test_events_go_by_the_name_of_their_process(read, named_first, block_bytes):
    processes = [process_name(1, "python"), process_name(2, "GPU0")]
    events = [
        event(None, "hipLaunchKernel", "2.000", pid=1, args={"correlationId": 11}),
        event(None, "Cijk_Ailk", "3.000", "2.5", pid=2, tid=4, args={"correlationId": 11}),
        event(None, "CopyDeviceToDevice", "4.000", pid=2, tid=9),
        event(None, "range", "5.000", "7", pid=1),
    ]
    part = read(processes + events if named_first else events + processes, block_bytes=block_bytes)
    assert part.tables["kernels"].select(
        "name", "start_ns", "dur_ns", "stream", "correlation", "device"
    ).rows() == [("Cijk_Ailk", 3000, 2500, 4, 11, 0)]
    assert part.tables["copies"].select("name", "stream", "kind").rows() == [
        ("CopyDeviceToDevice", 9, "DtoD")
    ]
    assert part.tables["runtime"].select("name", "correlation", "api").rows() == [
        ("hipLaunchKernel", 11, "runtime")
    ]
    assert names(part, "markers") == ["range"]
    assert (part.coverage["skipped"], part.coverage["kept"]) == ({"metadata": 2}, 4)


@pytest.mark.parametrize("with_streams", [True, False])
def test_lanes_of_an_xla_device(read, with_streams):
    """Lanes repeat each other: with streams these hold the kernels, else the operations do."""
    lanes = {4: "Stream #4(Compute)", 5: "Stream #5(MemcpyH2D)", 8: "XLA Modules", 9: "XLA Ops"}
    named = {"ph": "M", "name": "thread_name", "pid": 3}
    events = [{**named, "tid": tid, "args": {"name": name}} for tid, name in lanes.items()]
    device = "GPU" if with_streams else "TPU"
    events += [process_name(3, f"/device:{device}:2"), process_name(9, "/host:CPU")]
    events += [event(None, "PjitFunction(prefill)", 1, pid=9)]
    for n in range(3):
        at = 10 + 100 * n
        events += [
            event(None, f"jit_prefill({77 + (n == 1)})", at, 90, pid=3, tid=8),
            event(None, "while.3", at, 80, pid=3, tid=9),
            event(None, "fusion.5", at, 20, pid=3, tid=9),
            event(None, "dot.1", at + 20, 60, pid=3, tid=9),
        ]
        if with_streams:
            args = {"correlation_id": str(500 + n)}
            events += [
                event(None, "loop_fusion", at, 20, pid=3, tid=4, args=args),
                event(None, "MemcpyH2D", at + 1, 5, pid=3, tid=5),
            ]
    part = read(events)
    names_of_kernels = ["loop_fusion"] if with_streams else ["fusion.5", "dot.1"]
    kernels = part.tables["kernels"]
    assert kernels["name"].to_list() == names_of_kernels * 3
    assert kernels["device"].unique().to_list() == [2]
    assert kernels["correlation"].to_list() == ([500, 501, 502] if with_streams else [None] * 6)
    assert ("copies" in part.tables) == with_streams
    repeated = part.coverage["skipped"].get("event that repeats another lane", 0)
    assert repeated == 3 * 3 * with_streams
    assert part.coverage["kept"] == sum(frame.height for frame in part.tables.values())
    trace = combine([part], "chrome")
    steps = analyze.steps(trace)
    assert steps.select("phase", "start_ns", "source").rows() == [
        ("prefill", 9000 + 100_000 * n, "xla") for n in range(3)
    ]
    assert trace.events["step"].null_count() == 0


def test_what_a_call_waits_for_is_beside_the_call(read):
    sync = {"device": 0, "context": 1}
    on_stream = {
        "stream": 20,
        "wait_on_stream": 7,
        "wait_on_cuda_event_record_corr_id": 5,
        "correlation": 6,
    }
    on_host = {
        "stream": 2**32 - 1,
        "wait_on_stream": 20,
        "wait_on_cuda_event_record_corr_id": -1,
        "correlation": 8,
    }
    part = read(
        [
            launch("cudaEventRecord", 1, correlation=5),
            launch("cudaStreamWaitEvent", 2, correlation=6),
            launch("cudaStreamSynchronize", 3, correlation=7),
            launch("cudaEventSynchronize", 4, correlation=8),
            event(
                "cuda_sync",
                "a",
                2,
                args={**sync, **on_stream, "cuda_sync_kind": "Stream Wait Event"},
            ),
            event(
                "cuda_sync",
                "b",
                3,
                args={**sync, "stream": 7, "correlation": 7, "cuda_sync_kind": "Stream Sync"},
            ),
            event("cuda_sync", "c", 4, args={**sync, **on_host, "cuda_sync_kind": "Event Sync"}),
        ]
    )
    columns = ["correlation", "torch_waiting_stream", "torch_awaited_stream", "torch_awaited_call"]
    assert part.tables["runtime"].select(columns).rows() == [
        (5, None, None, None),
        (6, 20, 7, 5),
        (7, None, 7, None),
        (8, None, 20, None),
    ]
    assert part.tables["markers"]["name"].to_list() == ["a", "b", "c"]
    assert "correlation" not in part.tables["markers"].columns
