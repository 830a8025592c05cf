"""A disk that is full, or a limit of the size of files: an error that names the target, and
nothing half-written.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

resource = pytest.importorskip("resource")

WRITERS = {
    "table.csv": "output.to_csv(frame, str(target), overwrite=True)",
    "chart.png": "charts.save(chart, target, overwrite=True)",
    "chart.svg": "charts.save(chart, target, overwrite=True)",
    "chart.html": "charts.save(chart, target, overwrite=True)",
    "chart.json": "charts.save(chart, target, overwrite=True)",
    "report": "report.write(trace, target)",
    "saved": "trace.save(target)",
    "copy.json.gz": "redact(file, target)",
    "copy.sqlite": "redact(export, target)",
    "config.yaml": "ConfigManager.save_config(ExperimentConfig(model='random:tiny', prompt='x' * 9000), target)",
    "samples.parquet": "table.write(counters, target, {})",
}
PROGRAM = """
import json, resource, sys
from pathlib import Path
import polars as pl
import llmprof
from llmprof import analyze, charts, report
from llmprof.cli import output
from llmprof.errors import OutputError
from llmprof.run.launch import ConfigManager, ExperimentConfig
from llmprof.run.launch.monitors import table
from llmprof.readers.redaction import redact

samples, out, limit = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
file = samples / "torch_transformers_generate/rank0.pt.trace.json.gz"
export = samples / "nsys_transformers_generate/report.sqlite"
trace = llmprof.read(file, cache=False)
frame = trace.kernels
chart = charts.kernels(analyze.kernels(trace))
rows = list(range(20_000))
counters = pl.DataFrame({"time_ns": rows, "device": 0, "name": "x", "unit": "%", "value": [i * 0.37 for i in rows]})
counters = counters.select(pl.col(name).cast(dtype) for name, dtype in table.SCHEMA.items())
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
said = {}
for name, code in json.loads(sys.argv[4]).items():
    target = out / name
    if target.suffix in (".csv", ".png"):
        target.write_bytes(b"old")
    try:
        eval(code)
    except OutputError as error:
        said[name] = str(error)
    else:
        said[name] = "written"
print(json.dumps(said))
"""


@pytest.mark.slow
@pytest.mark.parametrize("limit", [10, 4000])
def test_every_writer_names_its_target_and_leaves_nothing_half_written(limit, tmp_path):
    samples = Path(__file__).parents[1] / "sample_traces"
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        str(samples),
        str(tmp_path),
        str(limit),
        json.dumps(WRITERS),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert not done.returncode, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert said.keys() == WRITERS.keys()
    for name, words in said.items():
        assert "cannot " in words, (name, words)
        assert name in words, (name, words)
    left = {
        p.relative_to(tmp_path).as_posix(): p.read_bytes()
        for p in tmp_path.rglob("*")
        if p.is_file()
    }
    assert left == {"table.csv": b"old", "chart.png": b"old"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_device_is_written_and_not_replaced():
    from llmprof.errors import OutputError
    from llmprof.trace.storage import files

    with pytest.raises(OutputError, match=r"cannot write full: the disk is full"):
        files.write(Path("/dev/full"), "x")
    assert Path("/dev/full").is_char_device()
    assert files.write(Path("/dev/null"), b"x") == Path("/dev/null")
