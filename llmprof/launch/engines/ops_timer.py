"""Part of the text for workers: a timer of a model's modules inside the process that runs the model.

Each module's own ``forward`` is wrapped, and only in the steps and layers that are sampled: what is not sampled runs as
it was. On a GPU a time is the distance of two CUDA events on the stream of the model, read when the window is over; on
a CPU it is a clock of the host. PyTorch itself is not changed.

In an eager decode step the host is what everybody waits for, so a mark costs what the host needs to record it. Where
nothing can have been launched since the last mark (the host was back sooner than it takes to launch anything), that
mark serves again: one event is the end of an operator, of what it lies in, and the begin of the next one.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from llmprof.launch.engines.ops_parts import (
    Live,
    dispatch_mode,
    holder_of,
    layers_of,
    located,
    passed_forward,
    quick_forward,
    resident_bytes,
    runs,
    shapes_of,
    tensors,
    whole_forward,
)

_NO_LAUNCH = 0.75
"""Share of the quickest launch after another: a host that is back sooner has launched nothing."""
_LAUNCHES = 200
_MEMORY_STEPS = 10
"""Steps from one reading of the allocator to the next: it costs as much as many marks, and decode changes little."""
_Wrap = tuple[dict[str, Any], Callable[..., Any]]
_Wraps = tuple[list[_Wrap], dict[bool, dict[int, _Wrap]], dict[int, list[_Wrap]], dict[int, _Wrap]]
_BETWEEN_LAYERS_NS = 25_000
"""A layer begins where the one before it ended, unless the host took longer than this in between."""
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
        self._metrics = {name: located(where) for name, where in self.options["metrics"].items()}
        self.layer_path, self.layers = layers_of(root)
        if not self.layers:
            self.notes.append(
                f"{type(root).__name__} has no stack of layers, so its modules are timed by their depth, without layers"
            )
        self._plain = self.options["memory"] != "operators" and not self._metrics and not self.options["functional"]
        self._turns = [method for method, count in self.options["cycle"] for _ in range(count)]
        self._shuffled = all(count == 1 for _, count in self.options["cycle"])
        self._own = sorted(self.layers)
        self.epoch_ns = time.time_ns() - time.perf_counter_ns()
        self.anchors: list[tuple[Any, int, int]] = []
        self.launch_ns = self._hold_cycles = 0
        self._device, self._stream = 0, None
        self._stream_at: int | None = None
        self._stream_number: Callable[[int], int] | None = None
        if cuda:
            self._device = torch.cuda.current_device()
            self._stream_number = getattr(torch._C, "_cuda_getCurrentRawStream", None)
            self.live.between_ns = _BETWEEN_LAYERS_NS
            self.record = torch.cuda.Event.__mro__[1].record
            self.anchor()
        self._wraps = {quick: self._wrapped(quick=quick) for quick in ((True, False) if cuda else (False,))}
        self._marks_a_step = self._expected_marks()

    # --- the window -----------------------------------------------------------------------------------------------

    def begin_step(self, label: str, phase: str) -> None:
        """Begin a step of the engine: decide whether it is timed, and how."""
        self.end_step()
        self.step += 1
        method, timed, layers, held = self._plan()
        now = time.perf_counter_ns()
        self.entries.append((now, phase, method if method == "none" else f"{method}{'+hold' if held else ''}"))
        if method == "none":
            return
        self.timed += 1
        self.method, self.timing, self.detail = method, True, True
        self.by_events = self.cuda and method.startswith("events")
        live, new = self.live, label not in self.known_shapes
        live.at, live.limit, live.step = 0, 0, self.step
        live.known = self.known_shapes.setdefault(label, {})
        if self.cuda:
            live.stream = self._current_stream()
        while self.by_events and len(self.pool) < self._marks_a_step:
            self.pool.append(self.event())
        before = self._memory() if self._memory_now(new=new) else None
        self._wrap(timed, layers)
        if held:
            self._install([(self.root.__dict__, self._held(self.root.forward))])
        self._open = [self.step, label, phase, method, held, self.mark(), None, now, None, before, None, layers]
        ACTIVE[:] = [self]

    def _memory_now(self, *, new: bool) -> bool:
        """Whether the allocator is asked before and after this step: the first of its shape, then one in so many."""
        if self.options["memory"] != "steps":
            return bool(self.options["memory"] != "off")
        if not new and self._memory_at is not None and self.step - self._memory_at < _MEMORY_STEPS:
            return False
        self._memory_at = self.step
        return True

    def _current_stream(self) -> Any:
        """Stream of the model: the last object for it serves as long as it is the same stream."""
        number = self._stream_number(self._device) if self._stream_number is not None else None
        if number is None or number != self._stream_at:
            self._stream_at, self._stream = number, self.torch.cuda.current_stream()
        return self._stream

    def _wrap(self, timed: Sequence[int], layers: Sequence[int]) -> None:
        """Put the wrappers of a step in place: of sampled layers, of the modules of some, and of the other layers."""
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

    def _plan(self) -> tuple[str, list[int], list[int], bool]:
        """Method of this step, layers that are timed, those of them with operators, and whether the device is held."""
        options, own = self.options, self._own
        if self._turns:
            at = self.step % len(self._turns)
            if self._shuffled and not at:
                # what the engine does every second or sixteenth step must not meet the same method each time
                random.Random(self.step).shuffle(self._turns)  # noqa: S311 (no secret)
            method, _, more = self._turns[at].partition("+")
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

    # --- what is wrapped ------------------------------------------------------------------------------------------

    def _wrapped(self, *, quick: bool) -> _Wraps:
        """Wrappers of modules outside the layers, of layers (without and with operators), and of modules inside."""
        make = quick_forward if quick else whole_forward

        def wrap(module: Any, numbers: Mapping[int | None, int], **of_layer: Any) -> _Wrap:
            return module.__dict__, make(self, module.forward, numbers, **of_layer)

        prefix = f"{self.layer_path}." if self.layers else None
        depth = self.layer_path.count(".") + 1 if self.layers else self.options["depth"]
        outside = []
        for name, module in self.root.named_modules():
            within = prefix is not None and (name.startswith(prefix) or self.layer_path.startswith(f"{name}."))
            if name and not within and name != self.layer_path and name.count(".") < max(1, depth) and runs(module):
                outside.append(wrap(module, {None: self.number(name, "module")}))
        outside.append(wrap(self.root, {None: self.number(type(self.root).__name__, "model")}))
        shared: dict[int, tuple[Any, dict[int | None, int]]] = {}
        places: dict[int, list[int]] = {}
        for number, layer in self.layers.items():
            for name, module in layer.named_modules():
                if name and name.count(".") < self.options["depth"] and runs(module):
                    path = f"{self.layer_path}.{number}.{name}"
                    shared.setdefault(id(module), (module, {}))[1][number] = self.number(path, "module")
                    places.setdefault(number, []).append(id(module))
        made = {key: wrap(module, numbers) for key, (module, numbers) in shared.items()}
        inside = {number: [made[key] for key in keys] for number, keys in places.items()}
        passed = {number: (one.__dict__, passed_forward(self, one.forward)) for number, one in self.layers.items()}
        of_layers: dict[bool, dict[int, _Wrap]] = {False: {}, True: {}}
        for number, layer in self.layers.items():
            names: dict[int | None, int] = {None: self.number(f"{self.layer_path}.{number}", "layer")}
            for detail, wraps in of_layers.items():
                wraps[number] = wrap(layer, names, layer=number, detail=detail)
        return outside, of_layers, inside, passed

    def _install(self, wraps: Sequence[_Wrap]) -> None:
        """Replace the forward of single modules by wrappers, which is quick and changes no other object."""
        for own, forward in wraps:
            was = own.get("forward")
            if was is not forward:
                self._restore.append((own, was))
                own["forward"] = forward

    def call(self, number: int, original: Any, args: Any, kwargs: Any) -> Any:
        """Time one call and keep all that the options ask for."""
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
        row = (self.step, number, begin, end, host, time.perf_counter_ns(), shapes_of(args, kwargs), before,
               self._memory() if memory else None, self._measured(number, args, out))  # fmt: skip
        self.calls.append(row)
        return out

    def _wrap_function(self, name: str, where: str) -> None:
        holder, attribute = holder_of(where)
        original, number = getattr(holder, attribute), self.number(name, "user")

        def function(*args: Any, **kwargs: Any) -> Any:
            return self.call(number, original, args, kwargs) if self.detail else original(*args, **kwargs)

        setattr(holder, attribute, function)
        self._undo.append(lambda: setattr(holder, attribute, original))

    @contextlib.contextmanager
    def named(self, name: str) -> Iterator[None]:
        """Time the block under a name that the user gives."""
        if not self.detail:
            yield
            return
        number = self.number(name, "user")
        host, begin = time.perf_counter_ns(), self.mark()
        yield
        end = self.mark()
        self.calls.append((self.step, number, begin, end, host, time.perf_counter_ns(), None, None, None, None))

    def communicate(self, kind: str, group: str, world: int, original: Any) -> Any:
        """Wrap a collective of a group: its calls are timed in steps whose operators are timed."""

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
        end = self.mark()
        self.live.mark, self.live.limit, self.live.at = end, self.live.nothing_ns, time.perf_counter_ns()
        of = [one for part in moved for one in part]
        counts = [sum(int(one.numel()) for one in part) for part in moved]
        (name, world), (begin, host) = group, since
        self.collectives.append((
            self.step, kind, kind, name, world, begin, end, host, time.perf_counter_ns(),
            str(of[0].dtype).removeprefix("torch.") if of else None, *counts, of[0].element_size() if of else 0, waits,
            self.layer,
        ))  # fmt: skip

    def mark(self) -> Any:
        """A moment of the stream, in the way of this step's method."""
        if self.by_events:
            event = self.pool.pop() if self.pool else self.event()
            self.record(event, self.live.stream)
            return event
        if self.cuda:
            self.torch.cuda.synchronize()
        return time.perf_counter_ns()

    def begin(self) -> tuple[int, Any]:
        """The host's clock and a mark: the last one, where nothing was launched since."""
        host = time.perf_counter_ns()
        return host, self.live.mark if host - self.live.at < self.live.limit else self.mark()

    def event(self) -> Any:
        """One new event; the pool is filled before the window, so that it is seldom needed inside."""
        return self.torch.cuda.Event(enable_timing=True)

    def functional(self) -> Any:
        """A context in which every operator that PyTorch dispatches is timed."""
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
        return {name: float(measure(self.names[number], args, out)) for name, measure in self._metrics.items()}

    def number(self, name: str, kind: str) -> int:
        """The number that stands for a name and what it is, in the rows."""
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
        self.pool.extend(self.event() for _ in range(count))
        for event in self.pool:
            self.record(event, stream)  # the driver makes an event at its first use
        self.torch.cuda.synchronize()
        self.launch_ns = self._quickest_launch()
        self.live.nothing_ns = int(self.launch_ns * _NO_LAUNCH)
        if self.options["hold"] or any("hold" in method for method, _ in self.options["cycle"]):
            begin, end = self.event(), self.event()
            self.torch.cuda._sleep(1000)
            begin.record()
            self.torch.cuda._sleep(10_000_000)
            end.record()
            end.synchronize()
            self._hold_cycles = int(10_000_000 / begin.elapsed_time(end) * self.options["hold_ms"])

    def _quickest_launch(self) -> int:
        """What the host needs at least to launch a kernel after another one, in ns, as it does in a step."""
        one, other = self.torch.zeros(1, device="cuda"), self.torch.zeros(1, device="cuda")
        times = []
        for _ in range(_LAUNCHES):
            other.add_(1)
            began = time.perf_counter_ns()
            one.zero_()
            times.append(time.perf_counter_ns() - began)
        self.torch.cuda.synchronize()
        return min(times)

    def _expected_marks(self) -> int:
        """Marks that a timed step is likely to need, so that events are made before it and not inside."""
        detailed = len(_some(self._own, self.options["operator_layers"], 0, 0))
        outside, _, inside, _ = self._wraps[False]
        below = max((len(one) for one in inside.values()), default=0) + 4
        return 4 + 2 * (len(outside) + len(self.layers) + detailed * below)

    def anchor(self) -> None:
        """An event whose time on the host's clock is known; the best of several attempts."""
        tries = []
        for _ in range(_ANCHORS):
            self.torch.cuda.synchronize()
            event = self.event()
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


def _some(own: Sequence[int], wanted: int, turn: int, first: int) -> list[int]:
    """Layers of a turn, one after the other: 0 wants all, less than 0 none."""
    count = len(own) if wanted == 0 else min(max(wanted, 0), len(own))
    return [own[(first + turn * count + i) % len(own)] for i in range(count)]


DEFAULTS: dict[str, Any] = {
    "steps": 20, "every": 1, "layers": 8, "operator_layers": 1, "depth": 3, "method": "events", "cycle": [],
    "hold": False, "hold_ms": 20.0, "functional": False, "memory": "steps", "functions": {}, "metrics": {},
}  # fmt: skip
"""Options of a timer that was given none. A run gives all of them, and times every second step by default."""
