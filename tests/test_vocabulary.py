"""One word for one thing: arguments and columns of one name mean the same everywhere."""

import inspect
import re

import polars as pl

from llmprof import analyze, charts, explore
from llmprof.errors import LlmprofError
from tests.samples import sample

FUNCTIONS = {
    f"{package.__name__}.{name}": value
    for package in (analyze, analyze.nsys, charts, explore)
    for name in package.__all__
    if inspect.isfunction(value := getattr(package, name))
}


def test_arguments_mean_one_thing():
    for path, function in FUNCTIONS.items():
        parameters = inspect.signature(function).parameters
        if "by" in parameters:
            assert re.match("Columns|str|Literal|Per", parameters["by"].annotation), path
        if "window" in parameters:
            assert "Window" in parameters["window"].annotation, path
        positional = {"other"} if path.startswith("llmprof.charts") else set()
        for name in {"window", "by", "where", "other", "top", "title"} & set(
            parameters
        ) - positional:
            assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY, (path, name)
        if "trace" in parameters and parameters["trace"].default is inspect.Parameter.empty:
            assert next(iter(parameters)) == "trace", path


def test_times_of_all_frames_are_whole_nanoseconds():
    seen = 0
    for path, function in FUNCTIONS.items():
        if not path.startswith("llmprof.analyze"):
            continue
        try:
            frame = function(sample("torch_tp1_eager"))
        except LlmprofError:  # it needs something else than this trace
            continue
        if isinstance(frame, pl.DataFrame):
            seen += 1
            times = [
                dtype
                for name, dtype in frame.schema.items()
                if name.endswith(("start_ns", "end_ns"))
            ]
            assert set(times) <= {pl.Int64}, path
    assert seen >= 40
