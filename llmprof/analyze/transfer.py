"""Transfer of keys and values between instances that prefill and instances that decode."""

from __future__ import annotations

from typing import Final, Literal

import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.analyze.collectives.collectives import link_peak_gbps
from llmprof.analyze.step_times import step_windows
from llmprof.errors import AnalysisError, NotCapturedError
from llmprof.label.intervals import length_within, union_length
from llmprof.label.steps.steps import steps_of
from llmprof.names.matching import first_true
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace
from llmprof.trace.schema import END

KINDS: Final = ("prefill", "decode")

BURST_NS: Final = 1_000_000
"""Copies of a rank with at least this time between them are of different bursts."""

REST_SHARE: Final = 0.5
"""An instance that decodes computes at most this share of the tokens of a prompt that one that
prefills does: the block that was not full.
"""

LEAST_BYTES: Final = 1 << 20
"""Least bytes of a burst from or to the host: smaller ones are inputs and outputs of steps."""

CONNECTORS: Final = {
    "NIXL": r"(?i)nixl_?(?:\w*connector|agent|api)",
    "LMCache": r"(?i)lmcache|\blmc::",
    "Mooncake": r"(?i)mooncake",
    "MoRI": r"(?i)\bmori_?io",
    "shared storage": r"(?:Example|SharedStorage|HF3FSKV)Connector|example_connector",
    "memory of the host": r"(?i)\w*Offload\w*Connector|offloading_connector|swap_blocks",
}
"""Connectors by names of their functions, ranges and kernels, and of the class in a configuration.
"""

FACTORS: Final = (1, 2, 4, 8, 16, 32)
"""How many times as large blocks are for which a transfer is predicted."""

VARIED: Final = 8
"""Times of copies tell the rate of the link if their sizes differ by this factor."""

MANY: Final = 10
"""Bursts tell the cost of a copy if they have a tenth of the copies of the largest."""

TTFT_PARTS: Final = (
    *("queue_ns", "prefill_ns", "handover_ns", "transfer_ns", "wait_ns", "decode_ns"),
    "delivery_ns",
)
"""Parts of the time to the first token."""


@Analysis(
    question="How long do keys and values travel from prefill to decode, and which side is the"
    " limit?",
    help="keys and values between instances that prefill and decode: bursts, sizes, requests",
    view="transfer",
    recorded="device activity or operators",
)
def transfer(
    trace: Trace,
    *,
    by: Literal["burst", "size", "block", "instance", "request"] = "burst",
    requests: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Transfer of keys and values between engines of which some prefill and others decode.

    Transfer are copies from device to device on streams that run no kernels, of engines with one
    device. If the recording names a connector, or has instances that only prefill and others that
    only decode, those of other engines count, too, and bursts of at least 1 MiB from or to the
    host. Copies with less than 1 ms between them are one burst.

    Larger blocks are predicted by a model of two terms: ``count * cost + bytes / link``. The cost
    of a copy is what bursts take beyond ``bytes / link``, by copy; its interval is that of the
    bursts. The link is the rate at which the time of a single copy grows with its size, where
    sizes differ by a factor of 8, or else the peak of the device's link.

    Parameters
    ----------
    trace : Trace
        Engines on one clock, or one of them.
    by : {"burst", "size", "block", "instance", "request"}
        Kind of row.
    requests : polars.DataFrame, optional
        For ``by="request"``: the ``requests`` of a run, or rows with ``request, start_epoch_ns,
        prefilled_ns`` (from the start to the answer of the instance that prefills), ``ttft_ns``
        (or null), ``e2e_ns, prompt_tokens, output_tokens``.

    Returns
    -------
    polars.DataFrame
        - By burst: ``rank, start_ns, dur_ns`` (first to last copy), ``copy_ns`` (a copy runs),
          ``bytes, count`` (copies), ``median_bytes`` (of a copy), ``gbps`` (over ``dur_ns``),
          ``peak_gbps`` (of the device's link in one direction; null if unknown), ``peak_share``,
          ``hidden_share`` (part of ``dur_ns`` in which the rank computes).
        - By size of the copies, most bytes first: ``kind, bytes, count, total_ns, median_ns,
          gbps`` (of a copy by itself).
        - By block: ``ratio`` (size over the recorded one), ``bytes`` (of a copy), ``count,
          predicted_ns, predicted_low_ns, predicted_high_ns`` (of all bursts), ``gbps``; for ratio
          1 the recorded time. Without a known rate of the link there are no rows.
        - By instance: ``instance, kind`` (prefill, decode, or both; null where no step says),
          ``connector`` (null if nothing names it), ``ranks, steps, prefill_tokens,
          decode_tokens``, ``busy_ns`` (in steps; mean of its ranks), ``busy_share`` (of the time
          from the first to the last step of all instances), ``ratio`` (steps of all of its kind
          over those of the other kind: as many instances of it for one of the other would be
          equally busy; null if the kinds are not apart).
        - By request, in the order of arrival: ``request, start_ns, ttft_ns`` and its parts:
          ``queue_ns`` (until its prefill begins), ``prefill_ns`` (first to last step with its
          prompt), ``handover_ns`` (until its first copy), ``transfer_ns`` (first to last copy),
          ``wait_ns`` (until a step takes it in), ``decode_ns`` (that step), ``delivery_ns`` (until
          the client had the token; null, and outside ``ttft_ns``, if the client did not say);
          ``prompt_tokens, bytes, gbps``; ``evidence``: ``tokens`` (the prompts are the tokens of
          the steps) or ``times`` (the last step that ended before the answer), ``bytes`` (its
          copies by the bytes of a token: before the step, after the prefill). Without ``bytes`` the
          transfer is all time from prefill to decode, handover and waiting are null.

    Raises
    ------
    NotCapturedError
        Nothing of a device was recorded, or requests are asked for that were not given or are in
        no step.
    AnalysisError
        There is more than one instance of a kind to which requests could belong.

    Examples
    --------
    >>> analyze.transfer(trace, by="instance")["kind"].to_list()
    ['both']
    """
    if by == "instance":
        return instances(trace)
    if by == "request":
        return _requests(trace, requests)
    copies = transfer_copies(trace)
    if by == "size":
        return _sizes(copies)
    bursts = _bursts(trace, copies)
    return bursts if by == "burst" else _blocks(trace, copies, bursts)


@per_trace
def transfer_copies(trace: Trace) -> pl.DataFrame:
    """Copies that move keys and values, with the number of their ``burst``."""
    if not trace.has("copies"):
        return trace.events.select(
            "rank", "start_ns", "dur_ns", kind="name", bytes=pl.lit(0), burst=pl.lit(0)
        ).clear()
    lane = ["rank", "device", "stream"]
    rows = trace.copies.filter(~pl.col("kind").is_in(["memset", "DtoD"]))
    if trace.has("kernels"):
        rows = rows.join(trace.kernels.select(lane).unique(), on=lane, how="anti", nulls_equal=True)
    rows = rows[["rank", "start_ns", "dur_ns", "kind", "bytes"]].sort("rank", "start_ns")
    peer = pl.col("kind") == "PtoP"
    lanes = [pl.col("rank"), peer]
    end = END.cum_max().shift(1).over(lanes)
    first = ((pl.col("start_ns") - end) >= BURST_NS).fill_null(True)
    rows = rows.with_columns(burst=first.cum_sum().over(lanes))
    much = pl.sum("bytes").over(*lanes, "burst") >= LEAST_BYTES
    rows = rows.filter(peer | much).with_columns(burst=pl.struct(*lanes, "burst").rank("dense"))
    if not rows.height or apart(found := instances(trace)) or connectors(trace):
        return rows
    # an engine with one device has no other reason to copy to another one
    alone = found.filter(pl.col("ranks").list.len() == 1)["ranks"].explode()
    return rows.filter(peer & pl.col("rank").is_in(alone.implode()))


def _bursts(trace: Trace, copies: pl.DataFrame) -> pl.DataFrame:
    end = END.max()
    rows = copies.group_by("rank", "burst").agg(
        pl.min("start_ns"),
        dur_ns=end - pl.min("start_ns"),
        bytes=pl.sum("bytes"),
        count=pl.len(),
        median_bytes=pl.median("bytes"),
    )
    busy = union_length(copies, ["rank", "burst"]).rename({"busy_ns": "copy_ns"})
    rows = rows.join(busy, on=["rank", "burst"]).sort("rank", "start_ns")
    work = trace.kernels if trace.has("kernels") else copies.clear()
    rows = length_within(rows, work[["rank", "start_ns", "dur_ns"]], ["rank"])
    gbps = pl.col("bytes") / pl.col("dur_ns")
    peak = pl.lit(link_peak_gbps(trace), dtype=pl.Float64)
    return rows.select(
        *("rank", "start_ns", "dur_ns", "copy_ns", "bytes", "count", "median_bytes"),
        gbps=gbps,
        peak_gbps=peak,
        peak_share=gbps / peak,
        hidden_share=pl.col("busy_ns") / pl.col("dur_ns"),
    )


def _sizes(copies: pl.DataFrame) -> pl.DataFrame:
    sums = copies.group_by("kind", "bytes").agg(
        count=pl.len(), total_ns=pl.sum("dur_ns"), median_ns=pl.median("dur_ns")
    )
    moved = pl.col("bytes") * pl.col("count")
    return sums.with_columns(gbps=moved / pl.col("total_ns")).sort(
        moved, "kind", "bytes", descending=[True, False, False]
    )


def _link_gbps(trace: Trace, copies: pl.DataFrame) -> float | None:
    """Rate at which copies of more bytes take longer, or the peak of the link."""
    sizes = copies.group_by("bytes").agg(ns=pl.median("dur_ns")).sort("bytes")
    if sizes.height > 1 and sizes["bytes"][-1] >= VARIED * sizes["bytes"][0]:
        slope = sizes.select(pl.cov("bytes", "ns") / pl.col("bytes").var()).item()
        if slope > 0:
            return float(1 / slope)
    return link_peak_gbps(trace)


def _blocks(trace: Trace, copies: pl.DataFrame, bursts: pl.DataFrame) -> pl.DataFrame:
    link = _link_gbps(trace, copies)
    count, moved, total_ns = (int(bursts[name].sum()) for name in ("count", "bytes", "dur_ns"))
    schema = {
        "ratio": pl.Int64,
        "bytes": pl.Float64,
        "count": pl.Float64,
        **dict.fromkeys(("predicted_ns", "predicted_low_ns", "predicted_high_ns"), pl.Float64),
        "gbps": pl.Float64,
    }
    if not link or not count:
        return pl.DataFrame(schema=schema)
    beyond = (pl.col("dur_ns") - pl.col("bytes") / link).clip(0)
    many = bursts.filter(pl.col("count") >= pl.max("count") / MANY)
    cost = many.select(
        mean=beyond.sum() / pl.sum("count"),
        low=(beyond / pl.col("count")).min(),
        high=(beyond / pl.col("count")).max(),
    ).row(0)
    size = float(copies["bytes"].median() or 0)  # type: ignore[arg-type]
    rows = []
    for factor in FACTORS:
        times = [count / factor * each + moved / link for each in cost]
        times = [float(total_ns)] * 3 if factor == 1 else times
        rows.append((factor, size * factor, count / factor, *times, moved / times[0]))
    return pl.DataFrame(rows, schema=schema, orient="row")


@per_trace
def instances(trace: Trace) -> pl.DataFrame:
    """Engines by their work: ``analyze.transfer(trace, by="instance")``."""
    rows = steps_of(trace).filter((pl.col("phase") != "empty") & (pl.col("source") != "capture"))
    told = [entry for entry in trace.meta.get("ranks") or () if isinstance(entry, dict)]
    known = {entry.get("rank"): entry.get("engine") for entry in told}
    # ranks of one engine run the same steps
    same = rows.group_by("rank").agg(pl.col("name").str.join("\n").hash())
    names = {rank: str(known.get(rank) or number) for rank, number in same.iter_rows()}
    others = dict(enumerate(dict.fromkeys(names.values())))
    title = {one: one if one in known.values() else f"engine {n}" for n, one in others.items()}
    of_rank = pl.col("rank").replace_strict(
        {rank: title[name] for rank, name in names.items()}, return_dtype=pl.String, default=None
    )
    windows = step_windows(trace).with_columns(instance=of_rank)
    end = (pl.col("start_ns") + pl.col("span_ns")).max()
    window_ns = windows.select(end - pl.min("start_ns")).item()
    busy = (
        windows.group_by("instance")
        .agg(busy_ns=(pl.sum("span_ns") / pl.n_unique("rank")).round().cast(pl.Int64))
        .with_columns(busy_share=pl.col("busy_ns") / window_ns)
    )
    first = rows.with_columns(instance=of_rank)
    first = first.filter(pl.col("rank") == pl.min("rank").over("instance"))
    each = pl.col("prefill_tokens") / pl.col("prefill_requests")
    found = first.group_by("instance").agg(
        steps=pl.len(),
        prefill_tokens=pl.sum("prefill_tokens"),
        decode_tokens=pl.sum("decode_tokens"),
        prompt=each.filter(each.is_finite()).max(),
        reads=pl.col("phase").is_in(["prefill", "mixed"]).sum(),
        writes=pl.col("phase").is_in(["decode", "mixed"]).any(),
    )
    # an engine that decodes, too, does so after a prompt
    reader = ~pl.col("writes") & (pl.col("reads") > 1)
    most = REST_SHARE * pl.col("prompt").filter(reader).min()
    rest = (pl.col("reads") == 0) | (pl.col("prompt") <= pl.max_horizontal(most, 1))
    kind = {"prefill": reader, "decode": pl.col("writes") & rest, "both": pl.col("writes")}
    found = found.with_columns(kind=first_true(kind))
    ranks = rows.group_by(instance=of_rank).agg(ranks=pl.col("rank").unique().sort())
    found = found.join(ranks, on="instance").join(busy, on="instance", how="left")
    of_kind = pl.sum("busy_ns")
    other = of_kind - of_kind.over("kind")
    ratio = pl.when(apart(found)).then(of_kind.over("kind") / other)
    connector = ", ".join(connectors(trace)) or None
    return (
        found.with_columns(connector=pl.lit(connector, dtype=pl.String), ratio=ratio)
        .sort(pl.col("ranks").list.first())
        .select(
            *("instance", "kind", "connector", "ranks", "steps", "prefill_tokens"),
            *("decode_tokens", "busy_ns", "busy_share", "ratio"),
        )
    )


def apart(found: pl.DataFrame) -> bool:
    """Whether every instance only prefills or only decodes, and both kinds are there."""
    return set(found["kind"]) == set(KINDS)


@per_trace
def connectors(trace: Trace) -> list[str]:
    """Connectors that the names of a recording, or the configuration of its run, tell of."""
    names = [
        trace.table(table)["name"].unique().drop_nulls()
        for table in ("kernels", "ops", "markers", "runtime")
        if trace.has(table)
    ]
    names.append(pl.Series([str(trace.meta.get("connector"))]))
    every = pl.concat([name.cast(pl.String) for name in names])
    return [known for known, pattern in CONNECTORS.items() if every.str.contains(pattern).any()]


_NEEDED: Final = (
    *("request", "start_epoch_ns", "prefilled_ns", "ttft_ns", "e2e_ns", "prompt_tokens"),
    "output_tokens",
)


def _requests(trace: Trace, given: pl.DataFrame | None) -> pl.DataFrame:
    if given is None or "prefilled_ns" not in given.columns:
        raise NotCapturedError(
            "no requests were given that say when they were prefilled",
            hint="analyze.transfer(run.trace, by='request', requests=run.requests) of a run with"
            " disaggregate",
        )
    epoch = trace.meta.get("start_epoch_ns")
    if not isinstance(epoch, int):
        raise NotCapturedError(
            "the trace does not say when it was recorded", hint="record with torch or nsys"
        )
    if "phase" in given.columns:
        given = given.filter(phase="profiled")
    found = instances(trace)
    sides = {kind: found.filter(kind=kind) for kind in KINDS}
    for kind, rows in sides.items():
        if rows.height != 1:
            raise AnalysisError(
                f"the trace has {rows.height} instances that only {kind}",
                expected="one, to which all requests belong",
            )
    steps = steps_of(trace).filter(pl.col("start_ns").is_not_null() & (pl.col("phase") != "empty"))
    steps = steps.with_columns(end_ns=END)
    prefill, decode = (
        steps.filter(pl.col("rank") == rows["ranks"][0][0]).sort("start_ns")
        for rows in sides.values()
    )
    start = pl.col("start_epoch_ns") - epoch
    rows = (
        given.select(_NEEDED)
        .drop_nulls(["start_epoch_ns", "prefilled_ns", "e2e_ns"])
        .with_columns(start_ns=start, prefilled_ns=start + pl.col("prefilled_ns"))
        .sort("prefilled_ns")
    )
    rows = _prefilled(rows, prefill)
    rows = _taken_in(rows, decode)
    rows = _copied(rows, transfer_copies(trace))
    ready = pl.coalesce("last_ns", "end_ns")
    sent = pl.max_horizontal("first_ns", "end_ns")
    known = pl.col("last_ns").is_not_null()
    told = pl.col("start_ns") + pl.col("ttft_ns")
    rows = rows.with_columns(
        queue_ns=pl.col("begin_ns") - pl.col("start_ns"),
        prefill_ns=pl.col("end_ns") - pl.col("begin_ns"),
        handover_ns=pl.when(known).then(sent - pl.col("end_ns")),
        transfer_ns=pl.when(known)
        .then(pl.max_horizontal(ready - sent, 0))
        .otherwise(pl.col("taken_ns") - pl.col("end_ns")),
        wait_ns=pl.when(known).then(pl.col("taken_ns") - pl.max_horizontal(ready, "end_ns")),
        decode_ns=pl.col("decoded_ns") - pl.col("taken_ns"),
        delivery_ns=told - pl.col("decoded_ns"),
        ttft_ns=pl.coalesce(told, "decoded_ns") - pl.col("start_ns"),
    )
    lost = rows.filter(pl.any_horizontal(pl.col(TTFT_PARTS) < -BURST_NS)).height
    rows = rows.filter(pl.all_horizontal((pl.col(TTFT_PARTS) >= -BURST_NS).fill_null(True)))
    if not rows.height:
        raise NotCapturedError(
            f"none of {lost} requests was prefilled and decoded in recorded steps",
            expected="requests of the recorded time, on its clock",
        )
    return rows.sort("start_ns").select(
        *("request", "start_ns", "ttft_ns", *TTFT_PARTS, "prompt_tokens", "bytes"),
        (pl.col("bytes") / pl.col("transfer_ns")).alias("gbps"),
        "evidence",
    )


def _prefilled(rows: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """First and last step with the prompt of each request, which come in the order of answers."""
    steps = steps.filter(pl.col("phase") != "decode")
    read, prompts = steps["prefill_tokens"].cum_sum(), rows["prompt_tokens"].cum_sum()
    by_tokens = steps.height > 0 and rows.height > 0 and read[-1] == prompts[-1]
    if by_tokens:
        first = read.search_sorted(prompts - rows["prompt_tokens"], "right")
        last = read.search_sorted(prompts, "left")
        by_tokens = bool((steps["end_ns"].gather(last) <= rows["prefilled_ns"]).all())
    if not by_tokens:
        last = steps["end_ns"].cum_max().search_sorted(rows["prefilled_ns"], "right")
        last = first = last.cast(pl.Int64) - 1
        last = first = last.set(last < 0, None)
    return rows.with_columns(
        begin_ns=steps["start_ns"].gather(first),
        end_ns=steps["end_ns"].gather(last),
        evidence=pl.lit("tokens" if by_tokens else "times"),
    )


def _taken_in(rows: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The step that made the first token of each request: one that takes in prompts, in the order
    of first tokens, or else the last of these before it.
    """
    told = rows["ttft_ns"].is_not_null()
    came = rows.select(pl.col("start_ns") + pl.coalesce("ttft_ns", "e2e_ns")).to_series()
    last = steps["end_ns"].cum_max().search_sorted(came, "right").cast(pl.Int64) - 1
    after = rows["output_tokens"].cast(pl.Int64) - 1
    rows = rows.with_columns(at=last - after.set(told, 0)).sort("at", maintain_order=True)
    taking = steps.with_row_index("at").filter(pl.col("prefill_requests") > 0)
    taken = taking.select(pl.col("at").repeat_by("prefill_requests").explode()).to_series()
    if taken.len() != rows.height:
        before = taking["at"].search_sorted(rows["at"], "right").cast(pl.Int64) - 1
        taken = taking["at"].gather(before.set(before < 0, None))
    return rows.with_columns(
        taken_ns=steps["start_ns"].gather(taken), decoded_ns=steps["end_ns"].gather(taken)
    ).sort("prefilled_ns")


def _copied(rows: pl.DataFrame, copies: pl.DataFrame) -> pl.DataFrame:
    """First and last copy of each request, if the bytes of the prompts in their order fit the times
    of all of them.
    """
    copies = copies.sort("start_ns")
    moved, tokens = copies["bytes"].cum_sum(), rows["prompt_tokens"].sum()
    unknown = rows.with_columns(
        pl.lit(None, pl.Int64).alias(name) for name in ("first_ns", "last_ns", "bytes")
    )
    if not copies.height or not tokens or moved[-1] % tokens or rows["evidence"][0] != "tokens":
        return unknown
    each = rows["prompt_tokens"] * (moved[-1] // tokens)
    first = moved.search_sorted(each.cum_sum() - each, "right")
    last = moved.search_sorted(each.cum_sum(), "left")
    end = (copies["start_ns"] + copies["dur_ns"]).gather(last)
    found = rows.with_columns(
        first_ns=copies["start_ns"].gather(first),
        last_ns=end,
        bytes=each,
        evidence=pl.lit("tokens, bytes"),
    )
    fits = found.select(
        (pl.col("last_ns") <= pl.col("taken_ns")) & (pl.col("first_ns") >= pl.col("begin_ns"))
    ).to_series()
    return found if fits.all() else unknown
