"""The one timer of work on a device: by CUDA events of a GPU, by the host's clock on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

_ANCHORS = 8
_LAUNCHES = 200
_CYCLES = 10_000_000


class DeviceClock:
    """Moments on a device, and the times between them."""

    def __init__(self, torch: Any, *, cuda: bool) -> None:
        self.torch, self.cuda = torch, cuda
        self.anchors: list[tuple[Any, int, int]] = []

    def event(self) -> Any:
        """A new event, whose moment is that at which the device reaches it."""
        return self.torch.cuda.Event(enable_timing=True)

    def wait(self) -> None:
        """Wait for the device."""
        if self.cuda:
            self.torch.cuda.synchronize()

    def times(
        self, calls: Sequence[Callable[[], Any]], before: Callable[[], None] | None = None
    ) -> list[float]:
        """Nanoseconds of each call; ``before`` runs untimed before each.

        A GPU begins after the host has launched all, so that no time of the host is among them.
        """
        if not self.cuda:
            taken = []
            for call in calls:
                if before is not None:
                    before()
                start = time.perf_counter_ns()
                call()
                taken.append(float(time.perf_counter_ns() - start))
            return taken
        pairs = [(self.event(), self.event()) for _ in calls]
        self.wait()
        self.torch.cuda._sleep(2_000_000 + 200_000 * len(calls))
        for (begin, end), call in zip(pairs, calls):  # noqa: B905 (older Pythons)
            if before is not None:
                before()
            begin.record()
            call()
            end.record()
        self.wait()
        return [begin.elapsed_time(end) * 1e6 for begin, end in pairs]

    def cycles(self, ms: float) -> int:
        """Cycles of the device in a time."""
        self.torch.cuda._sleep(1000)
        sleep = self.torch.cuda._sleep
        return int(_CYCLES * 1e6 / self.times([lambda: sleep(_CYCLES)])[0] * ms)

    def quickest_launch(self) -> int:
        """Shortest time in ns that the host needs to launch a kernel after another one, as in a
        step.
        """
        one, other = self.torch.zeros(1, device="cuda"), self.torch.zeros(1, device="cuda")
        times = []
        for _ in range(_LAUNCHES):
            other.add_(1)
            began = time.perf_counter_ns()
            one.zero_()
            times.append(time.perf_counter_ns() - began)
        self.wait()
        return min(times)

    def anchor(self) -> None:
        """Record an event whose time on the host's clock is known; the most exact of several
        attempts is kept.
        """
        tries = []
        for _ in range(_ANCHORS):
            self.wait()
            event = self.event()
            before = time.perf_counter_ns()
            event.record()
            event.synchronize()
            after = time.perf_counter_ns()
            tries.append((after - before, event, (before + after) // 2))
        width, event, middle_ns = min(tries, key=lambda attempt: attempt[0])
        self.anchors.append((event, middle_ns, width))

    def drift_ns(self) -> int:
        """Time by which the clock of the device ran ahead of the host's since the first anchor."""
        self.wait()
        self.anchor()
        (one, at_ns, _), (two, later, _) = self.anchors[0], self.anchors[-1]
        between_ns = round(float(one.elapsed_time(two)) * 1e6)
        return between_ns - (later - at_ns)

    def host_times(self, marks: Sequence[tuple[int, Any]]) -> dict[int, int]:
        """Times of marks on the host's clock (ns) by ``id`` of the mark; events go through the
        first mark of a step.
        """
        out: dict[int, int] = {}
        first_marks: dict[int, tuple[Any, int]] = {}
        for step, mark in marks:
            if isinstance(mark, int):
                out[id(mark)] = mark
                continue
            if step not in first_marks:
                anchor, at_ns, _ = self.anchors[0]
                first_marks[step] = mark, at_ns + round(anchor.elapsed_time(mark) * 1e6)
            other, at_ns = first_marks[step]
            out[id(mark)] = at_ns + round(other.elapsed_time(mark) * 1e6)
        return out
