"""Arguments of public functions: whatever is wrong is refused with an error that names the
argument.
"""

import importlib
import inspect
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pandas as pd
import polars as pl
import pytest

import llmprof
import llmprof.run.batch
from llmprof import analyze, charts
from llmprof.analyze.kernels import events_within, kernels_within
from llmprof.errors import (
    AnalysisError,
    ArgumentError,
    AtLeastOne,
    Columns,
    LlmprofError,
    NotCapturedError,
    NotNegative,
    Share,
    Window,
    checked,
)
from llmprof.trace import Trace
from tests.samples import sample

DOORS = (
    "llmprof.analyze",
    "llmprof.analyze.ncu",
    "llmprof.analyze.npu",
    "llmprof.analyze.nsys",
    "llmprof.charts",
    "llmprof.explore",
    "llmprof.report",
    "llmprof.run.launch",
    "llmprof.run.batch",
    "llmprof.readers",
    "llmprof.theory",
    "llmprof.trace.metrics",
    "llmprof.readers.redaction",
    "llmprof.run.launch.monitors",
    "llmprof.run.trials",
    "llmprof.run.live",
)
MODULES = ("llmprof.trace.schema", "llmprof.names", "llmprof.units", "llmprof.theory.hardware")
METHODS = (Trace, llmprof.Metrics)


class Odd:
    """Of a kind that no function takes."""


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every public function and method with its name."""
    for door in DOORS:
        package = importlib.import_module(door)
        for name in package.__all__:
            if isinstance(value := getattr(package, name), types.FunctionType):
                yield f"{door}.{name}", value
    for module in map(importlib.import_module, MODULES):
        for name, value in vars(module).items():
            if (
                inspect.isfunction(value)
                and value.__module__ == module.__name__
                and not name.startswith("_")
            ):
                yield f"{module.__name__}.{name}", value
    for of in METHODS:
        for name, value in vars(of).items():
            function = value.__func__ if isinstance(value, classmethod) else value
            if isinstance(function, types.FunctionType) and (
                name == "__init__" or not name.startswith("_")
            ):
                yield f"{of.__name__}.{name}", function


FUNCTIONS = dict(functions())


@pytest.mark.parametrize(
    "path",
    [
        path
        for path, function in FUNCTIONS.items()
        if set(inspect.signature(function).parameters) - {"self"} and not path.startswith("Trace.")
    ],
)
def test_every_public_function_refuses_what_it_does_not_have(path):
    with pytest.raises(ArgumentError):
        FUNCTIONS[path](*[Odd()] * 20, nonsense=1)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return sample("torch_tp1_eager")


WRONG_VALUES: dict[str, list[Any]] = {
    "by": ["nope", "", ("rank", "nope"), 3, [3]],
    "window": [(5, 1), (float("nan"), 1), (1,), "whole", (0, None)],
    "where": [
        {"nope": 1},
        {"rank": "x"},
        {"rank": 99},
        {"step": 999},
        {"layer": -1},
        {"phase": 3},
        "decode",
    ],
    "ranks": [[99], "all", [0.5]],
    "rank": [99, -5, "x"],
    "step": [999, "last"],
    "layer": [999],
    "stage": ["nope", ""],
    "bins": [-1, 10**9, 1.5],
    "bin_ns": [0, -1],
    "min_ns": [-1, 0.5, "1ms"],
    "tolerance": [-1, "5%"],
    "measure": ["speed"],
    "name": ["nope"],
    "kernel": ["nope", 10**9],
    "device": ["NVIDIA H9000"],
}


RUN = SimpleNamespace(trace=None, requests=None, engine_steps=None)
NEEDED = {"program": ["python"], "window": (0, 1000), "model": "Qwen2.5-1.5B", "run": RUN}
WITHIN = {
    f"llmprof.analyze.kernels.{one.__name__}": checked(one)
    for one in (events_within, kernels_within)
}
"""What the explorers ask for with labels and windows."""


def wrong_calls() -> Iterator[Any]:
    """Each wrong value, and every analysis that takes an argument of its name."""
    for name, values in WRONG_VALUES.items():
        taking = [
            function
            for path, function in (FUNCTIONS | WITHIN).items()
            if path.startswith("llmprof.analyze") and name in inspect.signature(function).parameters
        ]
        for value in values:
            yield pytest.param(taking, name, value, id=f"{name}={value!r}")


@pytest.mark.parametrize(("taking", "name", "value"), list(wrong_calls()))
def test_a_value_that_cannot_be_is_named(trace, taking, name, value):
    refused = 0
    for function in taking:
        given: dict[str, Any] = {}
        for argument, parameter in inspect.signature(function).parameters.items():
            if parameter.default is parameter.empty:
                if argument == "metrics":
                    given[argument] = llmprof.sample_metrics("ncu_tp1_eager")
                elif argument == "source":
                    given[argument] = pl.DataFrame()
                else:
                    given[argument] = NEEDED.get(argument, trace)
        if "kernel" in inspect.signature(function).parameters and name not in ("kernel", "stage"):
            given["stage"] = "attention"
        if name == "bins" and "'time'" in str(inspect.signature(function).parameters.get("by")):
            given["by"] = "time"  # else the bins are not asked for
        with pytest.raises(LlmprofError) as raised:
            function(**given | {name: value})
        if isinstance(raised.value, NotCapturedError):
            continue  # the sample is not of the profiler that records what is asked for
        refused += 1
        said = str(raised.value)
        assert name.rstrip("s") in said or str(value) in said, (function.__name__, said)
    assert refused


FRAME_CHARTS = [
    name
    for name in charts.__all__
    if next(iter(inspect.signature(getattr(charts, name)).parameters), "") == "frame"
]


@pytest.mark.parametrize("name", FRAME_CHARTS)
def test_charts_of_frames_that_do_not_fit(trace, tmp_path, name):
    chart = getattr(charts, name)
    for frame in (pl.DataFrame(), pl.DataFrame({"x": [1]}), trace.kernels.clear()):
        more = {"path": tmp_path / "x"} if "path" in inspect.signature(chart).parameters else {}
        with pytest.raises(AnalysisError, match=rf"{name}\(\)"):
            chart(frame, **more)


@pytest.mark.parametrize("name", ["timeline", "layers", "overlap", "collectives", "kernels"])
def test_explorers_name_what_they_do_not_take(trace, name):
    explorer = getattr(llmprof.explore, name)
    with pytest.raises(ArgumentError, match=r"has no nonsense; expected some of .*window"):
        explorer(trace, nonsense=1)
    with pytest.raises(ArgumentError, match="'rank' trait"):
        explorer(trace, rank="x")
    with pytest.raises(ArgumentError, match="window is"):
        explorer(trace, window=(5, 1))
    with pytest.raises(ArgumentError, match="got 3 among widgets"):
        llmprof.explore.link(explorer(trace), 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda t: analyze.findings("run.json"),
            r"'run.json' as trace; .*Trace; read it first: llmprof.read",
        ),
        (lambda t: analyze.overlap(Path("a.json")), "read it first: llmprof.read"),
        (lambda t: analyze.ncu.stalls("a.ncu-rep"), "llmprof.read_metrics"),
        (lambda t: charts.breakdown(t.kernels.lazy()), "collect it first"),
        (lambda t: charts.breakdown(pd.DataFrame({"x": [1]})), "polars.from_pandas"),
        (
            lambda t: analyze.overlap(),
            r"missing a required argument: 'trace'; expected its arguments: trace, by",
        ),
        (
            lambda t: analyze.overlap(t, by="rank", bye=1),
            "unexpected keyword argument 'bye'; .*trace, by.*did you mean by",
        ),
        (lambda t: analyze.layers(t, "layer"), "too many positional arguments"),
        (
            lambda t: analyze.idle(t, min_ns=True),
            "got True as min_ns; expected a whole number from 0 on",
        ),
        (
            lambda t: analyze.overlap(llmprof.sample_metrics("ncu_tp1_eager")),
            "got a Metrics as trace",
        ),
        (lambda t: t.select(rank=t), "got a Trace as rank"),
        (lambda t: t.table("kernel"), "no table 'kernel'"),
        (lambda t: Trace({"kernels": [1]}), r"got \[1\] as frame; expected polars.DataFrame"),
    ],
)
def test_what_to_do_is_said(trace, call, message):
    with pytest.raises(LlmprofError, match=message):
        call(trace)


def test_one_name_alone_and_keywords_are_taken(trace):
    assert analyze.overlap(trace=trace, by="phase").columns[:2] == ["rank", "phase"]
    assert analyze.overlap(trace, by="rank").equals(analyze.overlap(trace, by=["rank", "rank"]))
    assert analyze.kernels(trace, by="rank").equals(analyze.kernels(trace=trace, by=("rank",)))
    assert analyze.idle(trace, min_ns=np.int64(1000)).equals(analyze.idle(trace, min_ns=1000))
    whole = analyze.overlap(trace, window=(0, 1_000_000))
    assert analyze.overlap(trace, window=[0, 1e6]).equals(whole)


@pytest.mark.parametrize(
    ("annotation", "accepted", "refused"),
    [
        (int, [1, np.int32(2)], [1.0, True, "1", None]),
        (float, [1, 1.5, np.float32(2)], [True, "1", None, 1j]),
        (bool, [True], [1, None, "yes"]),
        (str | Path, ["x", Path("x")], [1]),
        (Sequence[str], [["x"], ("x", "y"), []], ["x", [1], {"x"}, None]),
        (Mapping[str, int], [{"x": 1}, {}], [[("x", 1)]]),
        (tuple[int, str], [(1, "x")], [(1,), ("x", 1), 3]),
        (list[float] | None, [[1.0], None], [["x"], 1.0]),
        (Literal["a", "b"], ["a"], ["c", 1, None]),
        (Callable[[int], int], [len], [3]),
        (pl.DataFrame, [pl.DataFrame()], [pl.Series(), None]),
        (Columns, ["x", ["x"], {"x"}], [1, [1], None]),
        (Window, [(0, 1), [0.5, 2]], [(1,), "ab", ("a", "b"), None]),
        (Any, [Odd(), None], []),
    ],
)
def test_kinds(annotation, accepted, refused):
    def function(value):
        return value

    function.__annotations__["value"] = annotation
    call = checked(function)
    for value in accepted:
        call(value)
    for value in refused:
        with pytest.raises((AnalysisError, ArgumentError), match="value"):
            call(value)


def test_values_are_handed_on_in_one_form():
    @checked
    def taken(
        by: Columns,
        window: Window | None = None,
        n: AtLeastOne = 1,
        m: NotNegative = 0,
        part: Share = 0,
    ) -> Any:
        return by, window, n, m, part

    assert taken("x", [0, 5], np.int64(2), 0, 1) == (("x",), (0, 5), 2, 0, 1.0)
    assert type(taken("x", n=np.int64(2))[2]) is int
    for wrong in ({"n": 0}, {"m": -1}, {"part": 1.5}, {"window": (2, 1)}):
        with pytest.raises(AnalysisError, match=re.escape(f"{next(iter(wrong))}=")):
            taken("x", **wrong)


def test_checks_keep_name_signature_and_docstring():
    assert analyze.overlap.__name__ == "overlap"
    assert "Parameters" in (analyze.overlap.__doc__ or "")
    assert list(inspect.signature(analyze.overlap).parameters) == [
        "trace",
        "by",
        "waits",
        "window",
    ]
