"""Supervised run of a program: output goes to a log, no process of it survives, and its failure
becomes an error.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, Final

from llmprof.errors import LaunchError, ReadError, needs
from llmprof.run.workers.machine import is_survived, known_cause, tail
from llmprof.text import Progress, plain
from llmprof.trace.storage import typed
from llmprof.trace.storage.files import refused, regular

if TYPE_CHECKING:
    from llmprof.run.launch.run.family import Family


class _Growing:
    """A file that grows."""

    def __init__(self, path: Path, begin: int = 0) -> None:
        self._path, self._at, self._rest = path, begin, b""

    def lines(self) -> list[bytes]:
        """Lines that were appended; an incomplete line is kept until its end is written."""
        try:
            with regular(self._path).open("rb") as file:
                self._at = 0 if os.fstat(file.fileno()).st_size < self._at else self._at
                file.seek(self._at)
                new = file.read()
        except (OSError, ReadError):
            return []
        self._at += len(new)
        *whole, self._rest = (self._rest + new).split(b"\n")
        return whole


STOP: Final = "stop"
"""Event of an engine that has written all results and begins to stop."""


class Events:
    """Reader of the events in a file that grows."""

    def __init__(self, path: Path | None, progress: Progress | None) -> None:
        self._file, self._progress = _Growing(path or Path(os.devnull)), progress
        self.last: dict[str, Any] = {}
        self.stopping = False

    @property
    def words(self) -> str:
        """Text for the last event."""
        message = self.last.get("message") or ""
        return f"{self.last.get('event', 'start')}{f': {message}' if message else ''}"

    def read(self) -> None:
        """Read the events that were appended."""
        for line in self._file.lines():
            with contextlib.suppress(ReadError):
                self.last = typed.decoded(line, typed.ProgressJson, "events.jsonl")
                self.stopping |= self.last["event"] == STOP
                if self._progress is not None:
                    self._progress(
                        plain(self.words), self.last.get("done", 0), self.last.get("total", 0)
                    )


class Lines:
    """Counter of the lines in a growing log that have a certain start."""

    def __init__(self, path: Path, begin: bytes, what: str, total: int, progress: Progress) -> None:
        self._file = _Growing(path, path.stat().st_size if path.exists() else 0)
        self._begin, self._what, self._total, self._progress = begin, what, total, progress
        self._done = 0

    def read(self) -> None:
        """Count the lines that were appended."""
        finished = sum(line.startswith(self._begin) for line in self._file.lines())
        if finished:
            self._done += finished
            self._progress(self._what, min(self._done, self._total), self._total)


_POLL_S: Final = 0.1
_LOOK_EVERY: Final = 10
INTERRUPT_S: Final = 15.0
"""Time that a program has to write its files after an interrupt (s)."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Result of a program that ended."""

    status: int
    seconds: float
    left_over: tuple[str, ...]
    last_event: Mapping[str, Any]


def run(
    argv: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str],
    events: Path | None = None,
    cwd: Path | None = None,
    timeout_s: float = 0.0,
    progress: Progress | None = None,
    started: Callable[[int], object] | None = None,
    watch: Callable[[], object] | None = None,
    stopping: Callable[[], object] | None = None,
) -> Finished:
    """Run a program to its end; none of its processes outlives this call.

    The program runs in a separate session, so an interrupt in a notebook or terminal reaches only
    this process. This process then ends the program: it sends an interrupt, so that the program can
    write its files, then a termination, then a kill. A guard process does the same if this process
    itself is killed. ``stopping`` is called once if the program's events say that it stops now.
    """
    families = _families()
    mark = uuid.uuid4().hex
    told = Events(events, progress)
    with _opened(log) as out:
        _note(
            out,
            log,
            f"{datetime.now().astimezone().isoformat(timespec='seconds')} {shlex.join(argv)}",
        )
        began = time.monotonic()
        process = _started(argv, env={**env, families.MARK: mark}, cwd=cwd, stdout=out)
        family: Family | None = None
        try:
            with contextlib.ExitStack() as guarded:
                try:  # from here on, an interrupt may come at any time
                    guarded.enter_context(_guarded(process.pid, mark, log))
                    family = families.Family(process.pid, mark, log)
                    if started is not None:
                        started(process.pid)
                    until = began + timeout_s if timeout_s else None
                    _wait(process, family, told, watch, stopping, until=until)
                finally:
                    left_over = _end(
                        process,
                        family if family is not None else families.Family(process.pid, mark, log),
                    )
                    seconds = time.monotonic() - began
        except TimeoutError:
            found = (
                f"{Path(argv[0]).name} was ended after {timeout_s:g} s; its last event was:"
                f" {told.words}"
            )
            hint = "raise timeout_s, or lower the number of tokens, repeats or iterations"
            raise LaunchError(found, hint=hint, timeout=True) from None
        told.read()
        if left_over:
            _note(out, log, f"ended what was left over: {', '.join(left_over)}")
    return Finished(process.returncode, seconds, left_over, told.last)


def output_of(
    argv: Sequence[str], *, env: Mapping[str, str], timeout_s: float
) -> tuple[int, list[str]]:
    """Status of a program that is run to its end, and the lines that it printed."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log.txt")
        status = run(argv, log=log, env=env, timeout_s=timeout_s).status
        lines = log.read_text(errors="replace").strip().splitlines()
    return status, [line for line in lines if not line.startswith("# ")]


def _wait(
    process: subprocess.Popen[bytes],
    family: Any,
    told: Events,
    watch: Callable[[], object] | None,
    stopping: Callable[[], object] | None,
    *,
    until: float | None,
) -> None:
    for turn in itertools.count():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_S)
            return
        told.read()
        if watch is not None:
            watch()
        if turn % _LOOK_EVERY == 0:
            family.look()
        if told.stopping and stopping is not None:
            family.look()  # so that what loses its parent while this waits for others is known
            stopping()
            stopping = None
        if until is not None and time.monotonic() > until:
            raise TimeoutError


def _end(process: subprocess.Popen[bytes], family: Any) -> tuple[str, ...]:
    """End the processes of a run that still run; a second interrupt ends them at once."""
    try:
        if process.poll() is None:
            _interrupt(process)
        return tuple(family.end())
    except KeyboardInterrupt:
        process.kill()
        process.wait()
        family.end(patience_s=0.0)
        raise


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """Interrupt the first process, so that it can write its files; kill it if it does not end."""
    for how, patience in (
        (signal.SIGINT, INTERRUPT_S),
        (signal.SIGTERM, INTERRUPT_S / 3),
        (signal.SIGKILL, None),
    ):
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            return


def _started(argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    own: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stderr": subprocess.STDOUT,
        "start_new_session": True,
    }
    try:
        return subprocess.Popen(list(argv), **own, **options)  # noqa: S603 (no shell)
    except OSError as error:
        found = f"{argv[0]} cannot be started: {error.strerror or error}"
        hint = "check that it is installed and on PATH, or give its path"
        raise LaunchError(found, expected="a program that can be run", hint=hint) from error


@contextlib.contextmanager
def _opened(log: Path) -> Iterator[IO[bytes]]:
    try:
        file = log.open("ab", buffering=0)
    except OSError as error:
        raise refused(log, error) from error
    with file:
        yield file


def _note(out: IO[bytes], log: Path, words: str) -> None:
    """Write a line of llmprof into the log."""
    try:
        out.write(f"# {words}\n".encode())
    except OSError as error:
        raise refused(log, error) from error


@contextlib.contextmanager
def _guarded(root: int, mark: str, log: Path) -> Iterator[None]:
    """Start a guard process, which ends the run's processes if this process is killed."""
    program = Path(__file__).with_name("family.py")
    guard = subprocess.Popen(  # noqa: S603
        [sys.executable, "-P", str(program), str(root), mark, str(log)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            guard.communicate(b"done")


def _families() -> ModuleType:
    """Module that finds the processes of a run; imported here since it needs psutil, which
    reading traces does not.
    """
    with needs("psutil", "launching a run needs", "launch", LaunchError):
        from llmprof.run.launch.run import family
    return family


TAIL_BYTES: Final = 200_000
_ALARM: Final = re.compile(
    r"(?i)error|exception|fail|kill|cannot|no space|out of memory|less than|larger than"
)
_LEAST_ROOM: Final = 1 << 20
_KILLED: Final[dict[int, str]] = {
    signal.SIGKILL: "it was killed",
    signal.SIGSEGV: "it crashed (segmentation fault)",
}


def engine_failure(worker: Mapping[str, Any] | None, finished: Finished, log: Path) -> LaunchError:
    """Error for a run whose engine failed."""
    error = (worker or {}).get("error") or {}
    output = tail(log, most=TAIL_BYTES)
    output = output[output.rfind("\n# 20") + 1 :]
    message = str(error.get("message") or _last_error(output) or _ending(finished.status))
    of_error = known_cause(f"{error.get('type', '')} {message}")
    generic = not error or "initialization failed" in message
    reason = of_error or (known_cause(alarming(output)) if generic else None)
    when = _when(finished)
    with contextlib.suppress(OSError):  # on a full disk, an engine cannot write its error
        if reason is None and shutil.disk_usage(log.parent).free < _LEAST_ROOM:
            reason = known_cause("No space left on device")
    words, hint = reason or ("", "")
    advice = error.get("advice") or hint or f"the whole output is in {log.name}"
    if finished.status == -signal.SIGKILL and not reason:
        why = "the system may have killed it because main memory ran out (dmesg shows that)"
        advice = f"{why}: lower batch_size or max_model_len"
    what = f"{words} ({_shorten(message)})" if words else _shorten(message)
    found, stage = f"the engine failed {when}: {what}", finished.last_event.get("event")
    return LaunchError(found, hint=str(advice), log=str(log), stage=stage)


def _when(finished: Finished) -> str:
    last = finished.last_event.get("event")
    before = {
        None: "before it began",
        "import": "while it was imported",
        "init": "while it started",
    }
    return before.get(last, f"in mid-run, after {last!r}") if last != "error" else "with an error"


def _ending(status: int) -> str:
    names = {-one: one.name for one in signal.Signals}
    how = f"{_KILLED.get(-status, 'it was ended')} by {names.get(status, f'signal {-status}')}"
    return how if status < 0 else f"exit status {status}"


def alarming(output: str) -> str:
    """Lines that look like errors; most other lines of an engine only list its options."""
    return "\n".join(
        line for line in output.splitlines() if _ALARM.search(line) and not is_survived(line)
    )


def _last_error(output: str) -> str:
    """The last line that looks like an exception's message; if vLLM's engine core failed, the
    line of the cause.
    """
    lines = [line.strip() for line in output.splitlines() if not is_survived(line)]
    matching = [
        line
        for line in lines
        if re.search(r"(?:^|[\s\]])[A-Za-z_.]*(?:Error|Exception)(?::| \()", line)
    ]
    causes = [line for line in matching if "Engine core initialization failed" not in line]
    return (causes or matching or [""])[-1]


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 300 else f"{text[:300]}…"
