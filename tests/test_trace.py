import contextlib
import json
import shutil

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from llmprof.errors import AnalysisError, LlmprofError, NotCapturedError, OutputError, ReadError
from llmprof.report import cards
from llmprof.trace import META_FILE, Trace, schema
from llmprof.trace.storage import parquet
from llmprof.trace.trace import open_saved
from tests.building import table_of


def kernels(*rows):
    return table_of("rank start_ns dur_ns name", rows)


@pytest.fixture
def trace():
    counters = pl.DataFrame(
        {"rank": [1, 1], "time_ns": [5, 50], "name": ["power"] * 2, "value": [300.0, 310.0]}
    )
    return Trace(
        {
            "kernels": kernels((0, 10, 20, "a"), (0, 40, 5, "b"), (1, 0, 100, "c")).with_columns(
                nsys_shim=pl.lit(1)
            ),
            "copies": schema.empty("copies"),
            "counters": counters,
        },
        {"device": "H200", "world_size": 2, "ranks": [{"rank": 0}, {"rank": 1}]},
        {"events": 3},
    )


def same(a, b):
    assert list(a.tables) == list(b.tables)
    for name, frame in a.tables.items():
        assert_frame_equal(frame, b.table(name))
    assert (a.meta, a.coverage) == (b.meta, b.coverage)


def test_recorded_but_none_is_an_empty_frame_and_not_recorded_an_error_that_names_the_option(trace):
    assert trace.copies.height == 0
    assert trace.copies.schema == schema.TABLES["copies"].schema
    with pytest.raises(NotCapturedError, match=r"holds no memory.*profile_memory=True") as caught:
        _ = trace.memory
    assert caught.value.facts == {"table": "memory"}


def test_ranks_span_and_tables(trace):
    runtime = kernels((-1, 0, 1, "x"), (0, 0, 1, "y")).with_columns(api=pl.lit("runtime"))
    assert Trace({"kernels": kernels((2, 0, 1, "a")), "runtime": runtime}).ranks == [-1, 0, 2]
    assert Trace({}).ranks == []
    assert trace.span_ns == (0, 100)
    assert Trace({}).span_ns == (0, 0)
    assert Trace({"kernels": kernels((0, 5, 95, "long"), (0, 50, 1, "short"))}).span_ns == (5, 100)
    with pytest.raises(LlmprofError, match=r"unknown tables kernel"):
        Trace({"kernel": pl.DataFrame()})
    with pytest.raises(LlmprofError, match="no table 'kernel'"):
        trace.table("kernel")


def test_select_ranks_and_a_window(trace):
    assert trace.select(rank=0).kernels["name"].to_list() == ["a", "b"]
    assert trace.select(rank=[1]).kernels["name"].to_list() == ["c"]
    with pytest.raises(AnalysisError, match=r"ranks 7 are not in the trace; expected some of 0, 1"):
        trace.select(rank=7)
    assert trace.select(rank=0).counters.height == 0
    assert trace.select(window=(10, 40)).kernels["name"].to_list() == ["a"]
    assert trace.select(window=(0, 41)).kernels["name"].to_list() == ["a", "b", "c"]
    assert trace.select(window=(0, 50)).counters["time_ns"].to_list() == [5]
    part = trace.select(rank=0, window=(0, 20))
    assert part.kernels["name"].to_list() == ["a"]
    assert part.meta == trace.meta
    with pytest.raises(NotCapturedError):
        _ = part.memory
    assert trace.kernels.height == 3


def test_round_trip(trace, tmp_path):
    folder = trace.save(tmp_path / "deep" / "run")
    assert folder == tmp_path / "deep" / "run"
    same(open_saved(folder), trace)
    with pytest.raises(NotCapturedError):
        _ = open_saved(folder).memory
    assert sorted(p.name for p in folder.iterdir()) == [
        "copies.parquet",
        "counters.parquet",
        "kernels.parquet",
        "llmprof.json",
    ]


def test_a_saved_trace_is_replaced_as_a_whole(trace, tmp_path):
    folder = trace.save(tmp_path / "run")
    smaller = Trace({"kernels": kernels((5, 0, 1, "z"))})
    smaller.save(folder)
    same(open_saved(folder), smaller)
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_an_empty_folder_and_a_link_to_a_saved_trace_are_filled(trace, tmp_path):
    (tmp_path / "empty").mkdir()
    same(open_saved(trace.save(tmp_path / "empty")), trace)
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    Trace({}).save(tmp_path / "link")
    same(open_saved(tmp_path / "empty"), Trace({}))
    assert (tmp_path / "link").is_symlink()


def test_what_somebody_else_wrote_is_left_alone(trace, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="is not a saved trace"):
        trace.save(tmp_path)
    with pytest.raises(OutputError, match="is not a folder"):
        trace.save(tmp_path / "notes.txt")
    folder = trace.save(tmp_path / "run")
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"other files: notes\.txt"):
        Trace({}).save(folder)
    assert (folder / "notes.txt").read_text() == "mine"
    same(open_saved(folder), trace)


def test_a_folder_that_cannot_be_written_is_said_so(trace, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write to"):
        trace.save(tmp_path / "file" / "run")
    with pytest.raises(OutputError, match="cannot write to"):
        trace.save(tmp_path / "file" / "deep" / "run")


@pytest.mark.parametrize("fails_at", ["write", "move"])
def test_a_save_that_fails_leaves_the_old_trace_and_nothing_else(
    trace, tmp_path, monkeypatch, fails_at
):
    folder = trace.save(tmp_path / "run")

    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    if fails_at == "write":
        monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    else:
        move = parquet.Path.replace
        monkeypatch.setattr(
            parquet.Path,
            "replace",
            lambda a, b: full() if b == folder and not a.name.endswith("-old") else move(a, b),
        )
    with pytest.raises(OutputError, match="No space left on device"):
        Trace({}, {"new": True}).save(folder) if fails_at == "move" else trace.save(folder)
    monkeypatch.undo()
    same(open_saved(folder), trace)
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_metadata_that_json_cannot_hold_is_refused_before_anything_is_there(trace, tmp_path):
    trace = Trace(trace.tables, trace.meta | {"when": object()})
    with pytest.raises(OutputError, match="expected JSON types"):
        trace.save(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (None, "holds no saved trace"),
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ('{"schema": 0}', "schema 0.*expected schema 2.*read the profiler's own file again"),
        ('{"schema": 2}', "is damaged"),
    ],
)
def test_a_head_that_is_not_ours_is_said_so(tmp_path, head, message):
    if head is not None:
        (tmp_path / META_FILE).write_text(head)
    with pytest.raises(ReadError, match=message):
        open_saved(tmp_path)


def test_a_damaged_or_missing_table_is_not_taken_for_one_that_was_not_recorded(trace, tmp_path):
    whole = trace.save(tmp_path / "whole")
    for damage in ("missing", "cut", "foreign", "short"):
        folder = tmp_path / damage
        shutil.copytree(whole, folder)
        file = folder / "kernels.parquet"
        if damage == "missing":
            file.unlink()
        elif damage == "cut":
            file.write_bytes(file.read_bytes()[:-20])
        elif damage == "foreign":
            pl.DataFrame({"x": [1]}).write_parquet(file)
        else:
            pl.read_parquet(file).head(1).write_parquet(file)
        with pytest.raises(ReadError, match="kernels"):
            open_saved(folder)


def test_a_saved_table_that_the_head_does_not_name_is_damage(tmp_path, sample_trace):
    folder = sample_trace("torch_transformers_generate").save(tmp_path / "s")
    head = json.loads((folder / "llmprof.json").read_text())
    del head["checksum"]
    head["tables"]["kernel"] = head["tables"].pop("kernels")
    parquet.write_head(folder, head)
    with pytest.raises(ReadError, match="is damaged"):
        open_saved(folder)
    del head["tables"]["kernel"]
    parquet.write_head(folder, head)
    with pytest.raises(ReadError, match=r"does not name kernels\.parquet"):
        open_saved(folder)


def _places(value, path=()):
    """Paths of all the values in a value of JSON."""
    yield path
    for key, inner in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield from _places(inner, (*path, key))


def _replaced(value, path, new):
    if not path:
        return new
    copied = value.copy()
    copied[path[0]] = _replaced(value[path[0]], path[1:], new)
    return copied


@pytest.mark.parametrize("wrong", ["x", -1.5, [1], {"a": [None]}, None, True, [{"rank": "0"}]])
def test_wrong_types_in_the_metadata_of_a_saved_trace_are_refused_or_do_no_harm(tmp_path, wrong):
    of_file = {
        "rank": 0,
        "file": "a",
        "events": 3,
        "kept": 2,
        "skipped": {"flow": 1},
        "bytes": 9,
        "lost_bytes": 1,
    }
    coverage = {
        "files": [of_file],
        "warnings": ["w"],
        "events": 3,
        "kept": 2,
        "lost_bytes": 1,
        "lost_pieces": 1,
    }
    ranks = [{"rank": 0, "devices": ["d"], "groups": {"g": [0]}, "file": "a", "backend": "nccl"}]
    meta = {
        "ranks": ranks,
        "device": "d",
        "versions": {"a": "1"},
        "world_size": 2,
        "missing_ranks": [1],
        "format": "f",
    }
    folder = tmp_path / "saved"
    Trace({"memory": schema.empty("memory")}, meta, coverage).save(folder)
    head = json.loads((folder / META_FILE).read_text())
    del head["checksum"]
    for path in _places({"meta": head["meta"], "coverage": head["coverage"]}):
        if path:
            parquet.write_head(folder, _replaced(head, path, wrong))
            with contextlib.suppress(LlmprofError):
                read = open_saved(folder)
                assert [
                    *cards.files_read(read),
                    *cards.trace_reading(read),
                    cards.headline(read),
                    repr(read),
                    read.capture.asked,
                ]
                assert [*cards.trace_facts(read), *cards.warnings(read)]
