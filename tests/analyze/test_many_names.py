"""Memory for recordings in which hardly any name comes twice."""

import json
import subprocess
import sys

import pytest

from tests.readers.traces import kernel

NAMES = 150_000
MOST_BYTES = 2_000
"""Of the peak of the process for each name."""

PROGRAM = """
import re, sys
from pathlib import Path
import llmprof
from llmprof import analyze

def peak():  # of this program: getrusage may count the one that started it
    return re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]

trace = llmprof.read(sys.argv[1], cache=False, workers=1)
read = peak()
analyze.findings(trace)
print(trace.kernels["name"].n_unique(), read, peak())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_findings_of_many_names_take_little_memory(tmp_path):
    path = tmp_path / "trace.json"
    with path.open("w") as file:
        file.write(
            "["
            + ",\n".join(json.dumps(kernel(f"kernel_{n}", 10 * n, 5)) for n in range(NAMES))
            + "]"
        )
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, path], capture_output=True, check=True
    )
    names, read, found = map(int, ran.stdout.split())
    assert names == NAMES
    own = 100_000  # kB of an interpreter with Polars
    assert (read - own) * 1024 < MOST_BYTES * NAMES
    assert (found - own) * 1024 < MOST_BYTES * NAMES
