"""The same call on different ranks: matched by order within a group, checked by when it ends.

Where a kernel does not name its group (custom all-reduce, NCCL called without torch), the groups are found from the
ends: the ranks of one call leave it together, so over all calls the difference of their ends hardly varies. A
difference that is large but constant is a difference of clocks.
"""

from __future__ import annotations

import polars as pl

LEAVES_EARLY = ("send_recv", "broadcast", "reduce")
"""Kinds in which a rank may be done before another one has begun (it has sent into a buffer)."""

NEAR_NS = 10_000
"""The ends of one call on two ranks are this close …"""

NEAR_SHARE = 0.8
"""… in at least this share of the calls, if the two ranks call together …"""

NEAR_EARLY_NS, NEAR_EARLY_SHARE = 50_000, 0.5
"""… or so close in this share, for kinds that a rank may leave early."""

CLOCK_CALLS = 8
"""A constant difference of ends beyond ``NEAR_NS`` is one of clocks if so many calls say so: few may look alike."""


def match_calls(frame: pl.DataFrame) -> pl.DataFrame:
    """Number the calls.

    Parameters
    ----------
    frame : polars.DataFrame
        Rows of the table of collectives.

    Returns
    -------
    polars.DataFrame
        With ``call`` (int64, null where a row has no counterpart on a rank that should have one),
        ``ranks_in_group`` (int32: ranks of this trace that call together) and ``clock_offset_ns`` (int64).
    """
    frame = frame.sort("rank", "start_ns", maintain_order=True).with_row_index("_row")
    frame = frame.with_columns(clock_offset_ns=_clock_offsets(frame))
    ends = frame.select(
        "_row", "rank", "group", "group_ranks", "kind", "world",
        end=pl.col("start_ns") + pl.col("dur_ns") - pl.col("clock_offset_ns"),
    )  # fmt: skip
    parts, calls = [], 0
    for (group, _, kind), rows in ends.group_by("group", "group_ranks", "kind", maintain_order=True):
        by_rank = {int(key[0]): part.sort("end") for key, part in rows.group_by("rank", maintain_order=True)}
        fits = rows["world"].is_null().all() or len(by_rank) <= max(rows["world"].drop_nulls())
        for members in _sets(by_rank, trusted=group is not None and fits, synchronises=kind not in LEAVES_EARLY):
            matched = pl.concat(members).with_columns(
                pl.col("call") + calls, ranks_in_group=pl.lit(len(members), dtype=pl.Int32)
            )
            highest = matched["call"].max()
            calls = highest + 1 if isinstance(highest, int) else calls
            parts.append(matched)
    columns = pl.concat(parts) if parts else _NO_CALLS
    return frame.join(columns, on="_row", how="left", maintain_order="left").drop("_row")


_NO_CALLS = pl.DataFrame(schema={"_row": pl.UInt32, "call": pl.Int64, "ranks_in_group": pl.Int32})


def _sets(ranks: dict[int, pl.DataFrame], *, trusted: bool, synchronises: bool) -> list[list[pl.DataFrame]]:
    """Calls of one group and kind (``_row, end`` by rank), parted into sets of ranks that call together.

    A set is a list of frames ``_row, call``, one a rank. Where the group is known by its name, ``trusted``, equal
    counts are enough; else the ends must agree.
    """
    waiting = sorted(ranks)
    found = []
    while waiting:
        reference = max(waiting, key=lambda rank: (ranks[rank].height, -rank))
        numbered = ranks[reference].with_row_index("call").with_columns(pl.col("call").cast(pl.Int64))
        members = {reference: numbered}
        for rank in [r for r in waiting if r != reference]:
            own = ranks[rank]
            if own.height == numbered.height and (
                trusted or _together(own["end"] - numbered["end"], synchronises=synchronises)
            ):
                members[rank] = own.with_columns(numbered["call"])
            elif synchronises and (near := _nearest(numbered, own)) is not None:
                members[rank] = near
        waiting = [rank for rank in waiting if rank not in members]
        found.append([members[rank].select("_row", "call") for rank in sorted(members)])
    return found


def _together(difference: pl.Series, *, synchronises: bool = True) -> bool:
    """Whether two ranks leave their calls together, from the differences of the ends."""
    limit, least = (NEAR_NS, NEAR_SHARE) if synchronises else (NEAR_EARLY_NS, NEAR_EARLY_SHARE)
    near = (difference.abs() <= limit).mean()
    return isinstance(near, float) and near >= least


def _nearest(reference: pl.DataFrame, own: pl.DataFrame) -> pl.DataFrame | None:
    """Calls of a rank whose recording began later, ended earlier or has holes; None if they are not the same ones."""
    matched = own.join_asof(
        reference.select("call", "end"), on="end", strategy="nearest", tolerance=NEAR_NS, check_sortedness=False
    )
    common = pl.col("end").is_between(reference["end"][0] - NEAR_NS, reference["end"][-1] + NEAR_NS)
    share = matched.filter(common).select(pl.col("call").is_not_null().mean()).item()
    if share is None or share < NEAR_SHARE:
        return None
    alone = pl.len().over("call") == 1
    return matched.with_columns(call=pl.when(alone).then("call"))


def _clock_offsets(frame: pl.DataFrame) -> pl.Series:
    """How far the clock of each row's rank is ahead of that of the lowest rank that it calls together with (ns)."""
    ends: dict[int, dict[tuple[object, ...], pl.Series]] = {}
    rows = frame.filter(~pl.col("kind").is_in(LEAVES_EARLY))
    for (rank, *key), part in rows.group_by("rank", "group", "group_ranks", "kind", maintain_order=True):
        ends.setdefault(int(rank), {})[tuple(key)] = (part["start_ns"] + part["dur_ns"]).sort()
    offsets: dict[int, int] = {}
    for reference in sorted(ends):
        if reference in offsets:
            continue
        offsets[reference] = 0
        for rank in sorted(ends.keys() - offsets.keys()):
            ahead = _clock_offset(ends[reference], ends[rank])
            if ahead is not None:
                offsets[rank] = ahead
    return frame["rank"].replace_strict(offsets, default=0, return_dtype=pl.Int64)


def _clock_offset(a: dict[tuple[object, ...], pl.Series], b: dict[tuple[object, ...], pl.Series]) -> int | None:
    """How far the clock of one rank is ahead of another's; None if they do not call together."""
    common = [key for key in a if key in b and a[key].len() == b[key].len()]
    if not common:
        return None
    key = max(common, key=lambda k: a[k].len())
    difference = b[key] - a[key]
    middle = difference.median()
    if not isinstance(middle, int | float) or not _together(difference - int(middle)):
        return None
    if abs(middle) <= NEAR_NS:
        return 0
    return int(middle) if difference.len() >= CLOCK_CALLS else None
