"""A planted cause is the first finding: recordings built by hand, of two sizes, with one cause
or with two.
"""

import polars as pl
import pytest

from llmprof.analyze import findings
from llmprof.analyze.requests.requests import PARTS
from llmprof.analyze.step_times import step_windows
from llmprof.findings.frame import SCHEMA
from llmprof.findings.ranking import rank_findings
from llmprof.findings.rows import measured_causes, scope_findings
from llmprof.findings.scope import scopes_of
from llmprof.trace import Trace
from tests.analyze.builders import GEMM, NCCL_ALL_REDUCE, kernels, labels, launches, ops

RANKS = 4
EXPERTS = "fused_moe_kernel"
WORK, TRANSFER, LAUNCH = 50_000, 4_000, 5_000
LATE = 10_000
"""The host launches this long before a kernel that it made wait."""

PREFILL, DECODE = "execute_context_4(256)_generation_0(0)", "execute_context_0(0)_generation_4(4)"
OPERATORS = {
    "jit": "triton/compiler/compiler.py(226): compile",
    "data_loading": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
}
CALLS = {"allocation": "cudaMalloc", "synchronising_copy": "cudaMemcpy"}
PLANTED = {
    "late_rank": ("host_bound", 2),
    "slow_link": ("exposed_communication", None),
    "jit": ("compilation", None),
    "data_loading": ("data_loading", None),
    "allocation": ("allocation", None),
    "synchronising_copy": ("synchronisation", None),
    "throttled_clock": ("slow_device", 1),
    "imbalanced_experts": ("uneven_experts", 3),
}
"""For each cause the rule that must come first, and the rank that it must name."""


def losses(*rows):
    """Findings of one scope: rule, what it follows from, predicted gain, weight."""
    names = ("rule", "follows_from", "predicted_ns", "weight")
    plain = {"severity": "high", "share": 0.2, "recorded_share": 0.2, "scope": "steps"}
    schema = SCHEMA | {"ranked": pl.Boolean, "weight": pl.Float64}
    known = [plain | dict(zip(names, row, strict=True)) | {"ranked": True} for row in rows]
    frame = pl.DataFrame(known, schema={name: schema[name] for name in schema if name != "order"})
    return rank_findings([frame])["rule"].to_list()


def test_a_chain_weighs_what_its_remedy_gains():
    """Ranks wait 19.2 % for one whose host is late by as much, but its remedy gains nothing."""
    waits = ("arrival_skew", "host_bound", None, 19.2)
    assert losses(waits, ("host_bound", None, 0.0, 0.0), ("copies", None, 3.0, 3.0)) == [
        "copies",
        "host_bound",
        "arrival_skew",
    ]
    unknown = [waits, ("host_bound", None, None, 2.0), ("copies", None, 20.0, 20.0)]
    assert losses(*unknown) == ["host_bound", "arrival_skew", "copies"]


def test_a_loss_without_a_prediction_counts_half():
    """Prefill alone, idle 30 of 130 us after its first kernel: a replay predicts nothing of it."""
    run = kernels([GEMM] * 2, start=100_000, dur=WORK, pause=30_000)
    marks = labels([(PREFILL, 1_000, 1_000)])
    trace = Trace({"kernels": run, "runtime": launches(run, lead=LATE), "markers": marks})
    [scope] = scopes_of(trace)
    row = scope_findings(scope, measured_causes(scope)).row(
        by_predicate=pl.col("rule") == "host_bound", named=True
    )
    assert (row["figure"], row["predicted_ns"], row["weight"]) == (30_000, None, 15_000)


def recording(causes, layers, steps, late=(2,)):
    """Steps of layers of a GEMM, experts and an all-reduce on four ranks; each cause adds its time
    to a layer (ns).

    Of several late ranks each is late in its turn.
    """
    runs = [[] for _ in range(RANKS)]  # name, start, duration, lead
    host_ops = [[] for _ in range(RANKS)]
    calls = [[] for _ in range(RANKS)]
    marks = [[] for _ in range(RANKS)]
    host = [0] * RANKS  # when it launches next
    now = 200_000
    for step in range(steps):
        for layer in range(layers):
            ends = []
            for rank in range(RANKS):
                at, pause = now, 0
                for cause, ns in causes.items():
                    waits = (
                        cause in OPERATORS
                        or cause in CALLS
                        or (cause == "late_rank" and rank == late[layer % len(late)])
                    )
                    if not waits or (cause == "jit" and step):
                        continue
                    begin = at + pause + 1_000
                    if cause in OPERATORS:
                        host_ops[rank].append(
                            (OPERATORS[cause], begin, ns - 2_000, len(host_ops[rank]) + 1)
                        )
                    elif cause == "synchronising_copy":  # it began while the device was at work
                        calls[rank].append((CALLS[cause], now - ns, ns + 1_000))
                    elif cause in CALLS:
                        calls[rank].append((CALLS[cause], begin, ns - 2_000))
                    pause += ns
                start = at + pause + (LATE if pause else 0)
                if not layer:
                    host[rank] = now - LAUNCH - 3_000
                    marks[rank].append((DECODE if step else PREFILL, host[rank] - 1, 1_000))
                slow = causes.get("throttled_clock", 0) if rank == 1 else 0
                heavy = causes.get("imbalanced_experts", 0) if rank == 3 else 0
                host[rank] = start - LATE if pause else host[rank] + 3_000
                runs[rank].append((GEMM, start, WORK + slow // 2, start - host[rank]))
                begin = start + WORK + slow // 2
                host[rank] += 3_000
                runs[rank].append(
                    (EXPERTS, begin, WORK + slow - slow // 2 + heavy, begin - host[rank])
                )
                ends.append(begin + WORK + slow - slow // 2 + heavy)
            now = max(ends) + TRANSFER + causes.get("slow_link", 0)
            for rank, end in enumerate(ends):
                host[rank] += 3_000
                runs[rank].append((NCCL_ALL_REDUCE, end, now - end, end - host[rank]))
        for rank in range(RANKS):  # the host reads what the step has made
            calls[rank].append(("cudaStreamSynchronize", host[rank] + 1_000, now - host[rank]))
        now += 1_000 + 4_000 + LAUNCH
    parts = []
    for rank in range(RANKS):
        names, starts, lengths, leads = zip(*runs[rank], strict=True)
        run = kernels(names, rank=rank, first=1 + 100_000 * rank)
        run = run.with_columns(start_ns=pl.Series(starts), dur_ns=pl.Series(lengths))
        launched = launches(run).with_columns(start_ns=pl.col("start_ns") + 5 - pl.Series(leads))
        others = pl.DataFrame(
            [
                (rank, start, length, name, "runtime", None, 1)
                for name, start, length in calls[rank]
            ],
            schema=launched.schema,
            orient="row",
        )
        parts.append(
            {
                "kernels": run,
                "runtime": pl.concat([launched, others]),
                "markers": labels(marks[rank], rank=rank),
                "ops": ops([("aten::mm", 0, 10, 0), *host_ops[rank]], rank=rank),
            }
        )
    return Trace(
        {name: pl.concat([part[name] for part in parts]) for name in parts[0]},
        {"world_size": RANKS},
    )


def causes_of(trace, requests=None):
    """Findings that follow from no other and are no facts."""
    roots = pl.col("follows_from").is_null() & (pl.col("severity") != "info")
    return findings(trace, requests=requests).filter(roots).select("rule", "rank").to_dicts()


SIZES = ((2, 6), pytest.param(8, 12, marks=pytest.mark.slow))


@pytest.mark.parametrize(("layers", "steps"), SIZES)
@pytest.mark.parametrize("cause", PLANTED)
def test_a_planted_cause_comes_first(cause, layers, steps):
    rule, rank = PLANTED[cause]
    first = causes_of(recording({cause: 4_000_000 if cause == "jit" else 70_000}, layers, steps))[0]
    assert first["rule"] == rule
    assert rank in (None, first["rank"])


PAIRS = (
    ("data_loading", "slow_link"),
    ("late_rank", "slow_link"),
    ("allocation", "slow_link"),
    ("throttled_clock", "slow_link"),
    ("slow_link", "imbalanced_experts"),
    ("synchronising_copy", "throttled_clock"),
)


@pytest.mark.parametrize(("layers", "steps"), SIZES)
@pytest.mark.parametrize(("large", "small"), PAIRS)
def test_of_two_causes_the_larger_comes_first(large, small, layers, steps):
    found = causes_of(recording({large: 90_000, small: 25_000}, layers, steps))
    rules = [str(row["rule"]) for row in found]
    assert rules[0] == PLANTED[large][0]
    assert rules.index(PLANTED[small][0]) in (1, 2)


def requests_that_wait(trace, share):
    """Four requests over the decode steps of a trace, which wait behind the decode of others for
    a share of them.
    """
    windows = step_windows(trace).filter(pl.col("rank") == 0, pl.col("phase") == "decode")
    start, whole = windows["start_ns"].min(), windows["dur_ns"].sum()
    waited, prefill = int(share * whole), whole // 50
    decode = whole - waited - prefill
    columns = {
        **dict.fromkeys(PARTS, 0),
        "queue_decode_ns": waited,
        "prefill_ns": prefill,
        "decode_ns": decode,
        "start_ns": start,
        "first_step_ns": start + waited,
        "first_token_ns": start + waited + prefill,
        "ttft_ns": waited + prefill,
        "e2e_ns": whole,
        "ttft_other_ns": 0,
    }
    return pl.DataFrame({"request": range(4)}).with_columns(
        **{name: pl.lit(ns) for name, ns in columns.items()}
    )


@pytest.mark.parametrize(("layers", "steps"), SIZES)
@pytest.mark.parametrize("cause", [*PLANTED][::3])
def test_queueing_stands_in_its_place_beside_each_other_cause(cause, layers, steps):
    once = steps if cause == "jit" else 1
    trace = recording({cause: 25_000 * once}, layers, steps)
    # of the time of a request 70 % is the queue, of that of the devices the other cause takes about
    # 20 %
    rules = [str(row["rule"]) for row in causes_of(trace, requests_that_wait(trace, 0.7))]
    assert rules[0] == "slow_first_tokens"
    assert PLANTED[cause][0] in rules
    # of the time of a request 10 %, of that of the devices about 45 %
    trace = recording({cause: 90_000 * once}, layers, steps)
    rules = [str(row["rule"]) for row in causes_of(trace, requests_that_wait(trace, 0.1))]
    assert rules[0] == PLANTED[cause][0]
    assert "slow_first_tokens" in rules


@pytest.mark.parametrize(("layers", "steps"), SIZES)
def test_queueing_alone_comes_first(layers, steps):
    trace = recording({}, layers, steps)
    waiting = requests_that_wait(trace, 0.5)
    found = findings(trace, requests=waiting).row(0, named=True)
    wait, prefill = (
        waiting.row(0, named=True)["queue_decode_ns"],
        waiting.row(0, named=True)["prefill_ns"],
    )
    assert (found["rule"], found["figure"]) == ("slow_first_tokens", wait)
    assert found["share"] == pytest.approx(wait / (wait + prefill))


@pytest.mark.parametrize("cause", ["late_rank", "throttled_clock", "imbalanced_experts"])
def test_waiting_follows_from_what_makes_a_rank_late(cause):
    found = findings(recording({cause: 70_000}, 2, 6))
    waiting = found.filter(rule="arrival_skew").row(0, named=True)
    assert waiting["follows_from"] == PLANTED[cause][0]
    assert waiting["predicted_ns"] is None
    assert waiting["order"] == found.filter(rule=PLANTED[cause][0])["order"][0] + 1


def test_several_late_ranks_are_one_cause():
    """Ranks 0, 1 and 2 take turns to be 70 us late; none alone makes half of the waiting."""
    found = findings(recording({"late_rank": 70_000}, 7, 6, late=(None, 0, 1, 2, 0, 1, 2)))
    waiting = found.filter(rule="arrival_skew").row(0, named=True)
    late = found.row(0, named=True)
    assert (late["rule"], waiting["follows_from"], waiting["order"]) == (
        "host_bound",
        "host_bound",
        2,
    )
    # each in two of seven layers, with their launches, and that of the next step three times of four
    assert late["figure"] == pytest.approx(160_000 + 5_000 * 3 / 4)
    assert late["denominator"].count(" of ranks 0, 1 and 2: ")
