"""Reader of Nsight Compute:

CSV of the raw page (wide) and the details page (long), and ``.ncu-rep`` reports.
"""

import csv
import importlib
import lzma
import os
import re
import shutil
import subprocess
import tempfile
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.errors import ReadError, TraceWarning, UnknownFormatError
from llmprof.names import kernels
from llmprof.readers.common.reader import Probe, Reader, border
from llmprof.readers.ncu import container
from llmprof.text import counted, distinct, left_out
from llmprof.trace import schema
from llmprof.trace.metrics.data import Metrics
from llmprof.trace.storage.files import note_input, regular

_HEADER: Final = re.compile(r'"ID","Process ID","Process Name"')
_HEADER_PLAIN: Final = re.compile(r"^ID,Process ID,")
_ROW: Final = re.compile(r'"\d+","\d+","|"","","')
_ROW_PLAIN: Final = re.compile(r"\d+,\d+,|,,")
_TOOL: Final = re.compile(r"==(PROF|WARNING|ERROR|LOG)==")
_LINE_BREAK: Final = "\x1e"
"""Character that replaces a line break inside a record while records are parsed together."""

_TOOLS_KEPT: Final = 20
_LONGEST: Final = 60_000
"""Number of characters of a row with open quotes above which no more lines are added to it; csv
has a limit, too.
"""


@dataclass
class Segment:
    """Rows below one heading: one page of one run."""

    header: list[str]
    rows: list[list[str]] = field(default_factory=list)
    open_rows: list[int] = field(default_factory=list)
    """Numbers of the rows whose quotes do not close."""
    quoted: bool = True
    """Whether every cell is in quotes, as the profiler writes it; other programs may have
    rewritten the file.
    """

    @property
    def is_long(self) -> bool:
        """Whether this is the details page (one row per metric) and not the raw page (one row
        per launch).
        """
        return "Metric Name" in self.header


@dataclass
class Pages:
    """Pages of a text, the messages of ncu between them, and the number of all other lines."""

    segments: list[Segment] = field(default_factory=list)
    tool_lines: list[str] = field(default_factory=list)
    other_lines: int = 0


def split_pages(text: str) -> Pages:
    """Split a text into pages."""
    # A row begins with the numbers of launch and process. Any other line continues a row with open
    # quotes (the text of a rule), or is output of the program or of ncu.
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
        elif (
            segment is not None
            and (start := _row_start(line, quoted=quoted, is_open=is_open)) is not None
        ):
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
    """Lines of a text; if a heading (of a second run) follows a cut row on the same line, the
    line is split.
    """
    for line in text.lstrip("\ufeff").replace("\r\n", "\n").split("\n"):
        header = _HEADER.search(line)
        if header and header.start():
            yield line[: header.start()]
            yield line[header.start() :]
        else:
            yield line


def _row_start(line: str, *, quoted: bool, is_open: bool) -> int | None:
    """Place in a line where a row begins, for instance after a progress bar that did not end its
    line.
    """
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
        segment.rows.append(
            [cell.replace(_LINE_BREAK, "\n") for cell in row] if _LINE_BREAK in record else row
        )


_PREFIX: Final = {
    "": 1.0,
    "K": 1e3,
    "k": 1e3,
    "M": 1e6,
    "m": 1e6,
    "G": 1e9,
    "g": 1e9,
    "T": 1e12,
    "t": 1e12,
    "P": 1e15,
}
_TIME_NS: Final = {
    f"{prefix}{name}": ns
    for name in ("s", "sec", "second")
    for prefix, ns in (("", 1e9), ("m", 1e6), ("u", 1e3), ("n", 1.0))
}
_SCALED: Final = re.compile(r"([KkMmGgTtP]?)(bytes?|hz|Hz|HZ)")
_NUMBER: Final = r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?"
_SPACES: Final = "[ '\u2019\u00a0\u202f]"
"""Marks between groups of digits that are in no locale the decimal mark."""
_WITH_COMMA: Final = (
    rf"^[+-]?(?:\d+|\d{{1,3}}(?:(?:\.|{_SPACES})\d{{3}})+),(?:\d{{1,2}}|\d{{4,}})\b"
    r"|^[+-]?\d{1,3}(?:\.\d{3})+,\d"
)
_WITH_POINT: Final = r"^[+-]?[\d,]*\.(?:\d{1,2}|\d{4,})\b|^[+-]?\d{1,3}(?:,\d{3})+\."


def _in_english(texts: pl.Series) -> pl.Series:
    """Texts with their numbers as an English locale writes them, if they are from another one:
    some of its numbers show which mark is the decimal one.
    """
    grouped = texts.str.contains(rf"^[+-]?\d{{1,3}}(?:{_SPACES}\d{{3}})+(?:[.,]\d+)?$")
    texts = texts.str.replace_all(_SPACES, "").zip_with(grouped.fill_null(False), texts)
    if not texts.str.contains(_WITH_COMMA).any() or texts.str.contains(_WITH_POINT).any():
        return texts
    number = texts.str.contains(r"^[+-]?\d[\d.]*(?:,\d+)?(?:[eE][+-]?\d+)?(?:\s*\(.*\))?$")
    plain = texts.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
    return plain.zip_with(number.fill_null(False), texts)


def base_unit(unit: str) -> tuple[str, float]:
    """Base unit of a unit, and the factor from the unit to the base unit.

    Sizes become bytes (``B``), times nanoseconds (``ns``), frequencies ``Hz``, and rates ``…/s``.
    Prefixes are decimal, as in Nsight Compute. A missing unit is ``1``. An unknown unit stays as it
    is.

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


def _in_base_units(frame: pl.DataFrame) -> pl.DataFrame:
    """Text in the column ``raw`` as ``value`` in the base ``unit``; ``text`` is what is no
    number, or more than one.
    """
    frame = frame.with_columns(_in_english(frame["raw"].str.strip_chars()))
    raw = pl.col("raw")
    number = raw.str.extract(rf"^({_NUMBER})\s*(?:\(.*\))?$", 1).str.replace_all(",", "")
    units = frame["unit"].fill_null("").unique().to_list()
    bases = [base_unit(unit) for unit in units]
    table = pl.DataFrame(
        {
            "unit": units,
            "_base": [name for name, _ in bases],
            "_factor": [factor for _, factor in bases],
        },
        schema={"unit": pl.String, "_base": pl.String, "_factor": pl.Float64},
    )
    return (
        frame.with_columns(
            pl.col("unit").fill_null(""), value=number.cast(pl.Float64, strict=False)
        )
        .join(table, on="unit", how="left", maintain_order="left")
        .with_columns(
            unit="_base",
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
_RULE: Final = (
    "Rule Name",
    "Rule Type",
    "Rule Description",
    "Estimated Speedup Type",
    "Estimated Speedup",
)


@dataclass
class PagePart:
    """Launches of one run from one page; ``launch`` is their number, from 0 in the order of the
    page.
    """

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


def _part_of(segment: Segment, source: str) -> Iterator[PagePart]:
    """Parts of a page, one for each run; a new run begins where the launch numbers start again."""
    part = _long(segment, source) if segment.is_long else _wide(segment, source)
    runs = part.launches.select(
        run=(pl.col("id") < pl.col("id").shift(1)).fill_null(False).cum_sum()
    )["run"]
    counts = (part.cut_rows, part.broken_rows, part.no_units)
    for run in runs.unique(maintain_order=True) if len(runs) else [0]:
        launches = part.launches.filter(runs == run)
        within = pl.col("launch").is_in(launches["launch"].implode())
        of_run = part.metrics.filter(within), part.rules.filter(within)
        yield PagePart(source, launches, *of_run, *(counts if run == 0 else ()))


def _launch_frame(rows: list[dict[str, object]]) -> pl.DataFrame:
    """Frame of launches with the column types of a part."""
    return _typed(
        pl.DataFrame(
            rows, schema=dict.fromkeys(("launch", *LAUNCH.values()), pl.String), strict=False
        )
    )


def _typed(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(
        pl.col("launch").cast(pl.Int32),
        pl.col(*_NUMBERS).str.replace_all(",", "").cast(pl.Int64, strict=False),
    )


def _wide(segment: Segment, source: str) -> PagePart:
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
    long = frame.select("launch", *names).unpivot(
        names, index="launch", variable_name="metric", value_name="raw"
    )
    long = long.with_columns(
        pl.col("raw").cast(pl.String)
    )  # if there are no columns, it has no type
    long = long.filter(pl.col("raw").str.strip_chars() != "").sort("launch", maintain_order=True)
    unit_of = dict(zip(header, units or [""] * n, strict=True))
    long = long.with_columns(unit=pl.col("metric").replace_strict(unit_of, return_dtype=pl.String))
    metrics = _in_base_units(long).select(
        pl.col("launch").cast(pl.Int32),
        pl.lit(None, pl.String).alias("section"),
        "metric",
        "unit",
        "value",
        "text",
    )
    return PagePart(
        source, _launches(frame), metrics, _no_rules(), cut, broken, units is None and bool(kept)
    )


def _long(segment: Segment, source: str) -> PagePart:
    header = distinct(segment.header)
    position_of = {name: header.index(name) for name in header}
    value, rule = position_of.get("Metric Value", len(header)), position_of.get("Rule Name")
    text = position_of.get("Rule Description", len(header) - 1)
    is_open = set(segment.open_rows)
    kept, cut, broken = [], 0, 0
    for i, row in enumerate(segment.rows):
        is_rule = rule is not None and len(row) > rule and row[rule].strip() != ""
        if is_rule and len(row) > len(
            header
        ):  # its text was split at its commas, because its quotes are wrong
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
    number = frame["ID"].cast(
        pl.Int64, strict=False
    )  # each time that they start again, a new run begins in the file
    frame = frame.with_columns(restart=(number < number.shift(1)).fill_null(False).cum_sum())
    launches = frame.select("restart", *keys).unique(maintain_order=True).with_row_index("launch")
    frame = frame.join(
        launches, on=["restart", *keys], how="left", maintain_order="left", nulls_equal=True
    )
    for name in ("Metric Unit", "Metric Value", *_RULE):
        if name not in frame.columns:
            frame = frame.with_columns(pl.lit(None, pl.String).alias(name))
    section = (
        pl.col("Section Name").replace("", None)
        if "Section Name" in position_of
        else pl.lit(None, pl.String)
    )
    if "Body Item Label" in position_of:
        label = pl.col("Body Item Label").replace("", None)
        section = (
            pl.when(label.is_not_null())
            .then(pl.concat_str(section, label, separator=": "))
            .otherwise(section)
        )
    frame = frame.with_columns(section=section)
    long = frame.filter(pl.col("Metric Name").fill_null("") != "").select(
        "launch", "section", metric="Metric Name", unit="Metric Unit", raw="Metric Value"
    )
    metrics = _in_base_units(long.filter(pl.col("raw").str.strip_chars() != ""))
    rules = frame.filter(pl.col("Rule Name").fill_null("") != "").select(
        "launch",
        "section",
        rule="Rule Name",
        kind=pl.col("Rule Type").fill_null(""),
        text=pl.col("Rule Description").fill_null(""),
        estimated_speedup_pct=pl.col("Estimated Speedup")
        .map_batches(_in_english)
        .str.replace_all(",", "")
        .cast(pl.Float64, strict=False),
        speedup_scope=pl.col("Estimated Speedup Type").replace("", None),
    )
    launches = _launches(frame.unique("launch", keep="first", maintain_order=True))
    metrics = metrics.select("launch", "section", "metric", "unit", "value", "text")
    as_int32 = pl.col("launch").cast(pl.Int32)
    return PagePart(
        source, launches, metrics.with_columns(as_int32), rules.with_columns(as_int32), cut, broken
    )


def _launches(frame: pl.DataFrame) -> pl.DataFrame:
    columns = [
        (pl.col(name).alias(new) if name in frame.columns else pl.lit(None, pl.String).alias(new))
        for name, new in LAUNCH.items()
    ]
    return _typed(frame.select("launch", *columns))


def _no_rules() -> pl.DataFrame:
    """Empty frame for results of rules."""
    texts = dict.fromkeys(("section", "rule", "kind", "text"), pl.String())
    return pl.DataFrame(
        schema={
            "launch": pl.Int32(),
            **texts,
            "estimated_speedup_pct": pl.Float64(),
            "speedup_scope": pl.String(),
        }
    )


HEAD: Final = 1 << 16
_PIECE: Final = 1 << 14
"""Number of compressed bytes that are read at a time; they may expand to a thousand times as
many.
"""
UTF16: Final = (b"\xff\xfe", b"\xfe\xff")
EXPECTED: Final = "CSV of ncu --csv --page raw or --page details, or an .ncu-rep report"
MOST_BYTES: Final = 1 << 30
"""Largest decompressed size of a page or report; larger ones are refused."""
_REPORT: Final = b"NVR\x00"
_GZIP: Final = b"\x1f\x8b"
_XZ: Final = b"\xfd7zXZ\x00"


def file_kind(start: bytes) -> str | None:
    """Kind of a file by its first bytes (decompressed):

    ``report``, ``csv``, or None for other files.
    """
    if start.startswith(_REPORT):
        return "report"
    text = start if not start.startswith(UTF16) else start.replace(b"\0", b"")
    return "csv" if b'"ID","Process ID"' in text or b"ID,Process ID," in text else None


def first_bytes(path: Path) -> bytes:
    """First bytes of a file, decompressed; empty if they cannot be read."""
    try:
        with regular(path).open("rb") as file:
            return _decompress(file.read(HEAD))[0][:HEAD]
    except (OSError, ReadError):
        return b""


def content(path: Path) -> tuple[bytes, bool]:
    """Content of a file, decompressed, and whether the compressed data were complete."""
    try:
        data = regular(path).read_bytes()
    except OSError as error:
        found = f"{path} cannot be read: {error.strerror or error}"
        raise ReadError(found, expected="a file of Nsight Compute", path=str(path)) from error
    if not data.strip():
        raise ReadError(f"{path} is empty", expected=EXPECTED, path=str(path))
    out, whole = _decompress(data)
    if not out:
        raise ReadError(
            f"{path} is damaged: no part of it can be decompressed",
            expected=EXPECTED,
            path=str(path),
        )
    return out, whole


def _decompress(data: bytes) -> tuple[bytes, bool]:
    """Decompress gzip or xz data member by member up to the first damage; whether the data are
    complete.
    """
    out = bytearray()
    while data.startswith((_GZIP, _XZ)):
        stream = zlib.decompressobj(31) if data.startswith(_GZIP) else lzma.LZMADecompressor()
        for start in range(
            0, len(data), _PIECE
        ):  # in pieces, so that the content before a damage is kept
            try:
                out += stream.decompress(data[start : start + _PIECE])
            except (zlib.error, lzma.LZMAError):
                return bytes(out), False
            if len(out) > MOST_BYTES:
                found = f"the decompressed file is larger than {MOST_BYTES >> 20} MiB"
                raise ReadError(
                    found,
                    expected=EXPECTED,
                    hint="profile fewer kernels or fewer metrics at a time",
                )
            if stream.eof:
                data = stream.unused_data + data[start + _PIECE :]
                break
        else:
            return bytes(out), False
        if not data.startswith((_GZIP, _XZ)):
            return bytes(out), True
    return data, True


def decode_text(data: bytes) -> str:
    """Text of a file: UTF-8, or UTF-16 with its mark (as PowerShell redirects output)."""
    return data.decode("utf-16" if data.startswith(UTF16) else "utf-8", errors="replace")


_TOLERANCE: Final = 1e-3
"""Relative tolerance of equal values, since pages are rounded: details.csv has two digits after
the point.
"""

_DIFFERENT: Final = 0.05
"""Largest share of common metrics that differ between two pages of the same launches; small
values are rounded.
"""

_SAME: Final = ("id", "grid", "block", "_base")


def _combine(parts: Sequence[PagePart], coverage: Mapping[str, Any]) -> Metrics:
    """Join the metrics of all parts, and number all launches."""
    # Two parts have the same launches if process, number, name, grid and block agree and at most a
    # few of their common metrics differ; otherwise they belong to different runs.
    runs: list[PagePart] = []
    for part in parts:
        for i, run in enumerate(runs):
            matched = _match(run, part)
            if matched is not None:
                runs[i] = _joined(run, part, matched)
                break
        else:
            runs.append(part)
    launches, metrics, rules = [], [], []
    offset = 0
    for number, run in enumerate(runs):
        ids = run.launches.select("launch").with_columns(
            kernel_id=pl.int_range(offset, offset + run.launches.height, dtype=pl.Int32)
        )
        offset += run.launches.height
        launches.append(
            run.launches.join(ids, on="launch", maintain_order="left").with_columns(
                run=pl.lit(number, pl.Int32)
            )
        )
        about = launches[-1].select(
            "launch", "kernel_id", "kernel_name", "grid", "block", "stream", "device"
        )
        metrics.append(run.metrics.join(about, on="launch", maintain_order="left"))
        rules.append(run.rules.join(ids, on="launch", maintain_order="left"))
    if not runs:
        return Metrics(schema.PROFILES["metrics"].empty(), coverage=coverage)
    return Metrics(
        pl.concat(metrics).sort("kernel_id", maintain_order=True),
        pl.concat(rules).sort("kernel_id", maintain_order=True),
        pl.concat(launches).drop("launch"),
        coverage,
    )


def _match(run: PagePart, part: PagePart) -> pl.DataFrame | None:
    """Numbers of each launch in a part and in a run (``launch, launch_run``); None if they are
    different runs.
    """
    if not run.launches.height or not part.launches.height:
        return None
    processes = [set(p.launches["process"].drop_nulls().to_list()) for p in (run, part)]
    if all(processes) and not processes[0] & processes[1]:
        return None
    ours, theirs = (
        one.launches.with_columns(_base=kernels.function(one.launches["kernel_name"])).select(
            "launch", *_SAME
        )
        for one in (run, part)
    )
    matched = theirs.join(
        ours, on=_SAME, how="inner", suffix="_run", nulls_equal=True, maintain_order="left"
    )
    if matched.height != min(ours.height, theirs.height):
        return None
    both = (
        part.metrics.join(matched.select("launch", "launch_run"), on="launch")
        .join(
            run.metrics,
            left_on=["launch_run", "section", "metric"],
            right_on=["launch", "section", "metric"],
            nulls_equal=True,
        )
        .filter(pl.col("value").is_not_null() & pl.col("value_right").is_not_null())
    )
    scale = pl.max_horizontal(pl.col("value").abs(), pl.col("value_right").abs())
    differs = (pl.col("value") - pl.col("value_right")).abs() > _TOLERANCE * scale
    share = both.select(differs.mean()).item() if both.height else 0.0
    return matched.select("launch", "launch_run") if share <= _DIFFERENT else None


def _joined(run: PagePart, part: PagePart, matched: pl.DataFrame) -> PagePart:
    """A run with the metrics that another page of the same launches adds."""
    more = part.launches.join(matched, on="launch", how="left", maintain_order="left")
    first_free = (run.launches["launch"].max() or 0) + 1  # type: ignore[operator]
    fresh = pl.col("launch_run").is_null()
    more = more.with_columns(
        launch_run=pl.coalesce("launch_run", fresh.cum_sum() - 1 + first_free).cast(pl.Int32)
    )
    number = more.select("launch", "launch_run")
    new = more.filter(~pl.col("launch_run").is_in(run.launches["launch"].implode())).drop("launch")

    def renumbered(frame: pl.DataFrame) -> pl.DataFrame:
        return (
            frame.join(number, on="launch", maintain_order="left")
            .drop("launch")
            .rename({"launch_run": "launch"})
        )

    launches = pl.concat(
        [run.launches, new.rename({"launch_run": "launch"}).select(run.launches.columns)]
    )
    metrics, rules = renumbered(part.metrics), renumbered(part.rules)
    fresh_metrics = metrics.join(
        run.metrics,
        on=["launch", "section", "metric"],
        how="anti",
        nulls_equal=True,
        maintain_order="left",
    )
    fresh_rules = rules.join(
        run.rules, on=["launch", "rule", "text"], how="anti", maintain_order="left"
    )
    # facts that only the other page has (a report has no process)
    facts = part.launches.join(matched, on="launch").drop("launch").rename({"launch_run": "launch"})
    filled = launches.join(
        facts, on="launch", how="left", suffix="_other", maintain_order="left"
    ).select("launch", *(pl.coalesce(c, f"{c}_other").alias(c) for c in LAUNCH.values()))
    return PagePart(
        run.source,
        filled,
        pl.concat([run.metrics, fresh_metrics.select(run.metrics.columns)]),
        pl.concat([run.rules, fresh_rules.select(run.rules.columns)]),
    )


_NO_PERMISSION: Final = "ERR_NVGPUCTRPERM"


def read_metrics(path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Metrics:
    """Read hardware metrics of kernel launches from files of Nsight Compute.

    The content of a file decides how it is read, not its name. It can be CSV of the raw page (``ncu
    --csv --page raw``, one row per launch) or of the details page (``--page details``, one row per
    metric, with rules), also with other output in between; or an ``.ncu-rep`` report, which is
    opened with the package ``ncu-report`` or else with the ``ncu`` on PATH. All may be compressed
    with gzip or xz. Files of the same launches, such as two pages of one report, are joined.
    Another run, in the same file or in another one, has its own launches (column ``run`` of
    ``Metrics.kernels``).

    Every number is in base units: bytes (``B``), nanoseconds (``ns``), ``Hz``, ``%``, ``1``, their
    quotients (``B/cycle``), and rates per second (``B/s``).

    Parameters
    ----------
    path : path or iterable of paths
        Files, or a folder. From a folder all CSV files of Nsight Compute are read, or its reports
        if it has no CSV.

    Returns
    -------
    Metrics
        Frames ``metrics`` and ``rules`` (:data:`llmprof.trace.schema.PROFILES`).

    Raises
    ------
    ReadError
        A file is missing or unreadable, has no results, or is a report that no program here can
        open.
    UnknownFormatError
        A file is not from Nsight Compute.

    Warns
    -----
    TraceWarning
        Rows were cut or broken, units are missing, or the profiler reported an error.
    """
    paths = [path] if isinstance(path, str | os.PathLike) else list(path)
    if not paths:
        raise ReadError("no file was given", expected="at least one file of Nsight Compute")
    for one in paths:
        note_input(one)
    parts: list[PagePart] = []
    coverage: dict[str, Any] = {
        "files": 0,
        "rows": 0,
        "cut_rows": 0,
        "broken_rows": 0,
        "other_lines": 0,
        "said": [],
    }
    for file in _files([Path(p) for p in paths]):
        coverage["files"] += 1
        with border(file.name):
            parts += _read(file, coverage)
    with border(", ".join(Path(p).name for p in paths[:3])):
        return _combine(parts, coverage)


def _files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        inside = sorted(p for p in path.iterdir() if p.is_file())
        kinds = {p: file_kind(first_bytes(p)) for p in inside}
        chosen = [p for p in inside if kinds[p] == "csv"] or [
            p for p in inside if kinds[p] == "report"
        ]
        if not chosen:
            found = f"{path} has no file of Nsight Compute"
            raise UnknownFormatError(
                found, expected="CSV of ncu --csv, or .ncu-rep", path=str(path)
            )
        yield from chosen


def _read(path: Path, coverage: dict[str, Any]) -> Iterator[PagePart]:
    data, whole = content(path)
    if not whole:
        _warn(f"{path.name}: the compressed file ends early; its content up to there was read")
    if file_kind(data[:HEAD]) == "report":
        yield from _opened(path, data, coverage)
        return
    if b"\0" in data[:HEAD] and not data.startswith(UTF16):
        raise UnknownFormatError(
            f"{path} is not a file of Nsight Compute", expected=EXPECTED, path=str(path)
        )
    page = decode_text(data)
    pages = split_pages(page)
    if not pages.segments and "Section: " in page and "Metric Name" in page:
        found = f"{path} is a page that ncu printed without --csv"
        hint = "export it with ncu --import FILE.ncu-rep --csv --page raw --print-units base"
        raise UnknownFormatError(found, expected=EXPECTED, hint=hint, path=str(path))
    yield from _pages(pages, path.name, coverage, path=path)


def _pages(
    pages: Pages, name: str, coverage: dict[str, Any], path: Path | None = None
) -> list[PagePart]:
    """Parts of the pages of one text; lost rows are counted and reported."""
    where = str(path or name)
    errors = [line for line in pages.tool_lines if line.startswith("==ERROR==")]
    coverage["other_lines"] += pages.other_lines
    coverage["said"] = [*coverage["said"], *pages.tool_lines]
    if not pages.segments:
        _refuse(pages, errors, where)
    parts = [
        part
        for number, segment in enumerate(pages.segments)
        for part in _part_of(segment, f"{where}:{number}")
    ]
    cut, broken = sum(p.cut_rows for p in parts), sum(p.broken_rows for p in parts)
    coverage["rows"] += sum(len(s.rows) for s in pages.segments)
    coverage["cut_rows"] += cut
    coverage["broken_rows"] += broken
    if cut:
        _warn(
            f"{name}: the end is missing in {counted(cut, 'row')}; the complete values before it"
            " were kept"
        )
    if broken:
        _warn(f"{name}: {left_out(broken, 'row', 'that could not be read')}")
    if any(p.no_units for p in parts):
        _warn(
            f"{name}: the row with units is missing, so the numbers are as written; record with"
            " --print-units base"
        )
    if errors:
        _warn(f"{name}: the profiler reported {errors[-1]!r}")
    if not any(p.launches.height for p in parts):
        _warn(f"{name}: there is a heading but no result")
    return parts


def _refuse(pages: Pages, errors: list[str], where: str) -> None:
    wording = "\n".join(pages.tool_lines)
    if _NO_PERMISSION in wording:
        found = (
            f"{where} has no results: the profiler may not read the hardware counters"
            f" ({_NO_PERMISSION})"
        )
        hint = (
            "have an administrator set NVreg_RestrictProfilingToAdminUsers=0, or run with"
            " CAP_SYS_ADMIN"
        )
        raise ReadError(found, hint=hint, path=where)
    if "No kernels were profiled" in wording:
        found = f"{where} has no results: no kernels were profiled"
        raise ReadError(
            found, hint="check --kernel-name, --launch-skip and --target-processes all", path=where
        )
    if errors:
        raise ReadError(
            f"{where} has no results: {errors[-1]}", hint="run the profiler again", path=where
        )
    raise UnknownFormatError(
        f"{where} is not a file of Nsight Compute", expected=EXPECTED, path=where
    )


def _warn(message: str) -> None:
    warnings.warn(message, TraceWarning, stacklevel=3)


_TIMEOUT_S: Final = 600
_KINDS: Final = {0: "INF", 1: "INF", 2: "OPT", 3: "WRN", 4: "ERR"}
_SCOPES: Final = {1: "local", 2: "global"}
_SECTION_LINK: Final = re.compile(r"@section:[^:@]*:([^@]*)@")
_URL_LINK: Final = re.compile(r"@url:([^:@]*):([^@]*)@")


def _opened(path: Path, data: bytes, coverage: dict[str, Any]) -> Iterator[PagePart]:
    """Read the parts of a report, and compare them with what it states."""
    ncu = shutil.which("ncu")
    try:
        library = importlib.import_module("ncu_report")
    except ImportError as error:
        if ncu is None:
            raise ReadError(
                f"{path} is an Nsight Compute report; it needs the package ncu-report or the"
                " program ncu, and neither is installed",
                hint=(
                    "pip install 'llmprof[ncu]', or export it on the machine that recorded it: "
                    "ncu --import FILE --csv --page raw --print-units base > raw.csv"
                ),
                path=str(path),
            ) from error
        library = None
    stated = container.stated(data)
    with tempfile.TemporaryDirectory(prefix="llmprof-") as folder:
        report = Path(folder) / "report.ncu-rep"
        stated.write(data, report)
        if library is None:
            assert ncu is not None  # noqa: S101 - refused above
            parts = [
                part
                for page in ("raw", "details")
                for part in _pages(
                    split_pages(_exported(ncu, report, page, path)),
                    f"{path.name} ({page} page)",
                    coverage,
                )
            ]
        else:
            parts = [_ranges(library, report, path)]
    first = parts[0]
    names = first.metrics.filter(~pl.col("metric").str.contains(":", literal=True))
    # the CSV pages of ncu hold some metrics as lists of samples or as columns of the launch
    known = None if library is None else names.n_unique(["launch", "metric"])
    warn_unread(path, stated, first.launches.height, known, coverage)
    zeros = pl.any_horizontal(pl.col(pl.String).str.contains("\0", literal=True)).sum()
    if texts := sum(
        frame.select(zeros).item() for frame in (first.launches, first.metrics, first.rules)
    ):
        _warn(f"{path.name} is damaged: {counted(texts, 'row')} of it hold zeros instead of text")
    yield from parts


def warn_unread(
    path: Path,
    stated: container.Stated,
    kernel_count: int,
    metrics: int | None,
    coverage: dict[str, Any],
) -> None:
    """Warn of what a report states and what was not read of it, and count it."""
    lost = {"kernel": max(len(stated.kernels) - kernel_count, 0)}
    if metrics is not None:
        lost["metric"] = max(sum(map(len, stated.kernels)) - metrics, 0)
    for noun, count in lost.items():
        coverage[f"lost_{noun}s"] = coverage.get(f"lost_{noun}s", 0) + count
    if stated.damage or any(lost.values()):
        _warn(
            f"{path.name} is damaged: {stated.damage or 'parts of it cannot be opened'}; at least"
            f" {' and '.join(counted(count, noun) for noun, count in lost.items())} of what it"
            " states could not be read"
        )


def _exported(ncu: str, report: Path, page: str, path: Path) -> str:
    command = [ncu, "--import", str(report), "--csv", "--page", page, "--print-units", "base"]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_TIMEOUT_S)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ReadError(f"{path}: ncu could not be run: {error}", path=str(path)) from error
    if done.returncode:
        message = (
            (done.stderr or done.stdout).decode("utf-8", errors="replace").strip().splitlines()
        )
        found = (
            f"{path}: ncu could not open the report:"
            f" {message[-1] if message else f'exit status {done.returncode}'}"
        )
        raise ReadError(
            found,
            hint="use an ncu that is at least as new as the one that recorded it",
            path=str(path),
        )
    return done.stdout.decode("utf-8", errors="replace")


def actions(library: Any, report: Path, path: Path) -> Iterator[Any]:
    """Kernels of a report; of one that is damaged the package knows neither the name nor a
    metric.
    """
    try:
        context = library.load_report(str(report))
    except (RuntimeError, OSError, ValueError) as error:
        found = f"{path}: the package ncu-report could not open it: {error}"
        hint = "use a version that is at least as new as the ncu that recorded it"
        raise ReadError(found, hint=hint, path=str(path)) from error
    for number in range(context.num_ranges()):
        of_range = context.range_by_idx(number)
        for index in range(of_range.num_actions()):
            action = of_range.action_by_idx(index)
            if action.name(library.IAction.NameBase_DEMANGLED) or action.metric_names():
                yield action


def _ranges(library: Any, report: Path, path: Path) -> PagePart:
    launches: list[dict[str, object]] = []
    metrics: list[tuple[int, str, str, str]] = []
    rules: list[dict[str, object]] = []
    for launch, action in enumerate(actions(library, report, path)):
        values = {
            name: action.metric_by_name(name) for name in action.metric_names() if ":" not in name
        }
        launches.append(_launch(library, action, values, launch))
        metrics += [(launch, name, m.unit(), _of(m)) for name, m in values.items() if m is not None]
        rules += [
            rule for result in action.rule_results_as_dicts() if (rule := _rule(result, launch))
        ]
    if not launches:
        raise ReadError(
            f"{path} has no results, or is damaged", hint="record it again", path=str(path)
        )
    raw = pl.DataFrame(metrics, schema=["launch", "metric", "unit", "raw"], orient="row")
    valued = _in_base_units(raw.filter(pl.col("raw") != ""))
    without = raw.filter(raw="").select(
        "launch", "metric", unit=pl.when(pl.col("unit") == "%").then("unit").otherwise(pl.lit("1"))
    )
    rows = pl.concat([valued, without], how="diagonal_relaxed").with_columns(
        pl.col("launch").cast(pl.Int32), section=pl.lit(None, pl.String)
    )
    of_rules = (
        pl.DataFrame(rules, schema=_no_rules().schema, strict=False) if rules else _no_rules()
    )
    return PagePart(
        str(path),
        _launch_frame(launches),
        rows.select("launch", "section", "metric", "unit", "value", "text"),
        of_rules,
    )


def _launch(library: Any, action: Any, values: dict[str, Any], launch: int) -> dict[str, object]:
    def written(name: str) -> str | None:
        metric = values.get(name)
        return None if metric is None else _of(metric) or None

    def size(side: str) -> str | None:
        sides = [written(f"launch__{side}_dim_{axis}") for axis in "xyz"]
        return f"({', '.join(str(int(float(s))) for s in sides if s)})" if all(sides) else None

    major, minor = (
        written(f"device__attribute_compute_capability_{part}") for part in ("major", "minor")
    )
    facts: dict[str, object] = {
        "id": str(launch),
        "kernel_name": action.name(library.IAction.NameBase_DEMANGLED),
        "context": written("launch__context_id"),
        "stream": written("launch__stream_id"),
        "device": written("launch__device_id"),
        "grid": size("grid"),
        "block": size("block"),
        "compute_capability": f"{major}.{minor}" if major and minor else None,
    }
    return {"launch": str(launch), **dict.fromkeys(LAUNCH.values()), **facts}


def _of(metric: Any) -> str:
    """Value of a metric as text; empty if the report has no value, where ``value()`` would
    return 0.
    """
    has_value = getattr(metric, "has_value", None)
    value: object = None if has_value is not None and not has_value() else metric.value()
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return str(int(value))
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def _rule(result: dict[str, Any], launch: int) -> dict[str, object] | None:
    message = result.get("rule_message")
    if not message:
        return None
    text = _SECTION_LINK.sub(r"\1", message.get("message", ""))
    estimate = result.get("speedup_estimation") or {}
    return {
        "launch": launch,
        "section": result.get("section_identifier"),
        "rule": result.get("rule_identifier", ""),
        "kind": _KINDS.get(message.get("type", 0), "INF"),
        "text": _URL_LINK.sub(r"\1 (\2)", text),
        "estimated_speedup_pct": estimate.get("speedup"),
        "speedup_scope": _SCOPES.get(estimate.get("type", 0)),
    }


def _sniff(probe: Probe) -> bool:
    start = first_bytes(probe.path) if probe.start.startswith(_XZ) else probe.start
    return not probe.is_folder and file_kind(start) is not None


READER = Reader(
    name="ncu",
    version=1,
    what="CSV or a report of Nsight Compute",
    sniff=_sniff,
    instead="llmprof.read_metrics",
    suffixes=(".csv", ".ncu-rep"),
    alone=True,
)
