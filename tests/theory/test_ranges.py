import pytest

from llmprof.errors import LlmprofError
from llmprof.theory import calibrated, profile, sweep


def test_a_point_of_a_range_is_the_profile_at_its_value():
    found = sweep("Qwen3-8B", "H200", values=[4, 16], seq_len=512, generate_len=64)
    one = profile("Qwen3-8B", "H200", batch_size=16, seq_len=512, generate_len=64)
    row = found.row(1, named=True)
    assert (row["value"], row["batch_size"], row["seq_len"]) == (16, 16, 512)
    assert row["decode_s"] == pytest.approx(one.decode_latency_s)
    assert row["prefill_s"] == pytest.approx(one.prefill_latency_s)
    assert row["kv_cache_bytes"] == one.memory.kv_cache
    assert row["tokens_per_s"] == pytest.approx(16 / one.decode_latency_s)
    assert row["predicted_decode_s"] is None


def test_ranks_that_do_not_divide_the_model_are_left_out():
    assert sweep("Qwen2.5-7B", "H200", over="tp_size")["value"].to_list() == [1, 2, 4]
    found = sweep("Llama-3.1-70B", "H100 SXM", over="tp_size", values=[1, 2, 8])
    assert found["fits"].to_list() == [False, True, True]
    found = sweep("Qwen3-8B", "H200", calibration=calibrated("H200"))
    assert (found["predicted_decode_s"] > found["decode_s"]).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"over": "layers"}, "over='layers'"),
        ({"over": "tp_size", "values": [3]}, "attention heads"),
        ({"values": [0]}, "batch_size=0"),
    ],
)
def test_bad_ranges_are_refused(options, said):
    with pytest.raises(LlmprofError, match=said):
        sweep("Qwen3-8B", "H200", **options)
    with pytest.raises(LlmprofError, match="no device"):
        sweep("Qwen3-8B")
