"""Verdicts of a comparison by hand, and their Markdown."""

import polars as pl
import pytest

from llmprof.analyze.compare.diff import VERDICTS, gate, markdown
from llmprof.analyze.compare.times import SCHEMA
from llmprof.errors import AnalysisError


def step(phase, a, b, noise=1.0, **more):
    """A step of two runs in us; the interval is the change and ``noise`` us around it."""
    change = None if a is None or b is None else b - a
    low = None if change is None or noise is None else (change - noise) * 1000
    high = None if change is None or noise is None else (change + noise) * 1000
    return {
        "level": "step",
        "phase": phase,
        "a_ns": a and a * 1000,
        "b_ns": b and b * 1000,
        "delta_ns": None if change is None else change * 1000,
        "low_ns": low,
        "high_ns": high,
        "beyond_noise": None if low is None else low > 0 or high < 0,
        "a_steps": 9 if a else 0,
        "b_steps": 9 if b else 0,
        **more,
    }


def frame(*rows):
    return pl.DataFrame(list(rows), schema=SCHEMA)


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (step("decode", 100, 110), "slower"),
        (step("decode", 100, 110, noise=20), "within noise"),
        (step("decode", 100, 110, noise=None), "too few steps"),
        (step("decode", 100, 103), "as fast"),
        (step("decode", 100, 104), "slower"),
        (step("decode", 100, 90), "faster"),
        (step("decode", 100, 90, noise=15), "within noise"),
        (step("decode", 100, None), "only in a"),
        (step("decode", None, 100), "only in b"),
    ],
)
def test_verdict_of_a_phase(row, verdict):
    found = gate(frame(row), over=0.03)
    assert found["verdict"].item() == verdict
    assert verdict in VERDICTS


def test_change_and_interval_are_shares_of_a():
    row = gate(frame(step("decode", 200, 220, noise=10)), over=0.05).row(0, named=True)
    assert (row["change"], row["low"], row["high"]) == (
        pytest.approx(0.1),
        pytest.approx(0.05),
        pytest.approx(0.15),
    )
    with pytest.raises(AnalysisError, match="has no columns"):
        gate(pl.DataFrame({"a": [1]}))


def test_markdown_says_the_verdict_first_and_escapes_names():
    part = step("decode", 40, 60, level="part", kind="compute", part="attention|x")
    text = markdown(frame(step("decode", 100, 120), part), names=("main", "my_branch|"), over=0.03)
    lines = text.splitlines()
    assert lines[0] == "**Slower**: a step of decode takes +20.0%, more than the 3.0% allowed."
    assert lines[4] == "| phase | main | my\\_branch\\| | change | 95 % interval | verdict |"
    assert lines[6] == "| decode | 100 us | 120 us | +20.0% | +19.0% to +21.0% | slower |"
    assert lines[-1] == "| decode | attention\\|x | 40.0 us | 60.0 us | +20.0 us | +20.0 % |"
    assert markdown(frame(step("decode", 100, 101))).startswith(
        "**Not slower** by more than the 3.0% allowed."
    )
