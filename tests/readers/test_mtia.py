"""Queues of an MTIA device in a Chrome trace: programs, copies by DMA, waits and signals."""

import json

import polars as pl
import pytest

import llmprof
from llmprof.analyze import overlap


def command(name, ts, dur, **args):
    return {
        "ph": "X",
        "cat": "mtia_ccp_events",
        "name": name,
        "pid": 17,
        "tid": 5,
        "ts": ts,
        "dur": dur,
        "args": {"stream": 3, **args},
    }


def test_waiting_is_no_work(tmp_path):
    events = [
        command("event_wait", 0, 100, wait_on_stream=4),
        command("dma_request", 100, 10, direction="HOST_TO_DEVICE", size=4096),
        command("merge", 110, 50, correlation=7),
        command("dma_request", 160, 5, direction="DEVICE_TO_HOST", size=64),
        command("event_record", 165, 1),
    ]
    file = tmp_path / "mtia.json"
    file.write_text(json.dumps({"traceEvents": events}))
    trace = llmprof.read(file, cache=False)
    assert trace.kernels.select("name", "stream", "dur_ns", "correlation").rows() == [
        ("merge", 3, 50_000, 7)
    ]
    assert trace.copies.select("kind", "bytes", "dur_ns").rows() == [
        ("HtoD", 4096, 10_000),
        ("DtoH", 64, 5_000),
    ]
    assert trace.tasks.select("kind", "dur_ns").rows() == [
        ("event_wait", 100_000),
        ("event_record", 1_000),
    ]
    # 65 us of work, none of it idle: the wait before it is none
    found = overlap(trace, by=("rank",)).row(0, named=True)
    assert (found["total_ns"], found["compute_ns"], found["copy_ns"], found["idle_ns"]) == (
        65_000,
        50_000,
        15_000,
        0,
    )


@pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")
def test_a_recording_of_inference(shared):
    trace = llmprof.read(
        shared / "real/chrome/hta/mtia_inference_trace__mtia_inference_rank_0.json.gz"
    )
    assert trace.kernels["name"].value_counts().sort("name").rows() == [
        ("merge", 36),
        ("pe_exe", 24),
        ("remote", 37),
    ]
    assert trace.copies.height == 877
    assert trace.copies.filter(pl.col("kind") == "HtoD")["bytes"].sum() == 788_439_608
    assert trace.tasks["kind"].value_counts().sort("kind").rows() == [
        ("event_record", 291),
        ("event_wait", 48),
    ]
