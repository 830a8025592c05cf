"""Reader of ``.hatchet`` files of Triton Proton: a tree of ranges and kernels with their total
times.

The file is a JSON list: one or more roots, then facts about the devices. A node with a time and
without children is a kernel (in an instrumented kernel with ``data="tree"`` it is an instruction);
every other node is a range.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeGuard

import polars as pl

from llmprof.errors import ReadError
from llmprof.readers.common.reader import Probe, Reader, Request, json_of, ns, trace_of
from llmprof.text import left_out
from llmprof.trace import Trace

_FRAME: Final = re.compile(rb'"frame"\s*:\s*\{')
_FLOPS: Final = re.compile(r"flops\d*")
_LAUNCH_DATA: Final = "__proton_launch_metadata"
"""Range of the kernels that compute the values of a launch hook; they are not part of the
program.
"""

_SUFFIXES: Final = re.compile(r"time \((ns|us|ms|s)\)")
_FACTOR: Final = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def _sniff(probe: Probe) -> bool:
    start = probe.start.lstrip()
    return (
        start[:1] == b"["
        and b'"metrics"' in start
        and b'"children"' in start
        and _FRAME.search(start) is not None
    )


def _read(path: Path, request: Request) -> Trace:
    document, damage = json_of(path, "the output of proton.finalize()")
    if not isinstance(document, list):
        raise ReadError(f"{path.name} is not a JSON list", expected="a list of trees")
    trees = [
        node for node in document if isinstance(node, dict) and isinstance(node.get("frame"), dict)
    ]
    devices = _devices(
        [node for node in document if isinstance(node, dict) and "frame" not in node]
    )
    rows, odd = [], 0
    for tree in trees:
        for names, metrics, leaf in _nodes(tree):
            row = _row(names, metrics, leaf=leaf)
            if row is None:
                odd += bool(metrics) and leaf
            else:
                rows.append(row)
    schema = {
        "device": pl.Int32,
        "kind": pl.String,
        "name": pl.String,
        "scope": pl.String,
        "count": pl.Int64,
        "total_ns": pl.Int64,
        "flops": pl.Float64,
        "bytes": pl.Float64,
    }
    totals = pl.DataFrame(rows, schema=schema, orient="row")
    notes = [left_out(odd, "leaf node", "without a time")] if odd else []
    head = {"devices": devices, "absolute": False}
    return trace_of(path, "proton", {"totals": totals}, head=head, notes=notes, damage=damage)


def _nodes(tree: dict[str, Any]) -> Iterator[tuple[list[str], dict[str, Any], bool]]:
    """Names from the root to the node, its metrics, and whether it is a leaf."""
    todo: list[tuple[dict[str, Any], list[str]]] = [(tree, [])]
    while todo:
        node, above = todo.pop()
        frame, metrics, below = node.get("frame"), node.get("metrics"), node.get("children")
        name = frame.get("name") if isinstance(frame, dict) else None
        names = [*above, name if isinstance(name, str) and name else "[unknown]"]
        children = (
            [child for child in below if isinstance(child, dict)] if isinstance(below, list) else []
        )
        yield names, metrics if isinstance(metrics, dict) else {}, not children
        todo += [(child, names) for child in reversed(children)]


def _row(names: list[str], metrics: dict[str, Any], *, leaf: bool) -> tuple[Any, ...] | None:
    """Row of a node; None if the node has no time."""
    times = [
        value * _FACTOR[match[1]]
        for key, value in metrics.items()
        if (match := _SUFFIXES.fullmatch(key))
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    ]
    scope = [name for name in names[:-1] if name != "ROOT"]
    if not times or names == ["ROOT"]:
        return None
    kind = "range" if not leaf or _LAUNCH_DATA in scope else "kernel"
    count = metrics.get("count")
    device = str(metrics.get("device_id", ""))
    flops = [value for key, value in metrics.items() if _FLOPS.fullmatch(key) and _number(value)]
    moved = metrics.get("bytes")
    return (
        int(device) if device.isdecimal() and len(device) < 5 else None,
        kind,
        names[-1],
        "\n".join(scope) or None,
        int(count) if _number(count) and 0 <= count < 2**62 else None,
        ns(times[0]),
        sum(flops) if flops else None,
        float(moved) if _number(moved) else None,
    )


def _number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63


def _devices(notes: list[dict[str, Any]]) -> list[str]:
    """Kind and architecture of the devices, which have no names in the file."""
    names = set()
    for note in notes:
        for kind, devices in note.items():
            for device in devices.values() if isinstance(devices, dict) else ():
                if isinstance(device, dict) and isinstance(arch := device.get("arch"), str | int):
                    names.add(f"{kind} {arch}")
    return sorted(names)


READER: Final = Reader(
    name="proton",
    version=2,
    what="a profile of Triton Proton (.hatchet)",
    sniff=_sniff,
    read=_read,
    alone=True,
)
