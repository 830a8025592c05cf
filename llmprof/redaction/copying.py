"""``redact`` and ``check``: which copier a file needs, and the copy that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Final

import polars as pl

from llmprof.arguments import checked
from llmprof.errors import OutputError, ReadError, TraceWarning, UnknownFormatError
from llmprof.readers import read
from llmprof.readers.common.reader import border
from llmprof.readers.nsys.files import is_parquetdir
from llmprof.readers.registry import detect
from llmprof.redaction import chrome, folder, ncu, nsys
from llmprof.storage import sqlite
from llmprof.storage.files import as_the_user_would
from llmprof.storage.pseudonyms import Ledger, Pseudonyms, writing

PathLike = str | os.PathLike[str]

_REPORTS: Final = {
    ".nsys-rep": "nsys export --type sqlite FILE.nsys-rep, then redact the .sqlite",
    ".qdrep": "nsys export --type sqlite FILE.qdrep, then redact the .sqlite",
    ".arrows": "export the report again with nsys export --type sqlite, then redact the .sqlite",
    ".qdstrm": "import it with Nsight Systems, nsys export --type sqlite, then redact the .sqlite",
    ".ncu-rep": ncu.REPORT_HINT,
}


@checked
def redact(source: PathLike, target: PathLike, *, key: bytes | None = None) -> pl.DataFrame:
    """Write a copy of a profile that holds only what the schema needs.

    Numbers stay as they are. Of texts (names of kernels, operators, ranges and processes) stays what passes; a path, a
    host, an address, a user, a token, a value of the environment, an e-mail address or an identifier of a device is
    replaced by a pseudonym, the same for the same text, so analyses of the copy give the same tables. Everything else
    is left out: metadata, environments, command lines, logs, prompts, file names, comments, unknown keys, columns and
    tables. A file of a monitor or of another profiler becomes a saved trace.

    Parameters
    ----------
    source : path
        A Chrome trace (plain or gzip), an export of Nsight Systems (SQLite, or a folder of Parquet files), CSV of
        Nsight Compute, what a monitor printed, a trace that ``Trace.save`` wrote, the folder of a run, or a folder of
        such files.
    target : path
        The copy, a folder where the source is one; it must not exist.
    key : bytes, optional
        Key of the pseudonyms; a random one if not given. With the same key, copies of several files have the same
        pseudonyms. Keep it to yourself: who has it can find a name by trying.

    Returns
    -------
    polars.DataFrame
        ``place, what, count``: what was left out or replaced, never its content.

    Raises
    ------
    ReadError
        The source cannot be read, or is a report in a profiler's own binary format, which has to be exported first.
    UnknownFormatError
        The source is of no known format.
    OutputError
        The target exists or cannot be written.

    Examples
    --------
    >>> import json, tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> event = {"ph": "X", "cat": "cpu_op", "name": "load /home/me/w.bin", "pid": 1, "tid": 1, "ts": 0, "dur": 1}
    >>> _ = (folder / "a.json").write_text(json.dumps({"host_name": "box", "traceEvents": [event]}))
    >>> removed = redact(folder / "a.json", folder / "b.json")
    >>> "/home/me" in (folder / "b.json").read_text(), removed["count"].sum()
    (False, 2)
    """
    return _redact(Path(source), Path(target), Pseudonyms(key)).frame(examples=False)


@checked
def check(source: PathLike) -> pl.DataFrame:
    """What :func:`redact` would leave out or replace; nothing is written beside the source.

    Parameters
    ----------
    source : path
        As for :func:`redact`.

    Returns
    -------
    polars.DataFrame
        ``place, what, count, example``: an example is the first text of its kind, cut, as it stands in the source.

    Raises
    ------
    ReadError
        The source cannot be read.
    UnknownFormatError
        The source is of no known format.
    OutputError
        There is no room for the copy that is made and thrown away.
    """
    with writing(Path(tempfile.gettempdir())):
        work = Path(tempfile.mkdtemp(prefix="llmprof-check-"))
    try:
        return _redact(Path(source), work / "copy", Pseudonyms()).frame(examples=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _redact(source: Path, target: Path, names: Pseudonyms) -> Ledger:
    if not source.exists():
        raise ReadError(f"{source} does not exist", expected="a profiler's file or folder", hint="check the path")
    if target.exists() or target.is_symlink():
        raise OutputError(f"{target} exists", hint="choose another name: a copy never replaces a file")
    try:
        work = Path(tempfile.mkdtemp(prefix=f".{target.name[:100]}-", dir=target.parent))
    except OSError as error:
        raise OutputError(f"cannot write to {target.parent}: {error.strerror or error}") from error
    ledger = Ledger(names)
    try:
        made = work / "copy"
        try:
            with border(source.name):
                _copy(source, made, ledger)
        except OutputError as error:  # of a file inside of it, under the name that it has for now
            raise _unwritten(target, error) from error
        with writing(target):
            as_the_user_would(made)
            made.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return ledger


def _unwritten(target: Path, error: OutputError) -> OutputError:
    cause = error.__cause__
    message = getattr(cause, "strerror", None) or cause or error
    return OutputError(
        f"cannot write the copy {target.name}: {message}",
        hint=f"free space in {target.parent}, or choose another folder",
    )


def _copy(source: Path, target: Path, ledger: Ledger) -> None:
    if not source.is_dir():
        _copy_file(source, target, ledger)
    elif folder.is_run(source):
        folder.copy_run(source, target, ledger, _copy_file)
    elif is_parquetdir(source):
        nsys.copy_parquet(source, target, ledger)
    elif detect(source) is not None:
        _copy_as_trace(source, target, ledger)
    else:
        folder.copy_files(source, target, ledger, _copy_file)


def _copy_file(source: Path, target: Path, ledger: Ledger) -> None:
    if way := _REPORTS.get(source.suffix.lower()):
        raise ReadError(f"{source.name} is a report in the profiler's own format, which is not redacted", hint=way)
    try:
        with source.open("rb") as file:
            start = file.read(len(sqlite.MAGIC))
    except OSError as error:
        raise ReadError(
            f"cannot read {source.name}: {error.strerror or error}", hint="check its permissions"
        ) from error
    if start.startswith(b"NVR\0"):
        raise ReadError(
            f"{source.name} is a report of Nsight Compute, which is not redacted", hint=_REPORTS[".ncu-rep"]
        )
    kind = detect(source)
    if kind == "nsys" and start == sqlite.MAGIC:
        nsys.copy(source, target, ledger)
    elif kind == "chrome":
        chrome.copy(source, target, ledger)
    elif kind == "ncu":
        ncu.copy(source, target, ledger)
    elif kind is not None:
        _copy_as_trace(source, target, ledger)
    else:
        raise UnknownFormatError(
            f"{source.name} is of no format that can be redacted",
            expected="a Chrome trace, an export of nsys, CSV of ncu, what a monitor printed, a saved trace or a run",
            hint="what is not understood is not copied",
        )


def _copy_as_trace(source: Path, target: Path, ledger: Ledger) -> None:
    """Read it, replace the texts and save the trace."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TraceWarning)
        trace = read(source, cache=False)
    before = sum(ledger.names.counts.values())
    made = trace.redact(ledger.names)
    ledger.leave_out("trace", "texts with a pseudonym", sum(ledger.names.counts.values()) - before)
    with writing(target):
        made.save(target)
