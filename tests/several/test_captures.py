"""Captures on several GPUs: labels, calls, tokens and replicas as the captures themselves, or
their program, tell.
"""

import gzip
import json
import lzma
import sys
from pathlib import Path

import polars as pl
import pytest

import llmprof
from llmprof import analyze
from llmprof.analyze import collectives, expert_exchange, findings, steps
from llmprof.errors import TraceWarning

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import fidelity

HERE = Path(__file__).parent
SAMPLES = HERE.parents[1] / "sample_traces"


def nsys(name, folder):
    path = folder / f"{name}.sqlite"
    path.write_bytes(lzma.decompress((HERE / f"{name}.sqlite.xz").read_bytes()))
    return llmprof.read(path, cache=False)


@pytest.fixture(scope="module")
def nvtx(tmp_path_factory):
    return nsys("nsys_tp2_layer_nvtx", tmp_path_factory.mktemp("nvtx"))


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    return nsys("nsys_tp2_graphs", tmp_path_factory.mktemp("graphs"))


@pytest.fixture(scope="module")
def exchange():
    return llmprof.read(HERE / "torch_all_to_all", cache=False)


@pytest.fixture(scope="module")
def served():
    with pytest.warns(TraceWarning, match="beside each other"):
        return llmprof.read(HERE / "torch_dp2_served", cache=False)


def test_labels_without_the_ranges_are_those_of_the_ranges(nvtx):
    both = fidelity.compare(nvtx)
    assert both.height > 2000
    assert fidelity.share(both.filter("said"), "right_layer") == 1.0
    assert fidelity.share(both, "right_stage") > 0.998
    assert set(both["layer"].drop_nulls()) == set(range(36))


def test_all_reduces_of_two_ranks_are_two_a_layer_and_waiting(nvtx):
    calls = collectives(nvtx).filter(kind="all_reduce")
    # two in each of 36 layers and one after the embedding, in two steps on two ranks
    assert calls.height == 2 * 2 * (2 * 36 + 1)
    assert calls["call"].n_unique() == calls.height // 2
    assert calls["reason"].null_count() == calls.height
    assert set(calls["last_rank"]) == {1}
    late, early = (calls.filter(rank=rank) for rank in (1, 0))
    assert late["wait_ns"].sum() == 0
    assert early["wait_ns"].sum() / early["dur_ns"].sum() > 0.98
    decode = early.filter(phase="decode")
    assert 3_000 < decode["transfer_ns"].median() < 5_000
    assert decode["dur_ns"].median() > 400_000
    assert "arrival_skew" in set(findings(nvtx)["rule"])


def test_replayed_steps_have_the_labels_of_the_eager_ones(graphs):
    events = graphs.events.filter(
        (pl.col("source") == "kernel") & pl.col("layer").is_not_null()
    ).sort("start_ns")
    orders = {}
    for (rank, step), rows in events.group_by("rank", "step", maintain_order=True):
        orders[rank, step] = (
            rows["replayed"].mean(),
            list(zip(rows["layer"], rows["stage"], strict=True)),
        )
    eager = [order for replayed, order in orders.values() if replayed == 0]
    replayed = [order for replayed, order in orders.values() if replayed == 1]
    assert (len(eager), len(replayed)) == (2, 4)
    assert len(eager[0]) == 612
    assert all(order == eager[0] for order in [*eager, *replayed])
    # what the eager steps are called is what their ranges say
    assert fidelity.share(fidelity.compare(graphs), "right_stage") > 0.998


def test_rows_of_an_all_to_all_are_those_that_were_sent(exchange):
    found = expert_exchange(exchange)
    assert found.height == 12
    for rank in (0, 1):
        truth = json.loads((HERE / f"torch_all_to_all/truth{rank}.json").read_text())["layers"]
        rows = found.filter(rank=rank).select("layer", "sent_rows", "received_rows").rows()
        assert rows == [(one["layer"], sum(one["sent"]), sum(one["received"])) for one in truth]
    assert set(found["kind"]) == {"all_to_all"}
    # a message is the larger of what a rank sends and gets, 2,048 elements of 2 bytes a row
    size = pl.max_horizontal("sent_rows", "received_rows") * 2048 * 2
    assert found.select(pl.col("combine_bytes") == size).to_series().all()


def test_the_rank_with_more_rows_keeps_the_other_waiting(exchange):
    uneven = expert_exchange(exchange).filter(layer=3)
    assert uneven["received_rows"].to_list() == [188, 68]
    assert set(uneven["last_rank"]) == {0}
    assert uneven["combine_wait_ns"].to_list()[0] == 0
    assert uneven["combine_wait_ns"].to_list()[1] > 1_000_000


def test_tokens_of_both_ranks_are_gathered_for_the_experts(sample_trace):
    trace = sample_trace("torch_ep2_dp2_eager")
    said = steps(trace).select("rank", "phase", "prefill_tokens", "decode_tokens").rows()
    assert said == [
        (0, "mixed", 288, 3),
        (0, "decode", 0, 6),
        (1, "decode", 0, 2),
        (1, "empty", 0, 0),
    ]
    found = expert_exchange(trace)
    # 48 layers of two passes on two ranks; the second of rank 1 is padding: one token, no step
    assert found.height == 4 * 48
    assert found.group_by("rank", "step").agg(
        pl.col("sent_rows", "received_rows", "dispatch_bytes").unique().first()
    ).sort("rank", "step", nulls_last=True).rows() == [
        (0, 0, 291, 293, 293 * 2048 * 2),
        (0, 1, 6, 7, 7 * 2048 * 2),
        (1, 0, 2, 293, 293 * 2048 * 2),
        (1, None, 1, 7, 7 * 2048 * 2),
    ]
    assert found.filter(pl.col("step").is_null())["layer"].to_list() == list(range(48))
    # the kernels are broadcasts and reductions: the ranks have unequal numbers of tokens
    names = collectives(trace).filter(kind="all_gather")["name"]
    assert names.str.contains("Broadcast").all()


def test_labels_of_expert_parallel_layers(sample_trace):
    trace = sample_trace("torch_ep2_dp2_eager")
    both = fidelity.compare(trace)
    assert both.height > 2000
    assert fidelity.share(both.filter("said"), "right_layer") == 1.0
    assert fidelity.share(both, "right_stage") > 0.999
    stages = set(trace.events["stage"])
    assert {"router", "expert_dispatch", "experts", "combine"} <= stages


def test_a_rank_without_requests_computes_for_the_other(sample_trace):
    balance = analyze.ranks(sample_trace("torch_ep2_dp2_eager"))
    assert balance["group"].to_list() == [0, 0]
    assert balance["decode_tokens"].to_list() == [9, 2]
    # the ranks have batches of their own: that one computes longer is no finding
    uneven = {"slow_device", "uneven_experts", "uneven_compute"}
    assert not uneven & set(findings(sample_trace("torch_ep2_dp2_eager"))["rule"])


def test_engines_of_a_server_are_replicas(served):
    assert served.ranks == [0, 1]
    assert [one["rank_in_engine"] for one in served.meta["ranks"]] == [0, 0]
    balance = analyze.ranks(served)
    assert balance["group"].to_list() == [0, 1]
    assert balance["wait_ns"].to_list() == [0, 0]


def test_with_tensor_parallelism_experts_are_halved_and_nothing_is_exchanged(sample_trace):
    trace = sample_trace("torch_ep2_tp2_cudagraph")
    decode = steps(trace).filter(phase="decode")
    assert dict(decode.group_by("rank").agg(pl.col("decode_tokens").sum()).iter_rows()) == {
        0: 32,
        1: 32,
    }
    kinds = collectives(trace)["kind"]
    assert set(kinds) == {"all_reduce", "all_gather"}
    of_experts = trace.events.filter(stage="experts").group_by("rank").agg(pl.len()).sort("rank")
    assert of_experts["len"].n_unique() == 1
    assert of_experts["len"].min() >= 5 * 48


def test_replicas_of_a_sample_have_batches_of_their_own():
    with pytest.warns(TraceWarning, match="beside each other"):
        trace = llmprof.read(SAMPLES / "torch_dp2_cudagraph", cache=False)
    said = steps(trace).select("rank", "phase", "prefill_tokens", "decode_tokens").sort("rank")
    assert said.filter(rank=0).rows() == [(0, "decode", 0, 1)] * 5
    assert said.filter(rank=1).rows() == [(1, "mixed", 1894, 1), *[(1, "decode", 0, 3)] * 4]
    assert analyze.ranks(trace)["wait_ns"].to_list() == [0, 0]


def test_keys_and_values_of_a_sample_move_as_its_copies_say():
    folder = SAMPLES / "torch_disaggregated_nixl"
    with pytest.warns(TraceWarning, match="beside each other"):
        trace = llmprof.read(folder, cache=False)
    plain = json.loads(gzip.decompress((folder / "decode" / "rank0.pt.trace.json.gz").read_bytes()))
    sizes = [
        event["args"]["bytes"]
        for event in plain["traceEvents"]
        if event.get("cat") == "gpu_memcpy" and "PtoP" in event["name"]
    ]
    found = analyze.transfer(trace, by="size")
    assert found["count"].sum() == len(sizes) > 1000
    assert (found["bytes"] * found["count"]).sum() == sum(sizes)
    kinds = analyze.transfer(trace, by="instance").select("instance", "kind", "prefill_tokens")
    assert kinds.filter(kind="prefill").row(0) == ("prefill", "prefill", 4309 + 3066 + 2474)
    assert "kv_transfer" in findings(trace)["rule"]


def test_a_server_without_graphs_waits_for_its_hosts_and_not_for_the_exchange(sample_trace):
    trace = sample_trace("torch_tp2_served_eager")
    assert findings(trace)["rule"][0] == "host_bound"
    faster = analyze.what_if(trace, "no-host-delay").row(0, named=True)
    # without the profiler a token took 27.7 ms, and 5.5 with graphs
    low, high = (faster[name] / faster["recorded_ns"] for name in ("low_ns", "high_ns"))
    assert low < 5.5 / 27.7 < high
    exchange = analyze.what_if(trace, "scale:all_reduce:0.5")
    assert (exchange["gain_ns"] / exchange["recorded_ns"]).max() < 0.01
