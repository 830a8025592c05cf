"""The explorer of theory: sliders, what they change, and what is handed back."""

import polars as pl
import pytest

from llmprof import explore, theory
from llmprof.errors import LlmprofError
from llmprof.explore.theory import Theory
from tests.samples import sample


@pytest.fixture
def widget(monkeypatch):
    """A widget that draws nothing, so that the tests take no time."""
    monkeypatch.setattr(Theory, "picture", lambda self, tab: tab.encode())
    return explore.theory("Qwen3-8B", "H200")


def test_sliders_are_the_arguments_of_a_profile(monkeypatch, widget):
    monkeypatch.setattr(Theory, "picture", lambda self, tab: b"")
    assert list(explore.theory("Qwen2.5-7B", "H200").tp_size.options) == [1, 2, 4]
    with pytest.raises(LlmprofError, match="no device"):
        explore.theory("Qwen3-8B")
    widget.batch_size.value = 64
    widget.tp_size.value = 4
    widget.dtype.value = "fp8"
    expected = theory.profile("Qwen3-8B", "H200", **widget.options())
    assert widget.options()["batch_size"] == 64
    assert widget.profile.decode_latency_s == expected.decode_latency_s
    assert widget.selected.equals(expected.components)


def test_a_change_draws_the_open_tab_again_and_the_others_when_they_open(widget):
    first = widget.tabs.children[0].children[0]
    widget.batch_size.value = 2
    assert widget.tabs.children[0].children[0] is not first
    assert widget.tabs.children[3].children == ()
    widget.tabs.selected_index = 3
    assert widget.tabs.children[3].children[0].value == b"Batch"


def test_what_does_not_fit_is_said_and_nothing_is_handed_back(monkeypatch):
    monkeypatch.setattr(Theory, "picture", lambda self, tab: b"")
    widget = explore.theory("Llama-3.1-70B", "H100 SXM")
    assert "smallest tp that fits is 2" in widget.words.value
    with pytest.raises(LlmprofError, match="does not fit"):
        _ = widget.selected
    widget.tp_size.value = 4
    assert "First token at least" in widget.words.value


def test_a_trace_gives_its_device_and_measured_steps(monkeypatch):
    monkeypatch.setattr(Theory, "picture", lambda self, tab: b"")
    widget = explore.theory("Qwen2.5-1.5B", trace=sample("torch_tp1_cudagraph"))
    assert widget.device.name == "H200"
    assert widget.tabs.titles[-1] == "Measured"
    assert not (widget.joined["bound_share"] > 1).any()
    assert widget.measured["value"].to_list() == [2, 4]
    assert widget.measured.filter(pl.col("value") == 4)["decode_s"].item() == pytest.approx(
        0.0018, rel=0.05
    )
