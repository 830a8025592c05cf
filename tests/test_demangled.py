"""Mangled names of C++: what c++filt makes of them, within limits, and what happens without it."""

import shutil
import time

import polars as pl
import pytest

import llmprof
from llmprof import analyze
from llmprof.analyze.kernels import PLACES
from llmprof.explore.kernels.explorer import BINS, block
from llmprof.names.mangled import demangled

needs_filter = pytest.mark.skipif(
    not (shutil.which("c++filt") or shutil.which("llvm-cxxfilt")), reason="no c++filt"
)

SCRIPT = """python 7 [001] 1.000000: 10 cpu-clock:
\tffff0 _ZN2at6native3addEi (/lib/torch.so)
\tffff1 main (/bin/python)

python 7 [001] 1.010000: 10 cpu-clock:
\tffff0 _ZN2at6native3mulEi (/lib/torch.so)
\tffff1 main (/bin/python)

"""


@needs_filter
def test_names_of_samples_are_demangled_and_the_table_keeps_what_was_recorded(tmp_path):
    file = tmp_path / "perf.txt"
    file.write_text(SCRIPT)
    trace = llmprof.read(file, cache=False)
    assert trace.samples["name"].to_list() == ["_ZN2at6native3addEi", "_ZN2at6native3mulEi"]
    assert sorted(analyze.hotspots(trace)["name"]) == [
        "at::native::add(int)",
        "at::native::mul(int)",
        "main",
    ]
    assert analyze.stacks(trace, of="samples")["stack"][0][0] == "main"


def test_without_the_program_names_stay(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert demangled(pl.Series(["_Z5gammav"])) == {}
    (tmp_path / "c++filt").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "c++filt").chmod(0o755)
    assert demangled(pl.Series(["_Z5gammav"])) == {}


@needs_filter
def test_only_symbols_are_given_to_the_program():
    found = demangled(
        pl.Series(["main", "_Z5gammav", "_Z-", "x _Z5gammav", None, "_ZN1a1bEv.cold", "_Z5gammav"])
    )
    assert found == {"_Z5gammav": "gamma()", "_ZN1a1bEv.cold": "a::b() [clone .cold]"}


@pytest.mark.slow
@needs_filter
def test_a_symbol_that_stands_for_an_endless_name_is_left():
    """Each template has the one before it twice as an argument: 2**60 letters."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"

    def back(n):
        n -= 1
        return f"S{digits[n // 36] if n >= 36 else ''}{digits[n % 36]}_"

    symbol = "_Z1f1XIccE" + "".join(f"1XI{back(2 * n + 1)}{back(2 * n + 1)}E" for n in range(60))
    start = time.monotonic()
    assert demangled(pl.Series([symbol])) == {}
    assert time.monotonic() - start < 60


@needs_filter
def test_kernels_have_the_names_of_their_functions_and_the_arguments_in_which_they_differ():
    names = pl.Series(
        ["_ZN5aiter4normIDF16bLi64EEEvPf", "_ZN5aiter4normIDF16bLi256EEEvPf", "_ZN5aiter4ropeEf"]
    )
    places = {place: [[0]] * 3 for place in PLACES.values()}
    frame = pl.DataFrame({"name": names, "category": "norm", "series": [[1] * BINS] * 3} | places)
    assert [row["label"] for row in block(frame, 0, 9)[0]] == ["norm · 64", "norm · 256", "rope"]
