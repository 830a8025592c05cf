"""What is fuzzed: for each reader its seeds, its mutations, and an independent count of what a
file still holds.
"""

import random
import shutil
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

import llmprof
from llmprof import Metrics, analyze, read_metrics
from llmprof.errors import LlmprofError, TraceWarning
from llmprof.readers.redaction import redact
from llmprof.run.launch import open_run
from tests.fuzz import counts, late, mutate, seeds, states

Frames = dict[str, pl.DataFrame]


class TooLongError(BaseException):
    """A file took too long; no handler of exceptions must take it for one that the file caused."""


@dataclass
class Target:
    """One reader."""

    name: str
    seeds: list[Path]
    mutations: tuple[mutate.Mutate, ...]
    count: Callable[[Path], counts.Held]
    """Rows by table that a file still holds, found without llmprof; nothing where it is damaged."""
    said: set[str] = field(default_factory=set)
    """What reading the seeds warns of; a warning beside these excuses a loss."""
    whole: dict[str, Frames] = field(default_factory=dict)
    """Frames of each seed, by its name, where every change must be noticed: what is read must be
    as it was.
    """


@dataclass
class Outcome:
    """What became of one file."""

    said: str
    """``read``, ``refused``, or the error."""
    raw: str = ""
    """Traceback of an exception that is none of llmprof."""
    silent: str = ""
    """What was lost without a word."""
    checked: bool = False
    """Whether what was read was compared with the count of what the file holds."""


_ALIKE = ("saved", "dataset", "names", "ncu report")
"""Targets whose formats have checksums or lengths, or whose mutations leave the rows as they
are.
"""

_KINDS = {
    "chrome": ((mutate.of_json, mutate.of_json, mutate.of_bytes), counts.of_chrome),
    "chrome gzip": ((mutate.of_bytes,), counts.of_chrome),
    "nsys": ((mutate.of_sqlite,), counts.of_export),
    "nsys parquet": ((mutate.of_folder,), counts.of_parquet_folder),
    "ncu": ((mutate.of_lines, mutate.of_bytes), counts.of_ncu),
    "saved": ((mutate.of_saved,), counts.of_saved),
    "run": ((mutate.of_folder,), counts.of_run),
    "ascend text": ((mutate.of_folder,), counts.of_ascend),
    "ascend database": ((mutate.of_folder,), counts.of_ascend),
    "ascend files": ((mutate.of_anything,), counts.of_ascend),
    "ascend mindspore": ((mutate.of_anything,), counts.of_ascend),
    "perf": ((mutate.of_lines, mutate.of_bytes), counts.of_perf),
    "snapshot": ((mutate.of_json, mutate.of_bytes), counts.of_snapshot),
    "rocpd": ((mutate.of_sqlite,), counts.of_rocpd),
    "nvprof": ((mutate.of_lines, mutate.of_bytes), late.of_printed),
    "vtune": ((mutate.of_lines, mutate.of_bytes), late.of_printed),
    "tensorrt": ((mutate.of_json, mutate.of_json, mutate.of_bytes), late.of_tensorrt),
    "proton": ((mutate.of_json, mutate.of_json, mutate.of_bytes), late.of_proton),
    "rocprofv3": ((mutate.of_lines, mutate.of_bytes), late.of_printed),
    "ops": ((mutate.of_json, mutate.of_json, mutate.of_bytes), late.of_ops),
    "monitor": ((mutate.of_lines, mutate.of_bytes), counts.of_monitor),
    "nvvp": ((mutate.of_sqlite,), late.of_session),
    "dataset": ((mutate.of_folder,), lambda _: {}),
    "names": ((mutate.of_names,), lambda _: {}),
    "ncu report": ((mutate.of_sectors,), lambda _: {}),
    **{name: ((states.of_state,), lambda _: {}) for name in states.DOORS},
}


def targets(folder, only=""):
    """All that is fuzzed, or one of it; seeds are made in a folder, or taken from there."""
    seeds.make(folder)
    out = []
    for place in sorted(p for p in folder.iterdir() if p.is_dir() and only in ("", p.name)):
        mutations, count = _KINDS["monitor" if place.name.startswith("monitor") else place.name]
        target = Target(place.name, sorted(place.iterdir()), mutations, count)
        for seed in target.seeds if place.name not in states.DOORS else ():
            with warnings.catch_warnings(record=True, action="always") as caught:
                found = _read(target, seed)
            if target.name in _ALIKE:
                target.whole[seed.name] = _frames(found)
            target.said |= {str(warning.message) for warning in caught}
        out.append(target)
    return out


def _read(target, path):
    return read_metrics(path) if target.name.startswith("ncu") else llmprof.read(path, cache=False)


def try_file(target, path, work, *, deep):
    """Read a file, and for some of them also redact and analyse it."""
    out = Outcome("read")
    with warnings.catch_warnings(record=True, action="always") as caught:
        try:
            if target.name in states.DOORS:
                out.silent = states.silent(target.name, path, target.seeds[0])
                out.checked = target.name in states.CHECKED
                refused = [
                    error for _, error in states.opened(target.name, path, deep=deep) if error
                ]
                out.said = "refused" if refused else "read"
            else:
                _try_trace(target, path, work, out, caught, deep=deep)
        except LlmprofError as error:
            out.said = "refused" if str(error) else "an error without a word"
        except Exception:  # noqa: BLE001 (this is what is looked for)
            out.raw = traceback.format_exc()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit | TooLongError):
                raise
            out.raw = traceback.format_exc()
    shutil.rmtree(work / "redacted", ignore_errors=True)
    for warning in caught:
        if not issubclass(warning.category, TraceWarning):
            out.raw = out.raw or f"{warning.category.__name__}: {warning.message}"
    return out


def _try_trace(target, path, work, out, caught, *, deep):
    found = _read(target, path)
    if not {str(warning.message) for warning in caught} - target.said:
        out.silent = _silent(target.count(path), found) or _changed(
            target.whole.get(path.name), found
        )
        out.checked = True
    if deep and isinstance(found, llmprof.Trace):
        _analyse(found)
    if deep and target.name == "run":
        _look(path)
    if deep:
        copy = work / "copy"
        redact(path, copy)
        shutil.rmtree(copy) if copy.is_dir() else copy.unlink()


def _analyse(trace):
    for name in (
        "steps",
        "overlap",
        "collectives",
        "layers",
        "idle",
        "kernels",
        "launch_delay",
        "findings",
    ):
        try:
            getattr(analyze, name)(trace)
        except LlmprofError:
            continue
    repr(trace)
    trace.redact()


def _look(folder):
    """All that a run shows of itself."""
    run = open_run(folder)
    for name in ("state", "summary", "worker", "requests", "trace", "metrics", "_repr_html_"):
        try:
            found = getattr(run, name)
            if callable(found):
                found()
        except LlmprofError:
            continue


def _silent(held, found):
    if isinstance(found, Metrics):
        kept = {"metrics": found.metrics.height}
    else:
        kept = {name: sum(_height(found, table) for table in name.split("+")) for name in held}
    return ", ".join(
        f"{name}: {kept[name]} of {count}" for name, count in held.items() if kept[name] < count
    )


def _frames(found):
    if isinstance(found, Metrics):
        return {"kernels": found.kernels, "metrics": found.metrics, "rules": found.rules}
    return {name: found.table(name) for name in found.tables}


def _changed(whole, found):
    """Tables that are not as they were in the file before it was changed."""
    if whole is None:
        return ""
    frames = _frames(found)
    return ", ".join(
        f"{name} changed"
        for name in sorted(whole.keys() | frames.keys())
        if name not in frames or name not in whole or not whole[name].equals(frames[name])
    )


def _height(trace, table):
    if not trace.has(table):
        return 0
    frame = trace.table(table)
    if table == "counters":  # what readers add up themselves is no sample
        frame = frame.filter(~pl.col("name").str.starts_with("cpu.utilization"))
    return frame.height


def mutated(target, number, work):
    """The file of a number: the same one for the same number."""
    rng = random.Random(f"{target.name} {number}")
    seed = rng.choice(target.seeds)
    path = mutate.copied(seed, work / seed.name)
    rng.choice(target.mutations)(path, rng)
    return path
