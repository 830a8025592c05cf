import polars as pl

from llmprof.analyze import coverage
from llmprof.trace import Trace
from tests.analyze.builders import DENSE, EMBEDDING, GEMM, NORM, kernels, labels, launches, ops


def shares(trace, rank=0):
    found = coverage(trace).filter(pl.col("rank") == rank)
    columns = ["kind", "share", "total_ns", "count", "missing_count"]
    return {kind: rest for kind, *rest in found.select(columns).iter_rows()}


def test_shares_by_hand():
    # one kernel of 60 ns before the step, unknown and without launch; 16 kernels of 10 ns in it,
    # three of them unknown
    stray = kernels([("acme", 60)], start=0, first=900)
    run = kernels(["_prepare", EMBEDDING, *DENSE, NORM, GEMM, "_sample", "_update"], start=100)
    copy = kernels([("Memcpy DtoH", 20)], start=300, first=950, stream=9).with_columns(
        kind=pl.lit("DtoH")
    )
    run = pl.concat([stray, run]).with_columns(
        op_id=pl.when(pl.col("name") == GEMM).then(pl.col("correlation"))
    )
    known = pl.concat([run.filter(pl.col("name") != "acme").drop("op_id"), copy.drop("kind")])
    trace = Trace(
        {
            "kernels": run,
            "copies": copy,
            "runtime": launches(known),
            "markers": labels([("execute_new_0_cached_4", 50, 10)]),
        }
    )
    assert shares(trace) == {
        "step": [180 / 240, 240, 18, 1],
        "stage": [160 / 240, 240, 18, 3],  # _sample and _update are no known choice of a token
        "category": [150 / 240, 240, 18, 4],  # acme, _prepare, _sample and _update say nothing
        "launch": [180 / 240, 240, 18, 1],
        "operator": [50 / 240, 240, 18, 13],  # four GEMMs of the layer and the lm_head
        "recorded": [1.0, None, 17, 0],  # launching calls, each with its event
    }
    of_time = coverage(trace).filter(pl.col("kind") != "recorded")
    assert of_time["denominator"].unique().to_list() == ["summed time of kernels and copies"]
    run = pl.concat([kernels(["acme"], rank=0), kernels([GEMM], rank=1)])
    trace = Trace({"kernels": run})
    assert shares(trace, 0)["category"][0] == 0.0
    assert shares(trace, 1)["category"][0] == 1.0
    trace = Trace(
        {"ops": ops([("aten::mm", 0, 30, 1), ("aten::inner", 5, 5, 2), ("aten::foo", 40, 10, 3)])}
    )
    assert shares(trace)["category"] == [0.75, 40, 2, 1]
    assert coverage(trace)["denominator"].unique().to_list() == [
        "summed time of outermost operators"
    ]
