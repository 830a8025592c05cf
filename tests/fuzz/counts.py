"""How much a file still holds, counted without llmprof's readers: what is read of it must not be
less, without a word.

A count is of what is undamaged beyond doubt: an event that is whole, a row with all its cells, a
table that the database gives. Files that cannot be counted give nothing.
"""

import csv
import gzip
import json
import re
import sqlite3
import zlib
from collections import Counter
from contextlib import closing, suppress

import polars as pl

Held = dict[str, int]

DEVICE = "kernels+copies+tasks+collectives"
_EVENT = re.compile(r'\{(?:[^{}"]|"[^"\\]*")*(?:\{(?:[^{}"]|"[^"\\]*")*\}(?:[^{}"]|"[^"\\]*")*)?\}')


def of_chrome(path):
    """Kernels and operators of a Chrome trace, compressed or not; of a damaged one those in
    whole pieces of text.
    """
    return {
        table: sum(event.get("cat") == category for event in whole_events(path))
        for table, category in (("kernels", "kernel"), ("ops", "cpu_op"))
    }


def whole_events(path):
    """Slices with a name, a category, arguments and a time that can be one."""
    data = path.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error):
            return []
    try:
        document = json.loads(data, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        events = list(_pieces(data))
    else:
        events = document.get("traceEvents") if isinstance(document, dict) else document
    return [e for e in events if _is_whole(e)] if isinstance(events, list) else []


def _is_whole(event):
    return (
        isinstance(event, dict)
        and event.get("ph") == "X"
        and isinstance(event.get("name"), str)
        and isinstance(event.get("args"), dict)
        and type(event.get("ts")) in (int, float)
        and abs(event["ts"]) < 2**50
    )


def _pieces(data):
    """Objects of a text that is no JSON as a whole; only where no quote is left open can one be
    sure of them.
    """
    with suppress(UnicodeDecodeError):
        text = data.decode("utf-8")
        if '"traceEvents"' in text or text.lstrip()[:1] == "[":
            for found in _EVENT.finditer(text[text.find("[") :]):
                with suppress(ValueError):
                    yield json.loads(found[0], parse_constant=lambda _: None)


def of_export(path):
    """Rows of an SQLite export of nsys."""
    tables = {
        "kernels": "CUPTI_ACTIVITY_KIND_KERNEL",
        "copies": "CUPTI_ACTIVITY_KIND_MEMCPY",
        "runtime": "CUPTI_ACTIVITY_KIND_RUNTIME",
    }
    return rows_of(
        path, {name: f'SELECT count(*) FROM "{table}"' for name, table in tables.items()}
    )


def rows_of(path, queries):
    held = {}
    try:
        with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as connection:
            connection.text_factory = bytes
            stored = {
                name.decode("utf-8", "replace").lower()
                for (name,) in connection.execute(
                    "SELECT name FROM sqlite_master WHERE type = 'table'"
                )
                if isinstance(name, bytes)
            }
            for name, query in queries.items():
                table = query.split('"')[1]
                with suppress(sqlite3.Error, UnicodeDecodeError):  # of the message of an error
                    if table.lower() in stored:
                        held[name] = connection.execute(query).fetchone()[0]
    except (sqlite3.Error, UnicodeDecodeError):
        return {}
    return held


def of_parquet_folder(path):
    """Rows of the Parquet tables of nsys."""
    tables = {"kernels": "CUPTI_ACTIVITY_KIND_KERNEL", "copies": "CUPTI_ACTIVITY_KIND_MEMCPY"}
    return {
        name: count
        for name, table in tables.items()
        if (count := _height(path / f"{table}.parquet"))
    }


def of_saved(path):
    """Rows of the tables of a saved trace."""
    return {one.stem: count for one in path.glob("*.parquet") if (count := _height(one))}


def _height(path):
    try:
        return int(pl.read_parquet(path).height) if path.is_file() else 0
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
        return 0


def of_run(path):
    """Kernels and operators of the traces of a run."""
    files = (
        [p for p in (path / "traces").glob("*.json*") if p.is_file()]
        if (path / "traces").is_dir()
        else []
    )
    return of_chrome(files[0]) if len(files) == 1 else {}


_SHORT = 16
"""Cells of a row of the details page that has no rule."""


def of_ncu(path):
    """Values of both pages of Nsight Compute, in rows that stand in one line with all their
    cells.
    """
    try:
        lines = path.read_text("utf-8").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError:
        return {}
    header = []
    seen = set()
    for line in lines:
        if not re.fullmatch(r'"[^"]*"(?:,"[^"]*")*,?', line):
            continue
        cells = next(csv.reader([line]))
        if line.startswith('"ID","Process ID","Process Name"'):
            header = cells
        elif (
            len(cells) in (len(header), _SHORT)
            and cells[0].isdigit()
            and cells[1].isdigit()
            and int(cells[0]) < 2**31
        ):
            row = dict(zip(header, cells, strict=False))
            if "Metric Name" in header:
                if _is_number(row.get("Metric Value", "")) and row["Metric Name"]:
                    seen.add((*cells[:2], row.get("Section Name", ""), row["Metric Name"]))
            else:
                seen |= {
                    (*cells[:2], "", name)
                    for name, cell in row.items()
                    if "__" in name and _is_number(cell)
                }
    return {"metrics": len(seen)}


def _is_number(cell):
    return (
        re.fullmatch(r"-?\d{1,3}(?:,\d{3})*(?:\.\d+)?|-?\d{1,15}(?:\.\d{1,9})?", cell) is not None
    )


def of_ascend(path):
    """Device work of what torch_npu or msprof wrote: the rows of its CSV, its timeline or its
    database, a rank each.
    """
    if path.is_file():
        return _of_ascend_file(path)
    total = Counter()
    ranks = (
        [path]
        if path.name.endswith("_ascend_pt")
        else sorted(p for p in path.iterdir() if p.is_dir())
    )
    for rank in ranks:
        inside = rank / "ASCEND_PROFILER_OUTPUT"
        ends = ("trace_view.json", "kernel_details.csv", ".db")
        files = sorted(inside.iterdir()) if inside.is_dir() else []
        found = [
            _of_ascend_file(file) for file in files if file.is_file() and file.name.endswith(ends)
        ]
        # one file may hold what another lacks, and what two of them hold is read once
        total[DEVICE] += max((held.get(DEVICE, 0) for held in found), default=0)
    return dict(total)


def _of_ascend_file(path):
    if path.suffix == ".db":
        timed = "typeof(startNs) = 'integer' AND typeof(endNs) = 'integer' AND startNs BETWEEN 1 AND (1 << 61)"
        return rows_of(path, {DEVICE: f'SELECT count(*) FROM "TASK" WHERE {timed}'})
    if path.suffix == ".csv":
        return (
            {DEVICE: sum(1 for _ in _kernel_rows(path))} if path.name.startswith("kernel") else {}
        )
    try:
        events = json.loads(path.read_bytes(), parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(events, list) or not path.name.startswith(("trace_view", "msprof")):
        return {}
    named = [
        e
        for e in events
        if isinstance(e, dict) and e.get("ph") == "M" and e.get("name") == "process_name"
    ]
    layers = [e.get("pid") for e in named if e.get("args") == {"name": "Ascend Hardware"}]
    if (
        len(layers) != 1
        or [e.get("pid") for e in named].count(layers[0]) != 1
        or not isinstance(layers[0], int)
    ):
        return {}
    return {
        DEVICE: sum(
            isinstance(e, dict)
            and e.get("ph") == "X"
            and "cat" not in e
            and e.get("pid") == layers[0]
            and type(e.get("tid")) is int
            and 0 <= e["tid"] < 2**31
            and isinstance(e.get("name"), str)
            and e["name"] != ""
            and isinstance(e.get("args"), dict)
            and _is_time(e.get("ts"))
            and _is_time(e.get("dur"))
            for e in events
        )
    }


def _is_time(value):
    try:
        return not isinstance(value, bool) and 0 <= float(value) < 2**51
    except (TypeError, ValueError, OverflowError):
        return False


def _kernel_rows(path):
    try:
        lines = path.read_text("utf-8").split("\n")
    except UnicodeDecodeError:
        return
    header = lines[0].split(",")
    if len(set(header)) < len(header) or not {
        "Name",
        "Start Time(us)",
        "Duration(us)",
        "Accelerator Core",
    } <= {*header}:
        return
    for line in lines[1:]:
        if line.count('"') % 2 or '"' in line.replace('"""', ""):
            return  # from here on quotes may hold anything
        row = next(csv.reader([line]), [])
        if len(row) == len(header):
            at = dict(zip(header, row, strict=True))
            times = (at["Start Time(us)"].strip(), at["Duration(us)"].strip())
            if at["Name"].strip() and all(
                re.fullmatch(r"\d{1,16}(?:\.\d{1,6})?", time) for time in times
            ):
                yield row


_SAMPLED = {
    "dmon": r"pwr|gtemp|mtemp|sm|mem|enc|dec|jpg|ofa|mclk|pclk|fb|bar1|ccpm|rxpci|txpci",
    "query": r"utilization\.gpu \[%\]|memory\.used \[MiB\]|power\.draw \[W\]|temperature\.gpu|"
    r"clocks\.current\.sm \[MHz\]|pcie\.link\.gen\.current",
}
_NUMBER = re.compile(r"-?\d{1,9}(?:\.\d{1,6})?(?: ?(?:%|MiB|W|MHz))?")


def of_monitor(path):
    """Numbers in the samples of a monitor: in lines with as many cells as the heading has, in
    columns that are known.

    The utilization that readers add up themselves is no sample of the file.
    """
    try:
        lines = path.read_text("utf-8").split("\n")
    except UnicodeDecodeError:
        return {}
    kind = next(
        (name for name in ("dmon", "query", "sadf", "dstat", "dool") if path.name.startswith(name)),
        "",
    )
    if kind in _SAMPLED:
        return {"counters": _of_columns(lines, kind)}
    if kind == "sadf":
        return {"counters": sum(_of_sadf(lines))}
    if path.name.startswith("sar"):
        return {"counters": sum(_of_sar(lines))}
    if kind and path.suffix == ".csv":
        return {"counters": _of_dstat(lines)}
    if kind:
        return {"counters": _of_dstat_screen(lines)}
    return {"counters": _of_gpustat("\n".join(lines))} if path.name.startswith("gpustat") else {}


def _of_columns(lines, kind):
    def split(line):
        return [c.strip() for c in (line.split(",") if "," in line else line.split())]

    header = split(lines[0].removeprefix("#"))
    known = [i for i, name in enumerate(header) if re.fullmatch(_SAMPLED[kind], name)]
    at = (
        header.index("gpu")
        if "gpu" in header
        else header.index("index")
        if "index" in header
        else None
    )
    if (
        at is None
        or len(set(header)) < len(header)
        or (kind == "dmon" and not lines[1].startswith("#"))
    ):
        return 0
    total = 0
    for line in lines[1:]:
        cells = split(line)
        if len(cells) != len(header) or '"' in line or not re.fullmatch(r"\d{1,2}", cells[at]):
            continue
        if "timestamp" in header and not re.fullmatch(
            r"20\d\d/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}", cells[0]
        ):
            continue
        if "Date" in header and not re.fullmatch(
            r"20\d{6} [012]\d:[0-5]\d:[0-5]\d", f"{cells[0]} {cells[1]}"
        ):
            continue
        number = _NUMBER if kind == "query" else re.compile(r"-?\d{1,9}(?:\.\d{1,6})?")
        total += sum(number.fullmatch(cells[i]) is not None for i in known)
    return total


def _of_sadf(lines):
    header = []
    for line in lines:
        cells = line.split(";")
        if line.startswith("# hostname;interval;timestamp;"):
            header = cells
        elif len(cells) == len(header) and re.fullmatch(
            r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC", cells[2]
        ):
            first = 4 if header[3] in ("CPU", "DEV", "IFACE") else 3
            if first == 4 and not re.fullmatch(
                r"-1|\d{1,2}" if header[3] == "CPU" else r"[a-z]{2,4}\d?", cells[3]
            ):
                continue
            yield sum(_NUMBER.fullmatch(cell) is not None for cell in cells[first:])


def _of_sar(lines):
    header = []
    time = r"[012]\d:[0-5]\d:[0-5]\d"
    for before, line in zip(["", *lines], lines, strict=False):
        cells = line.split()
        if not before.strip() and cells and re.fullmatch(time, cells[0]):
            header = cells if len(set(cells)) == len(cells) else []
        elif header and len(cells) == len(header) and re.fullmatch(time, cells[0]):
            first = 2 if header[1] in ("CPU", "DEV", "IFACE") else 1
            if first == 2 and not re.fullmatch(
                r"all|\d{1,2}" if header[1] == "CPU" else r"[a-z]{2,4}\d?", cells[1]
            ):
                continue
            yield sum(_NUMBER.fullmatch(cell) is not None for cell in cells[first:])
        elif not line.strip():
            header = []


_DSTAT = re.compile(
    r"(?:.* usage:)?(?:usr|sys|idl|wai|stl|read|writ|recv|send|used|free|buff|cach|avai)"
)


def _of_dstat(lines):
    """Rows after the heading but the first, which is the mean since boot."""
    start = next((i for i, line in enumerate(lines) if re.search(r'"usr"|usage:usr"', line)), None)
    if start is None or not re.match(r'"(?:total cpu usage|system)"', lines[start - 1]):
        return 0
    header = next(csv.reader([lines[start]]), [])
    known = [i for i, name in enumerate(header) if _DSTAT.fullmatch(name)]
    if len(set(header)) < len(header):
        return 0
    found = []
    for line in lines[start + 1 :]:
        cells = line.split(",")
        time = cells[0] if header[0] == "time" else cells[-1]
        if len(cells) == len(header) and re.fullmatch(
            r"[\w-]{5,6} \d\d:\d\d:\d\d|1795\d{6}\.\d{3}", time
        ):
            found.append(
                sum(re.fullmatch(r"\d{1,15}(?:\.\d{1,6})?", cells[i]) is not None for i in known)
            )
    return sum(found[1:])


def _of_dstat_screen(lines):
    """The same of what was printed: groups between bars, as many cells in each as under the
    headings.
    """
    plain = [re.sub(r"\x1b(?:\[[\d;]*[A-Za-z]|7|8)", "", line) for line in lines]
    start = next((i for i, line in enumerate(plain) if "usr sys idl wai stl" in line and i), None)
    if start is None or not re.match(r"[-\u2504]", plain[start - 1]):
        return 0
    header = [group.split() for group in re.split(r"[|:\u2502]", plain[start])]
    found = []
    for line in plain[start + 1 :]:
        groups = [group.split() for group in re.split(r"[|\u2502]|(?<=[\d ]):(?= )", line)]
        times = [
            group
            for group in groups
            if len(group) == 2 and re.fullmatch(r"\d\d:\d\d:\d\d", group[1])
        ]
        rest = [group for group in groups if group not in times]
        if len(times) == 1 and list(map(len, rest)) == [
            len(names) for names in header if names != ["time"]
        ]:
            cells = [cell for group in rest for cell in group]
            found.append(
                sum(
                    re.fullmatch(r"\d{1,4}(?:\.\d{1,2})?[kMGB]?", cell) is not None
                    for cell in cells
                )
            )
    return sum(found[1:])


def _of_gpustat(text):
    """Numbers of documents that follow one another."""
    total, decoder = 0, json.JSONDecoder()
    while text := text.lstrip():
        try:
            document, end = decoder.raw_decode(text)
        except (ValueError, RecursionError):
            return total
        text = text[end:]
        time = document.get("query_time") if isinstance(document, dict) else None
        if isinstance(time, str) and re.fullmatch(r"2026-11-21T12:00:\d\d\.\d{6}", time):
            gpus = document.get("gpus")
            for gpu in gpus if isinstance(gpus, list) else []:
                if (
                    isinstance(gpu, dict)
                    and type(gpu.get("index")) is int
                    and 0 <= gpu["index"] < 1000
                ):
                    names = ("temperature.gpu", "utilization.gpu", "power.draw", "memory.used")
                    total += sum(
                        type(gpu.get(name)) is int and abs(gpu[name]) < 2**40 for name in names
                    )
    return total


_SAMPLE = re.compile(
    rb"^python3 \d{1,6}/\d{1,6} \[\d{1,3}\] \d{1,9}\.\d{1,9}: {1,8}\d{1,9} cpu-clock:\n\t {4}7f0\d \w+ \(/\w+\)$",
    re.MULTILINE,
)


def of_perf(path):
    """Samples of perf whose own line and first frame are whole."""
    return {"samples": len(_SAMPLE.findall(path.read_bytes()))}


def of_snapshot(path):
    """Allocations in a snapshot of PyTorch's allocator."""
    try:
        document = json.loads(path.read_bytes(), parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return {}
    traces = document.get("device_traces") if isinstance(document, dict) else None
    if not isinstance(traces, list) or not isinstance(document.get("segments"), list):
        return {}
    events = [
        e for trace in traces if isinstance(trace, list) for e in trace if isinstance(e, dict)
    ]
    return {"memory": sum(str(e.get("action")) in {"alloc", "free_requested"} for e in events)}


def of_rocpd(path):
    """Kernels of a database of rocprofv3 whose times can be ones."""
    try:
        with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as file:
            table = "rocpd_kernel_dispatch_00ab"
            sql = (
                f"SELECT count(*) FROM \"{table}\" WHERE typeof(start) = 'integer' AND typeof(\"end\") = 'integer' "
                'AND start >= 0 AND "end" >= start AND "end" < 1000000000000000000'
            )
            return {"kernels": file.execute(sql).fetchone()[0]}
    except sqlite3.Error:
        return {}
