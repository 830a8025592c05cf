"""Of the workers of an engine: times the modules of a model inside the process that runs it.

The timer wraps the ``forward`` of modules, but only in the steps and layers that it samples; all
others run unchanged, and so does PyTorch. On a GPU a time is the difference of two CUDA events on
the model's stream, which are read after the window; on a CPU it is the difference of two readings
of the host's clock.

An eager decode step is as long as the host takes, so each event lengthens it by the time to record
one. Therefore events are shared: if the host comes back sooner than it takes to launch any kernel,
nothing was launched since the last event, and that event is used again. One event can then be the
end of an operator, the end of the module around it, and the begin of the next operator.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .device_clock import DeviceClock

FORMAT = "llmprof-ops"
FORMAT_VERSION = 1
_CALL = (
    "step",
    "name",
    "start",
    "end",
    "host_start_ns",
    "host_end_ns",
    "shapes",
    "bytes_before",
    "bytes_after",
    "values",
)
_COLLECTIVE = (
    "step",
    "name",
    "kind",
    "group",
    "world",
    "start",
    "end",
    "host_start_ns",
    "host_end_ns",
    "dtype",
    "in_elements",
    "out_elements",
    "element_bytes",
    "waits",
    "layer",
)
_STEP = (
    "step",
    "label",
    "phase",
    "method",
    "held",
    "start",
    "end",
    "host_start_ns",
    "host_end_ns",
    "bytes_before",
    "bytes_after",
    "layers",
)


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


def is_computing(module: Any) -> bool:
    """Whether a module computes something: lists of modules and placeholders for other pipeline
    stages do not.
    """
    name = type(module).__name__
    return not name.endswith(("ModuleList", "ModuleDict", "Identity")) and "Missing" not in name


def holder_of(where: str) -> tuple[Any, str]:
    """For ``module:a.b.c``: the object ``a.b`` that has the attribute, and the attribute's name
    ``c``.
    """
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
    return (
        [tensor for item in value for tensor in tensors(item)]
        if isinstance(value, list | tuple)
        else []
    )


def shapes_of(args: Any, kwargs: Any) -> list[list[int]]:
    """Shapes of the tensors among the arguments."""
    shapes = [list(argument.shape) for argument in args if hasattr(argument, "shape")]
    return shapes + [
        list(argument.shape) for argument in kwargs.values() if hasattr(argument, "shape")
    ]


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
    timer: Any,
    original: Any,
    numbers: Mapping[int | None, int],
    *,
    layer: int | None = None,
    detail: bool = True,
) -> Callable[..., Any]:
    """Wrap a forward so that events time it; each line of the wrapper lengthens the step, so it
    keeps only shapes.
    """
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
            begin = live.mark = pool.pop() if pool else timer.clock.event()
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
            end = live.mark = pool.pop() if pool else timer.clock.event()
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
    timer: Any,
    original: Any,
    numbers: Mapping[int | None, int],
    *,
    layer: int | None = None,
    detail: bool = True,
) -> Callable[..., Any]:
    """Wrap a forward so that it is timed by any method, with all options; parameters as of
    :func:`quick_forward`.
    """
    first = next(iter(numbers.values()))

    def forward(*args: Any, **kwargs: Any) -> Any:
        if layer is None:
            if not timer.detail:
                return original(*args, **kwargs)
            return timer.call(numbers.get(timer.layer, first), original, args, kwargs)
        timer.layer, timer.detail = layer, detail
        inner = (
            timer.functional()
            if detail and timer.options["functional"]
            else contextlib.nullcontext()
        )

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

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = "::".join(str(func).split(".")[:2])
            around = timer._stack[-1] if timer._stack else f"{timer.layer_path}.{timer.layer}"
            return timer.call(
                timer.number(f"{around}/{name}", "functional"), func, args, kwargs or {}
            )

    return Mode()


def result_of(timer: Any) -> dict[str, Any]:
    """The measurements of a timer, as plain data for JSON."""
    timer.end_step()
    drift = timer.clock.drift_ns() if timer.cuda else None
    marks = [(row[0], row[5]) for row in timer.steps] + [(row[0], row[6]) for row in timer.steps]
    marks += [(row[0], mark) for row in timer.calls for mark in row[2:4]]
    marks += [(row[0], mark) for row in timer.collectives for mark in row[5:7]]
    ns = timer.clock.host_times(marks)
    labels = {row[0]: row[1] for row in timer.steps}
    tables = {}
    for table, keys, rows in (
        ("steps", _STEP, timer.steps),
        ("calls", _CALL, timer.calls),
        ("collectives", _COLLECTIVE, timer.collectives),
    ):
        # rows of quick_forward are shorter: they have only the first columns
        columns = {
            key: [row[i] if i < len(row) else None for row in rows] for i, key in enumerate(keys)
        }
        if table == "calls":
            columns["shapes"] = [
                (
                    own
                    if own is not None
                    else timer.known_shapes.get(labels.get(step, ""), {}).get(name)
                )
                for own, step, name in zip(columns["shapes"], columns["step"], columns["name"])  # noqa: B905
            ]
        for key in ("start", "end"):
            columns[f"{key}_ns"] = [ns[id(mark)] + timer.epoch_ns for mark in columns.pop(key)]
        for key in ("host_start_ns", "host_end_ns"):
            columns[key] = [value + timer.epoch_ns for value in columns[key]]
        tables[table] = columns
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "rank": timer.rank,
        "platform": "cuda" if timer.cuda else "cpu",
        "device": timer.torch.cuda.get_device_name() if timer.cuda else None,
        "clock": "CUDA events" if timer.cuda else "perf_counter of the host",
        "quickest_launch_ns": timer.launch_ns or None,
        "clock_uncertainty_ns": max((one[2] for one in timer.clock.anchors), default=0),
        "clock_drift_ns": drift,
        "torch": str(timer.torch.__version__),
        "model": type(timer.root).__name__,
        "layer_path": timer.layer_path,
        "layers": sorted(timer.layers),
        "options": {k: v for k, v in timer.options.items() if k != "folder"},
        "names": timer.names,
        "kinds": timer.kinds,
        "collectives_seen": timer.seen,
        "notes": timer.notes,
        "entries": {
            "at_ns": [at_ns + timer.epoch_ns for at_ns, _, _ in timer.entries],
            "phase": [phase for _, phase, _ in timer.entries],
            "method": [how for _, _, how in timer.entries],
        },
        **tables,
    }


def write(folder: Path, result: Mapping[str, Any]) -> Path:
    """Write the result of :func:`result_of` to a file, which appears complete or not at all;
    returns its path.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"ops_rank{result['rank']}.json.gz"
    part = folder / f".{path.name}.{os.getpid()}"
    with gzip.open(part, "wt", encoding="utf-8", compresslevel=6) as file:
        json.dump(result, file, separators=(",", ":"))
    part.replace(path)
    return path


_NO_LAUNCH = 0.75
"""Share of the shortest time between two launches: if the host comes back sooner, it launched
nothing.
"""
_MEMORY_STEPS = 10
"""Steps between two readings of the allocator: a reading costs as much as many marks, and decode
changes little.
"""
_Wrap = tuple[dict[str, Any], Callable[..., Any]]
_Wraps = tuple[list[_Wrap], dict[bool, dict[int, _Wrap]], dict[int, list[_Wrap]], dict[int, _Wrap]]
_BETWEEN_LAYERS_NS = 25_000
"""A layer begins where the one before it ended, unless the host took longer than this between
the two.
"""
_MOST_EVENTS = 32768
_POOLED_STEPS = 120

ACTIVE: list[OpsTimer] = []
"""The timer of this process during a timed step; ``ops.time`` looks here."""


class OpsTimer:
    """Times modules, functions and collectives of one process."""

    def __init__(
        self, torch: Any, root: Any, options: Mapping[str, Any], *, cuda: bool, rank: int = 0
    ) -> None:
        self.torch, self.root, self.cuda, self.rank = torch, root, cuda, rank
        self.clock = DeviceClock(torch, cuda=cuda)
        self.options = {**DEFAULTS, **options}
        self.names: list[str] = []
        self.kinds: list[str] = []
        self._numbers: dict[tuple[str, str], int] = {}
        self.notes: list[str] = []
        self.calls: list[tuple[Any, ...]] = []
        self.collectives: list[tuple[Any, ...]] = []
        self.steps: list[tuple[Any, ...]] = []
        self.entries: list[tuple[int, str, str]] = []
        self.seen: dict[str, int] = {}
        self.step = -1
        self.timed = 0
        self.timing = self.detail = False
        self.layer: int | None = None
        self.method = "none"
        self.live = Live()
        self._stack: list[str] = []
        self._restore: list[tuple[dict[str, Any], Any]] = []
        self._undo: list[Callable[[], None]] = []
        self.by_events = False
        self.known_shapes: dict[str, dict[int, list[list[int]]]] = {}
        self.pool: list[Any] = []
        self._memory_at: int | None = None
        self._mode: Any = None
        self._open: list[Any] | None = None
        self._metrics = {
            name: getattr(*holder_of(where)) for name, where in self.options["metrics"].items()
        }
        self.layer_path, self.layers = layers_of(root)
        if not self.layers:
            self.notes.append(
                f"{type(root).__name__} has no stack of layers, so its modules are timed by their"
                " depth, without layers"
            )
        self._plain = (
            self.options["memory"] != "operators"
            and not self._metrics
            and not self.options["functional"]
        )
        self._turns = [method for method, count in self.options["cycle"] for _ in range(count)]
        self._shuffled = all(count == 1 for _, count in self.options["cycle"])
        self._own = sorted(self.layers)
        self.epoch_ns = time.time_ns() - time.perf_counter_ns()
        self.launch_ns = self._hold_cycles = 0
        self._device, self._stream = 0, None
        self._stream_at: int | None = None
        self._stream_number: Callable[[int], int] | None = None
        if cuda:
            self._device = torch.cuda.current_device()
            self._stream_number = getattr(torch._C, "_cuda_getCurrentRawStream", None)
            self.live.between_ns = _BETWEEN_LAYERS_NS
            self.record = torch.cuda.Event.__mro__[1].record
            self.clock.anchor()
        self._wraps = {
            quick: self._wrapped(quick=quick) for quick in ((True, False) if cuda else (False,))
        }
        self._marks_a_step = self._expected_marks()

    # --- the window
    # -----------------------------------------------------------------------------------------------  # noqa: E501

    def begin_step(self, label: str, phase: str) -> None:
        """Begin a step of the engine: decide whether it is timed, and how."""
        self.end_step()
        self.step += 1
        method, timed, layers, held = self._plan()
        now = time.perf_counter_ns()
        self.entries.append(
            (now, phase, method if method == "none" else f"{method}{'+hold' if held else ''}")
        )
        if method == "none":
            return
        self.timed += 1
        self.method, self.timing, self.detail = method, True, True
        self.by_events = self.cuda and method.startswith("events")
        live, new = self.live, label not in self.known_shapes
        live.at, live.limit, live.step = 0, 0, self.step
        live.known = self.known_shapes.setdefault(label, {})
        if self.cuda:
            number = self._stream_number(self._device) if self._stream_number is not None else None
            if number is None or number != self._stream_at:
                self._stream_at, self._stream = number, self.torch.cuda.current_stream()
            live.stream = self._stream
        while self.by_events and len(self.pool) < self._marks_a_step:
            self.pool.append(self.clock.event())
        before = self._memory() if self._memory_now(new=new) else None
        self._wrap(timed, layers)
        if held:
            self._install([(self.root.__dict__, self._held(self.root.forward))])
        self._open = [
            self.step,
            label,
            phase,
            method,
            held,
            self.mark(),
            None,
            now,
            None,
            before,
            None,
            layers,
        ]
        ACTIVE[:] = [self]

    def _memory_now(self, *, new: bool) -> bool:
        """Whether memory is read around this step; by default the first with a label, then one
        of several.
        """
        if self.options["memory"] != "steps":
            return bool(self.options["memory"] != "off")
        if not new and self._memory_at is not None and self.step - self._memory_at < _MEMORY_STEPS:
            return False
        self._memory_at = self.step
        return True

    def _wrap(self, timed: Sequence[int], layers: Sequence[int]) -> None:
        """Install the wrappers of a step for the layers ``timed``, and for operators in those of
        them in ``layers``.
        """
        outside, of_layers, inside, passed = self._wraps[self.by_events and self._plain]
        self._install(outside)
        for number in self._own:
            if number not in timed:
                self._install([passed[number]])
                continue
            detail = number in layers
            self._install([of_layers[detail][number]])
            if detail:
                self._install(inside.get(number, ()))
        for name, where in self.options["functions"].items():
            self._wrap_function(name, where)

    def end_step(self) -> None:
        """End the step: remove the wrappers and keep the time of its end."""
        if self._open is None:
            return
        row, self._open = self._open, None
        row[6], row[8] = self.mark(), time.perf_counter_ns()
        row[10] = self._memory() if row[9] is not None else None
        self.steps.append(tuple(row))
        while self._undo:
            self._undo.pop()()
        while self._restore:
            attributes, was = self._restore.pop()
            if was is None:
                attributes.pop("forward", None)
            else:
                attributes["forward"] = was
        self.timing = self.detail = False
        self.layer = None
        ACTIVE.clear()

    @property
    def done(self) -> bool:
        """Whether the requested number of steps has been timed."""
        return self.timed >= self.options["steps"] and not self.options["cycle"]

    def _plan(self) -> tuple[str, list[int], list[int], bool]:
        """Method of this step, its timed layers, those among them with timed operators, and
        whether it is held.
        """
        options, own = self.options, self._own
        if self._turns:
            position = self.step % len(self._turns)
            if self._shuffled and not position:
                # Shuffle: work that the engine does every second or sixteenth step must not always
                # meet one method.
                random.Random(self.step).shuffle(self._turns)  # noqa: S311 (no secret)
            method, _, more = self._turns[position].partition("+")
            held = more == "hold"
        else:
            method = "none" if self.done or self.step % options["every"] else options["method"]
            held = bool(options["hold"])
        if method == "none" or not own:
            return method, [], [], held and self.cuda
        detailed = _some(own, options["operator_layers"], self.timed, 0)
        first = own.index(detailed[0]) if detailed else self.timed * max(1, options["layers"])
        timed = _some(own, options["layers"], 0, first)
        return method, sorted({*timed, *detailed}), sorted(detailed), held and self.cuda

    # --- wrappers
    # -------------------------------------------------------------------------------------------------  # noqa: E501

    def _wrapped(self, *, quick: bool) -> _Wraps:
        """All wrappers: of modules outside the layers, of layers (without and with timed
        operators), of modules inside the layers, and of layers that are not timed.
        """
        make = quick_forward if quick else whole_forward

        def wrap(module: Any, numbers: Mapping[int | None, int], **of_layer: Any) -> _Wrap:
            return module.__dict__, make(self, module.forward, numbers, **of_layer)

        prefix = f"{self.layer_path}." if self.layers else None
        depth = self.layer_path.count(".") + 1 if self.layers else self.options["depth"]
        outside = []
        for name, module in self.root.named_modules():
            within = prefix is not None and (
                name.startswith(prefix) or self.layer_path.startswith(f"{name}.")
            )
            if (
                name
                and not within
                and name != self.layer_path
                and name.count(".") < max(1, depth)
                and is_computing(module)
            ):
                outside.append(wrap(module, {None: self.number(name, "module")}))
        outside.append(wrap(self.root, {None: self.number(type(self.root).__name__, "model")}))
        shared: dict[int, tuple[Any, dict[int | None, int]]] = {}
        places: dict[int, list[int]] = {}
        for number, layer in self.layers.items():
            for name, module in layer.named_modules():
                if name and name.count(".") < self.options["depth"] and is_computing(module):
                    path = f"{self.layer_path}.{number}.{name}"
                    shared.setdefault(id(module), (module, {}))[1][number] = self.number(
                        path, "module"
                    )
                    places.setdefault(number, []).append(id(module))
        made = {key: wrap(module, numbers) for key, (module, numbers) in shared.items()}
        inside = {number: [made[key] for key in keys] for number, keys in places.items()}
        passed = {
            number: (one.__dict__, passed_forward(self, one.forward))
            for number, one in self.layers.items()
        }
        of_layers: dict[bool, dict[int, _Wrap]] = {False: {}, True: {}}
        for number, layer in self.layers.items():
            names: dict[int | None, int] = {
                None: self.number(f"{self.layer_path}.{number}", "layer")
            }
            for detail, wraps in of_layers.items():
                wraps[number] = wrap(layer, names, layer=number, detail=detail)
        return outside, of_layers, inside, passed

    def _install(self, wraps: Sequence[_Wrap]) -> None:
        """Set wrappers as ``forward`` of single modules, which is quick and changes no other
        object.
        """
        for attributes, forward in wraps:
            was = attributes.get("forward")
            if was is not forward:
                self._restore.append((attributes, was))
                attributes["forward"] = forward

    def call(self, number: int, original: Any, args: Any, kwargs: Any) -> Any:
        """Time one call, with memory and metrics if the options ask for them."""
        memory = self.options["memory"] == "operators"
        before = self._memory() if memory else None
        self._stack.append(self.names[number])
        host = time.perf_counter_ns()
        begin = self.mark()
        try:
            out = original(*args, **kwargs)
            end = self.mark()
        finally:
            self._stack.pop()
        row = (
            self.step,
            number,
            begin,
            end,
            host,
            time.perf_counter_ns(),
            shapes_of(args, kwargs),
            before,
            self._memory() if memory else None,
            self._measured(number, args, out),
        )
        self.calls.append(row)
        return out

    def _wrap_function(self, name: str, where: str) -> None:
        holder, attribute = holder_of(where)
        original, number = getattr(holder, attribute), self.number(name, "user")

        def function(*args: Any, **kwargs: Any) -> Any:
            return (
                self.call(number, original, args, kwargs)
                if self.detail
                else original(*args, **kwargs)
            )

        setattr(holder, attribute, function)
        self._undo.append(lambda: setattr(holder, attribute, original))

    @contextlib.contextmanager
    def named(self, name: str) -> Iterator[None]:
        """Time the block under a name that the user chose."""
        if not self.detail:
            yield
            return
        number = self.number(name, "user")
        host, begin = time.perf_counter_ns(), self.mark()
        yield
        end = self.mark()
        self.calls.append(
            (self.step, number, begin, end, host, time.perf_counter_ns(), None, None, None, None)
        )

    def communicate(self, kind: str, group: str, world: int, original: Any) -> Any:
        """Wrap a collective of a group: its calls are counted in timed steps, and timed where
        operators are timed.
        """

        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.timing:
                return original(*args, **kwargs)
            self.seen[kind] = self.seen.get(kind, 0) + 1
            if not self.detail:
                return original(*args, **kwargs)
            host, begin = self.begin()
            out = original(*args, **kwargs)
            moved = tensors(args) or tensors(kwargs), tensors(out)
            self.communicated(kind, (group, world), (begin, host), moved)
            return out

        return call

    def communicated(
        self,
        kind: str,
        group: tuple[str, int],
        since: tuple[Any, int],
        moved: tuple[Any, Any],
        *,
        waits: bool = False,
    ) -> None:
        """Record one collective that has just ended."""
        end = self.mark()
        self.live.mark, self.live.limit, self.live.at = (
            end,
            self.live.nothing_ns,
            time.perf_counter_ns(),
        )
        both = [tensor for part in moved for tensor in part]
        counts = [sum(int(tensor.numel()) for tensor in part) for part in moved]
        (name, world), (begin, host) = group, since
        self.collectives.append(
            (
                self.step,
                kind,
                kind,
                name,
                world,
                begin,
                end,
                host,
                time.perf_counter_ns(),
                str(both[0].dtype).removeprefix("torch.") if both else None,
                *counts,
                both[0].element_size() if both else 0,
                waits,
                self.layer,
            )
        )

    def mark(self) -> Any:
        """The current moment, by the method of this step: an event on the stream, or the host's
        clock (ns).
        """
        if self.by_events:
            event = self.pool.pop() if self.pool else self.clock.event()
            self.record(event, self.live.stream)
            return event
        self.clock.wait()
        return time.perf_counter_ns()

    def begin(self) -> tuple[int, Any]:
        """The host's clock (ns) and a mark, which is the last one if nothing was launched since."""
        host = time.perf_counter_ns()
        return host, self.live.mark if host - self.live.at < self.live.limit else self.mark()

    def functional(self) -> Any:
        """A context manager in which every operator that PyTorch dispatches is timed."""
        if self._mode is None:
            self._mode = dispatch_mode(self)
        return self._mode

    def _held(self, original: Any) -> Any:
        def forward(*args: Any, **kwargs: Any) -> Any:
            self.torch.cuda._sleep(self._hold_cycles or 1)
            return original(*args, **kwargs)

        return forward

    def _memory(self) -> int | None:
        if self.cuda:
            stats = self.torch._C._cuda_memoryStats(self.torch.cuda.current_device())
            return int(stats["allocated_bytes"]["all"]["current"])
        return resident_bytes()

    def _measured(self, number: int, args: Any, out: Any) -> dict[str, float] | None:
        if not self._metrics:
            return None
        return {
            name: float(measure(self.names[number], args, out))
            for name, measure in self._metrics.items()
        }

    def number(self, name: str, kind: str) -> int:
        """The number that stands for a name and its kind in the rows."""
        number = self._numbers.get((name, kind))
        if number is None:
            number = self._numbers[name, kind] = len(self.names)
            self.names.append(name)
            self.kinds.append(kind)
        return number

    def prepare(self) -> None:
        """Prepare for the window: make events, measure the quickest launch and the cycles that a
        held step waits.
        """
        if not self.cuda:
            return
        stream = self.torch.cuda.current_stream()
        count = min(_MOST_EVENTS, self._marks_a_step * min(self.options["steps"], _POOLED_STEPS))
        self.pool.extend(self.clock.event() for _ in range(count))
        for event in self.pool:
            self.record(event, stream)  # the driver creates an event at its first use
        self.clock.wait()
        self.launch_ns = self.clock.quickest_launch()
        self.live.nothing_ns = int(self.launch_ns * _NO_LAUNCH)
        if self.options["hold"] or any("hold" in method for method, _ in self.options["cycle"]):
            self._hold_cycles = self.clock.cycles(self.options["hold_ms"])

    def _expected_marks(self) -> int:
        """Number of marks that a timed step is likely to need, so that their events are made
        before the step.
        """
        detailed = len(_some(self._own, self.options["operator_layers"], 0, 0))
        outside, _, inside, _ = self._wraps[False]
        below = max((len(modules) for modules in inside.values()), default=0) + 4
        return 4 + 2 * (len(outside) + len(self.layers) + detailed * below)


def _some(own: Sequence[int], most: int, turn: int, first: int) -> list[int]:
    """The next ``most`` layers in turn: 0 means all, a negative number none."""
    count = len(own) if most == 0 else min(max(most, 0), len(own))
    return [own[(first + turn * count + i) % len(own)] for i in range(count)]


DEFAULTS: dict[str, Any] = {
    "steps": 20,
    "every": 1,
    "layers": 8,
    "operator_layers": 1,
    "depth": 3,
    "method": "events",
    "cycle": [],
    "hold": False,
    "hold_ms": 20.0,
    "functional": False,
    "memory": "steps",
    "functions": {},
    "metrics": {},
}
"""Options of a timer by default. A run sets all of them, and by default times every second step."""
