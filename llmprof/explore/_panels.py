"""Panels of ``explore.open``: what each shows, and what has to be computed before it can."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from llmprof import analyze
from llmprof.errors import LlmprofError
from llmprof.metrics_data import Metrics
from llmprof.trace import Trace

Stage = tuple[str, Callable[[], object]]
"""What is computed, in words, and the function that does it; results are kept with the trace."""


@dataclass(frozen=True)
class Given:
    """What ``explore.open`` was given."""

    trace: Trace
    metrics: Metrics | None = None
    other: Trace | None = None
    names: tuple[str, str] = ("a", "b")


@dataclass(frozen=True)
class Panel:
    """One tab: its name, its title, how its widget is made, and what is computed first."""

    name: str
    title: str
    make: Callable[[Given], Any]
    stages: Callable[[Given], Sequence[Stage]]


def _timeline(given: Given) -> Any:
    from llmprof.explore._timeline import timeline

    return timeline(given.trace, metrics=given.metrics)


def _layers(given: Given) -> Any:
    from llmprof.explore._layers import layers

    return layers(given.trace)


def _overlap(given: Given) -> Any:
    from llmprof.explore._overlap import overlap

    return overlap(given.trace, given.other)


def _all_reduce(given: Given) -> Any:
    from llmprof.explore._all_reduce import all_reduce

    return all_reduce(given.trace)


def _kernels(given: Given) -> Any:
    from llmprof.explore._kernels import kernels

    return kernels(given.trace, given.metrics)


def _compare(given: Given) -> Any:
    from llmprof.explore._compare import compare

    return compare(given.trace, _other(given), names=given.names)


def _other(given: Given) -> Trace:
    if given.other is None:
        raise LlmprofError("there is no other trace to compare with", hint="give it: explore.open(trace, other=…)")
    return given.other


def _labelled(trace: Trace, of: str = "") -> list[Stage]:
    return [
        (f"reading the device's events{of}", lambda: analyze.activity(trace)),
        (f"finding steps{of}", lambda: analyze.steps(trace)),
        (f"naming layers and stages{of}", lambda: analyze.attribute(trace)),
    ]


PANELS: Final = (
    Panel("timeline", "Timeline", _timeline, lambda _given: []),
    Panel(
        "layers",
        "Layers",
        _layers,
        lambda g: [*_labelled(g.trace), ("measuring layers", lambda: analyze.layers(g.trace, by="layer"))],
    ),
    Panel(
        "overlap",
        "Overlap",
        _overlap,
        lambda g: [
            *_labelled(g.trace),
            ("measuring overlap", lambda: analyze.overlap(g.trace, by=("rank", "step"))),
        ],
    ),
    Panel(
        "all_reduce",
        "Collectives",
        _all_reduce,
        lambda g: [*_labelled(g.trace), ("comparing the ranks", lambda: analyze.collectives(g.trace))],
    ),
    Panel(
        "kernels",
        "Kernels",
        _kernels,
        lambda g: [*_labelled(g.trace), ("adding up kernels", lambda: analyze.kernels_within(g.trace))],
    ),
    Panel(
        "compare",
        "Compare",
        _compare,
        lambda g: [*_labelled(g.trace, ", first trace"), *_labelled(_other(g), ", second trace")],
    ),
)
"""All panels in the order of their tabs; the last only with another trace."""


class Preparation:
    """Stages computed one after another in a thread, until they are done or cancelled.

    Parameters
    ----------
    stages : sequence of Stage
        What to compute. One that fails is left to the panel, which says why when it asks for the same.
    told : callable
        Called in the thread with what begins, how many stages are done, and how many there are.
    done : callable
        Called in the thread at the end, unless it was cancelled.
    """

    def __init__(
        self, stages: Sequence[Stage], told: Callable[[str, int, int], None], done: Callable[[], None]
    ) -> None:
        self._stages, self._told, self._done = stages, told, done
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def cancel(self) -> None:
        """Stop after the stage that is being computed; nothing more is told."""
        self._cancelled.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end."""
        self._thread.join(timeout)

    def _run(self) -> None:
        for number, (words, compute) in enumerate(self._stages):
            if self._cancelled.is_set():
                return
            self._told(words, number, len(self._stages))
            try:
                compute()
            except LlmprofError:
                continue
        if not self._cancelled.is_set():
            self._done()
