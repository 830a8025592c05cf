"""The explorer of gains without a browser, on recordings made by hand in
``tests/analyze/test_replay``.
"""

import shlex

import pytest

import llmprof
from llmprof import analyze, explore
from llmprof.analyze import changes
from llmprof.explore.what_if.explorer import offers, python_call
from llmprof.replay.what_if import _MAKERS, change_of
from llmprof.trace import Trace, schema
from tests.analyze.test_replay import device_bound, two_ranks
from tests.explore.asking import ask


def written(offer):
    """The text of a change with the values that its fields begin with, as the browser's side
    writes it.
    """
    parts = [
        f"{field.name}={field.value}" if field.keyword else field.value
        for field in offer.fields
        if field.value or not field.optional
    ]
    return ":".join([offer.name, *parts])


def test_the_prediction_by_hand():
    shown = explore.what_if(device_bound(), "scale:norm:0.5")
    # a step of 100 us, the last of 99 to its own end, holds 49 us of norm: half of it is gone
    answer, _ = ask(shown, "predict", changes=shown.changes)
    [row] = answer["rows"]
    times = [row[f"{name}_ns"] for name in ("recorded", "predicted", "gain")]
    assert (row["phase"], row["steps"]) == ("decode", 3)
    assert times == pytest.approx([299_000 / 3, 299_000 / 3 - 24_500, 24_500])
    assert row["low_ns"] <= row["predicted_ns"] <= row["high_ns"]
    assert "75.2 us" in answer["words"]
    assert "24.6 %" in answer["words"]
    assert answer["made"] == [
        {
            "change": "scale:norm:0.5",
            "words": "norm x 0.5",
            "unknown": "whether it can be made so",
            "error": "",
        }
    ]
    assert shown.selected["gain_ns"].to_list() == pytest.approx([24_500])
    # nobody waits for rank 1: 37 and 36 us instead of 96 and 36
    balanced, _ = ask(explore.what_if(two_ranks()), "predict", changes=["balance"])
    assert (balanced["rows"][0]["recorded_ns"], balanced["rows"][0]["predicted_ns"]) == (
        66_000,
        36_500,
    )


def test_time_without_the_profiler_is_told_where_it_is_known():
    """Tokens take 99 us where those under the profiler take 100: half of 49 us of norm is 24.3
    us then.
    """
    tokens = {"without_profiler": {"plain_ns": 99_000, "profiled_ns": 100_000}}
    answer, _ = ask(
        explore.what_if(Trace(device_bound().capture.recorded, tokens)),
        "predict",
        changes=["scale:norm:0.5"],
    )
    under, without = answer["rows"]
    share = 99_000 / under["recorded_ns"]
    assert (without["recorded_ns"], without["predicted_ns"]) == pytest.approx(
        (99_000, share * under["predicted_ns"])
    )
    assert without["gain_ns"] == pytest.approx(share * 24_500)
    assert without["low_ns"] <= without["predicted_ns"] <= without["high_ns"]
    assert (without["phase"], under["phase"]) == ("decode, without the profiler", "decode")


def test_a_change_that_matches_nothing_is_named_and_left_out():
    shown = explore.what_if(
        device_bound(), "remove:nothing", "scale:norm:0.5", "balance", "gossip", "fuse:"
    )
    answer, _ = ask(shown, "predict", changes=shown.changes)
    assert answer["rows"][0]["gain_ns"] == pytest.approx(24_500)
    errors = {one["change"]: one["error"] for one in answer["made"]}
    assert errors["scale:norm:0.5"] == ""
    assert "matches nothing" in errors["remove:nothing"]
    assert "no collective" in errors["balance"]
    assert "no change 'gossip'" in errors["gossip"]
    assert errors["fuse:"] == "a value is missing"
    assert answer["command"] == "llmprof what-if PATH scale:norm:0.5"
    assert len(shown.made) == 1
    empty, _ = ask(shown, "predict", changes=["remove:nothing"])
    assert empty["rows"][0]["gain_ns"] == 0


def test_the_python_and_the_command_give_the_same(sample_trace):
    trace = sample_trace("torch_tp4_eager_nccl")
    shown = explore.what_if(
        trace,
        "no-host-delay:decode",
        "scale:norm:0.5",
        "transfer:latency=8",
        "fuse:norm|rope",
        "tensor-parallel:8",
    )
    *head, call = shown.python.split("\n\n")
    names = {"trace": trace}
    exec("\n".join(head), names)
    assert eval(call, names).equals(shown.selected)
    made = [change_of(text) for text in shlex.split(shown.command)[3:]]
    assert analyze.what_if(trace, *made).equals(shown.selected)
    assert explore.what_if(trace).python.endswith("analyze.what_if(trace)")


@pytest.mark.parametrize("sample", ["torch_tp4_eager_nccl", "torch_tp1_cudagraph"])
def test_every_change_of_the_command_line_is_offered_and_begins_with_what_matches(
    sample_trace, sample
):
    trace = sample_trace(sample)
    offered = offers(trace)
    assert {offer.name for offer in offered} == set(_MAKERS)
    possible = [written(offer) for offer in offered if not offer.why and offer.name != "at-bound"]
    answer, _ = ask(explore.what_if(trace), "predict", changes=possible)
    refused = {one["change"]: one["error"] for one in answer["made"] if one["error"]}
    assert not {
        text for text in refused if not text.startswith(("fuse", "overlap-with", "without-call"))
    }
    for text in (*possible, "at-bound:Qwen3-0.6B:H200:stage=attention"):
        assert eval(python_call(text), {"changes": changes}).words == change_of(text).words
    single = sample == "torch_tp1_cudagraph"
    assert {offer.name for offer in offered if offer.why} == (
        {"balance", "transfer"} if single else set()
    )


def test_without_device_activity_it_says_so():
    answer, _ = ask(explore.what_if(Trace({"kernels": schema.empty("kernels")})), "choices")
    assert answer["offers"] == []
    assert answer["why"]
    assert llmprof.explore.what_if(Trace({})).python.endswith("(trace)")
