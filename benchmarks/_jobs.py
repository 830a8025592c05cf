"""The jobs that are measured: ``python _jobs.py JOB ARGUMENT...`` prints one line of JSON.

A job imports what it needs and then times its work, so imports count in the memory but not in the
time. This file runs in the environment of llmprof and in that of the peers and imports nothing of
either at the top.
"""

from __future__ import annotations

import copy
import gc
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STATUS = Path("/proc/self/status")
_REFS = Path("/proc/self/clear_refs")


def main() -> None:
    warnings.simplefilter("ignore")
    print(json.dumps(JOBS[sys.argv[1]](*sys.argv[2:])))


def peak_bytes() -> int:
    """Most resident memory of this process so far (Linux: not what its parent had when it
    forked).
    """
    if _STATUS.exists():
        return _status("VmHWM")
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def _status(key: str, pid: int | str = "self") -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key))


def timed(work: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """Wall-clock seconds and the CPU time of all threads, and the result."""
    begin, cpu = time.perf_counter(), time.process_time()
    result = work()
    return {
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": time.process_time() - cpu,
    }, result


def least(times: list[dict[str, float]]) -> dict[str, float]:
    return {key: min(t[key] for t in times) for key in times[0]}


def loads(work: Callable[[], Any], rows_of: Callable[[Any], int], more: int = 2) -> dict[str, Any]:
    """The first load gives the memory, it and two more the time."""
    first, result = timed(work)
    peak, rows = peak_bytes(), rows_of(result)
    del result
    times = [first, *(timed(work)[0] for _ in range(more))]
    return {"first_seconds": first["seconds"], **least(times), "peak_bytes": peak, "rows": rows}


def load_llmprof(path: str, workers: str = "") -> dict[str, Any]:
    """With helpers, the first load is that in which they start; their CPU time and memory count."""
    import llmprof
    from llmprof.readers.chrome import reader  # noqa: F401
    from llmprof.readers.common import helpers

    count = int(workers) if workers else None
    measured = loads(
        lambda: llmprof.read(path, cache=False, workers=count),
        lambda t: sum(f.height for f in t.tables.values()),
    )
    used = [helper.pid for helper in helpers.POOL]
    begun = sum(map(cpu_of, used))
    if used:
        llmprof.read(path, cache=False, workers=count)
    measured["cpu_seconds"] += sum(map(cpu_of, used)) - begun
    measured["peak_bytes"] += sum(_status("VmHWM", pid) for pid in used)
    return measured


def cpu_of(pid: int) -> float:
    """CPU time of a process so far (Linux)."""
    import os

    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")


def load_floor(path: str) -> dict[str, Any]:
    decode = typed_decoder()
    return loads(lambda: decode(path), len)


def floor(path: str) -> dict[str, Any]:
    """The least work before an answer: import Polars, and decode each file once."""
    import polars  # noqa: F401

    if reports := reports_of(path):
        return {"events": sum(map(_rows, reports))}
    decode = typed_decoder()
    return {"events": sum(len(decode(str(file))) for file in files_of(path))}


def unpacked(path: str) -> dict[str, Any]:
    """Each file gunzipped, and nothing else."""
    from isal import igzip

    sizes = []
    for file in files_of(path):
        with igzip.open(file) if file.suffix == ".gz" else file.open("rb") as blocks:
            sizes.append(sum(map(len, iter(lambda: blocks.read(1 << 20), b""))))
    return {"bytes": sum(sizes)}


def warm(path: str, part: str) -> dict[str, Any]:
    """CPU time of findings of a trace after those of another one of the same files; of those of a
    sixth of its time, by the same calls; of as many collections of one row; or of a sort of the
    recorded rows.
    """
    import polars as pl

    import llmprof
    from llmprof import analyze

    trace, again = (llmprof.read(path, cache=False) for _ in range(2))
    collected = []

    def count(_: object, event: str, called: Any) -> None:
        if event == "c_call" and called.__name__ == "collect":
            collected.append(1)

    if part == "collections":
        sys.setprofile(count)
    analyze.findings(trace)
    sys.setprofile(None)
    one, at = pl.DataFrame({"number": [0]}), ["rank", "start_ns"]
    rows = [frame[at] for frame in again.tables.values() if set(at) <= set(frame.columns)]
    begin, end = again.span_ns
    within = pl.col("start_ns").is_between(begin + (end - begin) / 3, begin + (end - begin) / 2)
    few = {
        name: frame.filter(within) if "start_ns" in frame.columns else frame
        for name, frame in again.tables.items()
    }
    sixth = llmprof.Trace(few, again.meta, again.coverage)
    work: dict[str, Callable[[], Any]] = {
        "findings": lambda: analyze.findings(again),
        "findings of a sixth": lambda: analyze.findings(sixth),
        "collections": lambda: [one.select("number") for _ in collected],
        "sort": lambda: pl.concat(rows).sort(at),
    }
    gc.collect()
    return timed(work[part])[0] | {"collections": len(collected), "peak_bytes": peak_bytes()}


def reports_of(path: str) -> list[Path]:
    """Exports of Nsight Systems."""
    whole = Path(path)
    return (
        sorted(whole.glob("*.sqlite")) if whole.is_dir() else [whole] * (whole.suffix == ".sqlite")
    )


def _rows(report: Path) -> int:
    """Rows of all tables of a database, each read once."""
    import sqlite3

    with sqlite3.connect(f"file:{report}?mode=ro", uri=True) as database:
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return sum(len(database.execute(f'SELECT * FROM "{name}"').fetchall()) for (name,) in names)


def files_of(path: str) -> list[Path]:
    whole = Path(path)
    found = [file for file in whole.glob("*.json*") if file.name != "sample.json"]
    return sorted(found) if whole.is_dir() else [whole]


def typed_decoder() -> Callable[[str], Any]:
    """Gunzip and typed decoding into objects, of the fields that llmprof reads and no others; no
    frames.
    """
    import msgspec

    text, number, raw = str | None, int | float | None, (msgspec.Raw, msgspec.Raw(b""))
    whole = int | str | None
    arguments = {
        "External id": whole,
        "external id": whole,
        "correlation": whole,
        "device": whole,
        "stream": whole,
        "graph node id": whole,
        "bytes": number,
        "registers per thread": number,
        "shared memory": number,
        "grid": tuple[int, int, int] | None,
        "block": tuple[int, int, int] | None,
        "est. achieved occupancy %": float | None,
        "Collective name": text,
        "In msg nelems": number,
        "Out msg nelems": number,
        "Group size": number,
        "dtype": text,
        "Process Group Name": text,
        "Process Group Ranks": text,
        "Src Rank": number,
        "Dst Rank": number,
        "Input Dims": raw,
        "Input type": raw,
        "Device Type": number,
        "Device Id": whole,
        "Addr": whole,
        "Bytes": number,
        "Total Allocated": number,
        "Total Reserved": number,
    }
    event = {
        "ph": text,
        "cat": text,
        "name": text,
        "pid": whole,
        "tid": whole,
        "ts": number,
        "dur": number,
    }

    def struct(kind: str, fields: dict[str, Any]) -> Any:
        keys = dict(zip([f"f{i}" for i in range(len(fields))], fields, strict=True))
        typed = [
            (f, *(t if isinstance(t, tuple) else (t, None)))
            for f, t in zip(keys, fields.values(), strict=True)
        ]
        return msgspec.defstruct(kind, typed, rename=keys, gc=False)

    event["args"] = struct("Arguments", arguments) | None
    document = msgspec.defstruct(
        "Document", [("traceEvents", list[struct("Event", event)])], gc=False
    )
    decoder = msgspec.json.Decoder(document)

    def decode(path: str) -> Any:
        gc.disable()
        try:
            return decoder.decode(unzipped(path)).traceEvents
        finally:
            gc.enable()

    return decode


def load_json(path: str) -> dict[str, Any]:
    return loads(lambda: json.loads(unzipped(path))["traceEvents"], len)


def unzipped(path: str) -> bytes:
    content = Path(path).read_bytes()
    if content[:2] != b"\x1f\x8b":
        return content
    from isal import igzip

    return igzip.decompress(content)


def load_hta(path: str, more: str = "2") -> dict[str, Any]:
    """As its users load a trace: the frame with iterations and correlations that HTA's analyses
    need.
    """
    import logging

    logging.disable(logging.CRITICAL)
    from hta.trace_analysis import TraceAnalysis

    files = dict(enumerate(map(str, files_of(path))))

    def work() -> Any:
        return TraceAnalysis(trace_files=files, trace_dir=str(Path(files[0]).parent))

    return loads(
        work, lambda analysis: sum(len(analysis.t.get_trace(rank)) for rank in files), int(more)
    )


def path_llmprof(path: str) -> dict[str, Any]:
    """Critical path of a trace: the device events and calls that it touches, by correlation."""
    import llmprof
    from llmprof.replay.critical_path import last_waits, nodes_on_path, step_ends
    from llmprof.replay.graph import graph

    def work() -> Any:
        trace = llmprof.read(path, cache=False)
        return trace, llmprof.analyze.critical_path(trace)

    times, (trace, _) = timed(work)
    built = graph(trace)
    nodes = nodes_on_path(built, last_waits(built), step_ends(built))
    touched = built.events[sorted({int(node) // 2 for node in nodes})].select(
        "where", "recorded_ns", "name", "stream"
    )
    found = {}
    for where, tables in (("device", ("kernels", "copies")), ("host", ("runtime",))):
        own = touched.filter(touched["where"] == where)
        keys = {(start, name) for _, start, name, _ in own.rows()}
        rows = [
            row
            for table in tables
            if trace.has(table)
            for row in trace.table(table).select("start_ns", "name", "correlation").rows()
        ]
        found[where] = sorted(
            c for start, name, c in rows if (start, name) in keys and c is not None
        )
    times = least([times, *(timed(work)[0] for _ in range(2))])
    return {**times, "peak_bytes": peak_bytes(), "path": found}


def path_hta(path: str) -> dict[str, Any]:
    """The same by HTA, over the whole trace."""
    import logging

    logging.disable(logging.CRITICAL)
    from hta.trace_analysis import TraceAnalysis

    def work() -> Any:
        analysis = TraceAnalysis(trace_files={0: path}, trace_dir=str(Path(path).parent))
        made, good = analysis.critical_path_analysis(rank=0, annotation="", instance_id=None)
        if not good:
            raise RuntimeError("HTA found no critical path")
        return analysis, made

    times, (analysis, made) = timed(work)
    rows = analysis.t.get_trace(0).loc[sorted(made.critical_path_events_set)]
    of_device = rows["stream"] >= 0
    calls = rows["correlation"].ge(0)
    found = {
        "device": sorted(map(int, rows[of_device & calls]["correlation"])),
        "host": sorted(map(int, rows[~of_device & calls]["correlation"])),
    }
    times = least([times, *(timed(work)[0] for _ in range(2))])
    return {**times, "peak_bytes": peak_bytes(), "path": found}


def big(path: str, workers: str) -> dict[str, Any]:
    """CPU time and memory are those of all processes, the start of the helpers included."""
    import llmprof
    from llmprof.readers.chrome import reader  # noqa: F401
    from llmprof.readers.common import helpers

    times, trace = timed(lambda: llmprof.read(path, cache=False, workers=int(workers)))
    used = [helper.pid for helper in helpers.POOL]
    times["cpu_seconds"] += sum(map(cpu_of, used))
    frames = sum(frame.estimated_size() for frame in trace.tables.values())
    rows = sum(frame.height for frame in trace.tables.values())
    peak = peak_bytes() + sum(_status("VmHWM", pid) for pid in used)
    return {
        **times,
        "peak_bytes": peak,
        "frame_bytes": frames,
        "rows": rows,
        "processes": 1 + len(used),
    }


def shown(folder: str, part: str) -> dict[str, Any]:
    """Timeline of a dataset with all that its first picture needs, or only the columns of its
    device's tables, read.
    """
    import polars as pl

    import llmprof
    from llmprof import explore
    from llmprof.explore.timeline import explorer  # noqa: F401

    def picture() -> list[int]:
        timeline = explore.timeline(llmprof.open(folder))
        rows, _ = timeline._on_rows()
        timeline._on_overview(width=1400.0, color_by="category")
        timeline.picture()
        return [row["count"] for row in rows["rows"]]

    def columns() -> list[int]:
        wanted = ["rank", "device", "stream", "start_ns", "dur_ns", "name"]
        tables = [f"{folder}/*/{name}.parquet" for name in ("kernels", "copies")]
        return [pl.scan_parquet(table).select(wanted).collect().height for table in tables]

    return once(picture if part == "timeline" else columns, sum)


def once(work: Callable[[], Any], rows_of: Callable[[Any], int]) -> dict[str, Any]:
    times, result = timed(work)
    return {**times, "peak_bytes": peak_bytes(), "rows": rows_of(result)}


def nsys_read(path: str) -> dict[str, Any]:
    import llmprof
    from llmprof.readers.nsys import reader  # noqa: F401

    return once(
        lambda: llmprof.read(path, cache=False), lambda t: sum(f.height for f in t.tables.values())
    )


def nsys_summary(path: str) -> dict[str, Any]:
    import llmprof
    from llmprof import analyze
    from llmprof.readers.nsys import reader  # noqa: F401

    kernels = {"kernels": ("name", "dur_ns")}
    return once(
        lambda: analyze.nsys.cuda_gpu_kern_sum(llmprof.read(path, tables=kernels, cache=False)), len
    )


def nsys_pandas(path: str) -> dict[str, Any]:
    """The columns that llmprof keeps of kernels, copies and calls, with their names, as pandas
    reads SQLite.
    """
    import sqlite3

    import pandas

    times = "t.start, t.end"
    device = f"{times}, t.deviceId, t.streamId, t.correlationId, t.globalPid, t.graphNodeId"
    shape = "t.gridX, t.gridY, t.gridZ, t.blockX, t.blockY, t.blockZ, t.registersPerThread, "
    shape += "t.staticSharedMemory, t.dynamicSharedMemory"
    named = "JOIN StringIds s ON s.id = t."
    queries = (
        f"SELECT {device}, {shape}, s.value FROM CUPTI_ACTIVITY_KIND_KERNEL t {named}demangledName",
        f"SELECT {device}, t.bytes, t.copyKind, t.srcKind, t.dstKind FROM CUPTI_ACTIVITY_KIND_MEMCPY t",
        f"SELECT {times}, t.globalTid, t.correlationId, s.value FROM CUPTI_ACTIVITY_KIND_RUNTIME t {named}nameId",
        f"SELECT {times}, t.eventType, t.text, t.textId, t.globalTid, t.domainId FROM NVTX_EVENTS t",
    )

    def work() -> Any:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
            return [pandas.read_sql(query, connection) for query in queries]

    return once(work, lambda frames: sum(map(len, frames)))


def nsys_stats(path: str, nsys: str) -> dict[str, Any]:
    import resource
    import subprocess

    command = [
        nsys,
        "stats",
        "--quiet",
        "--force-export=false",
        "--report",
        "cuda_gpu_kern_sum",
        "--format",
        "csv",
        path,
    ]
    times, done = timed(lambda: subprocess.run(command, capture_output=True, text=True, check=True))
    if not done.stdout.strip():
        raise RuntimeError(done.stderr.strip() or "nsys stats printed nothing")
    rows = [line for line in done.stdout.splitlines() if line[:1].isdigit()]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = used.ru_maxrss if sys.platform == "darwin" else used.ru_maxrss << 10
    return {
        **times,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_bytes": peak,
        "rows": len(rows),
    }


def importing(module: str) -> dict[str, Any]:
    times, _ = timed(lambda: __import__(module))
    return {**times, "peak_bytes": peak_bytes()}


def scale(source: str, kernels: str, analysis: str, repeats: str) -> dict[str, Any]:
    """One analysis from conformed frames alone, on a trace repeated up to a number of kernels.

    Before each run, a plain sort of the same device events is timed. The peak counts from before
    the first run (Linux).
    """
    import polars as pl
    from _repeat import repeated_trace

    from llmprof import analyze

    trace = repeated_trace(source, int(kernels))
    columns = ["rank", "device", "stream", "start_ns", "dur_ns", "name", "correlation", "op_id"]
    events = pl.concat([trace.kernels.select(columns), trace.copies.select(columns)])
    measure = getattr(analyze, analysis)
    sorts, times, rows = [], [], 0
    gc.collect()
    before = _status("VmRSS") if _STATUS.exists() else 0
    for turn in range(int(repeats)):
        sorts.append(timed(lambda: events.sort("rank", "start_ns"))[0])
        if turn == 0 and _REFS.exists():
            _REFS.write_text("5")
        fresh = copy.copy(trace)  # the same frames, without the results that a trace keeps
        seconds, result = timed(lambda fresh=fresh: measure(fresh))
        times.append(seconds)
        rows = result.height
        del result, fresh
    return {
        **least(times),
        "sort_seconds": min(s["seconds"] for s in sorts),
        "sort_cpu_seconds": min(s["cpu_seconds"] for s in sorts),
        "peak_bytes": peak_bytes(),
        "before_bytes": before,
        "kernels": trace.kernels.height,
        "rows": rows,
    }


def read_cpu(path: str) -> dict[str, Any]:
    """CPU time of reading a recording: the least of three times, after one that compiles
    patterns.
    """
    import llmprof

    llmprof.read(path, cache=False)
    return {
        "cpu_seconds": min(
            timed(lambda: llmprof.read(path, cache=False))[0]["cpu_seconds"] for _ in range(3)
        )
    }


def analysis_cpu(path: str, kernels: str, analysis: str) -> dict[str, Any]:
    """CPU time of an analysis from conformed frames alone, of a recording as it is or repeated
    (``kernels`` > 0).

    ``FIRST>ANALYSIS``: after another one, whose results the trace keeps.
    """
    from _repeat import repeated_trace

    import llmprof
    from llmprof import analyze
    from llmprof.trace import Trace

    trace = repeated_trace(path, int(kernels)) if int(kernels) else llmprof.read(path, cache=False)
    tables = getattr(trace, "recorded", None) or trace.tables
    first, _, analysis = analysis.rpartition(">")
    options = {"by": ("rank", "step")} if analysis == "overlap" else {}
    times = []
    for _ in range(4 if int(kernels) else 9):  # the first run of a process compiles patterns
        fresh = Trace(tables, trace.meta, trace.coverage)
        if first:
            getattr(analyze, first)(fresh)
        gc.collect()
        times.append(timed(lambda fresh=fresh: getattr(analyze, analysis)(fresh, **options))[0])
    return {"cpu_seconds": least(times)["cpu_seconds"], "kernels": tables["kernels"].height}


def file_read(path: str) -> dict[str, Any]:
    """A file of any kind, three times; its events and the bytes of its content."""
    import llmprof
    from llmprof.readers.chrome import reader  # noqa: F401

    measured = loads(
        lambda: llmprof.read(path, cache=False), lambda trace: trace.coverage.get("events", 0)
    )
    sizes = [file.get("bytes", 0) for file in llmprof.read(path, cache=False).coverage["files"]]
    return {**measured, "bytes": max(sizes, default=0)}


def file_rows(path: str) -> dict[str, Any]:
    """Every row of the tables of an SQLite export that hold events and texts."""
    import sqlite3

    wanted = ("CUPTI_ACTIVITY_KIND_", "NVTX_EVENTS", "OSRT_API", "PROFILER_OVERHEAD", "StringIds")

    def fetch() -> list[Any]:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
            connection.text_factory = bytes
            names = [
                row[0].decode()
                for row in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
            ]
            chosen = [name for name in names if name.startswith(wanted)]
            return [connection.execute(f'SELECT * FROM "{name}"').fetchall() for name in chosen]

    return loads(fetch, lambda found: sum(map(len, found)))


JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    f.__name__: f
    for f in (
        load_llmprof,
        load_floor,
        floor,
        unpacked,
        warm,
        load_json,
        load_hta,
        path_llmprof,
        path_hta,
        read_cpu,
        analysis_cpu,
        file_read,
        file_rows,
        big,
        shown,
        importing,
        scale,
        nsys_read,
        nsys_summary,
        nsys_pandas,
        nsys_stats,
    )
}

if __name__ == "__main__":
    main()
