"""Use of tensor cores (matrix cores of AMD) by kernels that multiply matrices, as far as their
names state it.
"""

from __future__ import annotations

import polars as pl

from llmprof.analyze.catalog import Analysis
from llmprof.errors import Columns, refuse_unknown
from llmprof.names.matching import by_distinct
from llmprof.trace import Trace

MATRIX_WORK = ("gemm", "conv", "attention", "moe_experts", "scan")
"""Categories of kernels that can use tensor cores."""

LEAST_KNOWN = 0.5
"""Of less than this share of the time a share of it would say little about the rest."""

HELPERS = (
    r"(?i)split_?K_?reduce|ReduceSplitK|PostGSU|FlashAttnFwdCombine|FlashAttnBwd(?:Pre|Post)process"
    r"|flash_fwd_splitkv_combine|flash_bwd_(?:dot|convert|clear)|attention\w*_reduce"
    r"|im2col|Im2d2Col|computeW?\w*OffsetsKernel"
)
"""Kernels beside products that reduce, transform or index."""

WITHOUT = (
    r"(?i)softmax|_simt_|_ffma_|scudnn|winograd|gemv|gemmk1_kernel|naive_conv|_dot2_|wvSplitK|wgrad_alg0|_convolve_sgemm"
    r"|(?:^|_)(?:volta|ampere|maxwell|pascal|turing|magma)_(?:gc|[sdcz])gemm|^sgemm_|magma_sgemm"
)
"""Kernels that multiply by vector instructions."""

WITH = (
    r"(?i)tensorop|tensor\d+x\d+x\d+|_[hsi](?:884|1688|16816|8816|16832)\w*(?:gemm|fprop|dgrad|wgrad)|wgmma|wmma|hmma|imma"
    r"|nvjet_|_xmma_\w*(?:f16f16|bf16bf16|tf32f32|e4m3|i8i8)|flash_(?:fwd|bwd)|FlashAttn(?:Fwd|Bwd)Sm|fmhaSm\d+"
    r"|^bmm_\w+_m\d+x\d+x\d+_|_MI\d+x\d+x\d+|mfma|_xdl_|gtcx\d?_|BlockFmha"
)
"""Kernels whose name states an instruction of tensor cores, or a family of kernels that has no
others.
"""

_TENSILE = r"^Cijk_\w*_MT\d+x\d+x\d+"
"""Products of Tensile name their matrix instruction (``_MI``) if they use one."""


def by_name(names: pl.Series) -> pl.Series:
    """Whether kernels of these names use tensor cores; null if the name does not tell."""
    name = pl.col("name")
    has, lacks = name.str.contains(WITH), name.str.contains(WITHOUT)
    no = pl.lit(False)
    told = pl.when(name.str.contains(HELPERS)).then(no).when(has != lacks).then(has)
    told = told.when(~has & name.str.contains(_TENSILE)).then(no)

    def of(distinct: tuple[str, ...]) -> pl.Series:
        return (
            pl.DataFrame({"name": pl.Series(distinct, dtype=pl.String)})
            .select(told=told)
            .to_series()
        )

    return by_distinct(names, of)


@Analysis(
    question="Which matrix work runs without tensor cores?",
    help="time of products and attention with and without tensor cores",
    view="tensor-cores",
    recorded="kernels",
)
def tensor_cores(trace: Trace, *, by: Columns = ("rank", "category")) -> pl.DataFrame:
    """Time of matrix work in kernels that use tensor cores, that do not, and whose names do not
    tell.

    Matrix work is kernels of matrix products, attention, experts and scans. How busy the tensor
    cores are in them is measured by counters (:func:`~llmprof.analyze.counters`) or by Nsight
    Compute.

    Parameters
    ----------
    trace : Trace
        A trace with kernels.
    by : str or sequence of str
        Columns of :attr:`llmprof.Trace.events` to group by, such as ``name``, ``stage`` or
        ``phase``.

    Returns
    -------
    polars.DataFrame
        ``<by...>, count, total_ns`` (sum of the durations of matrix work), ``known_share`` (of
        this, what names tell of) and ``tensor_share`` (of what is known, with tensor cores; null
        where it is less than half of the total); the longest total first.

    Raises
    ------
    NotCapturedError
        The trace holds no kernels.
    AnalysisError
        ``by`` names an unknown column.

    Examples
    --------
    >>> frame = analyze.tensor_cores(trace)
    """
    trace.table("kernels")
    refuse_unknown(by, trace.events.columns, "by")
    events = trace.events.filter(
        (pl.col("source") == "kernel") & pl.col("category").is_in(MATRIX_WORK)
    )
    told, time = pl.col("_told"), pl.col("dur_ns")
    known, total = pl.col("_known"), pl.col("total_ns")
    return (
        events.with_columns(_told=by_name(events["name"]))
        .group_by(*by)
        .agg(
            count=pl.len(),
            total_ns=time.sum(),
            _known=time.filter(told.is_not_null()).sum(),
            _tensor=time.filter(told).sum(),
        )
        .with_columns(
            known_share=pl.when(total > 0).then(known / total),
            tensor_share=pl.when((known > 0) & (known >= LEAST_KNOWN * total)).then(
                pl.col("_tensor") / known
            ),
        )
        .drop("_known", "_tensor")
        .sort("total_ns", *by, descending=[True] + [False] * len(by), nulls_last=True)
    )
