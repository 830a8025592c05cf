import datetime
import hashlib
import math
import re
import shutil
import subprocess
import sys

import msgspec
import polars as pl
import pytest
from isal import igzip

import llmprof
from llmprof.errors import LlmprofError, ReadError
from llmprof.readers import bundled
from llmprof.run import launch
from llmprof.trace.storage import sqlite

ROOT = bundled.samples_folder()
NAMES = sorted(path.name for path in ROOT.iterdir() if path.is_dir())

# What a recording must not carry along: paths of a machine, its names and addresses, the
# environment, secrets.
_TELLTALE = re.compile(
    rb"/(?:home|root|work|tmp|mnt|data|opt|usr|var|etc|Users|workspace)/"
    rb"|\b(?!127\.0\.0\.1)(?:\d{1,3}\.){3}\d{1,3}\b"
    rb"|@[\w-]+\.[a-z]{2,}"
    rb"|^(?i:hostname|user_?name|environ\w*|env|cwd|argv|command_?line|password|secret|api_?key|token)$"
    rb"|\bHF_[A-Z]+|\bhf_[A-Za-z0-9]{20,}|\bSSH_|\bPATH=|\bLD_LIBRARY_PATH",
    re.MULTILINE,
)
_HOST_NAME = re.compile(rb'"host_?name"\s*:\s*"([^"]*)"')


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


def test_the_script_that_recorded_the_samples_of_vllm_starts_and_names_them():
    done = subprocess.run(
        [sys.executable, ROOT / "record.py", "--help"], capture_output=True, text=True, check=True
    )
    named = re.findall(r"# (\w+)$", done.stdout, re.MULTILINE)
    assert "torch_tp4_eager_custom_allreduce" in named
    assert set(named) <= set(NAMES)


def test_every_folder_is_a_sample_that_says_where_it_comes_from(name):
    head = bundled.describe_sample(name)
    assert head.name == name
    assert head.licence == "Apache-2.0"
    for text in (
        head.title,
        head.description,
        head.model,
        head.engine,
        head.device,
        head.profiler,
        head.origin,
    ):
        assert text.strip() == text != ""
    assert datetime.date.fromisoformat(head.captured) <= datetime.date.today()
    assert (
        {"tensor", "pipeline"}
        <= head.parallelism.keys()
        <= {"tensor", "pipeline", "data", "instances"}
    )
    assert math.prod(head.parallelism.values()) == head.devices == head.ranks
    assert head.execution in ("eager", "cuda_graphs")
    assert head.workload.keys() == {"requests", "prompt_tokens", "output_tokens"}
    assert head.measured is None or head.measured.keys() == {
        "plain_s",
        "profiled_s",
        "stop_profile_s",
    }
    for version in head.versions.values():
        assert re.match(r"\d+(\.\d+)*$", version)
    folder = ROOT / name
    paths = [
        path for path in folder.rglob("*") if path.is_file() and path.name != bundled.HEAD_FILE
    ]
    on_disk = {path.relative_to(folder).as_posix(): path for path in paths}
    listed = bundled.describe_sample(name).files
    assert [file.name for file in listed] == sorted(on_disk)
    for file in listed:
        content = on_disk[file.name].read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file.bytes, file.sha256)


def texts(path):
    """Every text in a recording."""
    content = path.read_bytes()
    if path.suffix == ".sqlite":
        with sqlite.connect(path) as connection:
            rows = [
                row
                for table in sqlite.database_tables(connection)
                for row in connection.execute(f'SELECT * FROM "{table}"')
            ]
        return [value.encode() for row in rows for value in row if isinstance(value, str)]
    return (igzip.decompress(content) if path.suffix == ".gz" else content).split(b'"')


def test_columns_of_a_database_have_types_for_other_tools(name):
    for path in bundled.sample_files(name):
        if path.suffix == ".sqlite":
            with sqlite.connect(path) as connection:
                types = connection.execute(
                    "SELECT c.type FROM sqlite_master AS t, pragma_table_info(t.name) AS c WHERE t.type = 'table'"
                )
                assert {kind for (kind,) in types} == {"INTEGER", "TEXT", "REAL"}


@pytest.mark.slow
def test_nothing_in_a_recording_tells_of_the_machine_or_its_user(name):
    for path in bundled.sample_files(name):
        found = set(texts(path))
        assert len(found) > 200
        pieces = b"\n".join(found)
        assert {match.group() for match in _TELLTALE.finditer(pieces)} == set()
        assert set(_HOST_NAME.findall(b'"'.join(texts(path)))) <= {b"vm"}


def test_a_run_folder_is_a_sample(sample_trace):
    run = launch.open_run(ROOT / "run_torch_tp1")
    assert run.state == "finished"
    assert run.config.profile_mode == "torch"
    assert run.requests.filter(pl.col("phase") == "profiled").height == 4
    trace = sample_trace("run_torch_tp1")
    assert run.trace.kernels.equals(trace.kernels)
    assert not trace.has("counters")
    # 95 s of the run at 2 Hz, around a trace of a tenth of a second
    power = run.trace.counters.filter(pl.col("name") == "gpu.power")
    assert power.height > 100
    assert power["value"].max() < 700


def test_samples_lists_them_all():
    frame = llmprof.samples()
    assert frame["name"].to_list() == NAMES
    row = frame.row(by_predicate=pl.col("name") == "torch_tp4_eager_nccl", named=True)
    assert row["title"] == "TP=4, eager, NCCL all-reduce"
    assert (row["ranks"], row["tensor_parallel"], row["pipeline_parallel"], row["files"]) == (
        4,
        4,
        1,
        4,
    )
    assert (row["engine"], row["execution"], row["profiler"]) == (
        "vLLM 0.26.0",
        "eager",
        "torch.profiler",
    )
    assert row["bytes"] == sum(
        file.bytes for file in bundled.describe_sample("torch_tp4_eager_nccl").files
    )
    assert frame.null_count().sum_horizontal().item() == 0


def test_a_name_that_is_not_there_gets_the_nearest_ones():
    with pytest.raises(
        LlmprofError, match=r"no sample 'torch_tp4_nccl'.*torch_tp4_eager_nccl"
    ) as caught:
        llmprof.sample("torch_tp4_nccl")
    assert "torch_tp4_eager_nccl" in caught.value.facts["nearest"]
    with pytest.raises(LlmprofError, match=r"expected one of ncu_.*torch_transformers_generate"):
        llmprof.sample("zzz")


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A folder of samples of one's own, with one sample in it."""
    shutil.copytree(ROOT / "torch_pp2_eager", tmp_path / "torch_pp2_eager")
    monkeypatch.setenv(bundled.ENVIRONMENT_VARIABLE, str(tmp_path))
    return tmp_path / "torch_pp2_eager"


def test_the_variable_names_another_folder(copied, tmp_path):
    assert llmprof.samples()["name"].to_list() == ["torch_pp2_eager"]
    shutil.rmtree(copied)
    assert llmprof.samples().is_empty()
    tmp_path.rmdir()
    with pytest.raises(LlmprofError, match=r"there is no folder .*set LLMPROF_SAMPLES"):
        llmprof.samples()


def test_a_file_that_is_missing_or_cut_is_said_so_before_it_is_read(copied):
    file = copied / "rank1.pt.trace.json.gz"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(
        ReadError, match=r"rank1\.pt\.trace\.json\.gz has 1,000 bytes; expected 567,056 bytes"
    ):
        llmprof.sample("torch_pp2_eager")
    file.unlink()
    with pytest.raises(ReadError, match="is missing"):
        llmprof.sample("torch_pp2_eager")


@pytest.mark.parametrize("change", [{"name": 5}, {"files": None}, {"colour": "red"}])
def test_a_head_that_is_damaged_is_said_so(copied, change):
    path = copied / bundled.HEAD_FILE
    path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | change))
    with pytest.raises(ReadError, match=r"sample\.json is damaged"):
        llmprof.samples()
    path.write_text("{")
    with pytest.raises(ReadError, match=r"sample\.json is damaged"):
        llmprof.sample("torch_pp2_eager")


def test_metrics_of_kernels_are_a_sample_too():
    metrics = llmprof.sample_metrics("ncu_tp1_eager")
    assert metrics.kernels.height == 24
    with pytest.raises(LlmprofError, match=r"has metrics of single kernels.*sample_metrics"):
        llmprof.sample("ncu_tp1_eager")
    with pytest.raises(LlmprofError, match=r"is a trace.*llmprof\.sample\("):
        llmprof.sample_metrics("torch_pp2_eager")
