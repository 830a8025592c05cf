"""Samples of the CPU: text of perf script, folded stacks, VTune's reports; by hand, and on real
files.
"""

import re

import polars as pl
import pytest

import llmprof
from llmprof import analyze
from llmprof.errors import NotCapturedError, ReadError, TraceWarning, UnknownFormatError
from llmprof.readers import perf
from llmprof.readers.redaction import redact

SCRIPT = """# captured on: Wed Aug 15 16:01:24 2018
# perf version : 6.1
#
python3 12/34 [003] 100.000001000:    1000000 cpu-clock:
\t    7f00 mm+0x10 (/usr/lib/libm.so)
\t    7f01 foo(int, char) (/home/me/app)
\t    7f02 main (/home/me/app)

python3 12/34 [003] 100.002001000:    3000000 cpu-clock:
\t    7f01 foo(int, char) (/home/me/app)
\t    7f02 main (/home/me/app)

worker pool 12/35 100.004:    500 cycles:u:
\tffffffff81 [unknown] ([kernel.kallsyms])
\t    7f02 main (/home/me/app (deleted))

"""


@pytest.fixture
def real(shared):
    return shared / "real" / "perf"


def write(tmp_path, text, name="perf.txt"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_samples_by_hand(tmp_path):
    trace = llmprof.read(write(tmp_path, SCRIPT))
    assert trace.meta["format"] == "perf"
    assert trace.meta["versions"] == {"perf version": "6.1"}
    rows = trace.samples.select(
        "process", "thread", "time_ns", "name", "module", "command", "event", "value", "unit", "cpu"
    ).rows()
    assert rows == [
        (12, 34, 0, "mm", "/usr/lib/libm.so", "python3", "cpu-clock", 1_000_000, "ns", 3),
        (
            12,
            34,
            2_000_000,
            "foo(int, char)",
            "/home/me/app",
            "python3",
            "cpu-clock",
            3_000_000,
            "ns",
            3,
        ),
        (
            12,
            35,
            3_999_000,
            "[kernel.kallsyms]",
            "[kernel.kallsyms]",
            "worker pool",
            "cycles:u",
            1,
            "samples",
            None,
        ),
    ]
    assert trace.samples["stack"][0] == "main\nfoo(int, char)\nmm"
    assert trace.span_ns == (0, 3_999_000)
    with pytest.raises(NotCapturedError, match="holds no kernels"):
        _ = trace.kernels
    with pytest.raises(
        NotCapturedError, match=r"it holds samples \(analyze\.hotspots, --what hotspots\)"
    ):
        analyze.steps(trace)


def test_hotspots_by_hand(tmp_path):
    found = analyze.hotspots(llmprof.read(write(tmp_path, SCRIPT)))
    clock = (
        found.filter(unit="ns")
        .select("name", "own_value", "total_value", "own_share", "total_share", "count")
        .rows()
    )
    assert clock == [
        ("foo(int, char)", 3_000_000, 4_000_000, 0.75, 1.0, 2),
        ("mm", 1_000_000, 1_000_000, 0.25, 0.25, 1),
        ("main", 0, 4_000_000, 0.0, 1.0, 2),
    ]


@pytest.mark.parametrize("size", [64, 150, 1 << 20])
def test_the_result_does_not_depend_on_the_size_of_blocks(tmp_path, size):
    path = write(tmp_path, SCRIPT * 3)
    whole = perf.read_samples(path)[0]
    assert whole.equals(perf.read_samples(path, block_bytes=size)[0])


def test_samples_without_a_stack_in_their_own_line(tmp_path):
    text = "python3 12 [000] 1.5: 250000 cycles: ffffffff81 do_idle+0x7 ([kernel.kallsyms])\n" * 2
    trace = llmprof.read(write(tmp_path, text))
    assert trace.samples["stack"].to_list() == ["do_idle", "do_idle"]
    assert trace.samples["unit"].unique().to_list() == ["samples"]
    text = SCRIPT + "python3 12/34 200.0: 1 cpu-clock:\n\nsomething else\n\tnothing\n"
    with pytest.warns(TraceWarning) as caught:
        trace = llmprof.read(write(tmp_path, text))
    said = " ".join(str(w.message) for w in caught)
    assert "1 sample without a call stack" in said
    assert "2 lines that could not be read as a sample or a frame" in said
    assert trace.samples.height == 3


@pytest.mark.parametrize(
    "name",
    [
        "forks",
        "idle",
        "one-sample",
        "rust-mangled",
        "simple-with-header",
        "simple-with-pid",
        "system-wide",
    ],
)
@pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")
def test_real_files_have_all_samples_and_frames(real, name):
    """Against a count of lines: a sample is a line that does not begin with a blank, a frame one
    that does.
    """
    path = real / f"speedscope_{name}.linux-perf.txt"
    lines = [
        line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")
    ]
    heads = [line for line in lines if not line[0].isspace()]
    trace = llmprof.read(path)
    assert trace.samples.height == len(heads)
    idle = trace.samples["stack"].str.starts_with("idle (swapper)\n").sum()
    assert idle == sum(line.startswith("swapper ") for line in heads)
    frames = trace.samples["stack"].str.count_matches("\n").sum() + trace.samples.height - idle
    assert frames == len(lines) - len(heads)
    periods = [int(m[1]) for line in heads if (m := re.search(r":\s+(\d+) \S+clock", line))]
    assert trace.samples.filter(unit="ns")["value"].sum() == sum(periods)
    of = analyze.hotspots(trace)
    assert (
        of.group_by("unit").agg(pl.col("own_value").sum())["own_value"].sum()
        == trace.samples["value"].sum()
    )


def test_a_cut_file_keeps_what_is_whole(real, tmp_path):
    whole = (real / "speedscope_simple.txt").read_bytes()
    path = tmp_path / "cut.txt"
    path.write_bytes(whole[: len(whole) // 2 + 13])
    trace = llmprof.read(path)
    assert 60 < trace.samples.height < 141


def test_paths_and_users_are_taken_out(tmp_path):
    redact(write(tmp_path, SCRIPT), tmp_path / "copy")
    copy = llmprof.read(tmp_path / "copy")
    assert copy.samples.height == 3
    assert "/home/me" not in str(copy.samples.rows())


HOTSPOTS = """Function,CPU Time,CPU Time:Effective Time,Module,Function (Full),Source File,Start Address
gemm_kernel,12.5,12.1,libmkl.so,gemm_kernel,[Unknown],0x10
"operator()(int, int)",0.25,0.25,app,x,main.cpp,0x20
[Unknown],,,[Unknown],[Unknown],[Unknown],0
"""
TOP_DOWN = """Function Stack,CPU Time:Total,CPU Time:Self,Module
Total,10.0s,0s,
 main,10.0s,1.5s,app
  forward,8.5s,0.5s,app
   gemm,8.0s,8.0s,libmkl.so
 clone,0.0s,0.0s,libc.so
"""


def test_hotspots_of_vtune_by_hand(tmp_path):
    with pytest.warns(TraceWarning, match=r"1 event"):
        trace = llmprof.read(write(tmp_path, HOTSPOTS, "hotspots.csv"))
    assert trace.meta["format"] == "vtune"
    assert trace.samples.select("name", "stack", "module", "value", "unit").rows() == [
        ("gemm_kernel", "gemm_kernel", "libmkl.so", 12_500_000_000, "ns"),
        ("operator()(int, int)", "operator()(int, int)", "app", 250_000_000, "ns"),
    ]


@pytest.mark.parametrize("separator", [",", "\t", ";"])
def test_top_down_of_vtune_by_hand(tmp_path, separator):
    trace = llmprof.read(write(tmp_path, TOP_DOWN.replace(",", separator), "topdown.csv"))
    assert trace.samples.select("stack", "value").rows() == [
        ("main", 1_500_000_000),
        ("main\nforward", 500_000_000),
        ("main\nforward\ngemm", 8_000_000_000),
    ]
    found = analyze.hotspots(trace).select("name", "own_value", "total_value").rows()
    assert found[0] == ("gemm", 8_000_000_000, 8_000_000_000)
    assert ("main", 1_500_000_000, 10_000_000_000) in found


def test_shares_alone_are_refused_with_the_option_that_gives_times(tmp_path):
    text = "Function Stack,CPU Time:Total,Module\nTotal,100.0%,\n main,80.0%,app\n"
    with pytest.raises(ReadError, match=r"only as shares.*CPU Time:Self"):
        llmprof.read(write(tmp_path, text, "topdown.csv"))


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("empty", "", ReadError),
        ("words", "hello\nworld\n", UnknownFormatError),
        ("numbers", "1 2\n3 4\n", UnknownFormatError),
        ("table", "Function,Module\nf,app\n", UnknownFormatError),
        (
            "no frames",
            "python3 12 1.5: 250000 cycles:\n\t    7f x\n".replace("\t    7f x\n", ""),
            UnknownFormatError,
        ),
    ],
)
def test_what_is_none_of_them_is_refused(tmp_path, name, text, error):
    with pytest.raises(error):
        llmprof.read(write(tmp_path, text, f"{name}.txt"))
