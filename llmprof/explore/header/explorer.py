"""Header of the tabs: a chip for each filter, and back and forward through the views."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import traitlets

from llmprof.explore.base.widget import LINKED, PICKS, Explorer, link, request_handler
from llmprof.findings.cause import readable_name
from llmprof.trace import Trace
from llmprof.units import format_ns

SEEN: Final = (
    "phase",
    "category",
    "stream",
    "status",
    "search",
    "kind",
    "by",
    "of",
    "event",
    "call",
    "picked",
    "selection",
    "span",
    "span_rows",
)
"""What else of a tab belongs to a view that one may come back to."""

TOGETHER_S: Final = 0.6
"""Changes that follow each other so soon are one: a pick sets several traits, and a gesture
moves the window often.
"""

MOST: Final = 200
"""Most views that are kept."""

State = dict[str, Any]


class ViewHistory:
    """Views one after another, with a place among them."""

    def __init__(self, first: State) -> None:
        self._views, self._at, self._time = [first], 0, -TOGETHER_S

    @property
    def back(self) -> bool:
        """Whether there is a view before this one."""
        return self._at > 0

    @property
    def forward(self) -> bool:
        """Whether one went back, and has not chosen anything else since."""
        return self._at + 1 < len(self._views)

    def note(self, view: State) -> None:
        """Keep a view, in place of the one before it if that was not rested on."""
        if view == self._views[self._at]:
            return
        now = time.monotonic()
        soon, self._time = now - self._time < TOGETHER_S, now
        if not (soon and self._at):
            self._at += 1
        self._views[self._at :] = [view]
        if len(self._views) > MOST:
            del self._views[0]
            self._at -= 1

    def added(self, tab: str, traits: State) -> None:
        """A tab was made: it is in all views as it is now."""
        for view in self._views:
            view["of_tabs"] = {**view["of_tabs"], tab: traits}

    def go(self, by: int) -> State:
        """The view so many places away, as far as there is one; it is the present one from now
        on.
        """
        self._at = max(0, min(len(self._views) - 1, self._at + by))
        self._time = -TOGETHER_S
        return self._views[self._at]


class Header(Explorer, room="header"):
    """Chips and history of ``explore.open``; ``shown`` gives the name of the visible tab,
    ``show`` changes it.
    """

    chips = traitlets.List(traitlets.Dict()).tag(sync=True)
    """Filters that hold, each with the ``name`` by which it is removed, its ``text``, and
    ``idle``: why it does not narrow the visible tab; empty if it does.
    """

    picked = traitlets.Unicode("").tag(sync=True)
    """What is picked and no filter, in words."""

    back = traitlets.Bool(default_value=False).tag(sync=True)
    forward = traitlets.Bool(default_value=False).tag(sync=True)

    def __init__(
        self, trace: Trace, *, shown: Callable[[], str], show: Callable[[str], None]
    ) -> None:
        super().__init__(trace)
        self._shown, self._show = shown, show
        self._tabs: dict[str, tuple[str, Explorer]] = {}
        self._going = False
        self._first: Any = None
        self._history = ViewHistory(self._state())
        self.observe(self.noted, list(LINKED))

    def add(self, name: str, title: str, explorer: Explorer) -> None:
        """Link the explorer of a tab with all others, and follow what is chosen in it."""
        link(self, explorer)
        if not self._tabs:
            self._first = self.window  # where the first tab begins, which nobody picked
        self._tabs[name] = (title, explorer)
        explorer.observe(self.noted, [trait for trait in SEEN if explorer.has_trait(trait)])
        self._history.added(name, self._state()["of_tabs"][name])
        self.noted()

    def noted(self, _change: object = None) -> None:
        """Something was chosen: say which filters hold, and keep the view to come back to."""
        if self._going:
            return
        self._history.note(self._state())
        self._say_all()

    def _say_all(self) -> None:
        self.picked = ", ".join(_words(name, value) for name, value in self._picked().items())
        self.chips, self.back, self.forward = (
            self._chips(),
            self._history.back,
            self._history.forward,
        )

    def _state(self) -> State:
        """The view: the visible tab, and what is chosen in each."""
        of_tabs = {
            name: {trait: getattr(explorer, trait) for trait in SEEN if explorer.has_trait(trait)}
            for name, (_, explorer) in self._tabs.items()
        }
        return {
            "tab": self._shown(),
            "linked": {trait: getattr(self, trait) for trait in LINKED},
            "of_tabs": of_tabs,
        }

    def _chips(self) -> list[dict[str, str]]:
        visible = self._shown()
        shown, explorer = self._tabs.get(visible, ("This tab", None))
        narrows = explorer.narrows if explorer is not None else ()
        chips = [
            {
                "name": name,
                "text": _words(name, value),
                "idle": "" if name in narrows else f"{shown} cannot be narrowed to a {name}.",
            }
            for name, value in self.only.items()
        ]
        for tab, (title, owner) in self._tabs.items():
            held = {
                name: value
                for name in owner.narrows
                if name not in PICKS and (value := getattr(owner, name)) not in (None, "")
            }
            idle = "" if tab == visible else f"It narrows {title} alone."
            chips += [
                {"name": f"{tab}.{name}", "text": f"{title}: {name} {value}", "idle": idle}
                for name, value in held.items()
            ]
        return chips

    def _picked(self) -> State:
        """What is picked and no filter yet; a window only where no step or layer tells it."""
        told = self.step is not None or self.layer is not None
        names = (*(PICKS[1:] if told else PICKS), "kernel")
        picked = {name: getattr(self, name) for name in names}
        return {
            name: value
            for name, value in picked.items()
            if value not in (None, self.only.get(name), self._first if name == "window" else None)
        }

    @request_handler()
    def narrow(self) -> None:
        """Make filters of what is picked."""
        picked = self._picked()
        picked.pop("kernel", None)
        self.only = {**self.only, **picked}

    @request_handler()
    def go(self, by: Literal[-1, 1]) -> None:
        """Show the view before the present one (-1), or the one after it (1)."""
        view = self._history.go(by)
        self._going = True
        try:
            for name, traits in view["of_tabs"].items():
                _set(self._tabs[name][1], traits)
            _set(self, view["linked"])
            self._show(view["tab"])
        finally:
            self._going = False
        self._say_all()

    @request_handler()
    def remove(self, name: str) -> None:
        """Remove a filter."""
        tab, _, trait = name.rpartition(".")
        if not tab:
            self.only = {name: value for name, value in self.only.items() if name != trait}
        elif trait in (owner := self._tabs[tab][1]).narrows:
            owner.set_trait(trait, owner.traits()[trait].default_value)

    @request_handler()
    def clear(self) -> None:
        """Remove all filters, and pick nothing."""
        for chip in self._chips():
            self.remove(chip["name"])
        _set(self, dict.fromkeys((*PICKS, "kernel")))


def _words(name: str, value: Any) -> str:
    if name == "kernel":
        return f"kernel {readable_name(value)}"
    if name != "window":
        return f"{name} {value}"
    first, last = value
    return f"window {format_ns(last - first)} from {format_ns(first)}"


def _set(explorer: Explorer, traits: Mapping[str, Any]) -> None:
    with explorer.hold_trait_notifications():
        for name, value in traits.items():
            explorer.set_trait(name, value)
