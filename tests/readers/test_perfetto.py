"""Binary traces of Perfetto, made with the classes of its package: by hand, cut, hostile, and
without the package.
"""

import sys

import pytest

import llmprof
from llmprof.errors import ReadError, TraceWarning, UnknownFormatError
from llmprof.readers.registry import detect

proto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")


def packet(trace, at=0, sequence=1, **fields):
    one = trace.packet.add()
    one.timestamp = at
    one.trusted_packet_sequence_id = sequence
    for name, value in fields.items():
        setattr(one, name, value)
    return one


def event(trace, at, kind, track=None, **fields):
    one = packet(trace, at).track_event
    one.type = kind
    if track is not None:
        one.track_uuid = track
    for name, value in fields.items():
        if name in {"categories", "category_iids"}:
            getattr(one, name).append(value)
        else:
            setattr(one, name, value)
    return one


@pytest.fixture
def trace():
    """A thread with two nested slices and a mark, a lane with a kernel and a copy, a counter of
    bytes.
    """
    made = proto.Trace()
    thread = packet(made).track_descriptor
    thread.uuid, thread.thread.pid, thread.thread.tid, thread.name = 10, 4, 5, "main"
    lane = packet(made).track_descriptor
    lane.uuid, lane.name = 20, "queue 1"
    counter = packet(made).track_descriptor
    counter.uuid, counter.name, counter.counter.unit, counter.counter.unit_multiplier = (
        30,
        "memory",
        3,
        1024,
    )
    known = packet(made, sequence_flags=1)
    name = known.interned_data.event_names.add()
    name.iid, name.name = 7, "step"
    category = known.interned_data.event_categories.add()
    category.iid, category.name = 8, "engine"
    known.trace_packet_defaults.track_event_defaults.track_uuid = 10
    event(made, 1000, 1, name_iid=7, category_iids=8)
    event(made, 1100, 1, name="hipLaunchKernel", categories="hip_api")
    event(made, 1200, 2)
    event(made, 1250, 3, name="mark", categories="engine")
    event(made, 1300, 1, track=20, name="gemm", categories="kernel_dispatch")
    event(made, 1700, 2, track=20)
    event(made, 1750, 1, track=20, name="copy to host", categories="memory_copy")
    event(made, 1800, 2, track=20)
    event(made, 1900, 2)
    event(made, 1950, 4, track=30, counter_value=3)
    return made


def write(tmp_path, data, name="a.pftrace"):
    path = tmp_path / name
    path.write_bytes(data)
    return path


def test_tracks_slices_and_counters_by_hand(tmp_path, trace):
    path = write(tmp_path, trace.SerializeToString())
    assert detect(path) == "perfetto"
    found = llmprof.read(path)
    assert found.markers.select(
        "name", "domain", "start_ns", "dur_ns", "process", "thread"
    ).rows() == [
        ("step", "engine", 0, 900, 4, 5),
        ("mark", "engine", 250, 0, 4, 5),
    ]
    assert found.runtime.select("name", "start_ns", "dur_ns", "thread").rows() == [
        ("hipLaunchKernel", 100, 100, 5)
    ]
    assert found.kernels.select("name", "start_ns", "dur_ns").rows() == [("gemm", 300, 400)]
    assert found.copies.select("name", "dur_ns").rows() == [("copy to host", 50)]
    assert found.counters.select("name", "value", "unit", "time_ns").rows() == [
        ("memory", 3072.0, "B", 950)
    ]
    assert found.kernels["stream"].null_count() == 0


def test_what_is_open_unmatched_or_of_others_is_said(tmp_path, trace):
    event(trace, 2000, 2, track=20)
    event(trace, 2100, 1, track=20, name="never ends")
    packet(trace, 2200).ftrace_events.cpu = 1
    with pytest.warns(TraceWarning) as caught:
        llmprof.read(write(tmp_path, trace.SerializeToString()))
    said = " ".join(str(one.message) for one in caught)
    assert "1 slice without an end" in said
    assert "1 event without a begin" in said
    assert "1 packet of other data sources (ftrace_events 1) was left out" in said


@pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")
def test_every_cut_is_read_as_far_as_it_is_whole_or_refused(tmp_path, trace):
    data = trace.SerializeToString()
    kept = []
    for cut in range(1, len(data), 7):
        try:
            found = llmprof.read(
                write(tmp_path, data[:cut], f"cut{cut}"), format="perfetto", cache=False
            )
        except ReadError:
            continue
        kept.append(sum(frame.height for frame in found.tables.values()))
    assert kept == sorted(kept)
    assert kept


@pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")
def test_flipped_bytes_cause_errors_of_ours_only(tmp_path, trace):
    data = trace.SerializeToString()
    for place in range(0, len(data), 3):
        broken = data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]
        try:
            llmprof.read(write(tmp_path, broken, f"b{place}"), format="perfetto", cache=False)
        except ReadError as error:
            assert str(error)  # noqa: PT017


@pytest.mark.parametrize(
    "data",
    [
        b"\n\n\n\n",
        b"\n\x05hello\nworld",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"text\n",
    ],
)
def test_other_files_are_not_taken_for_one(tmp_path, data):
    with pytest.raises((UnknownFormatError, ReadError)):
        llmprof.read(write(tmp_path, data))


def test_without_the_package_the_way_is_said(tmp_path, trace, monkeypatch):
    path = write(tmp_path, trace.SerializeToString())
    monkeypatch.setitem(sys.modules, "perfetto.protos.perfetto.trace.perfetto_trace_pb2", None)
    with pytest.raises(
        ReadError, match=r"needs the package perfetto, which is not installed.*traceconv json"
    ):
        llmprof.read(path)
