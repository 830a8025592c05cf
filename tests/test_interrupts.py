"""An interrupt ends what waits: Polars, from its import on, has the system go on waiting."""

import contextlib
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.processes import still_running

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "siginterrupt"), reason="signals are another thing there"
)

WAITS = {
    "a thread": "threading.Event().wait()",
    "a process": "subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])",
    "a pipe": "os.read(os.pipe()[0], 1)",
    "a query": "sqlite.query('a.sqlite', 'WITH RECURSIVE c AS (SELECT 1 UNION ALL SELECT 1 FROM c) SELECT * FROM c')",
    "a query of tables": "sql.query_tables({'k': many}, 'select sum(a.n) from k a, k, k c, k d')",
}
CODE = """
import os, signal, sqlite3, subprocess, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
import polars
from llmprof.trace.storage import sql, sqlite
sqlite3.connect("a.sqlite").execute("CREATE TABLE t (n)")
many = polars.DataFrame({"n": range(1000)})
print("begin", flush=True)
"""


@pytest.mark.parametrize("what", WAITS)
def test_an_interrupt_ends_a_wait(what, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", CODE + WAITS[what]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as child:
        below = []
        try:
            assert child.stdout.readline() == "begin\n"
            assert _waits(child)
            below = psutil.Process(child.pid).children()
            child.send_signal(signal.SIGINT)
            assert "KeyboardInterrupt" in child.communicate(timeout=60)[1]
            assert not still_running(below)
        finally:
            for process in [*below, child]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


def _waits(child):
    """Whether a process comes to a place where its first thread uses no time."""
    thread = psutil.Process(child.pid)
    used, quiet = -1.0, 0
    until = time.monotonic() + 120
    while quiet < 10 and time.monotonic() < until and child.poll() is None:
        time.sleep(0.05)
        times = {one.id: one.user_time + one.system_time for one in thread.threads()}
        before, used = used, times.get(child.pid, 0.0)
        quiet = quiet + 1 if used == before else 0
    return quiet == 10
