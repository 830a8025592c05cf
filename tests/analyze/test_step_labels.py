"""Step labels in every form that an engine wrote, and texts that only look like one."""

import polars as pl
import pytest

from llmprof.label.steps import labels

COLUMNS = [
    "source",
    "phase",
    "context_requests",
    "context_tokens",
    "generation_requests",
    "generation_tokens",
]

# as recorded
DETAILED = "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("execute_context_4(256)_generation_0(0)", ("vllm", "prefill", 4, 256, 0, 0)),
        ("execute_context_0(0)_generation_4(4)", ("vllm", "decode", 0, 0, 4, 4)),
        ("execute_context_3(192)_generation_1(1)", ("vllm", "mixed", 3, 192, 1, 1)),
        ("execute_context_0(0)_generation_0(0)", ("vllm", "empty", 0, 0, 0, 0)),
        (DETAILED, ("vllm", "mixed", 9, 8155, 37, 37)),
        ("execute_context_1(888_788544)_generation_0(0_0)", ("vllm", "prefill", 1, 888, 0, 0)),
        ("execute_context_1(888_788544)_generation_2(2_4096)", ("vllm", "mixed", 1, 888, 2, 2)),
        (
            "execute_context_0(0)_generation_4(20)",
            ("vllm", "decode", 0, 0, 4, 20),
        ),  # speculative decoding
        ("execute_new_3_cached_0", ("vllm", "prefill", 3, None, 0, None)),
        ("execute_new_0_cached_8", ("vllm", "decode", 0, None, 8, None)),
        ("execute_new_1_cached_8", ("vllm", "mixed", 1, None, 8, None)),
        ("execute_new_0_cached_0", ("vllm", "empty", 0, None, 0, None)),
        ("step[EXTEND bs=15 toks=15360]", ("sglang", "prefill", 15, 15360, 0, 0)),
        ("step[DRAFT_EXTEND_V2 bs=2 toks=6]", ("sglang", "prefill", 2, 6, 0, 0)),
        ("step[DECODE bs=64 toks=64]", ("sglang", "decode", 0, 0, 64, 64)),
        ("step[DECODE bs=64]", ("sglang", "decode", 0, 0, 64, 64)),
        ("step[TARGET_VERIFY bs=8 toks=32]", ("sglang", "decode", 0, 0, 8, 32)),
        ("step[MIXED bs=10 toks=520]", ("sglang", "mixed", None, None, None, None)),
        ("step[IDLE bs=0]", ("sglang", "empty", 0, 0, 0, 0)),
        ("step[IDLE]", ("sglang", "empty", 0, 0, 0, 0)),
        ("step[DUMMY_FIRST bs=1]", ("sglang", "other", None, None, None, None)),
        ("capture_8192_PIECEWISE", ("capture", "other", None, None, None, None)),
        ("capture_4_FULL", ("capture", "other", None, None, None, None)),
        ("ProfilerStep#551", ("profiler_step", "other", None, None, None, None)),
        (
            "execute_context_99999999999999999999(1)_generation_0(0)",
            ("vllm", "other", None, 1, 0, 0),
        ),
    ],
)
def test_every_form(name, expected):
    assert labels.parse_labels(pl.DataFrame({"name": [name]})).select(COLUMNS).row(0) == expected
    assert pl.Series([name]).str.contains(labels.ANY).all()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "execute_context_four(256)_generation_0(0)",
        "execute_context_4_generation_0",
        "before execute_context_4(256)_generation_0(0)",
        "execute_new_1",
        "step[extend]",
        "step[",
        "step",
        "capture_graph",
        "capture_8_",
        "ProfilerStep",
        "ProfilerStep#",
        "Optimizer.step#Adagrad.step",
        "layer::model.layers.0",
    ],
)
def test_other_texts_are_no_labels(name):
    assert not pl.Series([name]).str.contains(labels.ANY).any()
    assert labels.parse_labels(pl.DataFrame({"name": [name]})).select(COLUMNS).row(0) == (
        None,
        "other",
        *[None] * 4,
    )
