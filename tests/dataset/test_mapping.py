"""Analyses on workers: the same frame as of the whole trace, for each analysis in the catalogue."""

import pickle

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import llmprof
from llmprof import analyze, names
from llmprof.analyze import catalog
from llmprof.errors import AnalysisError, LlmprofError, NotCapturedError
from llmprof.report.dataset import cluster, map_several, mapping
from tests.dataset.files import run_folder


@pytest.fixture
def run(tmp_path):
    return run_folder(tmp_path / "run", rank1=150)


@pytest.mark.parametrize(
    "sample", ["torch_ep2_dp2_eager", pytest.param("nsys_tp2_cudagraph", marks=pytest.mark.slow)]
)
def test_analyses_on_workers_are_those_of_the_whole_trace(sample, sample_trace, tmp_path):
    many = llmprof.convert(
        llmprof.readers.bundled.sample_files(sample), tmp_path / "many", client=False
    )
    expected, absent = {}, {}
    for one in catalog.analyses():
        if not one.needs:
            try:
                expected[one.name] = one.function(sample_trace(sample), **one.options)
            except NotCapturedError as error:
                absent[one.name] = error.facts["table"]
    assert len(expected) >= 35
    asked = {name: catalog.analysis(name).options for name in expected}
    found = map_several(asked, llmprof.open(many.meta["dataset"]), client=False)
    for name, frame in expected.items():
        assert_frame_equal(found[name], frame)
    for name, table in absent.items():
        with pytest.raises(NotCapturedError) as raised:
            llmprof.map(name, many, client=False, **catalog.analysis(name).options)
        assert raised.value.facts["table"] == table, name


def test_options_are_checked_of_a_trace_and_of_a_dataset(run, tmp_path):
    many = llmprof.convert(run, tmp_path / "many", client=False)
    for trace in (llmprof.read(run), many):
        with pytest.raises(AnalysisError, match="no column 'nope'"):
            llmprof.map("layers", trace, client=False, by="nope")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("layers", {"stages": True}),
        ("overlap", {"by": ("rank", "stage")}),
        ("overlap", {"by": ("step", "rank")}),
        ("overlap", {"by": ("rank", "step"), "waits": True}),
        ("idle", {"min_ns": 50_000}),
        ("layer_gaps", {"stage": "all_reduce"}),
        ("kernels", {"by": ("layer",)}),
        ("findings", {"step": 1}),
    ],
)
def test_options_are_those_of_the_analysis(name, options, tmp_path):
    many = llmprof.convert(run_folder(tmp_path / "run", rank1=150), tmp_path / "out", client=False)
    function = catalog.analysis(name).function
    assert_frame_equal(
        llmprof.map(function, many, client=False, **options), function(many, **options)
    )


def test_several_read_each_rank_once(run, tmp_path, monkeypatch):
    many = llmprof.convert(run, tmp_path / "out", client=False)
    asked = []
    real = mapping._of_rank
    monkeypatch.setattr(
        mapping, "_of_rank", lambda thing, *rest: asked.append(thing) or real(thing, *rest)
    )
    found = map_several({"overlap": {}, "collectives": {}, "steps": {}}, many, client=False)
    assert [rank for rank, _ in asked] == [0, 1, 2]
    whole = llmprof.read(run, cache=False)
    assert_frame_equal(found["overlap"], analyze.overlap(whole))
    assert_frame_equal(found["collectives"], analyze.collectives(whole))
    assert_frame_equal(found["steps"], analyze.steps(whole))


def test_a_part_of_a_dataset_is_analysed_as_such(run, tmp_path):
    many = llmprof.convert(run, tmp_path / "out", client=False)
    whole = llmprof.read(run, cache=False)
    window = (1_000_000, 3_000_000)
    part = many.select(rank=[0, 2], window=window)
    assert_frame_equal(
        llmprof.map("overlap", part, client=False),
        analyze.overlap(whole.select(rank=[0, 2], window=window)),
    )
    with pytest.raises(
        NotCapturedError, match=r"holds no kernels, copies or operators|read without"
    ):
        llmprof.map("overlap", many.select(tables=["markers"]), client=False)


def test_a_trace_that_was_read_is_analysed_here(sample_trace):
    trace = sample_trace("torch_pp2_eager")
    assert_frame_equal(llmprof.map("overlap", trace), analyze.overlap(trace))
    with pytest.raises(LlmprofError, match=r"there is no analysis 'speed'"):
        llmprof.map("speed", trace)


def test_workers_know_the_names_that_were_registered(run, tmp_path, monkeypatch):
    monkeypatch.setattr(names, "KERNEL_PATTERNS", list(names.KERNEL_PATTERNS))
    many = llmprof.convert(run, tmp_path / "out", client=False)
    names.register("attention", "^gemm_bf16")
    view = mapping._Work(many, mapping.Workers(None), None).view
    assert view.patterns == (("attention", "^gemm_bf16"),)
    assert pickle.loads(pickle.dumps(view)) == view
    events = llmprof.map("events", many, client=False)
    assert events.filter(pl.col("name").str.starts_with("gemm"))["category"].unique().to_list() == [
        "attention"
    ]


def test_threads_of_a_cluster_do_the_same(run, tmp_path):
    pytest.importorskip("dask.distributed")
    told = []
    with cluster.local(2, processes=False) as client:
        many = llmprof.convert(
            run, tmp_path / "out", client=client, progress=lambda *words: told.append(words)
        )
        found = llmprof.map(
            "findings", many, client=client, progress=lambda *words: told.append(words)
        )
        by_address = llmprof.map("collectives", many, client=client.scheduler.address)
    whole = llmprof.read(run, cache=False)
    assert_frame_equal(found, analyze.findings(whole))
    assert_frame_equal(by_address, analyze.collectives(whole))
    assert told[0] == ("converting files", 0, 3)
    assert ("analysing 3 ranks", 3, 3) in told
