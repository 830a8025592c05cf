"""Frames of one page of Nsight Compute: the raw page (a row a launch) or the details page (a row a metric)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import polars as pl

from llmprof.readers._ncu_records import Segment
from llmprof.readers._ncu_units import in_base_units

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
"""Columns that say which launch a row is about, and what they are called here."""

_OTHER: Final = ("Host Name", "Kernel Time", "Device Name")
_NUMBERS: Final = ("id", "process", "context", "stream", "device")
_RULE: Final = ("Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup")


@dataclass
class Part:
    """Launches of one run from one page; ``launch`` numbers them from 0 in order."""

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
    """Parts of a page: one a run, where the numbers of the launches begin again.

    Parameters
    ----------
    segment : Segment
        Heading and rows.
    source : str
        Where it comes from.
    """
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
    """Launches in the types that parts have them in."""
    return _typed(pl.DataFrame(rows, schema=dict.fromkeys(("launch", *LAUNCH.values()), pl.String), strict=False))


def _typed(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(
        pl.col("launch").cast(pl.Int32), pl.col(*_NUMBERS).str.replace_all(",", "").cast(pl.Int64, strict=False)
    )


def _wide(segment: Segment, source: str) -> Part:
    header, n = _distinct(segment.header), len(segment.header)
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
            # the last cell may be half a number, and is certain only where its quotes close
            row = row[:-1] if i in is_open or not segment.quoted else row
            if len(row) <= len([c for c in header if c in LAUNCH or c in _OTHER]):
                continue
        kept.append([*row, *[None] * (n - len(row))])
    frame = pl.DataFrame(kept, schema=dict.fromkeys(header, pl.String), orient="row")
    frame = frame.with_row_index("launch")
    names = [c for c in header if c not in LAUNCH and c not in _OTHER and c]
    long = frame.select("launch", *names).unpivot(names, index="launch", variable_name="metric", value_name="raw")
    long = long.filter(pl.col("raw").str.strip_chars() != "").sort("launch", maintain_order=True)
    unit_of = pl.DataFrame(
        {"metric": header, "unit": units or [""] * n}, schema={"metric": pl.String, "unit": pl.String}
    )
    long = long.join(unit_of, on="metric", how="left", maintain_order="left")
    metrics = in_base_units(long).select(
        "launch", pl.lit(None, pl.String).alias("section"), "metric", "unit", "value", "text"
    )
    return Part(source, _launches(frame), _numbered(metrics), no_rules(), cut, broken, units is None and bool(kept))


def _long(segment: Segment, source: str) -> Part:
    header = _distinct(segment.header)
    at = {name: header.index(name) for name in header}
    value, rule = at.get("Metric Value", len(header)), at.get("Rule Name")
    is_open = set(segment.open_rows)
    kept, cut, broken = [], 0, 0
    for i, row in enumerate(segment.rows):
        is_rule = rule is not None and len(row) > rule and row[rule].strip() != ""
        if is_rule:
            row = _mend(row, header)
        elif i in is_open or len(row) <= value:
            cut += 1
            continue
        if len(row) > len(header) or not row[0].strip().isdigit():
            broken += 1
            continue
        kept.append([*row, *[None] * (len(header) - len(row))])
    frame = pl.DataFrame(kept, schema=dict.fromkeys(header, pl.String), orient="row")
    keys = [c for c in LAUNCH if c in at]
    frame = frame.with_columns(restart=_restarts(frame))
    launches = frame.select("restart", *keys).unique(maintain_order=True).with_row_index("launch")
    frame = frame.join(launches, on=["restart", *keys], how="left", maintain_order="left", nulls_equal=True)
    for name in ("Metric Unit", *_RULE):
        if name not in frame.columns:
            frame = frame.with_columns(pl.lit(None, dtype=pl.String).alias(name))
    section = pl.col("Section Name").replace("", None) if "Section Name" in at else pl.lit(None, pl.String)
    if "Body Item Label" in at:
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
    return Part(source, launches, _numbered(metrics), _numbered(rules), cut, broken)


def _restarts(frame: pl.DataFrame) -> pl.Series:
    """How often the numbers of the launches have begun again: another run in the same file."""
    number = frame["ID"].cast(pl.Int64, strict=False)
    return (number < number.shift(1)).fill_null(value=False).cum_sum()


def _mend(row: list[str], header: list[str]) -> list[str]:
    """A rule whose text was badly quoted fell apart at its commas: put it together again."""
    text = header.index("Rule Description") if "Rule Description" in header else len(header) - 1
    after = len(header) - text - 1
    if len(row) <= len(header):
        return row
    return [*row[:text], ",".join(row[text : len(row) - after]), *row[len(row) - after :]]


def _launches(frame: pl.DataFrame) -> pl.DataFrame:
    columns = [
        pl.col(name).alias(new) if name in frame.columns else pl.lit(None, dtype=pl.String).alias(new)
        for name, new in LAUNCH.items()
    ]
    return _typed(frame.select("launch", *columns))


def no_rules() -> pl.DataFrame:
    """No results of rules."""
    texts = dict.fromkeys(("section", "rule", "kind", "text"), pl.String())
    return pl.DataFrame(
        schema={"launch": pl.Int32(), **texts, "estimated_speedup_pct": pl.Float64(), "speedup_scope": pl.String()}
    )


def _numbered(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col("launch").cast(pl.Int32))


def _distinct(header: list[str]) -> list[str]:
    """Names of columns, a repeated one with a number behind it."""
    seen: dict[str, int] = {}
    out = []
    for name in header:
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return out
