"""The explorer of kernels without a browser: rows, what is picked, and what the browser's side
is answered.
"""

import json

import numpy as np
import polars as pl
import pytest
import traitlets

import llmprof
from llmprof import Metrics, analyze, explore
from llmprof.analyze import ncu
from llmprof.analyze.kernels import kernels_within
from llmprof.errors import AnalysisError, LlmprofError, NotCapturedError
from llmprof.explore.kernels import explorer
from llmprof.trace import Trace, schema
from tests.analyze.builders import GEMM
from tests.analyze.test_replay import two_ranks
from tests.building import table_of
from tests.explore.asking import ask
from tests.samples import sample

VIEW = {
    "by": [],
    "search": "",
    "sort": "-total_ns",
    "window": None,
}


def trace_of(rows):
    kernels = table_of("rank start_ns dur_ns name", rows)
    return Trace(
        {
            "kernels": kernels.with_columns(
                pl.col("rank").cast(pl.Int32), stream=pl.lit(7, dtype=pl.Int64)
            )
        }
    )


SMALL = trace_of([(0, 0, 10, "a"), (0, 20, 30, "b"), (0, 60, 20, "a"), (1, 0, 5, "a")])


@pytest.fixture(scope="module")
def eager():
    return sample("torch_tp1_eager")


@pytest.fixture(scope="module")
def metrics():
    return llmprof.sample_metrics("ncu_tp1_eager")


def test_table_is_what_the_analysis_returns(eager):
    widget = explore.kernels(eager)
    columns = ["name", "count", "total_ns", "p99_ns", "phases"]
    assert widget.table.select(columns).equals(kernels_within(eager).select(columns))
    widget.stage = "attention"  # a pick narrows nothing
    assert widget.table["count"].sum() == eager.events.height
    widget.only, widget.by, widget.sort = {"stage": "attention"}, ["phase"], "count"
    found = widget.table
    assert found["count"].is_sorted()
    assert set(found["phase"]) == {"prefill", "mixed", "decode"}
    assert found["count"].sum() == eager.events.filter(pl.col("stage") == "attention").height
    widget = explore.kernels(SMALL, search="B")
    assert widget.table["name"].to_list() == ["b"]
    widget.search = "("  # a text, not a pattern
    assert widget.table.is_empty()
    widget.search, widget.sort = "", "name"
    assert widget.table["name"].to_list() == ["a", "b"]
    with pytest.raises(traitlets.TraitError, match="colour"):
        widget.sort = "colour"
    with pytest.raises(traitlets.TraitError):
        widget.by = ["colour"]
    widget = explore.kernels(SMALL, window=[15.0, 55.0])
    assert widget.table["count"].sum() == 4
    widget.only = {"window": [15.0, 55.0]}
    assert widget.table.select("name", "count").rows() == [("b", 1)]


def test_picking_ends_in_a_frame():
    widget = explore.kernels(SMALL)
    assert widget.selected.is_empty()
    assert widget.selected.columns == SMALL.events.columns
    ask(widget, "pick", {**VIEW, "by": ["rank"], "sort": "total_ns"}, 0)
    assert (widget.kernel, widget.of) == ("a", {"rank": 1})
    assert widget.selected.select("rank", "start_ns", "name").rows() == [(1, 0, "a")]
    widget.of = {}
    assert widget.selected.height == 3
    ask(widget, "launch", int(widget.selected["event"][1]))
    assert widget.selected.height == 1
    start = widget.selected["start_ns"][0]
    assert widget.window is not None
    assert widget.window[0] < start < widget.window[1]
    widget.kernel = "b"
    assert widget.event is None
    assert widget.selected["name"].to_list() == ["b"]
    ask(widget, "pick", VIEW, 99)
    assert widget.kernel == "b"


def test_rows_are_json_with_sparklines_beside_them():
    widget = explore.kernels(SMALL)
    message, buffers = ask(widget, "table", VIEW)
    assert json.loads(json.dumps(message)) == message
    assert (message["total"], message["launches"], message["total_ns"]) == (2, 4, 65)
    assert [(row["name"], row["total_ns"]) for row in message["rows"]] == [("a", 35), ("b", 30)]
    assert message["options"]["rank"] == [0, 1]
    spark = np.frombuffer(buffers[0], dtype="u1").reshape(2, explorer.BINS)
    # span 0 to 80 ns in 48 parts: `a` starts at 0 (15 ns of both ranks) and 60 (20 ns, its peak)
    assert spark[0].nonzero()[0].tolist() == [0, 36]
    assert spark[0][[0, 36]].tolist() == [round(255 * 15 / 20), 255]
    later, empty = ask(widget, "rows", VIEW, 5, 60)
    assert later["rows"] == []
    assert len(empty[0]) == 0


def test_operators_stand_under_the_roofs_of_the_device():
    trace = sample("torch_transformers_generate")
    found = explorer.operators_roofline(trace, None)
    rows = analyze.operators(trace).filter(pl.col("flops") > 0, pl.col("bound_ns") > 0)
    assert found is not None
    assert (found["bandwidth"], found["peaks"], found["device"]) == (
        4.8e12,
        {"bf16": 989.5e12},
        "H200",
    )
    assert sum(point["ns"] for point in found["points"]) == rows["total_ns"].sum()
    assert {point["kernel"] for point in found["points"]} <= set(trace.kernels["name"])
    assert json.loads(json.dumps(found)) == found
    assert (
        ask(explore.kernels(trace), "shapes", found["points"][0]["kernel"], None)[0]["roofline"]
        == found
    )
    assert explorer.operators_roofline(trace, 1) is None
    # a mark picks its longest launch, and of a launch the mark is found
    point = max(found["points"], key=lambda each: each["ns"])
    widget = explore.kernels(trace)
    ask(widget, "launch", point["event"])
    launch = trace.events.row(by_predicate=pl.col("event") == widget.event, named=True)
    assert widget.window[0] < launch["start_ns"] < widget.window[1]
    assert ask(widget, "operator", widget.event)[0] == {"row": point["row"]}
    assert ask(widget, "operator", -1)[0] == {"row": None}


def test_what_was_not_recorded_is_said():
    widget = explore.kernels(SMALL)
    assert "holds no ops" in ask(widget, "shapes", "a", None)[0]["why"]
    assert ask(widget, "kernel", VIEW, "a", {})[0]["grids"] == []
    with pytest.raises(NotCapturedError):
        ask(widget, "metrics", "a")


def test_hardware_metrics_of_a_kernel(eager, metrics):
    widget = explore.kernels(eager, metrics=metrics)
    joined = ncu.join(eager, metrics)
    assert ask(widget, "table", VIEW)[0]["unmatched"] == joined["name"].null_count()
    assert set(widget.table.drop_nulls("limit")["name"]) == set(joined["name"].drop_nulls())
    name = next(n for n in joined["name"].drop_nulls() if "FlashAttnFwd" in n)
    message, _ = ask(widget, "metrics", name)
    assert json.loads(json.dumps(message)) == message
    assert [launch["kernel_id"] for launch in message["launches"]] == joined.filter(name=name)[
        "kernel_id"
    ].to_list()
    other = message["launches"][-1]["kernel_id"]
    assert ask(widget, "metrics", name, other)[0]["chosen"] == other
    assert message["speed"]["bound_by"] in {"compute", "memory", "latency"}
    assert {bar["label"] for bar in message["bars"]} >= {"compute", "of its roof"}
    assert message["roofline"]["device"] == "H200"
    assert other in [point["kernel_id"] for point in message["roofline"]["points"]]
    assert message["stalls"][0]["share"] >= message["stalls"][-1]["share"] > 0
    assert message["rules"]
    values, _ = ask(widget, "values", message["chosen"], "dram__bytes_read.sum")
    assert values["total"] >= 1
    assert values["rows"][0]["title"] == "traffic of the device memory"
    assert ask(widget, "values", message["chosen"], "")[0]["total"] > len(
        ask(widget, "values", message["chosen"])[0]["rows"]
    )
    assert ask(widget, "explain", "long_scoreboard")[0]["action"]
    assert ask(widget, "explain", "no such thing")[0]["title"] == "not in the glossary"
    assert ask(widget, "metrics", "no such kernel")[0] == {"launches": [], "note": ""}


def test_metrics_without_a_known_device_still_show(eager, metrics):
    kept = metrics.metrics.filter(pl.col("metric") != "device__attribute_display_name")
    found = explorer.profiled(eager, Metrics(kept, metrics.rules))
    assert "device" in found.note
    name = found.limits()["name"][0]
    message = explorer.kernel_detail(found, name)
    assert {name: message["roofline"][name] for name in ("bandwidth", "peaks", "device")} == {
        "bandwidth": None,
        "peaks": {},
        "device": None,
    }
    assert message["stalls"]


def test_command_of_a_kernel(eager):
    widget = explore.kernels(eager)
    name = next(n for n in widget.table["name"] if n.startswith("nvjet"))
    message, _ = ask(
        widget, "command", "python serve.py 'a b'", {**VIEW, "phase": "decode"}, name, {}
    )
    assert message["command"].startswith("ncu --target-processes all")
    assert message["command"].endswith("python serve.py 'a b'")
    assert widget.program == "python serve.py 'a b'"
    with pytest.raises(LlmprofError, match="cannot be read"):
        ask(widget, "command", "python 'a", VIEW, name, {})
    with pytest.raises(AnalysisError, match="program"):
        ask(widget, "command", "", VIEW, name, {})


def test_empty_and_missing():
    empty = explore.kernels(Trace({"kernels": schema.empty("kernels")}))
    message, _ = ask(empty, "table", VIEW)
    assert (message["total"], message["rows"], message["launches"]) == (0, [], 0)
    assert empty.selected.is_empty()
    assert "image/png" not in empty._repr_mimebundle_()[0]
    missing = explore.kernels(Trace({}))
    assert missing.selected.is_empty()
    assert "image/png" not in missing._repr_mimebundle_()[0]
    with pytest.raises(NotCapturedError):
        ask(missing, "table", VIEW)


def test_how_much_longer_a_kernel_may_take_is_found_after_the_first_rows():
    widget = explore.kernels(two_ranks(), by=["rank"])
    assert "slack_ns" not in ask(widget, "table", VIEW | {"by": ["rank"]})[0]["rows"][0]
    assert ask(widget, "slack")[0] == {"why": ""}
    rows = ask(widget, "table", VIEW | {"by": ["rank"], "sort": "-slack_ns"})[0]["rows"]
    assert (rows[0]["name"], rows[0]["rank"], rows[0]["slack_ns"]) == (GEMM, 0, 59_000)
    assert widget.table.filter(pl.col("name") == GEMM)["slack_ns"].sort().to_list() == [0, 59_000]
    silent = explore.kernels(Trace({"kernels": two_ranks().kernels}))
    assert "calls were not recorded" in ask(silent, "slack")[0]["why"]
    assert "slack_ns" not in silent.table.columns


def test_rows_of_one_kernel_say_what_divides_them(eager):
    for by in ([], ["phase"], ["layer", "stage"]):
        widget = explore.kernels(eager, by=by)
        rows = ask(widget, "table", VIEW | {"by": by}, count=10_000)[0]["rows"]
        assert len({row["label"] for row in rows}) == len(rows) == widget.table.height
