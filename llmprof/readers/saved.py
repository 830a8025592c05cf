"""Reader of llmprof's own files: saved traces, datasets of many ranks, and the timeline in the
folder of a run.
"""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

from llmprof.errors import NotCapturedError, ReadError
from llmprof.readers.common.reader import Reader
from llmprof.trace import Trace
from llmprof.trace.storage import deferred, typed
from llmprof.trace.storage.dataset import MANIFEST
from llmprof.trace.storage.parquet import META_FILE
from llmprof.trace.storage.places import Place
from llmprof.trace.trace import open_saved

READERS = (
    Reader(
        name="llmprof",
        version=1,
        what="a folder that Trace.save wrote",
        sniff=lambda probe: probe.is_folder and (probe.path / META_FILE).exists(),
        read=lambda path, _: open_saved(path),
        alone=True,
    ),
    Reader(
        name="dataset",
        version=1,
        what="a folder that llmprof convert wrote",
        sniff=lambda probe: probe.is_folder and (probe.path / MANIFEST).is_file(),
        read=lambda path, _: Trace(*deferred.load(Place.of(path))),
        alone=True,
        deferred=True,
    ),
)


STATE_FILE: Final = "state.json"
CONFIG_FILE: Final = "config.yaml"
WORKER_FILE: Final = "worker.json"
RECORDING_FILE: Final = "recording.json"
SQLITE: Final = "report.sqlite"
TRACES: Final = "traces"
CPU_TEXT: Final = "cpu_samples.txt"
CPU_TABLE: Final = "cpu_samples.csv"
CPU_CLOCK: Final = "cpu_clock.json"
"""Files of a run: samples of the host from perf or VTune, and the offset of perf's clock from
the epoch.
"""


def is_run(path: Path) -> bool:
    """Whether a path is the folder of a run."""
    return (path / STATE_FILE).is_file() and (path / CONFIG_FILE).is_file()


def has_timeline(path: Path) -> bool:
    """Whether the folder of a run has a timeline."""
    return (path / SQLITE).exists() or (path / TRACES).exists()


def _parallel(folder: Path) -> dict[str, int]:
    """Sizes of tensor (``tp``) and pipeline (``pp``) parallelism by the configuration of a run;
    empty if unreadable.
    """
    config = _configuration(folder)
    sizes = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size"}
    return {
        name: size
        for name, key in sizes.items()
        if isinstance(size := config.get(key), int) and size > 0
    }


def _configuration(folder: Path) -> dict[str, Any]:
    try:
        config = typed.read_yaml(folder / CONFIG_FILE)
    except ReadError:
        return {}
    return config if isinstance(config, dict) else {}


_CHANGES_THE_MODEL: Final = (
    "hf_overrides",
    "quantization",
    "speculative_config",
    "speculative_algorithm",
    "json_model_override_args",
    "config",
)
"""Options of an engine with which a model is not what its name or ``config.json`` says."""


def run_model(folder: Path) -> dict[str, Any]:
    """The model of a run: its name, and ``config``, the name or ``config.json``; empty where its
    sizes stay open.
    """
    config = _configuration(folder)
    given = (
        _of_server(folder)
        if (folder / RECORDING_FILE).exists()
        else config.get("engine_args") or {}
    )
    options = (
        {str(key).replace("-", "_"): value for key, value in given.items()}
        if isinstance(given, dict)
        else None
    )
    name = config.get("model")
    if (
        not isinstance(name, str)
        or options is None
        or any(options.get(one) for one in _CHANGES_THE_MODEL)
    ):
        return {}
    short = name.rstrip("/").rsplit("/", 1)[-1].removeprefix("random:")
    said = (
        typed.read_if_whole(folder / "model" / short / "config.json", dict[str, Any])
        if "\0" not in short
        else None
    )
    found: dict[str, Any] = {"name": short, "config": short if said is None else said}
    found["by"] = "by the configuration of the run"
    if options.get("enable_expert_parallel") is True:
        found["expert_parallel"] = True
    if isinstance(cache := options.get("kv_cache_dtype"), str) and cache != "auto":
        found["kv_cache_dtype"] = cache
    return found


def _of_server(folder: Path) -> dict[str, Any] | None:
    """The options of the server that a run recorded; None where neither it nor its process told
    them.
    """
    said = typed.read_if_whole(folder / RECORDING_FILE, typed.RecordingJson) or {}
    config = said.get("config")
    if config is None or _TELL.isdisjoint(said.get("told_by") or ()):
        return None
    parts = [config, *(config.get(f"{part}_config") for part in ("model", "cache", "parallel"))]
    told = {key: value for part in parts if isinstance(part, dict) for key, value in part.items()}
    if told.get("json_model_override_args") == "{}":
        del told["json_model_override_args"]
    return told | {
        "kv_cache_dtype": told.get("kv_cache_dtype", told.get("cache_dtype")),
        "enable_expert_parallel": bool(told.get("enable_expert_parallel"))
        or str(told.get("ep_size", 1)) != "1",
    }


_TELL: Final = frozenset({"/server_info", "/get_server_info", "its process"})


def _without_profiler(folder: Path) -> dict[str, Any]:
    """Time of a step of decode by the requests of a run, without (``plain_ns``, and that of each
    repeat, ``repeats_ns``) and under the profiler; empty if unknown.
    """
    requests = (typed.read_if_whole(folder / WORKER_FILE, typed.WorkerJson) or {"requests": []})[
        "requests"
    ]
    repeats: dict[tuple[str, int], list[typed.RequestJson]] = {}
    for row in requests:
        repeats.setdefault((row["phase"], row.get("repeat") or 0), []).append(row)
    plain, profiled = (
        [ns for (of, _), rows in repeats.items() if of == phase and (ns := _decode_alone(rows))]
        for phase in ("plain", "profiled")
    )
    if not plain or not profiled:
        return {}
    return {"plain_ns": median(plain), "profiled_ns": median(profiled), "repeats_ns": plain}


def _decode_alone(requests: list[typed.RequestJson]) -> float | None:
    """Median time from token to token (ns) of requests of one repeat, or mean of a request whose
    tokens were not timed one by one, while no prompt of any of them was read.
    """
    # A prompt is read from the end of the queue, or of its arrival where that is not known, to the
    # first token. Tokens of one step reach their clients within half a step.
    import numpy as np  # when a run is read: other reading needs no numpy

    known = [
        (ns, ttft, row)
        for row in requests
        if (ns := row.get("start_ns")) is not None and (ttft := row.get("ttft_s")) is not None
    ]
    if not known:
        return None
    begin = min(ns for ns, *_ in known)
    firsts = [(ns - begin) / 1e9 + ttft for ns, ttft, _ in known]
    reading = sorted(
        ((ns - begin) / 1e9 + (row.get("queue_s") or 0.0), first)
        for (ns, _, row), first in zip(known, firsts, strict=True)
    )
    starts, ends = np.array(reading).T
    ends = np.maximum.accumulate(ends)
    alone = []
    for (*_, row), first in zip(known, firsts, strict=True):
        each = np.array(row.get("itl_s") or [row.get("tpot_s") or 0.0])
        tokens = 1 if row.get("itl_s") else max(0, (row.get("output_tokens") or 0) - 1)
        end = first + np.cumsum(each * tokens)
        before = np.searchsorted(starts, end - each / 2)
        read = (before > 0) & (ends[before - 1] > end - each * (tokens - 0.5))
        alone += each[~read & (each * tokens > 0)].tolist()
    return 1e9 * median(alone) if alone else None


def _connector(folder: Path) -> str | None:
    """Class that moves keys and values between the instances of a run."""
    worker = typed.read_if_whole(folder / WORKER_FILE, typed.WorkerJson) or {}
    found: str | None = worker.get("connector")
    return found


def facts_of_run(folder: Path) -> dict[str, Any]:
    """What the folder of a run says of its trace: groups of ranks, the model, the time without a
    profiler, and what moves keys and values.
    """
    known: dict[str, Callable[[Path], Any]] = {
        "parallel": _parallel,
        "model": run_model,
        "without_profiler": _without_profiler,
        "connector": _connector,
    }
    facts = {name: of(folder) for name, of in known.items()} if is_run(folder) else {}
    return {name: values for name, values in facts.items() if values}


def with_facts_of_run(folder: Path, trace: Trace) -> Trace:
    """A trace with the facts that the folder of its run states."""
    return Trace(
        trace.capture.recorded,
        trace.meta | facts_of_run(folder),
        trace.coverage,
        database=trace._database,
    )


def capture(path: Path) -> Path:
    """The timeline of a run: its SQLite export or its folder of traces; any other path is
    returned as it is.
    """
    if not is_run(path):
        return path
    first = next((place for place in (path / SQLITE, path / TRACES) if place.exists()), None)
    if first is None:
        found = f"the run {path.name} has no timeline"
        raise NotCapturedError(
            found, hint="run it in mode torch, nsys or nsys_ncu; if it was interrupted, resume it"
        )
    return first
