"""Why a device waits for its host, where the name of the call or function says it."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from llmprof.analyze.idle.gaps import LAUNCH_NS
from llmprof.analyze.idle.host import innermost_within
from llmprof.label.groups import is_sorted, row_numbers
from llmprof.label.intervals import merge
from llmprof.names.matching import by_distinct, remembered
from llmprof.trace.schema import END

REASONS: Final = {
    "allocation": (
        ("call",),
        r"^(?:(?:\w+@)?(?:cuda|cu|hip|mu|musa|aclrt)_?|Runtime@(?:Dev)?)"
        r"(?:(?:Mem|Host|Array|Pool)+Create|(?:Mem|Host|Array|Pool)*"
        r"(?:Malloc|Free|Alloc|Register|Unregister|Release|Map|Unmap|AddressReserve|AddressFree|SetAccess))",
    ),
    "compilation": (
        ("call", "op", "python", "range"),
        r"(?i)nvrtc|hiprtc|CompileProgram|cuLink(?:Create|Add|Complete)|aclopCompile$|\bopCompile\b|compile_fx|async_compile"
        r"|torch/_(?:inductor|dynamo)|triton/(?:compiler|runtime/build|backends)|(?:deep_gemm|flashinfer|tilelang)/jit"
        r"|\(dynamo_timed\)|^PythonDispatchMode$"
        r"|jit_?compil|\bcompile\(|: compile$|ptxas|\bninja\b",
    ),
    "loading": (("call", "range"), r"(?i)Module_?Load|LibraryLoad|BinaryLoad|ModuleGet|LibraryGet"),
    "device_set_up": (
        ("call",),
        r"^(?:\w+@)?(?:cuda|cu|hip|mu|musa|aclrt)_?(?:(?:Stream|Event|Ctx|Context)Create|Create(?:Stream|Event|Context)|Init|SetDevice$"
        r"|DeviceGetStreamPriority|DevicePrimaryCtx|DeviceEnablePeer|DeviceReset)",
    ),
    "data_loading": (("op", "python", "range"), r"(?i)DataLoader|torch/utils/data/|_next_data"),
    "input_preparation": (
        ("op", "python", "range"),
        r"(?i)image_process|image_transform|preprocess|torchvision/transforms|feature_extract|tokeniz"
        r"|zoom_shift|scipy/ndimage|\bPIL/|\bcv2\b|librosa|torchaudio",
    ),
}
"""For each reason, the kinds of what the host does (a call, an operator, Python or a range), and
names.
"""

WHAT_RUNS: Final = (
    r"torch/_inductor/(?:cudagraph_trees|output_code|utils)\.py|torch/_dynamo/eval_frame\.py"
    r"|torch/_inductor/runtime/(?:triton_heuristics\.py\(\d+\): (?:run|launcher|__call__)$|static_)"
    r"|torch/_inductor/compile_fx\.py\(\d+\): (?:run|wrapper|runnable)$"
)
"""Functions of compilers that launch or record what was compiled before."""

TIMES_LOAD: Final = 10
"""Host time that ends in loading new code, of this many times the loading, was for this code."""

MADE_AT_RUN_TIME: Final = r"^[a-z_][a-z0-9_]*$"
FROM_LIBRARY: Final = r"^(?:nvjet|ampere|volta|turing|hopper|sm\d|cutlass|cudnn|implicit|gemm)"
"""Kernels of Triton and other compilers have names of Python functions, as some of libraries do."""

BEFORE: Final = "code before "
"""What the host was in, where nothing of it but the call at its end was recorded."""

BEFORE_LAUNCH_NS: Final = 1_000_000
"""Code that is loaded within this time before a launch is the code of what is launched."""

LONG_LAUNCH_NS: Final = 1_000_000
"""A launch on an idle device takes 5 to 50 us; the first of a kernel, which loads its code, can
take 100 ms.
"""


OWN_TIME_ONLY: Final = (
    ("compilation", "python"),
    ("input_preparation", "range"),
    ("input_preparation", "op"),
)
"""Reasons of kinds that also call other work, such as what a compiler has made: only their own
time counts.
"""


def pauses_of(
    parts: pl.DataFrame,
    pieces: pl.DataFrame,
    spans: pl.DataFrame,
    calls: pl.DataFrame,
    kernels: pl.DataFrame | None,
) -> pl.DataFrame:
    """Parts of gaps (with their ``thread``) in pieces by what the host was in, and whether it
    has a reason.
    """
    # In place of `host_activity, host_kind` of a whole part stand those of the piece,
    # null where nothing was recorded, with `part` (a number), `who` (the call or function that the
    # device waits for) and `reason`, its kind, and `waited_ns`, for which the kernel after it
    # waited by the profiler's own record.
    parts = _add_waits(parts, kernels).with_row_index("part")
    late = parts.filter(pl.col("cause").is_in(["host_bound", "launch", "sync"]))
    held = parts.filter((pl.col("cause") == "queued") & (pl.col("waited_kind") == "call"))
    of_held = calls.join(
        held.select("rank", name="waited_name").unique(), on=["rank", "name"], how="semi"
    )
    pieces = pl.concat([_thread_pieces(late, pieces, spans), _call_pieces(held, of_held)])
    rows = parts.drop("host_name", "host_kind", "host_share", "whole")
    rows = rows.with_columns(begun_ns="start_ns")
    if pieces.is_empty():
        rows = rows.with_columns(**_UNRECORDED)
    else:
        pieces = pl.concat([pieces, _remaining_pieces(parts, pieces)])
        order = np.argsort(pieces["part"].to_numpy(), kind="stable")
        pieces = pieces[order]
        rows = rows.drop("start_ns", "dur_ns")[pieces["part"]].hstack(pieces.drop("part"))
    rows = _with_new_code(rows, calls)
    piece_of_call = pl.col("who").is_not_null()
    in_held = (pl.col("cause") == "queued") & (pl.col("waited_kind") == "call")
    first = _first_uses(rows, kernels)
    after_call = pl.Series(
        "call", host_reasons(rows.select(who="call", kind=pl.lit("call")))
    ).is_not_null()
    return rows.with_columns(
        # after a call with a reason the host is late; what lies outside of a call that holds the
        # device has no cause
        cause=pl.when(pl.col("reason").is_null() & after_call)
        .then(pl.lit("host_bound"))
        .otherwise("cause"),
        waited_name=pl.when(~in_held | piece_of_call).then("waited_name"),
        waited_kind=pl.when(~in_held | piece_of_call).then("waited_kind"),
        reason=pl.when(first & pl.col("reason").is_null() & pl.col("host_name").is_not_null())
        .then(pl.lit("loading"))
        .otherwise("reason"),
    )


_UNRECORDED: Final = dict.fromkeys(
    ("host_name", "host_kind", "who", "reason"), pl.lit(None, pl.String)
)
"""Of a piece in which nothing of the host was recorded."""


def _thread_pieces(late: pl.DataFrame, pieces: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Pieces by the innermost span of the launching thread, and by the innermost one around it
    with a reason.
    """
    reason = host_reasons(spans.select(who="name", kind="kind"))
    owner = np.where(reason.is_not_null().to_numpy(), np.arange(spans.height), -1)
    whole = reason.is_not_null()
    for own, kind in OWN_TIME_ONLY:
        whole &= (reason != own) | (spans["kind"] != kind)
    if whole.any():
        passed = np.where(whole.to_numpy(), np.arange(spans.height), -1)
        above = spans["parent"].fill_null(-1).to_numpy().astype(np.int64)
        while ((passed < 0) & (above >= 0)).any():  # each round looks twice as far up
            look = (passed < 0) & (above >= 0)
            passed[look], above[look] = passed[above[look]], above[above[look]]
        owner = np.where(owner < 0, passed, owner)
    of_whole, number = pieces["part"].to_numpy(), late["whole"].to_numpy()
    first = np.searchsorted(of_whole, number)
    count = np.searchsorted(of_whole, number, side="right") - first
    window = np.repeat(np.arange(late.height), count)
    pieces = pieces[np.arange(len(window)) + np.repeat(first - (count.cumsum() - count), count)]
    begin, start = late["start_ns"].to_numpy()[window], pieces["start_ns"].to_numpy()
    last = np.minimum(
        begin + late["dur_ns"].to_numpy()[window], start + pieces["dur_ns"].to_numpy()
    )
    begin = np.maximum(begin, start)
    some = np.flatnonzero(last > begin)
    of_piece = pieces["span"][some]
    named = row_numbers(owner)[of_piece]
    return (
        pl.DataFrame(
            [
                late["part"][window[some]],
                pl.Series("start_ns", begin[some]),
                pl.Series("dur_ns", (last - begin)[some]),
                spans["name"][of_piece].alias("host_name"),
                spans["kind"][of_piece].alias("host_kind"),
                spans["name"][named].alias("who"),
                reason[named].alias("reason"),
            ]
        )
        .with_columns(who=pl.coalesce("who", "host_name"))
        .cast({pl.Categorical: pl.String})
    )


def _call_pieces(held: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Pieces of parts in which a call holds the device, within calls of its name."""
    lane = ["rank", "name"]
    union = merge(calls, lane).with_columns(kind=pl.lit("call"))
    windows = held.select("rank", "start_ns", "dur_ns", name="waited_name")
    pieces, union = innermost_within(windows, union, lane)
    name = pl.Series("who", union["name"][pieces["span"]], dtype=pl.String)
    kind = pl.repeat("call", pieces.height, eager=True)
    return pl.DataFrame(
        [
            held["part"][pieces["window"]],
            pieces["start_ns"],
            pieces["dur_ns"],
            name.alias("host_name"),
            kind.alias("host_kind"),
            name,
            host_reasons(pl.DataFrame({"who": name, "kind": kind})).alias("reason"),
        ]
    )


def _add_waits(parts: pl.DataFrame, kernels: pl.DataFrame | None) -> pl.DataFrame:
    """Add the time for which the kernel that ends each part waited; 0 in a file means that it
    was not measured.
    """
    if kernels is None or "ascend_wait_ns" not in kernels.columns:
        return parts.with_columns(waited_ns=pl.lit(None, pl.Int64))
    waits = kernels.filter(pl.col("ascend_wait_ns") > 0).select(
        "rank", next_name="name", _end="start_ns", waited_ns=pl.col("ascend_wait_ns").cast(pl.Int64)
    )
    ends = parts.with_columns(_end=END)
    key = ["rank", "next_name", "_end"]
    return ends.join(waits.unique(key), on=key, how="left", maintain_order="left").drop("_end")


def _remaining_pieces(parts: pl.DataFrame, pieces: pl.DataFrame) -> pl.DataFrame:
    """What pieces leave of parts, as pieces of nothing."""
    if not is_sorted(pieces, ["part", "start_ns"]):
        pieces = pieces.sort("part", "start_ns")
    part, start, length = (pieces[name].to_numpy() for name in ("part", "start_ns", "dur_ns"))
    begin, ends = (parts["start_ns"].to_numpy(), (parts["start_ns"] + parts["dur_ns"]).to_numpy())
    first = np.append(True, part[1:] != part[:-1])
    until = np.where(first, begin[part], np.append(0, (start + length)[:-1]))
    reached = begin.copy()
    reached[part] = start + length  # of several pieces, the last
    holes = pl.DataFrame(
        {
            "part": np.append(part, np.arange(parts.height, dtype=part.dtype)),
            "start_ns": np.append(until, reached),
            "dur_ns": np.append(start - until, ends - reached),
        }
    )
    return holes.filter(pl.col("dur_ns") > 0).with_columns(**_UNRECORDED)


def host_reasons(rows: pl.DataFrame) -> pl.Series:
    """The reason of each ``who`` of a ``kind``, null where its name says none."""
    said = by_distinct(rows["who"], _said).struct.unnest().hstack([rows["kind"]])
    found = (
        pl.when(pl.col(reason) & pl.col("kind").is_in(kinds)).then(pl.lit(reason))
        for reason, (kinds, _) in REASONS.items()
    )
    return said.select(reason=pl.coalesce(found)).to_series()


@remembered
def _said(distinct: tuple[str, ...]) -> pl.Series:
    """Whether each name says each of the reasons."""
    name = pl.col("name")
    said = [
        (name.str.contains(pattern) & ~name.str.contains(WHAT_RUNS)).alias(reason)
        for reason, (_, pattern) in REASONS.items()
    ]
    names = pl.DataFrame({"name": pl.Series(distinct, dtype=pl.String)})
    return names.select(pl.struct(said)).to_series()


def _with_new_code(rows: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Pieces before new code was loaded, just before its launch, have its reason, if the host was
    late for far longer than the loading took: compilation for code that is made at run time.
    """
    reason = host_reasons(calls.select(who="name", kind="kind"))
    calls = calls.filter(reason.is_in(["loading", "compilation"])).select(
        "rank",
        pl.col("thread").fill_null(-1),
        call="name",
        load_ns="dur_ns",
        loaded=END,
    )
    if calls.is_empty():
        return rows
    late = rows.select(
        "rank",
        pl.col("thread").fill_null(-1),
        "start_ns",
        "next_name",
        loaded="launch_start_ns",
        begun=pl.min("start_ns").over("part"),
    ).with_row_index("row")
    found = (
        late.drop_nulls("loaded")
        .sort("loaded")
        .join_asof(
            calls.sort("loaded"),
            on="loaded",
            by=["rank", "thread"],
            tolerance=BEFORE_LAUNCH_NS,
            coalesce=False,
            check_sortedness=False,
        )
        .filter(pl.col("loaded_right") > pl.col("begun"))
    )
    found = found.filter(
        pl.col("loaded") - pl.col("begun") >= TIMES_LOAD * pl.col("load_ns"),
        pl.col("start_ns") < pl.col("loaded_right") - pl.col("load_ns"),
    )
    made = pl.col("next_name").str.contains(MADE_AT_RUN_TIME)
    made &= ~pl.col("next_name").str.contains(FROM_LIBRARY)
    found = found.select(
        "row",
        before=BEFORE + pl.col("call"),
        new=pl.when(made).then(pl.lit("compilation")).otherwise(pl.lit("loading")),
    )
    silent = pl.col("reason").is_null() & pl.col("new").is_not_null()
    return (
        rows.with_row_index("row")
        .join(found, on="row", how="left", maintain_order="left")
        .with_columns(
            reason=pl.coalesce("reason", "new"),
            who=pl.when(silent).then("before").otherwise("who"),
        )
        .drop("row", "new", "before")
    )


def _first_uses(rows: pl.DataFrame, kernels: pl.DataFrame | None) -> pl.Series:
    """Whether each piece is a long launching call, or the operator around it for far longer than
    is usual for it, and what it launches is the first kernel of its name on its rank.
    """
    usual = pl.median("dur_ns").over("rank", "host_name")
    alone = pl.len().over("rank", "host_name") == 1
    is_long = pl.col("dur_ns") >= LONG_LAUNCH_NS
    in_operator = (pl.col("cause") == "host_bound") & (pl.col("host_kind") == "op")
    in_operator &= alone | (pl.col("dur_ns") >= TIMES_LOAD * usual)
    found = is_long & ((pl.col("cause") == "launch") | in_operator)
    if kernels is None or not rows.select(found.any()).item():
        return pl.repeat(value=False, n=rows.height, eager=True)
    named = pl.col("name").is_in(rows.filter(found)["next_name"].unique().implode())
    firsts = kernels.filter(named).group_by("rank", next_name="name").agg(first=pl.min("start_ns"))
    rows = rows.join(firsts, on=["rank", "next_name"], how="left", maintain_order="left")
    # from the end of the piece, which may be followed by the launching call, to the kernel
    after = pl.col("first") - pl.col("start_ns") - pl.col("dur_ns")
    most = pl.when(in_operator).then(LONG_LAUNCH_NS).otherwise(LAUNCH_NS)
    return rows.select((found & after.is_between(0, most)).fill_null(False)).to_series()
