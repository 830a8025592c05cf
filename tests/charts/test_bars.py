import polars as pl
import pytest

from llmprof import charts
from llmprof.charts.base.theme import CATEGORIES, REST
from llmprof.charts.subjects.breakdown import PARTS
from tests.building import table_of
from tests.charts import frames, specs


def test_breakdown_adds_up_to_the_frame():
    frame = frames.attributed()
    parts = pl.DataFrame(
        specs.rows(charts.breakdown(frame, color="category"), "bar", "part", "row_ns")
    )
    totals = dict(frame.group_by("phase").agg(pl.col("dur_ns").sum()).iter_rows())
    for row, total in totals.items():
        bars = parts.filter(row=row)
        outer = bars.filter(row_ns=total).unique("part")
        assert outer["ns"].sum() == total
        assert outer["percent"].sum() == pytest.approx(100)
    linear = frame.filter(phase="decode", category="gemm")["dur_ns"].sum()
    assert linear in parts.filter(row="decode", part="gemm")["ns"]


def test_breakdown_gathers_small_parts_and_takes_them_apart():
    chart = charts.breakdown(frames.attributed(), color="category")
    scale = next(
        u["encoding"]["color"]["scale"]
        for u in specs.marks(chart.to_dict())
        if "color" in u["encoding"]
    )
    colours = dict(zip(scale["domain"], scale["range"], strict=True))
    gathered = [name for name in colours if name.startswith("other (")]
    assert len(gathered) == 1
    assert colours[gathered[0]] == REST
    assert colours["collective"] == CATEGORIES["collective"]
    assert f"What is in {gathered[0]}" in specs.texts(chart)
    inner = {row["part"] for row in specs.rows(chart, "bar", "part")}
    assert {"rope", "activation"} <= inner
    by_phase = charts.breakdown(frames.attributed())
    assert list(dict.fromkeys(row["row"] for row in specs.rows(by_phase, "bar", "part"))) == [
        "prefill",
        "decode",
    ]
    many = pl.concat(
        [
            frames.attributed().with_columns(pl.lit(rank, pl.Int32).alias("rank"))
            for rank in (10, 2, 1)
        ]
    )
    by_rank = charts.breakdown(many, rows="rank")
    assert list(dict.fromkeys(row["row"] for row in specs.rows(by_rank, "bar", "part"))) == [
        "rank 1",
        "rank 2",
        "rank 10",
    ]


def test_overlap_parts_add_up_to_the_total():
    frame = frames.overlapped()
    bars = pl.DataFrame(specs.rows(charts.overlap(frame), "bar", "part"))
    for rank in range(frames.RANKS):
        mine, own = frame.filter(rank=rank), bars.filter(row=f"rank {rank}")
        ns = dict(own.select("part", "ns").iter_rows())
        assert sum(ns.values()) == mine["total_ns"].sum()
        assert ns["compute"] + ns["hidden communication"] == mine["compute_ns"].sum()
        assert ns["exposed communication"] == mine["exposed_communication_ns"].sum()
        assert ns["exposed copy"] == mine["exposed_copy_ns"].sum()
        assert ns["idle"] == mine["idle_ns"].sum()
    whole = ["compute", "hidden communication", "exposed communication", "exposed copy", "idle"]
    assert [p for p in PARTS if p in set(bars["part"])] == whole


def test_exposed_communication_is_waiting_and_transfer_where_the_frame_says_so():
    exposed = pl.col("exposed_communication_ns")
    parts = {
        "exposed_wait_ns": exposed // 2,
        "exposed_transfer_ns": exposed - exposed // 2,
        "exposed_unknown_ns": pl.lit(0),
    }
    frame = frames.overlapped().with_columns(**parts)
    chart = charts.overlap(frame)
    bars = pl.DataFrame(specs.rows(chart, "bar", "part"))
    assert "exposed communication" not in set(bars["part"])
    assert "exposed transfer or waiting" not in set(
        bars["part"]
    )  # none of it: not in the legend either
    for part, column in (
        ("exposed waiting for ranks", "exposed_wait_ns"),
        ("exposed transfer", "exposed_transfer_ns"),
    ):
        assert bars.filter(part=part)["ns"].sum() == frame[column].sum()
    assert "of it waiting" in " ".join(chart.title.text)


def test_diff_is_sorted_by_the_size_of_the_change():
    chart = charts.diff(frames.compared())
    bars = specs.rows(chart, "bar", "delta_ns")
    frame = frames.compared().sort(pl.col("delta_ns").abs(), descending=True)
    for phase in ("prefill", "decode"):
        mine = frame.filter(phase=phase).select("stage", "delta_ns").rows()
        shown = [row for row in ((bar["row"], bar["delta_ns"]) for bar in bars) if row in mine]
        assert len(shown) > 6
        assert shown == mine[: len(shown)]


def test_diff_gathers_changes_that_do_not_matter():
    rows = [
        ("a", 100_000, 50_000),
        ("b", 100_000, 100_050),
        ("c", 100_000, 99_930),
        ("d", 100_000, 100_000),
    ]
    frame = table_of("stage a_ns b_ns", rows).with_columns(
        phase=pl.lit("decode"),
        category=pl.lit("gemm"),
        delta_ns=pl.col("b_ns") - pl.col("a_ns"),
        status=pl.lit("same"),
    )
    bars = [
        (bar["row"], bar["delta_ns"]) for bar in specs.rows(charts.diff(frame), "bar", "delta_ns")
    ]
    assert bars == [("a", -50_000), ("other (2)", -20)]
    written = specs.texts(charts.diff(frames.compared(), names=("eager", "graphs")))
    assert any(text.endswith("only in graphs") for text in written)
    assert any(text.endswith("only in eager") for text in written)
    assert any(
        "only in one trace" in text.lower() or "In one trace only" in text for text in written
    )
    assert not any(
        text.startswith("mixed:") for text in written
    )  # graphs alone have it: not compared, not zero
