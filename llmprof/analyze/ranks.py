"""Many ranks: the steps of each, its node and parallel groups, and late groups."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import polars as pl

from llmprof.analyze.balance import rank_balance
from llmprof.analyze.catalog import Analysis
from llmprof.analyze.collectives.collectives import collectives, lateness
from llmprof.analyze.edge import whole_steps
from llmprof.analyze.overlap import overlap
from llmprof.errors import ArgumentError
from llmprof.text import ranks_in_words
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace
from llmprof.trace.schema import END

DIMENSIONS: Final = ("dp", "pp", "tp", "ep")
"""Dimensions of parallelism: data, pipeline, tensor, experts."""

_IN_FILE: Final = re.compile(r"(?<![a-z])(dp|pp|tp|ep)[-_]?(\d{1,5})(?!\d)", re.IGNORECASE)
_NAME_OF_A_RANK: Final = re.compile(
    r"(?i)(?:worker|rank|gpu|npu|device|trace|step|proc(?:ess)?)[-_]?\d"
)
"""Names of files that number a rank, where another tool writes its host."""

_HOST_IN_FILE: Final = re.compile(
    r"([A-Za-z][\w-]*(?:\.[\w-]+)*?)_(\d{1,8})\.\d{12,}\.pt\.trace\.json"
)
"""``host_process.time.pt.trace.json``: how torch.profiler.tensorboard_trace_handler names a
file.
"""
_IN_DESCRIPTION: Final = {
    "tp": re.compile(
        r"(?i)^(?:mesh_)?tp$|^(?:attention_)?tensor_model_parallel_group$|^tensor_parallel"
    ),
    "pp": re.compile(r"(?i)^(?:mesh_)?pp$|^pipeline_model_parallel_group$|^pipeline_parallel"),
    "dp": re.compile(r"(?i)^(?:mesh_)?dp$|^data_parallel_group$|^data_parallel$"),
    "ep": re.compile(r"(?i)^(?:mesh_)?ep$|^expert_model_parallel_group$|^expert_parallel"),
}
"""Descriptions of process groups: those of Megatron, of DeviceMesh, and plain ones."""


@Analysis(
    question="Which rank is slow, and when?",
    help="work, waiting and idle time of each rank; --by step, place or group",
    view="ranks",
    recorded="several ranks",
)
def ranks(
    trace: Trace,
    *,
    by: Literal["rank", "step", "place", "group"] = "rank",
    ranks_per_node: int | None = None,
    tp: int | None = None,
    pp: int | None = None,
) -> pl.DataFrame:
    """Ranks compared: their work, their steps, their places, and how late groups of them arrive.

    The place of a rank is known by evidence, in this order: the names of the files
    (``dp1_pp0_tp3_ep7_rank11``, as vLLM and SGLang write them), the descriptions of process groups
    that torch recorded (``TENSOR_MODEL_PARALLEL_GROUP``, ``mesh_tp``), the configuration of a run
    that llmprof made, and what the caller says. Sizes alone count ranks as vLLM and Megatron do:
    tensor parallelism runs fastest, then pipeline, then data.

    Of groups, only collectives between ranks of at least two of them count. Waiting of one pipeline
    stage for another comes from their dependency and counts, too.

    Parameters
    ----------
    trace : Trace
        A trace of several ranks; places need no device activity.
    by : {"rank", "step", "place", "group"}
        A row for each rank, for each step of a rank, for the place of each rank, or for each group
        of ranks: of one node, or of one place in a parallel dimension.
    ranks_per_node, tp, pp : int, optional
        Ranks of a node, which have consecutive numbers, and sizes of tensor and pipeline
        parallelism; what the recording says comes first.

    Returns
    -------
    polars.DataFrame
        - By rank: ``rank, group`` (ranks that call collectives together, from 0; null where the
          other ranks of its calls are not known), ``steps``, ``prefill_tokens, decode_tokens`` (of
          its steps; null where the engine does not say them), ``compute_ns`` (anything but
          collectives runs), ``communication_ns``, ``wait_ns`` (in collectives, for ranks that came
          later; null where it cannot be told), ``idle_ns`` (nothing of the
          rank runs, from the first start to the last end of any rank), ``busy_share`` (compute over
          that time) and ``imbalance`` (compute over the mean of the ranks; 1 is even).
        - By step, those that ran on the device: ``rank, step, phase, start_ns, end_ns, dur_ns``
          (from its first event to its last), ``wait_ns`` (null where the waiting of one of its
          collectives cannot be told), ``exposed_communication_ns`` and ``idle_ns`` as in
          :func:`~llmprof.analyze.overlap`.
        - By place: ``rank, node`` (name or number as text), ``dp, pp, tp, ep`` (place in each
          dimension, from 0), ``evidence`` (as ``node: file name; tp: process groups``); null where
          nothing is known.
        - By group, the latest first: ``kind`` (node, dp, pp, tp or ep), ``group`` (the name of the
          node, or the place as text), ``ranks`` (list), ``count`` (calls), ``last_count`` (in which
          one of its ranks arrives last), ``last_share``, ``expected_share`` (by chance: its part of
          the ranks of these calls), ``late_median_ns`` (median start of its ranks after the first
          rank), ``other_wait_ns`` (waiting of ranks outside the group in the calls in which it is
          last, summed), ``together_share`` (lateness of its middle rank over that of its last one,
          in these calls or, where its ranks are in different calls, usually: near 1 the whole group
          is late, near 0 one rank alone; null where it never is last), ``last_rank`` (last most
          often), ``evidence`` (what says who belongs to it).

    Raises
    ------
    NotCapturedError
        The trace holds no device activity or operators.
    ArgumentError
        A size is below 1.

    Examples
    --------
    >>> analyze.ranks(ranks)["group"].to_list()  # one model on four ranks
    [0, 0, 0, 0]
    >>> analyze.ranks(ranks, by="place", ranks_per_node=2).select("rank", "node", "tp").rows()
    [(0, '0', None), (1, '0', None), (2, '1', None), (3, '1', None)]
    >>> analyze.ranks(ranks, by="group", ranks_per_node=2)["ranks"].to_list()
    [[2, 3], [0, 1]]
    """
    if by == "rank":
        return rank_balance(trace)
    if by == "step":
        return rank_steps(trace)
    sizes = {"ranks_per_node": ranks_per_node, "tp": tp, "pp": pp}
    return rank_places(trace, **sizes) if by == "place" else late_groups(trace, **sizes)


@per_trace
def rank_places(
    trace: Trace, *, ranks_per_node: int | None = None, tp: int | None = None, pp: int | None = None
) -> pl.DataFrame:
    """Node and parallel groups of each rank: ``analyze.ranks(trace, by="place")``."""
    for name, size in (("ranks_per_node", ranks_per_node), ("tp", tp), ("pp", pp)):
        if size is not None and size < 1:
            raise ArgumentError(f"{name} is {size}", expected="a number of ranks, at least 1")
    facts = {
        entry["rank"]: entry
        for entry in trace.meta.get("ranks", [])
        if isinstance(entry, dict) and "rank" in entry
    }
    numbers = [rank for rank in trace.ranks if rank >= 0]
    places: dict[int, dict[str, Any]] = {rank: {} for rank in numbers}
    for source, read in (
        ("recording", _recorded),
        ("file name", _in_file),
        ("process groups", _in_groups),
    ):
        _add(places, source, {rank: read(facts[rank]) for rank in numbers if rank in facts})
    configured = trace.meta.get("parallel")
    if isinstance(configured, dict):
        _add(
            places,
            "configuration of the run",
            _by_sizes(numbers, configured.get("tp"), configured.get("pp")),
        )
    _add(places, "sizes as given", _by_sizes(numbers, tp, pp))
    if ranks_per_node is not None:
        _add(
            places,
            "ranks_per_node",
            {rank: {"node": str(rank // ranks_per_node)} for rank in numbers},
        )
    rows = [
        {
            "rank": rank,
            **{name: place.get(name, (None,))[0] for name in ("node", *DIMENSIONS)},
            "evidence": (
                "; ".join(f"{name}: {source}" for name, (_, source) in place.items()) or None
            ),
        }
        for rank, place in places.items()
    ]
    return pl.DataFrame(rows, schema=_GROUPS).sort("rank")


_GROUPS: Final = pl.Schema(
    {
        "rank": pl.Int32(),
        "node": pl.String(),
        **dict.fromkeys(DIMENSIONS, pl.Int32()),
        "evidence": pl.String(),
    }
)


def _add(
    places: dict[int, dict[str, Any]], source: str, recorded: Mapping[int, Mapping[str, Any]]
) -> None:
    """Add values from a source if nothing is known yet, and if the source has them for every
    rank.
    """
    for name in ("node", *DIMENSIONS):
        if all(name in recorded.get(rank, {}) for rank in places) and not any(
            name in place for place in places.values()
        ):
            for rank, place in places.items():
                place[name] = (recorded[rank][name], source)


def _recorded(entry: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if (node := entry.get("node", entry.get("host"))) is not None:
        out["node"] = str(node)
    return out | {name: value for name in DIMENSIONS if isinstance(value := entry.get(name), int)}


def _in_file(entry: Mapping[str, Any]) -> dict[str, Any]:
    name = str(entry.get("file", ""))
    out: dict[str, Any] = {
        dimension.lower(): int(number) for dimension, number in _IN_FILE.findall(name)
    }
    host = _HOST_IN_FILE.fullmatch(name.removesuffix(".gz"))
    if host and not _NAME_OF_A_RANK.match(host[1]):
        out["node"] = host[1]
    return out


def _in_groups(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Place of the rank in the process group whose description names a dimension."""
    out: dict[str, Any] = {}
    groups, described = entry.get("groups", {}), entry.get("group_descriptions", {})
    for group, text in described.items() if isinstance(described, dict) else ():
        members = groups.get(group)
        for name, pattern in _IN_DESCRIPTION.items():
            if (
                name not in out
                and pattern.search(str(text))
                and isinstance(members, list)
                and entry["rank"] in members
            ):
                out[name] = members.index(entry["rank"])
    return out


def _by_sizes(numbers: Sequence[int], tp: object, pp: object) -> dict[int, dict[str, int]]:
    if not isinstance(tp, int) and not isinstance(pp, int):
        return {}
    wide, deep = tp if isinstance(tp, int) else 1, pp if isinstance(pp, int) else 1
    return {
        rank: {"tp": rank % wide, "pp": rank // wide % deep, "dp": rank // (wide * deep)}
        for rank in numbers
    }


@per_trace
def rank_steps(trace: Trace) -> pl.DataFrame:
    """Times of each step of each rank: ``analyze.ranks(trace, by="step")``."""
    timed = whole_steps(trace).drop_nulls("dur_ns")
    timed = timed.select("rank", "step", "phase", "start_ns", end_ns=END)
    parts = overlap(trace)[["rank", "step", "exposed_communication_ns", "idle_ns"]]
    if not timed.height:
        return pl.DataFrame(schema=_STEPS)
    waits = (
        collectives(trace)
        .drop_nulls("step")
        .group_by("rank", "step")
        .agg(
            wait_ns=pl.when(pl.col("wait_ns").null_count() == 0).then(pl.sum("wait_ns")),
            _calls=pl.len(),
        )
    )
    return (
        timed.join(parts, on=["rank", "step"], how="left", maintain_order="left")
        .join(waits, on=["rank", "step"], how="left", maintain_order="left")
        .with_columns(
            dur_ns=pl.col("end_ns") - pl.col("start_ns"),
            wait_ns=pl.when(pl.col("_calls").is_null()).then(0).otherwise("wait_ns"),
        )
        .select(list(_STEPS))
        .cast(_STEPS)
        .sort("rank", "step")
    )


_STEPS: Final = pl.Schema(
    {
        "rank": pl.Int32(),
        "step": pl.Int32(),
        "phase": pl.String(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
        "wait_ns": pl.Int64(),
        "exposed_communication_ns": pl.Int64(),
        "idle_ns": pl.Int64(),
    }
)


@per_trace
def late_groups(
    trace: Trace, *, ranks_per_node: int | None = None, tp: int | None = None, pp: int | None = None
) -> pl.DataFrame:
    """How often groups of ranks arrive last: ``analyze.ranks(trace, by="group")``."""
    return late_groups_of(
        collectives(trace), rank_places(trace, ranks_per_node=ranks_per_node, tp=tp, pp=pp)
    )


def late_groups_of(calls: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """The analysis of :func:`late_groups` on frames."""
    late = lateness(calls).drop_nulls("late_ns")
    late = late[["call", "rank", "late_ns", "last_rank", "wait_ns"]]
    place = groups.select("node", *DIMENSIONS)
    parted = [
        by
        for by in place.columns
        if 1 < place[by].drop_nulls().n_unique() < place[by].drop_nulls().len()
    ]
    return pl.concat([pl.DataFrame(schema=_LATE), *(_late_by(late, groups, by) for by in parted)])


def _late_by(late: pl.DataFrame, groups: pl.DataFrame, by: str) -> pl.DataFrame:
    place = groups.select(
        "rank",
        group=pl.col(by).cast(pl.String),
        _why=pl.col("evidence").str.extract(rf"(?:^|; ){by}: ([^;]+)"),
    ).drop_nulls("group")
    rows = late.join(place, on="rank").join(
        place.select(last_rank="rank", last_group="group"),
        on="last_rank",
        how="left",
        maintain_order="left",
    )
    rows = rows.filter(pl.n_unique("group").over("call") > 1)
    is_last = pl.col("group") == pl.col("last_group")
    per_call = rows.group_by("call", "group").agg(
        last=is_last.first(),
        expected=pl.len(),
        last_rank=pl.first("last_rank"),
        wait=pl.sum("wait_ns"),
        middle=pl.median("late_ns"),
        latest=pl.max("late_ns"),
    )
    per_call = per_call.with_columns(
        expected=pl.col("expected") / pl.sum("expected").over("call"),
        others=pl.sum("wait").over("call") - pl.col("wait"),
    )
    usual = rows.group_by("group", "rank").agg(pl.median("late_ns"))
    usual = usual.group_by("group").agg(  # of places in a group, each of which is in other calls
        _usual=pl.col("late_ns").quantile(0.5, interpolation="lower") / pl.max("late_ns")
    )
    lasts = pl.col("last_rank").filter("last")
    members = place.group_by("group").agg(ranks=pl.col("rank").sort(), evidence=pl.first("_why"))
    return (
        per_call.group_by("group")
        .agg(
            count=pl.len(),
            last_count=pl.sum("last"),
            last_share=pl.mean("last"),
            expected_share=pl.mean("expected"),
            other_wait_ns=pl.col("others").filter("last").sum(),
            together_share=(pl.col("middle") / pl.col("latest"))
            .filter(pl.col("last") & (pl.col("latest") > 0))
            .median(),
            last_rank=lasts.mode().min(),
        )
        .join(rows.group_by("group").agg(late_median_ns=pl.median("late_ns")), on="group")
        .join(members, on="group")
        .join(usual, on="group")
        .with_columns(
            kind=pl.lit(by),
            together_share=pl.when(pl.col("_usual") < pl.col("together_share"))
            .then("_usual")
            .otherwise("together_share"),
        )
        .select(list(_LATE))
        .cast(_LATE)
        .sort("last_share", "late_median_ns", "group", descending=[True, True, False])
    )


_LATE: Final = pl.Schema(
    {
        "kind": pl.String(),
        "group": pl.String(),
        "ranks": pl.List(pl.Int32()),
        "count": pl.Int64(),
        "last_count": pl.Int64(),
        "last_share": pl.Float64(),
        "expected_share": pl.Float64(),
        "late_median_ns": pl.Float64(),
        "other_wait_ns": pl.Int64(),
        "together_share": pl.Float64(),
        "last_rank": pl.Int32(),
        "evidence": pl.String(),
    }
)

_WORDS: Final = {
    "node": "one node",
    "dp": "data-parallel replica {}",
    "pp": "pipeline stage {}",
    "tp": "place {} in tensor parallelism",
    "ep": "place {} in expert parallelism",
}
LEAST_CALLS, CLEARLY, TOGETHER = 8, 2.0, 0.5
"""Least number of calls of a reported group, least ratio of its share of last arrivals to chance,
and least lateness of its middle rank as a share of the lateness of its last rank.
"""


def latest_group(late: pl.DataFrame) -> dict[str, Any] | None:
    """The row of :func:`late_groups` to report: last in half of its calls, beyond chance, late
    together.
    """
    named = late.filter(
        (pl.col("ranks").list.len() > 1)
        & (pl.col("count") >= LEAST_CALLS)
        & (pl.col("last_share") >= 0.5)
        & (pl.col("last_share") >= CLEARLY * pl.col("expected_share"))
        & (pl.col("together_share") >= TOGETHER)
    ).sort("other_wait_ns", "last_share", descending=True)
    if not named.height:
        return None
    row = named.row(0, named=True)
    what = _WORDS[row["kind"]].format(row["group"])
    if row["kind"] == "node" and row["evidence"] not in ("ranks_per_node", None):
        what += f", {row['group']}"
    return {**row, "who": f"{ranks_in_words(row['ranks'])} ({what})"}
