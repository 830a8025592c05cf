"""Fusion candidates: chains of short kernels that always follow each other, and what one kernel
would save.
"""

from __future__ import annotations

import json
import math
import re
from typing import Final

import numpy as np
import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.errors import NotCapturedError, NotNegative
from llmprof.names.dtypes import element_type
from llmprof.replay.changes import ReplayChange
from llmprof.replay.plan import ReplayPlan
from llmprof.replay.what_if import means_of
from llmprof.trace import Trace
from llmprof.trace.schema import END

ALWAYS: Final = 0.9
"""One kernel counts as always following another if it does so in at least this share of the runs
of both.
"""

_GAINS: Final = ("gain_ns", "gain_low_ns", "gain_high_ns", "recorded_ns")
_MIN_COUNT: Final = 4
_MAX_MEMBERS: Final = 64

_PARTS: Final = {
    "norm": "n",
    "quantize": "q",
    "rope": "r",
    "kv_cache_write": "k",
    "activation": "a",
    "elementwise": "e",
    "copy": "c",
    "fill": "f",
    "moe_routing": "m",
    "embedding": "d",
}
"""Categories of kernels that read and write memory and compute little, each with a letter."""

_ALL_REDUCE: Final = "R"
_UNKNOWN: Final = "x"

KNOWN: Final = (
    (r"Rnq", "all-reduce + norm + quantize"),
    (r"Rn", "all-reduce + norm"),
    (r"nq", "norm + quantize"),
    (r"aq", "activation + quantize"),
    (r"n+rk", "QK norm + RoPE + KV write"),
    (r"n+r", "QK norm + RoPE"),
    (r"rk", "RoPE + KV write"),
    (r"rqk|rkq", "RoPE + quantize + KV write"),
    (r"[ecf]{2,}", "elementwise and reductions"),
)
"""Fusions that engines and compilers have, by the categories of a whole chain in order: vLLM's
compilation passes (``fuse_norm_quant``, ``fuse_act_quant``, ``fuse_allreduce_rms``,
``enable_qk_norm_rope_fusion``, ``fuse_rope_kvcache``), and fusions of element-wise and
row-reduction kernels, which every compiler has.
"""

_SCHEMA: Final = {
    "phase": pl.String(),
    "name": pl.String(),
    "category": pl.String(),
    "kernels": pl.String(),
    "length": pl.Int64(),
    "count": pl.Int64(),
    "per_step": pl.Float64(),
    "saved_launches": pl.Int64(),
    "total_ns": pl.Int64(),
    "gap_ns": pl.Int64(),
    "share": pl.Float64(),
    "saved_bytes": pl.Int64(),
    "gain_ns": pl.Float64(),
    "gain_low_ns": pl.Float64(),
    "gain_high_ns": pl.Float64(),
    "recorded_ns": pl.Float64(),
}


@Analysis(
    question="Which short kernels always follow each other, and would be one kernel?",
    help="chains of short kernels that one kernel could replace, and the gain",
    view="fusion",
    recorded="kernels",
)
def fusion(trace: Trace, *, max_ns: NotNegative = 20_000, predict: NotNegative = 6) -> pl.DataFrame:
    """Chains of short kernels that always follow each other on a stream.

    A kernel here is a name in a stage of a phase. Two are linked if the second directly follows the
    first in at least 90 % of the runs of both (the first and last layer often differ), on one
    stream and in one step. Matrix products and attention do not count, only kernels that mainly
    move memory; an all-reduce may begin a chain. The recording does not say whether other kernels
    need the results in between.

    Parameters
    ----------
    trace : Trace
        A trace with kernels.
    max_ns : int
        Longest median time of a short kernel, in ns; an all-reduce may be longer, since it waits.
    predict : int
        Number of chains whose gain a replay predicts, those with the most time first.

    Returns
    -------
    polars.DataFrame
        The largest first: ``phase, name`` (a known fusion of engines or compilers with the
        categories of the whole chain; null for any other), ``category`` (in order, with ``+``),
        ``kernels`` (names, one a line), ``length``, ``count`` (chains), ``per_step`` (chains in
        each step), ``saved_launches`` (of the recording), ``total_ns`` (of the chains' kernels),
        ``gap_ns`` (between them), ``share`` (of the summed time of all kernels), ``saved_bytes``
        (of the recording: not written and read again between the kernels; null if the shapes of
        their operators do not say it), ``gain_ns`` with ``gain_low_ns, gain_high_ns`` (of a step of
        ``recorded_ns``, by :func:`~llmprof.analyze.what_if`; null where none was predicted).

    Raises
    ------
    NotCapturedError
        The trace holds no kernels.

    Examples
    --------
    >>> frame = analyze.fusion(trace)
    """
    if not trace.has("kernels"):
        found = "this capture holds no kernels"
        raise NotCapturedError(
            found, hint=f"record it with {trace.capture.how_to_record('kernels')}", table="kernels"
        )
    events = chains(trace, max_ns)
    linked = events.drop_nulls("chain")
    if linked.is_empty():
        return pl.DataFrame(schema=_SCHEMA)
    linked = _add_bytes(linked, trace)
    candidates, members = _sum_members(linked, events)
    gains = _gains(trace, members, candidates.head(int(predict)))
    candidates = candidates.join(gains, on="_candidate", how="left", maintain_order="left")
    return candidates.select(pl.col(name).cast(dtype) for name, dtype in _SCHEMA.items())


def chains(trace: Trace, max_ns: float) -> pl.DataFrame:
    """Device events in the order of their streams, with the number of their chain (null if they
    are in none).
    """
    on = ["rank", "device", "stream"]
    letter = (
        pl.when((pl.col("category") == "collective") & _ALL_REDUCES)
        .then(pl.lit(_ALL_REDUCE))
        .otherwise(
            pl.col("category").replace_strict(_PARTS, default=_UNKNOWN, return_dtype=pl.String)
        )
    )
    events = trace.events.filter(pl.col("source").is_in(["kernel", "copy"])).sort(*on, "start_ns")
    events = events.select(
        "event",
        *on,
        "step",
        "phase",
        "stage",
        "name",
        "source",
        "start_ns",
        "dur_ns",
        "operator",
        "shapes",
        "dtypes",
        letter=pl.when(pl.col("source") == "kernel").then(letter).otherwise(pl.lit(_UNKNOWN)),
        identity=pl.struct("phase", "stage", "name", "source").rank("dense"),
    )
    short = pl.median("dur_ns").over("identity") <= max_ns
    eligible = (pl.col("letter") != _UNKNOWN) & (short | (pl.col("letter") == _ALL_REDUCE))
    after = pl.col("identity").shift(-1)
    same = pl.all_horizontal(
        pl.col(key).eq_missing(pl.col(key).shift(-1)) for key in (*on, "step", "phase")
    )
    events = events.with_columns(_eligible=eligible, _same=same.fill_null(False), _after=after)
    pairs = pl.when("_same").then(pl.len().over("identity", "_after")).otherwise(0)
    pairs = pl.when("_same").then(pl.sum("_same").over("identity", "_after")).otherwise(pairs)
    events = events.with_columns(_pairs=pairs, _runs=pl.len().over("identity"))
    always = pl.col("_pairs") >= ALWAYS * pl.max_horizontal("_runs", pl.col("_runs").shift(-1))
    link = (
        pl.col("_same")
        & always
        & pl.col("_eligible")
        & pl.col("_eligible").shift(-1)
        & (pl.col("letter").shift(-1) != _ALL_REDUCE)
        & (pl.col("_pairs") >= _MIN_COUNT)
    )
    events = events.with_columns(_link=link.fill_null(False))
    joined = pl.col("_link").shift(1).fill_null(False)
    events = events.with_columns(_joined=joined, chain=(~joined).cum_sum())
    in_one = pl.col("_link") | pl.col("_joined")
    return events.with_columns(chain=pl.when(in_one).then("chain")).drop("^_.*$")


_ALL_REDUCES: Final = pl.col("name").str.contains(r"(?i)all_?reduce|cross_device_reduce")


def _add_bytes(linked: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Members of chains with the bytes between each and the next that need not go to memory;
    null if unknown.
    """
    if not trace.has("ops"):
        return linked.with_columns(bytes=pl.lit(None, pl.Int64))
    last = pl.col("chain") != pl.col("chain").shift(-1)
    after = ("operator", "shapes", "dtypes")
    rows = linked.with_columns(
        _last=last.fill_null(True), **{f"_{name}": pl.col(name).shift(-1) for name in after}
    )
    keys = ["shapes", "dtypes", "_shapes", "_dtypes"]
    pairs = rows.filter(~pl.col("_last")).select(keys).unique()
    sizes = pl.Series("bytes", [passed_bytes(*row) for row in pairs.iter_rows()], dtype=pl.Int64)
    rows = rows.join(
        pairs.with_columns(sizes), on=keys, how="left", nulls_equal=True, maintain_order="left"
    )
    part = (
        pl.col("letter").shift(-1) == _PARTS["embedding"]
    )  # an embedding look-up reads only some rows
    known = pl.when(~part.fill_null(False)).then("bytes")
    return rows.with_columns(bytes=pl.when("_last").then(0).otherwise(known))


def passed_bytes(
    shapes: str | None, dtypes: str | None, next_shapes: str | None, next_dtypes: str | None
) -> int | None:
    """Bytes written by one operator and read by the next: twice the only tensor that both have."""
    both = _tensors(shapes, dtypes) & _tensors(next_shapes, next_dtypes)
    return 2 * next(iter(both))[1] if len(both) == 1 else None


def _tensors(shapes: str | None, dtypes: str | None) -> set[tuple[tuple[int, ...], int]]:
    """Shapes and bytes of the tensors with at least two axes, without indices."""
    try:
        sizes, types = json.loads(shapes or "[]"), json.loads(dtypes or "[]")
    except ValueError:
        return set()
    out = set()
    for size, kind in (
        zip(sizes, types, strict=False)
        if isinstance(sizes, list) and isinstance(types, list)
        else ()
    ):
        whole = (
            isinstance(size, list)
            and len(size) > 1
            and all(isinstance(n, int) and 0 < n < 1 << 32 for n in size)
        )
        dtype = element_type(kind) if isinstance(kind, str) else None
        if whole and dtype and dtype.torch and "int" not in dtype.format:
            out.add((tuple(size), math.prod(size) * dtype.bytes))
    return out


def _sum_members(linked: pl.DataFrame, events: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Equal chains summed up in one row, and the events of each."""
    words = {letter: name for name, letter in _PARTS.items()} | {_ALL_REDUCE: "all_reduce"}
    each = (
        linked.group_by("chain", maintain_order=True)
        .agg(
            pl.first("phase"),
            pl.first("step"),
            pl.first("rank"),
            kernels=pl.col("name").str.join("\n"),
            stages=pl.col("stage").fill_null("").str.join("+"),
            letters=pl.col("letter").str.join(""),
            length=pl.len().cast(pl.Int64),
            total_ns=pl.sum("dur_ns"),
            gap_ns=(pl.col("start_ns").shift(-1) - END).clip(0).sum(),
            events="event",
            saved_bytes=pl.when(pl.col("bytes").is_not_null().all()).then(pl.sum("bytes")),
        )
        .filter(pl.col("length") <= _MAX_MEMBERS)
    )
    keys = ["phase", "letters", "kernels", "stages"]
    steps = (
        events.drop_nulls("step").group_by("phase").agg(_steps=pl.struct("rank", "step").n_unique())
    )
    whole = events.filter(source="kernel")["dur_ns"].sum()
    candidates = (
        each.group_by(keys, maintain_order=True)
        .agg(
            pl.first("length"),
            count=pl.len().cast(pl.Int64),
            total_ns=pl.sum("total_ns"),
            gap_ns=pl.sum("gap_ns"),
            events=pl.col("events").explode(),
            _in=pl.col("step").is_not_null().sum(),
            saved_bytes=pl.when(pl.col("saved_bytes").is_not_null().all()).then(
                pl.sum("saved_bytes")
            ),
        )
        .filter(pl.col("count") >= _MIN_COUNT)
    )
    candidates = candidates.join(
        steps, on="phase", how="left", nulls_equal=True, maintain_order="left"
    )
    made = [_member_names(letters) for letters in candidates["letters"]]
    candidates = candidates.with_columns(
        name=pl.Series(made, dtype=pl.String),
        category=pl.Series(
            [" + ".join(words[one] for one in letters) for letters in candidates["letters"]],
            dtype=pl.String,
        ),
        saved_launches=pl.col("count") * (pl.col("length") - 1),
        share=pl.col("total_ns") / max(1, whole),
        per_step=pl.when(pl.col("_steps") > 0).then(pl.col("_in") / pl.col("_steps")),
    ).sort(
        pl.col("total_ns") + pl.col("gap_ns").clip(upper_bound=pl.col("total_ns")), descending=True
    )
    candidates = candidates.with_row_index("_candidate")
    members = candidates.select("_candidate", event="events").explode("event")
    return candidates, members.join(
        linked[["event", "chain"]], on="event", how="left", maintain_order="left"
    )


def _member_names(letters: str) -> str | None:
    """Name of a known fusion, if the whole chain is one."""
    return next((name for pattern, name in KNOWN if re.fullmatch(pattern, letters)), None)


def _gains(trace: Trace, members: pl.DataFrame, candidates: pl.DataFrame) -> pl.DataFrame:
    """Predicted gain of each candidate for a step of its phase, from a replay:

    ``_candidate`` and the gains.
    """
    each = [
        members.filter(_candidate=n).select("event", _chain="chain")
        for n in candidates["_candidate"]
    ]
    steps = [
        medians.filter(pl.col("phase").eq_missing(pl.lit(phase, dtype=pl.String))).select(
            pl.lit(n, dtype=pl.UInt32).alias("_candidate"), pl.col(_GAINS).cast(pl.Float64)
        )
        for (n, phase), medians in zip(
            candidates[["_candidate", "phase"]].iter_rows(),
            means_of(trace, [_one_kernel(events) for events in each]),
            strict=True,
        )
    ]
    schema = {"_candidate": pl.UInt32, **dict.fromkeys(_GAINS, pl.Float64)}
    return pl.concat([pl.DataFrame(schema=schema), *steps])


def _one_kernel(events: pl.DataFrame) -> ReplayChange:
    """One kernel in place of each chain of events."""

    def apply(plan: ReplayPlan, trace: Trace) -> None:
        numbers = plan.events["event"].fill_null(0).to_numpy()  # null: a call of the host
        chain_of = np.full(int(max(numbers.max(initial=0), events["event"].max() or 0)) + 1, -1)
        chain_of[events["event"].to_numpy()] = events["_chain"].to_numpy()
        chain = chain_of[numbers]
        rows = (chain >= 0) & plan.device
        follows = np.zeros(len(rows), dtype=bool)
        follows[1:] = rows[1:] & rows[:-1] & (chain[1:] == chain[:-1])
        plan.make_one(rows, follows)

    return ReplayChange("a chain fused", "between the longest part and the sum of the parts", apply)
