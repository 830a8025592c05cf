"""Processes that help to read: parsing JSON holds Python's lock, so threads of one process would
wait for each other.

A job is a list of units: the files of a run, or the blocks of one large file. This process and its
helpers walk through the same units, and each does those that no other has taken yet; so a helper
that is still starting holds nobody up, and the result does not depend on who did what. What a
helper did comes back as Arrow and MessagePack in a temporary folder. A helper is an interpreter of
its own, without a fork and without importing the user's script again; it ends with this process, or
when it had nothing to do for a minute.
"""

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import polars as pl

from llmprof.errors import LlmprofError

VARIABLE: Final = "LLMPROF_WORKERS"
"""Environment variable with the number of processes that read where ``workers`` is not given; 1:
no helpers.
"""

MOST_HELPERS: Final = 7
WORTH_BYTES: Final = 96 << 20
"""Bytes of JSON above which helpers are started: about 0.7 s of reading, twice as long as a helper
needs to start.
"""
_PACKED: Final = 12
"""Bytes of JSON that a byte of gzip holds, about."""
_IDLE_S: Final = 60.0
_LOOK_S: Final = 0.002

POOL: Final[list[subprocess.Popen[bytes]]] = []
_IN_USE: Final = threading.Lock()

Task = Callable[[dict[str, Any], "JobShare"], None]
"""Function of a helper: takes the description of the job and its share of it."""


class Done(NamedTuple):
    """Result of a unit of a job: its number, facts about it, and frames."""

    unit: int
    facts: Any
    frames: dict[str, pl.DataFrame]


def process_count(workers: int | None) -> int:
    """Number of processes that read: the given number, or that in :data:`VARIABLE`, or one for
    each usable core.
    """
    if workers is not None and workers < 1:
        raise LlmprofError(f"workers is {workers}", expected="a number of processes, at least 1")
    if workers is None:
        given = os.environ.get(VARIABLE, "")
        workers = int(given) if given.isdecimal() else cores()
    return max(1, min(workers, MOST_HELPERS + 1))


def cores() -> int:
    """Cores that this process may use: those of its affinity, and of the quota of its container."""
    count = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text("ascii").split()
        count = min(count, max(1, round(int(quota) / int(period))))
    return count


def is_worth_it(paths: Sequence[Path]) -> bool:
    """Whether files are so large that helpers save time."""
    sizes = [
        path.stat().st_size * (_PACKED if path.suffix == ".gz" else 1)
        for path in paths
        if path.is_file()
    ]
    return sum(sizes) >= WORTH_BYTES


class JobShare:
    """The share of a helper in a job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out: io.BufferedWriter | None = None
        self._listed: list[tuple[int, bytes, list[tuple[str, int]]]] = []

    def take(self, unit: int) -> bool:
        """Take a unit, unless another process has it."""
        try:
            os.close(os.open(self.folder / f"{unit}.taken", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True

    def give(self, unit: int, facts: Any, frames: Mapping[str, pl.DataFrame]) -> None:
        """Write the result of a helper for a unit."""
        packed = msgspec.msgpack.encode(facts)
        if msgspec.msgpack.decode(packed, strict=True) != facts:
            raise ValueError("facts cannot be passed on")
        if self.out is None:
            self.out = (self.folder / f"{os.getpid()}.frames").open("wb")
        sizes = []
        for name, frame in frames.items():
            before = self.out.tell()
            frame.write_ipc(self.out, compression="uncompressed")
            sizes.append((name, self.out.tell() - before))
        self._listed.append((unit, packed, sizes))

    def close(self) -> None:
        """Tell that this helper is through."""
        if self.out is not None:
            self.out.close()
        unfinished = self.folder / f"{os.getpid()}.part"
        unfinished.write_bytes(msgspec.msgpack.encode(self._listed))
        unfinished.replace(self.folder / f"{os.getpid()}.done")


class Job:
    """A job in the process that started it; made by :func:`shared`."""

    def __init__(self, folder: Path | None, helpers: list[subprocess.Popen[bytes]]) -> None:
        self.share = None if folder is None else JobShare(folder)
        self.helpers = helpers
        self._taken: set[int] = set()

    @property
    def is_shared(self) -> bool:
        """Whether anybody helps."""
        return self.share is not None

    def take(self, unit: int) -> bool:
        """Take a unit, unless a helper has it."""
        try:
            if self.share is None or self.share.take(unit):
                self._taken.add(unit)
        except OSError:  # a full disk: nobody has it, and it will be missing
            pass
        return unit in self._taken

    def others(self, count: int) -> list[Done]:
        """What the helpers did, once nothing is missing any more; what a helper that failed had
        taken stays missing.
        """
        missing = set(range(count)) - self._taken
        done: list[Done] = []
        waiting = list(self.helpers)
        while missing and waiting and self.share is not None:
            for helper in list(waiting):
                ended = helper.poll() is not None
                if (self.share.folder / f"{helper.pid}.done").exists():
                    done += self._loaded(self.share.folder / f"{helper.pid}")
                elif not ended:
                    continue
                waiting.remove(helper)
            missing -= {one.unit for one in done}
            if missing and waiting:
                time.sleep(_LOOK_S)
        return sorted(done, key=lambda one: one.unit)

    @staticmethod
    def _loaded(stem: Path) -> Iterator[Done]:
        listed = msgspec.msgpack.decode(stem.with_suffix(".done").read_bytes())
        with (
            stem.with_suffix(".frames").open("rb")
            if listed
            else contextlib.nullcontext(io.BytesIO()) as file
        ):
            for unit, packed, sizes in listed:
                frames = {name: pl.read_ipc(io.BytesIO(file.read(size))) for name, size in sizes}
                yield Done(unit, msgspec.msgpack.decode(packed), frames)

    def stop(self) -> None:
        """End the helpers that are still at work."""
        for helper in self.helpers:
            if self.share is not None and not (self.share.folder / f"{helper.pid}.done").exists():
                end_helper(helper)


@contextlib.contextmanager
def shared(task: str, description: dict[str, Any], workers: int) -> Iterator[Job]:
    """A job that helpers share; without helpers where there are none to be had."""
    folder: Path | None = None
    used = workers > 1 and bool(sys.executable) and _IN_USE.acquire(blocking=False)
    try:
        helpers: list[subprocess.Popen[bytes]] = []
        if used:
            with contextlib.suppress(OSError):
                folder = Path(tempfile.mkdtemp(prefix="llmprof-read-"))
                helpers = asked_helpers(
                    json.dumps({"folder": str(folder), "task": task, "of": description}),
                    workers - 1,
                )
        job = Job(folder if helpers else None, helpers)
        try:
            yield job
        except BaseException:
            job.stop()
            raise
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        if used:
            _IN_USE.release()


def asked_helpers(line: str, count: int) -> list[subprocess.Popen[bytes]]:
    """Helpers that work on a job."""
    for helper in [one for one in POOL if one.poll() is not None]:
        end_helper(helper)
    while len(POOL) < count:
        POOL.append(_started())
    asked = []
    for helper in POOL[:count]:
        if helper.stdin is None:
            continue
        try:
            helper.stdin.write(line.encode() + b"\n")
            helper.stdin.flush()
        except OSError:  # it has just ended
            end_helper(helper)
        else:
            asked.append(helper)
    return asked


def _started() -> subprocess.Popen[bytes]:
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(  # noqa: S603 (this interpreter, and a module of this package)
        [sys.executable, "-P", "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": paths, VARIABLE: "1", "POLARS_MAX_THREADS": "1"},
        start_new_session=True,  # an interrupt is for this process, which then ends them
    )


def end_helper(helper: subprocess.Popen[bytes]) -> None:
    """End a helper, which is not asked again."""
    if helper in POOL:
        POOL.remove(helper)
    helper.kill()
    if helper.stdin is not None:
        with contextlib.suppress(OSError):
            helper.stdin.close()
    helper.wait()


def end_helpers() -> None:
    """End all helpers; the next large file starts new ones."""
    for helper in [*POOL]:
        end_helper(helper)


atexit.register(end_helpers)


def _serve() -> None:
    """Work of a helper: one job in each line of its input, until that ends or a minute without a
    job has passed.
    """
    folder = None
    while True:
        idle = threading.Timer(_IDLE_S, os._exit, (0,))
        idle.daemon = True
        idle.start()
        line = sys.stdin.buffer.readline()
        idle.cancel()
        if not line:
            break
        asked = json.loads(line)
        folder = Path(asked["folder"])
        share = JobShare(folder)
        # whatever goes wrong: the process that asked finds the unit missing, does it itself, and
        # meets the same error
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("error")
            module, name = asked["task"].split(":")
            getattr(importlib.import_module(module), name)(asked["of"], share)
        with contextlib.suppress(OSError):
            share.close()
        del share
        gc.collect()
    if folder is not None:  # left behind by a process that was killed
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _serve()
