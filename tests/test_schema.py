import polars as pl
import pytest
from polars.testing import assert_frame_equal

from llmprof.errors import SchemaError
from llmprof.trace import schema

KERNEL = {"rank": [0], "start_ns": [10], "dur_ns": [5], "name": ["k"]}


def test_conform_orders_casts_and_sorts():
    out = schema.conform(
        pl.DataFrame({"name": ["k"], "dur_ns": ["5"], "start_ns": [10.0], "rank": [0]}), "kernels"
    )
    assert out.schema == schema.TABLES["kernels"].schema
    assert out.row(0, named=True) == {
        **dict.fromkeys(schema.TABLES["kernels"].schema),
        **{k: v[0] for k, v in KERNEL.items()},
    }
    frame = pl.DataFrame(
        {"rank": [1, 0, 0, 0], "start_ns": [0, 9, 3, 3], "dur_ns": [1] * 4, "name": list("dcab")}
    )
    assert schema.conform(frame, "kernels")["name"].to_list() == ["a", "b", "c", "d"]
    counters = pl.DataFrame(
        {"rank": [0, 0], "time_ns": [9, 3], "name": ["b", "a"], "value": [1, 2]}
    )
    assert schema.conform(counters, "counters")["name"].to_list() == ["a", "b"]
    frame = pl.DataFrame(
        {"nsys_shim": pl.Series([7], dtype=pl.UInt16), **KERNEL, "ascend_block": ["x"]}
    )
    out = schema.conform(frame, "kernels")
    assert out.columns[-2:] == ["nsys_shim", "ascend_block"]
    assert out["nsys_shim"].dtype == pl.UInt16
    with pytest.raises(SchemaError, match=r"no table 'kernel'.*kernels"):
        schema.empty("kernel")
    with pytest.raises(SchemaError, match="no table 'kernel'"):
        schema.conform(pl.DataFrame(), "kernel")


@pytest.mark.parametrize("table", list(schema.TABLES))
def test_empty_frames_conform_and_conforming_changes_nothing_twice(table):
    empty = schema.empty(table)
    assert empty.height == 0
    assert_frame_equal(schema.conform(empty, table), empty)
    required = [c.name for c in schema.TABLES[table].columns if not c.nullable]
    assert_frame_equal(schema.conform(empty.select(required), table), empty)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": ["red"]}, "does not have the columns colour; expected"),
        ({"name": None}, "lacks the column name"),
        ({"name": [None]}, "nulls in name; expected"),
        ({"start_ns": ["soon"]}, "wrong type"),
        ({"start_ns": [2**64 - 1]}, "wrong type"),
        ({"dur_ns": [float("nan")]}, "wrong type"),
    ],
)
def test_what_does_not_conform_is_refused(change, message):
    columns = {name: values for name, values in (KERNEL | change).items() if values is not None}
    with pytest.raises(SchemaError, match=message):
        schema.conform(pl.DataFrame(columns), "kernels")


def test_frames_go_to_pandas_and_come_back():
    frame = schema.conform(pl.DataFrame(KERNEL), "kernels")
    back = schema.conform(pl.from_pandas(frame.to_pandas()), "kernels")
    assert_frame_equal(back, frame)
