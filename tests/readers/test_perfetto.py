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


def lane(trace, uuid, name, sequence=1):
    track = packet(trace, sequence=sequence).track_descriptor
    track.uuid, track.name = uuid, name


def slices(trace, track, sequence, category, *spans):
    for name, start, end in spans:
        begun = packet(trace, start, sequence).track_event
        begun.type, begun.track_uuid, begun.name = 1, track, name
        begun.categories.append(category)
        ended = packet(trace, end, sequence).track_event
        ended.type, ended.track_uuid = 2, track


@pytest.mark.parametrize("devices", [(2, 5), (2, 2)])
def test_files_that_were_joined_are_ranks_of_their_devices(tmp_path, devices):
    """Slices of Kineto; with one device for both there is nothing to tell ranks by."""
    made = proto.Trace()
    for sequence, device in enumerate(devices, start=1):
        host, queue = 100 * sequence, 100 * sequence + 1
        lane(made, host, "python", sequence)
        lane(made, queue, f"GPU {device} stream 9", sequence)
        slices(made, host, sequence, "cpu_op", ("aten::mm", 0, 40))
        slices(made, host, sequence, "cuda_runtime", ("cudaLaunchKernel", 5, 9))
        slices(made, queue, sequence, "kernel", (f"gemm{sequence}", 20, 30))
        slices(made, queue, sequence, "gpu_memcpy", ("Memcpy HtoD (Pageable -> Device)", 30, 34))
    trace = llmprof.read(write(tmp_path, made.SerializeToString()), cache=False)
    ranks = [0, 1] if devices[0] != devices[1] else [0, 0]
    assert trace.kernels.select("rank", "device", "stream", "name").rows() == [
        (ranks[0], devices[0], 9, "gemm1"),
        (ranks[1], devices[1], 9, "gemm2"),
    ]
    assert trace.copies["kind"].to_list() == ["HtoD", "HtoD"]
    assert trace.runtime["name"].to_list() == ["cudaLaunchKernel"] * 2
    assert trace.ops.select("rank", "name", "kind").rows() == [(r, "aten::mm", "op") for r in ranks]


@pytest.mark.parametrize("interned", [False, True])
def test_stages_that_a_driver_renders_are_kernels_and_copies(tmp_path, interned):
    made = proto.Trace()
    if interned:
        for iid, name in ((1, "compute stream 4"), (2, "dispatch"), (3, "memcpy DtoH")):
            one = packet(made, sequence_flags=1 if iid == 1 else 2)
            one = one.interned_data.gpu_specifications.add()
            one.iid, one.name = iid, name
    else:
        said = packet(made).gpu_render_stage_event.specifications
        said.hw_queue.add().name = "compute stream 4"
        for name in ("dispatch", "memcpy DtoH"):
            said.stage.add().name = name
    for at, stage, name in ((100, 0, "norm"), (200, 1, "")):
        one = packet(made, at).gpu_render_stage_event
        one.duration, one.gpu_id = 30, 6
        if interned:
            one.hw_queue_iid, one.stage_iid = 1, 2 + stage
        else:
            one.hw_queue_id, one.stage_id = 0, stage
        if name:
            extra = one.extra_data.add()
            extra.name, extra.value = "name", name
    trace = llmprof.read(write(tmp_path, made.SerializeToString()), cache=False)
    columns = ("name", "device", "stream", "start_ns", "dur_ns")
    assert trace.kernels.select(columns).rows() == [("norm", 6, 4, 0, 30)]
    assert trace.copies.select(*columns, "kind").rows() == [("memcpy DtoH", 6, 4, 100, 30, "DtoH")]
