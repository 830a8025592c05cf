"""Reader of Nsight Compute: CSV of the raw page (wide) and the details page (long), and ``.ncu-rep`` reports."""

from __future__ import annotations

import lzma
import os
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof import schema
from llmprof.errors import ReadError, TraceWarning, UnknownFormatError
from llmprof.metrics.data import Metrics
from llmprof.names import kernels
from llmprof.readers.common.reader import Probe, Reader, border
from llmprof.readers.ncu import report
from llmprof.readers.ncu.pages import LAUNCH, Pages, Part, part_of, split
from llmprof.storage.files import note_input, regular
from llmprof.text import counted, left_out

HEAD: Final = 1 << 16
_PIECE: Final = 1 << 14
"""Number of compressed bytes that are read at a time; they may expand to a thousand times as many."""
UTF16: Final = (b"\xff\xfe", b"\xfe\xff")
EXPECTED: Final = "CSV of ncu --csv --page raw or --page details, or an .ncu-rep report"
MOST_BYTES: Final = 1 << 30
"""Largest decompressed size of a page or report; larger ones are refused."""
_REPORT: Final = b"NVR\x00"
_GZIP: Final = b"\x1f\x8b"
_XZ: Final = b"\xfd7zXZ\x00"


def kind(start: bytes) -> str | None:
    """Kind of a file by its first bytes (decompressed): ``report``, ``csv``, or None for other files."""
    if start.startswith(_REPORT):
        return "report"
    text = start if not start.startswith(UTF16) else start.replace(b"\0", b"")
    return "csv" if b'"ID","Process ID"' in text or b"ID,Process ID," in text else None


def head(path: Path) -> bytes:
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
        raise ReadError(
            f"{path} cannot be read: {error.strerror or error}", expected="a file of Nsight Compute", path=str(path)
        ) from error
    if not data.strip():
        raise ReadError(f"{path} is empty", expected=EXPECTED, path=str(path))
    out, whole = _decompress(data)
    if not out:
        raise ReadError(f"{path} is damaged: no part of it can be decompressed", expected=EXPECTED, path=str(path))
    return out, whole


def _decompress(data: bytes) -> tuple[bytes, bool]:
    """Decompress gzip or xz data member by member up to the first damage; whether the data are complete."""
    out = bytearray()
    while data.startswith((_GZIP, _XZ)):
        stream = zlib.decompressobj(31) if data.startswith(_GZIP) else lzma.LZMADecompressor()
        for start in range(0, len(data), _PIECE):  # in pieces, so that the content before a damage is kept
            try:
                out += stream.decompress(data[start : start + _PIECE])
            except (zlib.error, lzma.LZMAError):
                return bytes(out), False
            if len(out) > MOST_BYTES:
                raise ReadError(
                    f"the decompressed file is larger than {MOST_BYTES >> 20} MiB",
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


def text(data: bytes) -> str:
    """Text of a file: UTF-8, or UTF-16 with its mark (as PowerShell redirects output)."""
    return data.decode("utf-16" if data.startswith(UTF16) else "utf-8", errors="replace")


_TOLERANCE: Final = 1e-3
"""Relative tolerance of equal values, since pages are rounded: details.csv has two digits after the point."""

_DIFFERENT: Final = 0.05
"""Largest share of common metrics that differ between two pages of the same launches; small values are rounded."""

_SAME: Final = ("id", "grid", "block", "_base")


def combine(parts: Sequence[Part], coverage: Mapping[str, Any]) -> Metrics:
    """Join the metrics of all parts, and number all launches.

    Two parts have the same launches if process, number, name, grid and block agree and at most a few of their common
    metrics differ; otherwise they belong to different runs.
    """
    runs: list[Part] = []
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
            run.launches.join(ids, on="launch", maintain_order="left").with_columns(run=pl.lit(number, pl.Int32))
        )
        about = launches[-1].select("launch", "kernel_id", "kernel_name", "grid", "block", "stream", "device")
        metrics.append(run.metrics.join(about, on="launch", maintain_order="left"))
        rules.append(run.rules.join(ids, on="launch", maintain_order="left"))
    if not runs:
        return Metrics(schema.METRICS.empty(), coverage=coverage)
    return Metrics(
        pl.concat(metrics).sort("kernel_id", maintain_order=True),
        pl.concat(rules).sort("kernel_id", maintain_order=True),
        pl.concat(launches).drop("launch"),
        coverage,
    )


def _match(run: Part, part: Part) -> pl.DataFrame | None:
    """Numbers of each launch in a part and in a run (``launch, launch_run``); None if they are different runs."""
    if not run.launches.height or not part.launches.height:
        return None
    processes = [set(p.launches["process"].drop_nulls().to_list()) for p in (run, part)]
    if all(processes) and not processes[0] & processes[1]:
        return None
    ours, theirs = (
        one.launches.with_columns(kernels.function(one.launches["kernel_name"]).alias("_base")).select("launch", *_SAME)
        for one in (run, part)
    )
    matched = theirs.join(ours, on=_SAME, how="inner", suffix="_run", nulls_equal=True, maintain_order="left")
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


def _joined(run: Part, part: Part, matched: pl.DataFrame) -> Part:
    """A run with the metrics that another page of the same launches adds."""
    more = part.launches.join(matched, on="launch", how="left", maintain_order="left")
    first_free = (run.launches["launch"].max() or 0) + 1  # type: ignore[operator]
    fresh = pl.col("launch_run").is_null()
    more = more.with_columns(launch_run=pl.coalesce("launch_run", fresh.cum_sum() - 1 + first_free).cast(pl.Int32))
    number = more.select("launch", "launch_run")
    new = more.filter(~pl.col("launch_run").is_in(run.launches["launch"].implode())).drop("launch")

    def renumbered(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.join(number, on="launch", maintain_order="left").drop("launch").rename({"launch_run": "launch"})

    launches = pl.concat([run.launches, new.rename({"launch_run": "launch"}).select(run.launches.columns)])
    metrics, rules = renumbered(part.metrics), renumbered(part.rules)
    fresh_metrics = metrics.join(
        run.metrics, on=["launch", "section", "metric"], how="anti", nulls_equal=True, maintain_order="left"
    )
    fresh_rules = rules.join(run.rules, on=["launch", "rule", "text"], how="anti", maintain_order="left")
    # facts that only the other page has (a report has no process)
    facts = part.launches.join(matched, on="launch").drop("launch").rename({"launch_run": "launch"})
    filled = launches.join(facts, on="launch", how="left", suffix="_other", maintain_order="left").select(
        "launch", *(pl.coalesce(c, f"{c}_other").alias(c) for c in LAUNCH.values())
    )
    return Part(
        run.source,
        filled,
        pl.concat([run.metrics, fresh_metrics.select(run.metrics.columns)]),
        pl.concat([run.rules, fresh_rules.select(run.rules.columns)]),
    )


_NO_PERMISSION: Final = "ERR_NVGPUCTRPERM"


def read_metrics(path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Metrics:
    """Read hardware metrics of kernel launches from files of Nsight Compute.

    The content of a file decides how it is read, not its name. It can be CSV of the raw page (``ncu --csv --page raw``,
    one row per launch) or of the details page (``--page details``, one row per metric, with rules), also with other
    output in between; or an ``.ncu-rep`` report, which is opened with the package ``ncu-report`` or else with the
    ``ncu`` on PATH. All may be compressed with gzip or xz. Files of the same launches, such as two pages of one report,
    are joined. Another run, in the same file or in another one, has its own launches (column ``run`` of
    ``Metrics.kernels``).

    Every number is in base units: bytes (``B``), nanoseconds (``ns``), ``Hz``, ``%``, ``1``, their quotients
    (``B/cycle``), and rates per second (``B/s``).

    Parameters
    ----------
    path : path or iterable of paths
        Files, or a folder. From a folder all CSV files of Nsight Compute are read, or its reports if it has no CSV.

    Returns
    -------
    Metrics
        Frames ``metrics`` and ``rules`` (:data:`llmprof.schema.PROFILES`).

    Raises
    ------
    ReadError
        A file is missing or unreadable, has no results, or is a report that no program here can open.
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
    parts: list[Part] = []
    coverage: dict[str, Any] = {"files": 0, "rows": 0, "cut_rows": 0, "broken_rows": 0, "other_lines": 0, "said": []}
    for file in _files([Path(p) for p in paths]):
        coverage["files"] += 1
        with border(file.name):
            parts += _read(file, coverage)
    with border(", ".join(Path(p).name for p in paths[:3])):
        return combine(parts, coverage)


def _files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        inside = sorted(p for p in path.iterdir() if p.is_file())
        kinds = {p: kind(head(p)) for p in inside}
        chosen = [p for p in inside if kinds[p] == "csv"] or [p for p in inside if kinds[p] == "report"]
        if not chosen:
            raise UnknownFormatError(
                f"{path} has no file of Nsight Compute", expected="CSV of ncu --csv, or .ncu-rep", path=str(path)
            )
        yield from chosen


def _read(path: Path, coverage: dict[str, Any]) -> Iterator[Part]:
    data, whole = content(path)
    if not whole:
        _warn(f"{path.name}: the compressed file ends early; its content up to there was read")
    if kind(data[:HEAD]) == "report":
        yield from report.read(path, data, lambda text, name: _pages(split(text), name, coverage), coverage)
        return
    if b"\0" in data[:HEAD] and not data.startswith(UTF16):
        raise UnknownFormatError(f"{path} is not a file of Nsight Compute", expected=EXPECTED, path=str(path))
    page = text(data)
    pages = split(page)
    if not pages.segments and "Section: " in page and "Metric Name" in page:
        raise UnknownFormatError(
            f"{path} is a page that ncu printed without --csv",
            expected=EXPECTED,
            hint="export it with ncu --import FILE.ncu-rep --csv --page raw --print-units base",
            path=str(path),
        )
    yield from _pages(pages, path.name, coverage, path=path)


def _pages(pages: Pages, name: str, coverage: dict[str, Any], path: Path | None = None) -> list[Part]:
    """Parts of the pages of one text; lost rows are counted and reported."""
    where = str(path or name)
    errors = [line for line in pages.tool_lines if line.startswith("==ERROR==")]
    coverage["other_lines"] += pages.other_lines
    coverage["said"] = [*coverage["said"], *pages.tool_lines]
    if not pages.segments:
        _refuse(pages, errors, where)
    parts = [part for number, segment in enumerate(pages.segments) for part in part_of(segment, f"{where}:{number}")]
    cut, broken = sum(p.cut_rows for p in parts), sum(p.broken_rows for p in parts)
    coverage["rows"] += sum(len(s.rows) for s in pages.segments)
    coverage["cut_rows"] += cut
    coverage["broken_rows"] += broken
    if cut:
        _warn(f"{name}: the end is missing in {counted(cut, 'row')}; the complete values before it were kept")
    if broken:
        _warn(f"{name}: {left_out(broken, 'row', 'that could not be read')}")
    if any(p.no_units for p in parts):
        _warn(f"{name}: the row with units is missing, so the numbers are as written; record with --print-units base")
    if errors:
        _warn(f"{name}: the profiler reported {errors[-1]!r}")
    if not any(p.launches.height for p in parts):
        _warn(f"{name}: there is a heading but no result")
    return parts


def _refuse(pages: Pages, errors: list[str], where: str) -> None:
    wording = "\n".join(pages.tool_lines)
    if _NO_PERMISSION in wording:
        raise ReadError(
            f"{where} has no results: the profiler may not read the hardware counters ({_NO_PERMISSION})",
            hint="have an administrator set NVreg_RestrictProfilingToAdminUsers=0, or run with CAP_SYS_ADMIN",
            path=where,
        )
    if "No kernels were profiled" in wording:
        raise ReadError(
            f"{where} has no results: no kernels were profiled",
            hint="check --kernel-name, --launch-skip and --target-processes all",
            path=where,
        )
    if errors:
        raise ReadError(f"{where} has no results: {errors[-1]}", hint="run the profiler again", path=where)
    raise UnknownFormatError(f"{where} is not a file of Nsight Compute", expected=EXPECTED, path=where)


def _warn(message: str) -> None:
    warnings.warn(message, TraceWarning, stacklevel=3)


def _sniff(probe: Probe) -> bool:
    start = head(probe.path) if probe.start.startswith(_XZ) else probe.start
    return not probe.is_folder and kind(start) is not None


READER = Reader(
    name="ncu",
    version=1,
    what="CSV or a report of Nsight Compute",
    sniff=_sniff,
    instead="llmprof.read_metrics",
    suffixes=(".csv", ".ncu-rep"),
    alone=True,
)
