"""Comparisons of whole recordings: parts add up to each phase, rank and recording, the largest change first."""

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import llmprof
from llmprof.analyze import diff
from llmprof.trace import Trace


def adds_up(found: pl.DataFrame) -> list[str | None]:
    """Phases of a comparison, whose parts were found to add up to their step."""
    heads = found.filter(pl.col("level").is_in(["step", "recording"]))
    for head in heads.iter_rows(named=True):
        parts = found.filter(pl.col("level") == "part", pl.col("phase").eq_missing(pl.lit(head["phase"])))
        for side in ("a_ns", "b_ns", "delta_ns"):
            assert parts[side].sum() == pytest.approx(head[side], abs=1.0)
        changes = parts["delta_ns"].abs()
        assert changes.to_list() == sorted(changes, reverse=True)
    return heads["phase"].to_list()


def test_every_phase_of_a_waterfall_adds_up(sample_trace: Callable[[str], Trace]) -> None:
    phases = adds_up(diff(sample_trace("torch_tp1_eager"), sample_trace("torch_tp1_cudagraph")))
    assert {"prefill", "decode"} <= set(phases)


@pytest.mark.parametrize("rank", [0, 3])
def test_every_rank_of_a_waterfall_adds_up(rank: int, sample_trace: Callable[[str], Trace]) -> None:
    a, b = (sample_trace(f"torch_tp4_eager_{kind}").select(ranks=rank) for kind in ("nccl", "custom_allreduce"))
    found = diff(a, b)
    assert "decode" in adds_up(found)
    assert found.filter(level="part", kind="communication").height


@pytest.mark.slow
def test_a_pair_without_steps(shared: Path) -> None:
    """Two ranks, 300 ms each: sums of attention kernels in the files' own tables are 272.317 and 240.756 ms."""
    a, b = (llmprof.read(shared / f"real/nsys/nsysai_mfu_2gpu_{when}.sqlite") for when in ("before", "after"))
    found = diff(a, b)
    assert adds_up(found) == [None]
    head = found.row(0, named=True)
    assert (head["level"], head["status"], head["a_steps"], head["b_steps"]) == ("recording", "same", 2, 2)
    first = found.filter(level="part").row(0, named=True)
    assert (first["kind"], first["part"]) == ("compute", "attention")
    assert (first["a_ns"], first["b_ns"]) == (272_317_378 / 2, 240_755_667 / 2)
    exchanged = found.filter(level="part", kind="communication")["part"].to_list()
    assert sorted(exchanged) == ["transfer", "wait"]
