"""``llmprof.record`` on a stand-in server: the folder of a run, and every way in which a server
or a recorder fails.
"""

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

import llmprof
from llmprof.errors import CaptureError, ConfigError, LaunchError, OutputError, TraceWarning
from llmprof.run import launch, trials
from llmprof.run.launch.run import folder as run_folder
from llmprof.run.live import recording as module
from llmprof.run.live import traces
from llmprof.run.live.lock import Lock
from llmprof.run.live.server import Address, LostError, ServerClient
from llmprof.trace.storage import typed
from tests.live.stand_in import StandIn, guards

QUICK = {"seconds": 0.3, "timeout_s": 60.0}
SHORT = 5.0
"""Seconds after which a trace that never comes counts as missing."""
SECRET = "wonderland-9"


def recorded(url, **options):
    return llmprof.record(url, **(QUICK | options))


def until(holds, seconds=30.0):
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to hold"
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def no_guard_is_left():
    before = set(guards())
    yield
    until(lambda: set(guards()) <= before)


@pytest.fixture
def two_servers(server, tmp_path):
    """A server, and another one."""
    other = StandIn(tmp_path / "other")
    yield server, other
    other.stop()


class TestSeveral:
    def test_servers_recorded_at_one_time_are_one_run(self, two_servers):
        urls = [one.start(dev=True, trace={"steps": 9000}) for one in two_servers]
        run = recorded(urls)
        assert run.state == "finished"
        assert [folder.path for folder in launch.runs("results")] == [run.folder.path]
        names = [url.removeprefix("http://").replace(":", "-") for url in urls]
        assert sorted(path.name for path in run.folder.traces.iterdir()) == sorted(names)
        with pytest.warns(TraceWarning, match="engines beside each other"):
            ranks = llmprof.read(run.folder.path).meta["ranks"]
        assert sorted(rank["engine"] for rank in ranks) == sorted(names)
        told = run.folder.path / f"recording_{names[1]}.json"
        assert typed.found(told, Any)["url"] == urls[1]
        assert run_folder.changed_files(run.folder) == []

    def test_one_that_dies_is_named_and_the_other_is_kept(self, two_servers, monkeypatch):
        monkeypatch.setattr("llmprof.run.live.guard._TRIES_S", 1.0)
        first, second = two_servers
        urls = [first.start(dev=True), second.start(dev=True, kill="/stop_profile")]
        with pytest.raises(CaptureError, match=f"{urls[1]} was not recorded") as failed:
            recorded(urls)
        second.stop()
        second.start(dev=True)  # its guard, which goes on trying, finds it
        until(lambda: not guards())
        kept = [folder for folder in launch.runs("results") if folder.state["state"] == "finished"]
        assert len(kept) == 1
        assert str(kept[0].path) in failed.value.hint
        assert launch.open_run(kept[0].path).trace.ranks == [-1, 0]

    @pytest.mark.parametrize("urls", [[], ["http://127.0.0.1:1"] * 2])
    def test_addresses_that_are_none_or_the_same(self, urls):
        with pytest.raises(ConfigError, match="addresses"):
            recorded(urls)


class TestRecorded:
    def test_it_is_a_run_like_any_other(self, server, tmp_path):
        url = server.start(dev=True)
        said, again = [], []
        run = recorded(url, steps=40, say=said.append)
        assert run.state == "finished"
        assert run.recorded
        assert launch.runs("results")[0].path == run.folder.path
        assert run_folder.changed_files(run.folder) == []
        assert llmprof.read(run.folder.path).ranks == [0]
        assert run.trace.ranks == [-1, 0], "the samples of the host are there, too"
        recording = typed.found(run.folder.recording, Any)
        assert recording["engine"] == "vllm"
        assert recording["version"] == "0.32.0"
        assert recording["ranks"] == 1
        window = recording["window"]
        assert window["end_epoch_ns"] - window["start_epoch_ns"] > 0.2e9
        assert recording["counters"]["before"]["output_tokens_per_s"] == pytest.approx(100, rel=0.2)
        assert recording["cost"]["bytes"] == sum(
            path.stat().st_size for path in run.folder.traces.iterdir()
        )
        assert run.worker["requests"] == []
        assert not server.on
        (start,) = [one for one in server.asked if one["path"] == "/start_profile"]
        assert start["body"]["max_iterations"] == 40
        assert not list(server.profiles.iterdir()), (
            "what the capture left on the server's disk is gone"
        )
        assert "not known" in said[1]
        recorded(url, say=again.append)
        assert "last 1 captures" in again[1]
        with pytest.raises(LaunchError, match="did not start"):
            trials_refused(run)

    def test_a_version_that_knows_no_prefix(self, server):
        """The file of another recording is not taken for its own."""
        url = server.start(dev=True, prefix=False)
        other = server.profiles / "other_rank0.1.pt.trace.json.gz"
        other.write_bytes(b"{}")
        run = recorded(url)
        assert run.state == "finished"
        assert other.exists()
        assert [path.name for path in run.folder.traces.iterdir()] != [other.name]
        assert any("left in the server's folder" in note for note in run.summary["notes"])

    def test_sglang_writes_where_it_is_told(self, server):
        url = server.start(engine="sglang", ranks=2)
        run = recorded(url, folder=server.profiles, steps=7)
        (start,) = [one for one in server.asked if one["path"] == "/start_profile"]
        assert start["body"]["num_steps"] == 7
        assert start["body"]["output_dir"].startswith(str(server.profiles))
        assert run.config.engine == "sglang"
        assert run.config.tensor_parallel_size == 2
        assert "sk-secret" not in run.folder.recording.read_text()
        assert not list(server.profiles.iterdir())

    def test_a_command_copies_the_traces(self, server):
        url = server.start(ranks=4)
        code = "import shutil,sys; shutil.copytree(sys.argv[1], sys.argv[2], dirs_exist_ok=True)"
        copy = [sys.executable, "-c", code]
        run = recorded(url, fetch=[*copy, str(server.profiles), "{to}"], ranks=4)
        assert llmprof.read(run.folder.path).ranks == [0, 1, 2, 3]
        assert run.config.tensor_parallel_size == 4, "by the names of the traces"
        with pytest.raises(LaunchError, match="status 3"):
            recorded(url, fetch=[sys.executable, "-c", "import sys; sys.exit(3)"])
        with pytest.raises(ConfigError, match="no word"):
            recorded(url, fetch=[])

    @pytest.mark.slow
    def test_traces_that_are_written_slowly(self, server):
        url = server.start(dev=True, ranks=2, slow_write_s=1.0)
        assert llmprof.read(recorded(url).folder.path).ranks == [0, 1]

    def test_requests_come_from_spans_and_credentials_are_stored_nowhere(self, server, tmp_path):
        spans = tmp_path / "spans.jsonl"
        now = time.time_ns()
        attributes = [
            {"key": "gen_ai.latency.e2e", "value": {"doubleValue": 60.0}},
            {"key": "gen_ai.latency.time_to_first_token", "value": {"doubleValue": 0.25}},
            {"key": "gen_ai.usage.completion_tokens", "value": {"intValue": "12"}},
        ]
        rows = [
            {
                "name": "llm_request",
                "spanId": str(k),
                "startTimeUnixNano": str(start),
                "endTimeUnixNano": str(start),
                "attributes": [
                    *attributes,
                    {"key": "gen_ai.request.id", "value": {"stringValue": f"r{k}"}},
                ],
            }
            for k, start in enumerate((now - 10**9, now - 3600 * 10**9))
        ]
        spans.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": rows}]}]}) + "\n")
        run = recorded(
            server.start(dev=True).replace("http://", f"http://alice:{SECRET}@"), requests=spans
        )
        assert run.requests["id"].to_list() == ["r0"]
        assert run.requests["ttft_ns"].to_list() == [250_000_000]
        assert all(one["auth"] for one in server.asked)
        for path in [*run.folder.path.rglob("*"), *(tmp_path / "cache").rglob("*")]:
            assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def trials_refused(run):
    try:
        trials.trial(run, "graphs")
    except ConfigError as error:
        raise LaunchError(error.found) from error


def test_a_password_and_a_key_are_not_both_sent_and_neither_is_dropped(server, monkeypatch):
    url = server.start(dev=True)
    sent = {f"http://:{SECRET}@": {}, "http://alice@": {}, "http://": {"token": SECRET}}
    for begin, token in sent.items():
        ServerClient(Address.of(url.replace("http://", begin), **token)).metrics()
    of_password, of_user, of_key = (one["auth"] for one in server.asked[-3:])
    assert base64.b64decode(of_password.removeprefix("Basic ")).decode() == f":{SECRET}"
    assert base64.b64decode(of_user.removeprefix("Basic ")).decode() == "alice:"
    assert of_key == f"Bearer {SECRET}"
    monkeypatch.setenv("LLMPROF_API_KEY", SECRET + "-key")
    for begin in ("http://alice:{}@", "http://:{}@", "http://{}@"):
        with pytest.raises(ConfigError, match="LLMPROF_API_KEY") as refused:
            recorded(url.replace("http://", begin.format(SECRET)))
        assert SECRET not in str(refused.value)


class TestRefused:
    def test_no_server(self, server):
        with pytest.raises(LaunchError, match="does not answer"):
            recorded("http://127.0.0.1:9")
        assert not launch.runs("results")

    def test_no_profiler_names_the_option(self, server):
        url = server.start(dev=True, profiler=False)
        with pytest.raises(LaunchError, match="no profiler") as caught:
            recorded(url)
        assert "--profiler-config" in str(caught.value)
        assert not launch.runs("results"), "nothing was recorded, so no run is left"

    def test_a_folder_that_is_not_known(self, server):
        url = server.start()
        with pytest.raises(ConfigError, match="does not say where"):
            recorded(url)
        with pytest.raises(ConfigError, match="no folder on this machine"):
            recorded(url, folder="/nowhere/at/all")
        assert not [one for one in server.asked if one["path"] == "/start_profile"]

    @pytest.mark.parametrize(
        "values",
        [
            {"seconds": 0},
            {"seconds": 1e9},
            {"steps": 0},
            {"url": "ftp://x"},
            {"url": "http://x/?token=1"},
        ],
    )
    def test_values(self, server, values):
        with pytest.raises(ConfigError):
            recorded(values.pop("url", "http://127.0.0.1:9"), **values)


class TestFaults:
    def test_one_rank_of_four_is_missing(self, server):
        url = server.start(dev=True, ranks=4, files=[0, 1, 3])
        with pytest.raises(CaptureError, match="3 wrote") as caught:
            recorded(url, timeout_s=SHORT)
        assert caught.value.facts["whole"] == 3
        (run,) = launch.runs("results")
        assert run.state["state"] == "failed"
        assert not server.on
        with pytest.raises(LaunchError, match="did not start"):  # it is not run as an experiment
            launch.resume(run.path)

    @pytest.mark.slow
    def test_one_rank_of_four_is_missing_and_nobody_says_how_many_there_are(self, server):
        url = server.start(ranks=4, files=[0, 1, 3])
        with pytest.raises(CaptureError, match="missing"):
            recorded(url, folder=server.profiles, timeout_s=20.0)

    @pytest.mark.slow
    def test_half_a_file_never_reads_as_whole(self, server):
        url = server.start(dev=True, ranks=2, half=1)
        with pytest.raises(CaptureError, match="not whole"):
            recorded(url, timeout_s=SHORT)
        assert not list(launch.runs("results")[0].traces.glob("*"))

    @pytest.mark.slow
    @pytest.mark.parametrize("path", ["/start_profile", "/stop_profile"])
    def test_a_page_of_html(self, server, path):
        url = server.start(dev=True, html=path, html_ok=False)
        with pytest.raises(LaunchError, match=r"HTML|wrote no trace"):
            recorded(url, timeout_s=SHORT)

    def test_a_start_that_hangs(self, server, monkeypatch):
        monkeypatch.setattr(module, "START_S", 0.5)
        url = server.start(dev=True, hang="/start_profile")
        with pytest.raises(LaunchError, match="did not answer"):
            recorded(url)
        assert [one["path"] for one in server.asked][-1] == "/stop_profile", (
            "it may have been switched on"
        )

    @pytest.mark.slow
    def test_a_stop_that_hangs_is_tried_again(self, server, monkeypatch):
        monkeypatch.setattr(module, "STOP_S", 0.5)
        url = server.start(dev=True, hang="/stop_profile")
        timer = threading.Timer(2.0, lambda: server.how(dev=True))
        timer.start()
        assert recorded(url).state == "finished"
        timer.join()
        assert not server.on

    @pytest.mark.slow
    @pytest.mark.parametrize("path", ["/start_profile", "/stop_profile"])
    def test_the_server_is_killed(self, server, path, monkeypatch):
        monkeypatch.setattr("llmprof.run.live.guard._TRIES_S", 1.0)
        url = server.start(dev=True, kill=path)
        with pytest.raises(LaunchError, match=r"does not answer|was lost"):
            recorded(url)
        server.stop()
        (run,) = launch.runs("results")
        assert run.state["state"] == "failed"
        server.start(dev=True)  # again at the same port: the guard, which goes on trying, finds it
        until(lambda: not guards())

    @pytest.mark.slow
    def test_the_server_starts_again_in_the_middle(self, server):
        url = server.start(dev=True)

        def again():
            until(lambda: server.on)
            server.stop()
            (server.home / "on").unlink()
            server.start(dev=True)

        thread = threading.Thread(target=again)
        thread.start()
        with pytest.raises(
            (CaptureError, LostError)
        ):  # lost if it stops before it has answered to the start
            recorded(url, seconds=3.0, timeout_s=SHORT)
        thread.join()

    @pytest.mark.slow
    def test_a_full_disk(self, server, monkeypatch):
        url = server.start(dev=True)

        def full(source, target, size):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(traces.shutil, "copyfileobj", full)
        with pytest.raises(OutputError, match="disk is full"):
            recorded(url)
        assert not server.on
        assert not list(launch.runs("results")[0].traces.glob("*"))

    def test_an_interrupt(self, server, monkeypatch):
        url = server.start(dev=True)

        def interrupted(self, from_s):
            raise KeyboardInterrupt

        monkeypatch.setattr(module.ServerCapture, "_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            recorded(url)
        assert not server.on
        assert launch.runs("results")[0].state["state"] == "interrupted"

    @pytest.mark.parametrize(
        "how",
        [
            signal.SIGKILL,
            *(pytest.param(how, marks=pytest.mark.slow) for how in (signal.SIGTERM, signal.SIGINT)),
        ],
    )
    def test_the_recorder_is_ended(self, server, how):
        url = server.start(dev=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "llmprof", "record", url, "--seconds", "60"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until(lambda: server.on, 120.0)
        os.killpg(process.pid, how)
        process.wait(60)
        until(lambda: not server.on)
        until(lambda: not guards())
        assert launch.runs("results")[0].state["state"] == "interrupted"
        run = recorded(url)
        assert run.state == "finished"
        assert not any("killed with its guard" in note for note in run.summary["notes"])

    @pytest.mark.slow
    def test_a_recorder_that_is_stopped_is_seen_by_its_guard(self, server, monkeypatch):
        monkeypatch.setattr(module, "START_S", 1.0)
        url = server.start(dev=True)
        monkeypatch.setattr(
            module.ServerCapture, "_wait", lambda self, from_s: until(lambda: not server.on)
        )
        with pytest.raises(
            CaptureError
        ):  # the traces were written, but so late that nobody knows which window it is
            recorded(url, folder=server.profiles, ranks=2, timeout_s=SHORT)

    def test_two_recorders_at_once(self, server):
        url = server.start(dev=True)
        with Lock(Address.of(url)).taken():
            with pytest.raises(LaunchError, match="records") as caught:
                recorded(url)
            assert caught.value.facts["busy"]
        (server.home / "on").touch()
        with pytest.raises(LaunchError, match="another recording") as caught:
            recorded(url)
        assert server.on, "what somebody else records goes on"

    @pytest.mark.slow
    def test_a_recorder_that_was_killed_with_its_guard(self, server):
        url = server.start(dev=True)
        lock = Lock(Address.of(url))
        with lock.taken():
            lock.write("recording")
        (server.home / "on").touch()
        run = recorded(url)
        assert run.state == "finished"
        assert any("killed with its guard" in note for note in run.summary["notes"])


def test_the_command(server, run):
    url = server.start(dev=True)
    code, out, _ = run(f"record {url} --seconds 0.3 --steps 20")
    assert code == 0
    assert "recording 0.3 s, at most 20 steps" in " ".join(out.split())
    assert "llmprof analyze" in out
    code, out, _ = run(f"record {url} --seconds 0.3 --json")
    assert json.loads(out)["recording"]["engine"] == "vllm"
    code, _, err = run("record", url, "--fetch", "kubectl 'cp")
    assert code == 2
    assert "open quote" in err


@pytest.mark.parametrize(
    ("text", "url", "local"),
    [
        ("localhost:8000", "http://localhost:8000", True),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000", True),
        ("https://u:p@host.example/llm/metrics", "https://host.example/llm", False),
    ],
)
def test_addresses(text, url, local):
    address = Address.of(text)
    assert (address.url, address.is_local) == (url, local)
    assert "p@" not in repr(address)
