"""Why a call takes longer than its bound: what its launch, tiles and other kernels explain of
the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from llmprof.names.tiles import Tile, tile
from llmprof.theory.calls import CallWork
from llmprof.theory.hardware import Device
from llmprof.units import format_share

CAUSES: Final[tuple[str, ...]] = ("other_kernels", "start", "few_blocks", "waves", "padding")
"""In the order in which they are taken from the time beyond the bound."""

ALONE_BYTES_PER_S: Final = 113e9
"""What one multiprocessor reads from memory at most: measured on H100 (benchmarks/bounds.md)."""

START: Final = 2.0
"""Shortest kernels that beginning and ending a kernel with work takes beyond its bound: measured
on H100.
"""

_THREADS, _REGISTERS, _SHARED, _BLOCKS = 2048, 65536, 228 * 1024, 32
"""What a multiprocessor of NVIDIA's A100, H100 and B200 holds:

CUDA programming guide, technical specifications.
"""

_NEAR: Final = 0.9
"""From this share of the bound on there is nothing to explain."""

_MATTERS: Final = 0.2
"""Least part of the time beyond the bound that makes a cause the reason."""

_FASTER: Final = 2.0
"""A cause gains at most this much more than at full rate: what the rest of the kernel does at
less than that.
"""


@dataclass(frozen=True, slots=True)
class Launch:
    """A call as its kernels ran: its mean time, that of its longest kernel, and the launch of
    this one.
    """

    call_ns: float
    main_ns: float
    kernel: str
    kernels: float
    blocks: int | None
    resident: int = 1
    """Blocks that fit on a multiprocessor beside each other, as far as the launch says."""
    mixed: bool = False
    """Whether operands of one shape lie in different orders in memory."""


def resident(threads: int | None, registers: int | None, shared: int | None) -> int:
    """Blocks that fit on a multiprocessor; 1 where the launch does not say what they take."""
    if not threads or not registers or shared is None:
        return 1
    warps = -(-threads // 32)
    a_warp = -(-registers * 32 // 256) * 256
    fits = (
        _THREADS // (warps * 32),
        _REGISTERS // (a_warp * warps),
        _SHARED // (shared + 1024),
        _BLOCKS,
    )
    return max(1, min(fits))


@dataclass(frozen=True, slots=True)
class _Spread:
    """How the parts of a kernel's work fall on multiprocessors."""

    items: int
    """Tiles, or blocks where these are not known."""
    workers: int
    """Multiprocessors that work at the same time."""
    turns: int
    padded: float
    """Elements that all tiles hold, over those of the result."""
    tile: Tile | None
    tiles: int | None

    @property
    def tile_words(self) -> str | None:
        """Rows and columns of a tile."""
        return f"{self.tile.rows}x{self.tile.columns}" if self.tile else None

    @property
    def pieces(self) -> str:
        """Count of the parts, in words."""
        return f"{self.items:,} {f'tiles of {self.tile_words}' if self.tile else 'blocks'}"


def _spread(launch: Launch, work: CallWork, multiprocessors: int) -> _Spread | None:
    """None where neither launch nor name says how the work is divided."""
    shape = tile(launch.kernel) if work.result else None
    tiles, padded = None, 1.0
    if shape is not None and work.result is not None:
        batch, rows, columns = work.result
        shape = shape._replace(columns=shape.columns or columns)
        wide = shape.columns or 1
        tiles = batch * ceil(rows / shape.rows) * ceil(columns / wide)
        padded = tiles * shape.rows * wide / max(1, batch * rows * columns)
    if not launch.blocks:
        return None
    items = launch.blocks
    if tiles is not None and shape is not None:
        if shape.splits is None:
            if tiles > launch.blocks:  # blocks take parts of tiles: none waits for a whole one
                return _Spread(multiprocessors, multiprocessors, 1, padded, shape, tiles)
        elif tiles * shape.splits > launch.blocks:  # blocks take one tile after the other
            items = tiles * shape.splits
    workers = min(launch.blocks, multiprocessors)
    return _Spread(items, workers, ceil(items / max(1, workers)), padded, shape, tiles)


def shortfall(
    work: CallWork, bound_ns: float, launch: Launch, device: Device, start_ns: float
) -> dict[str, Any]:
    """Columns ``tile, blocks, turns``, the share of each cause, ``cause`` and ``reason`` of a
    call.
    """
    # `start_ns` is what it takes to begin and end a kernel, beyond what the bound holds of it.
    gap = launch.call_ns - bound_ns
    units = device.multiprocessors
    spread = _spread(launch, work, units) if units else None
    said: dict[str, Any] = {
        "tile": spread.tile_words if spread else None,
        "blocks": launch.blocks,
        "turns": spread.turns if spread else None,
    }
    if gap <= 0 or bound_ns / launch.call_ns >= _NEAR:
        return said
    by_memory = not work.matrix
    gained = {"other_kernels": launch.call_ns - launch.main_ns, "start": start_ns}
    left = launch.main_ns - start_ns
    if spread is not None and units and left > 0:
        gained |= _of_spread(spread, work, launch, device, left)
    if spread is None or spread.tile is None:
        gained.pop("padding", None)
    rest, shares = gap, {}
    for cause in CAUSES:
        if cause in gained:
            part = min(rest, max(0.0, gained[cause]))
            shares[cause] = part / gap
            rest -= part
    cause = max(shares, key=lambda name: shares[name])
    if shares[cause] < _MATTERS:
        cause = (
            "alignment"
            if _NARROW.search(launch.kernel)
            else "strides"
            if launch.mixed and by_memory
            else "rest"
        )
    share = shares.get(cause, rest / gap)
    return {
        **said,
        **{f"{name}_share": shares.get(name) for name in CAUSES},
        "rest_share": rest / gap,
        "cause": cause,
        "reason": _reason(cause, share, work, launch, spread=spread, units=units),
    }


def _reason(
    cause: str,
    share: float,
    work: CallWork,
    launch: Launch,
    *,
    spread: _Spread | None,
    units: int | None,
) -> str:
    """A cause as a sentence; what it needs to know, is known where it was found."""
    of_rest = f"{format_share(share)} of the time beyond the bound"
    if cause == "other_kernels":
        split = ", which add up the parts of split sums" if _SPLIT_SUM.search(launch.kernel) else ""
        return f"Other kernels of the call take {of_rest}{split}."
    if cause == "start":
        what = "a kernel" if round(launch.kernels, 1) == 1 else "kernels"
        return f"Beginning and ending {what} takes {of_rest}."
    if cause == "few_blocks" and spread is not None:
        room = f", each with room for {launch.resident:,}" if launch.resident > 1 else ""
        return f"{spread.pieces} are too few for {units:,} multiprocessors{room}: {of_rest}."
    if cause == "waves" and spread is not None:
        full = (spread.items - (spread.turns - 1) * spread.workers) / spread.workers
        return (
            f"{spread.pieces} on {spread.workers:,} multiprocessors take {spread.turns:,} turns,"
            f" and the last one fills {format_share(full)} of them: {of_rest}."
        )
    if cause == "padding" and spread is not None and work.result is not None:
        _, rows, columns = work.result
        return (
            f"Tiles of {spread.tile_words} do not divide {rows:,} x {columns:,}:"
            f" {format_share(1 - 1 / spread.padded)} of what they compute is thrown away,"
            f" {of_rest}."
        )
    if cause == "alignment":
        return (
            "The kernel reads its operands in small pieces (rows do not begin at multiples of 16"
            " bytes)."
        )
    if cause == "strides":
        return (
            "Its operands lie in different orders in memory: what runs along the rows of one jumps"
            " in the other."
        )
    return f"Neither the launch nor other kernels explain {of_rest}."


_SPLIT_SUM: Final = re.compile(r"(?i)split_?k")
_NARROW: Final = re.compile(r"align[124](?!\d)")


def _of_spread(
    spread: _Spread, work: CallWork, launch: Launch, device: Device, left: float
) -> dict[str, float]:
    """What a kernel of ``left`` ns would gain with enough blocks, with full turns and without
    padding.
    """
    # Its time is that of its slower side, arithmetic or memory, up to twice what that takes at full
    # rate; what removes a cause from the faster side gains nothing. Beyond that its blocks wait,
    # and would do so beside more of them.
    units = device.multiprocessors or 1
    rate = device.flop_per_s.get(work.matrix) if work.flops else None
    arithmetic = (work.flops or 0) / rate * 1e9 if rate else 0.0
    moved = work.read + work.written
    memory = moved / (device.memory_bytes_per_s or float("inf")) * 1e9
    used = spread.items / (units * spread.turns)
    slow_memory = max(memory, moved / (spread.workers * ALONE_BYTES_PER_S) * 1e9)
    before = max(arithmetic * spread.padded / used, slow_memory)
    full = max(arithmetic * spread.padded, memory)
    exact = max(arithmetic, memory)
    time = min(left, _FASTER * before)
    gain = time * (1 - full / before) if before else 0.0
    waiting = (left - time) * (1 - min(1.0, (launch.blocks or 0) / (units * launch.resident)))
    few, waves = (gain, 0.0) if spread.turns == 1 else (0.0, gain)
    return {
        "few_blocks": few + waiting,
        "waves": waves,
        "padding": (time - gain) * (1 - exact / full) if full else 0.0,
    }
