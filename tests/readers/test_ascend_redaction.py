"""A redacted copy of a recording of an NPU holds none of the secrets planted in its text, JSON
and database files.
"""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

import llmprof
from llmprof import analyze
from llmprof.readers.redaction import redact

SECRET = "sk-planted-0123456789"
HOME = "/home/someone/project"
ADDRESS = "10.20.30.40"
OUTPUT = "ASCEND_PROFILER_OUTPUT"


@pytest.fixture
def planted(synthetic_npu, tmp_path):
    folder = Path(
        shutil.copytree(
            synthetic_npu("baseline") / "synthetic_rank0_ascend_pt", tmp_path / "r0_ascend_pt"
        )
    )
    words = f"{SECRET} {HOME} {ADDRESS}"
    view = json.loads((folder / OUTPUT / "trace_view.json").read_text())
    stacked = [event for event in view if event.get("cat") == "cpu_op"][5:9]
    for event in stacked:
        event["args"]["Call stack"] = f"{HOME}/model.py(3): forward;\r\n{HOME}/{SECRET}.py(1): main"
    stacked[0]["name"] = f"load {words}"
    view.append({"ph": "M", "name": "process_name", "pid": 77, "tid": 0, "args": {"name": words}})
    view.append({"ph": "C", "name": words, "pid": 77, "tid": 0, "ts": "1", "args": {SECRET: 1}})
    (folder / OUTPUT / "trace_view.json").write_text(json.dumps(view))
    metadata = json.loads((folder / "profiler_metadata.json").read_text())
    metadata["ENV_VARIABLES"] = {"API_KEY": SECRET, "PWD": HOME}
    (folder / "profiler_metadata.json").write_text(json.dumps(metadata))
    with (folder / OUTPUT / "operator_memory.csv").open("a") as file:
        file.write(f'"{words}",1,{1750000000001000}.000,,,,,,NPU:0\n')
    (database,) = (folder / OUTPUT).glob("ascend_pytorch_profiler*.db")
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE HOST_INFO (hostUid TEXT, hostName TEXT)")
        connection.execute("INSERT INTO HOST_INFO VALUES (?, ?)", (SECRET, words))
        connection.execute(
            "UPDATE STRING_IDS SET value = ? WHERE value LIKE 'aten::embedding'", (f"load {words}",)
        )
        connection.execute(
            "UPDATE STRING_IDS SET value = ? WHERE length(value) = 20",
            (f"{ADDRESS}%eth0_{SECRET}",),
        )
        connection.commit()
    assert SECRET in (folder / OUTPUT / "trace_view.json").read_text()
    assert SECRET.encode() in database.read_bytes()
    return folder


@pytest.mark.parametrize("form", ["text", "db", "both"])
@pytest.mark.filterwarnings("ignore::llmprof.errors.TraceWarning")
def test_no_planted_secret_is_left(planted, tmp_path, form):
    for file in (planted / OUTPUT).iterdir():
        if form != "both" and (file.suffix == ".db") != (form == "db"):
            file.unlink()
    copy = tmp_path / "copy"
    redact(planted, copy)
    for file in [p for p in copy.rglob("*") if p.is_file()] if copy.is_dir() else [copy]:
        for secret in (SECRET, HOME, ADDRESS):
            assert secret.encode() not in file.read_bytes(), (file.name, secret)
    before, after = llmprof.read(planted, cache=False), llmprof.read(copy, cache=False)
    for secret in (SECRET, HOME, ADDRESS):
        for frame in after.tables.values():
            assert not any(
                frame[c].str.contains(secret, literal=True).any()
                for c, t in frame.schema.items()
                if str(t) == "String"
            )
        assert secret not in json.dumps([after.meta, after.coverage])
    assert_frame_equal(analyze.overlap(before), analyze.overlap(after))
    assert before.kernels["dur_ns"].equals(after.kernels["dur_ns"])
