"""Labels of engines that are not known: steps without a phase, until their pattern is given."""

import polars as pl
import pytest

from llmprof import plugins
from llmprof.analyze import coverage, steps
from llmprof.errors import LlmprofError
from llmprof.trace import Trace
from tests.analyze.builders import GEMM, kernels, labels, launches


def odd_engine(*names):
    """Passes whose kernels tell of no steps, in ranges of an engine that is not known."""
    runs = [kernels([GEMM] * 6, start=1000 * n + 100, first=1 + 10 * n) for n in range(len(names))]
    run = pl.concat(runs)
    marks = labels([(name, 1000 * n + 50, 900) for n, name in enumerate(names)])
    inner = labels([("warm iteration", 1000 * n + 60, 20) for n in range(len(names))])
    return Trace({"kernels": run, "runtime": launches(run), "markers": pl.concat([marks, inner])})


UNKNOWN = ["acme_step read=2 write=0", *(f"acme_step read=0 write={n}" for n in (4, 4, 3))]


def test_an_unknown_label_is_a_step_without_a_phase_that_coverage_names():
    trace = odd_engine(*UNKNOWN)
    found = steps(trace)
    assert found["name"].to_list() == UNKNOWN
    assert set(found["phase"]) == {"other"}
    assert found["prefill_requests"].null_count() == found["decode_requests"].null_count() == 4
    row = coverage(trace).row(by_predicate=pl.col("kind") == "label", named=True)
    assert (row["count"], row["missing_count"], row["share"]) == (4, 4, 0.0)
    assert UNKNOWN[0] in row["denominator"]
    assert "LLMPROF_OWN" in row["denominator"]
    assert "label" not in coverage(odd_engine("step", "step"))["kind"]  # too few to be labels
    # modules that a framework names are no steps
    hooks = odd_engine(*(f"FSDP::pre_forward (block.{n}.step)" for n in range(4)))
    assert set(steps(hooks)["name"]) == {"warm iteration"}


def test_a_registered_label_has_its_meaning(monkeypatch, tmp_path):
    group = "read=(?P<prefill_requests>\\\\d+) write=(?P<decode_requests>\\\\d+)"
    (tmp_path / "own.toml").write_text(f'[steps]\nacme = "acme_step {group}"\n')
    monkeypatch.setenv("LLMPROF_OWN", str(tmp_path / "own.toml"))
    plugins.own.cache_clear()
    trace = odd_engine(*UNKNOWN)
    found = steps(trace)
    assert found["phase"].to_list() == ["prefill", "decode", "decode", "decode"]
    assert found["decode_requests"].to_list() == [0, 4, 4, 3]
    assert "label" not in coverage(trace)["kind"]
    (tmp_path / "own.toml").write_text('[steps]\nacme = "(acme"\n')
    plugins.own.cache_clear()
    with pytest.raises(LlmprofError, match="not a regular expression"):
        steps(odd_engine(*UNKNOWN))
    monkeypatch.undo()
    plugins.own.cache_clear()
