"""Arguments of a recorded operator call: shapes, types, strides and values, as PyTorch's profiler
wrote them.

Everything from a trace is checked first: operators must be in a fixed list, sizes are bounded, and
no text of a trace is passed on.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from llmprof.errors import AnalysisError
from llmprof.names.dtypes import SIZES, element_type
from llmprof.theory.calls import Timeable, timeable_operators
from llmprof.units import format_bytes

MOST_BYTES: Final = 16 << 30
"""Most memory that the arguments of one call may take."""

MOST_CACHE_BYTES: Final = 1 << 30
"""Most memory of one paged cache; a larger one is made with fewer pages."""

REASONS: Final[tuple[tuple[str, str], ...]] = (
    (
        r"^(?:c10d::|nccl:|record_param_comms|_c10d_functional::|symm_mem::|vllm::all_gather|vllm::reduce_scatter|_C::shm_)",
        "the all-reduce is the only collective that is run alone",
    ),
    (
        r"moe_forward|fused_moe|fused_experts|grouped_mm",
        (
            "the weights of the experts are not arguments of the recorded "
            "operator; parts of it that are operators themselves can be run"
        ),
    ),
    (
        r"unified_(?:mla_)?attention|unified_kv_cache_update|cpu_attention|^_C::paged_attention",
        "the cache and the lengths are in the engine's context, not among the recorded arguments",
    ),
    (
        r"^(?:triton_|Triton|CompiledFunction|Torch-Compiled|## Call Compiled)",
        "a compiler generated the kernel: its code is not in the recording",
    ),
    (
        r"(?i)backward|^autograd::|Backward\d*$",
        "gradients need what the forward pass kept, which is not recorded",
    ),
    (
        r"^aten::(?:index|index_put_?|_index_put_impl_|nonzero|masked_select|unique\w*)$",
        "the indices are a list of tensors, of which a recording has neither shape nor values",
    ),
    (
        r"^aten::(?:item|_local_scalar_dense|is_nonzero|_pin_memory|pin_memory)$",
        "it waits for the device or moves host memory: it has no work of its own on the device",
    ),
    (
        r"get_scheduler_metadata|compute_slot_mapping",
        "it plans from lengths of sequences that are not recorded",
    ),
)

NOT_LISTED: Final = "llmprof does not know the arguments of this operator"
NO_OPERATOR: Final = "no operator was recorded for it: the program launches the kernel itself"
BETWEEN: Final = (
    "it copies between host and device, and a recording does not say which tensor is where"
)
IN_GRAPH: Final = (
    "launched by a CUDA graph, whose operators ran when it was captured: record without graphs"
)

_MOST_AXES: Final = 12
_LARGEST: Final = 1 << 40
_INTEGER: Final = re.compile(r"-?\d{1,18}")
_FLOAT: Final = re.compile(
    r"-?(?:\d{1,30}\.\d{0,30}|\d{0,30}\.\d{1,30}|\d{1,30})(?:[eE][+-]?\d{1,3})?"
)
_FLOATS: Final = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class RecordedTensor:
    """A tensor argument: a script fills it with random values, except as ``holds`` says."""

    shape: tuple[int, ...]
    """Size of each axis."""
    strides: tuple[int, ...]
    """Stride of each axis, in elements."""
    dtype: str
    """Name of the element type in torch."""
    holds: tuple[str, *tuple[int, ...]] = ("random",)
    """``random``, ``fa3_metadata``, or ``below``, ``slots``, ``pages``, ``ends`` or ``filled``
    with numbers.
    """

    @property
    def elements(self) -> int:
        """Elements of memory from the first to the last one of the tensor."""
        if 0 in self.shape:
            return 0
        return 1 + sum(
            (size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)
        )

    @property
    def bytes(self) -> int:
        """Memory that it takes."""
        return self.elements * SIZES[self.dtype]


RecordedArgument = (
    RecordedTensor
    | tuple[RecordedTensor, ...]
    | tuple[int | float, ...]
    | float
    | int
    | bool
    | str
    | None
)
"""A tensor, a list of tensors, a list of numbers, a number, a text of llmprof's own, or nothing."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """An operator and its arguments, ready to be written into a script."""

    operator: str
    kind: str
    known: Timeable
    arguments: tuple[RecordedArgument, ...]
    assumed: tuple[str, ...]
    """Assumptions about data that the recording lacks, as text."""


def reason_against(operator: str) -> str:
    """Why an operator that is not in the list cannot be run alone."""
    return next((why for pattern, why in REASONS if re.search(pattern, operator)), NOT_LISTED)


def recorded_call(
    operator: str,
    shapes: str | None,
    dtypes: str | None,
    strides: str | None = None,
    inputs: str | None = None,
    *,
    usual_dtype: str = "bfloat16",
) -> RecordedCall:
    """A recorded call with checked arguments."""
    if operator not in timeable_operators():
        raise AnalysisError(reason_against(operator))
    its_kind, timeable = timeable_operators()[operator]
    sizes, types = _listed(shapes), _listed(dtypes)
    if sizes is None or types is None:
        raise AnalysisError("its shapes were not recorded", hint="record with record_shapes=True")
    if len(sizes) != len(types) or len(sizes) > 64:
        raise AnalysisError(f"{len(sizes)} shapes and {len(types)} types were recorded")
    steps, values = _listed(strides), _listed(inputs)
    steps = steps if steps is not None and len(steps) == len(sizes) else None
    values = values if values is not None and len(values) == len(sizes) else None
    assumed = [timeable.assumed] if timeable.assumed else []
    out: list[RecordedArgument] = []
    for place, (size, kind) in enumerate(zip(sizes, types, strict=True)):
        step = None if steps is None else steps[place]
        value = None if values is None else values[place]
        out.append(_argument(_Recorded(place, size, kind, step, value), timeable, usual_dtype))
    if steps is None:
        assumed.append("strides were not recorded: tensors are taken to be contiguous")
        if operator in _OF_WEIGHTS:
            out, assumed[-1] = (
                _transposed(out, timeable),
                assumed[-1] + ", and a weight to be transposed",
            )
    if any(
        isinstance(argument, tuple) and argument and isinstance(argument[0], RecordedTensor)
        for argument in out
    ):
        assumed.append(f"types in a list of tensors are not recorded: taken to be {usual_dtype}")
    out = _numbers_for_scalars(out) if its_kind == "elementwise" else out
    out, fewer = _fewer_pages(out, timeable)
    assumed += fewer
    out = [_content(timeable, place, out) for place in range(len(out))]
    total = sum(argument.bytes for argument in _tensors(out))
    if total > MOST_BYTES:
        raise AnalysisError(
            f"its arguments take {format_bytes(total)}, more than {format_bytes(MOST_BYTES)}"
        )
    if not any(True for _ in _tensors(out)):
        raise AnalysisError("none of its arguments was recorded as a tensor")
    return RecordedCall(operator, its_kind, timeable, tuple(out), tuple(assumed))


_OF_WEIGHTS: Final = ("aten::mm", "aten::addmm", "aten::matmul")


def _listed(text: str | None) -> list[Any] | None:
    if text is None or len(text) > 1 << 16:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) else None


class _Recorded(NamedTuple):
    """Recorded facts about one argument."""

    place: int
    size: Any
    kind: Any
    step: Any
    value: Any


def _argument(recorded: _Recorded, timeable: Timeable, usual_dtype: str) -> RecordedArgument:
    place, size, kind, step, value = recorded
    if (
        kind == "TensorList"
        or (_is_list(kind) and kind)
        or (_is_list(size) and any(map(_is_list, size)))
    ):
        if not _is_list(size) or not all(map(_is_list, size)):
            raise AnalysisError(f"the shapes of argument {place} are no list of shapes")
        steps = step if _is_list(step) and len(step) == len(size) else [None] * len(size)
        kinds = kind if _is_list(kind) and len(kind) == len(size) else [None] * len(size)
        return tuple(
            _tensor(place, shape, usual_dtype if dtype is None else _dtype(place, dtype), stride)
            for shape, dtype, stride in zip(size, kinds, steps, strict=True)
        )
    if not isinstance(kind, str):
        raise AnalysisError(f"the type of argument {place} is {str(kind)[:40]!r}")
    if kind not in ("Scalar", "ScalarList", ""):
        return _tensor(place, size, _dtype(place, kind), step)
    number = _value(value)
    if number is None and place in timeable.usual:
        return timeable.usual[place]
    if number is None and kind:
        raise AnalysisError(
            f"the value of argument {place} was not recorded", hint="record with torch 2.1 or later"
        )
    return number


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _dtype(place: int, kind: Any) -> str:
    # with a capital, older recordings name the types of numbers
    dtype = element_type(kind) if isinstance(kind, str) and kind[:1].islower() else None
    if dtype is None or not dtype.torch:
        raise AnalysisError(f"argument {place} has the unknown element type {str(kind)[:40]!r}")
    return dtype.torch


def _tensor(place: int, size: Any, dtype: str, step: Any) -> RecordedTensor:
    shape = _whole(size)
    if shape is None:
        raise AnalysisError(f"argument {place} has no shape but {str(size)[:40]!r}")
    strides = _contiguous(shape) if step is None else _whole(step)
    if strides is None or len(strides) != len(shape):
        raise AnalysisError(
            f"argument {place} has the strides {str(step)[:40]!r} for the shape {shape}"
        )
    tensor = RecordedTensor(shape, strides, dtype)
    if tensor.elements > _LARGEST:
        raise AnalysisError(f"argument {place} has {tensor.elements:,} elements")
    return tensor


def _whole(values: Any) -> tuple[int, ...] | None:
    if not _is_list(values) or len(values) > _MOST_AXES:
        return None
    fit = all(
        isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST
        for value in values
    )
    return tuple(values) if fit else None


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(
        math.prod(max(1, size) for size in shape[axis + 1 :]) for axis in range(len(shape))
    )


def _value(text: Any) -> RecordedArgument:
    """A recorded number or list of numbers; None for anything else."""
    if not isinstance(text, str):
        return None
    if text in ("True", "False"):
        return text == "True"
    if text in ("inf", "-inf", "nan"):
        return float(text)
    if text.startswith("[") and text.endswith("]") and len(text) < 1024:
        parts = [part.strip() for part in text[1:-1].split(",")] if text[1:-1].strip() else []
        numbers = [_number(part) for part in parts]
        return (
            None if None in numbers else tuple(number for number in numbers if number is not None)
        )
    return _number(text)


def _number(text: str) -> int | float | None:
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else None


def _transposed(arguments: list[RecordedArgument], timeable: Timeable) -> list[RecordedArgument]:
    """Weights of a linear layer, whose product is called with the transposed weight."""
    return [
        replace(argument, strides=(1, argument.shape[0]))
        if isinstance(argument, RecordedTensor)
        and place in timeable.stored
        and len(argument.shape) == 2
        else argument
        for place, argument in enumerate(arguments)
    ]


def _numbers_for_scalars(arguments: list[RecordedArgument]) -> list[RecordedArgument]:
    """Replace tensors without axes by numbers if another argument has axes:

    Python numbers are recorded this way.
    """
    if not any(isinstance(argument, RecordedTensor) and argument.shape for argument in arguments):
        return arguments
    return [
        (0.5 if argument.dtype in _FLOATS else 1)
        if isinstance(argument, RecordedTensor) and not argument.shape
        else argument
        for argument in arguments
    ]


def _fewer_pages(
    arguments: list[RecordedArgument], timeable: Timeable
) -> tuple[list[RecordedArgument], list[str]]:
    """Caches with as many pages as fit the limit."""
    fewer = 0
    for place in timeable.pages:
        cache = arguments[place] if place < len(arguments) else None
        if (
            isinstance(cache, RecordedTensor)
            and cache.bytes > MOST_CACHE_BYTES
            and cache.shape[0] > 1
        ):
            page = max(1, cache.bytes // cache.shape[0])
            fewer = max(1, min(cache.shape[0], MOST_CACHE_BYTES // page))
    if not fewer:
        return arguments, []
    made = [
        replace(argument, shape=(min(fewer, argument.shape[0]), *argument.shape[1:]))
        if isinstance(argument, RecordedTensor) and place in timeable.pages
        else argument
        for place, argument in enumerate(arguments)
    ]
    return made, [f"the cache has {fewer:,} pages here, fewer than in the recording"]


def _content(timeable: Timeable, place: int, arguments: list[RecordedArgument]) -> RecordedArgument:
    """An argument with the values that its tensor must hold."""
    argument, rule = arguments[place], timeable.holds.get(place)
    if not isinstance(argument, RecordedTensor) or rule is None:
        return argument
    kind, *given = rule
    if kind == "ones":
        return replace(argument, holds=("filled", 1))
    if kind == "fa3_metadata":
        return replace(argument, holds=("fa3_metadata",))
    other = arguments[given[0]] if given[0] < len(arguments) else None
    if kind in ("value", "below_value"):
        if not isinstance(other, int):
            raise AnalysisError(f"the value of argument {given[0]} was not recorded")
        return replace(argument, holds=("filled" if kind == "value" else "below", other))
    if not isinstance(other, RecordedTensor) or not other.shape:
        raise AnalysisError(f"argument {given[0]} was not recorded as a tensor")
    axis = 0
    if kind == "below_axis":
        number = arguments[given[1]]
        axis = number if isinstance(number, int) else len(other.shape)
        kind = "below"
    elif kind == "below":
        axis = given[1]
    if not -len(other.shape) <= axis < len(other.shape):
        raise AnalysisError(f"argument {given[0]} has no axis {axis}")
    size = other.shape[axis]
    if kind == "ends":
        longest = arguments[given[1]]
        return replace(argument, holds=("ends", size, longest if isinstance(longest, int) else 0))
    if kind == "slots":
        size *= other.shape[1] if len(other.shape) > 1 else 1
        if argument.elements > size:
            raise AnalysisError(
                f"argument {place} has more places than the cache of argument {given[0]}"
            )
    if kind in ("below", "pages") and argument.elements and not size:
        raise AnalysisError(f"argument {given[0]} is empty, and argument {place} points into it")
    return replace(argument, holds=(kind, size))


def _tensors(arguments: Sequence[RecordedArgument]) -> list[RecordedTensor]:
    flat = [
        part
        for argument in arguments
        for part in (argument if isinstance(argument, tuple) else (argument,))
    ]
    return [argument for argument in flat if isinstance(argument, RecordedTensor)]
