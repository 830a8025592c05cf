"""``llmprof.read``: files, folders and ranks; bad input gets a clear error or a stated loss."""

import gzip
import json
import shutil
from statistics import median

import pytest
import yaml

import llmprof
from llmprof import analyze
from llmprof.errors import (
    MixedRunsError,
    NotCapturedError,
    ReadError,
    TraceWarning,
    UnknownFormatError,
)
from llmprof.readers import saved
from tests.readers.traces import event, kernel, launch, op, rank_file, text_of, write


def read(*paths, **options):
    return llmprof.read(paths[0] if len(paths) == 1 else paths, cache=False, **options)


def test_a_folder_of_ranks_and_a_list_of_them(tmp_path):
    files = [rank_file(tmp_path, rank, [kernel(f"k{rank}", 5 + rank)]) for rank in (0, 1)]
    for trace in (
        read(tmp_path),
        read(*files),
        read(*reversed(files)),
        llmprof.read(iter(files), cache=False),
    ):
        assert trace.kernels.select("rank", "name", "start_ns").rows() == [
            (0, "k0", 0),
            (1, "k1", 1000),
        ]
        assert trace.meta["world_size"] == 2
        assert [r["rank"] for r in sorted(trace.meta["ranks"], key=lambda r: r["rank"])] == [0, 1]


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    rank_file(tmp_path, 0, [kernel("k0")], world=1)
    write(tmp_path / "notes.txt", b"these are notes")
    write(tmp_path / "config.json", b'{"a": 1}')
    write(tmp_path / "empty.json", b"")
    write(tmp_path / "table.parquet", b"PAR1")
    assert read(tmp_path).kernels.height == 1


def test_ranks_come_on_one_clock_from_the_earliest_event(tmp_path):
    base = 1_790_857_026_000_000_000
    rank_file(tmp_path, 0, [kernel("a", 1000.5, 100)], baseTimeNanoseconds=base)
    rank_file(tmp_path, 1, [kernel("b", 0.25, 100)], baseTimeNanoseconds=base + 1_000_000)
    trace = read(tmp_path)
    assert dict(trace.kernels.select("name", "start_ns").rows()) == {"a": 250, "b": 0}
    assert trace.meta["start_epoch_ns"] == base + 1_000_250
    assert trace.meta["clock"] == "epoch"
    rank_file(tmp_path, 0, [kernel("a", 5)], baseTimeNanoseconds=1_790_857_026_000_000_000)
    rank_file(tmp_path, 1, [kernel("b", 5)])
    with pytest.raises(MixedRunsError, match="baseTimeNanoseconds"):
        read(tmp_path)


def test_no_path_and_paths_without_a_trace(tmp_path):
    with pytest.raises(ReadError, match="no files given"):
        llmprof.read([])
    with pytest.raises(ReadError, match=r"nothing\.json does not exist; check the path"):
        read(tmp_path / "nothing.json")
    write(tmp_path / "notes.txt", b"these are notes")
    with pytest.raises(ReadError, match=r"has no trace .*looked at 1 file"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n\t ", "has no content"),
        (gzip.compress(b"", mtime=0), "has no content"),
        (b"just some text\n", "begins with “just some text"),
        (
            b'{"name": "x", "version": 3}',
            'is JSON without "traceEvents"; its first keys are name, version',
        ),
        (b"[1, 2, 3]", "is a JSON list, but not of events"),
        (b'[{"a": 1}, {"b": 2}]', "is a JSON list, but not of events; its first keys are a, b"),
        (b'"traceEvents"', "begins with"),
        (b"\x7fELF\x02\x01", "is a program"),
        (b"PK\x03\x04rest", "is a zip archive"),
        (b"(\xb5/\xfdrest", "is a zstd archive"),
        (b"\x00\x01\x02\x03", "is a binary file"),
        (json.dumps([kernel()]).encode("utf-16"), "is UTF-16 text"),
        (
            gzip.compress(gzip.compress(text_of([kernel()]), mtime=0), mtime=0),
            "is gzip inside gzip",
        ),
        (b"name,value\n1,2\n", "begins with"),
    ],
)
def test_what_is_no_trace_is_named(tmp_path, content, message):
    path = write(tmp_path / "trace.json", content)
    with pytest.raises(ReadError) as caught:
        read(path)
    assert message in str(caught.value)
    assert "trace.json" in str(caught.value)
    assert caught.value.expected or caught.value.hint


def test_a_format_by_name(tmp_path):
    path = write(tmp_path / "trace.json", text_of([kernel()]))
    assert read(path, format="chrome").kernels.height == 1
    with pytest.raises(UnknownFormatError, match="there is no format 'json'"):
        read(path, format="json")
    with pytest.raises(
        UnknownFormatError, match=r"text\.json is not a Chrome trace: it begins with “just text”"
    ):
        read(write(tmp_path / "text.json", b"just text"), format="chrome")
    with pytest.raises(ReadError, match="holds no saved trace"):
        read(path, format="llmprof")


def test_what_is_larger_than_what_is_sniffed(tmp_path):
    big = {"args": {"x": "y" * 200_000, "list": [1, [2]]}, **kernel("a")}
    assert read(write(tmp_path / "trace.json", json.dumps([big]).encode())).kernels.height == 1
    text = text_of(
        [kernel("a")], stackFrames={str(i): {"name": "x" * 50, "parent": i} for i in range(20_000)}
    )
    assert len(text) > 1_500_000
    assert read(write(tmp_path / "trace.json", text)).kernels.height == 1


@pytest.mark.parametrize("text", [b'{"traceEvents": []}', b"[]", b"[ ]\n"])
def test_no_events_is_said(tmp_path, text):
    with pytest.warns(
        TraceWarning, match=r"trace\.json has no event: was the profiler ever active\?"
    ):
        trace = read(write(tmp_path / "trace.json", text))
    assert trace.tables == {}
    with pytest.raises(NotCapturedError, match="this capture holds no kernels"):
        _ = trace.kernels


def test_events_of_which_none_is_of_use(tmp_path):
    flow = {"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 1, "cat": "ac2g", "name": "ac2g"}
    with pytest.warns(TraceWarning, match="none of its 1 events belongs to a table"):
        read(write(tmp_path / "trace.json", text_of([flow])))
    with pytest.warns(TraceWarning, match="kernel launches but no kernels"):
        read(write(tmp_path / "trace.json", text_of([op(), launch()])))


@pytest.mark.parametrize(
    "keys",
    [{"deviceProperties": [{"id": 0, "name": "GPU"}]}, {"distributedInfo": {"backend": "nccl"}}],
)
def test_a_run_on_a_device_without_device_events_names_the_option(tmp_path, keys):
    with pytest.warns(TraceWarning, match=r"no device events: .*ProfilerActivity\.CUDA"):
        trace = read(write(tmp_path / "trace.json", text_of([op()], **keys)))
    with pytest.raises(
        NotCapturedError, match=r"holds no kernels; record it with .*ProfilerActivity\.CUDA"
    ):
        _ = trace.kernels


def test_recorded_but_none_is_an_empty_table_and_not_recorded_names_the_option(tmp_path):
    trace = read(write(tmp_path / "trace.json", text_of([kernel()])))
    with pytest.raises(NotCapturedError, match=r"ProfilerActivity\.CPU"):
        _ = trace.ops
    with pytest.raises(NotCapturedError, match="profile_memory=True"):
        _ = trace.memory
    trace = read(write(tmp_path / "trace.json", text_of([kernel(), op()])))
    assert trace.copies.height == trace.collectives.height == trace.markers.height == 0


def test_losses_are_warned_of_and_kept(tmp_path):
    path = write(tmp_path / "trace.json", text_of([kernel("a"), kernel("b")])[:-30])
    with pytest.warns(
        TraceWarning,
        match=r"the file ends inside the list of events; .* bytes .about 1 event.* were lost",
    ):
        trace = read(path)
    assert trace.kernels["name"].to_list() == ["a"]
    assert trace.coverage["lost_pieces"] == 1
    assert trace.coverage["lost_bytes"] > 0
    assert len(trace.coverage["warnings"]) == 1
    path = write(tmp_path / "trace.json", text_of([kernel("a")])[:-2])
    with pytest.warns(TraceWarning) as caught:
        llmprof.read(path, cache=False)
    assert caught[0].filename == __file__


def test_numbers_that_do_not_fit_the_schema_are_left_out(tmp_path):
    events = [
        kernel("a", grid=[2**40, 1, 1], device=2**40, **{"shared memory": 1e300}),
        event("gpu_memcpy", "Memcpy HtoD", args={"bytes": 1e300, "device": -7}),
        event("gpu_user_annotation", "range", pid=783658),
        {
            "ph": "i",
            "name": "[memory]",
            "pid": 1,
            "ts": 2,
            "args": {"Bytes": 2**80, "Addr": 2**80, "Device Type": 1},
        },
    ]
    trace = read(write(tmp_path / "trace.json", text_of(events)))
    assert trace.kernels.select("name", "grid_x", "device").rows() == [("a", None, None)]
    assert trace.copies.select("bytes", "device").rows() == [(None, None)]
    assert trace.markers["device"].to_list() == [None]
    assert trace.memory["bytes"].to_list() == [None]


def test_python_functions(tmp_path):
    path = write(tmp_path / "trace.json", text_of([op(), event("python_function", "f")]))
    assert sorted(read(path).ops["name"]) == ["aten::mm", "f"]
    assert read(path, python_functions=False).ops["name"].to_list() == ["aten::mm"]


def test_the_folder_of_a_run_is_its_timeline(root, tmp_path):
    run = root / "sample_traces" / "run_torch_tp1"
    assert llmprof.read(run).kernels.equals(llmprof.read(run / "traces").kernels)
    for name in ("state.json", "config.yaml"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(NotCapturedError, match="has no timeline; run it in mode torch"):
        llmprof.read(tmp_path)


def test_the_trace_of_a_run_knows_its_model(root, tmp_path):
    run = root / "sample_traces" / "run_torch_tp1"
    for name in ("state.json", "config.yaml"):
        shutil.copy(run / name, tmp_path)
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert saved.run_model(run)["config"]["num_hidden_layers"] == 28
    assert saved.run_model(tmp_path)["config"] == "Qwen2.5-7B"  # without its config.json
    told = {"enable-expert-parallel": True, "kv_cache_dtype": "fp8"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config | {"engine_args": told}))
    found = saved.run_model(tmp_path)
    assert (found["expert_parallel"], found["kv_cache_dtype"]) == (True, "fp8")
    for odd in ({"engine_args": {"quantization": "fp8"}}, {"model": None}):
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(config | odd))
        assert saved.run_model(tmp_path) == {}
    # a server that was recorded: its own configuration counts, and none is as good as any
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    of_vllm = {"model_config": {"dtype": "bfloat16"}, "cache_config": {"cache_dtype": "fp8"}}
    parallel = {"parallel_config": {"enable_expert_parallel": True}}
    of_sglang = {"json_model_override_args": "{}", "ep_size": 4}
    for told_by, said, expected in (
        ("/server_info", of_vllm, (None, "fp8")),
        ("/server_info", of_vllm | parallel, (True, "fp8")),
        ("/get_server_info", of_sglang, (True, None)),
        ("its process", {}, (None, None)),
        ("/v1/models", {}, None),
        ("its process", {"config": "server.yaml"}, None),
        ("/server_info", of_vllm | {"model_config": {"quantization": "fp8"}}, None),
        ("/get_server_info", of_sglang | {"speculative_algorithm": "EAGLE"}, None),
    ):
        (tmp_path / "recording.json").write_text(json.dumps({"told_by": [told_by], "config": said}))
        found = saved.run_model(tmp_path)
        assert (
            (found.get("expert_parallel"), found.get("kv_cache_dtype")) if found else None
        ) == expected


def test_a_plain_step_is_one_in_which_no_prompt_is_read(root, tmp_path):
    """Tokens come every 4 ms. The second prompt arrives at 20 ms and is read from 22 to 38 ms, which
    gives the tokens of the first request at 28 and 38 ms; only the mean of the second one is known.
    """
    ms = 1_000_000
    run = shutil.copytree(root / "sample_traces" / "run_torch_tp1", tmp_path / "run")
    gaps = [0.004, 0.004, 0.010, 0.010, 0.004, 0.004, 0.005]
    first = {"start_ns": 10**18, "ttft_s": 0.010, "itl_s": gaps, "tpot_s": 0.0058}
    second = {"start_ns": 10**18 + 20 * ms, "queue_s": 0.002, "ttft_s": 0.018, "output_tokens": 4}

    def measured(*requests):
        rows = [
            row | {"phase": phase, "repeat": 0}
            for phase in ("plain", "profiled")
            for row in requests
        ]
        (run / "worker.json").write_text(json.dumps({"requests": rows}))
        return llmprof.read(run).meta.get("without_profiler", {}).get("plain_ns")

    assert measured(first, second | {"tpot_s": 0.0042}) == pytest.approx(4 * ms)
    assert measured(first | {"itl_s": None, "output_tokens": 8}, second) is None
    assert measured(
        first | {"itl_s": None, "output_tokens": 8}, second | {"tpot_s": 0.0042}
    ) == pytest.approx(4.2 * ms)


@pytest.mark.parametrize(
    "worker", ["", "[]", '{"requests": [{"phase": "plain"}]}', '{"requests": 1}', None]
)
def test_the_trace_of_a_run_knows_the_time_without_the_profiler(root, tmp_path, worker):
    run = root / "sample_traces" / "run_torch_tp1"
    rows = json.loads((run / "worker.json").read_text())["requests"]
    repeats = [
        [row["tpot_s"] for row in rows if (row["phase"], row["repeat"]) == ("plain", repeat)]
        for repeat in range(3)
    ]
    repeats[1] = repeats[1][2:]  # the first two decode while the prompts of the others are read
    medians = [1e9 * median(times) for times in repeats]
    measured = llmprof.read(run).meta["without_profiler"]
    assert measured["repeats_ns"] == pytest.approx(medians)
    assert measured["plain_ns"] == pytest.approx(median(medians))
    assert "without_profiler" not in llmprof.read(run / "traces").meta
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "worker.json").unlink() if worker is None else (copy / "worker.json").write_text(worker)
    assert "without_profiler" not in llmprof.read(copy).meta


def test_a_profiler_around_an_engine_in_another_process_is_told_so(tmp_path):
    """What torch.profiler around ``LLM(...)`` of vLLM 0.10 and later writes: seven events, none of
    the work.
    """
    events = [
        {"ph": "M", "name": name, "ts": 1.0, "pid": 7, "tid": 0, "args": {}}
        for name in ("process_name", "process_labels", "process_sort_index", "process_sort_index")
    ]
    span = {"pid": "Spans", "tid": "PyTorch Profiler", "ts": 1.0, "dur": 9.0}
    events.append({"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", **span})
    events += [
        {"ph": "i", "s": "g", "name": name, "pid": "", "tid": "", "ts": 1.0}
        for name in ("Iteration Start: PyTorch Profiler", "Record Window End")
    ]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    with pytest.warns(TraceWarning, match="none of its 7 events"):
        trace = llmprof.read(file, cache=False)
    for ask in (lambda: trace.kernels, lambda: analyze.findings(trace)):
        with pytest.raises(NotCapturedError) as caught:
            ask()
        assert "VLLM_ENABLE_V1_MULTIPROCESSING=0" in caught.value.hint
    with pytest.warns(TraceWarning):
        part = llmprof.read(file, cache=False, tables=["markers"])
    assert part.capture.other_process == ""  # it was not asked for more
