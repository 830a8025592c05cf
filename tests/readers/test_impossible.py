"""Lengths and times that cannot be, in every format: left out of the tables, counted, and said
once.
"""

import gzip
import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from llmprof import analyze
from llmprof.errors import ReadError
from llmprof.readers.common.reader import MOST_NS, FilePart, possible
from tests.fuzz import seeds
from tests.readers.test_ops import document
from tests.readers.traces import kernel, read_and_told, text_of

NUMBER = r"[\d.]+"
TEXTS = {
    "chrome/torch_tp4_eager_nccl.json": rf'"cat": "kernel".*?"dur": ({NUMBER})',
    "chrome gzip/zipped.json.gz": rf'"cat": "kernel".*?"dur": ({NUMBER})',
    "ascend mindspore/msprof_0_2_1.json": rf'"dur": ({NUMBER})',
    "ascend files/trace_view.json": rf'MatMul.*?"dur": "?({NUMBER})',
    "ascend files/kernel_details.csv": rf",AI_VECTOR_CORE,{NUMBER}\s*,({NUMBER}),",
    "nvprof/kernels+copies.csv": rf"\n\d+\.0,({NUMBER}),",
    "nvprof/runtime.csv": rf"\n\d+\.0,({NUMBER}),",
    "nvprof/totals.csv": rf'"GPU activities",{NUMBER},({NUMBER}),',
    "vtune/samples.csv": rf"function_1,({NUMBER})",
    "vtune/stacks.csv": rf"frame_3,{NUMBER}s,({NUMBER})s",
    "tensorrt/net.profile.json": rf'"timeMs": ({NUMBER})',
    "tensorrt/net.timing.json": rf'"computeMs": ({NUMBER})',
    "proton/run.hatchet": r'"time \(ns\)": (10\d)',
    "rocprofv3/12_kernel_trace.csv": r"\n.*,\d+,(\d+)\n",
    "rocprofv3/12_copy_trace.csv": r"\n.*,\d+,(\d+)\n",
}
"""A length in each kind of text."""

DATABASES = {
    "nsys/nsys_tp2_cudagraph.sqlite": ("CUPTI_ACTIVITY_KIND_KERNEL", "end", "start"),
    "nvvp/session.nvvp": ("CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL", "end", "start"),
    "rocpd/results.db": ("rocpd_kernel_dispatch_00ab", "end", "start"),
    "ascend files/ascend_pytorch_profiler_0.db": ("COMMUNICATION_OP", "endNs", "startNs"),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return seeds.make(tmp_path_factory.mktemp("seeds"))


def rows(trace):
    return sum(trace.rows.values())


def told(path, whole):
    """Only rows that cannot be are missing, all of them are counted, and a sentence more says
    so.
    """
    before, said_before = read_and_told(whole)
    after, said = read_and_told(path)
    assert before.coverage["impossible"] == 0
    assert after.coverage["impossible"] >= 1
    assert before.coverage["events"] == after.coverage["events"]
    assert after.coverage["kept"] <= before.coverage["kept"] - after.coverage["impossible"]
    assert rows(before) - 4 * after.coverage["impossible"] <= rows(after) < rows(before)
    assert len([one for one in said if one not in said_before and "cannot be" in one]) == 1
    for name, frame in after.tables.items():
        assert possible(frame, name).height == frame.height
        if "dur_ns" in frame.columns:
            assert (frame["dur_ns"] == 0).sum() <= (before.table(name)["dur_ns"] == 0).sum()


def spread(names, values):
    """Each name with two of the values, and each value with many of the names."""
    each = len(values)
    return [(name, values[(n + k) % each]) for n, name in enumerate(names) for k in (0, each // 2)]


@pytest.mark.parametrize(
    ("name", "value"), spread(TEXTS, ["1e400", "-7", "NaN", "1e30", "Infinity", "-1e400"])
)
def test_a_length_of_text_that_cannot_be(corpus, tmp_path, name, value):
    source, path = corpus / name, tmp_path / Path(name).name
    data = source.read_bytes()
    text = (gzip.decompress(data) if source.suffix == ".gz" else data).decode()
    if path.suffix == ".csv":
        value = {"NaN": "nan", "Infinity": "inf"}.get(value, value)
    found = re.search(TEXTS[name], text, re.DOTALL if "json" in name else 0)
    assert found is not None
    text = text[: found.start(1)] + value + text[found.end(1) :]
    path.write_bytes(gzip.compress(text.encode()) if source.suffix == ".gz" else text.encode())
    told(path, source)


FAR = ["9e999", "-9e999", "{start} - 7", "9223372036854775807", "{start} + (1 << 60)"]


@pytest.mark.parametrize(("name", "value"), spread(DATABASES, FAR))
def test_a_length_in_a_database_that_cannot_be(corpus, tmp_path, name, value):
    table, column, start = DATABASES[name]
    path = Path(shutil.copyfile(corpus / name, tmp_path / Path(name).name))
    with closing(sqlite3.connect(path)) as connection, connection:
        changed = f'UPDATE "{table}" SET "{column}" = {value.format(start=start)} WHERE rowid = 1'
        assert connection.execute(changed).rowcount == 1
    told(path, corpus / name)


@pytest.mark.parametrize("value", ["9e999", "-9e999", "NULL"])
@pytest.mark.parametrize(
    "name", ["nsys/nsys_tp2_cudagraph.sqlite", "rocpd/results.db", *list(DATABASES)[3:]]
)
def test_a_start_in_a_database_that_cannot_be(corpus, tmp_path, name, value):
    table, _, start = DATABASES[name]
    path = Path(shutil.copyfile(corpus / name, tmp_path / Path(name).name))
    with closing(sqlite3.connect(path)) as connection, connection:
        # a copy of the table holds NULL, which exports of some versions refuse
        connection.execute(f'CREATE TABLE plain AS SELECT * FROM "{table}"')
        connection.execute(f'DROP TABLE "{table}"')
        connection.execute(f'ALTER TABLE plain RENAME TO "{table}"')
        connection.execute(f'UPDATE "{table}" SET "{start}" = {value} WHERE rowid = 1')
    told(path, corpus / name)


def test_a_sample_of_perf_at_a_time_that_cannot_be(corpus, tmp_path):
    path = tmp_path / "perf.txt"
    path.write_text((corpus / "perf/perf.txt").read_text().replace("100.003", "9999999999.003"))
    told(path, corpus / "perf/perf.txt")


def test_an_operator_that_ends_before_it_begins(tmp_path):
    content, (whole, path) = document(), (tmp_path / "whole.json", tmp_path / "ops.json")
    whole.write_text(json.dumps(content))
    content["collectives"]["end_ns"][0] = content["collectives"]["start_ns"][0] - 5
    path.write_text(json.dumps(content))
    told(path, whole)


def test_the_coverage_counts_by_rank_and_the_warning_comes_once(tmp_path):
    for rank, lengths in enumerate(([5, -1, 5, -2], [5, -3, 5, 5])):
        events = [kernel("k", 10 * n, length) for n, length in enumerate(lengths)]
        (tmp_path / f"rank{rank}.json").write_bytes(
            text_of(events, distributedInfo={"rank": rank, "world_size": 2})
        )
    trace, said = read_and_told(tmp_path)
    assert len([one for one in said if "cannot be" in one]) == 1
    assert trace.coverage["impossible"] == 3
    counts = (
        analyze.coverage(trace)
        .select("rank", "impossible_count", "total_ns")
        .unique(maintain_order=True)
    )
    assert counts.rows() == [(0, 2, 10_000), (1, 1, 15_000)]


def test_a_part_leaves_out_what_cannot_be():
    lengths = [0, 5, 2**53, 2**53 + 1, -1, None]
    starts = [0, MOST_NS, -MOST_NS, 0, 0, 0]
    frame = pl.DataFrame({"start_ns": starts, "dur_ns": lengths, "name": "k"})
    assert possible(frame, "kernels").height == 3
    frame = frame.with_columns(start_ns=pl.lit(0, pl.Int64))  # years apart is no recording either
    values = pl.DataFrame(
        {"time_ns": [0, 0, 0, 2**62], "value": [1.0, float("nan"), float("inf"), 1.0], "name": "c"}
    )
    stacks = pl.DataFrame(
        {"time_ns": [None, 0, 0], "value": [1, -1, None], "name": "f", "stack": "f"}
    )
    part = FilePart(
        Path("f"),
        {"kernels": frame, "collectives": frame, "counters": values, "samples": stacks},
        {},
        {},
    )
    assert part.rows == {"kernels": 3, "collectives": 3, "counters": 1, "samples": 1}
    assert part.coverage["impossible"] == 3 + 3 + 2


def test_half_a_surrogate_pair_is_refused_and_not_taken_for_an_infinity(corpus, tmp_path):
    path = tmp_path / "run.hatchet"
    path.write_text((corpus / "proton/run.hatchet").read_text().replace('"90"', '"9\\ud800"'))
    with pytest.raises(ReadError):
        read_and_told(path)
