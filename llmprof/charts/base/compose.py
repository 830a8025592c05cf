"""Charts of several parts, which Altair does not copy over and over while they are put together.

Altair makes a chart of parts anew, with copies of all its parts and of theirs, whenever such a
chart is put into another one, changed or written: the time doubles with each level of nesting.
Functions of Altair change no part before they have copied it. So a chart that is made here shares
its parts with its copies, until it gets other parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Self

import altair as alt


class _SharesParts:
    """A chart whose copies hold the same parts."""

    _held_in: ClassVar[str]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        object.__setattr__(self, "_at_first", self._now())

    def __repr__(self) -> str:
        return f"alt.{type(self).__bases__[-1].__name__}(...)"  # as Altair says it of its own chart

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


class _Mark(alt.Chart):
    """A chart of one mark whose copies share what it draws: a chart of parts copies each of them
    several times.
    """

    def copy(self, deep: bool | Iterable[Any] = True, ignore: list[str] | None = None) -> Self:
        """A copy that may be changed; the channels and the mark are those of the original until
        they are set.
        """
        if deep is not True:
            return super().copy(deep=deep, ignore=ignore)
        return _same(self)  # type: ignore[return-value]  # the class has no others below it


_Mark.__name__ = alt.Chart.__name__  # Altair makes names of views from it


def _same(chart: alt.Chart) -> _Mark:
    """A chart of one mark with the same channels and copies of its parameters, which Altair
    changes.
    """
    held = dict(vars(chart)["_kwds"])
    if isinstance(held.get("params"), list):
        held["params"] = [param.copy() for param in held["params"]]
    made = object.__new__(_Mark)
    vars(made).update(vars(chart), _kwds=held)
    return made


def _shared(part: Any) -> Any:
    """A chart of one mark as one whose copies share; other charts as they are."""
    return _same(part) if type(part) is alt.Chart else part


def layers(*marks: alt.Chart | alt.LayerChart, **options: Any) -> alt.LayerChart:
    """Marks on top of each other, as :class:`altair.LayerChart` with its options."""
    return _Layers(layer=[_shared(mark) for mark in marks], **options)


def rows(*parts: Any, **options: Any) -> alt.VConcatChart:
    """Charts below each other, as :func:`altair.vconcat` with its options."""
    return _Rows(vconcat=[_shared(part) for part in parts], **options)


def columns(*parts: Any, **options: Any) -> alt.HConcatChart:
    """Charts beside each other, as :func:`altair.hconcat` with its options."""
    return _Columns(hconcat=[_shared(part) for part in parts], **options)
