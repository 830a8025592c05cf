"""The examples of the docstrings run, and print what they say."""

import doctest
import importlib
from pathlib import Path

import polars as pl
import pytest

import llmprof
from llmprof import analyze, charts
from llmprof.readers import bundled
from llmprof.run import batch, trials
from tests.samples import sample

ROOT = Path(llmprof.__file__).parents[1]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "llmprof").rglob("*.py")
    if ">>>" in path.read_text("utf-8")
)


@pytest.fixture(scope="module")
def names():
    """What the examples of the reference take for granted."""
    modules = {
        "llmprof": llmprof,
        "analyze": analyze,
        "batch": batch,
        "charts": charts,
        "trials": trials,
        "pl": pl,
    }
    return modules | {
        "trace": sample("torch_tp1_cudagraph"),
        "ranks": sample("torch_tp4_eager_nccl"),
        "metrics": llmprof.sample_metrics("ncu_tp1_eager"),
        "sample_folder": bundled.samples_folder() / "torch_tp1_cudagraph",
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    report = []
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        test.globs |= names
        runner.run(test, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)
