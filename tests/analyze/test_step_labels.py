"""Step labels in every form that an engine wrote, and texts that only look like one."""

import polars as pl
import pytest

from llmprof.label.steps import labels

COLUMNS = [
    "source",
    "phase",
    "prefill_requests",
    "prefill_tokens",
    "decode_requests",
    "decode_tokens",
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
        (
            "step[MIXED bs=7 c=2 g=5 c_sq=96 c_sk=160 c_sqsq=5120 c_sqsk=9000 g_sq=10 g_sk=70]",
            ("sglang", "mixed", 2, 96, 5, 10),
        ),
        ("step[DECODE bs=6 g_sq=18 g_sk=900]", ("sglang", "decode", 0, 0, 6, 18)),
        (
            "prefill[bs=3 tok=900 ctx=[100, 300, 500] sqsq=1 sqsk=1 sk=900]",
            ("atom", "prefill", 3, 900, 0, 0),
        ),
        ("prefill[bs=7 tok=77 ctx=[9, 9, 9]...+4]", ("atom", "prefill", 7, 77, 0, 0)),
        ("prefill[bs=2]", ("atom", "prefill", 2, None, 0, 0)),
        ("decode[bs=30/32 tok=30 d=30]", ("atom", "decode", 0, 0, 30, 30)),
        ("eager_decode[bs=5 tok=20 d=5 spec=3]", ("atom", "decode", 0, 0, 5, 20)),
        ("decode[bs=12 tok=48 p=2 d=10]", ("atom", "mixed", 2, None, 10, None)),
        ("dummy_prefill[bs=1 tok=1 ctx=1]", ("atom", "empty", 0, 0, 0, 0)),
        ("dummy_eager_decode[bs=1/8 tok=1 d=1]", ("atom", "empty", 0, 0, 0, 0)),
        (
            "[Executor] _forward_step 7: 0 ctx reqs, 3 gen reqs",
            ("tensorrt_llm", "decode", 0, 0, 3, None),
        ),
        (
            "[Executor] _forward_step 8: 2 ctx reqs, 70 ctx tokens, 3 gen reqs",
            ("tensorrt_llm", "mixed", 2, 70, 3, None),
        ),
        (
            "[Executor] _forward_step: 2 ctx reqs, 0 gen reqs",
            ("tensorrt_llm", "prefill", 2, None, 0, 0),
        ),
        ("[Executor] _forward_step 9: 4 gen reqs", ("tensorrt_llm", "decode", 0, 0, 4, None)),
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
        "draft[1/2 bs=4]",
        "propose_decode",
        "[Executor] _forward_step 4",
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
