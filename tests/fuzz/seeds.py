"""Small whole files of every format, cut out of the samples: what is mutated.

A folder a reader, in one folder.
"""

import gzip
import importlib.util
import json
import shutil
import sqlite3
import sys
import warnings
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl

import llmprof
from tests.fuzz import late, states
from tests.readers.test_rocm import rocpd

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_traces"
MONITORS = ROOT / "tests/readers/monitor_files"
DONE = "complete"

Events = list[dict[str, Any]]


def make(folder):
    """Write the seeds of all readers into a folder, unless they are there."""
    if (folder / DONE).exists():
        return folder
    chrome(folder / "chrome")
    (folder / "chrome gzip").mkdir()
    (folder / "chrome gzip/zipped.json.gz").write_bytes(
        gzip.compress((folder / "chrome/torch_tp4_eager_nccl.json").read_bytes(), mtime=0)
    )
    nsys(folder / "nsys")
    parquet_folders(folder / "nsys", folder / "nsys parquet")
    ncu(folder / "ncu")
    saved(folder / "chrome/torch_tp4_eager_nccl.json", folder / "saved")
    run(folder / "chrome/torch_tp1_cudagraph.json", folder / "run")
    states.make(folder, folder / "run/run")
    ascend(folder)
    mindspore(folder / "ascend mindspore")
    monitors(folder)
    others(folder)
    late.make(folder)
    dataset(folder / "chrome", folder / "dataset")
    names(folder)
    if importlib.util.find_spec("ncu_report"):
        late.ncu_report(folder / "ncu report")
    (folder / DONE).touch()
    return folder


def heads(events, each):
    """The first events of each kind."""
    by_kind = defaultdict(list)
    for event in events:
        by_kind[tuple(str(event.get(key)) for key in ("ph", "cat", "pid"))].append(event)
    return [event for group in by_kind.values() for event in group[:each]]


def chrome(folder):
    """A document and a bare list of events."""
    folder.mkdir(parents=True)
    for name, whole in (("torch_tp4_eager_nccl", True), ("torch_tp1_cudagraph", False)):
        source = min((SAMPLES / name).glob("rank0*.json.gz"))
        document = json.loads(gzip.decompress(source.read_bytes()))
        events = heads(document["traceEvents"], 8)
        (folder / f"{name}.json").write_text(
            json.dumps({**document, "traceEvents": events} if whole else events)
        )


def tables(source, target, limits, most):
    """A database with the first rows of each table of another one."""
    with (
        closing(sqlite3.connect(f"file:{source}?immutable=1", uri=True)) as old,
        closing(sqlite3.connect(target)) as new,
        new,
    ):
        for table, sql in old.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
        ).fetchall():
            limit = limits.get(table, f"LIMIT {most}")
            rows = old.execute(f'SELECT * FROM "{table}" {limit}').fetchall()
            if rows and not table.startswith("ENUM_"):
                new.execute(sql)
                new.executemany(
                    f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(rows[0]))})', rows
                )


def nsys(folder):
    """Exports with the first rows of each table."""
    folder.mkdir()
    for name in ("nsys_tp2_cudagraph", "nsys_tp1_layer_nvtx"):
        limits = {"StringIds": "WHERE length(value) < 200 LIMIT 400"}
        tables(SAMPLES / name / "report.sqlite", folder / f"{name}.sqlite", limits, 40)


def parquet_folders(databases, folder):
    """The tables of exports as ``nsys export --type parquetdir`` writes them: a Parquet file a
    table.
    """
    for path in databases.iterdir():
        target = folder / path.stem
        target.mkdir(parents=True)
        with closing(sqlite3.connect(path)) as connection:
            for (table,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table'"
            ).fetchall():
                cursor = connection.execute(f'SELECT * FROM "{table}"')
                names = [column[0] for column in cursor.description]
                frame = pl.DataFrame(
                    cursor.fetchall(), schema=names, orient="row", infer_schema_length=None
                )
                frame.write_parquet(target / f"{table}.parquet")


def ncu(folder):
    """Both pages, a few launches each."""
    folder.mkdir()
    for name, rows in (("raw.csv", 5), ("details.csv", 120)):
        lines = (SAMPLES / "ncu_tp1_eager" / name).read_text().split("\n")
        (folder / name).write_text("\n".join(lines[:rows]))


def saved(chrome_file, folder):
    """What ``Trace.save`` writes."""
    folder.mkdir()
    with warnings.catch_warnings(action="ignore"):
        llmprof.read(chrome_file, cache=False).save(folder / "trace")


def dataset(ranks, folder):
    """What ``llmprof.convert`` writes of two ranks."""
    folder.mkdir()
    with warnings.catch_warnings(action="ignore"):
        llmprof.convert(sorted(ranks.iterdir())[:1], folder / "dataset", client=False)


def names(folder):
    """Databases of every profiler that writes one, whose tables are then called otherwise."""
    (folder / "names").mkdir()
    files = [
        *(folder / "nsys").iterdir(),
        *(folder / "rocpd").iterdir(),
        *(folder / "nvvp").iterdir(),
    ]
    for path in (*files, folder / "ascend files/ascend_pytorch_profiler_0.db"):
        shutil.copyfile(path, folder / "names" / path.name)


def run(chrome_file, folder):
    """The folder of a run, its trace cut."""
    shutil.copytree(
        SAMPLES / "run_torch_tp1",
        folder / "run",
        ignore=shutil.ignore_patterns("traces", "sample.json"),
    )
    (folder / "run/traces").mkdir()
    (folder / "run/traces/rank0.pt.trace.json.gz").write_bytes(
        gzip.compress(chrome_file.read_bytes(), mtime=0)
    )


def ascend(folder):
    """What torch_npu writes, as text, as databases and as single files; synthetic, as
    ``sample_traces`` makes it.
    """
    path = SAMPLES / "ascend_synthetic.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    sys.path.insert(0, str(SAMPLES))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    whole = folder / "whole"
    module.main([str(whole)])
    for rank in sorted(whole.glob("*_ascend_pt")):
        inside = rank / "ASCEND_PROFILER_OUTPUT"
        text = folder / "ascend text/run" / rank.name
        database = folder / "ascend database/run" / rank.name
        for target in (text, database):
            (target / inside.name).mkdir(parents=True)
            for about in rank.glob("*.json"):
                shutil.copyfile(about, target / about.name)
        for source in sorted(inside.iterdir()):
            if source.name == "trace_view.json":
                events = heads(json.loads(source.read_text()), 12)
                (text / inside.name / source.name).write_text(json.dumps(events))
            elif source.suffix == ".csv":
                lines = source.read_text().split("\n")[:21]
                (text / inside.name / source.name).write_text("\n".join(lines) + "\n")
            elif source.suffix == ".db":
                limits = {"STRING_IDS": "", "CONNECTION_IDS": ""}
                tables(source, database / inside.name / source.name, limits, 40)
            else:
                shutil.copyfile(source, text / inside.name / source.name)
    single = folder / "ascend files"
    single.mkdir()
    first = folder / "ascend text/run/synthetic_rank0_ascend_pt/ASCEND_PROFILER_OUTPUT"
    for name in (
        "trace_view.json",
        "kernel_details.csv",
        "communication.json",
        "operator_memory.csv",
    ):
        shutil.copyfile(first / name, single / name)
    name = "ascend_pytorch_profiler_0.db"
    shutil.copyfile(
        folder / "ascend database/run/synthetic_rank0_ascend_pt" / first.name / name, single / name
    )
    shutil.copytree(
        text.parent / "synthetic_rank0_ascend_pt", folder / "ascend text/synthetic_rank0_ascend_pt"
    )
    shutil.copytree(
        database.parent / "synthetic_rank0_ascend_pt",
        folder / "ascend database/synthetic_rank0_ascend_pt",
    )
    shutil.rmtree(whole)


def mindspore(folder):
    """Timelines as msprof writes them for MindSpore: made up, in the form of real ones."""
    folder.mkdir()
    names = [
        (3, "Ascend Hardware"),
        (1003602, "CANN"),
        (1003611, "HCCL"),
        (1003612, "Overlap Analysis"),
    ]
    about = [
        {"name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}, "ph": "M"}
        for pid, name in names
    ]
    about += [
        {"name": "thread_name", "pid": 3, "tid": 2, "args": {"name": "Stream 2"}, "ph": "M"},
        {"name": "thread_name", "pid": 1003611, "tid": 1, "args": {"name": "Plane 1"}, "ph": "M"},
        {
            "name": "thread_name",
            "pid": 3,
            "tid": 10036,
            "args": {"name": "Step Trace(Model ID:2)"},
            "ph": "M",
        },
    ]
    task = {
        "Task Type": "AI_CORE",
        "Stream Id": 2,
        "Batch Id": 0,
        "Aicore Time(ms)": 18.79,
        "Total Cycle": 601434,
    }
    piece = {
        "notify_id": 160,
        "duration estimated(us)": 1,
        "stream id": 13,
        "task id": 7,
        "task type": "Memcpy",
        "src rank": 0,
        "dst rank": 1,
        "transport type": "SDMA",
        "size(Byte)": 4096,
        "data type": "FP16",
        "link type": "HCCS",
        "bandwidth(GB/s)": 1.5,
    }
    step = {"Iteration ID": 1, "FP Start": 5000.0, "BP End": 9000.0, "Iteration End": 9900.0}
    events = []
    for i in range(16):
        name = f"Default/network/layer-Dense/MatMul-op{i}"
        args = {**task, "Task Id": i}
        events.append(
            {
                "name": name,
                "pid": 3,
                "tid": 2,
                "ts": 5000.0 + 30 * i,
                "dur": 20.45,
                "args": args,
                "ph": "X",
            }
        )
        at = {"pid": 1003611, "tid": 1, "ts": 5010.0 + 30 * i, "dur": 0.5, "ph": "X"}
        events.append({"name": "Memcpy", **at, "args": piece})
        events.append(
            {
                "name": "Computing",
                "pid": 1003612,
                "tid": 0,
                "ts": 5000.0 + 30 * i,
                "dur": 20.4,
                "ph": "X",
            }
        )
    steps = {"pid": 3, "tid": 10036, "ts": 5000.0, "dur": 4900.0, "args": step, "ph": "X"}
    events.append({"name": "Iteration 1", "cat": "Iteration Time", **steps})
    (folder / "msprof_0_2_1.json").write_text(json.dumps([*about, *events]))
    (folder / "step_trace_0_2_1.json").write_text(json.dumps([*about[-1:], events[-1]]))


def gpustat(second):
    """What ``gpustat --json`` prints of one second; values made up."""
    gpu = {
        "index": 0,
        "uuid": "GPU-a",
        "name": "NVIDIA H200",
        "temperature.gpu": 36,
        "fan.speed": None,
        "utilization.gpu": 45,
        "power.draw": 120,
        "enforced.power.limit": 700,
        "memory.used": 1024,
        "memory.total": 143771,
        "processes": [],
    }
    when = f"2026-11-21T12:00:{second:02}.500000"
    return {"hostname": "host", "driver_version": "580.1", "query_time": when, "gpus": [gpu]}


def others(folder):
    """Samples of perf, a snapshot of PyTorch's allocator, and a database of rocprofv3."""
    for name in ("perf", "snapshot", "rocpd"):
        (folder / name).mkdir()
    frames = "\t    7f00 gemm (/libm)\n\t    7f01 forward (/app)\n\t    7f02 main (/app)\n"
    samples = (
        f"python3 12/3{n} [00{n}] 100.00{n}: 1000000 cpu-clock:\n{frames}\n" for n in range(9)
    )
    (folder / "perf/perf.txt").write_text("".join(samples))
    frame = [
        {"filename": "/site-packages/torch/nn/modules/linear.py", "line": 134, "name": "forward"}
    ]
    events = [
        {
            "action": action,
            "addr": 512 * n,
            "size": 512,
            "stream": 0,
            "time_us": 10 * n,
            "frames": frame,
        }
        for n in range(1, 6)
        for action in ("alloc", "free_requested")
    ]
    block = {
        "size": 512,
        "requested_size": 500,
        "address": 512,
        "state": "active_allocated",
        "frames": frame,
    }
    segment = {"device": 0, "address": 512, "total_size": 4096, "stream": 0, "blocks": [block]}
    (folder / "snapshot/snapshot.json").write_text(
        json.dumps({"segments": [segment], "device_traces": [events]})
    )
    rocpd(folder / "rocpd/results.db")


def monitors(folder):
    """What monitors printed."""
    for path in sorted(p for p in MONITORS.iterdir() if p.suffix in {".txt", ".csv"}):
        of = folder / f"monitor {path.stem.split('_')[0].split('.')[0]}"
        of.mkdir(exist_ok=True)
        shutil.copyfile(path, of / path.name)
    of = folder / "monitor gpustat"
    of.mkdir()
    (of / "gpustat.json").write_text(
        "\n".join(json.dumps(gpustat(second), indent=4) for second in range(1, 5))
    )
