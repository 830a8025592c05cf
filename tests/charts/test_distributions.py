import polars as pl

from llmprof import charts
from llmprof.charts.base.theme import CAUSES
from llmprof.text import PART_WORDS
from tests.charts import frames, specs


def test_every_kernel_is_in_the_histograms():
    frame = frames.called()
    bins = specs.rows(charts.collectives(frame), "rect", "n")
    assert sum(row["n"] for row in bins) == 2 * frame.height  # durations, and transfers
    assert sum(row["sum_ns"] for row in bins) == frame["dur_ns"].sum() + frame["transfer_ns"].sum()


def test_wait_and_transfer_of_each_rank():
    frame = frames.called()
    bars = pl.DataFrame(specs.rows(charts.collectives(frame), "bar", "part"))
    for rank in range(frames.RANKS):
        mine = frame.filter(rank=rank)
        ns = dict(bars.filter(row=f"rank {rank}").select("part", "ns").iter_rows())
        assert ns.get("wait", 0) == mine["wait_ns"].sum()
        assert ns["transfer"] == mine["transfer_ns"].sum()
    title = charts.collectives(frame).to_dict()["title"]
    assert "98 % of its time is waiting for ranks" in title["text"]
    assert "until the last rank has started" in " ".join(title["subtitle"])


def test_idle_time_by_cause_and_rank():
    frame = frames.idled()
    chart = charts.idle(frame)
    bars = pl.DataFrame(specs.rows(chart, "bar", "part"))
    expected = frame.group_by("rank", "cause").agg(
        ns=pl.col("dur_ns").sum(), gaps=pl.len().cast(pl.Int64)
    )
    for rank, cause, ns, gaps in expected.iter_rows():
        (row,) = bars.filter(row=f"rank {rank}", part=PART_WORDS[cause]).iter_rows(named=True)
        assert (row["ns"], row["gaps"]) == (ns, gaps)
    scale = next(
        u["encoding"]["color"]["scale"]
        for u in specs.marks(chart.to_dict())
        if "color" in u["encoding"]
    )
    assert scale["domain"] == [PART_WORDS[cause] for cause in CAUSES]
    assert scale["range"] == list(CAUSES.values())
    bins = specs.rows(chart, "rect", "cause", "n")
    assert sum(row["n"] for row in bins) == 2 * frame.height  # once as a number, once as time
    assert sum(row["sum_ns"] for row in bins) == 2 * frame["dur_ns"].sum()


def test_launch_delay_of_ranks_that_are_worlds_apart_is_logarithmic():
    far = frames.delayed().with_columns(
        pl.when(pl.col("rank") == 3).then(pl.col("median_ns") // 20).otherwise("median_ns")
    )
    kinds = []
    for frame in (frames.delayed(), far):
        rules = [
            unit
            for unit in specs.marks(charts.launch_delay(frame).to_dict())
            if unit["mark"]["type"] == "rule"
        ]
        kinds.append({unit["encoding"]["y"]["scale"].get("type", "linear") for unit in rules})
    assert kinds == [{"linear"}, {"log"}]


def test_the_critical_path_is_a_mean_step_of_each_phase():
    chart = charts.critical_path(frames.path())
    said = " ".join(specs.texts(chart))
    # decode: 1 and 3 ms of the host, 2 and 2 of compute, 0.1 unexplained in one of two steps: 2 + 2
    # + 0.05 ms
    named = {row["row"] for data in chart.to_dict()["datasets"].values() for row in data}
    assert named == {"prefill (1 step)", "decode (2 steps)"}
    assert "4.05 ms" in said
    assert "10.0 ms" in said
    # 10 of 18.1 ms
    assert "55 % of the critical path is compute" in said
    whole = frames.path().with_columns(phase=pl.lit(None, pl.String), step=pl.lit(None, pl.Int32))
    said = " ".join(specs.texts(charts.critical_path(whole)))
    assert "The recording, by part" in said
    assert "a step" not in said
    assert "Mean step" not in said
