"""Matching of collective calls over ranks: by group, order and kind, checked by the times at which
the ranks leave.

The ranks leave a call together: over many calls the difference of their ends hardly varies, and no
rank leaves before the last one has arrived. The recording itself, not a fixed limit, says how much
it may vary: ends of a ring of eight scatter by tens of microseconds, those of a custom all-reduce
by less than one. If the difference is large but constant, or grows evenly, the clocks differ, and
this is corrected. If kernels do not name their group (custom all-reduce, NCCL called without
torch), the groups follow from the ends, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from llmprof.names import element_bytes
from llmprof.trace import Trace
from llmprof.trace.schema import END

LEAVES_EARLY = ("send_recv", "broadcast", "reduce")
"""Kinds in which one rank may end before another one begins (it has sent into a buffer)."""

NEAR_NS = 10_000
"""Ends of one call that differ by at most this (ns) agree, however short the calls are."""

NEAR_SHARE = 0.8
"""Least share of calls with agreeing ends, for two ranks that call together."""

NEAR_EARLY_NS, NEAR_EARLY_SHARE = 50_000, 0.5
"""The same for kinds that a rank may leave early."""

OF_SPACING = 8
"""Ends may scatter by up to the time from one call to the next, divided by this.

Two unrelated ranks agree this well by chance in a quarter of the calls.
"""

AS_CLOSE = 4
"""A rank belongs to a set if its ends scatter at most this many times as much as those of the
closest two ranks.
"""

CLOCK_CALLS = 8
"""Least number of calls with a constant difference of ends that count as a difference of clocks;
fewer may agree by chance.
"""

MAX_DRIFT = 1e-3
"""Largest drift between two clocks (a share of the time); crystals differ by less than a tenth
of it.
"""

SURE = 0.9
"""Waits are reported if at least this share of a set's calls overlap on all ranks, as calls that
wait must.
"""

MAX_SHIFT = 64
"""Most calls by which the recording of one rank may begin before that of another with a
different clock.
"""


@dataclass(frozen=True)
class Clock:
    """Lead of one rank's clock over another's: ``offset_ns + drift * t``."""

    offset_ns: float = 0.0
    drift: float = 0.0

    def at(self, time: pl.Series) -> pl.Series:
        """Offset at moments of the clock that is ahead (ns)."""
        return (time * self.drift + self.offset_ns).round().cast(pl.Int64)


@dataclass(frozen=True)
class _MatchedRank:
    """A rank's calls, numbered as those of the reference:

    ``_row, call, difference`` (of the ends, ns; may be null).
    """

    calls: pl.DataFrame
    clock: Clock | None
    scatter_ns: float


@dataclass
class Matches:
    """Calls that are matched so far, and reasons for the others."""

    parts: list[pl.DataFrame] = field(default_factory=list)
    clocks: dict[tuple[int, int], tuple[Clock, int]] = field(default_factory=dict)
    calls: int = 0

    def add(
        self, members: dict[int, _MatchedRank], reference: int, by: str, reason: str | None
    ) -> None:
        """Add one set of ranks that call together."""
        columns = {
            "ranks_in_group": pl.lit(len(members), dtype=pl.Int32),
            "matched_by": pl.lit(by if len(members) > 1 else None, dtype=pl.String),
            "reason": pl.lit(reason, dtype=pl.String),
            "_set": pl.lit(len(self.parts), dtype=pl.Int64),
        }
        matched = pl.concat([pair.calls[["_row", "call"]] for pair in members.values()])
        self.parts.append(matched.with_columns(pl.col("call") + self.calls, **columns))
        highest = self.parts[-1]["call"].max()
        self.calls = highest + 1 if isinstance(highest, int) else self.calls
        for rank, pair in members.items():
            if rank != reference and pair.clock is not None:
                clock = self.clocks.get((reference, rank))
                if clock is None or clock[1] < pair.calls.height:
                    self.clocks[reference, rank] = (pair.clock, pair.calls.height)


def match_calls(frame: pl.DataFrame) -> pl.DataFrame:
    """Number the calls."""
    frame = frame.sort("rank", "start_ns", maintain_order=True).with_row_index("_row")
    ends = frame.select(
        "_row",
        "rank",
        "group",
        "group_ranks",
        "kind",
        "world",
        start=pl.col("start_ns"),
        end=END,
    )
    matches = Matches()
    early = pl.col("kind").is_in(LEAVES_EARLY)
    _match(ends.filter(~early), matches, synchronises=True)
    offsets = _offsets(frame, matches)
    corrected = ends.with_columns((pl.col(c) - offsets).alias(c) for c in ("start", "end"))
    _match(corrected.filter(early), matches, synchronises=False)
    frame = frame.with_columns(clock_offset_ns=offsets)
    frame = frame.join(pl.concat(matches.parts), on="_row", how="left", maintain_order="left")
    start = pl.col("start_ns") - pl.col("clock_offset_ns")
    together = (
        frame.filter(pl.col("call").is_not_null() & ~pl.col("kind").is_in(LEAVES_EARLY))
        .group_by("_set", "call")
        .agg(last=start.max(), first_end=(start + pl.col("dur_ns")).min(), ranks=pl.len())
        .filter(pl.col("ranks") > 1)
        .group_by("_set")
        .agg(confidence=(pl.col("last") <= pl.col("first_end") + NEAR_NS).mean())
    )
    return frame.join(together, on="_set", how="left", maintain_order="left").drop("_row", "_set")


def _match(ends: pl.DataFrame, matches: Matches, *, synchronises: bool) -> None:
    """Match the calls of each group and kind."""
    for (group, _, _kind), rows in ends.group_by(
        "group", "group_ranks", "kind", maintain_order=True
    ):
        ranks = rows.group_by("rank", maintain_order=True)
        waiting = {int(key[0]): part.sort("end", maintain_order=True) for key, part in ranks}
        fits = rows["world"].is_null().all() or len(waiting) <= max(rows["world"].drop_nulls())
        trusted = group is not None and fits
        alone = len(waiting) == 1
        while waiting:
            reference = max(waiting, key=lambda rank: (waiting[rank].height, -rank))
            own = waiting.pop(reference).with_columns(call=pl.int_range(pl.len(), dtype=pl.Int64))
            found = {
                rank: _pair(own, part, trusted=trusted, synchronises=synchronises)
                for rank, part in waiting.items()
            }
            pairs = {rank: pair for rank, pair in found.items() if pair is not None}
            if not trusted:
                pairs = _closest(pairs)
            waiting = {rank: part for rank, part in waiting.items() if rank not in pairs}
            itself = _MatchedRank(
                own[["_row", "call"]].with_columns(difference=pl.lit(0, dtype=pl.Int64)),
                Clock(),
                0.0,
            )
            reason = None
            if not pairs and not alone:
                others = ", ".join(
                    f"rank {rank}" for rank in sorted(set(rows["rank"].unique()) - {reference})
                )
                reason = (
                    "ends and number of these calls agree with those of no other rank (compared"
                    f" with {others})"
                )
            members = {reference: itself, **pairs}
            matches.add(
                dict(sorted(members.items())), reference, "group" if trusted else "ends", reason
            )


def _pair(
    reference: pl.DataFrame, own: pl.DataFrame, *, trusted: bool, synchronises: bool
) -> _MatchedRank | None:
    """Calls of a rank with the numbers of the reference's calls, by the best evidence; None if
    the calls differ.
    """
    in_order = own.height == reference.height
    near, share = (NEAR_NS, NEAR_SHARE) if synchronises else (NEAR_EARLY_NS, NEAR_EARLY_SHARE)
    # the usual time from the end of one call to the end of the next
    spacing = int(_number(reference["end"].diff().median()))
    limit = max(near, spacing // OF_SPACING) if synchronises else near
    if in_order:
        ordered = own.select(
            "_row",
            "start",
            "end",
            call=reference["call"],
            of=reference["end"],
            at=reference["start"],
        )
        difference = ordered["end"] - ordered["of"]
        if _number((difference.abs() <= limit).mean()) >= share and (
            not synchronises or _overlap(ordered, Clock())
        ):
            return _paired(ordered, Clock())
    if not synchronises:
        return _paired(ordered, None) if in_order and trusted else None
    nearest = _nearest(reference, own)
    if nearest is not None:
        return nearest
    if in_order and (clock := _clock(ordered, limit)) is not None:
        return _paired(ordered, clock)
    return _paired(ordered, None) if in_order and trusted else _shifted(reference, own, limit)


def _paired(ordered: pl.DataFrame, clock: Clock | None) -> _MatchedRank:
    difference = ordered["end"] - ordered["of"]
    rest = difference - (clock.at(ordered["end"]) if clock is not None else 0)
    middle = rest.median()
    scatter = (
        (rest - middle).abs().quantile(NEAR_SHARE) if isinstance(middle, int | float) else None
    )
    return _MatchedRank(
        ordered[["_row", "call"]].with_columns(difference=rest), clock, float(scatter or 0)
    )


def _closest(pairs: dict[int, _MatchedRank]) -> dict[int, _MatchedRank]:
    """Of ranks with agreeing ends, those that agree as well as the closest pair, directly or
    through one another.
    """
    if not pairs:
        return pairs
    limit = AS_CLOSE * max(NEAR_NS / 2, min(pair.scatter_ns for pair in pairs.values()))
    kept = {rank: pair for rank, pair in pairs.items() if pair.scatter_ns <= limit}
    left = {rank: pair for rank, pair in pairs.items() if rank not in kept}
    grows = True
    while grows and left:
        grows = False
        for rank, pair in list(left.items()):
            if any(_scatter_between(pair, other) <= limit for other in list(kept.values())):
                kept[rank] = left.pop(rank)
                grows = True
    return kept


def _scatter_between(a: _MatchedRank, b: _MatchedRank) -> float:
    both = a.calls.join(b.calls, on="call", suffix="_b").select(
        pl.col("difference") - pl.col("difference_b")
    )
    rest = both.to_series()
    scatter = (rest - rest.median()).abs().quantile(NEAR_SHARE) if rest.len() else None
    return float("inf") if scatter is None else float(scatter)


def _number(value: object) -> float:
    """A mean or median, which Polars types as anything; 0 for none."""
    return float(value) if isinstance(value, int | float) else 0.0


def _overlap(ordered: pl.DataFrame, clock: Clock) -> bool:
    """Whether the calls of two ranks overlap: neither leaves before the other has arrived."""
    ahead = clock.at(ordered["end"])
    own_first = ordered["end"] - ahead + NEAR_NS >= ordered["at"]
    other_first = ordered["of"] + NEAR_NS >= ordered["start"] - ahead
    return _number((own_first & other_first).mean()) >= SURE


def _clock(ordered: pl.DataFrame, limit: float) -> Clock | None:
    """Difference of two clocks with which the ends agree: constant, or else growing evenly; None
    if there is none.
    """
    if ordered.height < CLOCK_CALLS:
        return None
    difference = ordered["end"] - ordered["of"]
    middle = difference.median()
    half = ordered.height // 2
    first, last = ordered.head(half), ordered.tail(half)
    steps = [
        (
            float(part.select((pl.col("end") - pl.col("of")).median()).item()),
            float(part["end"].median() or 0),  # type: ignore[arg-type]
        )
        for part in (first, last)
    ]
    drift = (steps[1][0] - steps[0][0]) / max(1.0, steps[1][1] - steps[0][1])
    candidates = [Clock(float(middle))] if isinstance(middle, int | float) else []
    if abs(drift) <= MAX_DRIFT:
        candidates.append(Clock(steps[0][0] - drift * steps[0][1], drift))
    for clock in candidates:
        agree = (
            _number(((difference - clock.at(ordered["end"])).abs() <= limit).mean()) >= NEAR_SHARE
        )
        if agree and _overlap(ordered, clock):
            return clock
    return None


def _nearest(reference: pl.DataFrame, own: pl.DataFrame) -> _MatchedRank | None:
    """Matched calls of a rank whose recording began later, ended earlier or has holes; None if
    the calls differ.
    """
    others = reference.select("call", "end", of="end")
    matched = own.join_asof(
        others, on="end", strategy="nearest", tolerance=NEAR_NS, check_sortedness=False
    )
    common = pl.col("end").is_between(reference["end"][0] - NEAR_NS, reference["end"][-1] + NEAR_NS)
    share = matched.filter(common).select(pl.col("call").is_not_null().mean()).item()
    if share is None or share < NEAR_SHARE:
        return None
    alone = pl.len().over("call") == 1
    matched = matched.with_columns(call=pl.when(alone).then("call"))
    return _MatchedRank(
        matched.select("_row", "call", difference=pl.col("end") - pl.col("of")), Clock(), 0.0
    )


def _shifted(reference: pl.DataFrame, own: pl.DataFrame, limit: float) -> _MatchedRank | None:
    """Matched calls of a rank that began some calls earlier or later; None unless one shift
    alone fits.
    """
    agreeing = []
    for shift in range(-MAX_SHIFT, MAX_SHIFT + 1):
        first, of_first = max(0, -shift), max(0, shift)
        count = min(own.height - first, reference.height - of_first)
        if count < max(CLOCK_CALLS, own.height // 2):
            continue
        part, others = own.slice(first, count), reference.slice(of_first, count)
        ordered = part.select(
            "_row", "start", "end", call=others["call"], of=others["end"], at=others["start"]
        )
        if (clock := _clock(ordered, limit)) is not None:
            agreeing.append(_paired(ordered, clock))
    if len(agreeing) != 1:
        return None
    pair = agreeing[0]
    rest = own[["_row"]].join(pair.calls, on="_row", how="anti")
    unmatched = rest.with_columns(call=pl.lit(None, pl.Int64), difference=pl.lit(None, pl.Int64))
    return _MatchedRank(pl.concat([pair.calls, unmatched]), pair.clock, pair.scatter_ns)


def _offsets(frame: pl.DataFrame, matches: Matches) -> pl.Series:
    """Lead (ns) of the clock of each row's rank over that of the lowest rank that it calls with."""
    ranks = frame["rank"].unique().sort().to_list()
    edges: dict[int, list[tuple[int, Clock, int]]] = {rank: [] for rank in ranks}
    for (reference, rank), (clock, calls) in matches.clocks.items():
        edges[reference].append((rank, clock, calls))
        edges[rank].append((reference, Clock(-clock.offset_ns, -clock.drift), calls))
    ahead: dict[int, Clock] = {}
    for lowest in ranks:
        if lowest in ahead:
            continue
        ahead[lowest] = Clock()
        queue = [lowest]
        while queue:
            rank = queue.pop(0)
            for other, clock, _ in sorted(edges[rank], key=lambda edge: -edge[2]):
                if other not in ahead:
                    here = ahead[rank]
                    ahead[other] = Clock(here.offset_ns + clock.offset_ns, here.drift + clock.drift)
                    queue.append(other)
    end = frame["start_ns"] + frame["dur_ns"]
    offset = frame["rank"].replace_strict(
        {r: c.offset_ns for r, c in ahead.items()}, return_dtype=pl.Float64
    )
    drift = frame["rank"].replace_strict(
        {r: c.drift for r, c in ahead.items()}, return_dtype=pl.Float64
    )
    return (offset + drift * end).round().cast(pl.Int64)


def with_inputs(frame: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Add the largest input tensor of the operator to collectives whose bytes are null."""
    unsized = frame.filter(pl.col("bytes").is_null() & pl.col("op_id").is_not_null())
    if not trace.has("ops") or not frame["bytes"].is_null().any():
        return frame.with_columns(
            op_bytes=pl.lit(None, pl.Int64),
            op_dtype=pl.lit(None, pl.String),
            op_calls=pl.lit(None, pl.Boolean),
        )
    calls = (
        trace.ops[["rank", "op_id", "name", "shapes", "dtypes"]]
        .join(
            unsized[["rank", "op_id"]].unique(),
            on=["rank", "op_id"],
            how="semi",
            maintain_order="left",
        )
        .filter(
            pl.col("shapes").str.contains(_SHAPES)
            & ~pl.col("shapes").str.contains(r"\d{19}")
            & ~pl.col("shapes").str.contains(_LISTS)
            & pl.col("dtypes").str.contains(_TYPES)
        )
        .unique(["rank", "op_id"], keep="first", maintain_order=True)
    )
    # the n-th list of the shapes belongs to the n-th type; scalars have an empty list
    shapes = calls[["shapes", "dtypes"]].unique().with_row_index("_call")
    shapes = shapes.with_columns(
        shape=pl.col("shapes").str.json_decode(pl.List(pl.List(pl.Int64))),
        type=pl.col("dtypes").str.json_decode(pl.List(pl.String)),
    )
    tensors = (
        shapes[["_call", "shape"]]
        .explode("shape")
        .with_columns(n=pl.int_range(pl.len()).over("_call"))
        .filter(pl.col("shape").list.len() > 0)
        .with_columns(elements=pl.col("shape").list.eval(pl.element().product()).list.first())
    )
    types = (
        shapes[["_call", "type"]]
        .explode("type")
        .with_columns(n=pl.int_range(pl.len()).over("_call"))
    )
    best = (
        tensors.join(types, on=["_call", "n"], how="left")
        .with_columns(size=pl.col("elements") * element_bytes(pl.col("type")))
        .drop_nulls("size")
        .sort("_call", "size", descending=[False, True], maintain_order=True)
        .unique("_call", keep="first", maintain_order=True)
    )
    sizes = shapes[["_call", "shapes", "dtypes"]].join(
        best.select("_call", op_bytes="size", op_dtype="type"), on="_call"
    )
    by_op = calls.join(sizes.drop("_call"), on=["shapes", "dtypes"], nulls_equal=True).select(
        "rank", "op_id", "op_bytes", "op_dtype", op_calls=pl.col("name").str.contains(_CALLS)
    )
    return frame.join(by_op, on=["rank", "op_id"], how="left", maintain_order="left")


def with_sizes(frame: pl.DataFrame) -> pl.DataFrame:
    """Fill ``bytes, bytes_source, dtype`` where null from the largest input (all-gather: times
    the ranks).
    """
    if frame["op_bytes"].is_null().all():
        return frame.drop("op_bytes", "op_dtype", "op_calls")
    # an operator that does more than communicate (a layer of experts) takes the data of its own
    # rank alone; a call that gathers or scatters moves the data of all ranks, whose sizes may
    # differ
    parts = pl.col("kind").is_in(["all_gather", "reduce_scatter"]) & ~pl.col("op_calls")
    whole = pl.col("op_bytes").is_not_null().all().over("call") & (
        pl.len().over("call") == pl.col("world")
    )
    size = (
        pl.when(parts)
        .then(pl.when(pl.col("call").is_not_null() & whole).then(pl.sum("op_bytes").over("call")))
        .when(pl.col("kind") == "all_gather")
        .then(pl.col("op_bytes") * pl.col("world"))
        .otherwise("op_bytes")
    )
    return frame.with_columns(
        bytes=pl.coalesce("bytes", size),
        bytes_source=pl.when(pl.col("bytes").is_not_null())
        .then("bytes_source")
        .when(size.is_not_null())
        .then(pl.lit("shapes")),
        dtype=pl.coalesce("dtype", pl.col("op_dtype").str.replace("c10::", "")),
    ).drop("op_bytes", "op_dtype", "op_calls")


_CALLS = r"(?i)all_?gather|reduce_?scatter|^c10d::|^record_param_comms|^nccl:|^gloo:"
"""An operator that is the collective itself."""
_SHAPES = r"^[\[\]\d,\s]+$"
"""Lists of sizes; a shape that holds anything else tells no size."""
_LISTS = r"[\[,]\s*\[\s*\["
"""A list of tensors among the inputs (one level deeper): the types inside of it are not written."""
_TYPES = r'^\[(?:\s*"[^"\\\\]*"\s*,?)*\]$'
