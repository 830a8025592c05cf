"""Redaction of files and folders:

``redact`` and ``check`` choose the copier; a copy appears only when complete.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.errors import OutputError, ReadError, TraceWarning, UnknownFormatError, checked
from llmprof.readers import read
from llmprof.readers.common.reader import border
from llmprof.readers.nsys.export import is_parquetdir
from llmprof.readers.redaction import chrome, ncu, nsys
from llmprof.readers.redaction.kept import kept_names
from llmprof.readers.registry import detect
from llmprof.readers.saved import is_run
from llmprof.trace.storage import sqlite, typed
from llmprof.trace.storage.files import PathLike, as_the_user_would, regular
from llmprof.trace.storage.parquet import read_frame, sealed
from llmprof.trace.storage.pseudonyms import Ledger, Pseudonyms, unwritten, writing

Copy = Callable[[Path, Path, Ledger], None]

_RANK: Final = re.compile(
    r"(?i)(?:(?<![a-z])(?:(?:dp|pp|tp|dcp|ep)\d{1,4}_)*rank[-_.]?\d{1,4}|worker[-_.]?\d{1,4}|TP-\d{1,4})(?!\d)"
)
_KEPT_NAME: Final = re.compile(
    r"report\.sqlite|(?:raw|details)\.csv|(?:rank|worker)[-_.]?\d{1,4}(?:\.pt)?(?:\.trace)?\.json(?:\.gz)?|"
    r"(?:kernel_comparison|nsys_summary)\.csv"
)
_JSON_TEXT_KEYS: Final = kept_names("texts")
"""Keys of a run's JSON files whose texts are kept, with pseudonyms where needed."""

_JSON_KEYS: Final = _JSON_TEXT_KEYS | kept_names("keys")
"""Keys of a run's JSON files: of others, but for the numbers of ranks, nothing is copied."""

_JSON_FILES: Final = (
    "summary.json",
    "metrics.json",
    "gpu_info.json",
    "worker.json",
    "nsys_metrics.json",
    "ncu_metrics.json",
    "state.json",
)
_CONFIG_KEYS: Final = frozenset(
    [
        *(
            "model",
            "input_tokens",
            "max_tokens",
            "temperature",
            "batch_size",
            "tensor_parallel_size",
        ),
        *(
            "pipeline_parallel_size",
            "profile_mode",
            "engine",
            "served",
            "warmup",
            "repeat",
            "seed",
            "eager",
            "dtype",
        ),
        *(
            "max_model_len",
            "ignore_eos",
            "all_reduce",
            "layer_annotations",
            "with_stack",
            "record_shapes",
        ),
        *("max_iterations", "plain", "timeout_s", "monitor_hz"),
    ]
)
_DEEPEST: Final = 12


def _copy_files(source: Path, target: Path, ledger: Ledger, copy: Copy) -> None:
    """Copy the files of a folder that have a known format; others are left out."""
    with writing(target):
        target.mkdir(mode=0o700)
    copied = 0
    for number, path in enumerate(
        sorted(p for p in source.iterdir() if p.is_file() and not p.is_symlink())
    ):
        try:
            copy(path, target / _neutral_name(path.name, number), ledger)
        except ReadError as error:
            ledger.leave_out(
                "files", "files of unknown formats, or that cannot be read", example=error
            )
        else:
            copied += 1
    folders = sum(p.is_dir() for p in source.iterdir())
    ledger.leave_out("files", "folders inside the folder", folders)
    if not copied:
        raise ReadError(
            f"{source.name} holds no file that can be redacted",
            expected="traces, exports or CSV of ncu",
        )


def _neutral_name(name: str, number: int) -> str:
    """Neutral name of a file, which keeps only its rank, its position among the files, and its
    kind.
    """
    if _KEPT_NAME.fullmatch(name):
        return name
    suffix = "".join(re.findall(r"\.(?:json|gz|csv|sqlite|txt|log)(?=\.|$)", name.lower())[-2:])
    rank = _RANK.search(name)
    return f"{number:04d}{f'_{rank[0].lower()}' if rank else ''}{suffix}"


def _copy_run(source: Path, target: Path, ledger: Ledger, copy: Copy) -> None:
    """Copy the measurements and traces of a run; texts, and the manifest with their hashes, stay
    behind.
    """
    with writing(target):
        target.mkdir(mode=0o700)
    handled = {"config.yaml", "traces", "report.sqlite", "monitors.parquet", *_JSON_FILES}
    for path in sorted(source.iterdir()):
        if path.name not in handled and not path.name.startswith("."):
            ledger.leave_out("run", "files that hold texts of the run", example=path.name)
    requests: dict[str, str] = {}
    for name in _JSON_FILES:
        if (source / name).is_file():
            document = typed.read(source / name, Any)
            cleaned = _with_requests(_measured(document, ledger, name), document, requests)
            with writing(target):
                (target / name).write_text(json.dumps(cleaned, indent=1) + "\n", encoding="utf-8")
    if (source / "config.yaml").is_file():
        with writing(target):
            (target / "config.yaml").write_text(
                _config(source / "config.yaml", ledger), encoding="utf-8"
            )
    if (source / "monitors.parquet").is_file():
        _monitors(source / "monitors.parquet", target / "monitors.parquet", ledger)
    if (source / "report.sqlite").is_file():
        copy(source / "report.sqlite", target / "report.sqlite", ledger)
    if (source / "traces").is_dir():
        _copy_files(source / "traces", target / "traces", ledger, copy)


def _measured(value: Any, ledger: Ledger, place: str, key: str = "", depth: int = 0) -> Any:
    """Copy of a JSON value: numbers and booleans stay under known keys, texts under fewer."""
    if isinstance(value, str):
        if key in _JSON_TEXT_KEYS:
            return ledger.text(value, place)
        ledger.leave_out(
            place, "texts under keys that no analysis needs", example=f"{key}: {value}"
        )
        return None
    if depth > _DEEPEST:
        return None
    if isinstance(value, list):
        items = [_measured(item, ledger, place, key, depth + 1) for item in value]
        return [
            item
            for item, was in zip(items, value, strict=True)
            if not (item is None and isinstance(was, str))
        ]
    if isinstance(value, dict):
        known = {
            k: v
            for k, v in value.items()
            if k in _JSON_KEYS or re.fullmatch(r"\d{1,6}", k, re.ASCII)
        }
        for unknown in value.keys() - known.keys():
            ledger.leave_out(place, "keys that no analysis needs", example=unknown)
        return {k: _measured(v, ledger, place, k, depth + 1) for k, v in known.items()}
    return value


def _with_requests(cleaned: Any, document: Any, numbers: dict[str, str]) -> Any:
    """Replace the identifiers of requests by numbers, the same in the engine's steps, so that
    both can be joined.
    """
    rows = [row for row in _rows(document, "requests") if isinstance(row.get("id"), str)]
    for row in rows:
        numbers.setdefault(row["id"], f"r{len(numbers)}")
    for row, copied in zip(_rows(document, "requests"), _rows(cleaned, "requests"), strict=False):
        if row.get("id") in numbers:
            copied["id"] = numbers[row["id"]]
    longest = sorted(numbers, key=len, reverse=True)
    engine: dict[str, str] = {}

    def known(name: str) -> str:
        if name not in engine:
            bare = re.sub(r"^\d+_(?=cmpl-|chatcmpl-)", "", name)
            request = next(
                (prefix for prefix in longest if bare == prefix or bare.startswith(f"{prefix}-")),
                None,
            )
            engine[name] = (
                f"other{len(engine)}" if request is None else f"{numbers[request]}-{len(engine)}"
            )
        return engine[name]

    for step, copied in zip(
        _rows(document, "engine_steps"), _rows(cleaned, "engine_steps"), strict=False
    ):
        for key in ("tokens", "computed"):
            if isinstance(step.get(key), dict):
                copied[key] = {
                    known(name): number
                    for name, number in step[key].items()
                    if isinstance(number, int)
                }
        copied["preempted"] = [
            known(name) for name in step.get("preempted") or () if isinstance(name, str)
        ]
    return cleaned


def _rows(document: Any, key: str) -> list[dict[str, Any]]:
    rows = document.get(key) if isinstance(document, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _config(path: Path, ledger: Ledger) -> str:
    """Options of a run without prompts, arguments of the engine and the profilers, and
    environment variables.
    """
    import yaml

    values = typed.read_yaml(path)
    values = values if isinstance(values, dict) else {}
    for key in values.keys() - _CONFIG_KEYS:
        ledger.leave_out(path.name, "options that may hold texts of the run", example=key)
    options = {
        key: ledger.text(value, path.name) if isinstance(value, str) else value
        for key, value in values.items()
        if key in _CONFIG_KEYS and isinstance(value, str | int | float | None)
    }
    return yaml.safe_dump(options, sort_keys=False)


def _monitors(source: Path, target: Path, ledger: Ledger) -> None:
    columns = ("time_ns", "device", "name", "unit", "value")
    frame = read_frame(source)
    with writing(target):
        target.write_bytes(
            sealed(ledger.names.frame(frame.select(c for c in columns if c in frame.columns)))
        )


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

    Numbers stay as they are, and so do harmless texts (names of kernels, operators, ranges and
    processes). A path, a host, an address, a user, a token, a value of the environment, an e-mail
    address or an identifier of a device is replaced by a pseudonym, the same for the same text, so
    analyses of the copy give the same tables. Everything else is left out: metadata, environments,
    command lines, logs, prompts, file names, comments, unknown keys, columns and tables. A file of
    a monitor or of another profiler becomes a saved trace.

    Parameters
    ----------
    source : path
        A Chrome trace (plain or gzip), an export of Nsight Systems (SQLite, or a folder of Parquet
        files), CSV of Nsight Compute, the output of a monitor, a trace that ``Trace.save`` wrote,
        the folder of a run, or a folder of such files.
    target : path
        The copy; a folder if the source is one. It must not exist.
    key : bytes, optional
        Key of the pseudonyms; random by default. With the same key, copies of several files have
        the same pseudonyms. Keep it secret: whoever has it can find a name by trying.

    Returns
    -------
    polars.DataFrame
        ``place, what, count`` of the content that was left out or replaced, never the content
        itself.

    Raises
    ------
    ReadError
        The source cannot be read, or is a report in a profiler's binary format, which must be
        exported first.
    UnknownFormatError
        The source has no known format.
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
    """  # noqa: E501
    return redacted_into(Path(source), Path(target), Pseudonyms(key)).frame(examples=False)


@checked
def list_redactions(source: PathLike) -> pl.DataFrame:
    """List the content that :func:`redact` would leave out or replace; nothing is written beside
    the source.

    Returns its ``place, what, count, example``: the example is the first text of its kind in the
    source, shortened.

    Examples
    --------
    >>> import json, tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "a.json"
    >>> event = {"ph": "X", "cat": "cpu_op", "name": "load /home/me/w.bin", "pid": 1, "tid": 1, "ts": 0, "dur": 1}
    >>> _ = file.write_text(json.dumps({"host_name": "box", "traceEvents": [event]}))
    >>> list_redactions(file)["example"].to_list()
    ['host_name', 'load /home/me/w.bin']
    """  # noqa: E501
    with writing(Path(tempfile.gettempdir())):
        work = Path(tempfile.mkdtemp(prefix="llmprof-check-"))
    try:
        return redacted_into(Path(source), work / "copy", Pseudonyms()).frame(examples=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def redacted_into(source: Path, target: Path, names: Pseudonyms) -> Ledger:
    """Copy a recording with these pseudonyms."""
    if not source.exists():
        raise ReadError(
            f"{source} does not exist",
            expected="a profiler's file or folder",
            hint="check the path",
        )
    if target.exists() or target.is_symlink():
        raise OutputError(
            f"{target} already exists", hint="choose another name: a copy never replaces a file"
        )
    try:
        work = Path(tempfile.mkdtemp(prefix=f".{target.name[:100]}-", dir=target.parent))
    except OSError as error:
        raise OutputError(f"cannot write to {target.parent}: {error.strerror or error}") from error
    ledger = Ledger(names)
    try:
        copied = work / "copy"
        try:
            with border(source.name):
                _copy(source, copied, ledger)
        except OutputError as error:  # the error names a file inside the copy by its temporary path
            raise unwritten(target, error.__cause__ or error) from error
        with writing(target):
            as_the_user_would(copied)
            copied.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return ledger


def _copy(source: Path, target: Path, ledger: Ledger) -> None:
    if not source.is_dir():
        _copy_file(source, target, ledger)
    elif is_run(source):
        _copy_run(source, target, ledger, _copy_file)
    elif is_parquetdir(source):
        nsys.copy_parquet(source, target, ledger)
    elif detect(source) is not None:
        _copy_as_trace(source, target, ledger)
    else:
        _copy_files(source, target, ledger, _copy_file)


def _copy_file(source: Path, target: Path, ledger: Ledger) -> None:
    if hint := _REPORTS.get(source.suffix.lower()):
        raise ReadError(
            f"{source.name} is a report in the profiler's own format, which is not redacted",
            hint=hint,
        )
    try:
        with regular(source).open("rb") as file:
            start = file.read(len(sqlite.MAGIC))
    except OSError as error:
        problem = f"cannot read {source.name}: {error.strerror or error}"
        raise ReadError(problem, hint="check its permissions") from error
    if start.startswith(b"NVR\0"):
        found = f"{source.name} is a report of Nsight Compute, which is not redacted"
        raise ReadError(found, hint=ncu.REPORT_HINT)
    kind = detect(source)
    if kind == "nsys" and start == sqlite.MAGIC:
        nsys.copy_nsys(source, target, ledger)
    elif kind == "chrome":
        chrome.copy_chrome(source, target, ledger)
    elif kind == "ncu":
        ncu.copy_ncu(source, target, ledger)
    elif kind is not None:
        _copy_as_trace(source, target, ledger)
    else:
        problem = f"{source.name} has no format that can be redacted"
        expected = (
            "a Chrome trace, an export of nsys, CSV of ncu, output of a monitor, a saved trace or"
            " a run"
        )
        raise UnknownFormatError(
            problem, expected=expected, hint="content of unknown formats is not copied"
        )


def _copy_as_trace(source: Path, target: Path, ledger: Ledger) -> None:
    """Read the trace, replace its texts and save it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TraceWarning)
        trace = read(source, cache=False)
    before = sum(ledger.names.counts.values())
    redacted = trace.redact(ledger.names)
    ledger.leave_out("trace", "texts with a pseudonym", sum(ledger.names.counts.values()) - before)
    with writing(target):
        redacted.save(target)
