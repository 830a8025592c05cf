import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from llmprof.errors import LaunchError, OutputError
from llmprof.run.launch.run import process
from llmprof.run.launch.run.process import Lines
from tests.processes import gone

# An interrupt may come between opening a file and the `with` that closes it; Python says so when
# the file is freed.
anywhere = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def program(tmp_path, code):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(code))
    return [sys.executable, str(path)]


def run(tmp_path, code, **options):
    options = {"log": tmp_path / "experiment.log", "env": dict(os.environ)} | options
    return process.run(program(tmp_path, code), **options)


def wait_for(path, seconds=180.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if path.exists() and (text := path.read_text()).endswith("\n"):
            return text
        time.sleep(0.02)
    raise AssertionError(f"{path} did not come")


def test_output_goes_to_the_log_and_nowhere_else(tmp_path, capfd):
    done = run(tmp_path, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert done.status == 3
    assert done.seconds > 0
    assert capfd.readouterr() == ("", "")
    log = (tmp_path / "experiment.log").read_text()
    assert log.startswith("# 20")
    assert "program.py" in log.splitlines()[0]
    assert set(log.splitlines()[1:]) == {"out", "err"}


def test_events_become_progress(tmp_path):
    said = []
    events = tmp_path / "events.jsonl"
    code = f"""
        import json, time
        with open({str(events)!r}, "a") as file:
            for n in range(3):
                line = json.dumps({{"event": "plain", "done": n, "total": 3, "message": ""}}) + "\\n"
                file.write(line[:9]); file.flush(); time.sleep(0.15)
                file.write(line[9:]); file.flush()
            file.write("no json\\n[]\\n"); file.write(json.dumps({{"event": "done", "message": "a\\x1b[3m"}}) + "\\n")
    """
    done = run(tmp_path, code, events=events, progress=lambda *what: said.append(what))
    assert said == [("plain", 0, 3), ("plain", 1, 3), ("plain", 2, 3), (r"done: a\x1b[3m", 0, 0)]
    assert done.last_event["event"] == "done"


def test_launches_that_ncu_profiles_become_progress(tmp_path):
    said = []
    log = tmp_path / "log"
    log.write_text("==PROF== Profiling of an earlier pass\n")
    lines = Lines(log, b"==PROF== Profiling", "profiling", 2, lambda *what: said.append(what))
    for text in (
        "==PROF== Pro",
        "filing a: 0%",
        "....100%\nother\n",
        "==PROF== Profiling b\n==PROF== Profiling c\n",
    ):
        with log.open("a") as file:
            file.write(text)
        lines.read()
    assert said == [("profiling", 1, 2), ("profiling", 2, 2)]
    Lines(tmp_path / "none", b"x", "", 1, lambda *what: said.append(what)).read()
    assert len(said) == 2


def test_the_program_gets_no_input_and_a_session_of_its_own(tmp_path):
    out = tmp_path / "out"
    code = f"""
        import os, sys
        leads = os.getsid(0) == os.getpid()
        open({str(out)!r}, "w").write(f"{{sys.stdin.read()!r}} {{leads}} {{os.environ['MINE']}}\\n")
    """
    run(tmp_path, code, env=dict(os.environ) | {"MINE": "yes"})
    assert out.read_text() == "'' True yes\n"


HIDING = """
    import os, subprocess, sys, time
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    bare = {k: v for k, v in os.environ.items() if k != "LLMPROF_RUN_ID"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    orphan = f"import subprocess; print(subprocess.Popen({sleep!r}, **{quiet!r}).pid)"
    pids = [
        subprocess.Popen(sleep).pid,
        subprocess.Popen(sleep, **quiet).pid,
        subprocess.Popen(sleep, env=bare, start_new_session=True).pid,
        int(subprocess.run([sys.executable, "-c", orphan], stdout=subprocess.PIPE, text=True).stdout),
    ]
    open(sys.argv[0] + ".pids", "w").write(" ".join(map(str, [os.getpid(), *pids])) + "\\n")
"""
"""A child, one in a session of its own, one that lost its mark but writes to the log, and an
orphan.
"""


def test_no_process_outlives_a_program_that_ends(tmp_path):
    done = run(tmp_path, HIDING)
    _, *pids = map(int, (tmp_path / "program.py.pids").read_text().split())
    assert done.status == 0
    assert len(done.left_over) == 4
    assert all(gone(pid) for pid in pids)
    assert "ended what was left over" in (tmp_path / "experiment.log").read_text()


@anywhere
def test_an_interrupt_lets_the_program_write_and_ends_all(tmp_path):
    """What Jupyter's stop button and Ctrl-C do: SIGINT to this process only."""
    ready = tmp_path / "program.py.pids"
    code = HIDING + textwrap.indent(
        textwrap.dedent("""
        try:
            open(sys.argv[0] + ".ready", "w").write("ready\\n")
            time.sleep(600)
        except KeyboardInterrupt:
            open(sys.argv[0] + ".saved", "w").write("saved\\n")
    """),
        "    ",
    )

    def interrupt():
        wait_for(tmp_path / "program.py.ready")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, code)
    thread.join()
    assert (tmp_path / "program.py.saved").read_text() == "saved\n"
    assert all(gone(int(pid)) for pid in ready.read_text().split())
    gc.collect()


def test_an_interrupt_right_after_the_start_ends_the_program_too(tmp_path):
    told = []

    def interrupted(pid):
        told.append(pid)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "import time; time.sleep(600)", started=interrupted)
    assert gone(told[0])


def test_a_deaf_program_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "INTERRUPT_S", 0.3)
    code = """
        import signal, sys, time
        for how in (signal.SIGINT, signal.SIGTERM):
            signal.signal(how, signal.SIG_IGN)
        while True:
            time.sleep(0.1)
    """
    with pytest.raises(LaunchError, match="was ended after"):
        run(tmp_path, code, timeout_s=1)


def test_a_program_that_is_not_there_is_said(tmp_path):
    with pytest.raises(LaunchError, match=r"/no/python cannot be started: No such file"):
        process.run(["/no/python"], log=tmp_path / "log", env={})
    (tmp_path / "text").write_text("x")
    with pytest.raises(LaunchError, match="Permission denied"):
        process.run([str(tmp_path / "text")], log=tmp_path / "log", env={})
    with pytest.raises(OutputError, match="the disk is full"):
        process.run([sys.executable, "-c", ""], log=Path("/dev/full"), env=dict(os.environ))


@pytest.mark.slow
def test_processes_of_others_are_left_alone(tmp_path):
    other = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    try:
        assert run(tmp_path, "pass").left_over == ()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
    assert json.dumps(run(tmp_path, "pass").left_over) == "[]"
