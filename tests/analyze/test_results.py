"""The schema of result columns: every analysis returns only columns that it has, of their types."""

import inspect

import polars as pl
import pytest

import llmprof
from docs.made import RECIPES
from llmprof import analyze
from llmprof.analyze import catalog, results
from llmprof.errors import LlmprofError
from tests.samples import sample

TYPES = {
    "whole": lambda dtype: dtype.is_integer(),
    "number": lambda dtype: dtype.is_numeric(),
    "text": lambda dtype: dtype in (pl.String, pl.Enum, pl.Categorical),
    "yes/no": lambda dtype: dtype == pl.Boolean,
    "list": lambda dtype: dtype == pl.List,
}
COLUMNS = {
    "collectives": ("kind", "rank"),
    "idle": ("cause",),
    "layers": ("stage",),
    "slack": ("stage",),
    "steps": ("phase",),
}


def options_of(entry):
    """Ways to call an analysis: as its view does, and with each kind of row."""
    options = dict(entry.options) | dict.fromkeys(entry.needs, "Qwen2.5-1.5B")
    yield options
    if entry.name in COLUMNS:
        yield options | {"by": COLUMNS[entry.name]}
    by = inspect.signature(inspect.unwrap(entry.function)).parameters.get("by")
    if by is not None and by.annotation.startswith("Literal["):
        yield from (options | {"by": kind} for kind in eval(by.annotation[7:]))


def check(name, frame):
    for column, dtype in frame.schema.items():
        known = results.column_of(column)
        assert known is not None, f"{name}: {column}"
        assert any(TYPES[kind](dtype) for kind in known.type.split(" or ")), f"{name}: {column}"


@pytest.mark.parametrize("name", ["torch_tp4_eager_nccl", "nsys_tp1_layer_nvtx"])
def test_columns_of_every_analysis_are_in_the_schema(name):
    trace, seen = sample(name), set()
    for entry in catalog.analyses():
        for options in options_of(entry):
            try:
                frame = entry.function(trace, **options)
            except LlmprofError:  # it needs something that was not recorded
                continue
            check(entry.name, frame)
            seen.add(entry.name)
    assert len(seen) >= 40


def test_columns_of_hardware_metrics_are_in_the_schema():
    metrics = llmprof.sample_metrics("ncu_tp1_eager")
    for name in ("speed_of_light", "stalls", "layers", "findings"):
        check(name, getattr(analyze.ncu, name)(metrics))


def test_a_name_has_one_row_and_its_unit():
    rows = [column for columns in results.subjects().values() for column in columns]
    assert len({column.name for column in rows}) == len(rows) <= 165
    tables = results.table_columns()
    assert not [
        row.name for row in rows if row.meaning == getattr(tables.get(row.name), "meaning", "")
    ]
    units = {"_ns": "ns", "_bytes": "bytes", "_gbps": "GB/s", "_share": "0 to 1", "_per_s": "/s"}
    for column in rows:
        ending = next((end for end in units if column.name.endswith(end)), None)
        assert ending is None or column.unit.endswith(units[ending]), column
        assert not column.name.endswith(("_us", "_ms", "_pct")), column


def test_statistics_and_sides_are_of_a_column():
    for name, of in {"transfer_p90_ns": "transfer_ns", "b_count": "count", "max_ns": "ns"}.items():
        assert results.column_of(name) == results.result_columns()[of]
    assert results.column_of("median_of_nothing") is None


@pytest.mark.parametrize("line", RECIPES.values(), ids=RECIPES)
def test_lines_of_polars_run(line):
    trace = sample("torch_ep2_dp2_eager")
    try:
        made = eval(line, {"analyze": analyze, "pl": pl, "trace": trace})
    except LlmprofError:  # it needs something that was not recorded
        return
    assert isinstance(made, pl.DataFrame)
