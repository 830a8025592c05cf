"""Part of an engine script: its command line, its signals, and what is written however it ends."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from llmprof.launch.engines._children import adopt, end_children
from llmprof.launch.engines._failures import OwnLog, failure, tail
from llmprof.launch.engines._record import Record

_EXPLAINED = 3
_INTERRUPTED = 130


def run_job(job: Mapping[str, Any], work: Callable[[Mapping[str, Any], Record], None]) -> int:
    """Run a job and write what there is of it, however it ends.

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
        record.document["error"] = found = failure(error, tail(record.out / "server.log") + log.tail())
        with contextlib.suppress(OSError):  # a full disk may be the error
            record.event("error", found["message"])
        if isinstance(error, KeyboardInterrupt):
            status = _INTERRUPTED
        elif found["advice"]:
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


def _with_secrets(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of the engine; those that are not written into the script come from its environment."""
    found = dict(arguments)
    for name, value in arguments.items():
        variable = value.get("from_environment") if isinstance(value, dict) else None
        if variable is not None:
            if variable not in os.environ:
                raise ValueError(f"the argument {name} of the engine is a secret: set it in the variable {variable}")
            found[name] = os.environ[variable]
    return found


def _interrupt(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(f"ended by {signal.Signals(number).name}")
