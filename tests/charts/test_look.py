import itertools

import polars as pl
import pytest

from llmprof.charts.base.draw import MAX_ROWS, inline
from llmprof.charts.base.theme import CAUSES, STAGES, colours, percent, range_text, time_unit
from llmprof.errors import AnalysisError

# Machado, Oliveira and Fernandes (2009), severity 1
_DEUTAN = (
    (0.367322, 0.860646, -0.227968),
    (0.280085, 0.672501, 0.047413),
    (-0.011820, 0.042940, 0.968881),
)
_PROTAN = (
    (0.152286, 1.052583, -0.204868),
    (0.114503, 0.786281, 0.099216),
    (-0.003882, -0.048116, 1.051998),
)


def _linear(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]


def _lab(linear):
    r, g, b = (min(1.0, max(0.0, c)) for c in linear)
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883
    fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def _distance(a, b, matrix):
    ends = []
    for colour in (a, b):
        linear = _linear(colour)
        seen = (
            [sum(m * c for m, c in zip(row, linear, strict=True)) for row in matrix]
            if matrix
            else linear
        )
        ends.append(_lab(seen))
    return sum((p - q) ** 2 for p, q in zip(*ends, strict=True)) ** 0.5


@pytest.mark.parametrize(
    "matrix", [None, _DEUTAN, _PROTAN], ids=["all cones", "deuteranopia", "protanopia"]
)
def test_families_stay_apart_for_colour_blind_readers(
    matrix,
):
    families = [
        STAGES[name]
        for name in ("attention", "gate_up_proj", "all_reduce", "copy", "norm", "experts")
    ]
    for a, b in itertools.combinations(families, 2):
        assert _distance(a, b, matrix) > 12, (a, b)
    for a, b in itertools.combinations(CAUSES.values(), 2):
        assert _distance(a, b, matrix) > 12, (a, b)


def test_unknown_names_come_last_with_spare_colours():
    table = colours("stage", ["zeta", "attention", "alpha", "norm"])
    assert list(table) == ["norm", "attention", "alpha", "zeta"]
    assert len(set(table.values())) == 4


@pytest.mark.parametrize(
    ("ns", "symbol"),
    [
        (0, "ns"),
        (999, "ns"),
        (1_000, "us"),
        (999_999, "us"),
        (1e6, "ms"),
        (3e9, "s"),
        (-2e6, "ms"),
        (None, "ns"),
    ],
)
def test_unit_of_an_axis(ns, symbol):
    assert time_unit(ns).symbol == symbol


def test_percentages_never_say_all_or_nothing_for_less():
    figures = [0, 0.2, 0.6, 42.4, 99.4, 99.6, 99.99, 100]
    assert [percent(f) for f in figures] == [
        "0 %",
        "< 1 %",
        "1 %",
        "42 %",
        "99 %",
        "99.6 %",
        "99.9 %",
        "100 %",
    ]
    assert range_text("3 %", "3 %") == "3 %"
    assert range_text("3 %", "9 %") == "3 % to 9 %"


def test_inline_data_has_a_limit_of_its_own():
    with pytest.raises(AnalysisError, match="60,001 rows"):
        inline(pl.DataFrame({"a": range(MAX_ROWS + 1)}))
    values = inline(
        pl.DataFrame({"a": [1.0, float("nan"), float("inf"), None], "b": ["x", "y", "z", None]})
    )
    assert [row["a"] for row in values["values"]] == [1.0, None, None, None]
