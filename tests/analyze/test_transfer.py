"""Prefill and decode on engines of their own, by hand, and as two H200s recorded them."""

import gzip
import json
import warnings

import polars as pl
import pytest

import llmprof
from llmprof import analyze
from llmprof.errors import AnalysisError, NotCapturedError
from llmprof.findings.facts import run_facts
from llmprof.trace import Trace
from tests.analyze.builders import GEMM, kernels, labels, launches
from tests.building import table_of

US, MS = 1_000, 1_000_000

# engine: steps of (prompts, their tokens, requests that decode), start and end (ms)
PREFILL = [((1, 100, 0), 0, 10), ((2, 300, 0), 10, 30)]
DECODE = [((1, 1, 0), 15, 16), ((0, 0, 1), 16, 18), ((0, 0, 1), 33, 36), ((2, 2, 1), 40, 42)]
# copies of 1,000 bytes, one each 20 us, 10 us long: those of 100 tokens, then those of 300
BURSTS = [(12, 100), (33, 300)]
REQUESTS = table_of(
    "request start_epoch_ns prefilled_ns ttft_ns e2e_ns prompt_tokens output_tokens",
    [
        (0, 1_000 * MS, 11 * MS, 17 * MS, 37 * MS, 100, 3),
        (1, 1_005 * MS, 26 * MS, 38 * MS, 38 * MS, 200, 1),
        (2, 1_006 * MS, 26 * MS, 37 * MS, 37 * MS, 100, 1),
    ],
)


def steps(rows, rank):
    """Kernels, their launches and the labels of steps that each run one kernel."""
    names = [
        (f"execute_context_{n}({tokens})_generation_{m}({m})", start * MS - 10, 8)
        for (n, tokens, m), start, _ in rows
    ]
    work = pl.concat(
        kernels([(GEMM, (end - start) * MS)], start=start * MS, rank=rank, first=number)
        for number, (_, start, end) in enumerate(rows, 1)
    )
    return {"kernels": work, "runtime": launches(work), "markers": labels(names, rank=rank)}


def joined(*engines):
    return {name: pl.concat([engine[name] for engine in engines]) for name in engines[0]}


def copies(bursts=BURSTS, size=1_000, kind="PtoP", stream=9):
    rows = [
        (start * MS + n * 20 * US, 10 * US, size) for start, count in bursts for n in range(count)
    ]
    known = {"rank": 1, "device": 0, "stream": stream, "kind": kind, "name": "Memcpy"}
    return table_of("start_ns dur_ns bytes", rows).with_columns(
        pl.lit(value).alias(name) for name, value in known.items()
    )


def disaggregated(moved=None, decode=DECODE, engines=("P", "D"), **more):
    ranks = [{"rank": n, "engine": name} for n, name in enumerate(engines)]
    meta = {"device": "NVIDIA H200", "start_epoch_ns": 1_000 * MS, "ranks": ranks}
    tables = joined(steps(PREFILL, 0), steps(decode, 1))
    return Trace(tables | {"copies": copies() if moved is None else moved}, meta | more)


def test_instances_are_told_apart_by_their_work():
    found = analyze.transfer(disaggregated(), by="instance")
    # steps take 30 and 8 ms of the 42 ms from the first to the last
    assert found.select("instance", "kind", "ranks", "prefill_tokens", "busy_ns").rows() == [
        ("P", "prefill", [0], 400, 30 * MS),
        ("D", "decode", [1], 3, 8 * MS),
    ]
    assert found["busy_share"].to_list() == pytest.approx([30 / 42, 8 / 42])
    assert found["ratio"].to_list() == pytest.approx([30 / 8, 8 / 30])
    # without names of engines, ranks with steps of their own are engines
    unnamed = analyze.transfer(disaggregated(engines=(None, None)), by="instance")
    assert unnamed["kind"].to_list() == ["prefill", "decode"]
    facts = dict(run_facts(disaggregated()).select("what", "value").iter_rows())
    assert "prefill" in facts["engine"]


def test_replicas_that_do_both_are_not_apart():
    both = [*DECODE, ((1, 100, 1), 42, 50)]
    trace = disaggregated(decode=both)
    found = analyze.transfer(trace, by="instance")
    assert found["kind"].to_list() == ["prefill", "both"]
    assert found["ratio"].to_list() == [None, None]
    facts = dict(run_facts(trace).select("what", "value").iter_rows())
    assert "prefill" not in facts["engine"]


def test_bursts():
    found = analyze.transfer(disaggregated())
    assert found.select("rank", "start_ns", "dur_ns", "copy_ns", "bytes", "count").rows() == [
        (1, 12 * MS, 1_990 * US, 1_000 * US, 100_000, 100),
        (1, 33 * MS, 5_990 * US, 3_000 * US, 300_000, 300),
    ]
    # the second runs beside a step of decode from 33 to 36 ms
    assert found["hidden_share"].to_list() == pytest.approx([0, 3 / 5.99])
    assert found["peak_gbps"].to_list() == [450, 450]
    assert found["peak_share"][0] == pytest.approx(100_000 / 1_990_000 / 450)


def test_larger_blocks_by_the_cost_of_a_copy():
    found = analyze.transfer(disaggregated(), by="block").filter(ratio=4).row(0, named=True)
    over = 400_000 / 450  # ns on the link
    cost = (7_980_000 - over) / 400
    assert found["predicted_ns"] == pytest.approx(100 * cost + over)
    assert found["predicted_low_ns"] <= found["predicted_ns"] <= found["predicted_high_ns"]
    assert (found["bytes"], found["count"]) == (4_000, 100)
    unknown = analyze.transfer(disaggregated(device="unknown"), by="block")
    assert not unknown.height  # all copies have one size, so nothing tells the rate of the link
    sizes = pl.concat(
        [
            copies(),
            copies([(50, 1)], size=1_001_000).with_columns(dur_ns=pl.lit(20 * US, dtype=pl.Int64)),
        ]
    )
    linked = analyze.transfer(disaggregated(sizes, device="unknown"), by="block")
    # 1,000,000 bytes more take 10 us more: 100 GB/s
    moved = 1_401_000
    cost = (1_990_000 + 5_990_000 - 400_000 / 100) / 400  # of bursts with many copies
    assert linked["predicted_ns"][1] == pytest.approx(401 / 2 * cost + moved / 100)


def test_parts_of_the_time_to_the_first_token():
    trace = disaggregated()
    found = analyze.transfer(trace, by="request", requests=REQUESTS)
    parts = ["queue", "prefill", "handover", "transfer", "wait", "decode", "delivery"]
    by_hand = [
        # prefill 0 to 10, copies 12 to 13.99, its step 15 to 16, first token at 17
        (0, 10 * MS, 2 * MS, 1_990 * US, 1_010 * US, 1 * MS, 1 * MS),
        # prefill 10 to 30, 200 copies from 33, 100 from 37, both in the step from 40 to 42
        (5 * MS, 20 * MS, 3 * MS, 3_990 * US, 3_010 * US, 2 * MS, 1 * MS),
        (4 * MS, 20 * MS, 7 * MS, 1_990 * US, 1_010 * US, 2 * MS, 1 * MS),
    ]
    assert found.select(f"{part}_ns" for part in parts).rows() == by_hand
    assert found["ttft_ns"].to_list() == [sum(row) for row in by_hand]
    assert found["bytes"].to_list() == [100_000, 200_000, 100_000]
    assert set(found["evidence"]) == {"tokens, bytes"}
    # where the client saw no first token, the steps of its tokens are counted back from its end
    unseen = REQUESTS.with_columns(ttft_ns=pl.lit(None, dtype=pl.Int64))
    again = analyze.transfer(trace, by="request", requests=unseen)
    assert again["ttft_ns"].to_list() == [sum(row[:-1]) for row in by_hand]
    assert again["delivery_ns"].null_count() == 3


def test_without_copies_the_transfer_is_all_time_between():
    found = analyze.transfer(disaggregated(copies([])), by="request", requests=REQUESTS)
    assert found["transfer_ns"].to_list() == [5 * MS, 10 * MS, 10 * MS]
    assert found["wait_ns"].null_count() == found["bytes"].null_count() == 3
    assert set(found["evidence"]) == {"tokens"}
    # with a prompt missing, tokens do not tell the steps, but the times of the answers do
    fewer = analyze.transfer(disaggregated(), by="request", requests=REQUESTS.head(2))
    assert fewer["prefill_ns"].to_list() == [10 * MS, 20 * MS]
    assert set(fewer["evidence"]) == {"times"}
    assert fewer["bytes"].null_count() == 2


def test_copies_of_the_model_are_no_transfer():
    inputs = copies(kind="HtoD", size=8)
    offloaded = copies([(12, 100)], kind="DtoH", size=20_000)
    for moved, count in ((inputs, 0), (offloaded, 1), (copies(stream=7), 0)):
        assert analyze.transfer(disaggregated(moved)).height == count
    # of an engine with several devices, copies between them are its own
    tables = {**joined(steps(DECODE, 0), steps(DECODE, 1)), "copies": copies()}
    assert not analyze.transfer(Trace(tables)).height
    alone = {name: frame.filter(rank=1) for name, frame in tables.items()}
    assert analyze.transfer(Trace(alone)).height == 2
    named = Trace(
        {**tables, "markers": pl.concat([tables["markers"], labels([("NixlConnector", 0, 1)])])}
    )
    assert analyze.transfer(named).height == 2
    assert analyze.transfer(named, by="instance")["connector"].to_list() == ["NIXL"]


def test_a_finding_with_its_prediction():
    found = analyze.findings(disaggregated())
    row = found.filter(rule="kv_transfer").row(0, named=True)
    exposed = 1_990 * US + 2_990 * US  # beside no step
    assert row["figure"] == pytest.approx(exposed)
    assert row["share"] == pytest.approx(exposed / ((42 - 12) * MS))
    assert row["severity"] == "medium"
    assert 0 < row["predicted_low_ns"] <= row["predicted_ns"] <= row["predicted_high_ns"] < exposed
    assert not analyze.findings(disaggregated(copies([]))).filter(rule="kv_transfer").height


def test_a_recording_without_steps_tells_no_instances():
    bare = Trace({"copies": copies()}, {"ranks": [{"file": "a name"}]})
    for by in ("instance", "burst", "size", "block"):
        assert not analyze.transfer(bare, by=by).height


@pytest.mark.parametrize("given", [None, pl.DataFrame({"request": [0]})])
def test_requests_that_say_nothing_of_prefill(given):
    with pytest.raises(NotCapturedError, match="prefilled"):
        analyze.transfer(disaggregated(), by="request", requests=given)


def test_requests_of_another_time_or_of_unclear_instances():
    other = REQUESTS.with_columns(pl.col("start_epoch_ns") + 3_600_000 * MS)
    with pytest.raises(NotCapturedError, match="3 requests"):
        analyze.transfer(disaggregated(), by="request", requests=other)
    both = disaggregated(decode=[*DECODE, ((1, 100, 1), 42, 50)])
    with pytest.raises(AnalysisError, match="0 instances that only decode"):
        analyze.transfer(both, by="request", requests=REQUESTS)


def test_two_h200s_with_nixl(shared):
    folder = shared / "captures/pd_nixl_h200"
    with warnings.catch_warnings(action="ignore"):
        trace = llmprof.read(folder)
    (file,) = (folder / "decode").glob("rank0*.gz")
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    peers = [one for one in events if one.get("name") == "Memcpy PtoP (Device -> Device)"]
    sent = json.loads((folder / "requests.json").read_text())
    bursts = analyze.transfer(trace)
    moved = sum(one["args"]["bytes"] for one in peers)
    assert (bursts["count"].sum(), bursts["bytes"].sum()) == (len(peers), moved)
    assert moved == 57_344 * sum(one["prompt"] for one in sent)
    assert bursts["dur_ns"].sum() == pytest.approx(180 * MS, rel=0.01)
    instances = analyze.transfer(trace, by="instance")
    assert dict(instances.select("instance", "kind").iter_rows()) == {
        "prefill": "prefill",
        "decode": "decode",
    }
    rows = [
        (
            one["i"],
            one["start_ns"],
            one["prefilled_ns"] - one["start_ns"],
            one["end_ns"] - one["start_ns"],
            one["prompt"],
            one["usage"]["completion_tokens"],
        )
        for one in sent
    ]
    names = "request start_epoch_ns prefilled_ns e2e_ns prompt_tokens output_tokens"
    requests = table_of(names, rows).with_columns(ttft_ns=pl.lit(None, dtype=pl.Int64))
    found = analyze.transfer(trace, by="request", requests=requests)
    assert found["bytes"].to_list() == [57_344 * one["prompt"] for one in sent]
    parts = pl.sum_horizontal(
        pl.selectors.ends_with("_ns") - pl.selectors.by_name("start_ns", "ttft_ns", "delivery_ns")
    )
    assert found.select((parts - pl.col("ttft_ns")).abs().max()).item() < 1_000
    assert set(found["evidence"]) == {"tokens, bytes"}


def test_two_engines_in_one_folder(shared):
    with warnings.catch_warnings(action="ignore"):
        trace = llmprof.read(shared / "strangers/small/engines/36_pd_disaggregation")
    found = analyze.transfer(trace, by="instance")
    assert set(found["kind"]) == {"prefill", "decode"}
    assert not analyze.transfer(trace).height
