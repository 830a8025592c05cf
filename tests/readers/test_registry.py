"""The list of readers: who knows a file or a folder, and readers of other packages."""

import importlib
import signal

import pytest

import llmprof
import llmprof.readers
from llmprof.errors import (
    MixedRunsError,
    PluginWarning,
    ReadError,
    TraceWarning,
    UnknownFormatError,
)
from llmprof.readers import registry
from llmprof.readers.common.reader import Reader
from llmprof.readers.reading import left_aside
from llmprof.readers.registry import detect
from tests import plugin_package
from tests.readers.traces import kernel, text_of, write

NCU = b'"ID","Process ID","Process Name"\n'

LINES = """
from llmprof.readers.common.reader import FilePart
from llmprof.readers.common.reader import Reader
import polars as pl

def sniff(probe):
    if probe.is_folder:
        return probe.path.name.endswith("_acme")
    return probe.start.startswith(b"ACME")

def read(path, request):
    file = path / "trace.acme" if path.is_dir() else path
    rows = [line.split() for line in file.read_text().splitlines()[1:]]
    frame = pl.DataFrame(
        [(0, 7, int(begin), int(ns), name) for begin, ns, name in rows],
        schema=["device", "stream", "start_ns", "dur_ns", "name"],
        orient="row",
    )
    rank = int(file.read_text().split()[1])
    return [FilePart(path, {"kernels": frame}, {"rank": rank}, {"events": len(rows), "kept": len(rows)})]

READER = Reader(name="acme", version=1, what="a file of Acme's profiler", sniff=sniff, read=read, suffixes=(".acme",))
"""


@pytest.fixture
def install(tmp_path):
    """Install a plug-in with readers; the code and its entry points."""
    with plugin_package.installed(tmp_path / "packages"):

        def add(
            module="acme_llmprof", code=LINES, value="acme_llmprof:READER", group="llmprof.readers"
        ):
            plugin_package.write(tmp_path / "packages", module, code, {group: {module: value}})
            importlib.invalidate_caches()
            plugin_package.forget()

        yield add


def test_files_of_nsight_compute_are_pointed_to_their_function(tmp_path):
    path = write(tmp_path / "raw.csv", NCU)
    assert detect(path) == "ncu"
    with pytest.raises(
        UnknownFormatError,
        match=r"raw\.csv is CSV or a report .*read it with llmprof\.read_metrics",
    ):
        llmprof.read(path)
    with pytest.raises(ReadError, match=r"has no trace .*read it with llmprof\.read_metrics"):
        llmprof.read(tmp_path)
    report = write(tmp_path / "x.ncu-rep", b"NVR\0rest")
    with pytest.raises(UnknownFormatError, match=r"llmprof\.read_metrics"):
        llmprof.read(report)


def test_a_folder_with_files_that_are_whole_recordings(tmp_path):
    """One is read, and of several formats the first; of two files of one format none is the one
    that is meant.
    """
    profile = b'[{"count": 2}, {"name": "conv", "timeMs": 3.0}]'
    write(tmp_path / "profile.json", profile)
    assert llmprof.read(tmp_path).totals["total_ns"].to_list() == [3_000_000]
    write(tmp_path / "timing.json", b'[{"startEnqMs": 1.0, "endEnqMs": 1.5}]')
    with pytest.warns(
        TraceWarning, match=r"left out: timing\.json is times of iterations of TensorRT"
    ):
        assert llmprof.read(tmp_path).totals.height == 1
    write(tmp_path / "profile2.json", profile)
    with pytest.raises(
        ReadError, match=r"profile\.json is times of layers of TensorRT .*: read it separately"
    ):
        llmprof.read(tmp_path)


def test_what_lies_beside_a_trace_and_is_not_read_with_it_is_known(tmp_path):
    write(tmp_path / "trace.json", text_of([kernel("a", 5, 2)]))
    write(
        tmp_path / "timing.json",
        b'[{"startEnqMs": 1.0, "endEnqMs": 1.5, "startComputeMs": 1.2, "computeMs": 2.0}]',
    )
    write(tmp_path / "other.txt", b"no recording")
    (words,) = left_aside(tmp_path)
    assert words.startswith("timing.json is times of iterations of TensorRT")
    assert left_aside(tmp_path / "trace.json") == []
    assert llmprof.read(tmp_path, cache=False).kernels.height == 1


def test_a_saved_trace_in_a_folder_is_none_of_its_files(tmp_path):
    path = write(tmp_path / "trace.json", text_of([kernel("a", 5, 2)]))
    llmprof.read(path, cache=False).save(tmp_path / "saved")
    assert llmprof.read(tmp_path, cache=False).kernels.height == 1
    assert llmprof.read(tmp_path / "saved").kernels.height == 1


def test_of_a_report_and_its_exports_one_is_read(tmp_path):
    (reader,) = (one for one in registry.readers() if one.name == "nsys")
    folder = tmp_path / "a_pqtdir"
    folder.mkdir()
    report, database, other = (
        tmp_path / "a.nsys-rep",
        tmp_path / "a.sqlite",
        tmp_path / "b.nsys-rep",
    )
    assert reader.choose([report, database, folder, other]) == [database, other]
    assert reader.choose([report, folder, other]) == [folder, other]
    assert reader.choose([report, other]) == [report, other]


def test_a_reader_of_another_package(install, tmp_path):
    install()
    path = write(tmp_path / "one.acme", b"ACME 0\n100 50 gemm\n200 10 norm\n")
    trace = llmprof.read(path, cache=False)
    assert trace.kernels.select("start_ns", "dur_ns", "name").rows() == [
        (0, 50, "gemm"),
        (100, 10, "norm"),
    ]
    assert trace.meta["format"] == "acme"
    assert registry.reader_named("acme").package == "acme_llmprof 1.2"


def test_a_reader_claims_folders(install, tmp_path):
    install()
    for rank in (0, 1):
        folder = tmp_path / "run" / f"host{rank}_acme"
        folder.mkdir(parents=True)
        write(folder / "trace.acme", f"ACME {rank}\n100 50 gemm{rank}\n".encode())
    with pytest.warns(TraceWarning, match="1 of 2 ranks "):
        one = llmprof.read(tmp_path / "run" / "host1_acme", cache=False)
    assert one.kernels["name"].to_list() == ["gemm1"]
    both = llmprof.read(tmp_path / "run", cache=True)
    assert both.kernels["name"].to_list() == ["gemm0", "gemm1"]
    assert both.ranks == [0, 1]
    # a file in one of the folders is written anew: the trace in the cache is not taken
    write(tmp_path / "run" / "host1_acme" / "trace.acme", b"ACME 1\n100 50 other\n")
    assert llmprof.read(tmp_path / "run", cache=True).kernels["name"].to_list() == [
        "gemm0",
        "other",
    ]
    write(tmp_path / "run" / "trace.json", text_of([kernel()]))
    with pytest.raises(MixedRunsError, match=r"different formats: acme, chrome"):
        llmprof.read(tmp_path / "run")
    assert llmprof.read(tmp_path / "run", format="acme", cache=False).ranks == [0, 1]


def test_another_version_of_the_package_reads_again(install, tmp_path, monkeypatch):
    install()
    path = write(tmp_path / "one.acme", b"ACME 0\n100 50 gemm\n")
    llmprof.read(path, cache=True)
    calls = []
    (reader,) = (one for one in registry.readers() if one.name == "acme")
    original = reader.read

    def read(path, request):
        calls.append(path)
        return original(path, request)

    for package, expected in (
        ("acme_llmprof 1.2", 0),
        ("acme_llmprof 1.3", 1),
        ("acme_llmprof 1.3", 1),
    ):
        changed = Reader(
            name="acme", version=1, what=reader.what, sniff=reader.sniff, read=read, package=package
        )
        monkeypatch.setattr(registry, "added", lambda changed=changed: (changed,))
        llmprof.read(path, cache=True)
        assert len(calls) == expected


@pytest.mark.parametrize(
    ("code", "value", "why"),
    [
        ("import nothing_of_this_name\n", "acme_llmprof:READER", "raised ModuleNotFoundError"),
        ("raise RuntimeError('broken')\n", "acme_llmprof:READER", "raised RuntimeError: broken"),
        ("x = 1\n", "acme_llmprof:READER", "raised AttributeError"),
        ("READER = 5\n", "acme_llmprof:READER", "it is 5, no Reader"),
        (
            LINES.replace('name="acme"', 'name="chrome"'),
            "acme_llmprof:READER",
            "llmprof has the format 'chrome' already",
        ),
        (LINES + "BOTH = [READER, READER]\n", "acme_llmprof:BOTH", "has the format 'acme' already"),
    ],
    ids=["import", "error", "attribute", "type", "name", "twice"],
)
def test_a_plugin_that_cannot_be_used_is_named_and_the_rest_works(
    install, tmp_path, code, value, why
):
    install(code=code, value=value)
    path = write(tmp_path / "trace.json", text_of([kernel("a", 5, 2)]))
    with pytest.warns(
        PluginWarning, match=r"'acme_llmprof' of acme_llmprof 1\.2 \(llmprof\.readers\) is left out"
    ) as said:
        trace = llmprof.read(path, cache=False)
    assert why in str(said[0].message)
    assert trace.kernels.height == 1
    assert llmprof.read(path, cache=False).kernels.height == 1  # said once


def test_a_plugin_that_claims_a_format_of_another_reader(install, tmp_path):
    install(code=LINES.replace('startswith(b"ACME")', 'startswith(b"{")').replace("[1:]", "[1:1]"))
    path = write(tmp_path / "trace.json", text_of([kernel("a", 5, 2)]))
    with pytest.warns(
        PluginWarning,
        match=r"read as 'chrome', and the plug-in acme_llmprof 1\.2 claims it.*'acme'",
    ):
        trace = llmprof.read(path, cache=False)
    assert trace.kernels.height == 1


def test_an_interrupt_of_the_user_while_a_plugin_loads_ends_the_reading(install, tmp_path):
    install(code="import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nwhile True: pass\n")
    path = write(tmp_path / "trace.json", text_of([kernel("a", 5, 2)]))
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            llmprof.read(path, cache=False)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_plugin_that_fails_when_it_is_asked(install, tmp_path):
    install(code=LINES.replace("def sniff(probe):", "def sniff(probe):\n    probe.nothing"))
    path = write(tmp_path / "trace.json", text_of([kernel("a", 5, 2)]))
    with pytest.warns(
        PluginWarning, match=r"'acme' of acme_llmprof 1\.2 failed when it looked at trace\.json"
    ):
        trace = llmprof.read(path, cache=False)
    assert trace.kernels.height == 1


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("    rank = int", "    rank = 1 / 0 + int", "failed on one.acme: ZeroDivisionError"),
        (
            "    return [FilePart",
            "    return 5\n    return [FilePart",
            "returned a int; expected a list of FilePart",
        ),
        ('suffixes=(".acme",)', "alone=True", "returned parts.*; expected a Trace"),
    ],
)
def test_a_plugin_that_fails_while_reading_is_named(install, tmp_path, old, new, why):
    install(code=LINES.replace(old, new))
    path = write(tmp_path / "one.acme", b"ACME 0\n100 50 gemm\n")
    with pytest.raises(ReadError, match=rf"the reader 'acme' of acme_llmprof 1\.2 {why}"):
        llmprof.read(path, cache=False)
