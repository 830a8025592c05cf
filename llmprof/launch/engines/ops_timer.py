"""Part of the text for workers: a timer of a model's modules inside the process that runs the model.

The ``forward`` of single modules is wrapped, and only in the steps and layers that are sampled: all others run
unchanged. On a GPU a time is the distance of two CUDA events on the stream of the model, read when the window is over;
on a CPU it is the difference of two readings of the host's clock. PyTorch itself is not changed.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from llmprof.launch.engines.ops_parts import holder_of, layers_of, located, resident_bytes, runs, shapes_of, tensors

_SHARED_BORDER_NS = 25_000
"""If the calls of two layers follow each other this fast on the host, no kernel was launched between them, since a
launch takes longer: the two layers then share a border."""
_Wrap = tuple[dict[str, Any], Callable[..., Any]]
_MOST_EVENTS = 32768
_POOLED_STEPS = 120
_ANCHORS = 8

ACTIVE: list[OpsTimer] = []
"""The timer of this process while its window is open; ``llmprof.ops.time`` looks here."""


class OpsTimer:
    """Times modules, functions and collectives of one process.

    Parameters
    ----------
    torch : module
        PyTorch.
    root : torch.nn.Module
        The model.
    options : mapping
        They override :data:`DEFAULTS`; their meaning is that of ``ops_options`` in a configuration.
    cuda : bool
        Whether the model is on a GPU.
    rank : int
        For the file.
    """

    def __init__(self, torch: Any, root: Any, options: Mapping[str, Any], *, cuda: bool, rank: int = 0) -> None:
        self.torch, self.root, self.cuda, self.rank = torch, root, cuda, rank
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
        self._stack: list[str] = []
        self._restore: list[tuple[dict[str, Any], Any]] = []
        self._undo: list[Callable[[], None]] = []
        self._border: tuple[Any, int] = (None, 0)
        self._by_events = False
        self._known: dict[int, list[list[int]]] = {}
        self.known_shapes: dict[str, dict[int, list[list[int]]]] = {}
        self._pool: list[Any] = []
        self._stream: Any = None
        self._mode: Any = None
        self._open: list[Any] | None = None
        self._metrics = {name: located(where) for name, where in self.options["metrics"].items()}
        self.layer_path, self.layers = layers_of(root)
        if not self.layers:
            self.notes.append(
                f"{type(root).__name__} has no stack of layers, so its modules are timed by their depth, without layers"
            )
        simple = self.options["memory"] != "operators" and not self._metrics and not self.options["functional"]
        self._simple = simple
        self._outside, self._inside = self._modules_outside(), self._modules_inside()
        self._layer_wraps = {
            detail: {number: self._timed_layer(number, one, detail=detail) for number, one in self.layers.items()}
            for detail in (False, True)
        }
        self._marks_a_step = self._expected_marks()
        self.epoch_ns = time.time_ns() - time.perf_counter_ns()
        self.anchors: list[tuple[Any, int, int]] = []
        self._hold_cycles = 0
        if cuda:
            self._record = torch.cuda.Event.__mro__[1].record
            self.anchor()

    # --- the window -----------------------------------------------------------------------------------------------

    def begin_step(self, label: str, phase: str) -> None:
        """Begin a step of the engine: decide whether it is timed, and how."""
        self.end_step()
        self.step += 1
        method, layers, held = self._plan()
        now = time.perf_counter_ns()
        self.entries.append((now, phase, method if method == "none" else f"{method}{'+hold' if held else ''}"))
        if method == "none":
            return
        self.timed += 1
        self.method, self.timing, self.detail = method, True, True
        self._by_events = self.cuda and method == "events"
        self._border = (None, 0)
        self._known = self.known_shapes.setdefault(label, {})
        if self.cuda:
            self._stream = self.torch.cuda.current_stream()
        while self._by_events and len(self._pool) < self._marks_a_step:
            self._pool.append(self._event())
        before = self._memory() if self.options["memory"] != "off" else None
        self._install(self._outside)
        for number in self.layers:
            detail = number in layers
            self._install([self._layer_wraps[detail][number]])
            if detail:
                self._install(self._inside.get(number, ()))
        for name, where in self.options["functions"].items():
            self._wrap_function(name, where)
        if held:
            self._install([(self.root.__dict__, self._held(self.root.forward))])
        self._open = [self.step, label, phase, method, held, self._mark(), None, now, None, before, None, layers]
        ACTIVE[:] = [self]

    def end_step(self) -> None:
        """End the step: remove the wrappers and keep the time of its end."""
        if self._open is None:
            return
        row, self._open = self._open, None
        row[6], row[8] = self._mark(), time.perf_counter_ns()
        row[10] = self._memory() if self.options["memory"] != "off" else None
        self.steps.append(tuple(row))
        while self._undo:
            self._undo.pop()()
        while self._restore:
            own, was = self._restore.pop()
            if was is None:
                own.pop("forward", None)
            else:
                own["forward"] = was
        self.timing = self.detail = False
        self.layer = None
        ACTIVE.clear()

    @property
    def done(self) -> bool:
        """Whether all steps that were asked for were timed."""
        return self.timed >= self.options["steps"] and not self.options["cycle"]

    def _plan(self) -> tuple[str, list[int], bool]:
        """Method of this step, the layers whose operators are timed, and whether the device is held first."""
        options, own = self.options, sorted(self.layers)
        if options["cycle"]:
            at = self.step % sum(count for _, count in options["cycle"])
            turn = [method for method, count in options["cycle"] for _ in range(count)][at]
            method, _, more = turn.partition("+")
            held = more == "hold"
        else:
            method = "none" if self.done or self.step % options["every"] else options["method"]
            held = bool(options["hold"])
        if method == "none" or not own:
            return method, [], held and self.cuda
        wanted = options["operator_layers"]
        count = len(own) if wanted == 0 else min(max(wanted, 0), len(own))
        first = (self.timed * count) % len(own)
        chosen = [own[(first + i) % len(own)] for i in range(count)]
        return method, sorted(chosen), held and self.cuda

    # --- what is wrapped ------------------------------------------------------------------------------------------

    def _modules_outside(self) -> list[_Wrap]:
        """Wrappers of the modules outside of the layers, to the layers' or the option's depth, and of the model."""
        prefix = f"{self.layer_path}." if self.layers else None
        depth = self.layer_path.count(".") + 1 if self.layers else self.options["depth"]
        outside = []
        for name, module in self.root.named_modules():
            inside = prefix is not None and (name.startswith(prefix) or self.layer_path.startswith(f"{name}."))
            if name and not inside and name != self.layer_path and name.count(".") < max(1, depth) and runs(module):
                outside.append(self._timed(module, {None: self._number(name, "module")}))
        return [*outside, self._timed(self.root, {None: self._number(type(self.root).__name__, "model")})]

    def _modules_inside(self) -> dict[int, list[_Wrap]]:
        """Modules of each layer; a module that several layers share has a name for each of them."""
        shared: dict[int, tuple[Any, dict[int | None, int]]] = {}
        inside: dict[int, list[int]] = {}
        for number, layer in self.layers.items():
            for name, module in layer.named_modules():
                if name and name.count(".") < self.options["depth"] and runs(module):
                    path = f"{self.layer_path}.{number}.{name}"
                    shared.setdefault(id(module), (module, {}))[1][number] = self._number(path, "module")
                    inside.setdefault(number, []).append(id(module))
        wraps = {key: self._timed(module, numbers) for key, (module, numbers) in shared.items()}
        return {number: [wraps[key] for key in keys] for number, keys in inside.items()}

    def _install(self, wraps: Sequence[_Wrap]) -> None:
        """Replace the forward of single modules by wrappers, which is quick and changes no other object."""
        for own, forward in wraps:
            was = own.get("forward")
            if was is not forward:
                self._restore.append((own, was))
                own["forward"] = forward

    def _timed(self, module: Any, numbers: Mapping[int | None, int]) -> _Wrap:
        original, first = module.forward, next(iter(numbers.values()))
        clock, calls = time.perf_counter_ns, self.calls

        def forward(*args: Any, **kwargs: Any) -> Any:
            if not self.detail:
                return original(*args, **kwargs)
            number = numbers.get(self.layer, first)
            if not self._simple:
                return self._call(number, original, args, kwargs)
            host = clock()
            begin = self._mark()
            out = original(*args, **kwargs)
            end = self._mark()
            calls.append((self.step, number, begin, end, host, clock(), None, None, None, None))
            if number not in self._known:
                self._known[number] = shapes_of(args, kwargs)
            return out

        return module.__dict__, forward

    def _call(self, number: int, original: Any, args: Any, kwargs: Any) -> Any:
        memory = self.options["memory"] == "operators"
        before = self._memory() if memory else None
        self._stack.append(self.names[number])
        host = time.perf_counter_ns()
        begin = self._mark()
        try:
            out = original(*args, **kwargs)
            end = self._mark()
        finally:
            self._stack.pop()
        row = (self.step, number, begin, end, host, time.perf_counter_ns(), shapes_of(args, kwargs), before,
               self._memory() if memory else None, self._measured(number, args, out))  # fmt: skip
        self.calls.append(row)
        return out

    def _timed_layer(self, number: int, module: Any, *, detail: bool) -> _Wrap:
        original, name = module.forward, self._number(f"{self.layer_path}.{number}", "layer")
        clock, calls = time.perf_counter_ns, self.calls
        dispatched = detail and self.options["functional"]
        memory = detail and self.options["memory"] == "operators"

        def forward(*args: Any, **kwargs: Any) -> Any:
            host = clock()
            last, at = self._border
            begin = last if host - at < _SHARED_BORDER_NS and last is not None else self._mark()
            before = self._memory() if memory else None
            self.layer, self.detail = number, detail
            try:
                if dispatched:
                    with self._functional():
                        out = original(*args, **kwargs)
                else:
                    out = original(*args, **kwargs)
            finally:
                self.layer, self.detail = None, True
            end = self._mark()
            after = self._memory() if memory else None
            calls.append((self.step, name, begin, end, host, clock(), None, before, after, None))
            if name not in self._known:
                self._known[name] = shapes_of(args, kwargs)
            self._border = (end if self._by_events else None, clock())
            return out

        return module.__dict__, forward

    def _wrap_function(self, name: str, where: str) -> None:
        holder, attribute = holder_of(where)
        original, number = getattr(holder, attribute), self._number(name, "user")

        def function(*args: Any, **kwargs: Any) -> Any:
            return self._call(number, original, args, kwargs) if self.detail else original(*args, **kwargs)

        setattr(holder, attribute, function)
        self._undo.append(lambda: setattr(holder, attribute, original))

    @contextlib.contextmanager
    def named(self, name: str) -> Iterator[None]:
        """Time the block under a name that the user gives."""
        if not self.detail:
            yield
            return
        number = self._number(name, "user")
        host, begin = time.perf_counter_ns(), self._mark()
        yield
        end = self._mark()
        self.calls.append((self.step, number, begin, end, host, time.perf_counter_ns(), None, None, None, None))

    def communicate(self, kind: str, group: str, world: int, original: Any) -> Any:
        """Wrap a collective of a group: its calls are timed in steps whose operators are timed."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.timing:
                return original(*args, **kwargs)
            self.seen[kind] = self.seen.get(kind, 0) + 1
            if not self.detail:
                return original(*args, **kwargs)
            host, begin = time.perf_counter_ns(), self._mark()
            out = original(*args, **kwargs)
            moved = tensors(args) or tensors(kwargs), tensors(out)
            self.communicated(kind, (group, world), (begin, host), moved)
            return out

        return call

    def communicated(
        self, kind: str, group: tuple[str, int], since: tuple[Any, int], moved: tuple[Any, Any], *, waits: bool = False
    ) -> None:
        """Keep one collective that just ended.

        Parameters
        ----------
        kind : str
            What it was.
        group : (str, int)
            Name and ranks of its group.
        since : (object, int)
            Mark and host clock of its begin.
        moved : (list, list)
            Tensors that were sent and got.
        waits : bool
            It was posted earlier, and has been waited for now.
        """
        end = self._mark()
        of = [one for part in moved for one in part]
        counts = [sum(int(one.numel()) for one in part) for part in moved]
        (name, world), (begin, host) = group, since
        self.collectives.append((
            self.step, kind, kind, name, world, begin, end, host, time.perf_counter_ns(),
            str(of[0].dtype).removeprefix("torch.") if of else None, *counts, of[0].element_size() if of else 0, waits,
            self.layer,
        ))  # fmt: skip

    def mark(self) -> Any:
        """Mark a moment of the stream by the method of this step: an event or a time."""
        return self._mark()

    def _mark(self) -> Any:
        if self._by_events:
            event = self._pool.pop() if self._pool else self._event()
            self._record(event, self._stream)
            return event
        if self.cuda:
            self.torch.cuda.synchronize()
        return time.perf_counter_ns()

    def _event(self) -> Any:
        """One new event; the pool is filled before the window, so that it is seldom needed inside."""
        return self.torch.cuda.Event(enable_timing=True)

    def _held(self, original: Any) -> Any:
        def forward(*args: Any, **kwargs: Any) -> Any:
            self.torch.cuda._sleep(self._hold_cycles or 1)
            return original(*args, **kwargs)

        return forward

    @contextlib.contextmanager
    def _functional(self) -> Iterator[None]:
        """Time every operator that PyTorch dispatches inside."""
        if self._mode is None:
            self._mode = _dispatch_mode(self)
        with self._mode:
            yield

    def _memory(self) -> int | None:
        if self.cuda:
            stats = self.torch._C._cuda_memoryStats(self.torch.cuda.current_device())
            return int(stats["allocated_bytes"]["all"]["current"])
        return resident_bytes()

    def _measured(self, number: int, args: Any, out: Any) -> dict[str, float] | None:
        if not self._metrics:
            return None
        return {name: float(measure(self.names[number], args, out)) for name, measure in self._metrics.items()}

    def _number(self, name: str, kind: str) -> int:
        number = self._numbers.get((name, kind))
        if number is None:
            number = self._numbers[name, kind] = len(self.names)
            self.names.append(name)
            self.kinds.append(kind)
        return number

    # --- the clock of the device ----------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Before the window: make events, and measure how long a forward pass has to be held."""
        if not self.cuda:
            return
        stream = self.torch.cuda.current_stream()
        count = min(_MOST_EVENTS, self._marks_a_step * min(self.options["steps"], _POOLED_STEPS))
        self._pool = [self._event() for _ in range(count)]
        for event in self._pool:
            self._record(event, stream)  # the driver makes an event at its first use
        self.torch.cuda.synchronize()
        if self.options["hold"] or any("hold" in method for method, _ in self.options["cycle"]):
            begin, end = self._event(), self._event()
            self.torch.cuda._sleep(1000)
            begin.record()
            self.torch.cuda._sleep(10_000_000)
            end.record()
            end.synchronize()
            self._hold_cycles = int(10_000_000 / begin.elapsed_time(end) * self.options["hold_ms"])

    def _expected_marks(self) -> int:
        """Marks that a timed step is likely to need, so that events are made before it and not inside."""
        wanted = self.options["operator_layers"]
        detailed = len(self.layers) if wanted == 0 else min(max(0, wanted), len(self.layers))
        below = max((len(one) for one in self._inside.values()), default=0) + 4
        return 4 + 2 * (len(self._outside) + len(self.layers) + detailed * below)

    def anchor(self) -> None:
        """An event whose time on the host's clock is known; the best of several attempts."""
        tries = []
        for _ in range(_ANCHORS):
            self.torch.cuda.synchronize()
            event = self._event()
            before = time.perf_counter_ns()
            event.record()
            event.synchronize()
            after = time.perf_counter_ns()
            tries.append((after - before, event, (before + after) // 2))
        width, event, at = min(tries, key=lambda one: one[0])
        self.anchors.append((event, at, width))

    def host_times(self, marks: Sequence[tuple[int, Any]]) -> dict[int, int]:
        """Times of marks on the host's clock (ns). Events are converted through a mark of their own step."""
        out: dict[int, int] = {}
        first = self.anchors[0] if self.anchors else None
        near: dict[int, tuple[Any, int]] = {}
        for step, mark in marks:
            if isinstance(mark, int):
                out[id(mark)] = mark
                continue
            assert first is not None  # noqa: S101 (events exist on a GPU only)
            if step not in near:
                near[step] = mark, first[1] + round(first[0].elapsed_time(mark) * 1e6)
            other, at = near[step]
            out[id(mark)] = at + round(other.elapsed_time(mark) * 1e6)
        return out


DEFAULTS: dict[str, Any] = {
    "steps": 20, "every": 1, "operator_layers": 2, "depth": 3, "method": "events", "cycle": [], "hold": False,
    "hold_ms": 20.0, "functional": False, "memory": "steps", "functions": {}, "metrics": {},
}  # fmt: skip
"""Options of a timer that was given none."""


def _dispatch_mode(timer: OpsTimer) -> Any:
    base: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode

    class Mode(base):  # type: ignore[misc]
        """Times every operator that is dispatched."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = "::".join(str(func).split(".")[:2])
            around = timer._stack[-1] if timer._stack else f"{timer.layer_path}.{timer.layer}"
            number = timer._number(f"{around}/{name}", "functional")
            return timer._call(number, func, args, kwargs or {})

    return Mode()
