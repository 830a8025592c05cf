"""Button of a finding that tries its remedy: it says what that costs and asks, shows progress,
and then the verdict.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

import ipywidgets  # type: ignore[import-untyped]

from llmprof import text
from llmprof.errors import LlmprofError

if TYPE_CHECKING:
    from llmprof.run.launch import Run

PageCall = Callable[[Callable[[], None]], None]
"""Calls a function in the thread that may speak to the page."""


class _StoppedError(Exception):
    """The reader stopped the trial."""


class Trying(ipywidgets.VBox):  # type: ignore[misc]
    """A remedy of a finding that can be tried; ``verdict`` is what came out, None before."""

    def __init__(self, run: Run, remedy: Mapping[str, Any], call: PageCall) -> None:
        self.run, self.remedy = run, remedy
        self.verdict: Any = None
        self._try: Any = run.try_
        self._call, self._stop = call, threading.Event()
        self._thread: threading.Thread | None = None
        self.ask = _button(
            "Try it",
            f"Measure {remedy['words']} against this run; asks before it starts",
            self._asks,
        )
        self.start = _button("Start", "Start two engines and measure", self._starts)
        self.leave = _button("Not now", "Leave it", lambda: self._shows(self.ask))
        self.stop = _button(
            "Stop", "Stop after the measurement that runs; what was measured is kept", self._stops
        )
        self.words, self.bar = ipywidgets.HTML(), ipywidgets.IntProgress(0, 0, 1)
        super().__init__([self.ask])

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of a trial that runs."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _shows(self, *widgets: Any) -> None:
        self.children = widgets

    def _asks(self) -> None:
        trials = import_module(
            "llmprof.run.trials.settings"
        )  # by name, because this layer must not import the trials
        self.words.value = _html(
            f"{self.remedy['words'].capitalize()} ({self.remedy['fields']}):"
            f" {trials.cost_words(self.run)} The same on the command line:",
            trials.trial_command(self.run, self.remedy["remedy"]),
        )
        self._shows(self.words, ipywidgets.HBox([self.start, self.leave]))

    def _starts(self) -> None:
        self._stop.clear()
        self.words.value = _html("starting")
        self._shows(ipywidgets.HBox([self.bar, self.stop]), self.words)
        self._thread = threading.Thread(target=self._tries, daemon=True)
        self._thread.start()

    def _stops(self) -> None:
        self._stop.set()
        self.words.value = _html("It stops after the measurement that runs.")

    def _tries(self) -> None:
        def told(what: str, done: int, total: int) -> None:
            if self._stop.is_set():
                raise _StoppedError
            self._call(lambda: self._tells(what, done, total))

        try:
            self.verdict = self._try(self.remedy["remedy"], progress=told)
            said = _html(f"{self.verdict.says} Its page: {self.verdict.report().html}")
        except _StoppedError:
            said = _html("Stopped; what was measured is in the folder of the trial.")
        except LlmprofError as error:
            said = _html(str(error))
        self._call(lambda: self._ends(said))

    def _tells(self, what: str, done: int, total: int) -> None:
        if not self._stop.is_set():
            self.words.value, self.bar.max, self.bar.value = _html(what), max(total, 1), done

    def _ends(self, said: str) -> None:
        self.words.value = said
        self._shows(self.words, self.ask)


def tryings(run: Run | None, findings: Any, call: PageCall) -> dict[int, Trying]:
    """The first remedy of each finding that can be tried, by the order of the finding."""
    found: dict[int, Trying] = {}
    if run is None or run.recorded:
        return found
    remedies = import_module("llmprof.run.trials.settings").remedies  # by name, as above
    for row in remedies(run, findings).to_dicts():
        if row["reason"] is None and row["order"] not in found:
            found[row["order"]] = Trying(run, row, call)
    return found


def _button(words: str, tip: str, clicked: Callable[[], None]) -> Any:
    button = ipywidgets.Button(
        description=words, tooltip=tip, layout=ipywidgets.Layout(width="96px")
    )
    button.on_click(lambda _button: clicked())
    return button


def _html(words: str, command: str = "") -> str:
    shown = f"<p><code>{escape(text.plain(command))}</code></p>" if command else ""
    return f'<div class="llmprof-front"><p>{escape(text.plain(words))}</p>{shown}</div>'
