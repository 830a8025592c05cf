"""Text of ``perf script``: samples with a line of their own and a line for each frame, the innermost first.

A frame without a symbol is named by its library, ``[libcuda.so.1]``.

The fields that ``perf script`` prints differ with its version and options: the thread beside the process, the
processor, the period and the symbols' offsets may be missing, and without ``-g`` the only frame stands in the line of
the sample. Lines that are none of this (a header, other events) are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import polars as pl

from llmprof.readers.common.event_stream import Blocks

HEAD: Final = (
    r"^(?P<command>\S.*?)\s+(?P<pid>-?\d+)(?:/(?P<tid>-?\d+))?\s+(?:\[(?P<cpu>\d+)\]\s+)?(?:[.dNhH]{4,5}\s+)?"
    r"(?P<seconds>\d{1,10})\.(?P<fraction>\d{1,9}):\s+(?:(?P<period>\d{1,18})\s+)?(?P<event>\S+?):(?:\s(?P<rest>.*))?$"
)
"""Line of a sample."""

_FRAME: Final = (
    r"^\s*(?P<address>[0-9a-fA-F]+)\s+(?P<symbol>.*?)(?:\+0x[0-9a-f]+)?"
    r"(?:\s+\((?P<module>(?:[^()]|\(deleted\)|\(inlined\))*)\))?\s*$"
)
_CLOCKS: Final = r"^(?:cpu-clock|task-clock)(?::|$)"
"""Events whose period is a time in ns."""

IDLE: Final = "idle (swapper)"
"""Outermost frame of samples of a processor that had nothing to run."""

BLOCK_BYTES: Final = 32 << 20


def samples(path: Path, block_bytes: int = BLOCK_BYTES) -> tuple[pl.DataFrame, int, int, str]:
    """Samples of a text.

    Parameters
    ----------
    path : pathlib.Path
        Plain or gzip.
    block_bytes : int
        What is parsed at a time; the result does not depend on it.

    Returns
    -------
    tuple of (polars.DataFrame, int, int, str)
        Columns of the table ``samples`` with times since the clock's start (ns); samples without a stack that were
        left out; lines that could not be read; why the file ends early.
    """
    blocks = Blocks(path)
    frames, without, odd = [], 0, 0
    for text in _pieces(blocks, block_bytes):
        frame, bare, strange = _parsed(text)
        frames.append(frame)
        without, odd = without + bare, odd + strange
    whole = pl.concat(frames) if frames else _parsed("")[0]
    return whole, without, odd, blocks.damage


def _pieces(blocks: Blocks, size: int) -> Iterator[str]:
    """Text cut between samples: where a line is empty."""
    held = b""
    for block in blocks:
        held += block
        if len(held) < size:
            continue
        cut = held.rfind(b"\n\n")
        if cut > 0:
            yield _text(held[:cut])
            held = held[cut:]
    if held:
        yield _text(held)


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace").replace("\r\n", "\n").replace("\0", "")


def _parsed(text: str) -> tuple[pl.DataFrame, int, int]:
    lines = pl.DataFrame({"line": pl.Series(text.split("\n"), dtype=pl.String)}).filter(
        (pl.col("line").str.len_bytes() > 0) & ~pl.col("line").str.starts_with("#")
    )
    outer = pl.col("line").str.contains(r"^\s")
    head = pl.when(~outer).then(pl.col("line").str.extract_groups(HEAD))
    lines = lines.with_columns(head=head, outer=outer)
    is_head = pl.col("head").struct.field("event").is_not_null()
    lines = lines.with_columns(is_head=is_head).with_columns(sample=pl.col("is_head").cum_sum())
    heads = lines.filter("is_head").select("sample", "head").unnest("head")
    # a line that begins like a sample and is none: what follows it belongs to no sample
    torn = lines.filter(~pl.col("outer") & ~pl.col("is_head")).height
    own = heads.filter(pl.col("rest").str.contains(r"^\s*[0-9a-f]+\s+\S.*\)\s*$")).select("sample", line="rest")
    below = lines.filter("outer").select("sample", "line").filter(pl.col("sample") > 0)
    entries = pl.concat([own, below]).with_columns(frame=pl.col("line").str.extract_groups(_FRAME)).unnest("frame")
    library = (
        pl.col("module").replace("[unknown]", None).str.extract(r"([^/]+?)(?: \(deleted\))?$", 1).str.strip_chars("[]")
    )
    unnamed = pl.coalesce(pl.format("[{}]", library), pl.lit("[unknown]"))
    known = ~pl.col("symbol").is_in(["", "[unknown]"]).fill_null(value=True)
    entries = entries.filter(pl.col("address").is_not_null())
    entries = entries.with_columns(symbol=pl.when(known).then("symbol").otherwise(unnamed))
    odd = torn + lines.filter("outer").height - entries.height + own.height
    stacks = entries.group_by("sample", maintain_order=True).agg(
        stack=pl.col("symbol").reverse().str.join("\n"), name=pl.col("symbol").first(), module=pl.col("module").first()
    )
    clock = pl.col("event").str.contains(_CLOCKS) & pl.col("period").is_not_null()
    whole = heads.join(stacks, on="sample", how="inner", maintain_order="left")
    idle = pl.when(pl.col("pid") == "0").then(pl.lit(IDLE + "\n")).otherwise(pl.lit(""))
    made = whole.select(
        process=pl.col("pid").cast(pl.Int64, strict=False),
        thread=pl.coalesce("tid", "pid").cast(pl.Int64, strict=False),
        time_ns=pl.col("seconds").cast(pl.Int64) * 1_000_000_000
        + pl.col("fraction").str.pad_end(9, "0").cast(pl.Int64),
        name="name",
        stack=idle + pl.col("stack"),
        module=pl.col("module").replace("[unknown]", None),
        command=pl.col("command").str.strip_chars(),
        event="event",
        value=pl.when(clock).then(pl.col("period").cast(pl.Int64, strict=False)).otherwise(1).fill_null(1),
        unit=pl.when(clock).then(pl.lit("ns")).otherwise(pl.lit("samples")),
        cpu=pl.col("cpu").cast(pl.Int32, strict=False),
    )
    return made, heads.height - made.height, max(0, odd)
