"""The error for an engine or profiler that failed, from what it said."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from llmprof.errors import LaunchError
from llmprof.launch._known_failures import known
from llmprof.launch.process import Finished

_TAIL_BYTES: Final = 200_000
_ALARM: Final = re.compile(r"(?i)error|exception|fail|kill|cannot|no space|out of memory|less than|larger than")
_LEAST_ROOM: Final = 1 << 20
_KILLED: Final = {signal.SIGKILL: "it was killed", signal.SIGSEGV: "it crashed (segmentation fault)"}


def tail(log: Path) -> str:
    """End of a log."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def failure(worker: Mapping[str, Any] | None, finished: Finished, log: Path) -> LaunchError:
    """Error for a run whose engine failed.

    Parameters
    ----------
    worker : mapping or None
        What the engine script wrote of itself, if it came that far.
    finished : Finished
        How its process ended.
    log : pathlib.Path
        Its output.
    """
    error = (worker or {}).get("error") or {}
    said = tail(log)
    said = said[said.rfind("\n# 20") + 1 :]
    message = str(error.get("message") or _last_error(said) or _ending(finished.status))
    of_error = known(f"{error.get('type', '')} {message} {error.get('traceback', '')}")
    generic = not error or "initialization failed" in message
    found = of_error or (known(_alarming(said)) if generic else None)
    when = _when(finished)
    if found is None and _full(log):
        found = known("No space left on device")
    words, hint = found or ("", "")
    advice = error.get("advice") or hint or f"the whole output is in {log.name}"
    if finished.status == -signal.SIGKILL and not found:
        advice = "it may have been the system, out of main memory: see dmesg; lower batch_size or max_model_len"
    what = f"{words} ({_shorten(message)})" if words else _shorten(message)
    return LaunchError(
        f"the engine failed {when}: {what}", hint=str(advice), log=str(log), stage=finished.last_event.get("event")
    )


def _full(log: Path) -> bool:
    """Whether the disk of the run has hardly any room: then the engine could not even say so."""
    try:
        return shutil.disk_usage(log.parent).free < _LEAST_ROOM
    except OSError:
        return False


def _when(finished: Finished) -> str:
    last = finished.last_event.get("event")
    before = {None: "before it began", "import": "while it was imported", "init": "while it started"}
    return before.get(last, f"in mid-run, after {last!r}") if last != "error" else "with an error"


def _ending(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        how = signal.Signals(-status)
    except ValueError:
        return f"ended by signal {-status}"
    return f"{_KILLED.get(how, 'it was ended')} by {how.name}"


def _alarming(said: str) -> str:
    """Lines that speak of something bad; engines name their options in many others."""
    return "\n".join(line for line in said.splitlines() if _ALARM.search(line))


def _last_error(said: str) -> str:
    """The last line that looks like the message of an exception; that of the cause, where an engine core failed."""
    lines = [line.strip() for line in said.splitlines()]
    found = [line for line in lines if re.search(r"(?:^|[\s\]])[A-Za-z_.]*(?:Error|Exception)(?::| \()", line)]
    causes = [line for line in found if "Engine core initialization failed" not in line]
    return (causes or found or [""])[-1]


def _shorten(text: str, limit: int = 300) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[:limit]}…"
