"""Waits of the host until the device is idle, when the code of a kernel is loaded."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from llmprof.analyze.replay.recording import Recording
from llmprof.analyze.replay.schedule import NEVER, Ints
from llmprof.analyze.replay.waits import Pairs
from llmprof.names.operators import contains

LOADS_CODE: Final = r"(?i)^(?:cuda|hip|cu|mu|musa)(?:kernel|func|library|module)"
"""Names of calls that may load the code of a kernel (CUDA C++ Programming Guide, "Lazy Loading": loading a kernel may
require that the context is synchronised). Kineto records none of them, Nsight Systems those of the driver."""

LEAST_WAIT_NS: Final = 500_000
"""Least time (ns) by which such a call, or the host's time before a first launch, is longer than without a wait."""

MOST_LAG_NS: Final = 300_000
"""Longest time (ns) from the end of the awaited work to the return of the call. In llmprof's captures of vLLM on 4 H200
it is 0.05 to 0.15 ms after waits of 1 to 45 ms."""


def loading_calls(recorded: Recording) -> Pairs:
    """Pairs from the end of the work that a recorded call waited for to the end of this call."""
    loads = contains(recorded.rows["name"], LOADS_CODE)
    calls = recorded.rows.filter(pl.col("launches").fill_null(value=False) & loads)
    row = calls["row"].to_numpy().astype(np.int64)
    row = row[recorded.end[row] - recorded.start[row] >= recorded.own[row] + LEAST_WAIT_NS]
    awaited = _awaited(recorded, row, recorded.start[row], recorded.end[row])
    row, awaited = row[awaited >= 0], awaited[awaited >= 0]
    source, target = 2 * awaited + 1, 2 * row + 1
    return Pairs(source, target, recorded.time[target] - recorded.time[source])


def first_launches(recorded: Recording) -> tuple[Pairs, Ints]:
    """The same where the call is not recorded: pairs to the start of the first launch of a kernel on a rank."""
    # The host's time before this launch must be longer than on another rank, and the device must have become idle
    # shortly before its end.
    launched = np.flatnonzero(recorded.call >= 0)
    call = recorded.call[launched]
    before = recorded.before[call]
    first = (
        recorded.rows.select("rank", "name")[launched]
        .with_columns(call=pl.Series(call), begin=pl.Series(before), start=pl.Series(recorded.start[call]))
        .sort("start")
        .unique(["rank", "name"], keep="first", maintain_order=True)
        .filter(pl.col("begin") != int(NEVER))
        .with_columns(took=pl.col("start") - pl.col("begin"))
        .with_columns(least=pl.col("took").min().over("name"))
        .filter(pl.col("took") >= pl.col("least") + LEAST_WAIT_NS)
        .unique("call", keep="first", maintain_order=True)
    )
    row = first["call"].to_numpy().astype(np.int64)
    awaited = _awaited(recorded, row, first["begin"].to_numpy(), first["start"].to_numpy())
    known = awaited >= 0
    source, target = 2 * awaited[known] + 1, 2 * row[known]
    delay = recorded.time[target] - recorded.time[source]
    return Pairs(source, target, delay), first["least"].to_numpy()[known].astype(np.int64)


def _awaited(recorded: Recording, row: Ints, begin: Ints, end: Ints) -> Ints:
    """The work before ``begin`` that ended last on each row's rank; -1 if it did not end just before ``end``."""
    if not len(row):
        return row
    issued = pl.coalesce("launch_start_ns", "start_ns")
    work = recorded.rows.filter(pl.col("where") == "device").select(
        "rank", work=pl.col("row").cast(pl.Int64), issued=issued, ended=pl.col("start_ns") + pl.col("dur_ns")
    )
    last = work.sort("issued").with_columns(pl.col("ended").cum_max().over("rank"))
    waits = pl.DataFrame(
        {"rank": recorded.rows["rank"][row], "place": np.arange(len(row)), "begin": begin, "end": end}
    ).sort("begin")
    found = (
        waits.join_asof(
            last.drop("work"), left_on="begin", right_on="issued", by="rank", allow_exact_matches=False,
            check_sortedness=False,
        )
        .filter(
            (pl.col("ended") >= pl.col("begin") + LEAST_WAIT_NS)
            & pl.col("ended").is_between(pl.col("end") - MOST_LAG_NS, pl.col("end"))
        )
        .join(work.drop("issued").unique(["rank", "ended"], keep="first"), on=["rank", "ended"])
    )  # fmt: skip
    out = np.full(len(row), -1, dtype=np.int64)
    out[found["place"].to_numpy()] = found["work"].to_numpy()
    return out
