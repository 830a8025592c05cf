"""What all explorers share: the traits that link them, requests of the browser's side, and a picture to keep."""

from __future__ import annotations

import base64
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias, TypeVar

import anywidget
import polars as pl
import traitlets

from llmprof.charts import _palette
from llmprof.errors import LlmprofError
from llmprof.explore._pack import Buffers
from llmprof.explore._png import smaller
from llmprof.trace import Trace

Answer = tuple[dict[str, Any], Buffers]
F = TypeVar("F", bound=Callable[..., Answer])
Trait: TypeAlias = "traitlets.TraitType[Any, Any]"
"""A trait that may be None."""

COLOURS: dict[str, dict[str, str]] = {
    "stage": _palette.STAGES,
    "category": _palette.CATEGORIES,
    "phase": _palette.PHASES,
    "cause": _palette.CAUSES,
}
"""Colours of the charts, by kind and name."""


def in_background(text: str) -> Callable[[F], F]:
    """Answer a request in a thread, so that others are answered meanwhile; ``text`` says what is computed."""

    def mark(method: F) -> F:
        method.busy_text = text  # type: ignore[attr-defined]
        return method

    return mark


class Explorer(anywidget.AnyWidget):
    """Widget that shows a trace and hands back frames.

    The browser's side asks for ``what`` with arguments; the method ``_on_<what>(**arguments)`` answers with a
    message (JSON) and buffers. An error becomes a text that the widget shows. Of requests of one kind the browser keeps
    one under way and remembers the newest, so a slow answer is never followed by a queue of stale ones.

    Parameters
    ----------
    trace : Trace
        What is shown.
    **traits
        ``window, rank, step, layer, stage, theme`` to begin with.
    """

    window: Trait = traitlets.List(traitlets.Float(), default_value=None, allow_none=True).tag(sync=True)
    """First and last time that is shown or chosen, in ns from the start of the trace."""

    rank: Trait = traitlets.Int(default_value=None, allow_none=True).tag(sync=True)
    step: Trait = traitlets.Int(default_value=None, allow_none=True).tag(sync=True)
    layer: Trait = traitlets.Int(default_value=None, allow_none=True).tag(sync=True)
    stage: Trait = traitlets.Unicode(default_value=None, allow_none=True).tag(sync=True)
    theme = traitlets.Enum(["auto", "light", "dark"], default_value="auto").tag(sync=True)
    busy = traitlets.Unicode("").tag(sync=True)
    """What is being computed, in words; empty if nothing is."""

    colours = traitlets.Dict(default_value=COLOURS).tag(sync=True)

    _width: ClassVar[int] = 1000
    """Width of the picture (px)."""

    def __init__(self, trace: Trace, **traits: Any) -> None:
        self.trace = trace
        self._running: dict[str, tuple[object, str]] = {}
        self._lock = threading.RLock()
        super().__init__(**traits)
        self.on_msg(self._receive)

    @property
    def selected(self) -> pl.DataFrame:
        """Rows of what is selected; no rows if nothing is."""
        return pl.DataFrame()

    def picture(self) -> bytes | None:
        """PNG image of the present state, for where no kernel runs; None if there is nothing to draw."""
        return None

    @traitlets.validate("window")
    def _valid_window(self, proposal: Mapping[str, Any]) -> list[float] | None:
        value = proposal["value"]
        if value is None:
            return None
        if len(value) != 2 or not all(math.isfinite(ns) for ns in value) or value[0] > value[1]:
            raise traitlets.TraitError(f"window is {value!r}; expected (first, last) in ns with first <= last, or None")
        return list(value)

    def _receive(self, _widget: Any, content: Mapping[str, Any], _buffers: Buffers) -> None:
        """Answer a message of the browser's side."""
        kind, what = content.get("kind"), str(content.get("what", ""))
        if kind == "cancel":
            self._finish(what)
        if kind != "ask":
            return
        method = getattr(self, f"_on_{what}", None)
        if method is None:
            self._reply(content, {"error": f"{type(self).__name__} does not answer {what!r}."}, [])
        elif text := getattr(method, "busy_text", None):
            token = object()
            with self._lock:
                self._running[what] = (token, text)
                self._say()
            task = threading.Thread(target=self._answer, args=(method, content, token), daemon=True)
            task.start()
        else:
            self._answer(method, content, None)

    def _answer(self, method: Callable[..., Answer], content: Mapping[str, Any], token: object) -> None:
        """Run a method and send what it returns, or why it could not; nothing if it was cancelled meanwhile."""
        what = content["what"]
        message: dict[str, Any] = {"error": f"{what}: unexpected failure; the kernel's log says more."}
        buffers: Buffers = []
        try:
            message, buffers = method(**content.get("args", {}))
        except (LlmprofError, pl.exceptions.PolarsError, ValueError, TypeError) as error:
            message = {"error": str(error) or type(error).__name__}
        finally:
            current = token is None or self._running.get(what, (None, ""))[0] is token
            if current:
                self._reply(content, message, buffers)
                self._finish(what)

    def _reply(self, content: Mapping[str, Any], message: Mapping[str, Any], buffers: Buffers) -> None:
        with self._lock:
            head = {"kind": "answer", "what": content.get("what"), "id": content.get("id")}
            self.send({**head, "msg": dict(message)}, buffers)

    def _progress(self, what: str, text: str) -> None:
        """Say how far a request has come that is computed in the background."""
        with self._lock:
            if what in self._running:
                self._running[what] = (self._running[what][0], text)
                self._say()

    def _finish(self, what: str) -> None:
        with self._lock:
            if self._running.pop(what, None) is not None:
                self._say()

    def _say(self) -> None:
        self.busy = "; ".join(text for _, text in self._running.values())

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The live widget, and an image of it for notebooks that are looked at without a kernel."""
        shown = super()._repr_mimebundle_(**kwargs)
        if shown is None:
            return None
        data, metadata = shown
        try:
            image = self.picture()
        except LlmprofError:
            image = None
        if image:
            data = {**data, "image/png": base64.b64encode(smaller(image)).decode("ascii")}
            metadata = {**metadata, "image/png": {"width": self._width}}
        return data, metadata
