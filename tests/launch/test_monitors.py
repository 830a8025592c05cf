"""Monitors: what is sampled, what happens where something is not there, and the clock of the
trace.
"""

import datetime
import errno
import subprocess
import sys
import time

import polars as pl
import pytest

from llmprof.errors import AnalysisError, ConfigError, OutputError
from llmprof.run.launch.monitors import Sampler, counters, table
from llmprof.run.launch.monitors.host import Processes
from llmprof.run.launch.monitors.nvml import Gpus, open_gpus, visible_gpus
from llmprof.run.launch.monitors.table import MonitorValue
from llmprof.trace import Trace
from tests.launch.fake_nvml import FakeNvml

S = 1_000_000_000
START = 1_795_266_100 * S


def taken(source, now_s):
    return {(v.name, v.device): (v.value, v.unit) for v in source.sample(now_s)}


# --- rates


# --- GPUs


def test_gpus_in_base_units():
    nvml = FakeNvml()
    gpus = Gpus(nvml)
    first = taken(gpus, 0.0)
    assert first["gpu.utilization", 1] == (41, "%")
    assert first["gpu.memory_used", 0] == (1000, "B")
    assert first["gpu.power", 0] == (401.5, "W")
    assert first["gpu.temperature", 0] == (51, "°C")
    assert first["gpu.memory_temperature", 0] == (60, "°C")
    assert first["gpu.sm_clock", 0] == (1980e6, "Hz")
    assert first["gpu.memory_clock", 0] == (2619e6, "Hz")
    assert first["gpu.throttle_reasons", 0] == (4, "1")
    assert ("gpu.pcie_sent", 0) not in first
    nvml.totals |= {197: 5000, 138: 7}
    later = taken(gpus, 2.0)
    assert later["gpu.pcie_sent", 0] == (2500, "B/s")
    assert later["gpu.pcie_received", 0] == (0, "B/s")
    assert later["gpu.nvlink_sent", 1] == (7 * 1024 / 2, "B/s")
    assert gpus.notes == []
    gpus.close()
    assert nvml.shut == 1


def test_what_is_not_supported_is_asked_once_and_noted():
    nvml = FakeNvml("power", "field 82", "field 139", "field 204", count=1)
    gpus = Gpus(nvml)
    for turn in range(3):
        names = {name for name, _ in taken(gpus, float(turn))}
    assert not {"gpu.power", "gpu.memory_temperature", "gpu.nvlink_sent"} & names
    assert (nvml.asked["power"], nvml.asked["field 82"], nvml.asked["utilization"]) == (1, 1, 3)
    assert [note.partition(":")[0] for note in gpus.notes] == [
        "GPU 0 does not report its power",
        "GPU 0 does not report its memory temperature",
        "GPU 0 does not report its NVLink bytes",
    ]


def test_a_passing_error_is_asked_again(monkeypatch):
    nvml = FakeNvml(count=1)
    gpus = Gpus(nvml)
    monkeypatch.setattr(
        nvml,
        "_ask",
        lambda name: (_ for _ in ()).throw(nvml.NVMLError(999)) if name == "power" else None,
    )
    assert ("gpu.power", 0) not in taken(gpus, 0.0)
    monkeypatch.setattr(nvml, "_ask", lambda name: None)
    assert ("gpu.power", 0) in taken(gpus, 1.0)
    assert gpus.notes == []


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1]),
        ("1", [1]),
        ("1,0", [1, 0]),
        ("GPU-b", [1]),
        ("0,-1,1", [0]),
        ("", []),
        ("7", []),
        ("MIG-x", [0, 1]),
    ],
    ids=["none", "second", "turned", "uuid", "cut", "empty", "unknown", "mig"],
)
def test_visible_gpus(visible, expected):
    assert visible_gpus(FakeNvml(), [0, 1], visible) == expected


@pytest.mark.parametrize("fake", [FakeNvml("init"), None], ids=["no driver", "no package"])
def test_without_nvml_there_is_a_reason(monkeypatch, fake):
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    gpus, why = open_gpus()
    assert gpus is None
    assert why.startswith("GPUs are not sampled: ")


# --- host and processes


@pytest.fixture
def child():
    """A process with a child of its own; both end when its input does."""
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()']); input()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    yield process
    process.stdin.close()
    process.wait(30)


def test_processes_with_their_children(child):
    processes = Processes([child.pid])
    deadline = time.monotonic() + 180
    found, now_s = taken(processes, 0.0), 0.0
    while found["run.processes", None][0] < 2 and time.monotonic() < deadline:
        now_s += 1.0
        found = taken(processes, now_s)
    assert found["run.processes", None] == (2, "1")
    assert found["run.memory", None][0] > 2**20
    assert found["run.cpu", None][0] >= 0


def test_a_process_that_vanishes_leaves_no_sample(child):
    processes = Processes([child.pid])
    assert taken(processes, 0.0)
    child.stdin.close()
    child.wait(30)
    assert taken(processes, 1.0) == {}
    assert processes.notes == []
    child.stdin.close()
    child.wait(30)
    processes = Processes([child.pid])
    assert processes.notes == [f"process {child.pid} ended before its first sample"]
    assert taken(processes, 0.0) == {}


# --- the sampler


class Counting:
    """A source that counts its samples."""

    def __init__(self, *, device=None):
        self.notes = ["it only counts"]
        self.turns = 0
        self.closed = False
        self._device = device

    def sample(self, now_s):
        self.turns += 1
        yield MonitorValue("turns", "1", self.turns, self._device)

    def close(self):
        self.closed = True


def test_the_sampler_writes_what_its_sources_say(tmp_path):
    path, sources = tmp_path / "new" / "monitors.parquet", [Counting(), Counting(device=3)]
    before = time.time_ns()
    with Sampler(path, hz=100, sources=sources):
        assert not path.exists()
    frame = pl.read_parquet(path)
    assert dict(frame.schema) == table.SCHEMA
    assert frame.filter(pl.col("device").is_null())["value"].to_list() == list(
        range(1, sources[0].turns + 1)
    )
    assert frame.filter(device=3).height == sources[1].turns >= 2, (
        "one at the start and one at the end"
    )
    assert frame["time_ns"].is_between(before, time.time_ns()).all()
    assert all(source.closed for source in sources)
    assert table.samples_metadata(path)["notes"] == ["it only counts"] * 2
    assert [p.name for p in path.parent.iterdir()] == ["monitors.parquet"]
    sampler = Sampler(tmp_path / "m.parquet", hz=100, sources=[Counting()])
    with pytest.raises(KeyboardInterrupt), sampler:
        raise KeyboardInterrupt
    assert pl.read_parquet(tmp_path / "m.parquet").height >= 1


def test_the_sampler_on_this_machine(tmp_path, child):
    with Sampler(tmp_path / "m.parquet", hz=50) as sampler:
        sampler.watch(child.pid)
    found = dict(pl.read_parquet(tmp_path / "m.parquet").select("name", "unit").unique().rows())
    assert {
        "cpu.utilization": "%",
        "memory.used": "B",
        "run.processes": "1",
        "run.memory": "B",
    }.items() <= found.items()


def fail(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("llmprof.trace.storage.files.os.fsync", fail)
    path = tmp_path / "m.parquet"
    with (
        pytest.raises(OutputError, match="No space left on device"),
        Sampler(path, hz=100, sources=[Counting()]),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("hz", [0, -1, 101, float("nan")])
def test_rates_beyond_the_bounds_are_refused(tmp_path, hz):
    with pytest.raises(ConfigError, match="at most 100"):
        Sampler(tmp_path / "m.parquet", hz=hz)


def test_sampling_ends_when_there_is_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "MAX_ROWS", 3)
    sampler = Sampler(tmp_path / "m.parquet", hz=100, sources=[Counting()]).start()
    sampler._thread.join(30)
    sampler.stop()
    assert pl.read_parquet(tmp_path / "m.parquet").height == 3
    assert "sampling ended after 3 samples" in sampler.notes


# --- on the clock of a trace


def trace(**meta):
    kernels = pl.DataFrame(
        {
            "rank": [0, 1, 1],
            "device": [0, 1, 1],
            "start_ns": [0, 5, 9],
            "dur_ns": [1, 1, 1],
            "name": ["a", "b", "c"],
        }
    )
    return Trace({"kernels": kernels}, {"start_epoch_ns": START, **meta})


def samples(*rows):
    return pl.DataFrame(rows, schema=table.SCHEMA, orient="row")


def test_samples_on_the_clock_of_the_trace():
    joined = counters(
        samples(
            (START - 5, None, "cpu.utilization", "%", 50.0),
            (START + 7, 0, "gpu.power", "W", 400.0),
            (START + 7, 1, "gpu.power", "W", 300.0),
            (START + 7, 2, "gpu.power", "W", 60.0),
        ),
        trace(),
    )
    rows = joined.counters.select("rank", "device", "time_ns", "name", "value", "unit").rows()
    assert rows == [
        (-1, None, -5, "cpu.utilization", 50.0, "%"),
        (-1, 2, 7, "gpu.power", 60.0, "W"),
        (0, 0, 7, "gpu.power", 400.0, "W"),
        (1, 1, 7, "gpu.power", 300.0, "W"),
    ]
    assert joined.kernels.height == 3
    mask = "gpu.throttle_reasons"
    joined = counters(
        samples(
            (START, 0, mask, "1", 0x5), (START + 1, 0, mask, "1", 0x4), (START + 2, 0, mask, "1", 0)
        ),
        trace(),
    )
    got = joined.counters.select("name", "time_ns", "value").sort("name", "time_ns").rows()
    assert got == [
        ("gpu.throttle.gpu_idle", 0, 1),
        ("gpu.throttle.gpu_idle", 1, 0),
        ("gpu.throttle.gpu_idle", 2, 0),
        ("gpu.throttle.sw_power_cap", 0, 1),
        ("gpu.throttle.sw_power_cap", 1, 1),
        ("gpu.throttle.sw_power_cap", 2, 0),
    ]
    with pytest.raises(AnalysisError, match="does not say when it began"):
        counters(samples((START, None, "cpu.utilization", "%", 1.0)), trace(start_epoch_ns=None))
    own = pl.DataFrame(
        {
            "rank": [0],
            "device": [0],
            "time_ns": [3],
            "name": ["SMs Active"],
            "value": [9.0],
            "unit": ["%"],
        }
    )
    whole = Trace({"counters": own}, {"start_epoch_ns": START})
    joined = counters(samples((START, 0, "gpu.power", "W", 1.0)), whole)
    assert sorted(joined.counters["name"]) == ["SMs Active", "gpu.power"]
    assert joined.counters.filter(name="gpu.power")["rank"].item() == -1, (
        "no kernel says whose device it is"
    )


def monitor(**meta):
    frame = pl.DataFrame(
        {
            "rank": [-1, -1],
            "time_ns": [0, S],
            "name": "gpu.power",
            "value": [1.0, 2.0],
            "unit": "W",
            "device": 0,
        }
    )
    return Trace({"counters": frame}, {"start_epoch_ns": None, "start_local": None, **meta})


@pytest.mark.parametrize(
    ("meta", "options"),
    [
        ({"start_epoch_ns": START + 10}, {}),
        ({"start_local": "2026-11-21T14:01:40.000"}, {"zone": "Europe/Berlin"}),
        ({"start_local": "13:01:40.000"}, {"zone": "UTC", "date": datetime.date(2026, 11, 21)}),
    ],
    ids=["epoch", "local", "time-of-day"],
)
def test_a_file_of_a_monitor_joins_the_trace(meta, options):
    first = 10 if "start_epoch_ns" in meta else 0
    joined = counters(monitor(**meta), trace(), **options)
    assert joined.counters.select("rank", "time_ns", "value").rows() == [
        (0, first, 1.0),
        (0, first + S, 2.0),
    ]


@pytest.mark.parametrize(
    ("local", "options", "message"),
    [
        (None, {}, "has no times"),
        ("13:01:40.000", {"zone": "UTC"}, "has no date"),
        ("2026-11-21T13:01:40.000", {}, "without their time zone"),
        (
            "2026-11-21T13:01:40.000",
            {"zone": "Mars/Olympus"},
            "there is no time zone 'Mars/Olympus'",
        ),
    ],
    ids=["times", "date", "zone", "unknown-zone"],
)
def test_what_a_file_of_a_monitor_lacks_is_asked_for(local, options, message):
    with pytest.raises(AnalysisError, match=message):
        counters(monitor(start_local=local), trace(), **options)
