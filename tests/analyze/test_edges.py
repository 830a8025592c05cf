"""Every analysis on recordings at the edges of what can be: a frame, or an error of llmprof, and
nothing else.
"""

import random
import traceback

import polars as pl
import pytest

from llmprof.analyze.catalog import analyses
from llmprof.errors import LlmprofError
from llmprof.trace import Trace, schema
from tests.analyze.builders import (
    ALL_REDUCE,
    DENSE,
    NCCL_ALL_REDUCE,
    kernels,
    labels,
    launches,
    ops,
)

KERNELS = (*DENSE, ALL_REDUCE, NCCL_ALL_REDUCE, "k", "")
CALLS = (
    "cudaLaunchKernel",
    "cudaGraphLaunch",
    "cudaStreamWaitEvent",
    "cudaEventRecord",
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaMemcpyAsync",
    "cudaMalloc",
    "aclrtSynchronizeStream",
    "MPI_Send",
    "acc_wait",
)
OPS = (
    "aten::mm",
    "aten::embedding",
    "aten::linear",
    "c10d::allreduce_",
    "ProfilerStep#3",
    "x.py(1): forward",
)
MARKS = (
    "execute_new_0_cached_4",
    "ProfilerStep#1",
    "execute_context_1(3)_generation_0(0)",
    "nccl:all_reduce",
    "layer::model.layers.0.mlp",
    "model.layers.0.self_attn",
    "Optimizer.step#SGD.step",
    "",
    "gc",
)


class Recording:
    """Tables of a few rows, whose values are drawn from few, so that many meet."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        pick = self.rng.choice
        self.times = pick([[0], [0, 1, 2], list(range(0, 90, 7)), [-5, 0, 10**6, 10**9]])
        self.lengths = pick([[0], [0, 1, 5], [5], [0, 7, 10**6]])
        self.ranks = pick([[0], [0, 1], [0, 0, 0, 3], [-1, 0]])
        self.numbers = pick([[None], [1], [1, 2, 3, None]])
        self.heights = pick([[0], [1], [0, 1, 2, 9], [24]])
        self.nulls = pick([0.0, 0.2, 1.0])

    def value(self, column):
        """A value of a column."""
        pick, name = self.rng.choice, column.name
        if column.nullable and self.rng.random() < self.nulls:
            return None
        if name in ("start_ns", "time_ns"):
            return pick(self.times)
        if name in ("dur_ns", "total_ns", "min_ns", "max_ns", "median_ns"):
            return pick(self.lengths)
        if name == "rank":
            return pick(self.ranks)
        if name in ("correlation", "op_id", "graph_node"):
            return pick(self.numbers)
        texts = {
            "shapes": ["[]", "[[4, 4], [4, 4]]", "[[], [3]]", "x"],
            "dtypes": ["[]", '["float", "c10::BFloat16"]'],
            "group_ranks": ["[0, 1]", "[0, 1, ...", "[]"],
            "api": ["runtime", "driver", "os", "mpi", "openacc"],
            "recorded_as": ["allreduce", "alltoallv"],
            "unit": ["%", "ns", "samples", "W"],
            "stack": ["a\nb", "b"],
            "domain": ["nvtx", "user_annotation", "module", ""],
            "evidence": ["metadata", "name"],
        }
        if name in texts:
            return pick(texts[name])
        by_type = {
            pl.Boolean(): [True, False],
            pl.String(): ["a", "b"],
            pl.Float64(): [0.0, 1.0, 100.0],
        }
        return pick(by_type.get(column.dtype, [0, 1, 7]))

    def table(self, name):
        """A table with some rows."""
        spec = schema.TABLES[name]
        kinds = {
            "copies": ["HtoD", "memset", "DtoH"],
            "ops": ["op", "python"],
            "tasks": ["event_wait", "transfer"],
            "collectives": ["all_reduce", "send_recv", "all_to_all"],
            "totals": ["kernel", "call", "op", "layer"],
        }
        names = {
            "kernels": KERNELS,
            "copies": ("Memcpy HtoD",),
            "runtime": CALLS,
            "ops": OPS,
            "markers": MARKS,
        }
        rows = []
        for _ in range(self.rng.choice(self.heights)):
            row = {column.name: self.value(column) for column in spec.columns}
            if "name" in row:
                row["name"] = self.rng.choice(names.get(name, KERNELS))
            if name in kinds:
                row["kind"] = self.rng.choice(kinds[name])
            rows.append(row)
        return pl.DataFrame(rows, schema=spec.schema, orient="row")

    def trace(self):
        """A trace of some tables."""
        some = self.rng.choice(
            [
                ["kernels"],
                ["ops"],
                ["markers"],
                ["runtime"],
                ["runtime", "ops", "markers"],
                ["kernels", "copies"],
                ["kernels", "runtime"],
                ["kernels", "runtime", "ops", "markers"],
                ["samples"],
                ["totals"],
                ["counters"],
                list(schema.TABLES),
            ]
        )
        devices = self.rng.choice(["NVIDIA H200", "", "Ascend910B3", None])
        return Trace(
            {name: self.table(name) for name in some}, {"world_size": 4, "device": devices}
        )


def raw(trace):
    """Analyses that end neither in a frame nor in an error of llmprof, and how."""
    found = {}
    for analysis in analyses():
        try:
            frame = analysis.function(trace, **dict.fromkeys(analysis.needs, "Qwen/Qwen2.5-7B"))
        except LlmprofError:
            continue
        except Exception:  # noqa: BLE001 (this is what is looked for)
            found[analysis.name] = traceback.format_exc()
        else:
            if not isinstance(frame, pl.DataFrame):
                found[analysis.name] = f"gave a {type(frame).__name__}"
    return found


STEP = [("execute_new_0_cached_4", 0, 10), ("execute_new_0_cached_4", 200, 10)]
RUN = kernels([*DENSE, ALL_REDUCE], pause=3)
CALLED = launches(RUN)
WAITS = CALLED.with_columns(name=pl.Series([CALLS[n % len(CALLS)] for n in range(CALLED.height)]))
AT_ONCE = RUN.with_columns(start_ns=pl.lit(5, pl.Int64))
HOST = {"runtime": CALLED, "ops": ops([("aten::mm", 0, 9, 1)]), "markers": labels(STEP)}
EDGES = {
    "no table": {},
    "no event": {name: schema.empty(name) for name in schema.TABLES},
    "one event": {"kernels": RUN[:1], "runtime": CALLED[:1]},
    "one event alone": {"kernels": RUN[:1]},
    "only markers": {"markers": labels(STEP)},
    "only the host": HOST,
    "no kernels, but the host": HOST | {"kernels": RUN.clear(), "copies": schema.empty("copies")},
    "device without launches": {"kernels": RUN, "markers": labels(STEP)},
    "waits without launches": {
        "kernels": RUN.with_columns(correlation=pl.lit(None, pl.Int64)),
        "runtime": WAITS,
    },
    "steps without kernels": HOST | {"kernels": RUN.with_columns(pl.col("start_ns") + 10**9)},
    "events of no length": HOST | {"kernels": RUN.with_columns(dur_ns=pl.lit(0, pl.Int64))},
    "all in one instant": HOST
    | {
        "kernels": AT_ONCE.with_columns(dur_ns=pl.lit(0, pl.Int64), stream=pl.int_range(pl.len())),
    },
    "all at once": HOST
    | {"kernels": AT_ONCE, "runtime": WAITS.with_columns(start_ns=pl.lit(5, pl.Int64))},
    "a rank without device work": HOST
    | {
        "kernels": RUN,
        "markers": pl.concat([labels(STEP), labels(STEP, rank=1)]),
        "collectives": pl.concat(
            RUN[-1:].with_columns(rank=pl.lit(rank, pl.Int32), on_device=pl.lit(value=True))
            for rank in (0, 1)
        ),
    },
    "ranks that call alone": {
        "kernels": pl.concat([RUN, kernels([*DENSE, NCCL_ALL_REDUCE], rank=3)]),
        "runtime": CALLED,
    },
}


@pytest.mark.parametrize("name", EDGES)
def test_every_analysis_at_an_edge(name):
    assert not raw(Trace(EDGES[name], {"world_size": 2}))


@pytest.mark.parametrize("seed", [1, 28, 68, 167, 2001, 2002])
def test_every_analysis_on_tables_of_few_values(seed):
    assert not raw(Recording(seed).trace())


@pytest.mark.slow
@pytest.mark.parametrize("first", range(3000, 3200, 20))
def test_every_analysis_on_more_tables(first):
    found = {
        seed: some for seed in range(first, first + 20) if (some := raw(Recording(seed).trace()))
    }
    assert not found
