"""Folders of torch_npu, msprof and MindSpore: the files of each rank by the kind of their
content.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from llmprof.errors import ReadError
from llmprof.readers.ascend import files as ascend_files
from llmprof.readers.ascend.files import is_database
from llmprof.readers.common.reader import START_BYTES, Probe
from llmprof.trace.storage import sqlite
from llmprof.trace.storage.files import regular

OUTPUT: Final = ("ASCEND_PROFILER_OUTPUT", "mindstudio_profiler_output")
CLUSTER: Final = ("cluster_analysis_output", "cluster_analysis")
"""Folders in which msprof-analyze writes summaries over the ranks."""

_RANK_FOLDER: Final = re.compile(r"_ascend_(?:pt|ms)$|^PROF_\w+$", re.IGNORECASE)
_RAW: Final = re.compile(r"^(?:PROF_\w+|FRAMEWORK)$")
_LAYERS: Final = re.compile(
    rb'"(?:Ascend Hardware|CANN|HCCL|Communication|Overlap Analysis|Step Trace|Task'
    rb' Scheduler|Physic Stream Id)"'
    rb'|"(?:AscendCL|Node|Dequeue)@'
)
_EXPORTED: Final = re.compile(rb'^\{"schemaVersion": 1, "llmprof": ')
_SNIFF_BYTES: Final = 4 << 20
_MOST_DEPTH: Final = 4

TIMELINE, KERNELS, COMMUNICATION, MATRIX = (
    "timeline",
    "kernels",
    "communication",
    "communication_matrix",
)
DATABASE, ANALYSIS, TASK_TIME = "database", "analysis", "task_time"

_STARTS: Final = tuple(
    f"{what}start_time{unit}" for unit in ("_us", "_ns", "") for what in ("", "task_")
)
_HEADINGS: Final[tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]] = (
    (KERNELS, (_STARTS, ("name", "op_name", "kernel_name"), ("accelerator_core", "task_type"))),
    (TASK_TIME, (("task_start_us", "task_start_ns"), ("kernel_name",), ("kernel_type",))),
    (
        "memory_record",
        (
            ("component",),
            ("timestamp_us", "timestamp_ns"),
            ("total_allocated_MB", "total_allocated_KB"),
        ),
    ),
    (
        "module_memory",
        (
            ("component",),
            ("timestamp_us", "timestamp_ns"),
            ("total_reserved_MB", "total_reserved_KB"),
        ),
    ),
    ("operator_memory", (("allocation_time_us", "allocation_time_ns"), ("name",))),
    ("l2_cache", (("hit_rate",), ("victim_rate",), ("task_id",))),
    ("op_statistic", (("op_type",), ("core_type",), ("count",))),
    ("api_statistic", (("api_name",), ("count",))),
    ("step_trace_time", (("computing",), ("free",), ("overlapped",))),
    ("operator_details", (("host_self_duration_us",), ("name",))),
    (
        "data_preprocess",
        (("compute_time_us", "compute_time_ms"), ("memcpy_time_us", "memcpy_time_ms")),
    ),
)
"""Kinds of CSV files.

A file is of a kind if it has a heading of each group; the first match wins.
"""

EXPORT_HINT: Final = (
    "export it first: `from torch_npu.profiler.profiler import analyse; analyse({folder!r})` for a"
    " folder of torch_npu, `msprof --export=on --output={folder}` for one of msprof"
)


@dataclass(slots=True)
class RankFolder:
    """Files of a rank by kind, and facts about the rank from other files in its folder."""

    path: Path
    files: dict[str, list[Path]] = field(default_factory=lambda: defaultdict(list))
    rank: int | None = None
    head: dict[str, Any] = field(default_factory=dict)


def content_kind(path: Path) -> str | None:
    """Kind of a file by its content, such as ``timeline``, ``kernels`` or ``database``; None for
    other files.
    """
    probe = Probe(path)
    try:
        start = probe.start
    except ReadError:
        return None
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(sqlite.MAGIC):
        if not is_database(path):
            return None
        sums = path.name.startswith(("analysis", "cluster_analysis", "communication_analyzer"))
        return ANALYSIS if sums else DATABASE
    if text[:1] in (b"[", b"{"):
        if text[:1] == b"[":
            return TIMELINE if b'"ph"' in text and _names_layers(probe) else None
        if _EXPORTED.search(text):  # llmprof exported this file, in the form of PyTorch's profiler
            return None
        if b'"traceEvents"' in text:
            return TIMELINE if _LAYERS.search(text) else None
        if b'"Communication Time Info"' in text:
            return COMMUNICATION
        return MATRIX if b'"Transport Type"' in text else None
    first = text.partition(b"\n")[0]
    if b"," not in first or b"\x00" in first:
        return None
    names = {
        ascend_files.uniform_heading(cell.strip('"'))
        for cell in first.decode("utf-8", "replace").strip().split(",")
    }
    return next(
        (
            kind
            for kind, groups in _HEADINGS
            if all(any(name in names for name in group) for group in groups)
        ),
        None,
    )


def _names_layers(probe: Probe) -> bool:
    """Whether the first or the last 4 MiB of a list of events name a layer of the NPU; the names
    may be anywhere.
    """
    looked_at = 0
    for text in probe.growing():
        if _LAYERS.search(text, max(0, looked_at - START_BYTES)):
            return True
        looked_at = len(text)
        if len(text) > _SNIFF_BYTES:
            break
    try:
        with probe.path.open("rb") as file:
            file.seek(max(0, probe.path.stat().st_size - _SNIFF_BYTES))
            return _LAYERS.search(file.read()) is not None
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Whether one of these tools wrote a folder, or the folder has such folders; whether they
    were exported or not.
    """
    if _RANK_FOLDER.search(path.name) or path.name in OUTPUT:
        return True
    return any(
        entry.name in (*OUTPUT, "trace_view.json", "trace_view.json.gz", "kernel_details.csv")
        or (entry.is_dir() and _RANK_FOLDER.search(entry.name) is not None)
        or entry.name.startswith(("ascend_pytorch_profiler", "ascend_mindspore_profiler"))
        for entry in path.iterdir()
    )


def find_rank_files(path: Path) -> tuple[list[RankFolder], list[str]]:
    """Find the files of all ranks below a path."""
    if not path.is_dir():
        kind = content_kind(path)
        if kind is None:
            raise ReadError(f"{path.name} is not a known file of torch_npu, msprof or MindSpore")
        folder = RankFolder(path)
        folder.files[kind].append(path)
        _read_head(folder, path.parent)
        return [folder], []
    ranks: list[RankFolder] = []
    raw: list[Path] = []
    _search(path, ranks, raw, 0)
    notes = [f"{folder.name} was never exported, so it is left out" for folder in raw]
    if not ranks:
        if held := [
            own.name
            for own in (path, *raw)
            for name in OUTPUT
            if (own / name).is_dir() or own.name == name
        ]:
            expected = (
                "trace_view.json, kernel_details.csv, ascend_pytorch_profiler*.db or msprof*.json"
            )
            hint = "export it again: " + EXPORT_HINT.format(folder=held[0]).removeprefix(
                "export it first: "
            )
            raise ReadError(
                f"{held[0]} was exported, but has no known file", expected=expected, hint=hint
            )
        if raw or any(_RAW.match(entry.name) for entry in path.iterdir()):
            found = (
                f"{path.name} has only raw data of the profiler, which only the profiler can read"
            )
            expected = f"the folder {OUTPUT[0]} or {OUTPUT[1]}, or a database"
            raise ReadError(found, expected=expected, hint=EXPORT_HINT.format(folder=path.name))
        expected = (
            "trace_view.json, kernel_details.csv, ascend_pytorch_profiler*.db or msprof*.json"
        )
        hint = "pass the folder *_ascend_pt, or the folder with those of all ranks"
        raise ReadError(
            f"{path.name} has no files of torch_npu, msprof or MindSpore",
            expected=expected,
            hint=hint,
        )
    return ranks, notes


def _search(path: Path, ranks: list[RankFolder], raw: list[Path], depth: int) -> None:
    own = RankFolder(path)
    _take(own, path)
    for name in OUTPUT:
        if (path / name).is_dir():
            _take(own, path / name)
    devices = sorted(
        entry for entry in path.iterdir() if entry.is_dir() and re.match(r"device_\d+$", entry.name)
    )
    for device in devices:
        for part in ("timeline", "summary"):
            if (device / part).is_dir():
                _take(own, device / part)
    if own.files:
        _read_head(own, path)
        if path.name in OUTPUT:
            _read_head(own, path.parent)
        for device in devices:
            _read_head(own, device)
        ranks.append(own)
        return
    inner = sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.is_symlink())
    before = len(ranks)
    if depth < _MOST_DEPTH:
        for entry in inner:
            if entry.name not in (
                "FRAMEWORK",
                "host",
                "data",
                "log",
                "logs",
                *CLUSTER,
                *(d.name for d in devices),
            ):
                _search(entry, ranks, raw, depth + 1)
    if len(ranks) == before and (_RANK_FOLDER.search(path.name) or devices):
        if _RAW.match(path.name) and path.parent.name.endswith(("_ascend_pt", "_ascend_ms")):
            return  # the parent folder is reported instead
        raw.append(path)


def _take(folder: RankFolder, path: Path) -> None:
    """Add the files of one directory to a rank."""
    for entry in sorted(path.iterdir()):
        if (
            entry.is_file()
            and entry.name.endswith((".json", ".json.gz", ".csv", ".db"))
            and (kind := content_kind(entry)) is not None
        ):
            folder.files[kind].append(entry)
    for start in ("trace_view", "msprof"):  # the other files have parts of the same recording
        if whole := [p for p in folder.files.get(TIMELINE, ()) if p.name.startswith(start)]:
            folder.files[TIMELINE] = whole
            break


def _read_head(folder: RankFolder, path: Path) -> None:
    """Add facts about the rank from profiler_info, profiler_metadata and info.json."""
    for entry in sorted(path.glob("profiler_info*.json")):
        if folder.rank is None and (match := re.search(r"profiler_info_(\d+)", entry.name)):
            folder.rank = int(match[1])
        content = _object(entry)
        rank = content.get("rank_id")
        if isinstance(rank, int) and rank >= 0:
            folder.rank = rank
        folder.head["options"] = dict(_options(content))
        for key in ("torch_npu_version", "cann_version"):
            if isinstance(content.get(key), str):
                folder.head.setdefault("versions", {})[key.removesuffix("_version")] = content[key]
    for entry in sorted(path.glob("profiler_metadata.json")):
        content = _object(entry)
        about = content.get("distributed_info") or content.get("distributedInfo") or {}
        if (
            isinstance(about, dict)
            and isinstance(about.get("world_size"), int)
            and about["world_size"] > 0
        ):
            folder.head["world_size"] = about["world_size"]
        groups = content.get("parallel_group_info")
        if isinstance(groups, dict):
            folder.head["groups"] = {
                str(name): info["global_ranks"]
                for name, info in groups.items()
                if isinstance(info, dict) and isinstance(info.get("global_ranks"), list)
            }
            ranks = [
                rank
                for members in folder.head["groups"].values()
                for rank in members
                if isinstance(rank, int)
            ]
            if ranks:
                folder.head.setdefault("world_size", max(ranks) + 1)
    for entry in sorted(path.glob("info.json*")):
        content = _object(entry)
        rank = content.get("rank_id")
        if isinstance(rank, int) and 0 <= rank < 1 << 20 and folder.rank is None:
            folder.rank = rank


def _options(content: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Options of the profiler that select what it records."""
    config = content.get("config")
    for part in ("common_config", "experimental_config"):
        options = config.get(part) if isinstance(config, dict) else None
        for key, value in options.items() if isinstance(options, dict) else ():
            if isinstance(value, bool | str | int) and value not in ("", False):
                yield key.removeprefix("_"), value


def _object(path: Path) -> dict[str, Any]:
    """Content of a JSON file; empty if the file is invalid, since other files can be read
    without it.
    """
    try:
        document = json.loads(regular(path).read_bytes())
    except (OSError, ValueError, RecursionError, ReadError):
        return {}
    return document if isinstance(document, dict) else {}
