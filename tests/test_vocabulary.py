"""One word for one thing: names of arguments and columns follow docs/vocabulary.md."""

from __future__ import annotations

import inspect

import polars as pl
import pytest

from llmprof import analyze, charts, explore
from llmprof.errors import LlmprofError
from tests.samples import sample

PACKAGES = (analyze, analyze.nsys, charts, explore)
FUNCTIONS = {
    f"{package.__name__}.{name}": value
    for package in PACKAGES
    for name in package.__all__
    if inspect.isfunction(value := getattr(package, name))
}
BY = "Columns", "str | Sequence[str]"


@pytest.mark.parametrize("path", FUNCTIONS)
def test_arguments_mean_one_thing(path):
    parameters = inspect.signature(FUNCTIONS[path]).parameters
    names = list(parameters)
    assert "window_ns" not in names
    if "by" in names:
        assert parameters["by"].annotation in BY, "by is names of columns; per says what a row is"
    if "window" in names:
        assert "Window" in parameters["window"].annotation
    for name in ("window", "by", "per", "where", "other", "top", "title"):
        if name in names:
            assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY, name
    if "trace" in names and parameters["trace"].default is inspect.Parameter.empty:
        assert names[0] == "trace"
    if "metrics" in names and names[0] != "metrics" and path.startswith("llmprof.explore"):
        assert parameters["metrics"].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize("path", [path for path in FUNCTIONS if path.startswith("llmprof.analyze")])
def test_columns_mean_one_thing(path):
    trace = sample("torch_tp1_eager")
    try:
        frame = FUNCTIONS[path](trace)
    except LlmprofError:
        return  # it needs something else than this trace
    if not isinstance(frame, pl.DataFrame):
        return
    assert not {"instances", "device_start_ns", "device_dur_ns", "n", "number"} & set(frame.columns)
    for name, dtype in frame.schema.items():
        if name.endswith(("start_ns", "end_ns")):
            assert dtype == pl.Int64, name
