"""A recorded operator call as its work needs it: tensors, numbers, and the lengths of sequences
of the step.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from msgspec import Struct

from llmprof.errors import LlmprofError
from llmprof.names.dtypes import PROMOTED, type_format

ALLOCATION: Final = "aten::empty"
"""Its sizes are numbers, not tensors; inside of an operator they say what it works on."""

_NUMBER: Final = re.compile(r"-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")


class NoWorkError(LlmprofError):
    """The recording does not say enough for the work of an operator; the message says what is
    missing.
    """


class CallTensor(Struct, frozen=True):
    """A tensor argument.

    Parameters
    ----------
    shape : tuple of int
        Size of each axis.
    format : str
        ``bf16``, ``fp8``, ``int64`` …
    width : float
        Bytes of an element.
    strides : tuple of int, optional
        Steps of each axis in elements; None where not recorded.
    """

    shape: tuple[int, ...]
    format: str
    width: float
    strides: tuple[int, ...] | None = None

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def stored(self) -> float:
        """Bytes of all elements, as a result has them."""
        return self.elements * self.width

    @property
    def bytes(self) -> float:
        """Bytes of distinct elements: along an axis with the stride 0 there is only one."""
        sizes = self.shape
        if self.strides is not None and len(self.strides) == len(sizes):
            sizes = tuple(
                size if step or not size else 1
                for size, step in zip(sizes, self.strides, strict=True)
            )
        return math.prod(sizes) * self.width


CallArgument = CallTensor | tuple[CallTensor, ...] | tuple[float, ...] | float | bool | None


class Lengths(Struct, frozen=True):
    """Sums over the sequences of a step: new tokens, tokens of keys, and pairs of a query and a
    key that it sees.
    """

    tokens: float
    keys: float
    pairs: float
    assumed: str = ""
    """What of them no label says."""
    source: str = "shapes and step label"


class OperatorCall(Struct, frozen=True):
    """A call of an operator as it was recorded.

    Parameters
    ----------
    operator : str
        Name of the operator, such as ``aten::addmm``.
    arguments : tuple
        :class:`CallTensor`, a tuple of them, a number, a tuple of numbers, or None for what was not
        recorded.
    lengths : Lengths, optional
        Lengths of the sequences of the step that it ran in, if the step's label says them.
    kernel : str
        Name of its longest kernel.
    inside : tuple of Call
        Calls inside of it, in order; an allocation has its sizes as only argument.
    """

    operator: str
    arguments: tuple[CallArgument, ...]
    lengths: Lengths | None = None
    kernel: str = ""
    inside: tuple[OperatorCall, ...] = ()

    def tensor(self, place: int, axes: int | None = None) -> CallTensor:
        """The tensor at a place, with a number of axes.

        Raises
        ------
        NoWorkError
            There is none, or it has another number of axes.
        """
        found = self.get(place)
        if not isinstance(found, CallTensor):
            raise NoWorkError(f"argument {place} of {self.operator} was not recorded as a tensor")
        if axes is not None and len(found.shape) != axes:
            raise NoWorkError(
                f"argument {place} of {self.operator} has the shape {list(found.shape)}, not {axes}"
                " axes"
            )
        return found

    def get(self, place: int) -> CallArgument:
        """The argument at a place; None if there is none."""
        return self.arguments[place] if place < len(self.arguments) else None

    def optional(self, place: int) -> CallTensor | None:
        """The tensor at a place, or None for anything else; a number recorded as a tensor
        without axes is none.
        """
        found = self.get(place)
        return found if isinstance(found, CallTensor) and found.shape else None

    def bytes_at(self, *places: int) -> float:
        """Bytes of the tensors at places; what is none has none."""
        return sum(found.bytes for place in places if (found := self.optional(place)))

    def listed(self, place: int) -> tuple[CallTensor, ...]:
        """The tensors of the list at a place."""
        found = self.get(place)
        given = found if isinstance(found, tuple) else ()
        return tuple(each for each in given if isinstance(each, CallTensor))

    def given(self, first: int = 0, axes: int | None = None) -> list[CallTensor]:
        """The tensors at a place and behind it, with a number of axes; not those in lists."""
        found = [each for each in self.arguments[first:] if isinstance(each, CallTensor)]
        return [each for each in found if axes in (None, len(each.shape))]

    def number(self, place: int, default: float | None = None) -> float:
        """The number at a place.

        Raises
        ------
        NoWorkError
            It was not recorded, and there is no default.
        """
        found = self.get(place)
        if isinstance(found, int | float):
            return found
        if default is None:
            raise NoWorkError(f"argument {place} of {self.operator} was not recorded as a number")
        return default

    def numbers(self, place: int) -> tuple[float, ...]:
        """The list of numbers at a place.

        Raises
        ------
        NoWorkError
            It was not recorded.
        """
        found = self.get(place)
        if isinstance(found, tuple) and not any(isinstance(each, CallTensor) for each in found):
            return found  # type: ignore[return-value]
        raise NoWorkError(
            f"argument {place} of {self.operator} was not recorded as a list of numbers"
        )

    @property
    def mixes_orders(self) -> bool:
        """Whether tensors of one shape lie in memory in different orders of their axes, as far
        as strides say.
        """
        orders: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
        for each in self.arguments:
            if (
                isinstance(each, CallTensor)
                and each.strides
                and len(each.strides) == len(each.shape)
            ):
                axes = [axis for axis, size in enumerate(each.shape) if size > 1]
                steps = each.strides
                if axes and all(steps[axis] for axis in axes):
                    order = tuple(sorted(axes, key=lambda axis: -steps[axis]))
                    orders.setdefault(each.shape, set()).add(order)
        return any(len(each) > 1 for each in orders.values())

    def tensors(self) -> list[CallTensor]:
        """All tensors with axes, those in lists too, in order.

        Raises
        ------
        NoWorkError
            There is none.
        """
        flat = [
            part
            for given in self.arguments
            for part in (given if isinstance(given, tuple) else (given,))
        ]
        found = [part for part in flat if isinstance(part, CallTensor) and part.shape]
        if not found:
            raise NoWorkError(f"{self.operator} has no tensor with axes")
        return found


def widest(tensors: list[CallTensor]) -> tuple[str, float]:
    """Format and bytes of an element of the result of an operation on tensors, by type
    promotion.
    """
    found = max(tensors, key=lambda each: (PROMOTED.index(each.format), each.width))
    formats = {each.format for each in tensors}
    return ("fp32", 4) if {"bf16", "fp16"} <= formats else (found.format, found.width)


def parse_call(
    operator: str,
    shapes: str | None,
    dtypes: str | None,
    strides: str | None = None,
    inputs: str | None = None,
    *,
    lengths: Lengths | None = None,
    kernel: str = "",
    inside: tuple[OperatorCall, ...] = (),
) -> OperatorCall:
    """A call from the texts of the table ``ops``.

    Parameters
    ----------
    operator : str
        Name of the operator.
    shapes, dtypes, strides, inputs : str, optional
        Lists in JSON with an entry for each argument, as the table ``ops`` holds them.
    lengths, kernel, inside
        As for :class:`OperatorCall`.

    Raises
    ------
    NoWorkError
        Shapes or types were not recorded, are not lists of equal length, or hold something other
        than sizes.

    Examples
    --------
    >>> call = parse_call("aten::mm", "[[4, 8], [8, 2]]", '["c10::BFloat16", "c10::BFloat16"]')
    >>> call.tensor(1).bytes
    32
    """
    sizes, types = _listed(shapes), _listed(dtypes)
    if operator == ALLOCATION:
        return OperatorCall(operator, (_value((_listed(inputs) or [None])[0]),))
    if sizes is None or types is None:
        raise NoWorkError(
            "shapes and types were not recorded", hint="record with record_shapes=True"
        )
    if len(sizes) != len(types):
        raise NoWorkError(f"{len(sizes)} shapes and {len(types)} types were recorded")
    steps, values = (
        each if each is not None and len(each) == len(sizes) else [None] * len(sizes)
        for each in (_listed(strides), _listed(inputs))
    )
    given = tuple(_argument(*each) for each in zip(sizes, types, steps, values, strict=True))
    if not any(
        isinstance(each, CallTensor) or (isinstance(each, tuple) and each) for each in given
    ):
        raise NoWorkError("no tensor was recorded among its arguments")
    return OperatorCall(operator, given, lengths, kernel, inside)


def _listed(text: str | None) -> list[Any] | None:
    try:
        value = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) else None


def _argument(size: Any, kind: Any, step: Any, value: Any) -> CallArgument:
    """One argument; sizes that are no whole numbers (symbolic ones) are an error, since a guess
    would be wrong.
    """
    if isinstance(size, list) and size and all(isinstance(each, list) for each in size):
        kinds = kind if isinstance(kind, list) and len(kind) == len(size) else [kind] * len(size)
        steps = step if isinstance(step, list) and len(step) == len(size) else [None] * len(size)
        return tuple(
            _tensor(each, str(its), strides)
            for each, its, strides in zip(size, kinds, steps, strict=True)
        )
    known = isinstance(kind, str) and type_format(kind)[0]
    if size or known:
        number = _value(value) if not size else None
        return _tensor(size, str(kind), step) if number is None else number
    return _value(value)


def _tensor(size: Any, kind: str, step: Any) -> CallTensor:
    if not isinstance(size, list) or not all(isinstance(each, int) and each >= 0 for each in size):
        raise NoWorkError(f"a recorded shape is {str(size)[:60]}", expected="whole numbers")
    known, width = type_format(kind)
    if kind == "TensorList":  # types of a list of tensors are not recorded
        known, width = "", 0
    elif not known:
        raise NoWorkError(f"the bytes of the type {kind[:40]!r} are not known")
    whole = isinstance(step, list) and all(isinstance(each, int) for each in step)
    return CallTensor(
        tuple(size), known, width, tuple(step) if whole and len(step) == len(size) else None
    )


def _value(text: Any) -> float | bool | tuple[float, ...] | None:
    if not isinstance(text, str) or len(text) > 1024:
        return None
    if text in ("True", "False"):
        return text == "True"
    if text.startswith("[") and text.endswith("]"):
        numbers = (
            [_number(part.strip()) for part in text[1:-1].split(",")] if text[1:-1].strip() else []
        )
        return (
            None if None in numbers else tuple(number for number in numbers if number is not None)
        )
    return _number(text)


def _number(text: str) -> float | None:
    if text in ("True", "False"):
        return float(text == "True")
    return float(text) if _NUMBER.fullmatch(text) else None
