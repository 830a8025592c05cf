"""Arguments of recorded calls as compilers write them: ``bf16[4,8]`` is a tensor, ``bf16[4,8]{8,1}``
one with strides, ``bf16[4,8]*3`` three of them, ``None`` an argument that is not there, and any
other word a value.
"""

import json
import re

from llmprof.theory.calls import parse_call

TYPES = {
    "bf16": "c10::BFloat16",
    "f16": "c10::Half",
    "f32": "float",
    "f8": "c10::Float8_e4m3fn",
    "f4": "c10::Float4_e2m1fn_x2",
    "i64": "long int",
    "i32": "int",
    "u32": "unsigned int",
    "f8e8": "c10::Float8_e8m0fnu",
    "i8": "signed char",
    "u8": "unsigned char",
    "bool": "bool",
}
"""Types by the names that the profiler of torch gives them."""

_TENSOR = re.compile(r"(\w+)(\[[\d,]*\])(?:\{([\d,]+)\})?")


def argument(given):
    """Shape, type, strides and value of an argument: a word, or lists of shapes and types."""
    if not isinstance(given, str):
        return *given, [], ""
    if found := _TENSOR.fullmatch(given):
        kind, shape, strides = found.groups()
        return json.loads(shape), TYPES[kind], json.loads(f"[{strides or ''}]"), ""
    return [], *(("", [], "") if given == "None" else ("Scalar", [], given))


def words(text):
    """The words of a text, each as often as it says."""
    for word in text.split():
        one, _, times = word.partition("*")
        yield from [one] * int(times or 1)


def call(operator, *given, **more):
    """A call from texts of words, and from pairs of shapes and types."""
    each = [
        argument(one)
        for text in given
        for one in (words(text) if isinstance(text, str) else [text])
    ]
    return parse_call(operator, *(json.dumps([one[n] for one in each]) for n in range(4)), **more)


CANN = {"bf16": "bfloat16", "f32": "float", "i64": "int64", "u8": "uint8", "bool": "bool"}


def kernel(kind, *sides):
    """A kernel of CANN from its inputs and its results."""
    found = [[_TENSOR.fullmatch(word).groups() for word in words(side)] for side in sides]
    shapes = [[json.loads(shape) for _, shape, _ in side] for side in found]
    types = [[CANN[name] for name, _, _ in side] for side in found]
    return parse_call(f"cann::{kind}", json.dumps(shapes), json.dumps(types))
