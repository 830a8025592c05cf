"""Speculative decoding, by hand: what is drafted and verified in a step, and the tokens that it
gives.
"""

import polars as pl
import pytest

from llmprof.analyze import speculation
from llmprof.errors import AnalysisError
from llmprof.trace import Trace
from tests.analyze.builders import DENSE, EMBEDDING, GEMM, NORM, SAMPLE, kernels, labels
from tests.building import table_of

MODEL = [EMBEDDING, *DENSE * 4, NORM, GEMM, SAMPLE]  # 44 kernels of 10 ns
HEADS = [EMBEDDING, *DENSE, NORM, GEMM, SAMPLE]  # 14 kernels
PERIOD = 1_000


def trace_of(*steps, drafts=HEADS):
    """Steps of (requests and tokens of prompts, requests and tokens that are generated), one
    each ``PERIOD``.
    """
    runs = [
        kernels([*MODEL, *drafts], start=PERIOD * i, first=1 + 100 * i) for i in range(len(steps))
    ]
    marks = [
        (f"execute_context_{a}({b})_generation_{c}({d})", PERIOD * i - 1, PERIOD - 2)
        for i, (a, b, c, d) in enumerate(steps)
    ]
    return Trace({"kernels": pl.concat(runs), "markers": labels(marks, on_device=True)})


def noted(notes):
    """Tokens of each request in each step, and its tokens before."""
    rows = [
        ("profiled", step, name, tokens, computed)
        for step, of_requests in enumerate(notes)
        for name, (tokens, computed) in of_requests.items()
    ]
    return table_of("phase step engine_id tokens computed", rows)


STEPS = ((2, 30, 0, 0), (0, 0, 2, 6), (0, 0, 2, 6), (0, 0, 2, 6))


def test_drafting_and_verifying():
    found = speculation(trace_of(*STEPS))
    assert found.select(
        "step", "requests", "draft_tokens", "draft_ns", "tokens_per_request"
    ).rows() == [(step, 2, 4, 140, None) for step in (1, 2, 3)]


def test_accepted_tokens_are_those_that_count_as_computed_in_the_next_step():
    # of two drafts each, a is right with both and then with one, b with none and then with one
    notes = [
        {"a": (10, 0), "b": (20, 0)},
        {"a": (3, 10), "b": (3, 20)},
        {"a": (3, 13), "b": (3, 21)},
        {"a": (3, 15), "b": (3, 23)},
    ]
    found = speculation(trace_of(*STEPS), engine_steps=noted(notes))
    assert found.select("step", "tokens_per_request", "acceptance", "token_ns").rows() == [
        (1, 2.0, 0.5, PERIOD / 2),
        (2, 2.0, 0.5, PERIOD / 2),
        (3, None, None, None),  # what the last step gave is not noted
    ]


def test_an_engine_that_schedules_ahead_takes_off_rejected_drafts_a_step_later():
    # of one draft each: a is right in step 1, b never
    steps = ((2, 30, 0, 0), *[(0, 0, 2, 4)] * 4)
    notes = [
        {"a": (10, 0), "b": (20, 0)},
        {"a": (2, 10), "b": (2, 20)},
        {"a": (2, 12), "b": (2, 22)},
        {"a": (2, 14), "b": (2, 23)},
        {"a": (2, 15), "b": (2, 24)},
    ]
    found = speculation(trace_of(*steps), engine_steps=noted(notes))
    assert found.select("step", "tokens_per_request", "acceptance").rows() == [
        (1, 1.5, 0.5),
        (2, 1.0, 0.0),
        (3, None, None),
        (4, None, None),
    ]


def test_what_says_nothing_of_drafts():
    found = speculation(trace_of(*STEPS, drafts=[]))
    assert found.select("draft_tokens", "draft_ns").rows() == [(4, 0)] * 3
    assert speculation(trace_of((1, 30, 0, 0), (0, 0, 1, 1), drafts=[])).is_empty()
    with pytest.raises(AnalysisError, match="engine_id"):
        speculation(trace_of(*STEPS), engine_steps=noted([]).drop("engine_id"))
    found = speculation(trace_of(*STEPS), engine_steps=noted([{"a": (3, 10)}] * 4))
    assert found["tokens_per_request"].null_count() == found.height == 3
