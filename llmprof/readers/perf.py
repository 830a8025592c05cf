"""Readers of ``perf script`` and of folded stacks (``a;b;c 12``), which many samplers write.

The name of a frame without a symbol is that of its library, ``[libcuda.so.1]``.

The fields that ``perf script`` prints depend on its version and options: the thread, the processor,
the period and the offsets of symbols may be missing. Without ``-g`` the only frame is in the line
of the sample. Lines of other kinds (a header, other events) are counted.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import polars as pl

from llmprof.errors import ReadError
from llmprof.readers.common.event_stream import Blocks
from llmprof.readers.common.reader import (
    MOST_NS,
    Probe,
    Reader,
    Request,
    bytes_of,
    text_of,
    trace_of,
)
from llmprof.text import left_out
from llmprof.trace import Trace

HEAD: Final = (
    r"^(?P<command>\S.*?)\s(?P<pid>-?\d+)(?:/(?P<tid>-?\d+))?\s+(?:\[(?P<cpu>\d+)\]\s+)?(?:[.dNhH]{4,5}\s+)?"
    r"(?P<seconds>\d{1,10})\.(?P<fraction>\d{1,9}):\s+(?:(?P<period>\d{1,18})\s+)?(?P<event>\S+?):(?:\s(?P<rest>.*))?$"
)
"""Pattern of the first line of a sample."""

_SCRIPT_FRAME: Final = (
    r"^\s*(?P<address>[0-9a-fA-F]+)\s+(?P<symbol>.*?)(?:\+0x[0-9a-f]+)?"
    r"(?:\s+\((?P<module>(?:[^()]|\(deleted\)|\(inlined\))*)\))?\s*$"
)
_CLOCKS: Final = r"^(?:cpu-clock|task-clock)(?::|$)"
"""Events whose period is a time in ns."""

IDLE: Final = "idle (swapper)"
"""Outermost frame of samples of an idle processor."""

BLOCK_BYTES: Final = 32 << 20


def read_samples(path: Path, block_bytes: int = BLOCK_BYTES) -> tuple[pl.DataFrame, int, int, str]:
    """Read the samples in the output of ``perf script``."""
    blocks = Blocks(path)
    frames, without, odd = [], 0, 0
    for text in _pieces(blocks, block_bytes):
        frame, bare, strange = _parsed(text)
        frames.append(frame)
        without, odd = without + bare, odd + strange
    whole = pl.concat(frames) if frames else _parsed("")[0]
    return whole, without, odd, blocks.damage


def _pieces(blocks: Blocks, size: int) -> Iterator[str]:
    """The text in pieces; it is cut at empty lines, which separate samples."""
    rest = b""
    for block in blocks:
        rest += block
        if len(rest) < size:
            continue
        cut = rest.rfind(b"\n\n")
        if cut > 0:
            yield _text(rest[:cut])
            rest = rest[cut:]
    if rest:
        yield _text(rest)


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace").replace("\r\n", "\n").replace("\0", "")


_MOST_S: Final = MOST_NS // 1_000_000_000 + 1
"""Seconds from which on a time cannot be."""


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
    # lines that only look like the start of a sample
    torn = lines.filter(~pl.col("outer") & ~pl.col("is_head")).height
    own = heads.filter(pl.col("rest").str.contains(r"^\s*[0-9a-f]+\s+\S.*\)\s*$")).select(
        "sample", line="rest"
    )
    below = lines.filter("outer").select("sample", "line").filter(pl.col("sample") > 0)
    entries = (
        pl.concat([own, below])
        .with_columns(frame=pl.col("line").str.extract_groups(_SCRIPT_FRAME))
        .unnest("frame")
    )
    library = (
        pl.col("module")
        .replace("[unknown]", None)
        .str.extract(r"([^/]+?)(?: \(deleted\))?$", 1)
        .str.strip_chars("[]")
    )
    unnamed = pl.coalesce(pl.format("[{}]", library), pl.lit("[unknown]"))
    has_symbol = ~pl.col("symbol").is_in(["", "[unknown]"]).fill_null(True)
    entries = entries.drop_nulls("address")
    entries = entries.with_columns(symbol=pl.when(has_symbol).then("symbol").otherwise(unnamed))
    odd = torn + lines.filter("outer").height - entries.height + own.height
    stacks = entries.group_by("sample", maintain_order=True).agg(
        stack=pl.col("symbol").reverse().str.join("\n"),
        name=pl.first("symbol"),
        module=pl.first("module"),
    )
    clock = pl.col("event").str.contains(_CLOCKS) & pl.col("period").is_not_null()
    whole = heads.join(stacks, on="sample", how="inner", maintain_order="left")
    idle = pl.when(pl.col("pid") == "0").then(pl.lit(IDLE + "\n")).otherwise(pl.lit(""))
    samples = whole.select(
        process=pl.col("pid").cast(pl.Int64, strict=False),
        thread=pl.coalesce("tid", "pid").cast(pl.Int64, strict=False),
        time_ns=pl.col("seconds").cast(pl.Int64).clip(upper_bound=_MOST_S) * 1_000_000_000
        + pl.col("fraction").str.pad_end(9, "0").cast(pl.Int64),
        name="name",
        stack=idle + pl.col("stack"),
        module=pl.col("module").replace("[unknown]", None),
        command=pl.col("command").str.strip_chars(),
        event="event",
        value=pl.when(clock).then(pl.col("period").cast(pl.Int64, strict=False)).otherwise(1),
        unit=pl.when(clock).then(pl.lit("ns")).otherwise(pl.lit("samples")),
        cpu=pl.col("cpu").cast(pl.Int32, strict=False),
    )
    return samples, heads.height - samples.height, max(0, odd)


_HEAD: Final = re.compile(HEAD)
_FRAME: Final = re.compile(r"\s+[0-9a-fA-F]{3,16}\s\S")
_FOLDED: Final = r"^(?P<stack>\S.*?)\s(?P<count>\d{1,18})\s*$"
_FOLDED_LINE: Final = re.compile(_FOLDED)
_HEADER: Final = re.compile(r"# (?P<key>arch|perf version|cpudesc|os release) : (?P<value>.+)")
_SNIFFED_LINES: Final = 40


def _lines(probe: Probe) -> list[str]:
    """First complete lines of a text that are not comments."""
    if probe.is_folder or b"\0" in probe.start[:4096]:
        return []
    lines = probe.start.decode("utf-8", errors="replace").splitlines()
    return [
        line for line in lines[: _SNIFFED_LINES * 3] if line.strip() and not line.startswith("#")
    ][:_SNIFFED_LINES]


def _is_script(probe: Probe) -> bool:
    lines = _lines(probe)
    if not lines or not (head := _HEAD.match(lines[0])):
        return False
    return bool(head["rest"]) or any(_FRAME.match(line) for line in lines[1:])


def _is_folded(probe: Probe) -> bool:
    lines = _lines(probe)
    if len(probe.start) >= 1 << 16:
        lines = lines[:-1] or lines
    return (
        bool(lines)
        and all(_FOLDED_LINE.match(line) for line in lines)
        and any(";" in line for line in lines)
    )


def _read_script(path: Path, request: Request) -> Trace:
    frame, without, odd, damage = read_samples(path)
    if not frame.height:
        found = f"{path.name} has no sample with a call stack"
        expected = "the output of perf script for a recording with call stacks"
        raise ReadError(
            found, expected=expected, hint="record with perf record -g, then perf script > FILE"
        )
    notes = []
    if without:
        notes.append(left_out(without, "sample", "without a call stack"))
    if odd:
        notes.append(left_out(odd, "line", "that could not be read as a sample or a frame"))
    unknown = frame["name"].str.contains(r"^\[[^\]]*\]$").sum() / frame.height
    if unknown > 0.5:
        notes.append(
            f"{unknown:.0%} of the samples end in a function without a name: the symbols were not"
            " found"
        )
    idle = frame["stack"].str.starts_with(IDLE).sum() / frame.height
    if idle:
        notes.append(f"{idle:.0%} of the samples are of idle processors ({IDLE})")
    with path.open("rb") as file:
        start = file.read(1 << 14).decode("utf-8", errors="replace")
    versions = {match["key"]: match["value"].strip() for match in _HEADER.finditer(start)}
    head = {"versions": versions, "absolute": False}
    return trace_of(
        path,
        "perf",
        {"samples": frame},
        head=head,
        events=frame.height + without,
        notes=notes,
        damage=damage,
    )


def _read_folded(path: Path, request: Request) -> Trace:
    data, damage = bytes_of(path)
    lines = pl.DataFrame({"line": pl.Series(text_of(data).splitlines(), dtype=pl.String)}).filter(
        (pl.col("line").str.strip_chars().str.len_bytes() > 0)
        & ~pl.col("line").str.starts_with("#")
    )
    parsed = lines.with_columns(row=pl.col("line").str.extract_groups(_FOLDED)).unnest("row")
    rows = parsed.drop_nulls("count")
    frames = pl.col("stack").str.strip_chars_end().str.strip_chars(";").str.split(";")
    samples = rows.select(
        name=frames.list.last(),
        stack=frames.list.join("\n"),
        value=pl.col("count").cast(pl.Int64, strict=False).fill_null(0),
        unit=pl.lit("samples"),
    ).filter(pl.col("value") > 0)
    lost = parsed.height - samples.height
    notes = [left_out(lost, "line", "without a stack and a count")] if lost else []
    return trace_of(
        path, "folded", {"samples": samples}, events=parsed.height, notes=notes, damage=damage
    )


READERS: Final = (
    Reader(
        name="perf",
        version=3,
        what="text of perf script",
        sniff=_is_script,
        read=_read_script,
        alone=True,
    ),
    Reader(
        name="folded",
        version=1,
        what="folded call stacks (a;b;c 12)",
        sniff=_is_folded,
        read=_read_folded,
        alone=True,
    ),
)
