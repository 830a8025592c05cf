"""What is fuzzed: for each reader its seeds, its mutations, and an independent count of what a file still holds."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import traceback
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import llmprof
from llmprof import analyze
from llmprof.errors import LlmprofError, TraceWarning
from llmprof.readers.ncu.reader import read_metrics
from llmprof.redaction import redact
from tests.fuzz import mutate

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_traces"
MONITORS = ROOT / "tests/readers/monitor_files"
SHARED = ROOT.parent / "shared"


class TooLongError(BaseException):
    """A file took too long; no handler of exceptions must take it for one that the file caused."""


@dataclass
class Target:
    """One reader."""

    name: str
    seeds: list[Path]
    mutations: tuple[mutate.Mutate, ...]
    count: Callable[[Path], dict[str, int]] | None = None
    """Rows by table that a file still holds, found without llmprof; nothing where it is damaged."""


@dataclass
class Outcome:
    """What became of one file."""

    said: str
    """``read``, ``refused``, or the error."""
    raw: str = ""
    """Traceback of an exception that is none of llmprof."""
    silent: str = ""
    """What was lost without a word."""
    steps: list[str] = field(default_factory=list)


def try_file(target: Target, path: Path, work: Path, *, deep: bool) -> Outcome:
    """Read a file, and for some of them also redact and analyse it."""
    out = Outcome("read")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            if target.name == "ncu":
                metrics = read_metrics(path)
                _ = metrics.kernels
            else:
                trace = llmprof.read(path, cache=False)
                if target.count is not None and not caught:
                    out.silent = _silent(target.count(path), trace)
                if deep:
                    _analyse(trace)
            if deep:
                copy = work / "copy"
                redact(path, copy)
                shutil.rmtree(copy) if copy.is_dir() else copy.unlink()
        except LlmprofError as error:
            out.said = "refused" if str(error) else "an error without a word"
        except Exception:  # noqa: BLE001 (this is what is looked for)
            out.raw = traceback.format_exc()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit | TooLongError):
                raise
            out.raw = traceback.format_exc()
    for warning in caught:
        if not issubclass(warning.category, TraceWarning):
            out.raw = out.raw or f"{warning.category.__name__}: {warning.message}"
    return out


def _analyse(trace: llmprof.Trace) -> None:
    for name in ("steps", "overlap", "collectives", "layers", "idle", "kernel_summary", "launch_delay", "findings"):
        function = getattr(analyze, name, None)
        if function is None:
            continue
        try:
            function(trace)
        except LlmprofError:
            continue
    repr(trace)
    trace.redact()


def _silent(held: dict[str, int], trace: llmprof.Trace) -> str:
    kept = {name: trace.table(name).height if trace.has(name) else 0 for name in held}
    return ", ".join(f"{name}: {kept[name]} of {count}" for name, count in held.items() if kept[name] < count)


def _held_by_chrome(path: Path) -> dict[str, int]:
    try:
        document = json.loads(path.read_bytes(), parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return {}
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        return {}
    whole = [
        e for e in events
        if isinstance(e, dict) and e.get("ph") == "X" and isinstance(e.get("name"), str)
        and isinstance(e.get("args"), dict) and type(e.get("ts")) in (int, float) and abs(e["ts"]) < 2**50
    ]  # fmt: skip
    kinds = {"kernels": "kernel", "ops": "cpu_op"}
    return {table: sum(e.get("cat") == category for e in whole) for table, category in kinds.items()}


def _held_by_export(path: Path) -> dict[str, int]:
    tables = {"kernels": "CUPTI_ACTIVITY_KIND_KERNEL", "copies": "CUPTI_ACTIVITY_KIND_MEMCPY"}
    held: dict[str, int] = {}
    try:
        with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as connection:
            for name, table in tables.items():
                found = connection.execute(
                    "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)
                ).fetchone()
                if found[0]:
                    held[name] = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    except sqlite3.Error:
        return {}
    return held


def _small_chrome(folder: Path) -> list[Path]:
    import gzip

    out = []
    for name, head in (("torch_tp4_eager_nccl", True), ("torch_tp1_cudagraph", False)):
        source = min((SAMPLES / name).glob("rank0*.json.gz"))
        document = json.loads(gzip.decompress(source.read_bytes()))
        by_kind: dict[tuple[str, str], list[dict[str, object]]] = {}
        for event in document["traceEvents"]:
            by_kind.setdefault((str(event.get("ph")), str(event.get("cat"))), []).append(event)
        events = [event for group in by_kind.values() for event in group[:8]]
        made = {**document, "traceEvents": events} if head else events
        out.append(folder / f"{name}.json")
        out[-1].write_text(json.dumps(made))
    zipped = folder / "zipped.json.gz"
    zipped.write_bytes(gzip.compress(out[0].read_bytes()))
    return [*out, zipped]


def _small_export(folder: Path) -> list[Path]:
    out = []
    for name in ("nsys_tp2_cudagraph", "nsys_tp1_layer_nvtx"):
        path = folder / f"{name}.sqlite"
        source = f"file:{SAMPLES / name / 'report.sqlite'}?immutable=1"
        with closing(sqlite3.connect(source, uri=True)) as old, closing(sqlite3.connect(path)) as new, new:
            for table, sql in old.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall():
                limit = "WHERE length(value) < 200 LIMIT 400" if table == "StringIds" else "LIMIT 40"
                rows = old.execute(f'SELECT * FROM "{table}" {limit}').fetchall()
                if rows and not table.startswith("ENUM_"):
                    new.execute(sql)
                    new.executemany(f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(rows[0]))})', rows)
        out.append(path)
    return out


def _small_ncu(folder: Path) -> list[Path]:
    out = []
    for name in ("raw.csv", "details.csv"):
        lines = (SAMPLES / "ncu_tp1_eager" / name).read_text().split("\n")
        out.append(folder / name)
        out[-1].write_text("\n".join(lines[: 8 if name == "raw.csv" else 120]))
    return out


def _small_saved(folder: Path, seed: Path) -> list[Path]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        llmprof.read(seed, cache=False).save(folder / "saved")
    return [folder / "saved"]


def targets(folder: Path) -> list[Target]:
    """All that is fuzzed; seeds are made in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    chrome, exports = _small_chrome(folder), _small_export(folder)
    plain = [path for path in chrome if path.suffix == ".json"]
    out = [
        Target("chrome", plain, (mutate.of_json, mutate.of_json, mutate.of_bytes), _held_by_chrome),
        Target("chrome gzip", [chrome[-1]], (mutate.of_bytes,)),
        Target("nsys", exports, (mutate.of_sqlite,), _held_by_export),
        Target("ncu", _small_ncu(folder), (mutate.of_lines, mutate.of_bytes)),
        Target("saved", _small_saved(folder, chrome[0]), (mutate.of_saved,)),
    ]
    for path in sorted(p for p in MONITORS.iterdir() if p.suffix in {".txt", ".csv"} and p.stat().st_size < 200_000):
        mutations = (mutate.of_lines, mutate.of_bytes)
        same = next((t for t in out if t.name == f"monitor {path.stem.split('_')[0].split('.')[0]}"), None)
        if same is None:
            out.append(Target(f"monitor {path.stem.split('_')[0].split('.')[0]}", [path], mutations))
        else:
            same.seeds.append(path)
    return out


def mutated(target: Target, number: int, work: Path) -> Path:
    """The file of a number: the same one for the same number."""
    rng = random.Random(f"{target.name} {number}")
    seed = rng.choice(target.seeds)
    path = mutate.copied(seed, work / seed.name)
    rng.choice(target.mutations)(path, rng)
    return path
