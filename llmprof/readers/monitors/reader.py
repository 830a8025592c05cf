"""Readers of what monitors print: which monitor wrote a text, by its first lines, and what reads it."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Final

from llmprof.readers.common.reader import Probe, Reader, Request
from llmprof.readers.monitors import gpu, host
from llmprof.readers.monitors.common import decode
from llmprof.trace import Trace

_SIGNS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    ("dmon", re.compile(r"\s*#\s*(?:Date[\s,]+)?(?:Time[\s,]+)?gpu\b[^\n]*\n\s*#[^\n]*\b[Ii]dx\b")),
    ("gpustat", re.compile(r'\s*\[?\s*\{(?=[^\[]*"query_time"\s*:)(?=[^\[]*"gpus"\s*:)')),
    ("dstat", re.compile(r'\s*(?:"(?:pcp-)?d(?:stat|ool) [\d.]+ CSV output"|"Host:",.*\n"Cmdline:")', re.IGNORECASE)),
    ("sar", re.compile(r"\s*Linux \S+ \([^)\n]*\)\s+\S+\s+_\w+_\s+\(\d+ CPU\)")),
    ("sadf", re.compile(r"\s*# hostname;interval;timestamp;")),
)
_FIELD: Final = re.compile(
    r"(?:timestamp|name|index|uuid|count|pstate|(?:gpu_)?(?:uuid|bus_id|name)|driver_version|"
    r"(?:utilization|memory|temperature|power|clocks|fan|pcie|ecc|encoder|enforced|pci|vbios|gpu|persistence|"
    r"clocks_(?:throttle|event)_reasons|c2c|mig|compute|display|accounting)[\w.]*)(?: \[.+\])?"
)
_MEASURE: Final = re.compile(
    r"(?:utilization|memory|temperature|power\.draw|clocks|fan\.speed|clocks_(?:throttle|event)_reasons)[\w.]*"
)
_TITLES: Final = re.compile(r"-+\w[^\n|]*-$")
_DSTAT_NAMES: Final = re.compile(r"\b(?:usr sys idl|read +writ|recv +send|used +free|int +csw|1m +5m|time|epoch)\b")


def kind(start: bytes) -> str | None:
    """Name of the format of a text by its first bytes; None where no monitor writes such."""
    text = decode(start)
    for name, sign in _SIGNS:
        if sign.match(text):
            return name
    lines = [line.strip() for line in text.splitlines()[:8] if line.strip()]
    fields = [cell.strip() for cell in lines[0].split(",")] if lines else []
    if fields and all(_FIELD.fullmatch(field) for field in fields) and any(_MEASURE.match(field) for field in fields):
        return "query-gpu"
    plain = [host.plain(line).strip() for line in lines]
    for titles, names in pairwise(plain):
        if _TITLES.match(titles) and _DSTAT_NAMES.search(names.replace("|", " ")):
            return "dstat"
    return None


def _reader(name: str, what: str, read: Callable[[Path], Trace]) -> Reader:
    def sniff(probe: Probe) -> bool:
        return not probe.is_folder and kind(probe.start) == name

    def read_file(path: Path, request: Request) -> Trace:
        return read(path)

    return Reader(name=name, version=1, what=what, sniff=sniff, read=read_file, alone=True)


READERS: Final = (
    _reader("dmon", "what nvidia-smi dmon printed", gpu.read_dmon),
    _reader("query-gpu", "what nvidia-smi --query-gpu --format=csv printed", gpu.read_query_gpu),
    _reader("gpustat", "what gpustat --json printed", gpu.read_gpustat),
    _reader("dstat", "what dstat or dool printed or wrote", host.read_dstat),
    _reader("sar", "what sar printed", host.read_sar),
    _reader("sadf", "what sadf -d printed", host.read_sadf),
)
