"""Conditions: what they mean, and what is said of those that mean nothing."""

import pytest

from llmprof.errors import ConfigError
from llmprof.run.live.condition import Condition


@pytest.mark.parametrize(
    ("text", "row", "holds"),
    [
        ("ttft_p99 > 500ms", {"ttft_p99": 0.6}, True),
        ("ttft_p99>0.5s", {"ttft_p99": 0.5}, False),
        ("ttft_p99 >= 5e2ms", {"ttft_p99": 0.5}, True),
        ("waiting > 4 and kv_usage > 90%", {"waiting": 5, "kv_usage": 0.95}, True),
        ("waiting > 4 and kv_usage > 90%", {"waiting": 5, "kv_usage": 0.85}, False),
        ("waiting > 4 or kv_usage > 90%", {"waiting": 5}, True),
        ("waiting > 4 and kv_usage > 90%", {"waiting": 5}, False),  # what is unknown does not hold
        ("not kv_usage > 90%", {"kv_usage": None}, False),
        ("not (waiting > 4 or running < 1)", {"waiting": 0, "running": 2}, True),
        (
            "running > 1 or waiting > 1 and kv_usage > 0.5",
            {"running": 2, "waiting": 0, "kv_usage": 0},
            True,
        ),
    ],
)
def test_it_holds(text, row, holds):
    assert Condition(text).holds(row, 0.0) is holds


def test_it_has_to_last():
    condition = Condition("waiting > 4 for 30s")
    seen = [
        condition.holds({"waiting": waiting}, at)
        for at, waiting in [
            (0, 9),
            (20, 9),
            (30, 9),
            (40, 3),
            (50, 9),
            (79, 9),
            (80, 9),
            (81, None),
            (95, 9),
            (126, 9),
        ]
    ]
    assert seen == [False, False, True, False, False, False, True, False, False, True]
    condition = Condition("(waiting > 4 or running > 4) for 1m and kv_usage > 50%")
    rows = [
        {"waiting": 9, "running": 0, "kv_usage": 0.1},
        {"waiting": 0, "running": 9, "kv_usage": 0.9},
    ]
    assert [condition.holds(row, at) for at, row in zip((0.0, 60.0), rows, strict=True)] == [
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "character 1"),
        ("ttft_p99 >> 5ms", "character 11"),
        ("ttft_p99 > 5", "a time such as"),
        ("ttft_p9 > 5ms", "did you mean ttft_p"),
        ("waiting > 4ms", "without a unit"),
        ("waiting > 4 for 30", "no time"),
        ("waiting > 4 for 30%", "no time"),
        ("__import__('os').system('true')", "character"),
        ("waiting > 4 and", "cannot be read"),
    ],
)
def test_what_means_nothing(text, said):
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        Condition(text)
