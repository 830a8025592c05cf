"""Why a device waits for its host, where the name of the call or function says it."""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.analyze.idle.gaps import LAUNCH_NS
from llmprof.trace import Trace

REASONS: Final = {
    "allocation": (
        ("call",),
        r"^(?:cuda|cu|hip|mu|musa|aclrt)_?(?:Mem|Host|Array|Pool)*"
        r"(?:Malloc|Free|Alloc|Register|Unregister|Create|Release|Map|Unmap|AddressReserve|AddressFree|SetAccess)",
    ),
    "compilation": (
        ("call", "op", "python", "range"),
        r"(?i)nvrtc|hiprtc|CompileProgram|cuLink(?:Create|Add|Complete)|aclopCompile|compile_fx|async_compile"
        r"|torch/_(?:inductor|dynamo)|triton/(?:compiler|runtime/build|backends)|(?:deep_gemm|flashinfer|tilelang)/jit"
        r"|jit_?compil|\bcompile\(|: compile$|ptxas|\bninja\b",
    ),
    "loading": (("call",), r"(?i)ModuleLoad|LibraryLoad|ModuleGet|LibraryGet"),
    "data_loading": (("op", "python", "range"), r"(?i)DataLoader|torch/utils/data/|_next_data"),
    "input_preparation": (
        ("op", "python", "range"),
        r"(?i)image_process|image_transform|preprocess|torchvision/transforms|feature_extract|tokeniz"
        r"|zoom_shift|scipy/ndimage|\bPIL/|\bcv2\b|librosa|torchaudio",
    ),
}
"""For each reason, the kinds of what the host does (a call, an operator, Python or a range), and names."""

LONG_LAUNCH_NS: Final = 1_000_000
"""A launch on an idle device takes 5 to 50 us; the first of a kernel, which loads its code, can take 100 ms."""


def reasons_of(rows: pl.DataFrame) -> pl.Series:
    """The reason of each ``who`` of a ``kind``, null where its name says none."""
    about = rows.unique()
    found = pl.coalesce(
        *(
            pl.when(pl.col("kind").is_in(kinds) & pl.col("who").str.contains(pattern)).then(pl.lit(reason))
            for reason, (kinds, pattern) in REASONS.items()
        )
    )
    known = about.with_columns(reason=found)
    return rows.join(known, on=["who", "kind"], how="left", nulls_equal=True, maintain_order="left")["reason"]


def first_launches(trace: Trace, pauses: pl.DataFrame) -> pl.Series:
    """Whether each pause is a long launching call, and a kernel's first of its rank."""
    long = (pauses["cause"] == "launch") & (pauses["dur_ns"] >= LONG_LAUNCH_NS)
    if "next_name" not in pauses.columns or not long.any() or not trace.has("kernels"):
        return pauses["dur_ns"] < 0
    firsts = trace.kernels.group_by("rank", next_name="name").agg(first=pl.col("start_ns").min())
    first = pauses.join(firsts, on=["rank", "next_name"], how="left", maintain_order="left")["first"]
    after = first - pauses["start_ns"] - pauses["dur_ns"]  # from the end of the call to the kernel
    return (long & after.is_between(0, LAUNCH_NS)).fill_null(value=False)
