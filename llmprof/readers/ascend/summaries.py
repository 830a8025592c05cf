"""Sums that the tools write beside their traces, as frames: to compare with, and where there is nothing else."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Final

import polars as pl

from llmprof.errors import ReadError
from llmprof.readers.ascend import csvfile, details, folder
from llmprof.readers.ascend.database import Database

_STEP_COLUMNS: Final = (
    "computing", "communication_not_overlapped", "overlapped", "communication", "free", "stage", "bubble",
    "communication_not_overlapped_and_exclude_receive", "preparing",
)  # fmt: skip


def summaries(path: Path | str) -> dict[str, pl.DataFrame]:
    """Sums of a folder or of a single file of torch_npu, msprof or MindSpore.

    Parameters
    ----------
    path : path
        A folder of one rank or of several, or one file.

    Returns
    -------
    dict of str to polars.DataFrame
        As far as there, each with ``rank`` first (null where nothing says it); times in ns, sizes in bytes:

        - ``step_trace_time``: ``step, computing_ns, communication_not_overlapped_ns, overlapped_ns,
          communication_ns, free_ns, stage_ns, bubble_ns, preparing_ns`` …;
        - ``op_statistic``: ``op_type, core, count, total_ns, min_ns, avg_ns, max_ns, share``;
        - ``api_statistic``: ``level, name, count, total_ns, avg_ns, min_ns, max_ns``;
        - ``communication``: ``name, group, start_ns, dur_ns, ascend_transit_ns, ascend_wait_ns …``;
        - ``communication_matrix``: ``step, kind, name, group, src_rank, dst_rank, link, bytes, transit_ns, gb_per_s``;
        - ``operator_details``: ``name, shapes, stack, host_self_ns, host_total_ns, device_self_ns, device_total_ns``;
        - ``data_preprocess``: the columns of the file, times in ns.

    Raises
    ------
    ReadError
        There is no such file, or none of them can be read.
    """
    ranks, _ = folder.find(Path(path))
    found: dict[str, list[pl.DataFrame]] = {}
    for rank in ranks:
        of_rank: dict[str, list[pl.DataFrame]] = {}
        for analysis in rank.files.get(folder.ANALYSIS, ()):
            for name, frame in _of_database(analysis).items():
                of_rank.setdefault(name, []).append(frame)
        for kind, read_one in _READERS.items():
            if kind not in of_rank and (paths := rank.files.get(kind)):
                of_rank[kind] = [read_one(file) for file in paths]
        for name, frames in of_rank.items():
            frame = pl.concat(frames, how="diagonal_relaxed")
            if "rank" not in frame.columns:
                frame = frame.insert_column(0, pl.Series("rank", [rank.rank] * frame.height, dtype=pl.Int32))
            found.setdefault(name, []).append(frame)
    if not found:
        raise ReadError(
            f"{Path(path).name} holds no sums of the profiler",
            expected=f"some of {sorted(_READERS)}, or analysis.db",
            hint="llmprof.read reads the trace itself",
        )
    return {name: pl.concat(frames, how="diagonal_relaxed") for name, frames in found.items()}


def step_trace_time(path: Path) -> pl.DataFrame:
    """Steps of ``step_trace_time.csv``, or ranks and steps of a cluster's."""
    raw = csvfile.read(path)
    cluster = [
        csvfile.text(raw, "type").alias("type"),
        pl.when(csvfile.text(raw, "type") == "rank").then(csvfile.whole(raw, "index")).cast(pl.Int32).alias("rank"),
    ]
    return raw.select(
        *(cluster if "index" in raw.columns else ()),
        csvfile.whole(raw, "step").alias("step"),
        *(csvfile.ns_of_text(pl.col(c)).alias(f"{c}_ns") for c in _STEP_COLUMNS if c in raw.columns),
    )


def _op_statistic(path: Path) -> pl.DataFrame:
    raw = csvfile.read(path)
    return raw.select(
        op_type=csvfile.text(raw, "op_type"),
        core=csvfile.text(raw, "core_type"),
        count=csvfile.whole(raw, "count"),
        **{f"{what}_ns": csvfile.time_ns(raw, f"{what}_time") for what in ("total", "min", "avg", "max")},
        share=csvfile.number(raw, "ratio_pct") / 100,
    )


def _api_statistic(path: Path) -> pl.DataFrame:
    raw = csvfile.read(path)
    return raw.select(
        level=csvfile.text(raw, "level"),
        name=csvfile.text(raw, "api_name"),
        count=csvfile.whole(raw, "count"),
        total_ns=csvfile.time_ns(raw, "time"),
        **{f"{what}_ns": csvfile.time_ns(raw, what) for what in ("avg", "min", "max")},
    )


def _data_preprocess(path: Path) -> pl.DataFrame:
    raw = csvfile.read(path)
    times = [c for c in raw.columns if c.endswith(("_us", "_ms"))]
    return raw.select(
        pl.exclude(times),
        *(csvfile.ns_of_text(pl.col(c), csvfile.NS_PER_UNIT[c[-2:]]).alias(f"{c[:-3]}_ns") for c in times),
    )


def _communication(path: Path) -> pl.DataFrame:
    found = details.communication(path)
    return found if found.height else cluster_communication(path)


def cluster_communication(path: Path) -> pl.DataFrame:
    """Calls of ``cluster_communication.json``, in which the entries of all ranks are put together."""
    rows = []
    for group, by_step in details.json_object(path).items():
        for step, by_call in by_step.items() if isinstance(by_step, dict) else ():
            for label, by_rank in by_call.items() if isinstance(by_call, dict) else ():
                for rank, info in by_rank.items() if isinstance(by_rank, dict) else ():
                    times = info.get("Communication Time Info") if isinstance(info, dict) else None
                    if isinstance(times, dict) and str(rank).isdecimal() and label != "Total Op Info":
                        name, _, mark = label.partition("@")
                        start = times.get("Start Timestamp(us)")
                        rows.append(
                            (
                                int(rank), step, name, mark or None, _ranks(group),
                                round(start * 1000) if isinstance(start, int | float) else None,
                                *(_ms(times.get(key)) for key in _TIMES),
                            )
                        )  # fmt: skip
    schema = {
        "rank": pl.Int32, "step": pl.String, "name": pl.String, "group": pl.String, "group_ranks": pl.String,
        "start_ns": pl.Int64,
    } | dict.fromkeys(_TIMES.values(), pl.Int64)  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")


_TIMES: Final = {
    "Elapse Time(ms)": "dur_ns",
    "Transit Time(ms)": "ascend_transit_ns",
    "Wait Time(ms)": "ascend_wait_ns",
    "Synchronization Time(ms)": "ascend_synchronization_ns",
    "Idle Time(ms)": "ascend_idle_ns",
}


def _ms(value: object) -> int | None:
    return round(value * 1e6) if isinstance(value, int | float) else None


def _ranks(text: str) -> str | None:
    """``"(0, 1)"`` as a JSON list."""
    try:
        return str(list(ast.literal_eval(text)))
    except (ValueError, SyntaxError, TypeError):
        return None


_READERS: Final[dict[str, Callable[[Path], pl.DataFrame]]] = {
    "step_trace_time": step_trace_time,
    "op_statistic": _op_statistic,
    "api_statistic": _api_statistic,
    "communication": _communication,
    "communication_matrix": details.matrix,
    "operator_details": details.operators,
    "data_preprocess": _data_preprocess,
    "l2_cache": details.l2_cache,
}


def _of_database(path: Path) -> dict[str, pl.DataFrame]:
    """Sums of ``analysis.db``."""
    db = Database(path)
    out: dict[str, pl.DataFrame] = {}
    steps = db.read("StepTraceTime", numbers=_STEP_COLUMNS, texts=("step",))
    if steps is not None:
        out["step_trace_time"] = steps.select(
            pl.col("step").cast(pl.Int64, strict=False),
            *((pl.col(c) * 1000).round().cast(pl.Int64, strict=False).alias(f"{c}_ns") for c in _STEP_COLUMNS),
        )
    matrix = db.read(
        "CommAnalyzerMatrix",
        numbers=("transit_size", "transit_time", "bandwidth"),
        texts=("hccl_op_name", "group_name", "src_rank", "dst_rank", "transport_type", "step", "type", "op_name"),
    )
    if matrix is not None:
        out["communication_matrix"] = matrix.select(
            "step", kind="type", name="hccl_op_name", group="group_name",
            src_rank=pl.col("src_rank").cast(pl.Int32, strict=False),
            dst_rank=pl.col("dst_rank").cast(pl.Int32, strict=False), link="transport_type",
            bytes=(pl.col("transit_size") * 1e6).round().cast(pl.Int64, strict=False),
            transit_ns=(pl.col("transit_time") * 1e6).round().cast(pl.Int64, strict=False),
            gb_per_s="bandwidth", op_name="op_name",
        )  # fmt: skip
    times = db.read(
        "CommAnalyzerTime",
        numbers=("start_timestamp", "elapse_time", "transit_time", "wait_time", "synchronization_time", "idle_time"),
        texts=("hccl_op_name", "group_name"),
    )
    if times is not None:
        out["communication"] = times.filter(pl.col("hccl_op_name") != "Total Op Info").select(
            name="hccl_op_name", group="group_name",
            start_ns=(pl.col("start_timestamp") * 1000).round().cast(pl.Int64, strict=False),
            **{
                new: (pl.col(old) * 1e6).round().cast(pl.Int64, strict=False)
                for old, new in (
                    ("elapse_time", "dur_ns"), ("transit_time", "ascend_transit_ns"), ("wait_time", "ascend_wait_ns"),
                    ("synchronization_time", "ascend_synchronization_ns"), ("idle_time", "ascend_idle_ns"),
                )
            },
        )  # fmt: skip
    return out
