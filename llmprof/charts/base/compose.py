"""Charts of several parts, which Altair does not copy over and over while they are put together.

Altair makes a chart of parts anew, with copies of all its parts and of theirs, whenever such a
chart is put into another one, changed or written: the time doubles with each level of nesting.
Functions of Altair change no part before they have copied it. So a chart that is made here shares
its parts with its copies, until it gets other parts.

All these charts, and what becomes of them by methods and operators, write HTML of their own
(:class:`ScriptSafe`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Self

import altair as alt
from altair.utils import schemapi

from llmprof.charts.base.script import ScriptSafe


class _Ours(ScriptSafe):
    """A chart of which Altair's methods and operators make charts of ours."""

    @classmethod
    def validate_property(cls, *given: Any, **options: Any) -> None:
        """Check a property that is set, unless Altair is told to check nothing."""
        if schemapi.DEBUG_MODE:
            super().validate_property(*given, **options)  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"alt.{type(self).__bases__[-1].__name__}(...)"  # as Altair says it of its own chart

    def __add__(self, other: Any) -> Any:
        return ours(super().__add__(other))  # type: ignore[misc]

    def __and__(self, other: Any) -> Any:
        return ours(super().__and__(other))  # type: ignore[misc]

    def __or__(self, other: Any) -> Any:
        return ours(super().__or__(other))  # type: ignore[misc]

    def facet(self, *args: Any, **options: Any) -> Any:
        return ours(super().facet(*args, **options))  # type: ignore[misc]

    def repeat(self, *args: Any, **options: Any) -> Any:
        return ours(super().repeat(*args, **options))  # type: ignore[misc]


class _SharesParts(_Ours):
    """A chart whose copies hold the same parts."""

    _held_in: ClassVar[str]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        object.__setattr__(self, "_at_first", self._now())

    def _now(self) -> list[object]:
        held = vars(self)["_kwds"]
        return [held.get("data"), held.get("params"), *held[self._held_in]]

    def copy(self, deep: bool | Iterable[Any] = True, ignore: list[str] | None = None) -> Self:
        """A copy that may be changed; its parts are those of the original."""
        if isinstance(deep, bool):
            return self.__deepcopy__()
        return super().copy(deep=deep, ignore=ignore)  # type: ignore[misc, no-any-return]

    def __deepcopy__(self, memo: object = None) -> Self:
        own = vars(self)
        held = {
            name: list(value) if isinstance(value, list) else value
            for name, value in own["_kwds"].items()
        }
        first, now = own["_at_first"], self._now()
        if len(first) != len(now) or any(
            one is not other for one, other in zip(first, now, strict=True)
        ):
            return type(self)(**held)  # of new parts Altair moves parameters and sizes to the whole
        made = object.__new__(type(self))
        vars(made).update(own, _kwds=held)
        if isinstance(own["_kwds"].get("params"), list):
            object.__setattr__(made, "_at_first", made._now())
        return made


class _Layers(_SharesParts, alt.LayerChart):
    _held_in = "layer"


class _Rows(_SharesParts, alt.VConcatChart):
    _held_in = "vconcat"


class _Columns(_SharesParts, alt.HConcatChart):
    _held_in = "hconcat"


class _Mark(_Ours, alt.Chart):
    """A chart of one mark whose copies share what it draws: a chart of parts copies each of them
    several times.
    """

    def copy(self, deep: bool | Iterable[Any] = True, ignore: list[str] | None = None) -> Self:
        """A copy that may be changed; the channels and the mark are those of the original until
        they are set.
        """
        if deep is not True:
            return super().copy(deep=deep, ignore=ignore)
        return _same(self, _Mark)  # type: ignore[no-any-return]  # the class has no others below it


_Mark.__name__ = alt.Chart.__name__  # Altair makes names of views from it


class _Facets(_Ours, alt.FacetChart):
    pass


class _Repeated(_Ours, alt.RepeatChart):
    pass


class _Concatenated(_Ours, alt.ConcatChart):
    pass


_KINDS = {
    kind.__bases__[-1]: kind
    for kind in (_Mark, _Layers, _Rows, _Columns, _Facets, _Repeated, _Concatenated)
}


def _same(chart: Any, kind: type) -> Any:
    """A chart of another kind with the same content and copies of its parameters, which Altair
    changes.
    """
    held = dict(vars(chart)["_kwds"])
    if isinstance(held.get("params"), list):
        held["params"] = [param.copy() for param in held["params"]]
    made: Any = object.__new__(kind)
    vars(made).update(vars(chart), _kwds=held)
    if isinstance(made, _SharesParts):
        object.__setattr__(made, "_at_first", made._now())
    return made


def ours(chart: Any) -> Any:
    """A chart of Altair as one of ours; what is one, or no chart, as it is."""
    kind = _KINDS.get(type(chart))
    return chart if kind is None else _same(chart, kind)


def overlay(*marks: alt.Chart | alt.LayerChart, **options: Any) -> alt.LayerChart:
    """Marks on top of each other, as :class:`altair.LayerChart` with its options."""
    return _Layers(layer=[ours(mark) for mark in marks], **options)


def vconcat(*parts: Any, **options: Any) -> alt.VConcatChart:
    """Charts below each other, as :func:`altair.vconcat` with its options."""
    return _Rows(vconcat=[ours(part) for part in parts], **options)


def hconcat(*parts: Any, **options: Any) -> alt.HConcatChart:
    """Charts beside each other, as :func:`altair.hconcat` with its options."""
    return _Columns(hconcat=[ours(part) for part in parts], **options)
