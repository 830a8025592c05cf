"""CSV and JSON files in addition to a timeline: details of kernels and collective calls, and the
tools' summaries.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from llmprof.errors import ReadError, listed
from llmprof.readers.ascend import files, folder, tables
from llmprof.readers.ascend.files import Database
from llmprof.readers.ascend.tables import CALLS
from llmprof.readers.common.reader import IMPOSSIBLE, MOST_NS, ns
from llmprof.trace.storage.files import regular

_PMU: Final = r"^(?:aic|aiv|aicore|cube|vector|mte\d|mac|vec|scalar|fixpipe|l2|ub|l0|l1|main_mem|icache|memory_bound|r\d)"  # noqa: E501
_TAKEN: Final = ("l2_cache",)
_TIME_OF_CORE: Final = {"aicore_time_us": "ascend_aic_time_ns", "aiv_time_us": "ascend_aiv_time_ns"}


def read_kernel_details(path: Path) -> pl.DataFrame:
    """Kernels and collective calls of ``kernel_details.csv``, ``op_summary*.csv`` or
    ``task_time*.csv``.
    """
    raw = files.read_csv(path)
    name = files.has(raw, "name", "op_name", "kernel_name")
    times = ("start_time", "task_start_time", "start_timestamp", "task_start")
    if (
        name is None
        or raw.select(files.time_ns(raw, *times)).to_series().null_count() == raw.height > 0
    ):
        raise ReadError(
            f"{path.name} has no names or no start times of kernels; its headings are"
            f" {raw.columns[:12]}",
            expected="the columns Name and Start Time(us), or Op Name and Task Start Time(us)",
            hint=(
                "start times are missing if msprof could not read the device's clock: export it"
                " again"
            ),
        )
    pmu = [c for c in raw.columns if pl.Series([c]).str.contains(_PMU)[0] and c not in _TAKEN]
    frame = raw.select(
        device=files.int_column(raw, "device_id").cast(pl.Int32, strict=False),
        stream=files.int_column(raw, "stream_id"),
        task_id=files.int_column(raw, "task_id"),
        context=files.int_column(raw, "context_id"),
        start_ns=files.time_ns(raw, *times, unreadable=IMPOSSIBLE),
        dur_ns=files.time_ns(raw, "duration", "task_duration", "task_time"),
        name=pl.col(name),
        task_type=files.text_column(raw, "accelerator_core", "task_type", "kernel_type"),
        ascend_op_type=files.text_column(raw, "type", "op_type"),
        ascend_core=files.text_column(raw, "accelerator_core", "task_type", "kernel_type"),
        ascend_block_dim=files.int_column(raw, "block_dim", "block_num"),
        ascend_mix_block_dim=files.int_column(raw, "mix_block_dim"),
        ascend_wait_ns=files.time_ns(raw, "wait_time", "task_wait_time"),
        ascend_op_state=files.text_column(raw, "op_state"),
        **{
            f"ascend_{side}_{what}": files.text_column(raw, f"{side}_{heading}").str.strip_chars(
                '"'
            )
            for side in ("input", "output")
            for what, heading in (
                ("shapes", "shapes"),
                ("dtypes", "data_types"),
                ("formats", "formats"),
            )
        },
        **dict(_counters(raw, pmu)),
    )
    empty = [
        c
        for c in frame.columns
        if c.startswith("ascend_") and frame[c].null_count() == frame.height
    ]
    return frame.drop(empty).filter(pl.col("start_ns").is_not_null() & pl.col("name").is_not_null())


def _counters(raw: pl.DataFrame, columns: Sequence[str]) -> Iterator[tuple[str, pl.Expr]]:
    for column in columns:
        value = files.float_column(raw, column)
        if column in _TIME_OF_CORE:
            yield _TIME_OF_CORE[column], value * 1000
        elif column.endswith("_us"):
            yield f"ascend_{column[:-3]}_ns", value * 1000
        else:
            yield f"ascend_{column}", value


def is_collective_row(frame: pl.DataFrame) -> pl.Series:
    """Whether each row is a collective call: by its type (HCCL, COMMUNICATION) or its name."""
    by_type = pl.col("task_type").str.contains("(?i)^(?:hccl|communication|comm)$").fill_null(False)
    return frame.select(by_type | tables.is_collective_call(pl.col("name"))).to_series()


def l2_cache(path: Path) -> pl.DataFrame:
    """Hit rates of the L2 cache by stream and task:

    ``stream, task_id, ascend_l2_hit_rate, ascend_l2_victim_rate``.
    """
    raw = files.read_csv(path)
    rates = raw.select(
        stream=files.int_column(raw, "stream_id"),
        task_id=files.int_column(raw, "task_id"),
        ascend_l2_hit_rate=files.float_column(raw, "hit_rate"),
        ascend_l2_victim_rate=files.float_column(raw, "victim_rate"),
    )
    keys = ["stream", "task_id"]
    return rates.drop_nulls(keys).unique(keys, keep="first", maintain_order=True)


def communication(path: Path) -> pl.DataFrame:
    """Collective calls of ``communication.json``, with the parts of their time by HCCL's own
    analysis.
    """
    rows = []
    for _, _, label, info in _calls(path):
        times = info.get("Communication Time Info") if isinstance(info, dict) else None
        if not isinstance(times, dict) or not isinstance(
            times.get("Start Timestamp(us)"), int | float
        ):
            continue
        name, _, group = label.partition("@")
        # a float of us since the epoch is exact to a quarter of a us, which is enough to tell calls
        # of one name apart
        start = ns(times["Start Timestamp(us)"] * 1000)
        rows.append(
            (name, group or None, start, *(_ms(times.get(key)) for key in _COMMUNICATION_TIMES))
        )
    schema = {"name": pl.String, "group": pl.String, "start_ns": pl.Int64}
    schema |= dict.fromkeys(_COMMUNICATION_TIMES.values(), pl.Int64)
    return pl.DataFrame(rows, schema=schema, orient="row")


_COMMUNICATION_TIMES: Final = {
    "Elapse Time(ms)": "dur_ns",
    "Transit Time(ms)": "ascend_transit_ns",
    "Wait Time(ms)": "ascend_wait_ns",
    "Synchronization Time(ms)": "ascend_synchronization_ns",
    "Idle Time(ms)": "ascend_idle_ns",
}


def _ms(value: Any) -> int | None:
    return (
        round(value * 1e6)
        if isinstance(value, int | float) and abs(value) < MOST_NS // 1_000_000
        else None
    )


def _calls(path: Path) -> Iterator[tuple[str, str, str, Any]]:
    """Step, kind, label and content of each entry of communication.json or
    communication_matrix.json.
    """
    document = _json_object(path)
    for step, by_kind in document.items():
        for kind, by_call in by_kind.items() if isinstance(by_kind, dict) else ():
            for label, info in by_call.items() if isinstance(by_call, dict) else ():
                if label != "Total Op Info":
                    yield step, kind, label, info


def _matrix(path: Path) -> pl.DataFrame:
    """Transfers between pairs of ranks, from ``communication_matrix.json``."""
    rows = []
    for step, kind, label, links in _calls(path):
        name, _, group = label.partition("@")
        for pair, info in links.items() if isinstance(links, dict) else ():
            ends = pair.split("-")
            if len(ends) == 2 and all(end.isdecimal() for end in ends) and isinstance(info, dict):
                size, rate = info.get("Transit Size(MB)"), info.get("Bandwidth(GB/s)")
                rows.append(
                    (
                        step,
                        kind,
                        name,
                        group or None,
                        *map(int, ends),
                        info.get("Transport Type"),
                        round(size * 1e6) if isinstance(size, int | float) else None,
                        _ms(info.get("Transit Time(ms)")),
                        rate,
                        info.get("Op Name"),
                    )
                )
    schema = {
        "step": pl.String,
        "kind": pl.String,
        "name": pl.String,
        "group": pl.String,
        "src_rank": pl.Int32,
        "dst_rank": pl.Int32,
        "link": pl.String,
        "bytes": pl.Int64,
        "transit_ns": pl.Int64,
        "gb_per_s": pl.Float64,
        "op_name": pl.String,
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


def _json_object(path: Path) -> dict[str, Any]:
    """Content of a JSON file with an object."""
    try:
        document = msgspec.json.decode(regular(path).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        found = f"{path.name} is not valid JSON: {error}"
        raise ReadError(
            found, hint="the export may have been interrupted: export it again"
        ) from error
    if not isinstance(document, dict):
        raise ReadError(
            f"{path.name} is not a JSON object", expected="a JSON object as torch_npu writes it"
        )
    return document


def _operators(path: Path) -> pl.DataFrame:
    """Operators of ``operator_details.csv``, which have durations but no start times."""
    raw = files.read_csv(path)
    return raw.select(
        name=files.text_column(raw, "name"),
        shapes=files.text_column(raw, "input_shapes"),
        stack=files.text_column(raw, "call_stack"),
        **{
            f"{what}_ns": files.time_ns(raw, f"{what}_duration")
            for what in ("host_self", "host_total", "device_self", "device_total")
        },
    )


NOTHING_OF_CALLS: Final = pl.DataFrame(schema=CALLS)


_STEP_COLUMNS: Final = (
    "computing",
    "communication_not_overlapped",
    "overlapped",
    "communication",
    "free",
    "stage",
    "bubble",
    "communication_not_overlapped_and_exclude_receive",
    "preparing",
)


def summaries(path: Path | str) -> dict[str, pl.DataFrame]:
    """Read the summaries in a folder, or in a single file, of torch_npu, msprof or MindSpore."""
    ranks, _ = folder.find_rank_files(Path(path))
    frames_of: dict[str, list[pl.DataFrame]] = {}
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
                frame = frame.insert_column(
                    0, pl.Series("rank", [rank.rank] * frame.height, dtype=pl.Int32)
                )
            frames_of.setdefault(name, []).append(frame)
    if not frames_of:
        found = f"{Path(path).name} has no summaries of the profiler"
        expected = f"some of {listed(sorted(_READERS))}, or analysis.db"
        raise ReadError(found, expected=expected, hint="llmprof.read reads the trace itself")
    return {name: pl.concat(frames, how="diagonal_relaxed") for name, frames in frames_of.items()}


def _step_trace_time(path: Path) -> pl.DataFrame:
    """Steps of ``step_trace_time.csv``, or ranks and steps of ``cluster_step_trace_time.csv``."""
    raw = files.read_csv(path)
    cluster = [
        files.text_column(raw, "type").alias("type"),
        pl.when(files.text_column(raw, "type") == "rank")
        .then(files.int_column(raw, "index"))
        .cast(pl.Int32)
        .alias("rank"),
    ]
    return raw.select(
        *(cluster if "index" in raw.columns else ()),
        files.int_column(raw, "step").alias("step"),
        *(files.ns_of_text(pl.col(c)).alias(f"{c}_ns") for c in _STEP_COLUMNS if c in raw.columns),
    )


def _op_statistic(path: Path) -> pl.DataFrame:
    raw = files.read_csv(path)
    return raw.select(
        op_type=files.text_column(raw, "op_type"),
        core=files.text_column(raw, "core_type"),
        count=files.int_column(raw, "count"),
        **{
            f"{what}_ns": files.time_ns(raw, f"{what}_time")
            for what in ("total", "min", "avg", "max")
        },
        share=files.float_column(raw, "ratio_pct") / 100,
    )


def _api_statistic(path: Path) -> pl.DataFrame:
    raw = files.read_csv(path)
    return raw.select(
        level=files.text_column(raw, "level"),
        name=files.text_column(raw, "api_name"),
        count=files.int_column(raw, "count"),
        total_ns=files.time_ns(raw, "time"),
        **{f"{what}_ns": files.time_ns(raw, what) for what in ("avg", "min", "max")},
    )


def _data_preprocess(path: Path) -> pl.DataFrame:
    raw = files.read_csv(path)
    times = [c for c in raw.columns if c.endswith(("_us", "_ms"))]
    return raw.select(
        pl.exclude(times),
        *(
            files.ns_of_text(pl.col(c), files.NS_PER_UNIT[c[-2:]]).alias(f"{c[:-3]}_ns")
            for c in times
        ),
    )


def _communication(path: Path) -> pl.DataFrame:
    frame = communication(path)
    return frame if frame.height else _cluster_communication(path)


def _cluster_communication(path: Path) -> pl.DataFrame:
    """Calls of ``cluster_communication.json``, which has the entries of all ranks."""
    rows = []
    for group, by_step in _json_object(path).items():
        for step, by_call in by_step.items() if isinstance(by_step, dict) else ():
            for label, by_rank in by_call.items() if isinstance(by_call, dict) else ():
                for rank, info in by_rank.items() if isinstance(by_rank, dict) else ():
                    times = info.get("Communication Time Info") if isinstance(info, dict) else None
                    if (
                        isinstance(times, dict)
                        and str(rank).isdecimal()
                        and label != "Total Op Info"
                    ):
                        name, _, mark = label.partition("@")
                        start = times.get("Start Timestamp(us)")
                        rows.append(
                            (
                                int(rank),
                                step,
                                name,
                                mark or None,
                                _ranks(group),
                                round(start * 1000) if isinstance(start, int | float) else None,
                                *(_ms(times.get(key)) for key in _COMMUNICATION_TIMES),
                            )
                        )
    schema = {
        "rank": pl.Int32,
        "step": pl.String,
        "name": pl.String,
        "group": pl.String,
        "group_ranks": pl.String,
        "start_ns": pl.Int64,
    } | dict.fromkeys(_COMMUNICATION_TIMES.values(), pl.Int64)
    return pl.DataFrame(rows, schema=schema, orient="row")


def _ranks(text: str) -> str | None:
    """``"(0, 1)"`` as a JSON list."""
    try:
        return str(list(ast.literal_eval(text)))
    except (ValueError, SyntaxError, TypeError):
        return None


_READERS: Final[dict[str, Callable[[Path], pl.DataFrame]]] = {
    "step_trace_time": _step_trace_time,
    "op_statistic": _op_statistic,
    "api_statistic": _api_statistic,
    "communication": _communication,
    "communication_matrix": _matrix,
    "operator_details": _operators,
    "data_preprocess": _data_preprocess,
    "l2_cache": l2_cache,
}


def _of_database(path: Path) -> dict[str, pl.DataFrame]:
    """Summaries of ``analysis.db``."""
    db = Database(path)
    out: dict[str, pl.DataFrame] = {}
    steps = db.read("StepTraceTime", numbers=_STEP_COLUMNS, texts=("step",))
    if steps is not None:
        out["step_trace_time"] = steps.select(
            pl.col("step").cast(pl.Int64, strict=False),
            *(
                (pl.col(c) * 1000).round().cast(pl.Int64, strict=False).alias(f"{c}_ns")
                for c in _STEP_COLUMNS
            ),
        )
    matrix = db.read(
        "CommAnalyzerMatrix",
        numbers=("transit_size", "transit_time", "bandwidth"),
        texts=(
            "hccl_op_name",
            "group_name",
            "src_rank",
            "dst_rank",
            "transport_type",
            "step",
            "type",
            "op_name",
        ),
    )
    if matrix is not None:
        out["communication_matrix"] = matrix.select(
            "step",
            kind="type",
            name="hccl_op_name",
            group="group_name",
            src_rank=pl.col("src_rank").cast(pl.Int32, strict=False),
            dst_rank=pl.col("dst_rank").cast(pl.Int32, strict=False),
            link="transport_type",
            bytes=(pl.col("transit_size") * 1e6).round().cast(pl.Int64, strict=False),
            transit_ns=(pl.col("transit_time") * 1e6).round().cast(pl.Int64, strict=False),
            gb_per_s="bandwidth",
            op_name="op_name",
        )
    times = db.read(
        "CommAnalyzerTime",
        numbers=(
            "start_timestamp",
            "elapse_time",
            "transit_time",
            "wait_time",
            "synchronization_time",
            "idle_time",
        ),
        texts=("hccl_op_name", "group_name"),
    )
    if times is not None:
        out["communication"] = times.filter(pl.col("hccl_op_name") != "Total Op Info").select(
            name="hccl_op_name",
            group="group_name",
            start_ns=(pl.col("start_timestamp") * 1000).round().cast(pl.Int64, strict=False),
            **{
                new: (pl.col(old) * 1e6).round().cast(pl.Int64, strict=False)
                for old, new in (
                    ("elapse_time", "dur_ns"),
                    ("transit_time", "ascend_transit_ns"),
                    ("wait_time", "ascend_wait_ns"),
                    ("synchronization_time", "ascend_synchronization_ns"),
                    ("idle_time", "ascend_idle_ns"),
                )
            },
        )
    return out
