"""Base class of all explorers: shared traits, requests from the browser, and the picture for
static views.
"""

import base64
import math
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeAlias, TypeVar, get_type_hints

import anywidget
import numpy as np
import polars as pl
import traitlets
from numpy.typing import NDArray

from llmprof.charts.base import theme as base_theme
from llmprof.errors import ArgumentError, LlmprofError, described, listed
from llmprof.explore.base.messages import Buffers, Message
from llmprof.text import csv
from llmprof.trace import Trace
from llmprof.units import format_ns

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_RGB, _RGBA, _SUB = 2, 6, 1
_LEVEL: Final = 7


def smaller(image: bytes) -> bytes:
    """The same image in fewer bytes, since the encoder of vl-convert compresses little."""
    parts = list(_chunks(image))
    if not parts or parts[0][0] != b"IHDR":
        return image
    width, height, depth, colour, *rest = struct.unpack(">IIBBBBB", parts[0][1])
    if (depth, colour, rest) != (8, _RGBA, [0, 0, 0]):
        return image
    try:
        raw = zlib.decompress(b"".join(data for kind, data in parts if kind == b"IDAT"))
        rows = np.frombuffer(raw, dtype=np.uint8).reshape(height, 1 + 4 * width)
    except (zlib.error, ValueError):  # a damaged image is returned unchanged
        return image
    pixels = rows[:, 1:].reshape(height, width, 4)
    alpha = pixels[:, :, 3]
    opaque = (rows[:, 0] == _SUB).all() and (alpha[:, 0] == 255).all() and not alpha[:, 1:].any()
    if opaque:
        colour = _RGB
        raw = np.concatenate(
            [rows[:, :1], pixels[:, :, :3].reshape(height, 3 * width)], axis=1
        ).tobytes()
    made = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, *rest)),
        *((kind, data) for kind, data in parts if kind not in (b"IHDR", b"IDAT", b"IEND")),
        (b"IDAT", zlib.compress(raw, _LEVEL)),
        (b"IEND", b""),
    ]
    packed = _packed(made)
    return packed if len(packed) < len(image) else image


def _chunks(image: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kind and content of each chunk; nothing if the data are not a PNG."""
    offset = len(_SIGNATURE)
    if not image.startswith(_SIGNATURE):
        return
    while offset + 12 <= len(image):
        (length,) = struct.unpack_from(">I", image, offset)
        yield image[offset + 4 : offset + 8], image[offset + 8 : offset + 8 + length]
        offset += 12 + length


def png_of(pixels: NDArray[np.uint8]) -> bytes:
    """An image as PNG."""
    height, width, _ = pixels.shape
    unfiltered = np.concatenate(
        [np.zeros((height, 1), np.uint8), pixels.reshape(height, 3 * width)], axis=1
    )
    head = struct.pack(">IIBBBBB", width, height, 8, _RGB, 0, 0, 0)
    return _packed(
        ((b"IHDR", head), (b"IDAT", zlib.compress(unfiltered.tobytes(), _LEVEL)), (b"IEND", b""))
    )


def _packed(chunks: Iterable[tuple[bytes, bytes]]) -> bytes:
    return _SIGNATURE + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


BUNDLES: Final = Path(__file__).parents[1] / "bundles"
"""Folder with one script and one style sheet for each widget, bundled from its source (``make
bundles``).
"""

PICKS: Final = ("window", "rank", "step", "layer", "stage")
"""What is picked, and shown, in all linked explorers; it narrows none."""

LINKED: Final = (*PICKS, "kernel", "only")

MOST_SAVED: Final = 200_000
"""Most rows of a selection that the browser saves."""


class Link:
    """Link between explorers; :meth:`unlink` ends it."""

    def __init__(self, links: list[traitlets.link]) -> None:
        self._links = links

    def unlink(self) -> None:
        """Remove the link between the explorers."""
        while self._links:
            self._links.pop().unlink()


def link(*widgets: Any) -> Link:
    """Link explorers: a window, rank, step, layer, stage or kernel that is picked in one of them is
    shown in all, and the filters ``only`` hold in all.

    If their values differ, the value of the first one that has any is used. ``unlink()`` of the
    result ends it.

    Raises
    ------
    ArgumentError
        An argument is not a widget.
    """
    for widget in widgets:
        if not isinstance(widget, traitlets.HasTraits):
            raise ArgumentError(
                f"link() got {described(widget)} among widgets", expected="explorers"
            )
    links = []
    for trait in LINKED:
        members = [widget for widget in widgets if widget.has_trait(trait)]
        leader = next((w for w in members if getattr(w, trait) not in (None, {})), None)
        members.sort(key=lambda widget: widget is not leader)
        links += [traitlets.link((members[0], trait), (other, trait)) for other in members[1:]]
    return Link(links)


PICTURE: Final = "image/png"
KEPT_STYLE: Final = """<style class="llmprof-kept">
:is(.jp-OutputArea-child, .output_container):has(.llmprof-kept),
:is(.jp-OutputArea-child, .output_container):has(+ * .llmprof-kept):has(+ * + * :is(.lp-live, .llmprof-explorers)) {
  display: none;
}
:is(.jp-OutputArea-child, .output_container):has(.llmprof-kept) + *:not(:has(.lp-live, .llmprof-explorers)) {
  height: 0;
  min-height: 0;
  margin: 0;
  padding: 0;
  overflow: hidden;
  visibility: hidden;
}
</style>"""  # noqa: E501
"""Stands between the picture of a widget and the widget: one of them is seen, the widget once its
kernel has answered.

JupyterLab prefers the widget to a picture in the same output, trusted as a notebook is that its
user ran, and says "model not found" where no kernel knows it any more. The classes are those of
outputs in JupyterLab and VS Code.
"""


def show_kept(shown: tuple[dict[str, Any], dict[str, Any]] | None) -> None:
    """Show a widget in a notebook, and before it its picture, which stands there while no kernel
    answers.
    """
    from IPython.core.getipython import get_ipython
    from IPython.display import display

    if shown is None or PICTURE not in shown[0] or not hasattr(get_ipython(), "kernel"):
        raise NotImplementedError
    data, metadata = (
        {kind: one for kind, one in part.items() if kind != PICTURE} for part in shown
    )
    picture, about = (
        {kind: one for kind, one in part.items() if kind == PICTURE} for part in shown
    )
    for one, its in ((picture, about), ({"text/html": KEPT_STYLE}, {}), (data, metadata)):
        display(one, metadata=its, raw=True)  # type: ignore[no-untyped-call]


Reply = tuple[dict[str, Any], Buffers]
F = TypeVar("F", bound=Callable[..., "Reply | None"])
Trait: TypeAlias = "traitlets.TraitType[Any, Any]"
"""A trait that may be None."""

COLOURS: dict[str, dict[str, str]] = {
    "stage": base_theme.STAGES,
    "category": base_theme.CATEGORIES,
    "phase": base_theme.PHASES,
    "cause": base_theme.CAUSES,
}
"""Colours of the charts, by kind and name."""


def request_handler(
    *,
    asks: Mapping[str, Any] = MappingProxyType({}),
    busy: str = "",
    buffers: str = "",
    **fields: Any,
) -> Callable[[F], F]:
    """Decorator of a method ``_on_WHAT`` that answers requests: its parameters are asked,
    ``fields`` are answered.

    A method without fields answers nothing but that it is done.
    """

    def mark(method: F) -> F:
        asked = {name: kind for name, kind in get_type_hints(method).items() if name != "return"}
        what = method.__name__.removeprefix("_on_")
        method.message = Message(what, asked | dict(asks), fields, buffers, busy)  # type: ignore[attr-defined]
        return method

    return mark


def sorted_by(columns: Sequence[str]) -> Any:
    """Validator of a trait ``sort``: one of the columns, with ``-`` in front or not."""

    @traitlets.validate("sort")
    def known(_self: "Explorer", proposal: Mapping[str, Any]) -> str:
        if proposal["value"].lstrip("-") not in columns:
            words = (
                f"sort is {proposal['value']!r}; expected one of {listed(columns)}, with - or not"
            )
            raise traitlets.TraitError(words)
        return str(proposal["value"])

    return known


def optional(kind: type[traitlets.TraitType[Any, Any]]) -> Trait:
    """A trait that the page shares, and that may be None."""
    return kind(default_value=None, allow_none=True).tag(sync=True)


class Explorer(anywidget.AnyWidget):
    """Widget that shows a trace and returns selections as frames; ``room`` is its folder and
    that of its bundle.
    """

    window: Trait = traitlets.List(traitlets.Float(), default_value=None, allow_none=True).tag(
        sync=True, pair=True
    )
    """Window in view or chosen: its first and last time, in ns from the start of the trace."""

    rank: Trait = optional(traitlets.Int)
    step: Trait = optional(traitlets.Int)
    layer: Trait = optional(traitlets.Int)
    stage: Trait = optional(traitlets.Unicode)
    kernel: Trait = optional(traitlets.Unicode)
    """Name of the kernel that is picked."""

    only = traitlets.Dict(key_trait=traitlets.Enum(PICKS)).tag(sync=True)
    """Filters by name of what can be picked, such as ``{"rank": 3}``: they narrow the
    explorers that name them in ``narrows``.
    """

    theme = traitlets.Enum(["auto", "light", "dark"], default_value="auto").tag(sync=True)
    busy = traitlets.Unicode("").tag(sync=True)
    """Description of the running computation; empty if there is none."""

    colours = traitlets.Dict(default_value=COLOURS).tag(sync=True)

    handlers: ClassVar[Mapping[str, Any]] = {}
    """Methods that answer requests, by name of the request."""

    narrows: ClassVar[tuple[str, ...]] = ()
    """Names of the filters that narrow what is shown: of those in ``only``, and of own traits."""

    _width: ClassVar[int] = 1000
    """Width of the picture (px)."""

    def __init_subclass__(cls, room: str = "", **options: Any) -> None:
        if room:
            cls._esm, cls._css = BUNDLES / f"{room}.js", BUNDLES / f"{room}.css"
        super().__init_subclass__(**options)
        methods = (method for owner in reversed(cls.__mro__) for method in vars(owner).values())
        messages = ((getattr(method, "message", None), method) for method in methods)
        cls.handlers = {m.name: method for m, method in messages if isinstance(m, Message)}

    def __init__(self, trace: Trace, **traits: Any) -> None:
        self.trace = trace
        self._running: dict[str, tuple[object, str]] = {}
        self._lock = threading.RLock()
        kind = type(self).__name__
        if unknown := [name for name in traits if name not in self.class_trait_names()]:
            own = set(self.class_trait_names()) - set(anywidget.AnyWidget.class_trait_names())
            expected = (
                f"some of {', '.join(sorted(name for name in own if not name.startswith('_')))}"
            )
            raise ArgumentError(f"{kind} has no {' and no '.join(unknown)}", expected=expected)
        try:
            super().__init__(**traits)
        except traitlets.TraitError as error:
            raise ArgumentError(f"{kind} cannot be shown so: {error}") from error
        self.on_msg(self._receive)

    def __repr__(self) -> str:
        chosen = [
            f"{name} {getattr(self, name)}" for name in PICKS[1:] if getattr(self, name) is not None
        ]
        if self.window is not None:
            chosen.insert(0, f"{format_ns(self.window[0])} to {format_ns(self.window[1])}")
        about = repr(self.trace).removeprefix("<").removesuffix(">").split(":")[0]
        return f"<{type(self).__name__} of {about}{': ' if chosen else ''}{', '.join(chosen)}>"

    @property
    def selected(self) -> pl.DataFrame:
        """Rows of what is selected; no rows if nothing is."""
        return pl.DataFrame()

    def picture(self) -> bytes | None:
        """PNG image of the present state, for views without a kernel; None if there is nothing
        to draw.
        """
        return None

    @request_handler(file=str, content=str)
    def _on_selection(self) -> Reply:
        """The selection as CSV."""
        rows = self.selected
        if not rows.height:
            raise LlmprofError("nothing is selected", hint="pick a cell, a row or a span first")
        if rows.height > MOST_SAVED:
            raise LlmprofError(
                f"{rows.height:,} rows are selected",
                expected=f"at most {MOST_SAVED:,}",
                hint="in Python .selected holds all",
            )
        return {"file": "selection.csv", "content": csv(rows)}, []

    @traitlets.validate("window")
    def _valid_window(self, proposal: Mapping[str, Any]) -> list[float] | None:
        value = proposal["value"]
        if value is None:
            return None
        if len(value) != 2 or not all(math.isfinite(ns) for ns in value) or value[0] > value[1]:
            raise traitlets.TraitError(
                f"window is {value!r}; expected (first, last) in ns with first <= last, or None"
            )
        return list(value)

    def _receive(self, _widget: Any, content: Mapping[str, Any], _buffers: Buffers) -> None:
        """Reply a message of the browser."""
        kind, what = content.get("kind"), str(content.get("what", ""))
        if kind == "cancel":
            self._finish(what)
        if kind != "ask":
            return
        handler = self.handlers.get(what)
        if handler is None:
            self._reply(content, {"error": f"{type(self).__name__} does not answer {what!r}."}, [])
        elif handler.message.busy:
            token = object()
            with self._lock:
                self._running[what] = (token, handler.message.busy)
                self._say()
            threading.Thread(
                target=self._answer, args=(handler, content, token), daemon=True
            ).start()
        else:
            self._answer(handler, content, None)

    def _answer(self, handler: Any, content: Mapping[str, Any], token: object) -> None:
        """Run a method and send its result or its error; nothing if the request was cancelled
        meanwhile.
        """
        what = content["what"]
        message: dict[str, Any] = {
            "error": f"{what}: unexpected failure; the kernel's log says more."
        }
        buffers: Buffers = []
        try:
            arguments = handler.message.arguments(content.get("args", {}))
            message, buffers = handler(self, **arguments) or ({}, [])
        except (LlmprofError, pl.exceptions.PolarsError, ValueError, TypeError) as error:
            message = {"error": str(error) or type(error).__name__}
        finally:
            current = token is None or self._running.get(what, (None, ""))[0] is token
            if current:
                self._reply(content, message, buffers)
                self._finish(what)

    def _reply(
        self, content: Mapping[str, Any], message: Mapping[str, Any], buffers: Buffers
    ) -> None:
        with self._lock:
            head = {"kind": "answer", "what": content.get("what"), "id": content.get("id")}
            self.send({**head, "msg": dict(message)}, buffers)

    def _progress(self, what: str, text: str) -> None:
        """Report the progress of a request that is computed in the background."""
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
        """The live widget, and an image of it for notebooks that are opened without a kernel."""
        shown = super()._repr_mimebundle_(**kwargs)
        if shown is None:
            return None
        data, metadata = shown
        try:
            image = self.picture()
        except LlmprofError:
            image = None
        if image:
            data = {**data, PICTURE: base64.b64encode(smaller(image)).decode("ascii")}
            metadata = {**metadata, PICTURE: {"width": self._width}}
        return data, metadata

    def _get_embed_state(self, drop_defaults: bool = False) -> dict[str, Any]:
        """State for an exported page, where no kernel answers: the widget shows its picture
        there.
        """
        state: dict[str, Any] = super()._get_embed_state(drop_defaults=drop_defaults)
        try:
            image = self.picture()
        except LlmprofError:
            image = None
        if image:
            state["state"]["still"] = base64.b64encode(smaller(image)).decode("ascii")
        return state

    def _ipython_display_(self, **_: Any) -> None:
        """Show the image and the widget as two outputs, of which one is seen."""
        show_kept(self._repr_mimebundle_())
