"""Shapes that a profiler records of the kernels themselves, as texts of a call: those of
Huawei's msprof.
"""

from __future__ import annotations

import json
from typing import Final

import polars as pl

from llmprof.label.activity import EVENT_KEY, add_recorded, launched_events
from llmprof.theory.calls import costed_operator
from llmprof.theory.calls.npu import PREFIX
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace

_SIDES: Final = (
    "ascend_input_shapes",
    "ascend_input_dtypes",
    "ascend_output_shapes",
    "ascend_output_dtypes",
)
_TYPE: Final = "ascend_op_type"
_TYPES: Final = {"bf16": "bfloat16", "int16": "short", "uint32": "unsigned int"}

_ArgumentTexts = tuple[str | None, str | None]


def own_arguments(trace: Trace) -> bool:
    """Whether the kernels have columns for arguments of their own."""
    return trace.has("kernels") and {_TYPE, *_SIDES} <= set(trace.kernels.columns)


@per_trace
def of_kernels(trace: Trace) -> pl.DataFrame:
    """``operator, shapes, dtypes`` of each device event; null where its kernel recorded none, or
    has no known work.
    """
    texts = dict.fromkeys(("operator", "shapes", "dtypes"), pl.String)
    events = launched_events(trace)
    if not own_arguments(trace):
        return pl.DataFrame(schema=texts).clear(events.height)
    types = trace.kernels[_TYPE].drop_nulls().unique()
    known = [name for name in types if costed_operator(PREFIX + name) is not None]
    kernels = trace.kernels.filter(pl.col(_TYPE).is_in(known)).select(*EVENT_KEY, _TYPE, *_SIDES)
    distinct = kernels.select(_SIDES).unique()
    made = [_texts(*row) for row in distinct.iter_rows()]
    distinct = distinct.with_columns(
        pl.Series("shapes", [shapes for shapes, _ in made], dtype=pl.String),
        pl.Series("dtypes", [dtypes for _, dtypes in made], dtype=pl.String),
    )
    kernels = kernels.join(distinct, on=_SIDES, how="left", nulls_equal=True, maintain_order="left")
    found = add_recorded(events.select(EVENT_KEY), kernels)
    operator = pl.when(pl.col("shapes").is_not_null()).then(PREFIX + pl.col(_TYPE))
    return found.select("shapes", "dtypes", operator=operator).select(*texts)


def _texts(
    inputs: str | None, input_types: str | None, results: str | None, result_types: str | None
) -> _ArgumentTexts:
    """Shapes and types of inputs and results as a call has them: a list of each."""
    sides = [_listed(inputs, input_types), _listed(results, result_types)]
    if not sides[0][0] and not sides[1][0]:
        return None, None
    return json.dumps([shapes for shapes, _ in sides]), json.dumps([types for _, types in sides])


def _listed(shapes: str | None, types: str | None) -> tuple[list[list[int]], list[str]]:
    """Shapes such as ``4096,1024;;8`` and their types; what has no shape has no elements."""
    text = (shapes or "").strip('"')
    if not text or text == "N/A":
        return [], []
    each = text.split(";")
    kinds = (types or "").split(";")
    if len(kinds) != len(each) or not all(
        part.isdigit() for one in each for part in one.split(",") if part
    ):
        return [], []
    sizes = [[int(part) for part in one.split(",") if part] or [0] for one in each]
    named = [kind.strip().lower().removeprefix("dt_") for kind in kinds]
    return sizes, [
        "uint8" if size == [0] else _TYPES.get(kind, kind)
        for size, kind in zip(sizes, named, strict=True)
    ]
