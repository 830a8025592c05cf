"""Requests joined to steps, on a timeline by hand: three requests, one of which waits behind the
prefill of another.

Steps (ms): 0 prefill of A, 10 to 30; 1 prefill of B beside a token of A, 30 to 60; 2 and 3 decode
of A and B, 65 to 75, 75 to 85, 90 to 100; 5 a token of B alone, 100 to 110; 6 prefill of C, 112 to
120; 7 its last, 120 to 130.
"""

from types import SimpleNamespace

import polars as pl
import pytest

from llmprof import analyze
from llmprof.analyze.requests.requests import PARTS, slowest
from llmprof.errors import AnalysisError, NotCapturedError, TraceWarning
from llmprof.run.launch.run.requests import engine_steps_of, requests_of
from llmprof.trace import Trace
from tests.analyze.builders import kernels, labels, launches, ops

EPOCH = 1_700_000_000_000_000_000
MS = 1_000_000
DECODE_OF_ONE = "execute_context_0(0)_generation_1(1)"
STEPS = [  # begin, end (ms), tokens, tokens before
    (10, 30, {"a": 100}, {"a": 0}),
    (30, 60, {"a": 1, "b": 300}, {"a": 100, "b": 0}),
    (65, 75, {"a": 1, "b": 1}, {"a": 101, "b": 300}),
    (75, 85, {"a": 1, "b": 1}, {"a": 102, "b": 301}),
    (90, 100, {"b": 1}, {"b": 302}),
    (100, 110, {"b": 1}, {"b": 303}),
    (112, 120, {"c": 50}, {"c": 0}),
    (120, 130, {"c": 1}, {"c": 50}),
]
REQUESTS = [  # name, arrival, first token, last token (ms), prompt, output
    ("a", 5, 31, 86, 100, 4),
    ("b", 12, 61, 112, 300, 5),
    ("c", 80, 121, 131, 50, 2),
]


def label(tokens, computed, prompts):
    context = [n for name, n in tokens.items() if computed[name] < prompts[name]]
    decode = [n for name, n in tokens.items() if computed[name] >= prompts[name]]
    return f"execute_context_{len(context)}({sum(context)})_generation_{len(decode)}({sum(decode)})"


def made(*, apart_ms=0.0, steps=STEPS, traced=None, ids="{}", requests=REQUESTS):
    """A run whose trace has all of the steps, or a stretch of them."""
    prompts = {name: prompt for name, *_, prompt, _ in REQUESTS}
    shown = steps if traced is None else steps[slice(*traced)]
    marks = [
        (0, 1, 1, int(b * MS), int((e - b) * MS), label(t, c, prompts), "user_annotation", False)
        for b, e, t, c in shown
    ]
    ops = [
        (0, 1, 1, int(b * MS), int((e - b) * MS), "aten::mm", "op", k)
        for k, (b, e, *_) in enumerate(shown)
    ]
    names = ["rank", "process", "thread", "start_ns", "dur_ns", "name"]
    trace = Trace(
        {
            "markers": pl.DataFrame(marks, schema=[*names, "domain", "on_device"], orient="row"),
            "ops": pl.DataFrame(ops, schema=[*names, "kind", "op_id"], orient="row"),
        },
        {"start_epoch_ns": EPOCH, "world_size": 1},
    )
    shift = EPOCH - round(apart_ms * MS)
    worker = {
        "requests": [
            {
                "phase": "profiled",
                "repeat": 0,
                "request": k,
                "id": ids.format(name),
                "start_ns": shift + at * MS,
                "prompt_tokens": prompt,
                "output_tokens": out,
                "ttft_s": (first - at) / 1e3,
                "e2e_s": (last - at) / 1e3,
            }
            for k, (name, at, first, last, prompt, out) in enumerate(requests)
        ],
        "stages": [],
        "engine_steps": [
            {
                "phase": "profiled",
                "start_ns": shift + int(b * MS),
                "end_ns": shift + int(e * MS),
                "tokens": {f"{ids.format(n)}-1f": v for n, v in t.items()},
                "computed": {f"{ids.format(n)}-1f": v for n, v in c.items()},
                "preempted": [],
            }
            for b, e, t, c in steps
        ],
    }
    return SimpleNamespace(
        trace=trace, requests=requests_of(worker), engine_steps=engine_steps_of(worker)
    )


def beside(*runs):
    """Engines of one server beside each other: each its rank, all with their notes and requests."""
    tables = {
        name: pl.concat(
            [
                run.trace.table(name).with_columns(rank=pl.lit(k, pl.Int32))
                for k, run in enumerate(runs)
            ]
        )
        for name in ("markers", "ops")
    }
    ranks = [{"rank": k, "engine": f"engine {k}", "rank_in_engine": 0} for k in range(len(runs))]
    trace = Trace(tables, {"start_epoch_ns": EPOCH, "world_size": 1, "ranks": ranks})
    steps = [
        # the server tells of its engines in another order than their traces
        run.engine_steps.with_columns(
            step=pl.col("step") + 100 * (len(runs) - k), engine=pl.lit(len(runs) - k, pl.Int64)
        )
        for k, run in enumerate(runs)
    ]
    served = [
        run.requests.with_columns(request=pl.col("request") + 10 * k) for k, run in enumerate(runs)
    ]
    return SimpleNamespace(
        trace=trace, requests=pl.concat(served), engine_steps=pl.concat(reversed(steps))
    )


def ms(frame, *names):
    return [
        tuple(round(row[name] / MS, 3) for name in names) for row in frame.iter_rows(named=True)
    ]


def test_parts_of_each_request_by_hand():
    found = analyze.requests(made())
    assert found["request"].to_list() == [0, 1, 2]
    # A: 5 ms until its prefill; B: behind the prefill of A from 12 to 30; C: from 80 to 112, steps
    # until 110 but for 85 to 90, then nothing until 112
    waits = ("queue_prefill_ns", "queue_decode_ns", "queue_other_ns")
    assert ms(found, *waits) == [(0, 0, 5), (18, 0, 0), (0, 25, 7)]
    # B has 300 of the 301 tokens of its step
    assert ms(found, "prefill_ns", "prefill_other_ns") == [(20, 0), (29.9, 0.1), (8, 0)]
    # A decodes in 30 to 60 beside a prefill of B, where a step that only decodes takes 10
    assert ms(found, "decode_ns", "decode_prefill_ns") == [(30, 20), (40, 0), (10, 0)]
    assert ms(found, "between_ns", "left_out_ns", "delivery_ns") == [
        (5, 0, 1),
        (10, 0, 2),
        (0, 0, 1),
    ]
    assert found["behind"].to_list() == [[], [0], []]
    assert found["steps"].to_list() == [4, 5, 2]
    assert found["reason"].to_list() == [
        "its own decode",
        "its own decode",
        "waiting behind the decode of others",
    ]
    parts = pl.sum_horizontal(PARTS)
    assert found.select(parts.alias("sum"))["sum"].to_list() == found["e2e_ns"].to_list()
    assert found["rest_ns"].to_list() == [0, 0, 0]


def test_requests_of_several_engines_are_joined_to_the_steps_of_their_own():
    late = [(b + 3, e + 3, *rest) for b, e, *rest in STEPS[:6]]
    first, second = made(ids="x{}"), made(ids="y{}", steps=late, requests=REQUESTS[:2])
    run = beside(first, second)
    found = analyze.requests(run)
    assert dict(found.select("request", "rank").iter_rows()) == {0: 0, 1: 0, 2: 0, 10: 1, 11: 1}
    for rank, alone in enumerate((first, second)):
        own = analyze.requests(alone).select("ttft_ns", *PARTS)
        assert found.filter(rank=rank).select(own.columns).equals(own)
    steps = analyze.requests(run, by="step")
    assert steps.group_by("request").agg(pl.col("rank").unique()).sort("request")[
        "rank"
    ].to_list() == [[0], [0], [0], [1], [1]]


def test_the_slow_first_tokens_are_named():
    found = analyze.requests(made())
    said = slowest(found)
    assert "its own prefill: 29.9 ms of 49.0 ms" in said["title"]
    assert "p99" not in said["title"]  # of three requests
    assert said["requests"] == [1]
    assert said["parts"]["prefill of others"] == pytest.approx(18.1 * MS, rel=1e-3)
    with pytest.raises(AnalysisError, match="no requests"):
        slowest(found.clear())


def test_a_request_that_was_left_out_and_preempted():
    steps = [(b, e, dict(t), dict(c)) for b, e, t, c in STEPS]
    steps[3] = (75, 85, {"a": 1}, {"a": 102})
    run = made(steps=steps)
    run.engine_steps = run.engine_steps.with_columns(
        preempted=(pl.col("step") == 4) & (pl.col("engine_id") == "b-1f")
    )
    found = analyze.requests(run)
    assert ms(found.filter(request=1), "left_out_ns") == [(10.0,)]
    assert found["preemptions"].to_list() == [0, 1, 0]
    assert found["rest_ns"].to_list() == [0, 0, 0]


@pytest.mark.parametrize("traced", [(0, 5), (2, 7), (1, 4)])
def test_a_trace_of_a_stretch_of_the_steps_is_joined_where_the_labels_agree(traced):
    found = analyze.requests(made(traced=traced), by="step")
    on_trace = found.drop_nulls("trace_step").unique("step").sort("step")
    assert on_trace["step"].to_list() == list(range(*traced))
    assert on_trace["trace_step"].to_list() == list(range(traced[1] - traced[0]))
    assert analyze.requests(made(traced=traced))["rest_ns"].to_list() == [0, 0, 0]


def test_requests_that_wait_while_the_profiler_stops_are_left_out():
    """The trace ends with step 3 at 85 ms; the profiler stops for 7 s, in which B, of two tokens
    more, and C wait. Steps take 10 ms, so that A, whose last token is delivered 1 ms after the
    trace, stays.
    """
    steps = [(b + 7000 * (b > 85), e + 7000 * (b > 85), *of) for b, e, *of in STEPS]
    late = [REQUESTS[0], ("b", 12, 61, 7112, 300, 5), ("c", 80, 7121, 7131, 50, 2)]
    with pytest.warns(TraceWarning, match=r"2 of 3 requests .*profiler's own stop"):
        found = analyze.requests(made(steps=steps, traced=(0, 4), requests=late))
    assert found["request"].to_list() == [0]
    whole = analyze.requests(made(steps=steps, requests=late))  # the profiler ran on
    assert whole["request"].to_list() == [0, 1, 2]
    only = made(steps=steps, traced=(0, 4), requests=late)
    only.requests = only.requests.filter(pl.col("request") > 0)
    assert analyze.requests(only)["request"].to_list() == [1, 2]  # there are no others


def test_clocks_that_disagree_are_not_joined():
    assert analyze.requests(made(apart_ms=0.8)).height == 3
    with pytest.raises(
        AnalysisError, match=r"disagree by 3\.00 ms; expected at most 1\.00 ms"
    ) as error:
        analyze.requests(made(apart_ms=3.0))
    assert error.value.facts["apart_ns"] == 3 * MS


def test_what_was_not_noted_is_said():
    run = made()
    run.engine_steps = run.engine_steps.clear()
    with pytest.raises(NotCapturedError, match="noted no steps"):
        analyze.requests(run)
    run = made()
    run.requests = run.requests.with_columns(phase=pl.lit("plain"))
    with pytest.raises(NotCapturedError, match="no profiled requests"):
        analyze.requests(run)
    with pytest.raises(AnalysisError, match="identifiers do not match"):
        analyze.requests(SimpleNamespace(**vars(made(ids="x{}")) | {"requests": made().requests}))


def test_spans_of_each_request_follow_each_other():
    found = analyze.requests(made(), by="span")
    whole = pl.col("start_ns") + pl.col("dur_ns")
    parts = found.select("request", "part", pl.col("start_ns") // MS, end=whole // MS).rows()
    assert parts == [
        (0, "waiting", 5, 10),
        (0, "prefill", 10, 30),
        (0, "decode beside prefill", 30, 60),
        (0, "decode", 65, 75),
        (0, "decode", 75, 85),
        (1, "waiting", 12, 30),
        (1, "prefill", 30, 60),
        (1, "decode", 65, 75),
        (1, "decode", 75, 85),
        (1, "decode", 90, 100),
        (1, "decode", 100, 110),
        (2, "waiting", 80, 112),
        (2, "prefill", 112, 120),
        (2, "decode", 120, 130),
    ]
    assert found.filter(request=2)["step"].to_list() == [None, 6, 7]
    assert found.filter(request=1)["tokens"].to_list() == [None, 300, 1, 1, 1, 1]


def test_spans_name_steps_that_left_a_request_out_and_prefills_that_were_shared():
    steps = [(b, e, dict(t), dict(c)) for b, e, t, c in STEPS]
    steps[3] = (75, 85, {"a": 1}, {"a": 102})
    steps[6] = (112, 120, {"c": 50, "b": 10}, {"c": 0, "b": 304})
    found = analyze.requests(made(steps=steps), by="span")
    out = found.filter(part="left out")
    assert out.select("request", "start_ns", "dur_ns").rows() == [(1, 75 * MS, 15 * MS)]
    # C has 50 of 60 tokens of its prefill
    assert found.filter(request=2)["part"].to_list() == ["waiting", "prefill with others", "decode"]


def test_the_finding_about_first_tokens_has_its_own_denominator():
    run = made()
    frame = analyze.requests(run)
    late = frame.with_columns(
        ttft_ns=pl.lit(90 * MS),
        queue_prefill_ns=pl.lit(62 * MS),
        queue_decode_ns=pl.lit(0),
        queue_other_ns=pl.lit(0),
        prefill_ns=pl.lit(28 * MS),
        prefill_other_ns=pl.lit(0),
        ttft_other_ns=pl.lit(62 * MS),
    )
    first = analyze.findings(run.trace, requests=late).row(0, named=True)
    told = ("prefill of others", "62.0 ms", "90.0 ms")
    assert all(words in first["title"] for words in told)
    assert (first["order"], first["rule"], first["severity"]) == (1, "slow_first_tokens", "high")
    assert first["share"] == pytest.approx(62 / 90)
    assert (first["figure"], first["gain_ns"], first["unit"]) == (62 * MS, 62 * MS, "ns a request")
    assert first["denominator"] == "their time to the first token, 90.0 ms on average"
    assert frame.filter(pl.sql_expr(first["where"])).height == 3
    # its own prefill is no fault of the machine, and comes after what is
    told = analyze.findings(run.trace, requests=frame)
    assert told.filter(rule="slow_first_tokens").select("severity", "gain_ns").row(0) == (
        "info",
        0.0,
    )
    assert analyze.findings(run.trace)["rule"].to_list() == [
        rule for rule in told["rule"].to_list() if rule != "slow_first_tokens"
    ]
    assert analyze.findings(run.trace, requests=frame.clear()).equals(analyze.findings(run.trace))


def test_compilation_in_the_prefill_of_another_is_told_by_what_the_host_did():
    # one prefill step of 10 to 110 ms: kernels of 2 and 6 ms around 92 ms in which the host
    # compiles; then a decode
    gemm = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"
    run = kernels([gemm] * 3).with_columns(
        start_ns=pl.Series([10, 104, 112]) * MS, dur_ns=pl.Series([2, 6, 10]) * MS
    )
    launched = launches(run).with_columns(start_ns=pl.Series([9_990, 103_990, 111_990]) * 1000)
    marks = [
        ("execute_context_1(256)_generation_0(0)", 9 * MS, 96 * MS),
        (DECODE_OF_ONE, 111 * MS, 5 * MS),
    ]
    compiling = ops([("triton/compiler/compiler.py(226): compile", 12 * MS, 91 * MS, 1)])
    trace = Trace(
        {"kernels": run, "runtime": launched, "markers": labels(marks), "ops": compiling},
        {"world_size": 1},
    )
    # the request arrives at 5 ms, waits for the prefill of others from 10 ms on, and has its token
    # at 122 ms
    parts = dict.fromkeys(PARTS, 0) | {
        "queue_other_ns": 7 * MS,
        "queue_prefill_ns": 100 * MS,
        "prefill_ns": 10 * MS,
    }
    times = {
        "request": 0,
        "start_ns": 5 * MS,
        "first_step_ns": 112 * MS,
        "first_token_ns": 122 * MS,
        "ttft_ns": 117 * MS,
        "e2e_ns": 117 * MS,
        "ttft_other_ns": 100 * MS,
    }
    found = analyze.findings(trace, requests=pl.DataFrame([parts | times])).filter(
        rule="slow_first_tokens"
    )
    assert found["figure"].to_list() == [
        pytest.approx(92 * MS, rel=0.01)
    ]  # of 100 ms in which others are prefilled
    assert found["about"].to_list() == ["triton/compiler/compiler.py(226): compile"]
    # a rank that waits for another one in its all-reduce looks busy; the other one counts
    waiting = kernels(["ncclDevKernel_AllReduce_Sum_bf16_RING_LL", *[gemm] * 2]).with_columns(
        start_ns=pl.Series([10, 106, 112]) * MS, dur_ns=pl.Series([96, 4, 10]) * MS
    )
    own = {"kernels": run, "runtime": launched, "markers": labels(marks), "ops": compiling}
    late = {
        name: frame.with_columns(rank=pl.lit(1, dtype=frame.schema["rank"]))
        for name, frame in own.items()
    }
    early = own | {"kernels": waiting, "ops": compiling.clear()}
    both = Trace({name: pl.concat([early[name], late[name]]) for name in late}, {"world_size": 2})
    found = analyze.findings(both, requests=pl.DataFrame([parts | times]))
    figure = found.filter(rule="slow_first_tokens")["figure"].to_list()
    assert figure == [pytest.approx(92 * MS, rel=0.01)]
    # the same where nothing tells what the host did, and where all that it did took no time
    for told in ({}, {"ops": compiling.with_columns(dur_ns=pl.lit(0))}):
        untold = Trace(
            {"kernels": run, "runtime": launched, "markers": labels(marks), **told},
            {"world_size": 1},
        )
        found = analyze.findings(untold, requests=pl.DataFrame([parts | times])).filter(
            rule="slow_first_tokens"
        )
        assert found["figure"].to_list() == [pytest.approx(92 * MS, rel=0.01)]
        assert found["about"].to_list() == [None]
