"""Files that tools merged out of those of several ranks."""

import json

import pytest

import llmprof
from llmprof.readers.chrome import reader
from tests.readers.traces import event, kernel, launch, op, same, text_of, write


def by_sglang(events, label):
    """As SGLang's merger writes the events of a rank."""
    return [e | {"pid": f"[{label}] {e['pid']}"} for e in events]


def by_tracelens(events, rank):
    """As TraceFusion writes the events of a rank."""
    return [
        e
        | {
            "pid": e["pid"] + 10_000 * rank,
            "args": {**e.get("args", {}), "rank": rank, "pid_raw": e["pid"]},
        }
        for e in events
    ]


def of_rank(rank):
    return [
        op(ts=10 + rank),
        launch(ts=11 + rank, correlation=5),
        kernel(f"k{rank}", 20 + rank, correlation=5),
        {"ph": "f", "id": 5, "pid": 0, "tid": 7, "ts": 20, "cat": "ac2g", "name": "ac2g"},
        {"ph": "M", "name": "process_name", "pid": 100, "tid": 0, "args": {"name": "python3"}},
    ]


@pytest.mark.parametrize("block_bytes", [200, 1 << 20])
@pytest.mark.parametrize(
    "merge",
    [
        lambda rank: by_sglang(of_rank(rank), f"TP0{rank}"),
        lambda rank: by_tracelens(of_rank(rank), rank),
    ],
)
def test_a_merged_file_gives_every_rank(tmp_path, merge, block_bytes):
    keys = {
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
        "baseTimeNanoseconds": 1_790_857_026_000_000_000,
    }
    path = write(tmp_path / "merged.json", text_of([*merge(0), *merge(1)], **keys))
    parts = reader.read(path, block_bytes=block_bytes)
    assert [part.rank for part in parts] == [0, 1]
    assert [part.tables["kernels"]["name"].to_list() for part in parts] == [["k0"], ["k1"]]
    assert sum(part.coverage["events"] for part in parts) == 10
    assert all(set(part.tables) == {"kernels", "runtime", "ops"} for part in parts)
    trace = llmprof.read(path, cache=False)
    assert trace.kernels.select(
        "rank", "name", "start_ns", "correlation", "device", "stream"
    ).rows() == [
        (0, "k0", 10_000, 5, 0, 7),
        (1, "k1", 11_000, 5, 0, 7),
    ]
    assert trace.meta["world_size"] == 2
    assert trace.meta["missing_ranks"] == []
    assert trace.coverage["events"] == 10


def test_a_merged_file_is_as_the_files_it_was_made_of(tmp_path):
    for rank in (0, 1):
        distributed = {"rank": rank, "world_size": 2}
        write(tmp_path / f"r{rank}.json", text_of(of_rank(rank), distributedInfo=distributed))
    merged = write(
        tmp_path / "merged.json",
        text_of([e for r in (0, 1) for e in by_sglang(of_rank(r), f"TP{r:02}")]),
    )
    one = llmprof.read(merged, cache=False)
    two = llmprof.read([tmp_path / "r0.json", tmp_path / "r1.json"], cache=False)
    assert same(one.tables, two.tables)


@pytest.mark.parametrize(
    ("labels", "ranks"),
    [
        (["TP01", "TP00"], {"TP00": 0, "TP01": 1}),
        (["TP03", "TP01"], {"TP01": 1, "TP03": 3}),
        (["10", "9"], {"9": 9, "10": 10}),
        (
            ["TP00-PP01", "TP01-PP00", "TP00-PP00", "TP01-PP01"],
            {"TP00-PP00": 0, "TP01-PP00": 1, "TP00-PP01": 2, "TP01-PP01": 3},
        ),
        (["TP00-DP01", "TP00-DP00"], {"TP00-DP00": 0, "TP00-DP01": 1}),
    ],
)
def test_ranks_of_labels(labels, ranks):
    assert reader.rank_numbers(labels) == ranks


def test_what_was_lost_of_the_file_is_told_once(tmp_path):
    text = text_of([e for r in (0, 1) for e in by_sglang(of_rank(r), f"TP0{r}")])
    path = write(tmp_path / "merged.json", text[:-20])
    with pytest.warns(
        llmprof.errors.TraceWarning, match="the file ends inside the list of events"
    ) as caught:
        trace = llmprof.read(path, cache=False)
    assert len([w for w in caught if "ends inside" in str(w.message)]) == 1
    assert trace.coverage["lost_pieces"] == 1


def test_names_with_brackets_are_no_labels(tmp_path):
    events = [
        event("cpu_op", "[TP00] x", pid="[worker] 3"),
        event("cpu_op", "y", pid=3, args={"rank": 1}),
    ]
    parts = reader.read(write(tmp_path / "plain.json", json.dumps(events).encode()))
    assert len(parts) == 1
    assert parts[0].tables["ops"].height == 2
