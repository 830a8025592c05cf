"""Part of an engine script: its command line, signals and records, and the end of the processes that it started."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.metadata
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmprof.launch.engines._machine import OwnLog, failure, tail

_UNKNOWN = (
    *("id", "start_ns", "arrived_s", "prompt_tokens", "output_tokens", "finish_reason"),
    *("ttft_s", "tpot_s", "itl_s", "queue_s", "prefill_s", "decode_s", "e2e_s"),
)

_HELD = 0.8
"""Share of the requested rate below which the server does not hold that rate, however long the last requests take."""


class Record:
    """Files of one run of an engine script, or of its current point if it measures several.

    Parameters
    ----------
    out : pathlib.Path
        Folder of the files; it is made.
    job : mapping
        What is run.
    """

    def __init__(self, out: Path, job: Mapping[str, Any]) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.home = self.out = out
        self.events = out / "events.jsonl"
        self.place = ""
        self.document: dict[str, Any] = {
            "engine": job["engine"],
            "engine_version": None,
            "torch_version": version_of("torch"),
            "python_version": sys.version.split()[0],
            "platform": None,
            "device_names": [],
            "profiler": job["profiler"],
            "argv": sys.argv,
            "stages": [],
            "requests": [],
            "engine_steps": [],
            "load": None,
            "prefix_cache": {},
            "kv_cache": None,
            "peak_memory_bytes": None,
            "notes": [],
            "dropped_engine_args": [],
            "error": None,
        }

    def event(self, event: str, message: str = "", *, done: int = 0, total: int = 0) -> None:
        """Append an event to the file of events, which readers follow."""
        values = {"time_ns": time.time_ns(), "event": event, "done": done, "total": total, "message": message}
        _append(self.events, values)
        if self.out != self.home:
            _append(self.home / self.events.name, {**values, "event": f"{self.place}: {event}"})

    @contextlib.contextmanager
    def stage(self, name: str, *, repeat: int | None = None, total: int = 0, message: str = "") -> Iterator[None]:
        """Time the block as a stage; it counts only if it ends without an error."""
        self.event(name, message, done=repeat or 0, total=total)
        start, began = time.time_ns(), time.perf_counter_ns()
        yield
        took = time.perf_counter_ns() - began
        self.document["stages"].append({"name": name, "start_ns": start, "dur_ns": took, "repeat": repeat})

    def note(self, text: str) -> None:
        """Add a note for the user, once."""
        if text not in self.document["notes"]:
            self.document["notes"].append(text)

    def request(self, phase: str, repeat: int, request: int, **known: Any) -> None:
        """Add a request; a value that is not given is unknown."""
        head = {"phase": phase, "repeat": repeat, "request": request}
        self.document["requests"].append({**head, **dict.fromkeys(_UNKNOWN), **known})

    def engine_steps(self, phase: str, steps: Sequence[Sequence[Any]]) -> None:
        """Write down steps as the engine's worker noted them."""
        names = ("start_ns", "end_ns", "tokens", "computed", "preempted")
        self.document["engine_steps"] += [{"phase": phase, **dict(zip(names, step))} for step in steps]  # noqa: B905

    def prefix_cache(self, phase: str, before: Mapping[str, float], after: Mapping[str, float]) -> None:
        """Write down how many prompt tokens of a phase were looked up in the prefix cache, and how many were hits."""
        counts = {}
        for kind in ("queries", "hits"):
            values = [
                value - before.get(name, 0.0)
                for name, value in after.items()
                if re.match(rf"vllm:(?:gpu_)?prefix_cache_{kind}(?:_total)?(?:\{{|$)", name)
            ]
            counts[kind] = round(sum(values)) if values else None
        if counts["queries"]:
            self.document["prefix_cache"][phase] = counts

    def held(self, phase: str, repeat: int, rates: Mapping[str, float | None], asked: float) -> None:
        """Write down the requested, arrived and answered rate; a note says if the server did not hold the rate."""
        loads = self.document["load"] or []
        self.document["load"] = [*loads, {"phase": phase, "repeat": repeat, "asked_per_s": asked or None, **rates}]
        answered = rates["answered_per_s"]
        if asked and answered is not None and answered < _HELD * asked:
            self.note(
                f"the server answered {answered:.3g} requests a second of the {asked:.3g} that were asked for "
                f"({phase}): it is saturated, or max_concurrency holds requests back"
            )

    @property
    def snapshot_path(self) -> str:
        """Where a worker puts the snapshot of its allocator; it fills in its rank."""
        return str(self.out / "memory_snapshot_rankRANK.pickle")

    def snapshots(self, paths: Sequence[str]) -> None:
        """Write down the names of the snapshots of the allocators."""
        names = [Path(path).name for path in paths if path]
        self.document["memory_snapshots"] = names
        if not names:
            self.note("there is no snapshot of the allocator: it is CUDA's, and this run used no GPU")

    def outputs(self, texts: Sequence[str | None], tokens: Sequence[Sequence[int] | None]) -> None:
        """Write the generated text, or the tokens if there is no tokenizer."""
        parts = []
        for k, (text, ids) in enumerate(zip(texts, tokens)):  # noqa: B905 (the engine's Python may be older than ours)
            body = text or (" ".join(map(str, ids)) if ids else "(nothing)")
            parts.append(f"=== request {k}: {'text' if text else 'token numbers'}\n{body}\n")
        (self.out / "generated_output.txt").write_text("\n".join(parts), encoding="utf-8")

    def write(self) -> None:
        """Write ``worker.json``, whole or not at all."""
        part = self.out / f".worker.json.{os.getpid()}"
        part.write_text(json.dumps(self.document, indent=1), encoding="utf-8")
        part.replace(self.out / "worker.json")


def _append(path: Path, values: Mapping[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")


def version_of(*distributions: str) -> str | None:
    """Version of the first of some distributions that is installed, without importing it."""
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE_S = 8.0
_POLL_S = 0.05


def adopt() -> None:
    """Become the parent of processes whose own parent dies, so that all of them can be ended (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(root: int | None = None) -> list[int]:
    """Descendants of a process (this one by default), without Python's resource trackers, which end by themselves."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                state, parent = entry.joinpath("stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    parents.setdefault(int(parent), []).append(int(entry.name))
    below_root, left = [], [os.getpid() if root is None else root]
    while left:
        below = parents.get(left.pop(), [])
        left += below
        below_root += [pid for pid in below if not _is_tracker(pid)]
    return below_root


def end_children(patience_s: float = _PATIENCE_S) -> list[int]:
    """End all descendants of this process: by termination first, then by a kill.

    Returns
    -------
    list of int
        Those that had to be killed.
    """
    killed: list[int] = []
    for how, patience in ((signal.SIGTERM, patience_s), (signal.SIGKILL, patience_s)):
        left = descendants()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
        if how == signal.SIGKILL:
            killed = left
        until = time.monotonic() + patience
        while left and time.monotonic() < until:
            _reap(left)
            time.sleep(_POLL_S)
            left = descendants()
        if not left:
            break
    return killed


def _reap(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _is_tracker(pid: int) -> bool:
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


_EXPLAINED = 3
_INTERRUPTED = 130


def run_job(job: Mapping[str, Any], work: Callable[[Mapping[str, Any], Record], None]) -> int:
    """Run a job and write its record, however it ends.

    Parameters
    ----------
    job : mapping
        What is run.
    work : callable
        Takes the job and the record.

    Returns
    -------
    int
        Exit status: 0, 3 for an error with an advice, 130 after an interrupt.
    """
    parser = argparse.ArgumentParser(description="Repeat this run.")
    parser.add_argument("--out", type=Path, help="folder for what it writes (default: a new one beside this script)")
    out = parser.parse_args().out or Path(__file__).parent / f"repeat-{time.strftime('%Y%m%d-%H%M%S')}"
    record = Record(out.absolute(), job)
    log = OwnLog()
    adopt()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    status = 0
    try:
        work({**job, "engine_args": _with_secrets(job["engine_args"])}, record)
    except BaseException as error:
        record.document["error"] = error_record = failure(error, tail(record.out / "server.log") + log.tail())
        with contextlib.suppress(OSError):  # a full disk may be the error
            record.event("error", error_record["message"])
        if isinstance(error, KeyboardInterrupt):
            status = _INTERRUPTED
        elif error_record["advice"]:
            status = _EXPLAINED
            traceback.print_exc(file=sys.stderr)
        else:
            raise
    else:
        record.event("done")
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        try:
            record.write()
        finally:
            killed = end_children()
        if killed:
            record.note(f"{len(killed)} processes of the engine did not end by themselves and were killed")
            record.write()
    return status


def _with_secrets(value: Any, name: str = "") -> Any:
    """Arguments of the engine; those that are not written into the script are read from the environment."""
    if isinstance(value, list):
        return [_with_secrets(item, f"{name}[{i}]") for i, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    variable = value.get("from_environment")
    if variable is None:
        return {key: _with_secrets(item, f"{name}.{key}" if name else key) for key, item in value.items()}
    if variable not in os.environ:
        raise ValueError(f"the argument {name} of the engine is a secret: set it in the variable {variable}")
    return os.environ[variable]


def _interrupt(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(f"ended by {signal.Signals(number).name}")
