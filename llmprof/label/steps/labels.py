"""Labels of steps and their batches, and inference of steps without labels from repeated
kernels.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof import names, plugins
from llmprof.label.activity import activity
from llmprof.label.steps.stored import UNLABELLED
from llmprof.names.matching import by_distinct, check_pattern, first_true, remembered
from llmprof.theory.plan import Batch, Requests
from llmprof.trace import Trace
from llmprof.trace.schema import END

_VLLM = r"^execute_(?:\d+_)?context_(\d+)\(([^)]*)\)_generation_(\d+)\(([^)]*)\)"
_VLLM_2025 = r"^execute_new_(\d+)_cached_(\d+)"
_SGLANG = r"^step\[([A-Z_0-9]+)\b[^\]]*\]"
_ATOM = r"^(\w*(?:prefill|decode))\[bs=\d+.*\]"
_TENSORRT_LLM = r"\b_forward_step\b.*\b\d+ (?:ctx|gen) reqs\b"
_CAPTURE = r"^capture_(\d+)_(\w+)"
_PROFILER_STEP = r"^ProfilerStep#(\d+)"
_EXECUTE_MODEL = r"\bexecute_model\b"
_ONNX_RUNTIME = r"^model_run$"
_MINDSPORE = r"^Iteration \d+$"
_XLA = r"^(?:jit|pjit|pmap)_\w+\(\d+\)$|^SyncTensorsGraph[.\d]*\(\d+\)$"

SOURCES = {
    "vllm": f"(?:{_VLLM})|(?:{_VLLM_2025})",
    "sglang": _SGLANG,
    "atom": _ATOM,
    "tensorrt_llm": _TENSORRT_LLM,
    "capture": _CAPTURE,
    "execute_model": _EXECUTE_MODEL,
    "profiler_step": _PROFILER_STEP,
    "onnxruntime": _ONNX_RUNTIME,
    "mindspore": _MINDSPORE,
    "xla": _XLA,
}
"""Pattern of each source's labels; where a rank has several, the first one counts."""

ENGINES: Final = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "atom": "ATOM",
    "tensorrt_llm": "TensorRT-LLM",
}
"""Engines whose labels state the batch of each pass, in words."""

KERNELS: Final = [
    ("llama.cpp", r"\bmul_mat_(?:vec_)?[qf]\b|\bk_bin_bcast|\bquantize_(?:mmq_)?q8_1"),
    ("MLC", r"\btir_kv_cache_|\bfused_dequantize\d*_"),
    ("ExLlama", r"\bexl[23]_"),
    ("LMDeploy", r"\bturbomind::"),
]
"""Engines whose kernels have names of their own, where no label tells."""

OPTIMIZER_STEP = r"^Optimizer\.step\b"
"""The range that ends a step of training, where nothing else tells of steps."""

ANY = "|".join(f"(?:{pattern})" for pattern in SOURCES.values())
"""Matches every known step label of the table."""

UNKNOWN: Final = r"(?i)^(?:[^:.]*[^a-z:.])?(?:step|iteration|iter|prefill|decode)(?:[^a-z]|$)"
"""Ranges that may be labels of steps of an engine that is not known here; those of functions and
modules, whose names have parts, are none.
"""

UNKNOWN_LABEL: Final = "unknown_label"
"""Source of steps by such ranges."""


def own_labels() -> list[str]:
    """Patterns of labels in the user's own file, whose named groups are columns of steps."""
    patterns = [str(pattern) for pattern in plugins.own()["steps"].values()]
    for pattern in patterns:
        check_pattern(pattern)
    return patterns


def any_label() -> str:
    """Matches every known step label, and those of the user's own file."""
    return "|".join([ANY, *(f"(?:{pattern})" for pattern in own_labels())])


def parse_labels(labels: pl.DataFrame) -> pl.DataFrame:
    """Parse step labels.

    vLLM writes ``execute_context_R(T)_generation_R(T)`` from 0.14 on: R requests with T tokens in
    their prefill and in their decode part. With ``detailed_trace_annotation`` the total of tokens
    comes first and the parentheses hold sums such as ``sq256sk256sqsq16384sqsk16384`` (sums of
    query lengths, key lengths and their products); a form with an underscore, ``(888_788544)``,
    holds query tokens and the sum of query times key lengths. 0.11 to 0.13 write
    ``execute_new_N_cached_M``. SGLang writes ``step[MODE bs=R toks=T]`` with the mode of its
    forward pass: the extending ones (EXTEND, DRAFT_EXTEND, SPLIT_PREFILL) are prefill, DECODE and
    TARGET_VERIFY are decode; with its totals for a roofline, ``c=`` and ``g=`` are the requests of
    a mixed pass, ``c_sq=`` and ``g_sq=`` the tokens of both parts. ATOM writes ``decode[bs=R tok=T
    p=P d=D …]`` (of a mixed batch P requests read their prompts, ``bs=R/G`` is padded to G), with
    ``eager_`` before it without a graph, and ``dummy_`` where a rank without requests keeps step
    with others. TensorRT-LLM writes ``_forward_step N: R ctx reqs, T ctx tokens, R gen reqs``, its
    older forms less. ``capture_BS_MODE`` is the capture of a CUDA graph, ``execute_model`` a range
    around a forward pass of vLLM, ``ProfilerStep#N`` a step of the profiler's schedule,
    ``model_run`` a run of a session of ONNX Runtime, ``Iteration N`` a step of MindSpore on the
    device, ``jit_NAME(N)`` a run of a program on an XLA
    device.
    """
    name, source = pl.col("name"), pl.col("source")
    own = own_labels()
    sources = SOURCES | ({"own": "|".join(own)} if own else {})
    labels = labels.with_columns(
        source=first_true({label: name.str.contains(pattern) for label, pattern in sources.items()})
    )
    counts = {
        column: pl.coalesce(
            pl.lit(None, pl.Int64),
            *(
                _int(name.str.extract_groups(p).struct.field(column))
                for p in own
                if f"<{column}>" in p
            ),
        )
        for column in ("prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens")
    }
    engines = {"sglang": _SGLANG, "atom": _ATOM}
    there = [engine for engine in engines if engine in labels["source"]]
    mode = pl.coalesce(
        pl.lit(None, pl.String),
        *(pl.when(source == engine).then(name.str.extract(engines[engine])) for engine in there),
    ).str.to_uppercase()

    def field(key: str) -> pl.Expr:
        if not there:  # each pattern takes as long to compile as all else
            return pl.lit(None, pl.Int64)
        return pl.when(mode.is_not_null()).then(_int(name.str.extract(rf"\b{key}=(\d+)")))

    mode = pl.when(field("p") > 0).then(pl.lit("MIXED")).otherwise(mode)
    idle = (mode == "IDLE") | ((source == "atom") & mode.str.contains("^DUMMY"))
    extends = mode.str.contains("EXTEND|PREFILL") & ~idle
    decodes = mode.str.contains("DECODE$|TARGET_VERIFY$") & ~idle
    no_prefill, no_decode = (pl.when(other | idle).then(0) for other in (decodes, extends))
    requests, tokens = field("bs"), field("toks?")
    prefilled, read, decoded, written = (
        _tokens(name.str.extract(_VLLM, part)) for part in range(1, 5)
    )
    new, cached = (_int(name.str.extract(_VLLM_2025, part)) for part in (1, 2))
    context, generation = (
        pl.when(source == "tensorrt_llm").then(
            _int(name.str.extract(rf"\b(\d+) {part} reqs")).fill_null(0)
        )
        for part in ("ctx", "gen")
    )
    read_trt = pl.when(context == 0).then(0).otherwise(_int(name.str.extract(r"(\d+) ctx tokens")))
    generated = pl.when(decodes).then(pl.coalesce(tokens, requests))
    given = mode == "MIXED"
    labels = labels.with_columns(
        prefill_requests=pl.coalesce(
            counts["prefill_requests"],
            prefilled,
            new,
            context,
            pl.when(given).then(field("[cp]")),
            pl.when(extends).then(requests),
            no_prefill,
        ),
        prefill_tokens=pl.coalesce(
            counts["prefill_tokens"],
            read,
            read_trt,
            field("c_sq"),
            pl.when(extends).then(tokens),
            no_prefill,
        ),
        decode_requests=pl.coalesce(
            counts["decode_requests"],
            decoded,
            cached,
            generation,
            pl.when(given).then(field("[gd]")),
            pl.when(decodes).then(requests),
            no_decode,
        ),
        decode_tokens=pl.coalesce(
            counts["decode_tokens"],
            written,
            pl.when(generation == 0).then(0),
            field("g_sq"),
            generated,
            no_decode,
        ),
    )
    counted = phase(pl.col("prefill_requests"), pl.col("decode_requests"))
    program = pl.when(source == "xla").then(name.str.extract(r"_(prefill|decode)(?:_|\()"))
    stated = first_true({"mixed": given, "prefill": extends, "decode": decodes})
    return labels.with_columns(phase=pl.coalesce(stated, program, counted))


def phase(prefill_requests: pl.Expr, decode_requests: pl.Expr) -> pl.Expr:
    """Phase of a batch: prefill, decode, mixed or empty; other if the numbers are unknown."""
    prefills, decodes = prefill_requests > 0, decode_requests > 0
    empty = (prefill_requests == 0) & (decode_requests == 0)
    cases = {"mixed": prefills & decodes, "prefill": prefills, "decode": decodes, "empty": empty}
    return first_true(cases, "other")


def _int(text: pl.Expr) -> pl.Expr:
    return text.cast(pl.Int64, strict=False)


def _tokens(inside: pl.Expr) -> pl.Expr:
    """Tokens from the text in parentheses: ``128``, ``sq256sk256…`` or ``888_788544``."""
    return _int(inside.str.extract(r"^(?:sq)?(\d+)", 1))


_EMBEDDING_OP = "aten::embedding"
_DIMS = r"^\s*\[\s*\[\s*\d+\s*,\s*\d+\s*\]\s*,\s*\[\s*(\d+)\s*,\s*(\d+)\s*\]"
"""Two tensors of two dimensions: weights and indices of the embedding operator of a batch of
sequences.
"""

_MAX_SEAMS = 0.5
"""A kind of kernel that is in more than this share of the stretches between attentions does not
mark a seam.
"""

_LONGER = 1.25
"""A stretch with this many times the usual number of events is a seam …"""

_FEW_SEAMS = 1 / 3
"""… if there are at most this share of them: otherwise two kinds of layers alternate."""

_LEAD = 0.5
"""Events before the first forward pass belong to it, unless they last longer than this share of
a step.
"""


def infer(trace: Trace, rank: int) -> pl.DataFrame:
    """Steps of one rank."""
    events = activity(trace).filter(rank=rank).sort("start_ns", "event")
    events = (
        _mark_steps(events, trace, rank)
        .with_row_index("i")
        .with_columns(pl.col("i").cast(pl.Int64))
    )
    attention = events.filter("attends")["i"]
    if attention.len() < 2 or events["backward"].any():
        return NO_STEPS
    events = events.with_columns(gap=pl.col("attends").cum_sum())
    seams, marked = _seams(events), (events["samples"] | events["embeds"]).any()
    if not marked and (
        not seams.len() or events.filter("attends")["category_by"].eq("position").any()
    ):
        # longer stretches alone are weak evidence, above all if attention was found by place
        return NO_STEPS
    bounds = _first_step(events, events[seams])
    bounds = bounds.select("i", "start_ns", host_start_ns="launch_start_ns")
    sizes = _batch(events.filter("embeds"), trace, rank)
    bounds = bounds.sort("i").join_asof(sizes.sort("i"), on="i", strategy="forward")
    # the tokens that are looked up are the language model's, not those of an encoder before it
    bounds = bounds.with_columns(encodes=_encoders(events, bounds["i"]))
    bounds = bounds.with_columns(length=pl.when(~pl.col("encodes")).then("length"))
    prefill = pl.col("length") > 1
    length_known = pl.col("length").is_not_null()
    counts = bounds.select(
        prefill_requests=pl.when(prefill).then("batch").when(length_known).then(0),
        prefill_tokens=pl.when(prefill)
        .then(pl.col("batch") * pl.col("length"))
        .when(length_known)
        .then(0),
        decode_requests=pl.when(length_known & ~prefill).then("batch").when(length_known).then(0),
        decode_tokens=pl.when(length_known & ~prefill).then("batch").when(length_known).then(0),
    )
    by_work = _phases_by_work(events, bounds["i"])
    return (
        bounds.hstack(counts)
        .with_columns(
            rank=pl.lit(rank, dtype=pl.Int32),
            step=pl.int_range(pl.len(), dtype=pl.Int32),
            phase=pl.when(length_known)
            .then(phase(pl.col("prefill_requests"), pl.col("decode_requests")))
            .when("encodes")
            .then(pl.lit("other"))
            .otherwise(by_work),
            host_dur_ns=pl.col("host_start_ns").shift(-1) - pl.col("host_start_ns"),
            source=pl.lit("inferred"),
            name=pl.lit(None, pl.String),
        )
        .select(NO_STEPS.columns)
        .cast(NO_STEPS.schema)
    )


def _encoders(events: pl.DataFrame, starts: pl.Series) -> pl.Series:
    """Whether each step is the pass of an encoder: it samples nothing, the next one does and has
    other attentions.
    """
    passes = (
        events.select(
            "attends",
            "samples",
            step=pl.lit(starts).search_sorted(pl.col("i"), side="right").cast(pl.Int64) - 1,
        )
        .filter(pl.col("step") >= 0)
        .group_by("step")
        .agg(pl.sum("attends"), pl.col("samples").any())
    )
    rows = pl.DataFrame({"step": pl.Series(range(starts.len()), dtype=pl.Int64)}).join(
        passes, on="step", how="left", maintain_order="left"
    )
    other = pl.col("attends") != pl.col("attends").shift(-1)
    return rows.select(
        (~pl.col("samples") & pl.col("samples").shift(-1) & other).fill_null(False)
    ).to_series()


_HEAVIER = 2.0
"""A step whose matrix products take this many times the median of all steps computes more tokens
than the others.
"""


def _phases_by_work(events: pl.DataFrame, starts: pl.Series) -> pl.Series:
    """Phase of each step by its kernels, where some compute many more tokens than most; else
    ``other``.
    """
    rows = events.with_columns(
        step=pl.lit(starts).search_sorted(pl.col("i"), side="right").cast(pl.Int64) - 1
    )
    works = (
        rows.filter(pl.col("step") >= 0)
        .group_by("step")
        .agg(
            ns=pl.col("dur_ns").filter(category="gemm").sum(),
            attention=pl.col("name").filter(category="attention").unique().sort(),
            samples=pl.col("samples").any(),
        )
        .sort("step")
    )
    unknown = pl.Series("phase", ["other"] * starts.len())
    usual = works["ns"].median()
    if (
        works.height != starts.len()
        or works.height < _FEWEST
        or not isinstance(usual, int | float)
        or not usual
    ):
        return unknown
    heavy = works["ns"] >= _HEAVIER * usual
    counts = works["attention"].explode().value_counts(name="steps")
    most = counts.filter(pl.col("steps") > works.height / 2)["attention"]
    if most.str.contains(_DECODES).any():  # then other kernels read prompts, however few tokens
        other = pl.col("attention").list.set_difference(most.to_list())
        heavy = works.select(other.list.len() > 0).to_series()
    common = set(works.filter(~heavy)["attention"].explode())
    others = pl.Series([bool(set(attending) - common) for attending in works["attention"]])
    light = works.filter(~heavy)
    if not heavy.any() or not (heavy == others).all() or not light["samples"].all():
        return unknown
    between = ~(heavy.shift(1, fill_value=True) | heavy.shift(-1, fill_value=True))
    reads = (
        pl.when(between & (works["attention"].list.len() > 1))
        .then(pl.lit("mixed"))
        .otherwise(pl.lit("prefill"))
    )
    return works.select(phase=pl.when(heavy).then(reads).otherwise(pl.lit("decode")))["phase"]


_DECODES: Final = r"(?i)decode|attn_ext_vec|mul_mat_vec"
"""Attention of one query a sequence, in the names of kernels."""

_FEWEST = 4
"""Fewest steps whose work is compared."""


@remembered
def _match_kinds(distinct: tuple[str, ...]) -> pl.Series:
    """What each name says of the work of a step."""
    patterns = {
        "backward": f"(?i){names.BACKWARD}",
        "optimizer": f"(?i){names.OPTIMIZER}",
        "triton": "^triton_",
        "helps": f"(?i){names.ATTENTION_HELPERS}",
        "softmax": "(?i)soft_?max",
        "embeds": f"(?i){names.EMBEDDING}",
        "reads": "(?i)DtoH|device.?to.?host",
    }
    name = pl.Series("name", distinct, dtype=pl.String)
    return pl.DataFrame(
        {key: name.str.contains(pattern) for key, pattern in patterns.items()}
    ).to_struct()


_FEWEST_READS: Final = 3
"""As few results that the host reads may mark the ends of passes."""


def _mark_steps(events: pl.DataFrame, trace: Trace, rank: int) -> pl.DataFrame:
    """Add ``attends, backward, samples`` and ``embeds``, the latter by operator where operators
    were recorded.
    """
    has = by_distinct(events["name"], _match_kinds).struct.unnest()
    category = events["category"]
    attention = category == "attention"
    backward = (attention & has["backward"]) | has["optimizer"]
    looks_up = (category == "embedding") | (has["triton"] & (category != "rope"))
    # in an attention of separate kernels the softmax counts, not the matrix products around it
    in_steps = (events["category_by"] == "position").fill_null(False)
    events = events.with_columns(
        attends=attention & ~backward & ~has["helps"] & (~in_steps | has["softmax"]),
        backward=backward,
        samples=category == "sampling",
        embeds=looks_up & has["embeds"],
        reads=(events["source"] == "copy") & has["reads"],
    )
    gaps = events.select(pl.col("attends").cum_sum().filter("reads")).to_series()
    if gaps.n_unique() >= _FEWEST_READS and not events["samples"].any():
        # the host samples: a pass ends where it reads the result, and rows that are looked up
        # before that in the last layer are no embedding
        after = pl.col("i") > pl.col("i").filter("reads").max().over("gap")
        events = events.with_row_index("i").with_columns(gap=pl.col("attends").cum_sum())
        events = events.with_columns(
            samples="reads", embeds=pl.col("embeds") & after.fill_null(True)
        ).drop("i", "gap")
    if not trace.has("ops"):
        return events
    ops = trace.ops.filter(rank=rank)
    calls = ops.filter(name=_EMBEDDING_OP).select("thread", "start_ns", begin="start_ns", end=END)
    inside = (
        ops[["thread", "start_ns", "op_id"]]
        .sort("start_ns")
        .join_asof(calls.sort("start_ns"), on="start_ns", by="thread", check_sortedness=False)
        .filter(pl.col("start_ns") < pl.col("end"))
    )
    by_op = pl.col("op_id").is_in(inside["op_id"].drop_nulls().unique().implode()).fill_null(False)
    rows = events.with_columns(embeds=by_op & (pl.col("source") != "copy"))
    return rows if rows["embeds"].any() else events


def _seams(events: pl.DataFrame) -> pl.Series:
    """Rows at which steps begin, without the first."""
    i = pl.col("i")
    pause = pl.col("start_ns") - END.cum_max().shift(1)
    gaps = (
        events.with_columns(pause=pause)
        .filter(pl.col("gap").is_between(1, pl.max("gap") - 1))
        .with_columns(
            sampled=i.filter("samples").max().over("gap").fill_null(-1),
            embedded=i.filter("embeds").min().over("gap"),
        )
    )
    sampled, embedded = pl.col("sampled"), pl.coalesce("embedded", pl.lit(events.height))
    free = (i > sampled) & (i <= embedded) & ~pl.col("attends")
    # sampling after the embedding does not end a step: then only the embedding shows where a step
    # begins
    free = pl.when(sampled < embedded).then(free).otherwise((i <= embedded) & ~pl.col("attends"))
    size = pl.len()
    sums = gaps.group_by("gap", maintain_order=True).agg(
        size=size,
        samples=pl.col("samples").any(),
        embeds=pl.col("embeds").any(),
        start=i.filter(free).get(pl.col("pause").filter(free).arg_max(), null_on_oob=True),
    )
    usual = sums["size"].mode().min()
    by_work = [
        c for c in ("samples", "embeds") if 0 < sums[c].sum() <= max(1, _MAX_SEAMS * sums.height)
    ]
    longer = pl.col("size") > _LONGER * pl.lit(usual)
    is_seam = pl.any_horizontal(by_work) if by_work else longer & (longer.mean() <= _FEW_SEAMS)
    return sums.filter(is_seam & pl.col("start").is_not_null())["start"]


def _first_step(events: pl.DataFrame, later: pl.DataFrame) -> pl.DataFrame:
    """Bounds with that of the first step: the first event, or later if something long comes
    before its embedding.
    """
    opening = events.filter(gap=0)
    begin = opening.filter("embeds")["i"].max()
    first, begun = events.head(1), events[int(begin)] if isinstance(begin, int) else events.head(1)
    starts = pl.concat([begun["start_ns"], later["start_ns"]])
    typical = starts.diff().median()
    if (
        isinstance(typical, int | float)
        and begun["start_ns"][0] - first["start_ns"][0] > _LEAD * typical
    ):
        first = begun
    return pl.concat([first, later])


def _batch(embedding: pl.DataFrame, trace: Trace, rank: int) -> pl.DataFrame:
    """Row of each embedding with the batch and length of its indices; no rows where shapes were
    not recorded.
    """
    if not embedding.height or not trace.has("ops"):
        return _NO_BATCH
    calls = (
        trace.ops.filter((pl.col("rank") == rank) & (pl.col("name") == _EMBEDDING_OP))
        .sort("start_ns")
        .with_columns(
            batch=pl.col("shapes").str.extract(_DIMS, 1).cast(pl.Int64, strict=False),
            length=pl.col("shapes").str.extract(_DIMS, 2).cast(pl.Int64, strict=False),
        )
    )
    if not calls["batch"].is_not_null().any():
        return _NO_BATCH
    launched = embedding.drop_nulls("launch_start_ns").sort("launch_start_ns")
    joined = launched.join_asof(
        calls.select("batch", "length", launch_start_ns="start_ns"),
        on="launch_start_ns",
        strategy="backward",
    )
    return joined[["i", "batch", "length"]]


_NO_BATCH = pl.DataFrame(schema={"i": pl.Int64, "batch": pl.Int64, "length": pl.Int64})

NO_STEPS = pl.DataFrame(
    schema={
        **dict.fromkeys(("rank", "step"), pl.Int32),
        "phase": pl.String,
        **dict.fromkeys(
            ("start_ns", "host_start_ns", "host_dur_ns", "prefill_requests", "prefill_tokens"),
            pl.Int64,
        ),
        **dict.fromkeys(("decode_requests", "decode_tokens"), pl.Int64),
        **dict.fromkeys(("source", "name"), pl.String),
    }
)


_SUMS: Final = r"^sq(\d+)sk(\d+)"
_INSIDE: Final = r"context_\d+\(([^)]*)\)_generation_\d+\(([^)]*)\)"

CONTEXT_WORDS: Final = {
    "label": "",
    "followed": "lengths followed from the labels of earlier steps",
    "recorded": "tokens by shapes or grids of the step, lengths followed from earlier steps",
    "padding": "a pass outside of steps, tokens by the grids of its kernels",
    "estimated": "lengths estimated from the labels of earlier steps",
    "unknown": "contexts from before the recording count as none",
}
"""What of a step's contexts no label says, by their source: stated by its label; followed from the
prompts of earlier steps, or from what was recorded where these have no labels; a pass of padding,
which has no requests; estimated if the number of requests changed in between; unknown if the trace
begins after their prompts (the context then counts as the new token alone, so that results from it
are a lower bound).
"""


def batches(
    steps: pl.DataFrame, *, context: float | None = None
) -> dict[tuple[int, int], tuple[Batch, str]]:
    """Requests of each step."""
    # Detailed labels give the sums of query and key lengths. Others give only requests and tokens.
    # For these, contexts are followed: the tokens of a prompt stay for the steps that generate from
    # it, and each step adds one. If fewer requests generate than are held, the oldest ones are
    # assumed to have ended.
    batch_of: dict[tuple[int, int], tuple[Batch, str]] = {}
    rows = steps.with_columns(
        pl.col("name")
        .str.extract(_INSIDE, part)
        .str.extract(_SUMS, side)
        .cast(pl.Float64)
        .alias(f"_{part}_{side}")
        for part in (1, 2)
        for side in (1, 2)
    )
    for rank in rows["rank"].unique(maintain_order=True).to_list():
        held = _HeldRequests(context)
        for row in rows.filter(rank=rank).sort("step").iter_rows(named=True):
            batch, source = held.step(row)
            if batch:
                unlabelled = source == "followed" and row["source"] in UNLABELLED
                batch_of[rank, row["step"]] = batch, "recorded" if unlabelled else source
    return batch_of


class _HeldRequests:
    """Requests that the engine holds: groups of their number and mean context, the oldest first."""

    def __init__(self, context: float | None) -> None:
        self.groups: list[list[float]] = []
        self.given, self.known = context, True

    def step(self, row: dict[str, object]) -> tuple[Batch, str]:
        """The batch of a step; the requests that it leaves are kept."""
        detailed = [_sums(row[f"_{part}_1"], row[f"_{part}_2"]) for part in (1, 2)]
        parts: list[Requests] = []
        source = "label" if any(detailed) else "followed"
        generating, made = _number(row["decode_requests"]), _number(row["decode_tokens"])
        reading, read = _number(row["prefill_requests"]), _number(row["prefill_tokens"])
        if generating and made is None:
            made = generating
        if generating and made:
            before, source = self._context(generating, detailed[1], source)
            each = made / generating
            parts.append(Requests(generating, each, before + each))
            for group in self.groups:
                group[1] += each
        if reading and read:
            sums = detailed[0]
            length = max(sums[1] / reading if sums else 0.0, read / reading)
            parts.append(Requests(reading, read / reading, length, "prefill"))
            self.groups.append([reading, length])
        return tuple(reversed(parts)), source

    def _context(
        self, generating: float, sums: tuple[float, float] | None, source: str
    ) -> tuple[float, str]:
        """Mean of the cached tokens of each generating request before the step."""
        if sums is not None:
            self.groups = [[generating, max(sums[1] - sums[0], 0.0) / generating]]
            return self.groups[0][1], "label"
        held = sum(count for count, _ in self.groups)
        if generating > held:
            self.known = self.given is not None
            self.groups.insert(0, [generating - held, self.given or 0.0])
        elif generating < held:
            source = "estimated"
            self._end(held - generating)
        mean = sum(count * tokens for count, tokens in self.groups) / generating
        return mean, source if self.known else "unknown"

    def _end(self, ended: float) -> None:
        """Let the oldest requests go."""
        while ended > 0 and self.groups:
            gone = min(ended, self.groups[0][0])
            self.groups[0][0] -= gone
            ended -= gone
            if self.groups[0][0] <= 0:
                self.groups.pop(0)


def _sums(queries: object, keys: object) -> tuple[float, float] | None:
    """Sums of query and key lengths that a detailed label states."""
    return (
        (queries, keys)
        if isinstance(queries, float) and isinstance(keys, float) and queries
        else None
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int) else None
