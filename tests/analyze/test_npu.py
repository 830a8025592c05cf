"""Questions of an NPU on traces made by hand, and on the recording of a real one."""

import polars as pl
import pytest

from llmprof import analyze
from llmprof.errors import AnalysisError, NotCapturedError
from llmprof.trace import Trace

US = 1000


def npu(**tables):
    """A trace of rank 0 with rows of some tables; times in us."""
    frames = {}
    for name, rows in tables.items():
        frame = pl.DataFrame([{"rank": 0, **row} for row in rows], infer_schema_length=None)
        times = [c for c in frame.columns if c in ("start_ns", "dur_ns", "time_ns")]
        frames[name] = frame.with_columns((pl.col(c) * US).cast(pl.Int64) for c in times)
    return Trace(frames)


@pytest.fixture
def path():
    """One matmul: operator at 10, enqueue 12, dequeue 20, AscendCL 21, launch 23, device 40; a
    call without a queue.
    """
    host = {"process": 1, "api": "runtime"}
    return npu(
        ops=[
            {
                "thread": 1,
                "start_ns": 10,
                "dur_ns": 5,
                "name": "aten::mm",
                "kind": "op",
                "op_id": 7,
            },
            {
                "thread": 1,
                "start_ns": 50,
                "dur_ns": 30,
                "name": "aten::item",
                "kind": "op",
                "op_id": 8,
            },
            {
                "thread": 1,
                "start_ns": 51,
                "dur_ns": 28,
                "name": "aten::_local_scalar_dense",
                "kind": "op",
                "op_id": 9,
            },
        ],
        runtime=[
            {
                **host,
                "thread": 1,
                "start_ns": 12,
                "dur_ns": 1,
                "name": "Enqueue",
                "ascend_level": "queue",
                "ascend_queue_id": 3,
            },
            {
                **host,
                "thread": 2,
                "start_ns": 20,
                "dur_ns": 6,
                "name": "Dequeue@aclnnMm",
                "ascend_level": "queue",
                "ascend_queue_id": 3,
            },
            {
                **host,
                "thread": 2,
                "start_ns": 21,
                "dur_ns": 4,
                "name": "AscendCL@aclnnMm",
                "ascend_level": "acl",
            },
            {
                **host,
                "thread": 2,
                "start_ns": 23,
                "dur_ns": 1,
                "name": "Node@launch",
                "ascend_level": "node",
                "correlation": 5,
            },
            {
                **host,
                "thread": 1,
                "start_ns": 52,
                "dur_ns": 25,
                "name": "AscendCL@aclrtSynchronizeStream",
                "ascend_level": "acl",
            },
        ],
        kernels=[
            {
                "device": 0,
                "stream": 2,
                "start_ns": 40,
                "dur_ns": 8,
                "name": "aclnnMm_MatMulCommon_MatMulV2",
                "correlation": 5,
                "op_id": 7,
            },
            {
                "device": 0,
                "stream": 2,
                "start_ns": 60,
                "dur_ns": 2,
                "name": "aclnnAdd_AddAiCore_Add",
            },
        ],
    )


def test_kernels_of_an_acl_graph_are_replayed_by_one_call():
    """vllm-ascend in graph mode: aclmdlRIExecuteAsync replays the kernels of a step, eager ones
    have their own call.
    """
    host = {"process": 1, "api": "runtime", "thread": 1, "ascend_level": "acl"}
    kernel = {"device": 0, "stream": 2, "dur_ns": 8}
    trace = npu(
        runtime=[
            {
                **host,
                "start_ns": 10,
                "dur_ns": 3,
                "name": "AscendCL@aclmdlRIExecuteAsync",
                "correlation": 1,
            },
            {**host, "start_ns": 20, "dur_ns": 3, "name": "AscendCL@aclnnArgMax", "correlation": 2},
        ],
        kernels=[
            {**kernel, "start_ns": 40, "name": "aclnnMm_MatMulCommon_MatMulV2", "correlation": 1},
            {
                **kernel,
                "start_ns": 50,
                "name": "aclnnAddRmsNorm_AddRmsNorm_AddRmsNorm",
                "correlation": 1,
            },
            {
                **kernel,
                "start_ns": 60,
                "name": "aclnnArgMax_ArgMaxV2AiCore_ArgMaxV2",
                "correlation": 2,
            },
        ],
    )
    assert trace.events["replayed"].to_list() == [True, True, False]
    assert trace.events["category"].to_list() == ["gemm", "norm", "sampling"]
    held = analyze.idle(trace).filter(pl.col("start_ns") == 48 * US)
    assert held.select("cause", "waited_kind").row(0) == ("queued", "graph")


def test_launch_path_follows_an_operator_through_every_layer(path):
    first, second = analyze.npu.launch_path(path).iter_rows(named=True)
    assert (first["operator"], first["call"], first["category"]) == (
        "aten::mm",
        "AscendCL@aclnnMm",
        "gemm",
    )
    assert first["launch_start_ns"] == 23 * US
    delays = {
        key: first[key] // US for key in ("to_queue_ns", "queue_ns", "to_launch_ns", "to_device_ns")
    }
    assert delays == {
        "to_queue_ns": 2,
        "queue_ns": 8,
        "to_launch_ns": 3,
        "to_device_ns": 17,
    }
    assert all(second[key] is None for key in (*delays, "operator", "call"))


@pytest.fixture
def waits():
    """Stream 2 waits from 10 to 30 for stream 4, whose call ended at 29; stream 4 waited before for
    stream 2.

    The third wait ends when nobody records; the fourth when two streams do.
    """
    task = {"device": 0}
    return npu(
        kernels=[
            {
                "device": 0,
                "stream": 2,
                "start_ns": 0,
                "dur_ns": 4,
                "name": "aclnnMm_MatMulCommon_MatMulV2",
            },
            {
                "device": 0,
                "stream": 4,
                "start_ns": 6,
                "dur_ns": 23,
                "name": "hcom_allReduce__1_0_1",
            },
            {
                "device": 0,
                "stream": 2,
                "start_ns": 31,
                "dur_ns": 4,
                "name": "aclnnAddRmsNorm_AddRmsNorm_AddRmsNorm",
            },
        ],
        tasks=[
            {
                **task,
                "stream": 2,
                "start_ns": 4.9,
                "dur_ns": 0.02,
                "name": "EVENT_RECORD",
                "kind": "event_record",
            },
            {
                **task,
                "stream": 4,
                "start_ns": 1,
                "dur_ns": 4,
                "name": "EVENT_WAIT",
                "kind": "event_wait",
            },
            {
                **task,
                "stream": 4,
                "start_ns": 29.5,
                "dur_ns": 0.02,
                "name": "EVENT_RECORD",
                "kind": "event_record",
            },
            {
                **task,
                "stream": 2,
                "start_ns": 10,
                "dur_ns": 20,
                "name": "EVENT_WAIT",
                "kind": "event_wait",
            },
            {
                **task,
                "stream": 2,
                "start_ns": 40,
                "dur_ns": 10,
                "name": "EVENT_WAIT",
                "kind": "event_wait",
            },
            {
                **task,
                "stream": 4,
                "start_ns": 69,
                "dur_ns": 0.02,
                "name": "EVENT_RECORD",
                "kind": "event_record",
            },
            {
                **task,
                "stream": 5,
                "start_ns": 69,
                "dur_ns": 0.02,
                "name": "EVENT_RECORD",
                "kind": "event_record",
            },
            {
                **task,
                "stream": 2,
                "start_ns": 60,
                "dur_ns": 10,
                "name": "EVENT_WAIT",
                "kind": "event_wait",
            },
            {
                **task,
                "stream": 2,
                "start_ns": 80,
                "dur_ns": 0.02,
                "name": "EVENT_WAIT",
                "kind": "event_wait",
            },
        ],
    )


def test_event_waits_tell_the_stream_from_the_record_at_their_end(waits):
    found = analyze.npu.event_waits(waits)
    assert found.select(
        "stream", pl.col("start_ns") // US, pl.col("dur_ns") // US, "waited_stream"
    ).rows() == [
        (4, 1, 4, 2),
        (2, 10, 20, 4),
        (2, 40, 10, None),
        (2, 60, 10, None),
    ]
    one = found.row(1, named=True)
    assert (one["waited_category"], one["next_category"]) == ("collective", "norm")
    assert found.row(0, named=True)["next_name"] == "hcom_allReduce__1_0_1"
    assert analyze.npu.event_waits(waits, min_ns=0).height == 5


def test_links_by_hand():
    moved = {
        "device": 0,
        "stream": 4,
        "name": "Memcpy",
        "kind": "transfer",
        "src_rank": 0,
        "link": "HCCS",
    }
    trace = npu(
        tasks=[
            {**moved, "start_ns": 0, "dur_ns": 10, "dst_rank": 1, "bytes": 200_000},
            {**moved, "start_ns": 20, "dur_ns": 10, "dst_rank": 1, "bytes": 200_000},
            {**moved, "start_ns": 40, "dur_ns": 20, "dst_rank": 2, "bytes": 200_000},
            {
                **moved,
                "start_ns": 70,
                "dur_ns": 20,
                "dst_rank": 0,
                "bytes": 200_000,
                "link": "ON_CHIP",
            },
            {**moved, "start_ns": 70, "dur_ns": 20, "dst_rank": 1, "bytes": 0},
        ]
    )
    found = analyze.npu.links(trace)
    assert found.select("dst_rank", "count", "gbps", "typical_gbps").rows() == [
        (2, 1, 10.0, 15.0),
        (1, 2, 20.0, 15.0),
    ]
    assert found["ratio"].to_list() == pytest.approx([10 / 15, 20 / 15])


def test_core_time_by_hand(sample_trace):
    kernel = {"device": 0, "stream": 2}
    trace = npu(
        kernels=[
            {
                **kernel,
                "start_ns": 0,
                "dur_ns": 10,
                "name": "MatMulV2_1",
                "ascend_op_type": "MatMulV2",
                "ascend_core": "AI_CORE",
                "ascend_aic_time_ns": 9000.0,
                "ascend_aic_mac_time_ns": 5000.0,
                "ascend_aic_mac_ratio": 0.55,
                "ascend_aiv_time_ns": 0.0,
                "ascend_aiv_vec_ratio": 0.0,
            },
            {
                **kernel,
                "start_ns": 10,
                "dur_ns": 10,
                "name": "MatMulV2_2",
                "ascend_op_type": "MatMulV2",
                "ascend_core": "AI_CORE",
            },
            {
                **kernel,
                "start_ns": 20,
                "dur_ns": 8,
                "name": "SwiGlu1",
                "ascend_op_type": "SwiGlu",
                "ascend_core": "AI_VECTOR_CORE",
                "ascend_aic_time_ns": 0.0,
                "ascend_aic_mac_time_ns": 0.0,
                "ascend_aic_mac_ratio": 0.0,
                "ascend_aiv_time_ns": 7000.0,
                "ascend_aiv_vec_ratio": 0.25,
            },
            {
                **kernel,
                "start_ns": 30,
                "dur_ns": 50,
                "name": "hcom_allReduce__1_0_1",
                "ascend_core": "HCCL",
            },
        ]
    )
    linear, activation = analyze.npu.core_time(trace).iter_rows(named=True)
    assert (linear["category"], linear["count"], linear["total_ns"]) == ("gemm", 2, 20_000)
    assert (linear["cube_share"], linear["known_share"]) == (0.25, 0.5)
    assert (activation["category"], activation["vector_share"]) == ("activation", 0.25)
    by_type = analyze.npu.core_time(trace, by=("kind", "core"))
    assert by_type["kind"].to_list() == ["MatMulV2", "SwiGlu"]
    with pytest.raises(AnalysisError, match="colour"):
        analyze.npu.core_time(trace, by=("colour",))
    with pytest.raises(NotCapturedError, match="aic_metrics"):
        analyze.npu.core_time(sample_trace("torch_tp1_eager"))
    with pytest.raises(NotCapturedError):
        analyze.npu.event_waits(sample_trace("torch_tp1_eager"))


def test_operator_shapes_by_hand():
    kernel = {"device": 0, "stream": 2, "ascend_op_type": "MatMulV2", "ascend_core": "AI_CORE"}
    trace = npu(
        kernels=[
            {**kernel, "start_ns": 0, "dur_ns": 10, "name": "a", "ascend_input_shapes": "2,3;3,4"},
            {**kernel, "start_ns": 10, "dur_ns": 20, "name": "b", "ascend_input_shapes": "8,3;3,4"},
            {**kernel, "start_ns": 30, "dur_ns": 10, "name": "a", "ascend_input_shapes": "2,3;3,4"},
            {
                "device": 0,
                "stream": 4,
                "start_ns": 40,
                "dur_ns": 40,
                "name": "hcom_allGather__9_3_1",
                "ascend_core": "HCCL",
            },
        ]
    )
    found = analyze.npu.operator_shapes(trace, shapes=False)
    assert found.select("kind", "core", "count", "total_ns", "share").rows() == [
        ("MatMulV2", "AI_CORE", 3, 40_000, 0.5),
        ("hcom_allGather_", "HCCL", 1, 40_000, 0.5),
    ]
    apart = analyze.npu.operator_shapes(trace).filter(pl.col("kind") == "MatMulV2")
    assert apart.select("shapes", "count").rows() == [("2,3;3,4", 2), ("8,3;3,4", 1)]


def test_memory_by_component_by_hand():
    sample = {"device": 0, "on_device": True}
    trace = npu(
        memory=[
            {
                **sample,
                "time_ns": 1,
                "allocated_bytes": 5,
                "reserved_bytes": 9,
                "ascend_component": "PTA",
            },
            {
                **sample,
                "time_ns": 2,
                "allocated_bytes": 7,
                "reserved_bytes": 9,
                "ascend_component": "PTA",
            },
            {
                **sample,
                "time_ns": 3,
                "allocated_bytes": 6,
                "reserved_bytes": 10,
                "ascend_component": "PTA",
            },
            {
                **sample,
                "time_ns": 4,
                "allocated_bytes": None,
                "reserved_bytes": 40,
                "ascend_component": "APP",
            },
        ]
    )
    assert analyze.npu.memory_by_component(trace).rows() == [
        (0, "APP", 1, None, 40, 4 * US),
        (0, "PTA", 3, 7, 10, 2 * US),
    ]


@pytest.mark.parametrize(("wait_ns", "kind"), [(25, "event"), (4, "stream")])
def test_an_idle_stream_that_stood_in_a_wait_is_held_by_the_event(wait_ns, kind):
    """Both kernels are launched before 10; the second runs at 40, and its stream waited for an
    event before it.
    """
    host = {"process": 1, "thread": 1, "api": "runtime", "dur_ns": 1, "name": "Node@launch"}
    kernel = {"device": 0, "stream": 2, "dur_ns": 5, "name": "aclnnMm_MatMulCommon_MatMulV2"}
    wait = {"device": 0, "stream": 2, "name": "EVENT_WAIT", "kind": "event_wait"}
    trace = npu(
        runtime=[
            {**host, "start_ns": 2, "correlation": 1},
            {**host, "start_ns": 5, "correlation": 2},
        ],
        kernels=[
            {**kernel, "start_ns": 5, "correlation": 1},
            {**kernel, "start_ns": 40, "correlation": 2},
        ],
        tasks=[{**wait, "start_ns": 39 - wait_ns, "dur_ns": wait_ns}],
    )
    (row,) = analyze.idle(trace).filter(pl.col("cause") == "queued").iter_rows(named=True)
    assert row["dur_ns"] == 30 * US
    assert row["waited_kind"] == (kind if kind == "event" else None)
