"""Roofline: points are the launches, roofs are those that are known, texts keep apart."""

import itertools

import polars as pl
import pytest

from llmprof import charts
from llmprof.charts.base.save import Box
from llmprof.charts.base.theme import text_px
from llmprof.charts.subjects.roofline import BOUNDS, derived, given
from llmprof.errors import LlmprofError
from llmprof.theory import hardware
from tests.charts import frames, specs


def labels(chart):
    """Names of launches and where they are."""
    out = []
    for unit in specs.marks(chart.to_dict()):
        if unit["mark"]["type"] == "text" and "field" in unit["encoding"]["text"]:
            text = unit["rows"][0]["label"]
            x, y = unit["encoding"]["x"]["value"], unit["encoding"]["y"]["value"]
            half = text_px(text, 12) / 2
            out.append((text, Box(x - half, y - 7, x + half, y + 7)))
    return out


def table(chart):
    points = next(u for u in specs.marks(chart.to_dict()) if u["mark"]["type"] == "point")
    scale = points["encoding"]["color"]["scale"]
    return dict(zip(scale["domain"], scale["range"], strict=True))


def test_points_are_the_launches_with_operations():
    frame = frames.profiled().filter(pl.col("flop_per_s") > 0).sort("dur_ns", descending=True)
    points = specs.rows(charts.roofline(frames.profiled()), "point", "intensity")
    assert [point["intensity"] for point in points] == frame["intensity"].to_list()
    assert [point["rate"] * 1e12 for point in points] == pytest.approx(
        frame["flop_per_s"].to_list()
    )
    assert [point["dur_ns"] for point in points] == frame["dur_ns"].to_list()
    assert [point["group"] for point in points] == frame["stage"].to_list()
    ns, areas = frame["dur_ns"].to_list(), [point["area"] for point in points]
    assert areas[1] / areas[0] == pytest.approx(ns[1] / ns[0])
    assert min(areas) >= 36
    written = " ".join(charts.roofline(frames.profiled()).to_dict()["title"]["subtitle"])
    assert (
        "Not drawn, without FLOPs: reshape_and_cache_flash_kernel (2 launches, 17.2 us)." in written
    )
    unknown = frames.profiled().with_columns(
        flop_per_s=pl.when(pl.col("stage") != "rope").then("flop_per_s"),
        intensity=pl.when(pl.col("stage") != "norm").then("intensity"),
    )
    chart = charts.roofline(unknown)
    written = " ".join(chart.to_dict()["title"]["subtitle"])
    assert "without known FLOPs or DRAM bytes: rotary_embedding_kernel" in written
    assert "fused_add_rms_norm_kernel" in written
    assert {"rope", "norm"}.isdisjoint(row["group"] for row in specs.rows(chart, "point", "group"))


def test_roofs_of_launches_and_devices():
    rows = frames.profiled().filter(pl.col("flop_per_s") > 0)
    roofs = derived(rows)
    assert roofs.bandwidth == pytest.approx(frames.BANDWIDTH)
    assert roofs.peaks == {
        "bf16": frames.PEAK["bf16"]
    }  # fp32 is nowhere at its peak, so it is not known
    texts = specs.texts(charts.roofline(frames.profiled()))
    assert {"memory: 4.8 TB/s", "bf16: 989.5 TFLOP/s"} <= set(texts)
    assert not any(text.startswith("fp32") for text in texts)
    rows = frames.profiled().filter(pl.col("dtype") == "bf16")
    assert derived(rows).bandwidth is None  # all are at the peak: the bandwidth may be higher
    assert derived(rows).peaks == {"bf16": frames.PEAK["bf16"]}
    one = frames.profiled().filter(pl.col("stage") == "rope").head(1)
    assert (derived(one).bandwidth, derived(one).peaks) == (None, {})
    texts = " ".join(specs.texts(charts.roofline(one)))
    assert "The roofs are not known." in texts
    assert "TB/s" not in texts
    none = frames.profiled().with_columns(
        bound_flop_per_s=pl.lit(None, pl.Float64), bound_share=pl.lit(None, pl.Float64)
    )
    assert "its roof is not known" in " ".join(specs.texts(charts.roofline(none)))
    device = hardware.device("NVIDIA H200")
    roofs = given(device, frames.profiled())
    assert roofs.bandwidth == device.memory_bytes_per_s
    assert roofs.peaks == {"bf16": device.peak("bf16"), "fp32": device.peak("fp32")}
    by_name, by_device = (
        charts.roofline(frames.profiled(), peaks=peaks) for peaks in ("H200", device)
    )
    assert by_name.to_dict() == by_device.to_dict()
    assert "fp32: 67 TFLOP/s" in specs.texts(by_name)
    with pytest.raises(LlmprofError, match="not known"):
        charts.roofline(frames.profiled(), peaks="no such device")
    nothing_stated = charts.roofline(frames.profiled(), peaks="Ascend 910B")
    assert "The roofs are not known." in " ".join(specs.texts(nothing_stated))


def test_colours_are_those_of_stages_else_of_bounds():
    assert list(table(charts.roofline(frames.profiled()))) == [
        "norm",
        "qkv_proj",
        "rope",
        "attention",
        "gate_up_proj",
        "down_proj",
    ]
    plain = frames.profiled().drop("stage")
    assert table(charts.roofline(plain)) == BOUNDS
    unbound = plain.with_columns(bound_by=pl.when(pl.col("bound_by") != "latency").then("bound_by"))
    assert list(table(charts.roofline(unbound))) == ["compute", "memory", "unknown"]


@pytest.mark.parametrize("peaks", [None, "H200"])
@pytest.mark.parametrize("by_stage", [True, False])
def test_labels_keep_apart(by_stage, peaks):
    frame = frames.profiled() if by_stage else frames.profiled().drop("stage")
    found = labels(charts.roofline(frame, peaks=peaks))
    assert len(found) >= 5
    assert len({text for text, _ in found}) == len(found)
    for (_, a), (_, b) in itertools.combinations(found, 2):
        assert not a.meets(b)
    assert all(box.within(900, 430) for _, box in found)
    if by_stage:
        assert {"gate_up_proj", "down_proj", "attention", "norm"} <= {text for text, _ in found}


def test_operators_are_points_under_the_roofs_of_their_own_bounds():
    rows = frames.operated().filter(pl.col("flops") > 0)
    rows = rows.filter(pl.col("total_ns") >= 0.0005 * frames.operated()["total_ns"].sum())
    rows = rows.sort("total_ns", descending=True)
    chart = charts.roofline(frames.operated(), peaks="NVIDIA H200")
    points = specs.rows(chart, "point", "intensity")
    assert [point["intensity"] for point in points] == pytest.approx(rows["intensity"].to_list())
    assert [point["rate"] for point in points] == pytest.approx(
        (rows["flop_per_s"] / 1e12).to_list()
    )
    assert [point["bound_share"] for point in points] == pytest.approx(
        rows["bound_share"].to_list()
    )
    assert {"memory: 4.8 TB/s", "bf16: 989.5 TFLOP/s"} <= set(specs.texts(chart))
    # without a device the roofs follow from the bounds
    assert "memory: 4.8 TB/s" in specs.texts(charts.roofline(frames.operated()))
    assert any(point["group"] == "gate_up_proj" for point in points)
    by_bound = charts.roofline(frames.operated().drop("stage"))
    assert {point["group"] for point in specs.rows(by_bound, "point", "group")} <= {
        "memory",
        "compute",
        "latency",
    }
    with pytest.raises(LlmprofError):
        charts.roofline(frames.operated().with_columns(flop_per_s=pl.lit(None, dtype=pl.Float64)))
