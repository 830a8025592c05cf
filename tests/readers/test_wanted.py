"""``read(tables=...)``: the same rows, times and ranks, of less."""

import json

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import llmprof
from llmprof import analyze
from llmprof.errors import AnalysisError, LlmprofError, NotCapturedError, ReadError
from llmprof.readers.nsys import reader
from llmprof.trace import schema
from llmprof.trace.kept import per_trace
from llmprof.trace.storage import parquet
from llmprof.trace.trace import open_saved

EXPORT, CHROME = "nsys_tp2_cudagraph", "torch_transformers_generate"
RECORDED = {
    EXPORT: ("kernels", "copies", "runtime", "markers", "collectives"),
    CHROME: ("kernels", "copies", "runtime", "ops", "markers", "collectives"),
}


def whole(root, name):
    return llmprof.read(root / "sample_traces" / name, cache=False)


def part(root, name, tables, **options):
    return llmprof.read(root / "sample_traces" / name, tables=tables, **{"cache": False} | options)


@pytest.mark.parametrize(
    ("name", "table"), [(name, table) for name, tables in RECORDED.items() for table in tables]
)
def test_one_table_is_what_it_is_in_the_whole_trace(root, name, table):
    full, narrow = whole(root, name), part(root, name, [table])
    assert list(narrow.tables) == [table]
    assert_frame_equal(narrow.table(table), full.table(table))
    assert {k: v for k, v in narrow.meta.items() if k != "options"} == {
        k: v for k, v in full.meta.items() if k != "options"
    }
    assert narrow.coverage["events"] == full.coverage["events"]
    assert narrow.coverage["kept"] == (0 if table == "collectives" else full.table(table).height)
    assert narrow.coverage["asked"] == narrow.capture.asked == {table: None}


@pytest.mark.parametrize("name", RECORDED)
def test_columns_are_those_asked_for_and_those_that_are_never_null(root, name):
    full, narrow = (
        whole(root, name),
        part(root, name, {"kernels": ("stream", "grid_x"), "copies": None}),
    )
    assert narrow.kernels.columns == ["rank", "stream", "start_ns", "dur_ns", "name", "grid_x"]
    assert_frame_equal(narrow.kernels, full.kernels.select(narrow.kernels.columns))
    assert_frame_equal(narrow.copies, full.copies)


def test_a_table_that_was_not_asked_for_says_so(root):
    narrow = part(root, EXPORT, ["kernels"])
    with pytest.raises(
        NotCapturedError,
        match=r"read without its runtime.*that were read: kernels.*'runtime' among tables=",
    ):
        _ = narrow.runtime
    with pytest.raises(NotCapturedError, match="read without its runtime"):
        analyze.nsys.cuda_api_sum(narrow)
    assert not narrow.has("runtime")


def test_an_analysis_names_the_column_that_was_not_asked_for(root):
    narrow = part(root, EXPORT, {"kernels": ("dur_ns",), "copies": None})
    with pytest.raises(
        NotCapturedError, match=r"without the column (device|stream).*among tables="
    ):
        analyze.idle(narrow)
    with pytest.raises(AnalysisError, match="no column"):
        analyze.nsys.cuda_gpu_kern_sum(narrow, by=("stream",))


def test_a_column_that_no_table_has_is_no_question_of_what_was_asked_for(sample_trace):
    @per_trace
    def broken(trace):
        return trace.kernels["nowhere"]

    with pytest.raises(pl.exceptions.ColumnNotFoundError):
        broken(sample_trace(EXPORT))


@pytest.mark.parametrize(
    ("tables", "match"),
    [
        (["kernels", "kernel"], "no table kernel; expected some of kernels, copies"),
        ({"kernels": ("grid",)}, "table kernels has no column grid; expected some of .*grid_x"),
        ([], "tables= is empty"),
    ],
    ids=["table", "column", "nothing"],
)
def test_unknown_names_are_refused_before_anything_is_read(tables, match):
    with pytest.raises(LlmprofError, match=match):
        llmprof.read("no such file", tables=tables)


def test_a_saved_trace_keeps_what_was_asked_for(root, tmp_path):
    narrow = part(root, EXPORT, {"kernels": ("stream",)})
    again = llmprof.read(narrow.save(tmp_path / "saved"))
    assert_frame_equal(again.kernels, narrow.kernels)
    with pytest.raises(NotCapturedError, match="read without its runtime"):
        _ = again.runtime
    with pytest.raises(NotCapturedError, match="read without its runtime"):
        _ = again.select(rank=0).runtime
    full = whole(root, EXPORT)
    narrow = llmprof.read(full.save(tmp_path / "whole"), tables={"kernels": ("stream",)})
    assert_frame_equal(
        narrow.kernels, full.kernels.select("rank", "stream", "start_ns", "dur_ns", "name")
    )
    assert narrow.capture.asked == {"kernels": ["stream"]}


def test_the_cache_gives_each_what_it_asked_for(root, monkeypatch):
    narrow = part(root, EXPORT, ["kernels"], cache=True)
    full = part(root, EXPORT, None, cache=True)
    assert list(narrow.tables) == ["kernels"]
    assert "runtime" in full.tables
    monkeypatch.setattr(reader, "read", lambda *_: pytest.fail("was not taken from the cache"))
    assert part(root, EXPORT, ["kernels"], cache=None).tables.keys() == {"kernels"}
    assert part(root, EXPORT, {"runtime": ()}, cache=None).runtime.columns == [
        "rank",
        "start_ns",
        "dur_ns",
        "name",
        "api",
    ]
    assert part(root, EXPORT, None, cache=None).tables.keys() == full.tables.keys()


def test_a_damaged_note_of_what_was_asked_for_is_a_damaged_trace(root, tmp_path):
    folder = part(root, EXPORT, ["kernels"]).save(tmp_path / "saved")
    head = json.loads((folder / "llmprof.json").read_text())
    del head["checksum"]
    head["coverage"]["asked"] = ["kernels"]
    parquet.write_head(folder, head)
    with pytest.raises(ReadError, match="damaged"):
        open_saved(folder)


def test_columns_of_a_vendor_are_asked_for_by_name(tmp_path):
    rows = {"rank": 0, "start_ns": [2, 1], "dur_ns": 1, "name": "k", "nsys_a": 1, "nsys_b": 2}
    narrow = schema.conform(pl.DataFrame(rows), "kernels", ["nsys_b"])
    assert narrow.columns == ["rank", "start_ns", "dur_ns", "name", "nsys_b"]
    assert narrow["start_ns"].to_list() == [1, 2]
