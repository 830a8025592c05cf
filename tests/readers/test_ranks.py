"""Which rank a file is, and whether files belong to one run."""

import gzip
from contextlib import nullcontext

import pytest

import llmprof
from llmprof import analyze
from llmprof.errors import MixedRunsError, TraceWarning
from tests.readers.traces import kernel, launch, op, rank_file, text_of, write


def read(*paths):
    return llmprof.read(paths[0] if len(paths) == 1 else paths, cache=False)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.pt.trace.json", 3),
        ("rank-3.Apr_03_18_51_38.1102.pt.trace.json", 3),
        ("dp0_pp0_tp3_dcp0_ep0_rank3.1773709679453551615.pt.trace.json", 3),
        ("graph_capture_rank_3.1773709679453551615.pt.trace.json", 3),
        ("worker3_step_12.1694128201545.pt.trace.json", 3),
        ("host_worker3.1623143089861.pt.trace.json", 3),
        ("1773709679.45-TP-3.trace.json", 3),
        ("1773709679.45-TP-3-DP-0-PP-0.trace.json", 3),
        ("trace_8_rank_3.json", 3),
        ("trace.json", 0),
        ("franked7.json", 0),
        ("1773709679.45-TP-3-DP-0-PP-1.trace.json", 0),
    ],
)
def test_rank_from_the_name_where_the_file_says_none(tmp_path, name, rank):
    path = write(tmp_path / name, text_of([kernel()]))
    with (
        pytest.warns(TraceWarning, match=f"{rank} of {rank + 1} ranks ") if rank else nullcontext()
    ):
        assert read(path).ranks == [rank]


def test_what_the_file_says_comes_before_its_name(tmp_path):
    path = write(
        tmp_path / "rank7.json", text_of([kernel()], distributedInfo={"rank": 2, "world_size": 4})
    )
    with pytest.warns(TraceWarning, match="3 of 4 ranks are missing"):
        assert read(path).ranks == [2]


def test_files_that_say_no_rank_are_numbered_and_said(tmp_path):
    for name in ("a.json", "b.json"):
        write(tmp_path / name, text_of([kernel(name)]))
    with pytest.warns(
        TraceWarning, match=r"[ab]\.json does not state its rank; it is read as rank [01]"
    ):
        trace = read(tmp_path)
    assert trace.kernels.select("rank", "name").rows() == [(0, "a.json"), (1, "b.json")]


@pytest.mark.parametrize("copy", ["b.json", "b.json.gz", None])
def test_a_file_given_twice_is_not_two_ranks(tmp_path, copy):
    path = write(tmp_path / "a.json", text_of([kernel("x", 5), kernel("y", 9)]))
    other = path
    if copy:
        text = path.read_bytes()
        other = write(tmp_path / copy, gzip.compress(text) if copy.endswith("gz") else text)
    with pytest.raises(MixedRunsError, match="hold the same events"):
        read(path, other)


def test_missing_ranks_are_said(tmp_path):
    for rank in (0, 2):
        rank_file(tmp_path, rank, [kernel()], world=4)
    with pytest.warns(
        TraceWarning, match=r"2 of 4 ranks are missing \(1, 3\): waits for them cannot be seen"
    ):
        trace = read(tmp_path)
    assert trace.meta["missing_ranks"] == [1, 3]
    assert trace.meta["world_size"] == 4


def test_two_copies_of_one_rank(tmp_path):
    rank_file(tmp_path, 0, [kernel()], world=1)
    write(tmp_path / "copy.json", (tmp_path / "rank0.json").read_bytes())
    with pytest.raises(MixedRunsError) as caught:
        read(tmp_path)
    assert "copy.json and rank0.json both have rank 0" in str(caught.value)
    assert caught.value.facts["rank"] == 0
    assert [path.rpartition("/")[2] for path in caught.value.facts["files"]] == [
        "copy.json",
        "rank0.json",
    ]


def engine_file(folder, name, events, *, process, rank=0, world=1, base=1_000_000_000):
    """A file of an engine of its own, whose host side is a process."""
    host = {**op(ts=0, dur=5), "pid": process}
    distributed = {"backend": "nccl", "rank": rank, "world_size": world}
    return write(
        folder / name,
        text_of([host, *events], distributedInfo=distributed, baseTimeNanoseconds=base),
    )


def test_engines_side_by_side_are_replicas(tmp_path):
    """vLLM's data parallelism of a dense model: an engine a replica, and each calls its rank 0."""
    engine_file(tmp_path, "rank0.1.json", [kernel("late", ts=2)], process=300)
    engine_file(tmp_path, "rank0.2.json", [kernel("early", ts=1)], process=200)
    with pytest.warns(TraceWarning, match="ranks 0 to 1"):
        trace = read(tmp_path)
    assert trace.ranks == [0, 1]
    assert trace.kernels.select("rank", "name").sort("rank").rows() == [(0, "early"), (1, "late")]
    assert (trace.meta["world_size"], trace.meta["missing_ranks"]) == (2, [])
    assert [rank["rank_in_engine"] for rank in trace.meta["ranks"]] == [0, 0]


def test_engines_are_named_by_the_words_of_their_files(tmp_path):
    for process, (word, rank) in enumerate((("ctx", 0), ("gen", 0), ("gen", 1)), 200):
        work = [kernel(word, ts=1)]
        engine_file(tmp_path, f"{word}_rank{rank}.{process}.json", work, process=process, rank=rank)
    with pytest.warns(TraceWarning, match="beside each other"):
        trace = read(tmp_path)
    found = sorted((one["engine"], one["rank_in_engine"]) for one in trace.meta["ranks"])
    assert found == [("ctx", 0), ("gen", 0), ("gen", 1)]
    assert len(trace.ranks) == 3


def engines(tmp_path, *, processes=((10, 11), (10, 20, 21, 22)), later=7_000):
    """An engine that reads prompts on two ranks and one that decodes on four, on hosts of their
    own.
    """
    for name, numbers in zip(("prefill", "decode"), processes, strict=True):
        (tmp_path / name).mkdir()
        for rank, process in enumerate(numbers):
            sums = [
                kernel(
                    "ncclDevKernel_AllReduce",
                    ts=100 * i + 10 * rank,
                    dur=50 - 10 * rank,
                    **{
                        "Collective name": "allreduce",
                        "Process Group Name": "3",
                        "dtype": "Float",
                        "Process Group Ranks": str(list(range(len(numbers)))),
                        "Group size": len(numbers),
                    },
                )
                for i in range(3)
            ]
            engine_file(
                tmp_path / name,
                f"rank{rank}.json",
                sums,
                process=process,
                rank=rank,
                world=len(numbers),
                base=1_000_000_000 + later * (name == "decode"),
            )


def test_an_engine_for_prompts_and_one_that_decodes_are_one_trace(tmp_path):
    engines(tmp_path)
    with pytest.warns(
        TraceWarning, match=r"decode \(4 ranks\), prefill \(2 ranks\) .* ranks 0 to 5"
    ):
        trace = read(tmp_path)
    assert [(r["rank"], r["engine"], r["rank_in_engine"]) for r in trace.meta["ranks"]] == [
        *[(rank, "decode", rank) for rank in range(4)],
        (4, "prefill", 0),
        (5, "prefill", 1),
    ]
    assert (trace.meta["world_size"], trace.meta["missing_ranks"]) == (6, [])
    groups = trace.collectives.select("rank", "group", "group_ranks").unique().sort("rank").rows()
    assert groups[0] == (0, "3 (decode)", "[0, 1, 2, 3]")
    assert groups[5] == (5, "3 (prefill)", "[4, 5]")
    calls = llmprof.analyze.collectives(trace).group_by("call").agg("rank", "ranks")
    assert sorted(sorted(ranks) for ranks in calls["rank"]) == [[0, 1, 2, 3]] * 3 + [[4, 5]] * 3


def test_copies_of_an_engine_are_no_two_engines(tmp_path):
    engines(tmp_path, processes=((10, 11), (10, 11)), later=0)
    with pytest.raises(MixedRunsError, match="both have rank"):
        read(tmp_path)


def test_the_front_end_of_replicas_is_none_of_them(tmp_path):
    for process in (200, 300):
        engine_file(
            tmp_path, f"rank0.{process}.json", [kernel(str(process), ts=1)], process=process
        )
    write(tmp_path / "api.json", text_of([op(ts=0, dur=9)], baseTimeNanoseconds=1_000_000_000))
    with pytest.warns(TraceWarning, match="beside each other"):
        trace = read(tmp_path)
    assert [(one["rank"], one["file"]) for one in trace.meta["ranks"]] == [
        (-1, "api.json"),
        (0, "rank0.200.json"),
        (1, "rank0.300.json"),
    ]
    assert trace.meta["world_size"] == 2


def test_replicas_of_several_ranks_are_numbered_on(tmp_path):
    for process, rank in ((10, 0), (11, 1), (20, 0), (21, 1)):
        engine_file(
            tmp_path,
            f"{process}_rank{rank}.json",
            [kernel(str(process))],
            process=process,
            rank=rank,
            world=2,
        )
    with pytest.warns(TraceWarning, match=r"\(2 ranks\), .* \(2 ranks\)"):
        trace = read(tmp_path)
    rows = trace.kernels.select("rank", "name").sort("rank").rows()
    assert rows == [(0, "10"), (1, "11"), (2, "20"), (3, "21")]
    assert trace.meta["world_size"] == 4


@pytest.mark.parametrize(
    ("second", "process"),
    [
        (kernel(ts=1), 200),  # the same process: a copy
        (kernel(ts=9_000_000), 300),  # another process, but its recording goes on for 9 s after
    ],
)
def test_two_recordings_of_one_process_or_of_two_times_are_no_replicas(tmp_path, second, process):
    engine_file(tmp_path, "rank0.1.json", [kernel(ts=1)], process=200)
    base = 1_000_000_000 if process == 200 else 9_000_000_000
    engine_file(tmp_path, "rank0.2.json", [second], process=process, base=base)
    with pytest.raises(MixedRunsError, match="both have rank 0"):
        read(tmp_path)


@pytest.mark.parametrize("processes", [(20, 21), None])
def test_windows_of_one_process_are_one_rank(tmp_path, processes):
    """Their numbers may repeat; the time between them is none of the run's."""
    for rank in (0, 1):
        for name, begun in (("a", 0), ("b", 3_000_000_000 + 1000 * rank)):
            calls = [launch(ts=9 * i, correlation=i) for i in range(2)] if processes else []
            for call in calls:
                call["pid"] = processes[rank]
            work = [kernel(name, ts=5 + 9 * i, dur=3, correlation=i) for i in range(2)]
            text = text_of([*calls, *work], baseTimeNanoseconds=10**18 + begun)
            write(tmp_path / f"5.5-TP-{rank}-{name}.trace.json", text)
    with pytest.warns(TraceWarning, match="2 windows of one run"):
        trace = read(tmp_path)
    assert trace.ranks == [0, 1]
    assert trace.kernels.filter(rank=0)["name"].to_list() == ["a", "a", "b", "b"]
    assert trace.kernels.select("rank", "correlation").is_unique().all()
    assert trace.span_ns[1] < 100_000
    if processes:
        assert analyze.launch_delay(trace)["kernels"].sum() == 8


def test_ranks_that_wrote_over_each_other_are_told_and_get_no_cause(tmp_path):
    """Half of the file of one rank holds events of another process on another device."""
    events = []
    for i in range(40):
        other = i >= 25
        call = {**launch(ts=10 * i, correlation=i), "pid": 70 + other}
        events += [call, kernel(ts=10 * i + 5, correlation=i, device=3 * other)]
    path = rank_file(tmp_path, 0, events, world=1)
    with pytest.warns(TraceWarning, match="devices 0, 3 and processes 70, 71"):
        trace = read(path)
    assert trace.kernels["device"].unique().to_list() == [0]
    assert trace.runtime.height == trace.kernels.height == 25
    recorded = analyze.coverage(trace).filter(kind="recorded")
    assert recorded.select("count", "missing_count").row(0) == (40, 15)
    found = analyze.findings(trace)
    assert found["rule"][0] == "incomplete"
    assert set(found["severity"]) <= {"info", "low"}


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_documents_of_several_ranks_in_one_file(tmp_path, pack):
    """The second one's own head counts for its events."""
    texts = [
        text_of(
            [kernel(str(rank), ts=1), op(ts=2)],
            distributedInfo={"rank": rank, "world_size": 1 + rank},
            baseTimeNanoseconds=10**18 + 100 * rank,
        )
        for rank in (0, 1)
    ]
    trace = read(write(tmp_path / "both.json.gz", b"".join(map(pack, texts))))
    assert trace.kernels.select("rank", "name", "start_ns").rows() == [(0, "0", 0), (1, "1", 100)]
    assert trace.ops.height == 2
    assert trace.coverage["lost_bytes"] == 0


def test_ranks_of_runs_of_different_size(tmp_path):
    rank_file(tmp_path, 0, [kernel()], world=2)
    rank_file(tmp_path, 1, [kernel()], world=4)
    with pytest.raises(
        MixedRunsError, match=r"runs with different world sizes.*llmprof\.analyze\.diff"
    ):
        read(tmp_path)


def test_ranks_of_different_windows(tmp_path):
    rank_file(tmp_path, 0, [kernel(ts=0, dur=1000)])
    rank_file(tmp_path, 1, [kernel(ts=5_000_000, dur=1000)])
    with pytest.raises(
        MixedRunsError,
        match=r"rank1\.json begins 4\.999 s after rank0\.json ended.*different runs or",
    ):
        read(tmp_path)


def test_ranks_that_overlap_in_a_chain_belong_together(tmp_path):
    for rank, (start, dur) in enumerate([(0, 100), (50, 100), (140, 100)]):
        rank_file(tmp_path, rank, [kernel(ts=start, dur=dur)], world=3)
    assert read(tmp_path).ranks == [0, 1, 2]


@pytest.mark.parametrize(
    "keys", [{}, {"distributedInfo": {}}, {"distributedInfo": {"backend": "nccl"}}]
)
def test_a_file_without_a_device_beside_workers_is_a_front_end(tmp_path, keys):
    for rank in (0, 1):
        rank_file(tmp_path, rank, [kernel(), op()])
    write(tmp_path / "front.async_llm.json", text_of([op("scheduler", 500_000_000)], **keys))
    trace = read(tmp_path)
    assert trace.ranks == [-1, 0, 1]
    assert trace.ops.filter(rank=-1)["name"].to_list() == ["scheduler"]
    assert trace.meta["world_size"] == 2


def test_metadata_of_the_run(tmp_path):
    groups = [{"pg_name": "0", "ranks": [0, 1], "pg_desc": "tp"}]
    for rank in (0, 1):
        info = {"backend": "nccl", "rank": rank, "world_size": 2, "pg_config": groups}
        keys = {"distributedInfo": info, "deviceProperties": [{"name": "GPU B"}]}
        keys |= {"record_shapes": 1, "cupti_version": 24}
        write(tmp_path / f"rank{rank}.json", text_of([kernel()], **keys))
    meta = read(tmp_path).meta
    assert meta["device"] == "GPU B"
    assert meta["versions"] == {"cupti_version": 24}
    assert meta["options"] == {"record_shapes": True}
    assert (meta["ranks"][1]["groups"], meta["ranks"][1]["group_descriptions"]) == (
        {"0": [0, 1]},
        {"0": "tp"},
    )
    assert meta["ranks"][1]["backend"] == "nccl"
    assert meta["ranks"][1]["file"] == "rank1.json"
