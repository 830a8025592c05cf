"""What is written for other tools: read back, opened with their libraries, or compared by hand."""

import json

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import llmprof
from llmprof import analyze
from llmprof.cli import main
from llmprof.errors import AnalysisError, NotCapturedError, OutputError, ReadError, TraceWarning
from llmprof.report.export import FORMS, export
from llmprof.report.export.write import tracks
from llmprof.trace import Trace
from tests.analyze.builders import DENSE, forward, kernels, launches
from tests.readers.traces import read_quietly as read
from tests.samples import sample

SAMPLES = [
    "torch_tp1_eager",
    "torch_tp4_eager_nccl",
    "torch_pp2_eager",
    "torch_cpu_tp2_layer_annotations",
]
KEYS = ("rank", "start_ns", "time_ns", "dur_ns", "stream", "thread", "name", "correlation", "op_id")


def slices(file):
    """Slices of a file in Perfetto's format, read with the classes of the package ``perfetto``."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace as Packets
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent

    packets = Packets()
    packets.ParseFromString(file.read_bytes())
    rank_of = {}
    names = {}
    open_ = {}
    rows = []
    for packet in packets.packet:
        if packet.HasField("track_descriptor"):
            about = packet.track_descriptor
            if about.HasField("process"):
                rank_of[about.uuid] = about.process.pid - 1
            else:
                names[about.uuid] = (rank_of[about.parent_uuid], about.name)
        elif packet.HasField("track_event"):
            event = packet.track_event
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                open_.setdefault(event.track_uuid, []).append((packet.timestamp, event.name))
            else:
                start, name = open_[event.track_uuid].pop()
                rows.append((*names[event.track_uuid], start, packet.timestamp - start, name))
    schema = {
        "rank": pl.Int32,
        "row": pl.String,
        "start_ns": pl.Int64,
        "dur_ns": pl.Int64,
        "name": pl.String,
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


def in_order(frame):
    first = [c for c in KEYS if c in frame.columns]
    return frame.sort([*first, *(c for c in frame.columns if c not in first)], nulls_last=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_chrome_json_reads_back_to_the_same_frames(name, tmp_path):
    trace = sample(name)
    again = read(export(trace, tmp_path / "x.json.gz"))
    assert again.tables.keys() == trace.tables.keys()
    for table, frame in trace.tables.items():
        assert_frame_equal(in_order(again.table(table)), in_order(frame), check_column_order=False)
    assert again.meta["device"] == trace.meta["device"]
    assert again.meta["world_size"] == trace.meta["world_size"]


@pytest.mark.slow
def test_an_npu_reads_back_from_chrome_json(synthetic_npu, tmp_path):
    trace = llmprof.read(synthetic_npu("baseline"), cache=False)
    file = export(trace, tmp_path / "npu.json")
    again = read(file)
    assert again.meta["format"] == "chrome"
    assert again.capture.platform.name == "ascend"
    for table in ("kernels", "runtime", "ops", "markers"):
        common = [c for c in trace.table(table).columns if c in again.table(table).columns]
        assert_frame_equal(
            in_order(again.table(table).select(common)), in_order(trace.table(table).select(common))
        )
    names = {
        e["args"]["name"]
        for e in json.loads(file.read_text())["traceEvents"][1:]
        if e["name"] == "process_name"
    }
    assert {"rank 0: llmprof", "rank 1: llmprof", "rank 0: NPU 0"} <= names


def one_rank():
    run = kernels(forward(2), start=1_000_000, dur=10_000, pause=5_000)
    return Trace({"kernels": run, "runtime": launches(run, lead=2_000)}, {"device": "NVIDIA H200"})


def test_tracks_say_what_the_analyses_say():
    trace = one_rank()
    found = tracks(trace)
    layers = found.filter(track="layers")
    assert layers["name"].to_list() == ["layer 0", "layer 1"]
    assert layers["dur_ns"].to_list() == [len(DENSE) * 10_000 + (len(DENSE) - 1) * 5_000] * 2
    idle = found.filter(track="idle")
    assert idle["dur_ns"].sum() == analyze.idle(trace)["dur_ns"].sum()
    stages = found.filter(pl.col("track") == "stages, stream 7")
    first = stages.filter(
        pl.col("start_ns").is_between(
            *layers.select("start_ns", end=pl.col("start_ns") + pl.col("dur_ns") - 1).row(0)
        )
    )
    assert first["name"].to_list()[:4] == ["norm", "qkv_proj", "rope", "kv_cache_write"]
    ends = found.with_columns(end=pl.col("start_ns") + pl.col("dur_ns")).filter(
        pl.col("track") != "findings"
    )
    after = pl.col("start_ns").shift(-1).over("rank", "track")
    assert not ends.filter(pl.col("end") > after).height, "slices of a track overlap"


def test_a_window_cuts_rows_and_tracks_but_no_labels(tmp_path):
    trace = one_rank()
    layer = tracks(trace).filter(track="layers").row(1, named=True)
    window = (layer["start_ns"], layer["start_ns"] + layer["dur_ns"])
    file = export(trace, tmp_path / "w.json", window=window)
    events = json.loads(file.read_text())["traceEvents"][1:]
    assert len([e for e in events if e.get("cat") == "kernel"]) == len(DENSE)
    shown = [
        e["name"] for e in events if e.get("cat") == "llmprof" and e["name"].startswith("layer")
    ]
    assert shown == ["layer 1"]
    assert (
        read(file).kernels["name"].to_list()
        == trace.select(window=window).kernels["name"].to_list()
    )
    with pytest.raises(AnalysisError, match="nothing starts in the window"):
        export(trace, tmp_path / "none.json", window=(0, 10))
    assert not (tmp_path / "none.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torch_tp1_cudagraph", "torch_pp2_eager", "nsys_tp2_cudagraph"])
def test_perfettos_own_format_reads_back_to_the_same_frames(name, tmp_path):
    pytest.importorskip("perfetto")
    trace = sample(name)
    again = read(export(trace, tmp_path / "x.pftrace"))
    assert again.tables.keys() == trace.tables.keys()
    for table, frame in trace.tables.items():
        assert_frame_equal(again.table(table), frame)
    assert again.coverage == trace.coverage
    assert {**again.meta, "name": ""} == {**trace.meta, "name": ""}
    assert_frame_equal(analyze.steps(again), analyze.steps(trace))


@pytest.mark.slow
def test_perfettos_own_format_without_its_tables_reads_back_by_name_and_time(tmp_path):
    """The second packet, which holds the tables, is damaged: the slices are still there."""
    pytest.importorskip("perfetto")
    trace = sample("torch_tp1_cudagraph")
    file = export(trace, tmp_path / "x.pftrace")
    data = bytearray(file.read_bytes())
    data[2000:2200] = bytes(200)
    file.write_bytes(data)
    with pytest.warns(TraceWarning, match="tables of the exported trace cannot be read"):
        again = llmprof.read(file, cache=False)
    assert again.meta["format"] == "perfetto"
    for table in ("kernels", "copies", "runtime"):
        columns = ["start_ns", "dur_ns", "name"]
        found, rows = (t.table(table).select(columns).sort(columns) for t in (again, trace))
        first = again.meta["start_epoch_ns"] - trace.meta["start_epoch_ns"]
        assert_frame_equal(found.with_columns(pl.col("start_ns") + first), rows)


def test_a_cut_file_of_perfetto_says_so(tmp_path):
    pytest.importorskip("perfetto")
    file = export(sample("torch_tp1_cudagraph"), tmp_path / "x.pftrace")
    file.write_bytes(file.read_bytes()[:3000])
    with pytest.raises(ReadError):
        read(file)


def test_slices_that_cross_get_rows_of_their_own(tmp_path):
    pytest.importorskip("perfetto")
    rows = {
        "rank": 0,
        "device": 0,
        "stream": 7,
        "start_ns": [0, 50, 60, 200],
        "dur_ns": [100, 100, 10, 0],
        "name": ["a", "b", "c", "d"],
    }
    found = slices(export(Trace({"kernels": pl.DataFrame(rows)}), tmp_path / "x.perfetto-trace"))
    found = found.filter(pl.col("row").str.starts_with("device")).sort("name")
    assert found.select("name", "start_ns", "dur_ns").rows() == [
        ("a", 0, 100),
        ("b", 50, 100),
        ("c", 60, 10),
        ("d", 200, 0),
    ]
    assert found["row"].to_list() == [
        "device: stream 7",
        "device: stream 7 (2)",
        "device: stream 7",
        "device: stream 7",
    ]


@pytest.mark.slow
def test_answers_as_csv_parquet_and_excel(tmp_path):
    trace = sample("torch_tp1_cudagraph")
    csv = export(trace, tmp_path / "csv", form="csv")
    parquet = export(trace, tmp_path / "parquet", form="parquet")
    names = {file.stem for file in csv.iterdir()}
    assert {"findings", "steps", "kernels", "events"} <= names
    assert names == {file.stem for file in parquet.iterdir()}
    assert_frame_equal(pl.read_parquet(parquet / "steps.parquet"), analyze.steps(trace))
    pytest.importorskip("xlsxwriter")
    import zipfile

    book = export(trace, tmp_path / "x.xlsx")
    with zipfile.ZipFile(book) as packed:
        sheets = packed.read("xl/workbook.xml").decode()
        assert 'name="findings"' in sheets
        assert 'name="events"' not in sheets  # a row an event is no sheet
        assert not [
            n for n in packed.namelist() if "<f>" in packed.read(n).decode("utf-8", "replace")
        ], "no formulas"


def test_speedscope_and_what_has_no_stacks(tmp_path):
    with pytest.raises(NotCapturedError):
        export(one_rank(), tmp_path / "x.speedscope.json")
    assert not list(tmp_path.iterdir())


def test_redacted_files_hold_no_secret(tmp_path):
    trace = one_rank()
    names = trace.kernels["name"].to_list()
    names[3] = "/home/alice/kernels/secret_token_hf_abcdefghijklmnopqrstuvwxyz0123"
    secret = Trace(
        {**trace.tables, "kernels": trace.kernels.with_columns(name=pl.Series(names))},
        {"device": "NVIDIA H200"},
    )
    for name in ("x.json", "y.pftrace"):
        if name.endswith("pftrace"):
            pytest.importorskip("perfetto")
        held = export(secret, tmp_path / name, redact=True).read_bytes()
        assert b"alice" not in held
        assert b"hf_abcdefghijklmnop" not in held


def test_names_of_files_say_the_form_and_nothing_is_written_over(tmp_path):
    with pytest.raises(OutputError, match="has no known suffix"):
        export(one_rank(), tmp_path / "x.txt")
    file = export(one_rank(), tmp_path / "deep" / "x.json")
    before = file.read_bytes()
    with pytest.raises(OutputError, match="already exists"):
        export(one_rank(), file)
    assert file.read_bytes() == before
    assert set(FORMS) == {"chrome", "perfetto", "speedscope", "csv", "parquet", "excel"}


def test_hostile_names_stay_text(tmp_path):
    names = ['a"b\\c', "</script>", "line\nbreak", "null", '{"v":1}', '":null', "\x07bell", "𝄞"]
    rows = {
        "rank": 0,
        "device": 0,
        "stream": 1,
        "start_ns": list(range(0, 80, 10)),
        "dur_ns": 5,
        "name": names,
    }
    file = export(Trace({"kernels": pl.DataFrame(rows)}), tmp_path / "x.json")
    events = json.loads(file.read_text("utf-8"))["traceEvents"][1:]
    assert [e["name"] for e in events if e.get("cat") == "kernel"] == names
    assert read(file).kernels["name"].to_list() == names


def test_the_command(tmp_path, capsys):
    assert (
        main.main(
            [
                "export",
                "sample:torch_tp1_cudagraph",
                "-o",
                str(tmp_path / "x.json.gz"),
                "--window",
                "0:5",
            ]
        )
        == 0
    )
    assert "x.json.gz: " in capsys.readouterr().out
    assert main.main(["info", str(tmp_path / "x.json.gz")]) == 0
    with pytest.raises(SystemExit):
        main.main(["export", "sample:torch_tp1_cudagraph", "-o", "x.json", "--window", "5"])
    assert "write FROM:TO in ms" in capsys.readouterr().err
