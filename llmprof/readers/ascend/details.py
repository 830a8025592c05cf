"""What CSV and JSON files say of single kernels, collective calls and allocations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from llmprof.errors import ReadError
from llmprof.readers.ascend import csvfile, kinds
from llmprof.readers.ascend.tables import CALLS, PIECES

_PMU: Final = (
    r"^(?:aic|aiv|aicore|cube|vector|mte\d|mac|vec|scalar|fixpipe|l2|ub|l0|l1|main_mem|icache|memory_bound|r\d)"
)
_TAKEN: Final = ("l2_cache",)
_TIME_OF_CORE: Final = {"aicore_time_us": "ascend_aic_time_ns", "aiv_time_us": "ascend_aiv_time_ns"}

NO_TIMES: Final = "the table has no column of start times"


def kernels(path: Path) -> pl.DataFrame:
    """Kernels and collective calls of ``kernel_details.csv`` or ``op_summary*.csv``.

    Parameters
    ----------
    path : pathlib.Path
        The file.

    Returns
    -------
    polars.DataFrame
        ``device, stream, task_id, start_ns, dur_ns, name, task_type``, those of
        :data:`~llmprof.readers.ascend.tables.DETAILS` and the counters of the cores: ``ascend_aic_mac_ratio`` …
        (shares from 0 to 1), ``ascend_aic_mac_time_ns`` …, ``ascend_cube_utilization_pct``.

    Raises
    ------
    ReadError
        It is no table or lacks names or start times.
    """
    raw = csvfile.read(path)
    name = csvfile.has(raw, "name", "op_name", "kernel_name")
    start = csvfile.time_ns(raw, "start_time", "task_start_time", "start_timestamp")
    if name is None or raw.select(start).to_series().null_count() == raw.height > 0:
        raise ReadError(
            f"{path.name} says no names or no start times of kernels; its headings are {raw.columns[:12]}",
            expected="the columns Name and Start Time(us), or Op Name and Task Start Time(us)",
            hint="the start times are missing where msprof could not read the device's clock: export again",
        )
    pmu = [c for c in raw.columns if pl.Series([c]).str.contains(_PMU)[0] and c not in _TAKEN]
    frame = raw.select(
        device=csvfile.whole(raw, "device_id").cast(pl.Int32, strict=False),
        stream=csvfile.whole(raw, "stream_id"),
        task_id=csvfile.whole(raw, "task_id"),
        context=csvfile.whole(raw, "context_id"),
        start_ns=start,
        dur_ns=csvfile.time_ns(raw, "duration", "task_duration").fill_null(0).clip(0),
        name=pl.col(name),
        task_type=csvfile.text(raw, "accelerator_core", "task_type"),
        ascend_op_type=csvfile.text(raw, "type", "op_type"),
        ascend_core=csvfile.text(raw, "accelerator_core", "task_type"),
        ascend_block_dim=csvfile.whole(raw, "block_dim", "block_num"),
        ascend_mix_block_dim=csvfile.whole(raw, "mix_block_dim"),
        ascend_wait_ns=csvfile.time_ns(raw, "wait_time", "task_wait_time"),
        ascend_op_state=csvfile.text(raw, "op_state"),
        **{
            f"ascend_{side}_{what}": csvfile.text(raw, f"{side}_{heading}").str.strip_chars('"')
            for side in ("input", "output")
            for what, heading in (("shapes", "shapes"), ("dtypes", "data_types"), ("formats", "formats"))
        },
        **dict(_counters(raw, pmu)),
    )
    said_nothing = [c for c in frame.columns if c.startswith("ascend_") and frame[c].null_count() == frame.height]
    return frame.drop(said_nothing).filter(pl.col("start_ns").is_not_null() & pl.col("name").is_not_null())


def _counters(raw: pl.DataFrame, columns: Sequence[str]) -> Iterator[tuple[str, pl.Expr]]:
    for column in columns:
        value = csvfile.number(raw, column)
        if column in _TIME_OF_CORE:
            yield _TIME_OF_CORE[column], value * 1000
        elif column.endswith("_us"):
            yield f"ascend_{column[:-3]}_ns", value * 1000
        else:
            yield f"ascend_{column}", value


def is_call(frame: pl.DataFrame) -> pl.Series:
    """Which rows are collective calls: their core is HCCL or COMMUNICATION."""
    return frame.select(
        pl.col("task_type").str.contains("(?i)^(?:hccl|communication|comm)$").fill_null(value=False)
        | kinds.is_call(pl.col("name"))
    ).to_series()


def l2_cache(path: Path) -> pl.DataFrame:
    """Hit rates of the L2 cache by stream and task: ``stream, task_id, ascend_l2_hit_rate, ascend_l2_victim_rate``."""
    raw = csvfile.read(path)
    return (
        raw.select(
            stream=csvfile.whole(raw, "stream_id"),
            task_id=csvfile.whole(raw, "task_id"),
            ascend_l2_hit_rate=csvfile.number(raw, "hit_rate"),
            ascend_l2_victim_rate=csvfile.number(raw, "victim_rate"),
        )
        .drop_nulls(["stream", "task_id"])
        .unique(["stream", "task_id"], keep="first", maintain_order=True)
    )


def communication(path: Path) -> pl.DataFrame:
    """Collective calls of ``communication.json``, with what HCCL's own analysis says of their time.

    Returns
    -------
    polars.DataFrame
        ``name, group, start_ns, dur_ns, ascend_transit_ns, ascend_wait_ns, ascend_synchronization_ns,
        ascend_idle_ns``, one row a call; ``Total Op Info`` is left out.

    Raises
    ------
    ReadError
        It is no such file.
    """
    rows = []
    for _, _, label, info in _calls(path):
        times = info.get("Communication Time Info") if isinstance(info, dict) else None
        if not isinstance(times, dict) or not isinstance(times.get("Start Timestamp(us)"), int | float):
            continue
        name, _, group = label.partition("@")
        # a float of epoch us is good to a quarter of one: enough to tell calls of one name apart, no more
        start = round(times["Start Timestamp(us)"] * 1000)
        rows.append((name, group or None, start, *(_ms(times.get(key)) for key in _COMMUNICATION_TIMES)))
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
    return round(value * 1e6) if isinstance(value, int | float) else None


def _calls(path: Path) -> Iterator[tuple[str, str, str, Any]]:
    """Step, kind, label and content of each entry of communication.json or communication_matrix.json."""
    document = json_object(path)
    for step, by_kind in document.items():
        for kind, by_call in by_kind.items() if isinstance(by_kind, dict) else ():
            for label, info in by_call.items() if isinstance(by_call, dict) else ():
                if label != "Total Op Info":
                    yield step, kind, label, info


def matrix(path: Path) -> pl.DataFrame:
    """Links of ``communication_matrix.json``.

    Returns
    -------
    polars.DataFrame
        ``step, kind, name`` (the class, such as ``allreduce-top1``), ``group, src_rank, dst_rank, link, bytes``
        (decimal MB of the file times 1e6), ``transit_ns, gb_per_s, op_name``.

    Raises
    ------
    ReadError
        It is no such file.
    """
    rows = []
    for step, kind, label, links in _calls(path):
        name, _, group = label.partition("@")
        for pair, info in links.items() if isinstance(links, dict) else ():
            ends = pair.split("-")
            if len(ends) == 2 and all(end.isdecimal() for end in ends) and isinstance(info, dict):
                size, rate = info.get("Transit Size(MB)"), info.get("Bandwidth(GB/s)")
                rows.append(
                    (
                        step, kind, name, group or None, *map(int, ends), info.get("Transport Type"),
                        round(size * 1e6) if isinstance(size, int | float) else None,
                        _ms(info.get("Transit Time(ms)")), rate, info.get("Op Name"),
                    )
                )  # fmt: skip
    schema = {
        "step": pl.String, "kind": pl.String, "name": pl.String, "group": pl.String, "src_rank": pl.Int32,
        "dst_rank": pl.Int32, "link": pl.String, "bytes": pl.Int64, "transit_ns": pl.Int64, "gb_per_s": pl.Float64,
        "op_name": pl.String,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")


def json_object(path: Path) -> dict[str, Any]:
    """Content of a JSON file that holds an object.

    Raises
    ------
    ReadError
        It is missing, invalid or something else.
    """
    try:
        found = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReadError(
            f"{path.name} is no valid JSON: {error}", hint="was its export cut short? export it again"
        ) from error
    if not isinstance(found, dict):
        raise ReadError(f"{path.name} holds no object", expected="a JSON object as torch_npu writes it")
    return found


def operators(path: Path) -> pl.DataFrame:
    """Operators of ``operator_details.csv``: times without places, so a table of its own.

    Returns
    -------
    polars.DataFrame
        ``name, shapes, stack, host_self_ns, host_total_ns, device_self_ns, device_total_ns``.
    """
    raw = csvfile.read(path)
    return raw.select(
        name=csvfile.text(raw, "name"),
        shapes=csvfile.text(raw, "input_shapes"),
        stack=csvfile.text(raw, "call_stack"),
        **{
            f"{side}_{what}_ns": csvfile.time_ns(raw, f"{side}_{what}_duration")
            for side in ("host", "device")
            for what in ("self", "total")
        },
    )


NOTHING_OF_CALLS: Final = pl.DataFrame(schema=CALLS)
NOTHING_OF_PIECES: Final = pl.DataFrame(schema=PIECES)
