"""Expected tokens of a step that drafts, and its least time, worked out by hand."""

import pytest

from llmprof.errors import LlmprofError
from llmprof.theory import Plan, Requests, profile, shape, speculate
from llmprof.theory.plan import decode
from llmprof.theory.profiler import machine_for
from llmprof.theory.work import step_operators


def test_tokens_of_a_step_and_its_least_time():
    options = {"batch_size": 4, "seq_len": 1000, "generate_len": 200}
    found = speculate("Qwen3-8B", "H200", acceptance=0.5, draft="Qwen3-0.6B", most=3, **options)
    assert found["tokens_per_step"].to_list() == [1, 1.5, 1.75, 1.875]
    base = profile("Qwen3-8B", "H200", **options)
    machine = machine_for(base.shape, base.device, Plan())
    small = machine.total(step_operators(shape("Qwen3-0.6B"), decode(4, 1100), Plan()))
    verify = machine.total(
        step_operators(base.shape, (Requests(4, 4, 1103),), Plan(), all_logits=True)
    )
    assert found["draft_s"][3] == pytest.approx(3 * small)
    assert found["verify_s"][3] == pytest.approx(verify)
    assert found["token_s"][3] == pytest.approx((3 * small + verify) / 1.875)
    assert found["step_s"][0] == pytest.approx(base.decode_latency_s)
    assert found["speedup"][0] == 1


def test_a_draft_of_qwen35_is_its_layer_of_whole_attention():
    # its head of multi-token prediction attends to all tokens, whatever three of four layers of the
    # model do
    options = {"tp_size": 8, "dtype": "bf16"}
    short, long = (
        speculate(
            "Qwen3.5-397B-A17B", "H200", acceptance=0.8, draft="mtp", most=1, seq_len=n, **options
        )["draft_s"][1]
        for n in (1000, 101_000)
    )
    # one rank of eight keeps a head of keys and one of values, 256 numbers each
    assert long - short == pytest.approx(100_000 * 2 * 256 * 2 / 4.8e12, rel=0.05)
    every, never = (speculate("Qwen3-8B", "H200", acceptance=a, most=2) for a in (1, 0))
    assert every["tokens_per_step"].to_list() == [1, 2, 3]
    assert never["tokens_per_step"].to_list() == [1, 1, 1]
    # without drafting time and with one request, two or three tokens read the same weights once
    assert every["speedup"][2] == pytest.approx(3, rel=0.02)
    assert never["speedup"][2] == pytest.approx(1, rel=0.02)


def test_a_head_of_several_tokens_is_a_layer_with_a_projection_and_the_output():
    base = profile("DeepSeek-V3", "H200", tp_size=16)
    found = speculate(base, acceptance=0.8, draft="mtp", most=1)
    layer = next(layer for layer in base.shape.layers[::-1])
    machine = machine_for(base.shape, base.device, base.plan)
    work = step_operators(base.shape, decode(1, base.seq_len + base.generate_len / 2), base.plan)
    inside = [o for o in work if o.layers == sum(one == layer for one in base.shape.layers)]
    whole = sum(machine.time(o).latency_s for o in inside)
    head = sum(
        machine.time(o).latency_s
        for o in work
        if o.stage in ("lm_head", "final_norm", "sampling", "embedding")
    )
    assert found["draft_s"][1] > whole + head
    assert found["draft_s"][1] < 0.25 * found["verify_s"][1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"acceptance": 1.2}, "acceptance=1.2"),
        ({"acceptance": "0.5"}, "acceptance"),
        ({"acceptance": 0.5, "most": 0}, "most=0"),
        ({"acceptance": 0.5, "device": None}, "no device"),
        ({"acceptance": 0.5, "draft": "no such model"}, "not in the catalogue"),
    ],
)
def test_wrong_arguments_are_refused(changes, said):
    options = {"device": "H200"} | changes
    with pytest.raises(LlmprofError, match=said):
        speculate("Qwen3-8B", options.pop("device"), **options)
