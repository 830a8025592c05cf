"""Flame graphs: widths add up, equal beginnings are one frame, and the file for speedscope holds
the same.
"""

import json

import polars as pl
import pytest

from llmprof import charts
from llmprof.errors import AnalysisError, OutputError
from tests.charts import specs

STACKS = pl.DataFrame(
    {
        "rank": [0, 0, 0, 0],
        "thread": [1, 1, 1, 2],
        "stack": [["main", "a", "b"], ["main", "a"], ["main", "c"], ["main", "a", "<b>x</b>"]],
        "value": [40, 10, 30, 20],
        "unit": ["ns"] * 4,
        "count": [1, 2, 3, 4],
    }
)


def boxes(frame):
    drawn = specs.rows(charts.flame(frame), "rect", "x2", "name")
    return {(row["name"], row["y"]): (row["x"], row["x2"]) for row in drawn}


def test_frames_are_as_wide_as_what_is_below_them():
    found = boxes(STACKS)
    width = {key: round(b - a, 6) for key, (a, b) in found.items()}
    # what all begin with is named in the title and not drawn
    assert width == {("a", 0): 70, ("c", 0): 30, ("b", 1): 40, ("<b>x</b>", 1): 20}
    assert "All stacks begin with 1 frame, down to main" in " ".join(
        specs.texts(charts.flame(STACKS))
    )
    for name in ("b", "<b>x</b>"):
        assert found["a", 0][0] <= found[name, 1][0] < found[name, 1][1] <= found["a", 0][1]


def test_frames_too_narrow_to_draw_are_told():
    tiny = pl.DataFrame(
        {
            "stack": [[f"f{n}"] for n in range(1001)],
            "value": [100_000] + [1] * 1000,
            "unit": ["ns"] * 1001,
        }
    )
    chart = charts.flame(tiny)
    assert set(specs.rows(chart, "rect", "x2", "name")[0]) >= {"x", "x2", "spent"}
    assert "too narrow to draw" in " ".join(specs.texts(chart))


def test_speedscope_holds_every_stack(tmp_path):
    file = charts.speedscope(STACKS, tmp_path / "x.speedscope.json", name="run")
    found = json.loads(file.read_text())
    assert found["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    names = [frame["name"] for frame in found["shared"]["frames"]]
    first, second = found["profiles"]
    assert (first["type"], first["unit"], first["endValue"]) == ("sampled", "nanoseconds", 80)
    assert [[names[i] for i in sample] for sample in first["samples"]] == STACKS["stack"].to_list()[
        :3
    ]
    assert first["weights"] == [40, 10, 30]
    assert second["name"] == "rank 0, thread 2"
    with pytest.raises(OutputError):
        charts.speedscope(STACKS, file / "x.json")
    with pytest.raises(AnalysisError):
        charts.speedscope(STACKS.clear(), tmp_path / "y.json")
