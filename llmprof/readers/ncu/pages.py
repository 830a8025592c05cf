"""Reads a page of Nsight Compute: the raw page (one row per launch) or the details page (one row per metric)."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from llmprof.text import distinct

_HEADER: Final = re.compile(r'"ID","Process ID","Process Name"')
_HEADER_PLAIN: Final = re.compile(r"^ID,Process ID,")
_ROW: Final = re.compile(r'"\d+","\d+","|"","","')
_ROW_PLAIN: Final = re.compile(r"\d+,\d+,|,,")
_TOOL: Final = re.compile(r"==(PROF|WARNING|ERROR|LOG)==")
_LINE_BREAK: Final = "\x1e"
"""Character that replaces a line break inside a record while records are parsed together."""

_TOOLS_KEPT: Final = 20
_LONGEST: Final = 60_000
"""Number of characters of a row with open quotes above which no more lines are added to it; csv has a limit, too."""


@dataclass
class Segment:
    """Rows below one heading: one page of one run."""

    header: list[str]
    rows: list[list[str]] = field(default_factory=list)
    open_rows: list[int] = field(default_factory=list)
    """Numbers of the rows whose quotes do not close."""
    quoted: bool = True
    """Whether every cell is in quotes, as the profiler writes it; other programs may have rewritten the file."""

    @property
    def is_long(self) -> bool:
        """Whether this is the details page (one row per metric) and not the raw page (one row per launch)."""
        return "Metric Name" in self.header


@dataclass
class Pages:
    """Pages of a text, the messages of ncu between them, and the number of all other lines."""

    segments: list[Segment] = field(default_factory=list)
    tool_lines: list[str] = field(default_factory=list)
    other_lines: int = 0


def split(text: str) -> Pages:
    """Split a text into pages.

    A row begins with the numbers of launch and process. Any other line continues a row with open quotes (the text of a
    rule), or is output of the program or of ncu.
    """
    pages = Pages()
    records: list[str] = []
    segment: Segment | None = None
    quoted, is_open = True, False
    for line in _lines(text):
        if _HEADER.match(line) or _HEADER_PLAIN.match(line):
            _close(segment, records)
            quoted = line.startswith('"')
            segment = Segment(_cells(line), quoted=quoted)
            pages.segments.append(segment)
            records, is_open = [], False
        elif _TOOL.match(line):
            pages.tool_lines = [*pages.tool_lines, line][-_TOOLS_KEPT:]
            pages.other_lines += 1
        elif segment is not None and (start := _row_start(line, quoted=quoted, is_open=is_open)) is not None:
            if start and not is_open:
                pages.other_lines += 1
            records.append(line[start:])
            is_open = line.count('"', start) % 2 == 1
        elif is_open and len(records[-1]) < _LONGEST:
            records[-1] += _LINE_BREAK + line
            is_open = line.count('"') % 2 == 0
        elif line.strip():
            pages.other_lines += 1
    _close(segment, records)
    return pages


def _lines(text: str) -> Iterator[str]:
    """Lines of a text; if a heading (of a second run) follows a cut row on the same line, the line is split."""
    for line in text.lstrip("\ufeff").replace("\r\n", "\n").split("\n"):
        header = _HEADER.search(line)
        if header and header.start():
            yield line[: header.start()]
            yield line[header.start() :]
        else:
            yield line


def _row_start(line: str, *, quoted: bool, is_open: bool) -> int | None:
    """Place in a line where a row begins, for instance after a progress bar that did not end its line."""
    if not quoted:
        return 0 if _ROW_PLAIN.match(line) else None
    if _ROW.match(line):
        return 0
    row = None if is_open else _ROW.search(line)
    return row.start() if row else None


_BROKEN: Final = ["?"]
"""Row that replaces one that cannot be parsed; it has no launch number, so it counts as broken."""


def _cells(record: str) -> list[str]:
    try:
        return next(csv.reader([record]), _BROKEN) or _BROKEN
    except csv.Error:  # a cell longer than any that the profiler writes
        return _BROKEN


def _close(segment: Segment | None, records: list[str]) -> None:
    """Parse the records of a segment that has ended."""
    if segment is None:
        return
    segment.open_rows = [i for i, record in enumerate(records) if record.count('"') % 2]
    closed = [record for record in records if record.count('"') % 2 == 0]
    try:
        parsed = list(csv.reader(closed))
    except csv.Error:
        parsed = []
    if len(parsed) != len(closed):  # a quote in the wrong place joined rows
        parsed = [_cells(record) for record in closed]
    rows = iter(parsed)
    is_open = set(segment.open_rows)
    for i, record in enumerate(records):
        row = _cells(record) if i in is_open else next(rows) or _BROKEN
        segment.rows.append([cell.replace(_LINE_BREAK, "\n") for cell in row] if _LINE_BREAK in record else row)


_PREFIX: Final = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "m": 1e6, "G": 1e9, "g": 1e9, "T": 1e12, "t": 1e12, "P": 1e15}
_TIME_NS: Final = {
    f"{prefix}{name}": ns
    for name in ("s", "sec", "second")
    for prefix, ns in (("", 1e9), ("m", 1e6), ("u", 1e3), ("n", 1.0))
}
_SCALED: Final = re.compile(r"([KkMmGgTtP]?)(bytes?|hz|Hz|HZ)")
_NUMBER: Final = r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?"


def base_unit(unit: str) -> tuple[str, float]:
    """Base unit of a unit, and the factor from the unit to the base unit.

    Sizes become bytes (``B``), times nanoseconds (``ns``), frequencies ``Hz``, and rates ``…/s``. Prefixes are decimal,
    as in Nsight Compute. A missing unit is ``1``. An unknown unit stays as it is.

    >>> base_unit("Kbyte/block"), base_unit("cycle/nsecond"), base_unit("usecond")
    (('B/block', 1000.0), ('Hz', 1000000000.0), ('ns', 1000.0))
    """
    above, slash, below = unit.strip().partition("/")
    if not slash:
        return _one(above)
    name, factor = _one(above)
    if below in _TIME_NS:
        factor = factor * 1e9 / _TIME_NS[below]
        return ("Hz", factor) if name == "cycle" else (f"{name}/s", factor)
    below, divisor = _one(below)
    return f"{name}/{below}", factor / divisor


def _one(unit: str) -> tuple[str, float]:
    if not unit:
        return "1", 1.0
    if unit in _TIME_NS:
        return "ns", _TIME_NS[unit]
    if scaled := _SCALED.fullmatch(unit):
        return "B" if scaled[2].startswith("byte") else "Hz", _PREFIX[scaled[1]]
    return unit, 1.0


def in_base_units(frame: pl.DataFrame) -> pl.DataFrame:
    """Text in the column ``raw`` as ``value`` in the base ``unit``; ``text`` is what is no number, or more than one."""
    raw = pl.col("raw").str.strip_chars()
    number = raw.str.extract(rf"^({_NUMBER})\s*(?:\(.*\))?$", 1).str.replace_all(",", "")
    units = frame["unit"].fill_null("").unique().to_list()
    bases = [base_unit(unit) for unit in units]
    table = pl.DataFrame(
        {"unit": units, "_base": [name for name, _ in bases], "_factor": [factor for _, factor in bases]},
        schema={"unit": pl.String, "_base": pl.String, "_factor": pl.Float64},
    )
    return (
        frame.with_columns(pl.col("unit").fill_null(""), value=number.cast(pl.Float64, strict=False))
        .join(table, on="unit", how="left", maintain_order="left")
        .with_columns(
            unit=pl.col("_base"),
            value=pl.col("value") * pl.col("_factor"),
            text=pl.when(pl.col("value").is_null() | raw.str.ends_with(")")).then(raw),
        )
        .drop("raw", "_base", "_factor")
    )


LAUNCH: Final = {
    "ID": "id",
    "Process ID": "process",
    "Process Name": "process_name",
    "Kernel Name": "kernel_name",
    "Context": "context",
    "Stream": "stream",
    "Block Size": "block",
    "Grid Size": "grid",
    "Device": "device",
    "CC": "compute_capability",
}
"""Names here of the columns that identify the launch of a row."""

_OTHER: Final = ("Host Name", "Kernel Time", "Device Name")
_NUMBERS: Final = ("id", "process", "context", "stream", "device")
_RULE: Final = ("Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup")


@dataclass
class Part:
    """Launches of one run from one page; ``launch`` is their number, from 0 in the order of the page."""

    source: str
    launches: pl.DataFrame
    """``launch`` and the columns of :data:`LAUNCH`."""
    metrics: pl.DataFrame
    """``launch, section, metric, unit, value, text``."""
    rules: pl.DataFrame
    """``launch, section, rule, kind, text, estimated_speedup_pct, speedup_scope``."""
    cut_rows: int = 0
    broken_rows: int = 0
    no_units: bool = False


def part_of(segment: Segment, source: str) -> Iterator[Part]:
    """Parts of a page, one for each run; a new run begins where the launch numbers start again."""
    part = _long(segment, source) if segment.is_long else _wide(segment, source)
    runs = part.launches.select(run=(pl.col("id") < pl.col("id").shift(1)).fill_null(value=False).cum_sum())["run"]
    for run in runs.unique(maintain_order=True) if len(runs) else [0]:
        launches = part.launches.filter(runs == run)
        within = pl.col("launch").is_in(launches["launch"].implode())
        first = run == 0
        yield Part(
            source,
            launches,
            part.metrics.filter(within),
            part.rules.filter(within),
            part.cut_rows if first else 0,
            part.broken_rows if first else 0,
            part.no_units if first else False,
        )


def launch_frame(rows: list[dict[str, object]]) -> pl.DataFrame:
    """Frame of launches with the column types of a part."""
    return _typed(pl.DataFrame(rows, schema=dict.fromkeys(("launch", *LAUNCH.values()), pl.String), strict=False))


def _typed(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(
        pl.col("launch").cast(pl.Int32), pl.col(*_NUMBERS).str.replace_all(",", "").cast(pl.Int64, strict=False)
    )


def _wide(segment: Segment, source: str) -> Part:
    header, n = distinct(segment.header), len(segment.header)
    rows = list(enumerate(segment.rows))
    units: list[str] | None = None
    if rows and not rows[0][1][0].strip():
        units = [*rows.pop(0)[1], *[""] * n][:n]
    is_open = set(segment.open_rows)
    kept, cut, broken = [], 0, 0
    for i, row in rows:
        if len(row) > n or not row[0].strip().isdigit():
            broken += 1
            continue
        if len(row) < n or i in is_open:
            cut += 1
            # The last cell may be half a number, unless its quotes close.
            row = row[:-1] if i in is_open or not segment.quoted else row
            if len(row) <= len([c for c in header if c in LAUNCH or c in _OTHER]):
                continue
        kept.append([*row, *[None] * (n - len(row))])
    frame = pl.DataFrame(kept, schema=dict.fromkeys(header, pl.String), orient="row")
    frame = frame.with_row_index("launch")
    names = [c for c in header if c not in LAUNCH and c not in _OTHER and c]
    long = frame.select("launch", *names).unpivot(names, index="launch", variable_name="metric", value_name="raw")
    long = long.with_columns(pl.col("raw").cast(pl.String))  # if there are no columns, it has no type
    long = long.filter(pl.col("raw").str.strip_chars() != "").sort("launch", maintain_order=True)
    unit_of = pl.DataFrame(
        {"metric": header, "unit": units or [""] * n}, schema={"metric": pl.String, "unit": pl.String}
    )
    long = long.join(unit_of, on="metric", how="left", maintain_order="left")
    metrics = in_base_units(long).select(
        pl.col("launch").cast(pl.Int32), pl.lit(None, pl.String).alias("section"), "metric", "unit", "value", "text"
    )
    return Part(source, _launches(frame), metrics, no_rules(), cut, broken, units is None and bool(kept))


def _long(segment: Segment, source: str) -> Part:
    header = distinct(segment.header)
    position_of = {name: header.index(name) for name in header}
    value, rule = position_of.get("Metric Value", len(header)), position_of.get("Rule Name")
    text = position_of.get("Rule Description", len(header) - 1)
    is_open = set(segment.open_rows)
    kept, cut, broken = [], 0, 0
    for i, row in enumerate(segment.rows):
        is_rule = rule is not None and len(row) > rule and row[rule].strip() != ""
        if is_rule and len(row) > len(header):  # its text was split at its commas, because its quotes are wrong
            after = len(row) - len(header) + text + 1
            row = [*row[:text], ",".join(row[text:after]), *row[after:]]
        elif is_rule:
            pass
        elif i in is_open or len(row) <= value:
            cut += 1
            continue
        if len(row) > len(header) or not row[0].strip().isdigit():
            broken += 1
            continue
        kept.append([*row, *[None] * (len(header) - len(row))])
    frame = pl.DataFrame(kept, schema=dict.fromkeys(header, pl.String), orient="row")
    keys = [c for c in LAUNCH if c in position_of]
    number = frame["ID"].cast(pl.Int64, strict=False)  # each time that they start again, a new run begins in the file
    frame = frame.with_columns(restart=(number < number.shift(1)).fill_null(value=False).cum_sum())
    launches = frame.select("restart", *keys).unique(maintain_order=True).with_row_index("launch")
    frame = frame.join(launches, on=["restart", *keys], how="left", maintain_order="left", nulls_equal=True)
    for name in ("Metric Unit", "Metric Value", *_RULE):
        if name not in frame.columns:
            frame = frame.with_columns(pl.lit(None, dtype=pl.String).alias(name))
    section = pl.col("Section Name").replace("", None) if "Section Name" in position_of else pl.lit(None, pl.String)
    if "Body Item Label" in position_of:
        label = pl.col("Body Item Label").replace("", None)
        section = pl.when(label.is_not_null()).then(pl.concat_str(section, label, separator=": ")).otherwise(section)
    frame = frame.with_columns(section=section)
    long = frame.filter(pl.col("Metric Name").fill_null("") != "").select(
        "launch", "section", metric="Metric Name", unit="Metric Unit", raw="Metric Value"
    )
    metrics = in_base_units(long.filter(pl.col("raw").str.strip_chars() != ""))
    rules = frame.filter(pl.col("Rule Name").fill_null("") != "").select(
        "launch",
        "section",
        rule="Rule Name",
        kind=pl.col("Rule Type").fill_null(""),
        text=pl.col("Rule Description").fill_null(""),
        estimated_speedup_pct=pl.col("Estimated Speedup").str.replace_all(",", "").cast(pl.Float64, strict=False),
        speedup_scope=pl.col("Estimated Speedup Type").replace("", None),
    )
    launches = _launches(frame.unique("launch", keep="first", maintain_order=True))
    metrics = metrics.select("launch", "section", "metric", "unit", "value", "text")
    as_int32 = pl.col("launch").cast(pl.Int32)
    return Part(source, launches, metrics.with_columns(as_int32), rules.with_columns(as_int32), cut, broken)


def _launches(frame: pl.DataFrame) -> pl.DataFrame:
    columns = [
        pl.col(name).alias(new) if name in frame.columns else pl.lit(None, dtype=pl.String).alias(new)
        for name, new in LAUNCH.items()
    ]
    return _typed(frame.select("launch", *columns))


def no_rules() -> pl.DataFrame:
    """Empty frame for results of rules."""
    texts = dict.fromkeys(("section", "rule", "kind", "text"), pl.String())
    return pl.DataFrame(
        schema={"launch": pl.Int32(), **texts, "estimated_speedup_pct": pl.Float64(), "speedup_scope": pl.String()}
    )
