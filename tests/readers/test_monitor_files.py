"""Readers of what monitors printed: counters in base units, and clocks that say what they do not
know.
"""

import json
from pathlib import Path

import pytest

import llmprof
from llmprof.errors import MixedRunsError, NotCapturedError, ReadError, TraceWarning
from llmprof.readers.monitors.reader import EPOCH, LOCAL, TIME_OF_DAY
from llmprof.readers.registry import detect
from tests.readers.traces import kernel, text_of, write

FILES = Path(__file__).with_name("monitor_files")
S, MIB = 1_000_000_000, 2**20

# Synthetic, after nvidia-smi(1) and what people print of it.
DMON = """\
#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem    fb   bar1   mclk   pclk  rxpci  txpci  pviol  tviol
#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %    MB     MB    MHz    MHz   MB/s   MB/s      %   bool
 20261121   23:59:59      0    401     62     58     87     74  6144      4   2619   1980     12      3      5      0
 20261121   23:59:59      1     76     30      -      0      0     4      2   2619    345      0      0      0      0
#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem    fb   bar1   mclk   pclk  rxpci  txpci  pviol  tviol
#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %    MB     MB    MHz    MHz   MB/s   MB/s      %   bool
 20261122   00:00:00      0    402     63     59     90     75  6145      4   2619   1980     13      4      5      1
"""
QUERY = """\
timestamp, index, name, pstate, utilization.gpu [%], memory.used [MiB], power.draw [W], temperature.gpu, \
clocks.current.sm [MHz], clocks_event_reasons.active, clocks_event_reasons.hw_slowdown, ecc.errors.corrected
2026/11/21 12:00:00.250, 0, NVIDIA H200, P0, 45 %, 1024 MiB, 401.50 W, 51, 1980 MHz, 0x0000000000000004, Not Active, 0
2026/11/21 12:00:00.254, 1, NVIDIA H200, P0, [N/A], 2 MiB, [Not Supported], 30, 345 MHz, 0x0000000000000001, Active, 0
2026/11/21 12:00:01.250, 0, NVIDIA H200, P0, 46 %, 1025 MiB, 402.50 W, 52, 1980 MHz, 0x0000000000000000, Not Active, 0
"""
NOUNITS = """\
timestamp, uuid, utilization.gpu [%], memory.used [MiB], power.draw [W]
2026/11/21 12:00:00.000, GPU-b, 45, 1024, 401.50
2026/11/21 12:00:00.001, GPU-a, 0, 2, 60.00
2026/11/21 12:00:01.000, GPU-b, 46, 1024, 401.50
"""


def gpustat(seconds, *, offset=""):
    gpus = [
        {
            "index": 0,
            "uuid": "GPU-a",
            "name": "NVIDIA H200",
            "temperature.gpu": 36,
            "fan.speed": None,
            "utilization.gpu": 45,
            "power.draw": 120,
            "enforced.power.limit": 700,
            "memory.used": 1024,
            "memory.total": 143771,
            "processes": [],
        },
    ]
    when = f"2026-11-21T12:00:{seconds:02}.500000{offset}"
    return json.dumps(
        {"hostname": "host", "driver_version": "580.1", "query_time": when, "gpus": gpus}, indent=4
    )


def read(path, *warned):
    """The trace of a file, whose warnings are these."""
    if not warned:
        return llmprof.read(path)
    with pytest.warns(TraceWarning) as caught:
        trace = llmprof.read(path)
    assert len(caught) == len(warned)
    for warning, text in zip(caught, warned, strict=True):
        assert text in str(warning.message)
    return trace


def values(trace, name, device=None):
    rows = trace.counters.filter(name=name)
    rows = rows if device is None else rows.filter(device=device)
    return rows.select("time_ns", "value").rows()


def units(trace):
    return dict(trace.counters.select("name", "unit").unique().rows())


def test_dmon_in_base_units(tmp_path):
    trace = read(write(tmp_path / "dmon.txt", DMON.encode()))
    assert values(trace, "gpu.power") == [(0, 401), (0, 76), (S, 402)]
    assert values(trace, "gpu.memory_temperature") == [(0, 58), (S, 59)]
    assert values(trace, "gpu.memory_used", 0) == [(0, 6144 * MIB), (S, 6145 * MIB)]
    assert values(trace, "gpu.sm_clock", 1) == [(0, 345e6)]
    assert values(trace, "gpu.pcie_received", 0) == [(0, 12e6), (S, 13e6)]
    assert values(trace, "gpu.thermal_violation", 0) == [(0, 0), (S, 1)]
    said = units(trace)
    assert {
        said[f"gpu.{name}"] for name in ("utilization", "memory_utilization", "power_violation")
    } == {"%"}
    assert (said["gpu.power"], said["gpu.temperature"], said["gpu.sm_clock"]) == ("W", "°C", "Hz")
    assert (said["gpu.memory_used"], said["gpu.pcie_sent"]) == ("B", "B/s")
    assert list(trace.tables) == ["counters"]
    assert trace.ranks == [-1]
    assert trace.meta["format"] == "dmon"
    with pytest.raises(NotCapturedError):
        _ = trace.kernels


def test_query_gpu_of_a_real_gpu():
    trace = read(FILES / "query_gpu.csv")
    assert trace.meta["device"] == "NVIDIA H200"
    assert trace.meta["start_local"] == "2026-11-21T13:38:00.106"
    assert values(trace, "gpu.power")[:2] == [(0, 78.54), (504_000_000, 78.55)]
    assert values(trace, "gpu.throttle_reasons")[0] == (0, 1)
    assert values(trace, "gpu.pcie_generation")[0] == (0, 5)


def test_query_gpu_with_units(tmp_path):
    trace = read(write(tmp_path / "gpu.csv", QUERY.encode()))
    assert values(trace, "gpu.utilization") == [(0, 45), (S, 46)]
    assert values(trace, "gpu.memory_used", 1) == [(4_000_000, 2 * MIB)]
    assert values(trace, "gpu.power") == [(0, 401.5), (S, 402.5)]
    assert values(trace, "gpu.temperature", 0) == [(0, 51), (S, 52)]
    assert values(trace, "gpu.sm_clock", 1) == [(4_000_000, 345e6)]
    assert values(trace, "gpu.throttle_reasons", 0) == [(0, 4), (S, 0)]
    assert values(trace, "gpu.throttle.hw_slowdown", 1) == [(4_000_000, 1)]
    assert units(trace)["gpu.temperature"] == "°C"
    assert trace.meta["device"] == "NVIDIA H200"
    assert trace.meta["start_local"] == "2026-11-21T12:00:00.250"
    assert "gpu.index" not in units(trace)


def test_query_gpu_without_units_or_index(tmp_path):
    trace = read(write(tmp_path / "gpu.csv", NOUNITS.encode()), "has no index")
    assert values(trace, "gpu.memory_used", 0) == [(0, 1024 * MIB), (S, 1024 * MIB)]
    assert values(trace, "gpu.power", 1) == [(1_000_000, 60)]


def test_gpustat_documents_one_after_another(tmp_path):
    trace = read(write(tmp_path / "gpustat.json", f"{gpustat(1)}\n{gpustat(3)}\n".encode()))
    assert values(trace, "gpu.memory_used", 0) == [(0, 1024 * MIB), (2 * S, 1024 * MIB)]
    assert values(trace, "gpu.power_limit_enforced", 0) == [(0, 700), (2 * S, 700)]
    assert "gpu.fan" not in units(trace)
    assert (trace.meta["clock"], trace.meta["start_local"]) == (LOCAL, "2026-11-21T12:00:01.500")
    assert trace.meta["device"] == "NVIDIA H200"
    text = gpustat(1) + gpustat(2)[:-30]
    trace = read(
        write(tmp_path / "gpustat.json", text.encode()), "lines or values that could not be read: 1"
    )
    assert values(trace, "gpu.utilization") == [(0, 45)]


def test_dstat_with_epoch_leaves_out_the_mean_since_boot():
    trace = read(FILES / "dstat_epoch.csv")
    assert trace.meta["clock"] == EPOCH
    assert trace.meta["start_epoch_ns"] == 1_795_266_101_381_000_000
    assert values(trace, "cpu.user") == [(0, 100), (S, 76.5)]
    assert values(trace, "cpu.utilization") == [(0, 100), (S, 77.5)]
    assert values(trace, "memory.used") == [(0, 749_101_056), (S, 741_150_720)]
    assert units(trace)["disk.read"] == "B/s"
    assert trace.coverage["files"][0]["skipped"] == {"row since the start of the machine": 1}
    trace = read(FILES / "dstat_time.csv")
    assert trace.meta["clock"] == EPOCH
    assert trace.meta["start_epoch_ns"] == 1_795_266_103 * S
    assert values(trace, "cpu.idle") == [(0, 49.749)]


def test_a_cell_that_is_no_number_costs_no_row_of_sar_and_no_share(tmp_path):
    whole = (FILES / "sar.txt").read_text()
    text = whole.replace("36.73      0.00      0.00     29.59", "36.73      0.00      0.00     x")
    trace = read(
        write(tmp_path / "sar.txt", text.encode()), "lines or values that could not be read: 1"
    )
    assert values(trace, "cpu.system.0") == values(read(FILES / "sar.txt"), "cpu.system.0")
    assert values(trace, "cpu.system.1") == values(read(FILES / "sar.txt"), "cpu.system.1")
    assert (
        len(values(trace, "cpu.utilization.0")) == 1
    )  # of the other sample: without idle time it is unknown
    assert not [name for name in trace.counters["name"].unique() if "29" in name or "36" in name]


@pytest.mark.parametrize(("name", "said"), [("dstat.txt", ("no year",)), ("dstat_epoch.csv", ())])
def test_a_blank_line_ends_no_dstat(tmp_path, name, said):
    *before, last = (FILES / name).read_text().splitlines()
    trace = read(write(tmp_path / name, "\n".join([*before, "", last]).encode()), *said)
    assert trace.counters.equals(read(FILES / name, *said).counters)


def test_a_quote_that_never_ends_costs_no_other_row(tmp_path):
    lines = (FILES / "query_gpu.csv").read_text().splitlines()
    lines[2] = lines[2].removesuffix(" 5") + '"5'
    trace = read(write(tmp_path / "query_gpu.csv", "\n".join(lines).encode()))
    assert len(values(trace, "gpu.power", 0)) == 6


@pytest.mark.parametrize("stray", ['"Author:","x"', '"Dstat 0.8.0 CSV output"'])
def test_samples_where_titles_should_be_are_counted_as_lost(tmp_path, stray):
    lines = (FILES / "dstat_epoch.csv").read_text().splitlines()
    file = write(tmp_path / "dstat.csv", "\n".join([*lines[:-1], stray, lines[-1]]).encode())
    trace = read(file, "could not be read: 1")
    assert len(values(trace, "cpu.user")) == 1


def test_text_of_dstat_and_dool_has_no_year(tmp_path):
    trace = read(FILES / "dstat.txt", "has no year")
    assert (trace.meta["clock"], trace.meta["start_local"]) == (TIME_OF_DAY, "13:08:34.000")
    assert values(trace, "cpu.user.0") == [(0, 80), (S, 36)]
    assert values(trace, "cpu.utilization") == [(0, 51), (S, 51)]
    assert values(trace, "memory.used") == [(0, 734 * MIB), (S, 709 * MIB)]
    assert values(trace, "disk.read") == [(0, 0), (S, 0)]
    trace = read(FILES / "dool.txt", "has no year")
    assert values(trace, "cpu.system") == [(0, 30), (S, 13)]
    assert values(trace, "load.1min") == [(0, 1.15), (S, 1.15)]
    text = (FILES / "dool.txt").read_text().replace(" 21 ", " -1 ", 1)
    trace = read(write(tmp_path / "dool.txt", text.encode()), "no year")
    assert len(values(trace, "cpu.system")) == 2


def test_sar_sections():
    trace = read(FILES / "sar.txt")
    assert (trace.meta["clock"], trace.meta["start_local"]) == (LOCAL, "2026-11-21T13:00:32.000")
    assert values(trace, "cpu.user") == [(0, 40.3), (S, 39.8)]
    assert values(trace, "cpu.utilization.1") == [(0, 10), (S, pytest.approx(84.69))]
    assert values(trace, "memory.used") == [(0, 1_381_368 * 1024), (S, 2_642_648 * 1024)]
    assert values(trace, "disk.read.vda") == [(0, 0), (S, 0)]
    assert values(trace, "network.received.eth0") == [(0, 0), (S, 0)]
    said = units(trace)
    assert (said["disk.wait.vda"], said["sar.disk.tps.vda"], said["sar.kbdirty"]) == (
        "ns",
        "1",
        "B",
    )


def sar(date, *times):
    rows = "".join(
        f"{time}        all     10,50      0.00      2.00      1.00      0.00     86.50\n"
        for time in times
    )
    head = f"Linux 6.1.0 (host) \t{date} \t_x86_64_\t(2 CPU)\n\n"
    return f"{head}{times[0]}        CPU     %user     %nice   %system   %iowait    %steal     %idle\n{rows}".encode()


@pytest.mark.parametrize(
    ("date", "day"),
    [
        ("2026-11-21", "21"),
        ("11/21/26", "21"),
        ("21/11/2026", "21"),
        ("11/11/2026", "11"),
        ("05.11.2026", "05"),
    ],
)
def test_sar_dates(tmp_path, date, day):
    trace = read(write(tmp_path / "sar.txt", sar(date, "12:10:01 AM")))
    assert trace.meta["start_local"] == f"2026-11-{day}T00:10:01.000"
    assert values(trace, "cpu.user") == [(0, 10.5)]


@pytest.mark.parametrize("date", ["11/12/26", "2026年11月21日"])
def test_sar_whose_date_is_uncertain(tmp_path, date):
    file = write(tmp_path / "sar.txt", sar(date, "11:59:59 PM", "12:00:01 AM"))
    trace = read(file, "the date in sar.txt is ambiguous")
    assert (trace.meta["clock"], trace.meta["start_local"]) == (TIME_OF_DAY, "23:59:59.000")
    assert values(trace, "cpu.utilization") == [(0, 12.5), (2 * S, 12.5)]


def test_sadf_has_what_sar_has_and_the_epoch():
    trace, same = read(FILES / "sadf.txt"), read(FILES / "sar.txt")
    assert trace.meta["clock"] == EPOCH
    assert trace.meta["start_epoch_ns"] == 1_795_266_032 * S
    keys = ["time_ns", "name", "unit", "value"]
    assert trace.counters.select(keys).sort(keys).equals(same.counters.select(keys).sort(keys))


@pytest.mark.parametrize(
    ("written", "clock"), [("1795266032", EPOCH), ("2026-11-21 13:00:32", LOCAL)]
)
def test_sadf_with_seconds_or_local_times(tmp_path, written, clock):
    text = f"# hostname;interval;timestamp;CPU;%user;%idle\nhost;1;{written};-1;40.30;46.27\n"
    text += "host;-1;1795266039;LINUX-RESTART\t(2 CPU)\n"
    trace = read(write(tmp_path / "sadf.txt", text.encode()))
    assert trace.meta["clock"] == clock
    assert trace.meta["start_epoch_ns"] == (1_795_266_032 * S if clock == EPOCH else None)
    assert values(trace, "cpu.utilization") == [(0, 53.73)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("dmon", DMON.encode()),
        ("dmon", (FILES / "dmon.csv").read_bytes()),
        ("query-gpu", QUERY.encode()),
        ("query-gpu", b"utilization.gpu [%], memory.used [MiB]\n0 %, 1 MiB\n"),
        ("gpustat", gpustat(1).encode()),
        ("dstat", (FILES / "dstat_epoch.csv").read_bytes()),
        ("dstat", (FILES / "dool.txt").read_bytes()),
        ("sar", (FILES / "sar.txt").read_bytes()),
        ("sadf", (FILES / "sadf.txt").read_bytes()),
        (None, b"name, value\n1, 2\n"),
        (None, b"name, index\n1, 2\n"),
        (None, b'{"query_time": "2026-11-21", "rows": []}'),
        (None, b"# gpu notes\nIdx\n"),
        (None, b"-- title --\nsome text\n"),
        (None, b"Linux 6.1.0 on my desk\n"),
    ],
)
def test_what_a_file_is_follows_from_its_content(tmp_path, name, content):
    assert detect(write(tmp_path / "file.dat", content)) == name


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("\n".join(DMON.splitlines()[:2]), "dmon"),
        (QUERY.splitlines()[0], "query-gpu"),
        ("\n".join((FILES / "dstat_epoch.csv").read_text().splitlines()[:7]), "dstat"),
        (sar("2026-11-21", "00:10:01").decode().splitlines()[0], "sar"),
        ('{"query_time": "2026-11-21T12:00:00", "gpus": []}', "gpustat"),
    ],
)
def test_a_heading_without_samples_is_an_error(tmp_path, content, kind):
    with pytest.raises(ReadError, match=f"heading of {kind} but no sample"):
        llmprof.read(write(tmp_path / "file.txt", content.encode() + b"\n"))


def test_two_monitors_are_read_each_by_itself(tmp_path):
    files = [write(tmp_path / name, DMON.encode()) for name in ("a.txt", "b.txt")]
    with pytest.raises(MixedRunsError, match=r"2 files of format dmon.*read each file separately"):
        llmprof.read(files)


def test_a_monitor_beside_a_trace_does_not_keep_the_folder_from_being_read(tmp_path):
    write(tmp_path / "trace.json", text_of([kernel("a", 5, 2)]))
    write(tmp_path / "dmon.txt", DMON.encode())
    write(tmp_path / "gpustat.json", gpustat(1).encode())
    trace = llmprof.read(tmp_path, cache=False)
    assert trace.kernels.height == 1
    assert "counters" not in trace.tables
