"""Part of the text for workers: functions of the timer of operators that look at models, arguments and times."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

FORMAT = "llmprof-ops"
FORMAT_VERSION = 1
_CALL = (
    "step", "name", "start", "end", "host_start_ns", "host_end_ns", "shapes", "bytes_before", "bytes_after", "values",
)  # fmt: skip
_COLLECTIVE = (
    "step", "name", "kind", "group", "world", "start", "end", "host_start_ns", "host_end_ns", "dtype", "in_elements",
    "out_elements", "element_bytes", "waits", "layer",
)  # fmt: skip
_STEP = (
    "step", "label", "phase", "method", "held", "start", "end", "host_start_ns", "host_end_ns", "bytes_before",
    "bytes_after", "layers",
)  # fmt: skip


def layers_of(root: Any) -> tuple[str, dict[int, Any]]:
    """The layers of a model: the children of the module list with the most parameters."""
    best: tuple[int, int, str, dict[int, Any]] = (0, 0, "", {})
    for path, module in root.named_modules():
        if not type(module).__name__.endswith("ModuleList") or not path:
            continue
        children = {
            number: child
            for number, (_, child) in enumerate(module.named_children())
            if "Missing" not in type(child).__name__
        }
        weight = sum(int(p.numel()) for child in children.values() for p in child.parameters())
        if children and (weight, len(children)) > best[:2]:
            best = (weight, len(children), path, children)
    return best[2], best[3]


def runs(module: Any) -> bool:
    """Whether a module computes something: lists of modules and placeholders for other pipeline stages do not."""
    name = type(module).__name__
    return not name.endswith(("ModuleList", "ModuleDict", "Identity")) and "Missing" not in name


def located(where: str) -> Any:
    """The object with a name like ``module:attribute``."""
    holder, attribute = holder_of(where)
    return getattr(holder, attribute)


def holder_of(where: str) -> tuple[Any, str]:
    """For ``module:a.b.c``: the object ``a.b`` that has the attribute, and the attribute's name ``c``."""
    module, _, path = where.partition(":")
    holder = importlib.import_module(module)
    *above, last = path.split(".")
    for name in above:
        holder = getattr(holder, name)
    return holder, last


def tensors(value: Any) -> list[Any]:
    """Tensors in an argument or a result, also those inside lists, tuples and mappings."""
    if hasattr(value, "numel") and hasattr(value, "element_size"):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [tensor for item in value for tensor in tensors(item)] if isinstance(value, list | tuple) else []


def shapes_of(args: Any, kwargs: Any) -> list[list[int]]:
    """Shapes of the tensors among the arguments."""
    shapes = [list(argument.shape) for argument in args if hasattr(argument, "shape")]
    return shapes + [list(argument.shape) for argument in kwargs.values() if hasattr(argument, "shape")]


def resident_bytes() -> int | None:
    """Resident memory of this process in bytes; None if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 (quicker inside a step)
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


class Live:
    """State of the timer that changes from call to call of a step."""

    __slots__ = ("at", "between_ns", "known", "limit", "mark", "nothing_ns", "step", "stream")

    def __init__(self) -> None:
        self.mark: Any = None
        self.at = self.nothing_ns = self.between_ns = self.limit = self.step = 0
        self.stream: Any = None
        self.known: dict[int, list[list[int]]] = {}


def quick_forward(
    timer: Any, original: Any, numbers: Mapping[int | None, int], *, layer: int | None = None, detail: bool = True
) -> Callable[..., Any]:
    """Wrap a forward so that events time it; each line of the wrapper lengthens the step, so it keeps only shapes."""
    clock, live, pool, record = time.perf_counter_ns, timer.live, timer.pool, timer.record
    keep, first, several = timer.calls.append, next(iter(numbers.values())), len(numbers) > 1

    def forward(*args: Any, **kwargs: Any) -> Any:
        number = first
        if several:
            if not timer.detail:
                return original(*args, **kwargs)
            number = numbers.get(timer.layer, first)
        host = clock()
        if host - live.at < live.limit:
            begin = live.mark
            live.at = host
        else:
            begin = live.mark = pool.pop() if pool else timer.event()
            record(begin, live.stream)
            live.at = clock()
        live.limit = live.nothing_ns
        if layer is not None:
            timer.layer, timer.detail = layer, detail
        out = original(*args, **kwargs)
        now = clock()
        if layer is not None:
            timer.layer, timer.detail = None, True
        if now - live.at < live.nothing_ns:
            end = live.mark
        else:
            end = live.mark = pool.pop() if pool else timer.event()
            record(end, live.stream)
        keep((live.step, number, begin, end, host, now))
        if number not in live.known:
            live.known[number] = shapes_of(args, kwargs)
        live.limit = live.nothing_ns if layer is None else live.between_ns
        live.at = clock()
        return out

    return forward


def passed_forward(timer: Any, original: Any) -> Callable[..., Any]:
    """Wrap the forward of a layer that is not sampled in this step: nothing inside it is timed."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        timer.detail = False
        out = original(*args, **kwargs)
        timer.detail = True
        return out

    return forward


def whole_forward(
    timer: Any, original: Any, numbers: Mapping[int | None, int], *, layer: int | None = None, detail: bool = True
) -> Callable[..., Any]:
    """Wrap a forward so that it is timed by any method, with all options; parameters as of :func:`quick_forward`."""
    first = next(iter(numbers.values()))

    def forward(*args: Any, **kwargs: Any) -> Any:
        if layer is None:
            if not timer.detail:
                return original(*args, **kwargs)
            return timer.call(numbers.get(timer.layer, first), original, args, kwargs)
        timer.layer, timer.detail = layer, detail
        inner = timer.functional() if detail and timer.options["functional"] else contextlib.nullcontext()

        def inside(*args: Any, **kwargs: Any) -> Any:
            with inner:
                return original(*args, **kwargs)

        try:
            return timer.call(first, inside, args, kwargs)
        finally:
            timer.layer, timer.detail = None, True

    return forward


def dispatch_mode(timer: Any) -> Any:
    """A ``TorchDispatchMode`` that times every operator which PyTorch dispatches inside it."""
    base: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode

    class Mode(base):  # type: ignore[misc]
        """Times every operator that is dispatched."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = "::".join(str(func).split(".")[:2])
            around = timer._stack[-1] if timer._stack else f"{timer.layer_path}.{timer.layer}"
            number = timer.number(f"{around}/{name}", "functional")
            return timer.call(number, func, args, kwargs or {})

    return Mode()


def overhead(entries: Sequence[tuple[int, str, str]], skip: int = 1) -> dict[str, dict[str, float]]:
    """Time from one decode step to the next, for each method of timing."""
    times: dict[str, list[int]] = {}
    steps_since_change = 0
    for i in range(len(entries) - 1):
        (began_ns, phase, method), (next_began_ns, next_phase, _) = entries[i], entries[i + 1]
        steps_since_change = steps_since_change + 1 if i and entries[i - 1][2] == method else 0
        if phase == next_phase == "decode" and steps_since_change >= skip:
            times.setdefault(method, []).append(next_began_ns - began_ns)
    return {
        method: {
            "steps": len(intervals),
            "median_ns": statistics.median(intervals),
            "mean_ns": statistics.fmean(intervals),
        }
        for method, intervals in times.items()
    }


def result_of(timer: Any) -> dict[str, Any]:
    """The measurements of a timer, as plain data for JSON."""
    timer.end_step()
    drift = None
    if timer.cuda:
        timer.torch.cuda.synchronize()
        timer.anchor()
        (one, at_ns, _), (two, later, _) = timer.anchors[0], timer.anchors[-1]
        drift = round(one.elapsed_time(two) * 1e6) - (later - at_ns)
    marks = [(row[0], row[5]) for row in timer.steps] + [(row[0], row[6]) for row in timer.steps]
    marks += [(row[0], mark) for row in timer.calls for mark in row[2:4]]
    marks += [(row[0], mark) for row in timer.collectives for mark in row[5:7]]
    ns = timer.host_times(marks)
    labels = {row[0]: row[1] for row in timer.steps}
    tables = {}
    for table, keys, rows in (
        ("steps", _STEP, timer.steps), ("calls", _CALL, timer.calls), ("collectives", _COLLECTIVE, timer.collectives),
    ):  # fmt: skip
        # rows of quick_forward are shorter: they have only the first columns
        columns = {key: [row[i] if i < len(row) else None for row in rows] for i, key in enumerate(keys)}
        if table == "calls":
            columns["shapes"] = [
                own if own is not None else timer.known_shapes.get(labels.get(step, ""), {}).get(name)
                for own, step, name in zip(columns["shapes"], columns["step"], columns["name"])  # noqa: B905
            ]
        for key in ("start", "end"):
            columns[f"{key}_ns"] = [ns[id(mark)] + timer.epoch_ns for mark in columns.pop(key)]
        for key in ("host_start_ns", "host_end_ns"):
            columns[key] = [value + timer.epoch_ns for value in columns[key]]
        tables[table] = columns
    return {
        "format": FORMAT, "version": FORMAT_VERSION, "rank": timer.rank,
        "platform": "cuda" if timer.cuda else "cpu",
        "device": timer.torch.cuda.get_device_name() if timer.cuda else None,
        "clock": "CUDA events" if timer.cuda else "perf_counter of the host",
        "quickest_launch_ns": timer.launch_ns or None,
        "clock_uncertainty_ns": max((one[2] for one in timer.anchors), default=0), "clock_drift_ns": drift,
        "torch": str(timer.torch.__version__), "model": type(timer.root).__name__, "layer_path": timer.layer_path,
        "layers": sorted(timer.layers), "options": {k: v for k, v in timer.options.items() if k != "folder"},
        "names": timer.names, "kinds": timer.kinds, "collectives_seen": timer.seen, "notes": timer.notes,
        "entries": {
            "at_ns": [at_ns + timer.epoch_ns for at_ns, _, _ in timer.entries],
            "phase": [phase for _, phase, _ in timer.entries], "method": [how for _, _, how in timer.entries],
        },
        **tables,
    }  # fmt: skip


def write(folder: Path, result: Mapping[str, Any]) -> Path:
    """Write the result of :func:`result_of` to a file, which appears complete or not at all; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"ops_rank{result['rank']}.json.gz"
    part = folder / f".{path.name}.{os.getpid()}"
    with gzip.open(part, "wt", encoding="utf-8", compresslevel=6) as file:
        json.dump(result, file, separators=(",", ":"))
    part.replace(path)
    return path
