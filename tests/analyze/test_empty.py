"""Recorded but empty is not absent: every analysis gives a frame of its usual schema; what was
not recorded raises.
"""

import functools

import pytest

from llmprof import analyze
from llmprof.errors import NotCapturedError
from llmprof.trace import Trace, schema
from tests.analyze.builders import ALL_REDUCE, DENSE, EMBEDDING, kernels, labels, launches, ops

DEVICE = (
    "collectives",
    "coverage",
    "findings",
    "idle",
    "events",
    "kernels",
    "layer_gaps",
    "layers",
    "operators",
    "overlap",
    "step_time",
    "steps",
    "stream_gaps",
)
"""Analyses of device events."""


@functools.cache
def full():
    run = kernels([EMBEDDING, *DENSE, ALL_REDUCE, *DENSE, ALL_REDUCE], pause=3)
    return Trace(
        {
            "kernels": run,
            "copies": schema.empty("copies"),
            "runtime": launches(run),
            "ops": ops([("aten::mm", 0, 1, 1)]),
            "markers": labels([("execute_new_0_cached_4", -50, 10)]),
        },
        {"world_size": 1},
    )


def test_the_full_trace_has_rows():
    empty = {name for name in DEVICE if getattr(analyze, name)(full()).is_empty()}
    assert not empty


@pytest.mark.parametrize("name", [*DEVICE, "launch_delay"])
def test_recorded_but_empty(name):
    analysis = getattr(analyze, name)
    found = analysis(Trace({table: schema.empty(table) for table in schema.TABLES}))
    assert found.is_empty()
    assert found.schema == analysis(full()).schema


@pytest.mark.parametrize("tables", [("kernels",), ("copies",), ("kernels", "copies"), ("ops",)])
def test_recorded_but_empty_with_little_else(tables):
    trace = Trace({table: schema.empty(table) for table in tables})
    for name in DEVICE:
        analysis = getattr(analyze, name)
        if name == "operators":  # needs kernels and operators
            with pytest.raises(NotCapturedError):
                analysis(trace)
        else:
            found = analysis(trace)
            assert found.is_empty(), name
            assert found.schema == analysis(full()).schema, name


@pytest.mark.parametrize("name", DEVICE)
@pytest.mark.parametrize(
    "tables", [{}, {"markers": labels([("x", 0, 1)])}, {"runtime": launches(kernels(["x"]))}]
)
def test_not_recorded(name, tables):
    with pytest.raises(NotCapturedError):
        getattr(analyze, name)(Trace(tables))


@pytest.mark.parametrize("name", DEVICE)
def test_a_window_without_events(name):
    analysis = getattr(analyze, name)
    found = analysis(full().select(window=(10**9, 10**9 + 1)))
    assert found.is_empty()
    assert found.schema == analysis(full()).schema
