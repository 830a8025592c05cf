"""Answers of servers that have no end, are no JSON, or name what is not theirs."""

import json
import time

import httpx
import pytest

import llmprof
from llmprof.errors import ConfigError
from llmprof.run.live import server as module
from llmprof.run.live import watching
from llmprof.run.live.counters import parsed
from llmprof.run.live.server import (
    MOST_BYTES,
    Address,
    LostError,
    ServerClient,
    identify,
    send_request,
)
from tests.live.hostile import ENDLESS, NO_JSON, SLOW, hostile, models, told, whole
from tests.live.stand_in import metrics


@pytest.mark.parametrize("kind", SLOW)
def test_an_answer_has_one_time_for_all_of_it(kind, monkeypatch):
    monkeypatch.setattr(ServerClient, "answer_s", 0.2)
    with hostile(SLOW[kind]) as server, pytest.raises(LostError):
        ServerClient(Address.of(server.url)).ask("GET", "/v1/models")


@pytest.mark.parametrize("kind", ENDLESS)
def test_an_answer_has_a_bound(kind, monkeypatch):
    """Whatever the time: what is beyond the bound is not taken, and nothing is unpacked."""
    monkeypatch.setattr(ServerClient, "answer_s", 600.0)
    with hostile(ENDLESS[kind]) as server, pytest.raises(LostError):
        ServerClient(Address.of(server.url)).ask("GET", "/v1/models")
    assert "accept-encoding: identity" in server.heads[0].lower()


def test_an_answer_may_be_as_large_as_its_bound():
    with hostile({"/a": whole(b" " * MOST_BYTES), "/b": whole(b" " * (MOST_BYTES + 1))}) as server:
        asking = ServerClient(Address.of(server.url))
        assert len(asking.ask("GET", "/a", timeout_s=60.0).text) == MOST_BYTES
        with pytest.raises(LostError):
            asking.ask("GET", "/b", timeout_s=60.0)


@pytest.mark.parametrize("kind", NO_JSON)
def test_what_is_no_json_says_nothing(kind):
    with hostile(NO_JSON[kind]) as server:
        assert ServerClient(Address.of(server.url)).document("/version") is None
        assert identify(ServerClient(Address.of(server.url))).engine == "unknown"


def test_no_answer_is_followed_elsewhere():
    with hostile(whole(b"")) as other:
        moved = whole(b"{}", status=307, Location=other.url)
        with hostile(moved) as server:
            answer = ServerClient(Address.of(server.url, token="secret")).ask(
                "POST", "/start_profile", {}
            )
    assert answer.status == 307
    assert not other.heads


def test_what_is_sent_to_a_webhook_has_its_time_too():
    with hostile(SLOW["head"]) as server, pytest.raises(httpx.TimeoutException):
        send_request("POST", server.url, {"findings": []}, timeout_s=0.2)


def test_the_time_of_the_counters_includes_reading_them(monkeypatch):
    def slowly(text):
        time.sleep(0.05)
        return parsed(text)

    monkeypatch.setattr(module, "parsed", slowly)
    monkeypatch.setattr(ServerClient, "metrics", lambda self: metrics("vllm", 0.0))
    server = ServerClient(Address.of("http://127.0.0.1:9"))
    assert server.scrape().gauges["running"] == 4.0
    monkeypatch.setattr(ServerClient, "answer_s", 0.01)
    with pytest.raises(LostError):
        server.scrape()


def test_nothing_is_recorded_of_a_server_whose_answer_has_no_end(tmp_path, monkeypatch):
    monkeypatch.setattr(ServerClient, "answer_s", 0.2)
    with hostile({"/v1/models": SLOW["head"]}) as server, pytest.raises(LostError):
        llmprof.record(server.url, results_dir=tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_watch_goes_on_after_lines_and_readings_that_cannot_be_read(tmp_path):
    text = 'vllm:time_to_first_token_seconds_bucket{le="abc"} 1\nvllm:num_requests_running 3\n'
    with hostile({"/metrics": whole(text.encode())}) as server:
        home = llmprof.watch(server.url, output=tmp_path / "w", every_s=0.05, for_s=0.5)
    state = json.loads((home / watching.STATE).read_text())
    assert state["scrapes"] >= 1
    assert state["unread"] == state["scrapes"]
    assert f"llmprof_watch_unread {float(state['unread'])}" in (home / watching.METRICS).read_text()


def test_only_a_server_of_this_machine_names_a_folder(tmp_path, monkeypatch):
    with hostile(
        {"/v1/models": models(), "/server_info": told(tmp_path, tensor_parallel_size=2)}
    ) as server:
        asking = ServerClient(Address.of(server.url))
        assert (identify(asking).folder, identify(asking).ranks) == (str(tmp_path), 2)
        monkeypatch.setattr(Address, "is_local", False)
        assert (identify(asking).folder, identify(asking).ranks) == (None, 2)
        with pytest.raises(ConfigError):
            llmprof.record(server.url, results_dir=tmp_path / "results")
    assert not [head for head in server.heads if "start_profile" in head]


def test_sizes_that_no_server_has_are_not_believed():
    info = told(
        "/profiles", tensor_parallel_size=10**9, pipeline_parallel_size=-1, data_parallel_size=4
    )
    with hostile({"/v1/models": models(), "/server_info": info}) as server:
        assert identify(ServerClient(Address.of(server.url))).parallel == {"dp": 4}
