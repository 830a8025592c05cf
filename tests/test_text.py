"""Frames as plain text: units, widths, and nothing that a terminal would obey."""

import csv
import io

import polars as pl
import pytest

import llmprof
from llmprof import text


@pytest.mark.parametrize(
    ("name", "item", "said"),
    [
        ("dur_ns", 4_200, "4.20 us"),
        ("start_ns", 7_594_846, "7.59485 ms"),
        ("bytes", 28_672, "28.0 KiB"),
        ("share", 0.981, "98.1 %"),
        ("launched_share", 1.0, "100.0 %"),
        ("bus_gbps", 117.96, "118.0"),
        ("count", 20140, "20,140"),
        ("call", 20140, "20140"),
        ("ratio", 0.012345, "0.01235"),
        ("in_step", True, "yes"),
        ("wait_ns", None, "-"),
        ("median_ns", float("nan"), "-"),
        ("name", "a\x1b[31mred\nb", "a\\x1b[31mred\\nb"),
    ],
)
def test_values_by_the_name_of_their_column(name, item, said):
    assert text.value(name, item) == said


def test_a_table_is_aligned_and_heads_drop_the_unit():
    frame = pl.DataFrame(
        {"stage": ["norm", "attention"], "dur_ns": [2_210, 8_670], "bus_gbps": [1.5, 118.0]}
    )
    assert text.format_table(frame).splitlines() == [
        "stage          dur  bus GB/s",
        "norm       2.21 us       1.5",
        "attention  8.67 us     118.0",
    ]


def test_what_a_narrow_table_leaves_out_first_and_what_it_never_cuts():
    frame = pl.DataFrame(
        {"name": ["n" * 30], "a": [1], "note": ["w" * 30], "b": [2], "change": [3]}
    )
    lines = text.format_table(frame, width=54, spare=[["b", "a"]], whole=["name"]).splitlines()
    assert lines[0].split() == ["name", "note", "change"]
    assert lines[1].split()[0] == "n" * 30
    assert lines[2] == "(too narrow for: b, a)"


def test_texts_are_shortened_before_columns_go():
    frame = pl.DataFrame(
        {"rank": [0], "name": ["void vllm::cross_device_reduce_1stage<bf16>(int)"], "dur_ns": [1]}
    )
    lines = text.format_table(frame, width=40).splitlines()
    assert len(lines) == 2
    assert "void vllm::" in lines[1]
    assert "…" in lines[1]
    assert lines[1].endswith("1 ns")
    frame = pl.DataFrame({f"column_number_{i}": [i] for i in range(6)})
    lines = text.format_table(frame, width=40).splitlines()
    assert lines[0].split() == ["column_number_0", "column_number_1"]
    assert (
        lines[-1]
        == "(too narrow for: column_number_2, column_number_3, column_number_4, column_number_5)"
    )


BLANKS = ("\n", "\r\n", "\n\n \t", " ", "\xa0", "\u3000", "\ufeff", "\u200b", "\x01", "\x85")
"""What spreadsheets leave out before they look for a formula."""


def test_a_spreadsheet_runs_no_cell_of_a_trace():
    frame = pl.DataFrame(
        {
            "=head": ["=1+1", "+1", "-1", "@x", "\tx", "plain", None],
            "value": [-1.5, 2, 3, 4, 5, 6, None],
        }
    )
    lines = text.csv(frame).splitlines()
    assert lines[:5] == ["'=head,value", "'=1+1,-1.5", "'+1,2.0", "'-1,3.0", "'@x,4.0"]
    assert lines[6:] == ["plain,6.0", ","]
    behind = pl.Series(
        [f"{space}{sign}cmd()" for space in BLANKS for sign in "=+-@\uff1d\uff0b\uff0d\uff20"]
    )
    of_types = pl.DataFrame(
        {"text": behind, "coded": behind.cast(pl.Categorical), "listed": [[one] for one in behind]}
    )
    cells = list(csv.reader(io.StringIO(text.csv(of_types), newline="")))[1:]
    assert cells == [[f"'{one}"] * 3 for one in behind]
    assert (
        text.csv(pl.DataFrame({"text": (harmless := ["a=1", " a", "1-2", "x@y"])})).split("\n")[
            1:-1
        ]
        == harmless
    )
    for sequence in ("\x1b]0;title\x07", "\x1b[2J", "\x9b31m", "\u202eabc", "a\rb", "\x00"):
        assert text.plain(sequence).isprintable()
    trace = llmprof.Trace({}, {"device": "\x1b[31mGPU"})
    assert repr(trace).isprintable()


def test_a_step_is_named_by_its_phase_where_one_is_known():
    assert text.step_of("decode") == "step of decode"
    assert text.step_of("other") == "step"
