import math

import pytest

from llmprof.units import format_bytes, format_ns, format_share


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (7, "7 ns"),
        (0.25, "0.25 ns"),
        (640, "640 ns"),
        (999.4, "999 ns"),
        (999.6, "1.00 us"),
        (4_200, "4.20 us"),
        (10_640, "10.6 us"),
        (-10_640, "-10.6 us"),
        (999_700, "1.00 ms"),
        (58_100_000, "58.1 ms"),
        (1_234_000_000, "1.23 s"),
        (12_345_000_000_000, "12,345 s"),
        (None, "unknown"),
        (math.nan, "unknown"),
        (math.inf, "unknown"),
    ],
)
def test_durations_have_the_unit_that_fits(ns, text):
    assert format_ns(ns) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (5, "5 B"),
        (1023, "1,023 B"),
        (1024, "1.00 KiB"),
        (28_672, "28.0 KiB"),
        (2**20 - 1, "1.00 MiB"),
        (150_109_880_320, "140 GiB"),
        (3 * 2**50, "3,072 TiB"),
        (None, "unknown"),
        (math.nan, "unknown"),
    ],
)
def test_sizes_have_binary_units(n, text):
    assert format_bytes(n) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.98149, "98.1 %"),
        (0, "0.0 %"),
        (1, "100.0 %"),
        (None, "unknown"),
        (0.0004, "< 0.1 %"),
        (0.0005, "0.1 %"),
        (-0.0002, "> -0.1 %"),
        (-0.01, "-1.0 %"),
    ],
)
def test_shares_are_percentages(share, text):
    assert format_share(share) == text
    assert format_share(math.nan) == "unknown"
