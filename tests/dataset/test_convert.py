"""Datasets: what is converted is what is read, a part of it loads that part, and a second call
does nothing.
"""

import json
import pickle
import shutil

import msgspec
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import llmprof
from llmprof import explore
from llmprof.analyze import catalog
from llmprof.cli import make
from llmprof.cli.main import main
from llmprof.cli.output import on_workers
from llmprof.errors import ArgumentError, NotCapturedError, OutputError, ReadError
from llmprof.explore.timeline import data
from llmprof.explore.timeline.data import TimelineData
from llmprof.explore.timeline.describe import describe_span
from llmprof.explore.timeline.view import window_view
from llmprof.report.dataset import mapping
from llmprof.trace.storage import dataset as stored
from llmprof.trace.storage.dataset import MANIFEST
from llmprof.trace.storage.deferred import Deferred
from llmprof.trace.storage.places import Place
from tests.dataset.files import rank_file, run_folder, same

TABLES = ("kernels", "copies", "markers", "ops", "runtime")
SAMPLES = ("torch_tp4_eager_nccl", "nsys_tp2_cudagraph")


@pytest.fixture(scope="module", params=SAMPLES)
def both(request, tmp_path_factory, sample_trace):
    folder = tmp_path_factory.mktemp("dataset") / request.param
    paths = llmprof.readers.bundled.sample_files(request.param)
    return llmprof.convert(paths, folder, client=False), sample_trace(request.param), folder, paths


@pytest.fixture
def run(tmp_path):
    return run_folder(tmp_path / "run")


def test_a_dataset_is_the_trace_that_was_read(both):
    many, trace, _, _ = both
    same(many, trace)
    assert many.rows == trace.rows
    assert (many.ranks, many.span_ns, many.capture.device_ranks) == (
        trace.ranks,
        trace.span_ns,
        trace.capture.device_ranks,
    )
    added = {"name": many.name, "dataset": many.meta["dataset"]}
    assert many.meta == trace.meta | added
    assert many.coverage == trace.coverage
    assert repr(many) == repr(trace)


def test_the_dataset_of_a_run_knows_what_its_folder_says(tmp_path, root):
    run = root / "sample_traces" / "run_torch_tp1"
    many = llmprof.convert([run], tmp_path / "dataset", client=False)
    trace = llmprof.read(run)
    assert many.meta["parallel"] == trace.meta["parallel"] == {"tp": 1, "pp": 1}
    assert many.meta["without_profiler"] == trace.meta["without_profiler"]
    told = [llmprof.analyze.what_if(one, "scale:gemm:0.5") for one in (many, trace)]
    assert_frame_equal(*told)


def test_a_part_of_it_is_the_part_of_the_trace(both):
    many, trace, _, _ = both
    first, last = trace.span_ns
    window = (first + (last - first) / 3, first + (last - first) / 2)
    same(many.select(rank=1, window=window), trace.select(rank=1, window=window))
    assert many.select(window=window).rows["kernels"] == trace.select(window=window).kernels.height
    assert many.select(window=window).span_ns == trace.select(window=window).span_ns
    some = many.select(rank=[1], tables=["copies", "collectives"])
    assert some.table_names == ["copies", "collectives"]
    assert_frame_equal(some.collectives, trace.collectives.filter(rank=1))
    with pytest.raises(NotCapturedError, match=r"this trace was read without its kernels"):
        _ = some.kernels
    many = llmprof.open(both[2])
    tables = many._tables
    assert tables.bytes == 0
    part = many.select(rank=1)
    assert part.kernels.height
    assert list(part._tables._loaded) == ["kernels"]
    assert part._tables.bytes == part.kernels.estimated_size()
    assert tables.bytes == 0
    assert pickle.loads(pickle.dumps(part))._tables.bytes == 0


def test_the_second_call_reads_nothing(run, tmp_path, monkeypatch):
    told = []
    first = llmprof.convert(
        run, tmp_path / "out", client=False, progress=lambda *words: told.append(words)
    )
    assert told[0] == ("converting files", 0, 3)
    assert told[3] == ("converting files", 3, 3)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*/*")}
    monkeypatch.setattr("llmprof.readers.reading.read_parts", None)
    again = llmprof.convert(run, tmp_path / "out", client=False)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*/*")}
    same(first, again)
    for path in run.iterdir():  # touched, and the same as before: known by its content
        path.touch()
    same(first, llmprof.convert(run, tmp_path / "out", client=False))


def test_only_one_writes_to_a_dataset(run, tmp_path):
    refused = []

    def progress(what, done, total):
        with pytest.raises(OutputError, match="another process"):
            llmprof.convert(run, tmp_path / "dataset", client=False)
        refused.append(what)

    made = llmprof.convert(run, tmp_path / "dataset", client=False, progress=progress)
    assert refused
    assert made.ranks == llmprof.read(run).ranks
    llmprof.convert(run, tmp_path / "dataset", client=False)  # the lock has ended with the call


def test_a_file_that_changed_is_converted_again(run, tmp_path):
    llmprof.convert(run, tmp_path / "out", client=False)
    rank_file(run, 1, late_us=100)
    many = llmprof.convert(run, tmp_path / "out", client=False)
    same(many, llmprof.read(run, cache=False))
    assert len(list((tmp_path / "out").glob("part-*"))) == 3


def test_an_object_store_holds_a_dataset(run, tmp_path):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for path in run.iterdir():
        memory.put_file(str(path), f"/runs/{path.name}")
    url = "memory://datasets/run"
    try:
        many = llmprof.convert("memory://runs", url, client=False)
        same(many, llmprof.read(run, cache=False))
        again = llmprof.open(url).select(rank=2)
        assert_frame_equal(again.kernels, many.kernels.filter(rank=2))
        assert_frame_equal(again.sql("select * from kernels"), again.kernels)
        same(llmprof.convert("memory://runs", url, client=False), many)
        memory.rm(f"/datasets/run/{many._tables.partitions[0].folder}", recursive=True)
        with pytest.warns(
            llmprof.errors.TraceWarning, match=r"rank 0 .* is left out: its folder is missing"
        ):
            assert llmprof.open(url).ranks == [1, 2]
    finally:
        memory.rm("/runs", recursive=True)
        memory.rm("/datasets", recursive=True)
    same(llmprof.convert(f"file://{run}", f"file://{tmp_path}/by_url", client=False), many)
    with pytest.raises(ReadError, match=r"memory://nowhere does not exist"):
        llmprof.convert("memory://nowhere", tmp_path / "none", client=False)


def test_a_saved_trace_becomes_a_dataset_and_opens_as_it_is(both, tmp_path):
    many, trace, _, _ = both
    trace.save(tmp_path / "saved")
    same(llmprof.open(tmp_path / "saved"), trace)
    again = llmprof.convert(tmp_path / "saved", tmp_path / "out", client=False)
    same(again, trace)
    assert again.meta["ranks"] == trace.meta["ranks"]
    assert again.coverage == trace.coverage
    assert many.ranks == again.ranks


def test_replicas_are_numbered_on(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for name, late in (("a", 0), ("b", 50)):
        for rank in range(2):
            path = rank_file(folder, rank, world=2, late_us=late)
            text = path.read_text().replace(
                f'"pid": {100 + rank}', f'"pid": {100 + rank + 10 * late}'
            )
            text = text.replace(
                '"distributedInfo"', '"baseTimeNanoseconds": 1700000000000000000, "distributedInfo"'
            )
            path.rename(folder / f"{name}{rank}.json").write_text(text)
    with pytest.warns(llmprof.errors.TraceWarning, match="beside each other"):
        many = llmprof.convert(folder, tmp_path / "out", client=False)
    with pytest.warns(llmprof.errors.TraceWarning, match="beside each other"):
        trace = llmprof.read(folder, cache=False)
    assert many.ranks == [0, 1, 2, 3]
    same(many, trace)
    with pytest.warns(llmprof.errors.TraceWarning, match="beside each other"):
        same(llmprof.convert(folder, tmp_path / "out", client=False), trace)


def test_a_folder_with_other_things_is_refused(run, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"holds other things than a dataset: notes.txt, run"):
        llmprof.convert(run, tmp_path, client=False)
    with pytest.raises(OutputError, match=r"is not a folder"):
        llmprof.convert(run, tmp_path / "notes.txt", client=False)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with pytest.raises(ReadError, match=r"no files given"):
        llmprof.convert([], tmp_path / "out", client=False)
    with pytest.raises(ReadError, match=r"is not a dataset: it has no llmprof-dataset.json"):
        llmprof.open(run)
    with pytest.raises(ArgumentError, match=r"client= is 'float'.*the address of a scheduler"):
        llmprof.convert(run, tmp_path / "out", client=1.5)


def test_commands_take_a_dataset(run, tmp_path, capsys):
    out = str(tmp_path / "out")
    assert main(["convert", str(run), "-o", out, "--workers", "1", "--no-progress"]) == 0
    told = capsys.readouterr().out
    assert "Ranks    3" in " ".join(told.split("\n")) or "3" in told
    assert f"llmprof findings {out}" in told
    assert main(["convert", str(run), "-o", out, "--workers", "1", "--json", "--no-progress"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"]["kernels"] == 18
    for command in (
        ["info", out],
        ["analyze", out, "--what", "collectives", "--by", "kind,rank"],
        ["findings", out],
        ["diff", out, str(run)],
    ):
        assert main(command) == 0, command
        assert capsys.readouterr().out
    assert main(["convert", str(run), "-o", out, "--workers", "0"]) == 2
    assert "--workers is 0" in capsys.readouterr().err
    shutil.rmtree(out)
    assert not (tmp_path / "out" / MANIFEST).exists()


@pytest.mark.parametrize(
    "command",
    [
        "analyze --what overlap",
        "analyze --what collectives --by kind,rank",
        "analyze --what kernels",
        "findings",
    ],
)
def test_commands_analyse_a_dataset_rank_by_rank(run, tmp_path, capsys, monkeypatch, command):
    out = str(tmp_path / "out")
    llmprof.convert(run, out, client=False)
    of_rank, ranks = mapping._of_rank, []
    monkeypatch.setattr(
        mapping, "_of_rank", lambda one, *more: ranks.append(one[0]) or of_rank(one, *more)
    )
    said = []
    for path in (out, str(run)):
        assert main([*command.split(), path, "--workers", "1", "--json", "--no-progress"]) == 0
        document = json.loads(capsys.readouterr().out)
        said.append(document["findings"] if command == "findings" else document)
    assert set(ranks) == (
        set() if "kernels" in command else {0, 1, 2}
    )  # whose sums are over all ranks
    assert said[0] == said[1]


def test_a_report_of_a_dataset_finds_what_its_ranks_gave(run, tmp_path, monkeypatch, capsys):
    out = str(tmp_path / "out")
    llmprof.convert(run, out, client=False)
    asked = []
    monkeypatch.setattr(
        make, "on_workers", lambda names, *more: asked.append(names) or on_workers(names, *more)
    )
    assert main(["report", out, "-o", str(tmp_path / "r.html"), "--no-progress"]) == 0
    (names,) = asked
    found = mapping.prepare(names, llmprof.open(out), client=False)
    assert set(found) == set(names)
    for name, frame in found.items():
        assert_frame_equal(
            frame, catalog.analysis(name).function(llmprof.read(run, cache=False), **names[name])
        )


def test_threads_are_counted_by_hand():
    ops = [
        (0, 7, 10, 5, "aten::mm", "cpu"),
        (0, 7, 2, -1, "aten::mm", None),
        (0, 7, 4, 3, "nn.Module: A", "python"),
    ]
    columns = ["rank", "thread", "start_ns", "dur_ns", "name", "kind"]
    marks = pl.DataFrame(
        {
            "rank": 1,
            "thread": 3,
            "start_ns": [1, 2, 3],
            "dur_ns": 9,
            "on_device": [False, True, False],
            "domain": ["nvtx", "nvtx", "overhead"],
        }
    )
    found = stored.thread_spans(
        {"ops": pl.DataFrame(ops, schema=columns, orient="row"), "markers": marks}
    )
    assert sorted(found.rows()) == [
        (0, "modules", 7, 1, 4, 7),
        (0, "ops", 7, 2, 2, 15),
        (1, "markers", 3, 1, 1, 10),
    ]


def test_a_timeline_opens_on_what_was_kept_of_the_host_and_finds_it_anew_where_it_does_not_fit(
    both, monkeypatch
):
    made, trace, folder, _ = both
    monkeypatch.setattr(data, "LATER", 0)
    rows = [
        (row.kind, row.rank, row.thread, row.label, row.count) for row in TimelineData(trace).drawn
    ]
    manifest = stored.read_manifest(Place.of(folder))
    kept = manifest.partitions
    stale = [(kind, thread, count + 1, *span) for kind, thread, count, *span in kept[0].threads]
    assert all(map(stored.fits, kept))
    for threads in (kept[0].threads, None, tuple(stale)):
        parts = (msgspec.structs.replace(kept[0], threads=threads), *kept[1:])
        opened = llmprof.Trace(
            Deferred(Place.of(folder), parts, manifest.origin_ns, manifest.tables), made.meta
        )
        shown = TimelineData(opened)
        assert [
            (row.kind, row.rank, row.thread, row.label, row.count) for row in shown.drawn
        ] == rows
        assert not {"ops", "runtime", "markers", "kernels"} & set(opened._tables._loaded)
        assert shown.whole == TimelineData(trace).whole
        streams = [number for number, row in enumerate(shown.drawn) if row.kind == "stream"]
        assert window_view(shown, shown.whole, 300, streams, "category") == window_view(
            TimelineData(trace), shown.whole, 300, streams, "category"
        )


def test_a_dataset_that_does_not_fit_into_memory_shows_its_streams_and_says_so(both, monkeypatch):
    made, trace, _, _ = both
    monkeypatch.setattr(data, "LATER", 0)
    monkeypatch.setattr(data, "MOST_FOUND", 1000)
    widget = explore.timeline(llmprof.open(made.meta["dataset"]))
    shown = widget._data
    shown.find()
    assert shown.described()["found"]
    assert shown.missing.startswith(f"{sum(made.rows.get(name, 0) for name in TABLES):,} rows")
    streams = [number for number, row in enumerate(shown.drawn) if row.kind == "stream"]
    assert {row.note for row in shown.rows if row.kind not in ("stream", "counter")} == {
        data.NOT_LOADED
    }
    assert shown.frame("stream").height == TimelineData(trace).events.height
    widget.selection = {"row": streams[0], "id": int(shown.drawn[streams[0]].lanes[0].id[0])}
    assert widget.selected["name"][0] == shown.events["name"][int(widget.selection["id"])]
    assert describe_span(shown, streams[0], widget.selection["id"])["facts"][0][0] == "duration"
    assert not {"ops", "runtime", "markers"} & set(widget.trace._tables._loaded)
