"""An interrupt ends what waits: Polars, from its import on, has the system go on waiting."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time

import psutil
import pytest

pytestmark = pytest.mark.skipif(not hasattr(signal, "siginterrupt"), reason="signals are another thing there")

WAITS = {
    "a thread": "import threading\nthreading.Event().wait()",
    "a process": "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])",
    "a pipe": "import os\nos.read(os.pipe()[0], 1)",
    "a query": """
import sqlite3
from llmprof.storage import sqlite
sqlite3.connect("a.sqlite").execute("CREATE TABLE t (n)")
sqlite.query("a.sqlite", "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c")
""",
}


@pytest.mark.parametrize("what", WAITS)
def test_an_interrupt_ends_a_wait(what, tmp_path):
    code = f"import polars, llmprof.storage\n{WAITS[what]}"
    signals = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell may ignore it
    with subprocess.Popen(
        [sys.executable, "-c", signals + code], stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as child:
        below = []
        try:
            assert _waits(child), "it waits"
            below = psutil.Process(child.pid).children()
            child.send_signal(signal.SIGINT)
            assert "KeyboardInterrupt" in child.communicate(timeout=60)[1]
        finally:
            for process in [*below, child]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


def _waits(child: subprocess.Popen[str]) -> bool:
    """Whether a process comes to a place where its first thread uses no time."""
    thread = psutil.Process(child.pid)
    used, quiet = -1.0, 0
    until = time.monotonic() + 120
    while quiet < 10 and time.monotonic() < until and child.poll() is None:
        time.sleep(0.05)
        times = {one.id: one.user_time + one.system_time for one in thread.threads()}
        before, used = used, times.get(child.pid, 0.0)
        quiet = quiet + 1 if used == before > 0.1 else 0
    return quiet == 10
