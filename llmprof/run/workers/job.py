"""Of the program of an engine: its command line, its records, the points of one start, and the end
of its processes.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import ctypes
import gc
import importlib
import importlib.metadata
import json
import math
import os
import pkgutil
import random
import re
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .machine import OwnLog, Refused, describe_failure, gpu_names, tail, write_document

_UNKNOWN = (
    *("id", "start_ns", "arrived_s", "prompt_tokens", "output_tokens", "finish_reason"),
    "prefilled_s",
    *("ttft_s", "tpot_s", "itl_s", "queue_s", "prefill_s", "decode_s", "e2e_s"),
)

HELD = 0.8
"""Share of the requested rate below which a server does not hold the rate, however long its last
requests take.
"""


class RunRecord:
    """Files of one run of an engine script, or of its current point if it measures several."""

    def __init__(self, out: Path, job: Mapping[str, Any]) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.home = self.out = out
        self.events = out / "events.jsonl"
        self.place = ""
        self.whole = False
        self.keeps_outputs = bool(job.get("follow"))
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
        values = {
            "time_ns": time.time_ns(),
            "event": event,
            "done": done,
            "total": total,
            "message": message,
        }
        _append(self.events, values)
        if self.out != self.home:
            _append(self.home / self.events.name, {**values, "event": f"{self.place}: {event}"})

    @contextlib.contextmanager
    def stage(
        self, name: str, *, repeat: int | None = None, total: int = 0, message: str = ""
    ) -> Iterator[None]:
        """Time the block as a stage, which is recorded only if it ends without an error."""
        self.event(name, message, done=repeat or 0, total=total)
        start, began = time.time_ns(), time.perf_counter_ns()
        yield
        took = time.perf_counter_ns() - began
        self.document["stages"].append(
            {"name": name, "start_ns": start, "dur_ns": took, "repeat": repeat}
        )

    @contextlib.contextmanager
    def importing(self, name: str) -> Iterator[None]:
        """The stage in which the engine is imported, without the collector of garbage, which would
        take a third of it.
        """
        gc.disable()
        try:
            with self.stage("import", message=f"importing {name}"):
                yield
        finally:
            gc.enable()

    def stopping(self) -> None:
        """Tell the runner that all results are written, before the engine stops."""
        self.write()
        self.event("stop", "stopping the engine")
        self.whole = True

    def note(self, text: str) -> None:
        """Add a note for the user, once."""
        if text not in self.document["notes"]:
            self.document["notes"].append(text)

    def request(self, phase: str, repeat: int, request: int, **known: Any) -> None:
        """Add a request; values that are not given are unknown."""
        head = {"phase": phase, "repeat": repeat, "request": request}
        self.document["requests"].append({**head, **dict.fromkeys(_UNKNOWN), **known})

    def engine_steps(self, phase: str, steps: Sequence[Sequence[Any]], engine: int = 0) -> None:
        """Record steps as the worker of an engine noted them."""
        names = ("start_ns", "end_ns", "tokens", "computed", "preempted")
        self.document["engine_steps"] += [
            {"phase": phase, "engine": engine, **dict(zip(names, step))}  # noqa: B905
            for step in steps
        ]

    def prefix_cache(
        self, phase: str, before: Mapping[str, float], after: Mapping[str, float]
    ) -> None:
        """Record how many prompt tokens of a phase were looked up in the prefix cache, and how
        many were hits.
        """
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

    def held(
        self, phase: str, repeat: int, rates: Mapping[str, float | None], requested: float
    ) -> None:
        """Record the rates of requests, arrivals and answers (1/s); a note says if the server
        did not hold the rate.
        """
        loads = self.document["load"] or []
        self.document["load"] = [
            *loads,
            {"phase": phase, "repeat": repeat, "asked_per_s": requested or None, **rates},
        ]
        answered = rates["answered_per_s"]
        if requested and answered is not None and answered < HELD * requested:
            self.note(
                f"the server answered {answered:.3g} requests per second of the requested"
                f" {requested:.3g} ({phase}): it is saturated, or max_concurrency holds requests"
                " back"
            )

    @property
    def snapshot_path(self) -> str:
        """Path for the snapshot of a worker's allocator, into which the worker inserts its rank."""
        return str(self.out / "memory_snapshot_rankRANK.pickle")

    def kv_cache(self, blocks: int | None, size: int | None, **known: Any) -> None:
        """Record the size of the KV cache: its blocks, the tokens of each, and what else is
        known.
        """
        tokens = blocks * size if blocks and size else None
        facts = {
            "blocks": blocks,
            "block_size": size,
            "tokens": tokens,
            "bytes": None,
            "peak_usage": None,
        }
        self.document["kv_cache"] = {**facts, **known}

    def traces(self) -> Path:
        """Folder of the traces; it is made if it is missing."""
        traces = self.out / "traces"
        traces.mkdir(exist_ok=True)
        return traces

    def snapshots(self, paths: Sequence[str]) -> None:
        """Record the names of the allocators' snapshots."""
        names = [Path(path).name for path in paths if path]
        self.document["memory_snapshots"] = names
        if not names:
            self.note(
                "there is no snapshot of the allocator: only CUDA has one, and this run used no GPU"
            )

    def outputs(self, texts: Sequence[str | None], tokens: Sequence[Sequence[int] | None]) -> None:
        """Write the generated text, or the tokens if there is no tokenizer."""
        if self.keeps_outputs:
            self.document["outputs"] = [
                list(ids) if ids else (text or "").split()
                for text, ids in zip(texts, tokens)  # noqa: B905
            ]
        parts = []
        for k, (text, ids) in enumerate(zip(texts, tokens)):  # noqa: B905 (the engine's Python may be older than ours)
            body = text or (" ".join(map(str, ids)) if ids else "(nothing)")
            parts.append(f"=== request {k}: {'text' if text else 'token numbers'}\n{body}\n")
        (self.out / "generated_output.txt").write_text("\n".join(parts), encoding="utf-8")

    def write(self) -> None:
        """Write ``worker.json``; if that fails, an earlier file stays as it was."""
        write_document(self.out / "worker.json", self.document)


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


def instances_of(job: Mapping[str, Any]) -> list[str]:
    """Names of the instances that prefill and that decode; none if one server does both."""
    numbers = [int(number) for number in (job.get("disaggregate") or "0+0").split("+")]
    kinds = zip(("prefill", "decode"), numbers)  # noqa: B905
    return [f"{kind}{k or ''}" for kind, number in kinds for k in range(number)]


def devices_of(job: Mapping[str, Any]) -> int:
    """Number of devices of a run."""
    ranks: int = job["tensor_parallel_size"] * job["pipeline_parallel_size"]
    return ranks * max(1, len(instances_of(job)))


def name_gpus(job: Mapping[str, Any], record: RunRecord) -> None:
    """Record the names of the GPUs of a run, and check that there are enough."""
    ranks, names = devices_of(job), gpu_names()
    if names is not None:
        record.document["device_names"] = names[:ranks]
        if len(names) < ranks:
            raise Refused(
                f"the run needs {ranks} GPUs (tensor_parallel_size × pipeline_parallel_size, for"
                f" each instance), there are {len(names)}",
                "lower tensor_parallel_size or pipeline_parallel_size, or look at"
                " CUDA_VISIBLE_DEVICES",
            )


_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE_S = 8.0
_POLL_S = 0.05


def descendants(root: int | None = None) -> list[int]:
    """Descendants of a process (this one by default), without Python's resource trackers, which
    end by themselves.
    """
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
        for pid in below:
            with contextlib.suppress(OSError):
                if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                    below_root.append(pid)
    return below_root


def end_children(patience_s: float = _PATIENCE_S) -> list[int]:
    """End all descendants of this process: by termination first, then by a kill."""
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
            for pid in left:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(_POLL_S)
            left = descendants()
        if not left:
            break
    return killed


_EXPLAINED = 3
_INTERRUPTED = 130


def main() -> int:
    """Run the job that is packed beside this module."""
    packed = json.loads(pkgutil.get_data(__package__, "job.json") or b"")
    module, function = packed["run"].split(".")
    work = getattr(importlib.import_module(f".{module}", __package__), function)
    return run_job(packed["job"], work)


def run_job(job: Mapping[str, Any], work: Callable[[Mapping[str, Any], RunRecord], None]) -> int:
    """Run a job and write its record, however it ends."""
    parser = argparse.ArgumentParser(description="Repeat this run.")
    parser.add_argument(
        "--out", type=Path, help="folder for the results (default: a new one beside this script)"
    )
    out = (
        parser.parse_args().out
        or Path(sys.argv[0]).parent / f"repeat-{time.strftime('%Y%m%d-%H%M%S')}"
    )
    record = RunRecord(out.absolute(), job)
    log = OwnLog()
    with contextlib.suppress(
        OSError, AttributeError
    ):  # orphaned descendants become children, so that all can be ended
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    status = 0
    try:
        work({**job, "engine_args": with_secrets(job["engine_args"])}, record)
    except BaseException as error:
        error_record = describe_failure(
            error, "".join(map(tail, sorted(record.out.glob("*server*.log")))) + log.tail()
        )
        if not (record.whole and isinstance(error, KeyboardInterrupt)):
            record.document["error"] = error_record
        with contextlib.suppress(OSError):  # the error may be a full disk
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
            count = "1 process" if len(killed) == 1 else f"{len(killed)} processes"
            record.note(f"{count} of the engine had to be killed")
            record.write()
        gc.freeze()  # else the interpreter looks through all that was imported before it ends
    return status


def with_secrets(value: Any, name: str = "") -> Any:
    """Arguments of the engine, with those from the environment that are not written into the
    script.
    """
    if isinstance(value, list):
        return [with_secrets(item, f"{name}[{i}]") for i, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    variable = value.get("from_environment")
    if variable is None:
        return {
            key: with_secrets(item, f"{name}.{key}" if name else key) for key, item in value.items()
        }
    if variable not in os.environ:
        raise ValueError(
            f"the argument {name} of the engine is a secret: set it in the variable {variable}"
        )
    return os.environ[variable]


def _interrupt(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(f"ended by {signal.Signals(number).name}")


_FOLLOW_S = 0.02

_OF_THE_POINT = (Refused, ValueError)
"""Errors of a request, after which the engine still works; any other error may have broken it."""


def each_point(
    job: Mapping[str, Any], record: RunRecord, work: Callable[[Mapping[str, Any]], None]
) -> None:
    """Do the work of a job, or of each of its points in order.

    The values of a point override those of the job, and its folder is inside the folder of the job.
    Its ``worker.json`` is written when it ends, so its measurements are kept even if the engine
    fails later. If a point is refused, its error is recorded and the next point begins. A job with
    ``follow`` gets its points one by one from the lines of ``points.jsonl`` beside its record, and
    waits for the next one until a line is empty.
    """
    points = job.get("points")
    if not points and not job.get("follow"):
        work(job)
        record.stopping()
        return
    shared = record.document
    for k, point in enumerate(_followed(record) if job.get("follow") else points or ()):
        record.document = copy.deepcopy(shared)
        record.document["engine_start"] = {"point": k, "points": len(points) if points else None}
        record.out = record.home / point["folder"]
        record.out.mkdir(parents=True, exist_ok=True)
        record.events = record.out / "events.jsonl"
        record.place = f"point {k + 1} of {len(points)}" if points else f"point {k + 1}"
        try:
            work({**job, **point["job"]})
            record.event("done")
        except BaseException as error:
            record.document["error"] = describe_failure(error, "")
            record.event("error", record.document["error"]["message"])
            if not isinstance(error, _OF_THE_POINT):
                raise
        finally:
            record.write()
            shared["notes"] = list(dict.fromkeys([*shared["notes"], *record.document["notes"]]))
            record.document, record.out = shared, record.home
            record.events = record.home / "events.jsonl"


def _followed(record: RunRecord) -> Iterator[dict[str, Any]]:
    """Points that another process appends to ``points.jsonl``, until it appends an empty line."""
    path, seen = record.home / "points.jsonl", 0
    record.event("ready")
    while True:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        for line in lines[seen:]:
            if not line:
                return
            yield json.loads(line)
        seen = len(lines)
        time.sleep(_FOLLOW_S)


def take_traces(record: RunRecord) -> None:
    """Move the traces in the folder of the job to the folder of the point that was profiled."""
    here = record.home / "traces"
    if record.out == record.home or not here.is_dir():
        return
    for path in sorted(here.iterdir()):
        with contextlib.suppress(FileNotFoundError):
            shutil.move(path, record.traces() / path.name)


def drop_traces(record: RunRecord) -> None:
    """Remove the traces of a window that is not measured."""
    for path in (record.home / "traces").rglob("*"):
        if path.is_file():
            path.unlink(missing_ok=True)


# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
_T95 = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
    2.110,
    2.101,
    2.093,
    2.086,
    2.080,
    2.074,
    2.069,
    2.064,
    2.060,
    2.056,
    2.052,
    2.048,
    2.045,
    2.042,
)
_Z95 = 1.959964
_LEAST = 3


def t95(freedom: int) -> float:
    """Factor of a two-sided 95 % interval for a number of degrees of freedom (Student's t).

    Above 30 degrees of freedom it is the Cornish-Fisher expansion of the quantile, correct to three
    decimals.
    """
    if freedom < 1:
        raise ValueError("a confidence interval needs two values")
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    z = _Z95
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean of two or more values, as a share of that mean."""
    n, mean = len(values), sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    return t95(n - 1) * deviation / math.sqrt(n) / mean if mean else math.inf


def turns(job: Mapping[str, Any], record: RunRecord, phase: str, least: int) -> Iterator[int]:
    """Numbers of the repeats of a phase.

    Without ``until`` there are ``least`` repeats. With it, repeats without profiler continue until
    the half width of the 95 % interval of the batch's mean time is at most this share of the mean;
    there are at least three and at most ``most_repeats`` repeats.
    """
    until, most = job["until"] if phase == "plain" else None, job["most_repeats"]

    def known() -> bool:
        times = [stage["dur_ns"] for stage in record.document["stages"] if stage["name"] == phase]
        return until is not None and _half_width(times) <= until

    for i in range(max(least, most) if until else least):
        if until and i >= max(least, _LEAST) and known():
            return
        yield i
    if until and not known():
        record.note(
            f"after {most} repeats the mean is not known to {until:.1%} yet: the machine is noisy"
        )


def token_ids(prompts: Mapping[str, Any]) -> list[list[int]]:
    """Token ids of synthetic prompts, which all differ; the same seed gives the same prompts."""
    chance = random.Random(prompts["seed"])  # noqa: S311 (no secret)
    first, last = prompts["first"], prompts["last"]
    longest = max(prompts["shared"], default=0)
    beginnings = [
        [chance.randrange(first, last) for _ in range(longest)] for _ in range(prompts["groups"])
    ]
    return [
        beginnings[k % len(beginnings)][:shared]
        + [chance.randrange(first, last) for _ in range(length - shared)]
        for k, (length, shared) in enumerate(zip(prompts["lengths"], prompts["shared"]))  # noqa: B905
    ]
