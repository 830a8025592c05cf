"""Readers of ``perf script`` and of folded stacks (``a;b;c 12``), which many samplers write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import polars as pl

from llmprof.errors import ReadError
from llmprof.readers.common.reader import Probe, Reader, Request
from llmprof.readers.common.summaries import bytes_of, text_of, trace_of
from llmprof.readers.perf import script
from llmprof.trace import Trace

_HEAD: Final = re.compile(script.HEAD)
_FRAME: Final = re.compile(r"\s+[0-9a-fA-F]{3,16}\s\S")
_FOLDED: Final = r"^(?P<stack>\S.*?)\s+(?P<count>\d{1,18})\s*$"
_FOLDED_LINE: Final = re.compile(_FOLDED)
_HEADER: Final = re.compile(r"# (?P<key>arch|perf version|cpudesc|os release) : (?P<value>.+)")
_SNIFFED_LINES: Final = 40


def _lines(probe: Probe) -> list[str]:
    """First whole lines of a text that are no comment."""
    if probe.is_folder or b"\0" in probe.start[:4096]:
        return []
    lines = probe.start.decode("utf-8", errors="replace").splitlines()
    return [line for line in lines[: _SNIFFED_LINES * 3] if line.strip() and not line.startswith("#")][:_SNIFFED_LINES]


def _is_script(probe: Probe) -> bool:
    lines = _lines(probe)
    if not lines or not (head := _HEAD.match(lines[0])):
        return False
    return bool(head["rest"]) or any(_FRAME.match(line) for line in lines[1:])


def _is_folded(probe: Probe) -> bool:
    lines = _lines(probe)
    if len(probe.start) >= 1 << 16:
        lines = lines[:-1] or lines
    return bool(lines) and all(_FOLDED_LINE.match(line) for line in lines) and any(";" in line for line in lines)


def _read_script(path: Path, request: Request) -> Trace:
    frame, without, odd, damage = script.samples(path)
    if not frame.height:
        raise ReadError(
            f"{path.name} holds no sample with a call stack",
            expected="what perf script prints of a recording with call stacks",
            hint="record with perf record -g, then perf script > FILE",
        )
    notes = []
    if without:
        notes.append(f"{without:,} sample(s) have no call stack and were left out")
    if odd:
        notes.append(f"{odd:,} line(s) are no sample and no frame and were left out")
    unknown = frame["name"].str.contains(r"^\[[^\]]*\]$").sum() / frame.height
    if unknown > 0.5:
        notes.append(f"{unknown:.0%} of the samples end in a function without a name: the symbols were not found")
    idle = frame["stack"].str.starts_with(script.IDLE).sum() / frame.height
    if idle:
        notes.append(f"{idle:.0%} of the samples are of idle processors ({script.IDLE})")
    with path.open("rb") as file:
        start = file.read(1 << 14).decode("utf-8", errors="replace")
    versions = {match["key"]: match["value"].strip() for match in _HEADER.finditer(start)}
    head = {"versions": versions, "absolute": False}
    return trace_of(
        path, "perf", {"samples": frame}, head=head, events=frame.height + without, notes=notes, damage=damage
    )


def _read_folded(path: Path, request: Request) -> Trace:
    data, damage = bytes_of(path)
    lines = pl.DataFrame({"line": pl.Series(text_of(data).splitlines(), dtype=pl.String)}).filter(
        (pl.col("line").str.strip_chars().str.len_bytes() > 0) & ~pl.col("line").str.starts_with("#")
    )
    parsed = lines.with_columns(pl.col("line").str.extract_groups(_FOLDED).alias("row")).unnest("row")
    rows = parsed.filter(pl.col("count").is_not_null())
    frames = pl.col("stack").str.strip_chars(";").str.split(";")
    samples = rows.select(
        name=frames.list.last(),
        stack=frames.list.join("\n"),
        value=pl.col("count").cast(pl.Int64, strict=False).fill_null(0),
        unit=pl.lit("samples"),
    ).filter(pl.col("value") > 0)
    lost = parsed.height - samples.height
    notes = [f"{lost:,} line(s) are no stack with a count and were left out"] if lost else []
    return trace_of(path, "folded", {"samples": samples}, events=parsed.height, notes=notes, damage=damage)


READERS: Final = (
    Reader(name="perf", version=2, what="text of perf script", sniff=_is_script, read=_read_script, alone=True),
    Reader(
        name="folded",
        version=1,
        what="folded call stacks (a;b;c 12)",
        sniff=_is_folded,
        read=_read_folded,
        alone=True,
    ),
)
