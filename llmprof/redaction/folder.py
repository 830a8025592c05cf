"""Copy of a folder: a run of llmprof, or the files of one run; under names that say no more than the rank."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof.errors import ReadError
from llmprof.storage.pseudonyms import Ledger, writing

Copy = Callable[[Path, Path, Ledger], None]

_RANK: Final = re.compile(
    r"(?i)(?:(?<![a-z])(?:(?:dp|pp|tp|dcp|ep)\d{1,4}_)*rank[-_.]?\d{1,4}|worker[-_.]?\d{1,4}|TP-\d{1,4})(?!\d)"
)
_KEPT_NAME: Final = re.compile(
    r"report\.sqlite|(?:raw|details)\.csv|(?:rank|worker)[-_.]?\d{1,4}(?:\.pt)?(?:\.trace)?\.json(?:\.gz)?|"
    r"(?:kernel_comparison|nsys_summary)\.csv"
)
_JSON_TEXT_KEYS: Final = frozenset(
    [
        "name",
        "engine",
        "engine_version",
        "torch_version",
        "python_version",
        "platform",
        "profile_mode",
        "phase",
        "finish_reason",
        "driver",
        "cuda_driver",
        "cpu",
        "compute_capability",
        "engine_platform",
        "mode",
        "kind",
        "unit",
        "metric",
        "section",
        "state",
        "stage",
        "started",
        "ended",
        "category",
        "status",
        "counter",
        "device",
        "dtype",
        "pass",
    ]
)
"""Keys of a run's JSON files whose texts are kept, as far as they pass."""

_JSON_FILES: Final = (
    "summary.json", "metrics.json", "gpu_info.json", "worker.json", "nsys_metrics.json", "ncu_metrics.json",
    "state.json",
)  # fmt: skip
_CONFIG_KEYS: Final = frozenset(
    [
        "model",
        "input_tokens",
        "max_tokens",
        "temperature",
        "batch_size",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "profile_mode",
        "engine",
        "served",
        "warmup",
        "repeat",
        "seed",
        "eager",
        "dtype",
        "max_model_len",
        "ignore_eos",
        "all_reduce",
        "layer_annotations",
        "with_stack",
        "record_shapes",
        "max_iterations",
        "plain",
        "timeout_s",
        "monitor_hz",
    ]
)
_DEEPEST: Final = 12


def copy_files(source: Path, target: Path, ledger: Ledger, copy: Copy) -> None:
    """Copy the files of a folder that are of a known format; others are left out.

    Parameters
    ----------
    source, target : pathlib.Path
        Folders; the target is made.
    ledger : Ledger
        Takes up what was left out.
    copy : callable
        Copies one file.

    Raises
    ------
    ReadError
        None of the files is of a known format.
    """
    with writing(target):
        target.mkdir(mode=0o700)
    copied = 0
    for number, path in enumerate(sorted(p for p in source.iterdir() if p.is_file() and not p.is_symlink())):
        try:
            copy(path, target / neutral_name(path.name, number), ledger)
        except ReadError as error:
            ledger.leave_out("files", "files of no known format, or that cannot be read", example=error)
        else:
            copied += 1
    folders = sum(p.is_dir() for p in source.iterdir())
    ledger.leave_out("files", "folders inside the folder", folders)
    if not copied:
        raise ReadError(f"{source.name} holds no file that can be redacted", expected="traces, exports or CSV of ncu")


def neutral_name(name: str, number: int) -> str:
    """Name of a file that keeps its rank, its place among the others and its kind, and nothing else."""
    if _KEPT_NAME.fullmatch(name):
        return name
    suffix = "".join(re.findall(r"\.(?:json|gz|csv|sqlite|txt|log)(?=\.|$)", name.lower())[-2:])
    rank = _RANK.search(name)
    return f"{number:04d}{f'_{rank[0].lower()}' if rank else ''}{suffix}"


def copy_run(source: Path, target: Path, ledger: Ledger, copy: Copy) -> None:
    """Copy the folder of a run of llmprof: its measurements and traces.

    Logs, prompts and outputs, scripts, command lines, the environment and models are left out, and so is the manifest,
    whose hashes are those of the files that were left out.

    Raises
    ------
    ReadError
        A file of it cannot be read.
    OutputError
        The copy cannot be written.
    """
    with writing(target):
        target.mkdir(mode=0o700)
    known = {"config.yaml", "traces", "report.sqlite", "monitors.parquet", *_JSON_FILES}
    for path in sorted(source.iterdir()):
        if path.name not in known and not path.name.startswith("."):
            ledger.leave_out("run", "files that hold texts of the run", example=path.name)
    for name in _JSON_FILES:
        if (source / name).is_file():
            made = _measured(_loaded(source / name), ledger, name)
            with writing(target):
                (target / name).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    if (source / "config.yaml").is_file():
        with writing(target):
            (target / "config.yaml").write_text(_config(source / "config.yaml", ledger), encoding="utf-8")
    if (source / "monitors.parquet").is_file():
        _monitors(source / "monitors.parquet", target / "monitors.parquet", ledger)
    if (source / "report.sqlite").is_file():
        copy(source / "report.sqlite", target / "report.sqlite", ledger)
    if (source / "traces").is_dir():
        copy_files(source / "traces", target / "traces", ledger, copy)


def _loaded(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ReadError(f"{path.name} of the run is damaged: {error}", expected="what llmprof wrote") from error


def _measured(value: Any, ledger: Ledger, place: str, key: str = "", depth: int = 0) -> Any:
    """Numbers and truth values as they are, texts only under keys that are known."""
    if isinstance(value, str):
        if key in _JSON_TEXT_KEYS:
            return ledger.text(value, place)
        ledger.leave_out(place, "texts under keys that no analysis needs", example=f"{key}: {value}")
        return None
    if depth > _DEEPEST:
        return None
    if isinstance(value, list):
        kept = [_measured(item, ledger, place, key, depth + 1) for item in value]
        return [item for item, was in zip(kept, value, strict=True) if not (item is None and isinstance(was, str))]
    if isinstance(value, dict):
        return {ledger.text(k, place): _measured(v, ledger, place, k, depth + 1) for k, v in value.items()}
    return value


def _config(path: Path, ledger: Ledger) -> str:
    """The configuration's own options, without prompts, arguments of engine and profilers, and environment."""
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ReadError(f"{path.name} of the run is damaged: {error}", expected="what llmprof wrote") from error
    values = values if isinstance(values, dict) else {}
    for key in values.keys() - _CONFIG_KEYS:
        ledger.leave_out(path.name, "options that may hold texts of the run", example=key)
    kept = {
        key: ledger.text(value, path.name) if isinstance(value, str) else value
        for key, value in values.items()
        if key in _CONFIG_KEYS and isinstance(value, str | int | float | None)
    }
    return yaml.safe_dump(kept, sort_keys=False)


def _monitors(source: Path, target: Path, ledger: Ledger) -> None:
    columns = ("time_ns", "device", "name", "unit", "value")
    try:
        frame = pl.read_parquet(source)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise ReadError(f"{source.name} of the run is damaged: {error}", expected="what llmprof wrote") from error
    with writing(target):
        ledger.names.frame(frame.select(c for c in columns if c in frame.columns)).write_parquet(target)


def is_run(path: Path) -> bool:
    """Whether a folder is one that ``llmprof run`` wrote."""
    return (path / "state.json").is_file() and (path / "config.yaml").is_file()
