"""Profiles of XLA, written field by field: lanes, times, names and damage."""

import pytest

import llmprof
from llmprof import analyze
from llmprof.errors import ReadError, TraceWarning
from tests.readers.ncu_reports import field, integer

BEGUN = 1_800_000_000_000_000_000


def message(*fields):
    return b"".join(field(number, value) for number, value in fields)


def named(number, entries):
    """A map from identifiers to metadata with names."""
    return [
        (number, message((1, key), (2, message((1, key), (2, name)))))
        for key, name in entries.items()
    ]


def line(number, name, *events, since=BEGUN):
    """A line with events: metadata, offset and length (ps), and their statistics."""
    made = [
        (4, message((1, key), (2, offset), (3, length), *((4, message(*stat)) for stat in stats)))
        for key, offset, length, *stats in events
    ]
    return message((1, number), (2, name), (3, since), *made)


def plane(name, lines, events, stats=(), about=()):
    return message(
        *((1, 3), (2, name)),
        *((3, one) for one in lines),
        *named(4, events),
        *named(5, dict(stats)),
        *((6, message(*stat)) for stat in about),
    )


def tpu(device=0):
    """Two runs of a program; a loop around one operation, a copy of the same in other words."""
    events = {
        1: "%dot.7 = f32[8]{0} dot(%a, %b)",
        2: "while.2",
        3: "jit_decode(55)",
        4: "decode",
        5: "x" * 300,
    }
    runs = [(3, 0, 9_000_000), (3, 20_000_000, 9_000_000)]
    work = [
        (2, 0, 8_000_000),
        (1, 500, 3_000_400, [(1, 9), (5, "y" * 200)]),
        (1, 20_000_000, 3_000_000),
    ]
    lanes = [line(1, "XLA Modules", *runs), line(2, "XLA Ops", *work), line(3, "Steps", (4, 0, 1))]
    about = [[(1, 8), (5, "TPU v9")]]
    stats = {8: "device_type_string", 9: "flops"}
    return plane(f"/device:TPU:{device}", lanes, events, stats, about)


def write(folder, *planes, name="host.xplane.pb"):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(message(*((1, one) for one in planes)))
    return path


@pytest.mark.parametrize(
    "given", ["plugins/profile/2030/host.xplane.pb", "plugins/profile/2030", ""]
)
def test_operations_are_kernels_and_programs_steps(tmp_path, given):
    host = plane("/host:CPU", [line(77, "python", (1, 0, 5_000))], {1: "PjitFunction(decode)"})
    write(tmp_path / "plugins" / "profile" / "2020", tpu())
    write(tmp_path / "plugins" / "profile" / "2030", tpu(device=4), host)
    trace = llmprof.read(tmp_path / given, cache=False)
    assert trace.kernels.select("name", "device", "start_ns", "dur_ns").rows() == [
        ("dot.7", 4, 1, 3000),
        ("dot.7", 4, 20_000, 3000),
    ]
    marks = trace.markers.select("name", "on_device").rows()
    assert sorted(marks) == [
        ("PjitFunction(decode)", False),
        ("jit_decode(55)", True),
        ("jit_decode(55)", True),
        ("while.2", True),
    ]
    assert trace.meta["device"] == "TPU v9"
    assert trace.meta["start_epoch_ns"] == BEGUN
    steps = analyze.steps(trace)
    assert steps.select("phase", "source").rows() == [("decode", "xla")] * 2
    assert trace.coverage["files"][0]["skipped"] == {"event that repeats another lane": 1}


def test_kernels_of_streams_join_the_calls_that_launched_them(tmp_path):
    stats = {6: "correlation_id", 7: "kernel_details"}
    launched = [[(1, 7), (5, "z" * 150)], [(1, 6), (3, 4711)]]
    events = {1: "loop_fusion", 2: "MemcpyD2H"}
    lanes = [
        line(12, "Stream #12(Compute)", (1, 9_000_000, 2_000_000, *launched)),
        line(13, "Stream #13(MemcpyD2H)", (2, 12_000_000, 1_000_000)),
        line(2, "XLA Ops", (1, 9_000_000, 2_000_000)),
    ]
    call = line(5, "thread", (1, 1_000_000, 500_000, [(1, 6), (4, 4711)]))
    path = write(
        tmp_path,
        plane("/device:GPU:0", lanes, events, stats),
        plane("/host:CPU", [call], {1: "cuLaunchKernel"}, stats),
    )
    trace = llmprof.read(path, cache=False)
    assert trace.kernels.select("name", "stream", "correlation").rows() == [
        ("loop_fusion", 12, 4711)
    ]
    assert trace.copies.select("stream", "kind").rows() == [(13, "DtoH")]
    assert trace.runtime.select("name", "correlation", "dur_ns").rows() == [
        ("cuLaunchKernel", 4711, 500)
    ]
    assert analyze.launch_delay(trace)["kernels"].sum() == 1


def test_hosts_are_ranks_and_damage_is_said(tmp_path):
    first = write(tmp_path, tpu(), name="a.xplane.pb")
    write(tmp_path, tpu(device=1), name="b.xplane.pb")
    with pytest.warns(TraceWarning, match="does not state its rank"):
        assert llmprof.read(tmp_path, cache=False).ranks == [0, 1]
    whole = first.read_bytes()
    first.write_bytes(whole + whole[:40])
    with pytest.warns(TraceWarning, match="cut off"):
        assert llmprof.read(first, cache=False).kernels.height == 2
    first.write_bytes(whole[:60])
    with pytest.raises(ReadError, match="no event"):
        llmprof.read(first, cache=False)
    back = message((1, 1), (3, BEGUN), (4, bytes([0x22]) + integer(2**64 - 30)))
    write(tmp_path, plane("/device:TPU:0", [back], {}), name="a.xplane.pb")
    with pytest.raises(ReadError, match="cut off"):
        llmprof.read(first, cache=False)
