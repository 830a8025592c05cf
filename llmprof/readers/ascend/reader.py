"""Reader of the output of torch_npu, msprof and MindSpore for Huawei's Ascend NPUs, as text or
databases.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from llmprof.errors import ReadError
from llmprof.readers.ascend import folder, from_database, text
from llmprof.readers.ascend.tables import WHOLE_GROUPS
from llmprof.readers.common.reader import COUNTED, FilePart, Frames, Probe, Reader
from llmprof.text import Progress
from llmprof.trace.storage.parquet import META_FILE

_WANTED = ("kernels", "ops", "runtime", "collectives", "memory")
"""Tables for which the text output is read if the database does not have them."""

_SUMMARIES = (
    "op_statistic",
    "api_statistic",
    "step_trace_time",
    "operator_details",
    "data_preprocess",
)
NO_TRACE = (*_SUMMARIES, folder.MATRIX, "l2_cache")


def _sniff(probe: Probe) -> bool:
    """Whether torch_npu, msprof or MindSpore wrote a file or folder, whether it was exported or
    not.
    """
    if probe.is_folder:  # a saved trace may have any name
        return not (probe.path / META_FILE).exists() and folder.is_folder(probe.path)
    return folder.content_kind(probe.path) is not None


def read(
    path: Path, *, python_functions: bool = True, progress: Progress | None = None
) -> list[FilePart]:
    """Read the output of one rank or of several.

    If a folder holds both a database and text files, the database is read, and the text files only
    for content that the database lacks.
    """
    if not path.exists():
        raise ReadError(f"{path} does not exist", hint="check the path")
    ranks, notes = folder.find_rank_files(path)
    parts, failed = [], []
    for rank in ranks:
        try:
            parts.append(_part(rank, python_functions=python_functions, progress=progress))
        except ReadError as error:
            if len(ranks) == 1:
                raise
            failed.append(f"{rank.path.name} could not be read and is left out: {error.found}")
    if not parts:
        found = f"none of the {len(ranks)} ranks could be read: {failed[0]}"
        raise ReadError(found, hint="export the files of all ranks again")
    parts[0].coverage.setdefault("notes", []).extend([*notes, *failed])
    if len(parts) > 1 or notes or failed:
        sizes = [part.head.get("world_size") for part in parts]
        world = max([size for size in sizes if isinstance(size, int)], default=None)
        for part in (
            parts if world else ()
        ):  # in a ring a rank names only its neighbours, so ranks may differ
            part.head["world_size"] = world
    return parts


def _part(
    rank: folder.RankFolder, *, python_functions: bool, progress: Progress | None
) -> FilePart:
    frames: Frames = {}
    head: dict[str, Any] = {"absolute": True, "backend": None, **rank.head}
    coverage: dict[str, Any] = {"file": rank.path.name, "events": 0, "kept": 0, "notes": []}
    if databases := rank.files.get(folder.DATABASE):
        analyses = rank.files.get(folder.ANALYSIS, [])
        try:
            frames, recorded, read_of = from_database.read_database(
                databases[0], analyses[0] if analyses else None, python_functions=python_functions
            )
        except ReadError as error:
            coverage["notes"].append(f"{databases[0].name} is left out: {error.found}")
        else:
            head |= {
                key: value for key, value in recorded.items() if key != "rank" or rank.rank is None
            }
            coverage = _added(coverage, read_of)
            if len(databases) > 1:
                coverage["notes"].append(
                    f"of {len(databases)} databases only {databases[0].name} is read"
                )
    lacking = [name for name in _WANTED if name not in frames]
    readable = {
        kind: paths
        for kind, paths in rank.files.items()
        if kind not in (folder.DATABASE, folder.ANALYSIS)
    }
    if lacking and any(kind not in NO_TRACE for kind in readable):
        try:
            more, read_of = text.read_text_files(
                readable, python_functions=python_functions, progress=progress
            )
        except ReadError as error:
            if not frames:
                raise
            coverage["notes"].append(error.found)
        else:
            taken = {name: frame for name, frame in more.items() if name not in frames}
            if taken or not frames:
                coverage = _added(coverage, read_of)
            frames |= taken
    if not frames:
        only = sorted(rank.files)
        raise ReadError(
            f"{rank.path.name} has {', '.join(only) or 'no file that can be read'}"
            + (": these are summaries without times of events, not a trace" if only else ""),
            expected="a timeline, a table of kernels or a database",
            hint=(
                "llmprof.readers.ascend.summaries(path) reads summaries as frames"
                if only
                else "export it again"
            ),
        )
    if rank.rank is not None:
        head["rank"] = rank.rank
    if "collectives" in frames and frames["collectives"].height:
        head["backend"] = "hccl"
        if "kernels" not in frames:
            coverage["notes"].append(
                "only its collective calls were recorded: how long it computed is unknown"
            )
        head.setdefault("world_size", _world(frames))
    return FilePart(
        rank.path, _with_device(frames), {k: v for k, v in head.items() if v is not None}, coverage
    )


def _added(coverage: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Sum of two coverages."""
    out = {**more, **coverage}
    for key in COUNTED:
        out[key] = coverage.get(key, 0) + more.get(key, 0)
    out["notes"] = [*coverage["notes"], *more.get("notes", ())]
    return out


def _world(frames: Frames) -> int | None:
    """Number of ranks, if the pieces of collective calls name all ranks from 0 on."""
    if "tasks" not in frames or "src_rank" not in frames["tasks"].columns:
        return None
    named = {
        *frames["tasks"]["src_rank"].drop_nulls().unique(),
        *frames["tasks"]["dst_rank"].drop_nulls().unique(),
    }
    return len(named) if named == set(range(len(named))) and len(named) in WHOLE_GROUPS else None


def _with_device(frames: Frames) -> Frames:
    """Fill in the device of tables that do not name one, if the other tables name only one."""
    named = {
        device
        for frame in frames.values()
        if "device" in frame.columns
        for device in frame["device"].unique().to_list()
        if device is not None
    }
    if len(named) != 1:
        return frames
    device = pl.lit(named.pop(), dtype=pl.Int32)
    tables = ("kernels", "copies", "collectives", "tasks", "memory", "counters")
    return {
        name: (
            frame.with_columns(
                device=(
                    device if "device" not in frame.columns else pl.col("device").fill_null(device)
                )
            )
            if name in tables
            else frame
        )
        for name, frame in frames.items()
    }


READER = Reader(
    name="ascend",
    version=6,
    what=(
        "the output of torch_npu, msprof or MindSpore on an Ascend NPU (a folder *_ascend_pt,"
        " trace_view.json, kernel_details.csv, a database)"
    ),
    sniff=_sniff,
    read=lambda path, request: read(
        path, python_functions=request.python_functions, progress=request.progress
    ),
    suffixes=(".json", ".csv", ".db"),
)
