"""What the explorer of layers shows and hands back, by hand and on a recording."""

from __future__ import annotations

import base64
import math
import re

import numpy as np
import polars as pl
import pytest

from llmprof import explore
from llmprof.analyze import layer_gaps, slack
from llmprof.errors import NotCapturedError
from llmprof.explore.layers import explorer as cells_module
from llmprof.explore.layers.explorer import cell_events, kernels_of, layer_cells, layer_choices
from llmprof.trace import Trace, schema
from tests.analyze.builders import ATTENTION, DENSE, end, forward, kernels, labels, launches, ops
from tests.explore.asking import ask
from tests.explore.test_widget import plain_pixels


def run(steps=2, layers=5, slow=(1, 3)):
    """Steps of layers of ten kernels of 10 ns; the attention of one layer of one step takes 110
    ns.
    """
    parts, marks, at = [], [], 0
    for step in range(steps):
        names = list(forward(layers))
        if step == slow[0]:
            names[2 + 10 * slow[1] + DENSE.index(ATTENTION)] = (ATTENTION, 110)
        parts.append(kernels(names, start=at, first=1000 * step))
        marks.append((f"execute_new_{int(step == 0)}_cached_4", at - 50, 40))
        at = end(parts[-1]) + 1000
    frame = pl.concat(parts)
    return Trace({"kernels": frame, "runtime": launches(frame), "markers": labels(marks)})


def values(found):
    shape = (len(found.head["columns"]), len(found.head["layers"]))
    return np.frombuffer(found.values, "<f4").reshape(shape).tolist()


def test_cells_are_what_the_analysis_says():
    found = layer_cells(run(), measure="time", rank=0)
    assert [column[:2] for column in found.head["columns"]] == [(0, 0), (1, 1)]
    assert found.head["layers"] == [0, 1, 2, 3, 4]
    assert values(found) == [[100] * 5, [100, 100, 100, 200, 100]]
    assert list(found.outliers) == [0] * 8 + [1, 0]
    assert (found.head["outliers"], found.head["missing"], found.head["condensed"]) == (1, 0, 1)
    assert [scale["phase"] for scale in found.head["scales"]] == ["mixed", "decode"]
    assert found.head["scales"][1] == {
        "phase": "decode",
        "low": 100,
        "high": 200,
        "most": 200,
        "log": False,
    }
    assert [column[2] for column in found.head["columns"]] == [0, 1]


def test_a_stage_a_phase_and_some_steps():
    assert values(layer_cells(run(), measure="busy", rank=0, stage="attention"))[1] == [
        10,
        10,
        10,
        110,
        10,
    ]
    phases = layer_choices(run())["phases"]
    assert phases == ["mixed", "decode"]
    only = layer_cells(run(), measure="time", rank=0, phase="decode")
    assert [column[0] for column in only.head["columns"]] == [1]
    assert [
        c[0]
        for c in layer_cells(run(steps=5), measure="time", rank=0, steps=(2, 3)).head["columns"]
    ] == [2, 3]


def test_what_was_not_captured_is_not_a_number():
    bare = Trace(
        {
            "kernels": kernels(forward(3)),
            "markers": labels([("execute_new_0_cached_4", 0, 9999)], on_device=True),
        }
    )
    found = layer_cells(bare, measure="host", rank=0)
    assert all(math.isnan(v) for column in values(found) for v in column)
    assert found.head["missing"] == sum(map(len, values(found))) > 0


def test_many_steps_share_columns(monkeypatch):
    monkeypatch.setattr(cells_module, "MAX_COLUMNS", 2)
    found = layer_cells(run(steps=5, slow=(1, 3)), measure="time", rank=0)
    assert [column[:2] for column in found.head["columns"]] == [(0, 2), (3, 4)]
    assert found.head["condensed"] == 3
    assert values(found)[0] == [100] * 5  # the median of 100, 200 and 100
    assert found.head["outliers"] == 1


def test_kernels_with_their_operators():
    trace = run()
    cell = cell_events(trace, rank=0, step=1, layer=3)
    assert kernels_of(trace, cell)["op"].null_count() == kernels_of(trace, cell).height
    at = cell.filter(pl.col("stage") == "attention")["launch_start_ns"][0]
    known = Trace(trace.tables | {"ops": ops([("flash::fwd", at - 1, 5, 1)])})
    found = kernels_of(known, cell_events(known, rank=0, step=1, layer=3))
    assert found.select("stage", "op", "name", "count", "total_ns", "share").row(0) == (
        "attention",
        "flash::fwd",
        ATTENTION,
        1,
        110,
        110 / 200,
    )


def test_how_much_longer_a_layer_and_its_kernels_may_take():
    widget = explore.layers(run())
    asked = {"rank": 0, "step": 1, "layer": 3, "stage": None}
    assert ask(widget, "cell", **asked)[0]["slack_ns"] is None
    assert ask(widget, "slack")[0] == {"why": ""}
    cell = ask(widget, "cell", **asked)[0]
    of_layers = slack(run(), by=["step", "layer"]).drop_nulls("layer").sort("layer")
    last = of_layers.filter(step=1)["slack_ns"]
    assert cell["slack_ns"] == last[3] == min(row["slack_ns"] for row in cell["kernels"])
    assert last.is_sorted(
        descending=True
    )  # kernels of one stream: what comes later delays the end no less

    silent = explore.layers(Trace({"kernels": run().kernels, "markers": run().markers}))
    assert "calls were not recorded" in ask(silent, "slack")[0]["why"]


def test_picking_a_cell_selects_its_events_and_moves_the_window():
    trace = run()
    shown = explore.layers(trace)
    assert shown.selected.is_empty()
    ask(shown, "pick", rank=0, step=1, layer=3)
    row = layer_gaps(trace).filter(pl.col("step") == 1, pl.col("layer") == 3).row(0, named=True)
    assert shown.window == [row["start_ns"], row["end_ns"]]
    assert (shown.rank, shown.step, shown.layer) == (0, 1, 3)
    place = (pl.col("step") == 1) & (pl.col("layer") == 3)
    assert shown.selected.equals(trace.events.filter(place))
    shown.only = {"stage": "attention"}
    assert shown.selected["name"].to_list() == [ATTENTION]
    shown.stage, shown.only = "attention", {}
    assert shown.selected["name"].to_list() == [ATTENTION]
    message, _ = ask(shown, "cell", rank=0, step=1, layer=3, stage="attention")
    assert (message["cell"]["dur_ns"], len(message["stages"]), len(message["kernels"])) == (
        110,
        9,
        1,
    )
    shown = explore.layers(run(), rank=0, step=77, layer=1)
    assert shown.selected.is_empty()
    message, _ = ask(shown, "cell", rank=0, step=77, layer=1, stage=None)
    assert (message["cell"], message["stages"], message["kernels"]) == (None, [], [])
    ask(shown, "pick", rank=0, step=77, layer=1)
    assert shown.window is None


def test_without_layers_there_is_nothing_to_choose():
    for trace in (
        Trace({"kernels": schema.empty("kernels")}),
        Trace({"kernels": kernels(["one", "two"])}),
    ):
        shown = explore.layers(trace)
        assert ask(shown, "choices")[0]["ranks"] == []
        assert shown.selected.is_empty()
        assert "image/png" not in shown._repr_mimebundle_()[0]
    shown = explore.layers(Trace({}))
    with pytest.raises(NotCapturedError, match="no kernels, copies or operators"):
        ask(shown, "choices")


def drawn(monkeypatch, widget):
    """The picture as SVG, and the pixels of its images: the ramps of the phases, then the cells
    of each rank.
    """
    texts = []

    def keep(text, *, scale):
        texts.append(text)
        return b"PNG"

    monkeypatch.setattr("vl_convert.svg_to_png", keep)
    assert widget.picture() == b"PNG"
    images = [base64.b64decode(one) for one in re.findall(r"base64,([^\"]+)", texts[0])]
    return texts[0], [plain_pixels(image) for image in images]


def test_the_picture_has_the_colours_of_the_widget_and_says_what_it_leaves_out(monkeypatch):
    svg, (mixed, decode, rank) = drawn(monkeypatch, explore.layers(run()))
    for words in (
        "Time of each layer",
        "Colour: from the first start",
        "rank 0",
        ">mixed<",
        ">decode<",
        ">200 ns<",
    ):
        assert words in svg
    assert rank.shape == (5, 2, 3)
    # layer 3 of step 1 takes 200 ns and is the darkest, the others 100 ns; those of step 0 are all
    # the same
    bright, dark = [253, 231, 37], [68, 1, 84]
    assert rank[:, 1].tolist() == [bright, bright, bright, dark, bright]
    assert rank[:, 0].tolist() == [[33, 145, 140]] * 5
    assert [ramp[0, [0, -1]].tolist() for ramp in (mixed, decode)] == [[bright, dark]] * 2

    many = pl.concat(
        [run().kernels.with_columns(rank=pl.lit(rank, pl.Int32)) for rank in range(10)]
    )
    svg, images = drawn(monkeypatch, explore.layers(Trace({**run().tables, "kernels": many})))
    assert "8 of 10 ranks are shown." in svg
    svg, images = drawn(
        monkeypatch, explore.layers(Trace({**run().tables, "kernels": many}), rank=9, measure="gap")
    )
    assert "rank 9" in svg
    assert "rank 0" not in svg
    assert "Gap to the typical layer" in svg
    assert images[-1][:, 1].tolist()[3] == [178, 24, 43]
