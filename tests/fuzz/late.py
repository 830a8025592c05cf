"""Readers of sums and printed tables: their seeds, made by hand, and what a file of them still
holds.
"""

import json
import re
from itertools import takewhile

from tests.fuzz.counts import rows_of
from tests.readers import ncu_reports
from tests.readers.databases import changed

_BANNER = "==12== NVPROF is profiling process 12\n"
_PRINTED = {
    "nvprof/totals.csv": (
        "totals",
        _BANNER + '"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"\n,%,ms,,us,us,ms,',
        r'"(?:GPU activities|API calls)",\d{1,3}\.\d,\d{1,4}\.\d,\d{1,3},\d{1,4},\d{1,4},\d{1,3},"\w+"',
    ),
    "nvprof/kernels+copies.csv": (
        "kernels+copies",
        _BANNER
        + '"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z","Registers Per Thread",'
        '"Static SMem","Dynamic SMem","Size","Throughput","SrcMemType","DstMemType","Device","Context","Stream","Name",'
        '"Correlation_ID"\nms,us,,,,,,,,KB,B,MB,GB/s,,,,,,,',
        r"\d{1,4}\.\d,\d{1,4}\.\d,(?:\d{1,3},){7}\d\.0,\d{1,4},,,,,"
        r'"Tesla V100 \(\d\)","\d","\d{1,2}","\w+ \[\d{1,3}\]",\d{1,3}',
    ),
    "nvprof/runtime.csv": (
        "runtime",
        _BANNER + '"Start","Duration","Name","Correlation_ID"\nus,us,,',
        r'\d{1,4}\.\d,\d{1,3}\.\d,"cuda\w+",\d{1,3}',
    ),
    "vtune/samples.csv": (
        "samples",
        "Function,CPU Time,Module",
        r"[a-z]\w*,(?!0*\.0*,)\d{1,3}\.\d{1,2},[\w.]+",
    ),
    "vtune/stacks.csv": (
        "samples",
        "Function Stack,CPU Time:Total,CPU Time:Self,Module",
        r" *[a-z]\w*,\d{1,3}\.\d{1,2}s,(?!0*\.0*s)\d{1,3}\.\d{1,2}s,[\w.]+",
    ),
    "rocprofv3/12_kernel_trace.csv": (
        "kernels",
        '"Kind","Agent_Id","Queue_Id","Thread_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp"',
        r'"KERNEL_DISPATCH",\d,\d,\d{1,3},"\w+",\d{1,3},(?P<start>\d{1,9}),(?P<end>\d{1,9})',
    ),
    "rocprofv3/12_copy_trace.csv": (
        "copies",
        '"Kind","Direction","Source_Agent_Id","Destination_Agent_Id","Correlation_Id","Start_Timestamp","End_Timestamp"',
        r'"MEMORY_COPY","MEMORY_COPY_\w+",\d,\d,\d{1,3},(?P<start>\d{1,9}),(?P<end>\d{1,9})',
    ),
}
"""Printed tables by file: what they hold, the heading, and how a whole row looks."""


def rows(n):
    """Row ``n`` of each file."""
    return {
        "nvprof/totals.csv": f'"GPU activities",{n}.5,{n}.5,{n},{n * 10},{n},{n},"kernel_{n}"',
        "nvprof/kernels+copies.csv": (
            f'{n}.0,{n}.5,{n},2,1,128,1,1,32,1.0,512,,,,,"Tesla V100 (0)","1","7","gemm_{n} [{n}]",{n}'
        ),
        "nvprof/runtime.csv": f'{n}.0,2.5,"cudaLaunchKernel",{n}',
        "vtune/samples.csv": f"function_{n},{n}.25,libtorch.so",
        "vtune/stacks.csv": f"{' ' * n}frame_{n},{20 - n}.0s,1.0s,libtorch.so",
        "rocprofv3/12_kernel_trace.csv": f'"KERNEL_DISPATCH",1,1,69,"gemm_{n}",{n},{1000 * n},{1000 * n + 400}',
        "rocprofv3/12_copy_trace.csv": (
            f'"MEMORY_COPY","MEMORY_COPY_HOST_TO_DEVICE",0,1,{n},{1000 * n},{1000 * n + 400}'
        ),
    }


def make(folder):
    """Seeds of all of them, a folder a reader."""
    for name in ("nvprof", "nvvp", "vtune", "tensorrt", "proton", "rocprofv3", "ops"):
        (folder / name).mkdir()
    for name, (_, heading, _) in _PRINTED.items():
        lines = [
            heading,
            *(["Total,20.0s,0s,"] if "stacks" in name else ()),
            *(rows(n)[name] for n in range(1, 19)),
        ]
        (folder / name).write_text("\n".join(lines) + "\n")
    layers = [
        {"name": f"layer {n}", "timeMs": n + 0.5, "averageMs": 0.5, "medianMs": 0.4}
        for n in range(12)
    ]
    (folder / "tensorrt/net.profile.json").write_text(json.dumps([{"count": 8}, *layers]))
    times = [
        {
            "startEnqMs": n,
            "endEnqMs": n + 0.1,
            "startH2dMs": n + 0.1,
            "h2dMs": 0.1,
            "startComputeMs": n + 0.2,
            "computeMs": 0.5,
            "startD2hMs": n + 0.8,
            "d2hMs": 0.1,
        }
        for n in range(12)
    ]
    (folder / "tensorrt/net.timing.json").write_text(json.dumps(times))
    leaves = [
        {
            "frame": {"name": f"gemm_{n}", "type": "function"},
            "children": [],
            "metrics": {
                "time (ns)": 100 + n,
                "count": 2,
                "device_id": "0",
                "flops16": 1e9,
                "bytes": 1e6,
            },
        }
        for n in range(8)
    ]
    step = {"frame": {"name": "step", "type": "function"}, "metrics": {}, "children": leaves}
    whole = {
        "frame": {"name": "ROOT", "type": "function"},
        "metrics": {"count": 0, "time (ns)": 0},
        "children": [step],
    }
    (folder / "proton/run.hatchet").write_text(
        json.dumps([whole, {"CUDA": {"0": {"arch": "90", "num_sms": 132}}}])
    )
    session(folder / "nvvp/session.nvvp")
    from tests.readers.test_ops import document

    (folder / "ops/ops_rank0.json").write_text(json.dumps(document()))


_SESSION = {
    "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL": "start, end, deviceId, streamId, correlationId, name, gridX, blockX",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start, end, deviceId, streamId, correlationId, bytes, copyKind, srcKind, dstKind",
    "CUPTI_ACTIVITY_KIND_DRIVER": "start, end, cbid, processId, threadId, correlationId",
}


def session(path):
    """A session of nvprof: rows of whole numbers in each table, and their names."""
    changed(
        path,
        "CREATE TABLE StringTable (_id_ INTEGER, value TEXT)",
        "INSERT INTO StringTable VALUES (1, 'gemm')",
    )
    for table, columns in _SESSION.items():
        changed(path, f"CREATE TABLE {table} ({columns})")
        for n in range(1, 16):
            values = [1000 * n, 1000 * n + 500, *[1] * (columns.count(",") - 1)]
            changed(path, f"INSERT INTO {table} VALUES ({', '.join(map(str, values))})")


def of_session(path):
    """Kernels, copies and calls with times that can be ones."""
    timed = "typeof(start) = 'integer' AND typeof(end) = 'integer' AND start > 0 AND end BETWEEN start AND (1 << 60)"
    tables = dict(zip(("kernels", "copies", "runtime"), _SESSION, strict=True))
    return rows_of(
        path,
        {name: f'SELECT count(*) FROM "{table}" WHERE {timed}' for name, table in tables.items()},
    )


def ncu_report(folder):
    """A report of Nsight Compute: a program and six kernels, in blocks that end at no multiple
    of a sector.
    """
    folder.mkdir()
    names = [f"sm__metric_{n}.sum" for n in range(60)]
    results = [
        ncu_reports.result(
            f"kernel_{n}",
            {i: f"text {i}" if i % 9 == 8 else i + n / 8 for i in range(60)},
            ["A rule"],
        )
        for n in range(6)
    ]
    program = b"".join(ncu_reports.field(n, 0) for n in (1, 5, 6, 7)) + ncu_reports.field(
        4, bytes(range(256)) * 16
    )
    blocks = [ncu_reports.block([program], kind=1)]
    blocks += [ncu_reports.block([one], names if n == 0 else ()) for n, one in enumerate(results)]
    data = ncu_reports.report(*blocks)
    assert all(len(ncu_reports.report(*blocks[:n])) % 512 for n in range(1, 7))
    (folder / "report.ncu-rep").write_bytes(data)


def _lines(path):
    """Lines of a text without a doubtful character."""
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        return []
    return [] if re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]", text) else text.split("\n")


def of_printed(path):
    """Rows of a printed table that are whole, as long as no line before them leaves a quote
    open.
    """
    text = "\n".join(_lines(path))
    for table, heading, row in _PRINTED.values():
        if text.startswith(f"{heading}\n"):
            lines = takewhile(
                lambda line: line.count('"') % 2 == 0, text.removeprefix(heading).split("\n")
            )
            spans = [match.groupdict("0") for line in lines if (match := re.fullmatch(row, line))]
            return {
                table: sum(int(span.get("end", 0)) >= int(span.get("start", 0)) for span in spans)
            }
    return {}


def of_tensorrt(path):
    """Layers with a time, or iterations with the begin and length of their computing."""
    entries = _json(path)
    if not isinstance(entries, list):
        return {}
    rows = [one for one in entries if isinstance(one, dict)]
    if path.name.endswith("profile.json"):
        return {
            "totals": sum(
                isinstance(one.get("name"), str) and _milliseconds(one.get("timeMs"))
                for one in rows
            )
        }
    return {
        "markers": sum(
            _milliseconds(one.get("startComputeMs")) and _milliseconds(one.get("computeMs"))
            for one in rows
        )
    }


def _milliseconds(value):
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9


def _json(path):
    try:
        return json.loads(path.read_bytes(), parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None


def of_proton(path):
    """Nodes below a root whose time is a number of ns."""
    trees = _json(path)
    if not isinstance(trees, list):
        return {}
    roots = [one for one in trees if isinstance(one, dict) and isinstance(one.get("frame"), dict)]
    return {"totals": sum(_timed(node) for root in roots for node in _below(root))}


def _below(node):
    children = node.get("children")
    for child in children if isinstance(children, list) else ():
        if isinstance(child, dict):
            yield child
            yield from _below(child)


def _timed(node):
    metrics = node.get("metrics")
    value = metrics.get("time (ns)") if isinstance(metrics, dict) else None
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**60


def of_ops(path):
    """Steps of the timer whose columns are whole."""
    document = _json(path)
    steps = document.get("steps") if isinstance(document, dict) else None
    if not isinstance(steps, dict) or not all(
        isinstance(column, list) for column in steps.values()
    ):
        return {}
    return {"markers": min((len(column) for column in steps.values()), default=0)}
