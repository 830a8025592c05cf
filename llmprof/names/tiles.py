"""Tiles of the result that the blocks of a matrix product compute, as the names of kernels say
them.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class Tile(NamedTuple):
    """The tile of a block, in rows and columns of a result in row-major order."""

    rows: int
    columns: int | None
    """None for all of them: a block of attention computes whole rows for its queries."""
    splits: int | None = 1
    """Blocks that share a tile, each with a part of the inner size; None for an unknown number."""


# Libraries of BLAS compute in column-major order: their first number counts columns of a row-major
# result.
_FORMS: Final = tuple(
    (re.compile(pattern), columns_first)
    for pattern, columns_first in (
        (r"^Cijk_.*?_MT(?P<a>\d+)x(?P<b>\d+)x\d+_", True),
        (r"^nvjet_(?:sm\d+_)?\w+?_(?P<a>\d+)x(?P<b>\d+)_", True),
        (r"xmma_\w{0,60}?gemm_\w{0,60}?_tilesize(?P<a>\d+)x(?P<b>\d+)x\d+", True),
        (
            r"cutlass_\d+_(?:tensorop|simt|wmma_tensorop)_\w*?gemm_\w*?(?P<a>\d+)x(?P<b>\d+)_\d+x\d+_",
            True,
        ),
        (
            r"^(?:volta|turing|ampere|hopper|maxwell|pascal)_\w*?gemm_\w*?(?P<a>\d+)x(?P<b>\d+)_",
            True,
        ),
        (r"^_matmul_ogs_\w+?_(?P<a>\d+)x(?P<b>\d+)x\d+x(?P<splits>\d+)", False),
        (r"^_ZN2ck.*?Li(?:64|128|192|256|512)ELi(?P<a>\d+)ELi(?P<b>\d+)ELi\d+E", False),
        (
            (
                r"^(?:void )?ck::.*?[ <](?:64|128|192|256|512), (?P<a>\d+), (?P<b>\d+), \d+, \d+,"
                r" \d+, "
            ),
            False,
        ),
        (r"cutlass_tensorop_\w{0,60}?fprop_\w{0,60}?_(?P<a>\d+)x(?P<b>\d+)_\d+x\d+", False),
        (
            r"GemmUniversal<.*?cute::tuple<cute::C<(?:\(int\))?(?P<a>\d{2,3})>,"
            r" cute::C<(?:\(int\))?(?P<b>\d{2,3})>, "
            r"cute::C<(?:\(int\))?\d{2,3}>",
            False,
        ),
        (r"^igemm_fwd_\w*?_bt(?P<a>\d+)x(?P<b>\d+)x\d+_", False),
    )
)
_QUERIES: Final = tuple(
    re.compile(pattern)
    for pattern in (
        (
            r"flash_fwd_kernel<(?:\w+::)*Flash_fwd_kernel_traits<(?:\(int\))?\d+,"
            r" (?:\(int\))?(?P<rows>\d+),"
        ),
        (
            r"FlashAttnFwdSm90<.*?cute::tuple<cute::C<(?:\(int\))?(?P<rows>\d{2,3})>,"
            r" cute::C<(?:\(int\))?\d{2,3}>"
        ),
        r"^cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_\w+?_(?P<half>\d+)x\d+x\d+_",
    )
)
"""Attention; cuDNN's two groups of warps take a tile each."""
_SPLIT: Final = re.compile(r"(?i)split_?k|_gkgs|_SK[1-9]|GSUAMBSK|_GSU(?:[2-9]|\d\d)_|streamk")


def tile(kernel: str) -> Tile | None:
    """The tile of a kernel of a matrix product, a convolution or attention; None where its name
    does not say it.

    Examples
    --------
    >>> tile("nvjet_sm90_tst_192x8_64x8_4x1_v_bz_TNT")
    Tile(rows=8, columns=192, splits=1)
    """
    for pattern, columns_first in _FORMS:
        found = pattern.search(kernel)
        if found:
            named = found.groupdict()
            a, b = int(named["a"]), int(named["b"])
            splits = (
                int(named["splits"])
                if named.get("splits")
                else None
                if _SPLIT.search(kernel)
                else 1
            )
            return Tile(b, a, splits) if columns_first else Tile(a, b, splits)
    for pattern in _QUERIES:
        if found := pattern.search(kernel):
            named = found.groupdict()
            return Tile(int(named["rows"]) if "rows" in named else 2 * int(named["half"]), None)
    return None
