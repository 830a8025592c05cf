"""Servers of our own, and clients that send or read slowly, come in numbers, or send what cannot
be read.
"""

import contextlib
import json
import math
import socket
import threading
import time

import httpx
import pytest

from llmprof.errors import LaunchError
from llmprof.readers.otlp import parse_requests
from llmprof.run.live import serving as module
from llmprof.run.live.serving import Handler, PatientHttpServer, serve_requests
from llmprof.run.live.spans import Spans, received
from tests.live.hostile import ENOUGH_S, STEP_S

LARGE = b"x" * (64 << 20)
"""More than the buffers of two sockets hold."""


class Page(Handler):
    """A page that is as large as its name says."""

    def do_GET(self):  # noqa: N802 (the name that it has there)
        self.answer(200, LARGE if self.place.path == "/large" else b"small")


@pytest.fixture
def page(monkeypatch):
    monkeypatch.setattr(PatientHttpServer, "patience_s", 0.2)
    with serve_requests("127.0.0.1", 0, Page) as port:
        yield port


def connected(port):
    connection = socket.create_connection(("127.0.0.1", port))
    connection.settimeout(ENOUGH_S)
    return connection


def seconds_until_cut_off(connection, piece):
    """Seconds for which pieces of a request are taken."""
    began = time.monotonic()
    with contextlib.suppress(OSError):
        while time.monotonic() - began < ENOUGH_S:
            connection.sendall(piece)
            time.sleep(STEP_S)
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"", b"G"),
        (b"GET / HTTP/1.0\r\n", b"X: y\r\n"),
        (b"GET / HTTP/1.0\r\nX: ", b"y"),
        (b"POST /v1/traces HTTP/1.0\r\nContent-Length: 100000\r\n\r\n", b"["),
    ],
)
def test_who_sends_slowly_is_cut_off(begin, piece, monkeypatch):
    monkeypatch.setattr(PatientHttpServer, "patience_s", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with received(f"otlp://127.0.0.1:{port}"), connected(port) as connection:
        connection.sendall(begin)
        assert seconds_until_cut_off(connection, piece) < ENOUGH_S
        url = f"http://127.0.0.1:{port}/v1/traces"
        assert httpx.post(url, json={}).status_code == 200, "others are answered"


def test_who_reads_slowly_is_cut_off(page):
    with connected(page) as connection:
        connection.sendall(b"GET /large HTTP/1.0\r\n\r\n")
        time.sleep(1.0)  # more than its time and the half second after which the server looks
        got = 0
        with contextlib.suppress(OSError):
            while part := connection.recv(1 << 20):
                got += len(part)
        assert got < len(LARGE)
    assert httpx.get(f"http://127.0.0.1:{page}/").text == "small"


def test_few_connections_are_open_at_once(page, monkeypatch):
    monkeypatch.setattr(module, "MOST_OPEN", 2)
    before = threading.active_count()
    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(connected(page)) for _ in range(6)]
        for one in many:  # each is ended: the most at once, and the others when their time is over
            with contextlib.suppress(OSError):
                assert one.recv(1) == b""
            assert threading.active_count() <= before + 2
    assert httpx.get(f"http://127.0.0.1:{page}/").text == "small"


@pytest.mark.parametrize("path", ["http://[", "//[", "/\xff", "/%ff%00", "?" + "&" * 1000])
def test_addresses_that_cannot_be_read_are_answered_in_silence(page, path, capfd):
    with connected(page) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode("latin-1"))
        assert connection.recv(65536).startswith(b"HTTP/1.0 200")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("port", [65536, 10**6])
def test_ports_that_no_machine_has(port):
    with pytest.raises(LaunchError), serve_requests("127.0.0.1", port, Page):
        pass


WRONG = [
    None,
    True,
    -1,
    0.5,
    10**40,
    1e300,
    math.inf,
    "",
    "x",
    "9" * 5000,
    "1" * 100_000,
    [],
    [[]],
    {},
    {"a": {}},
]
PLACES = [
    "traceId",
    "spanId",
    "startTimeUnixNano",
    "attributes",
    "key",
    "value",
    "seconds",
    "id",
    "tokens",
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
def test_spans_with_a_value_of_the_wrong_kind(place, wrong):
    values = {
        "traceId": "t",
        "spanId": "s",
        "startTimeUnixNano": "1800000000000000000",
        "seconds": 2.0,
        "tokens": "5",
    }
    given = values | {"key": "gen_ai.latency.e2e", "id": "r", place: wrong}
    attributes = [
        {"key": given["key"], "value": {"doubleValue": given["seconds"]}},
        {"key": "gen_ai.latency.time_to_first_token", "value": {"doubleValue": 0.5}},
        {"key": "gen_ai.request.id", "value": {"stringValue": given["id"]}},
        {"key": "gen_ai.usage.completion_tokens", "value": {"intValue": given["tokens"]}},
    ]
    if place == "value":
        attributes[0]["value"] = wrong
    span = {name: given[name] for name in ("traceId", "spanId", "startTimeUnixNano")}
    span["attributes"] = wrong if place == "attributes" else attributes
    spans = Spans()
    spans.add(
        json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode(),
        "application/json",
    )
    frame = spans.frame()
    assert frame.height == (place != "attributes")
    assert (frame["ttft_ns"] == 500_000_000).all()
    assert (frame["id"].str.len_chars() <= 256).all()


@pytest.mark.parametrize("wrong", [*WRONG, [1], [{}], [[]]])
@pytest.mark.parametrize("depth", range(4))
def test_documents_of_the_wrong_shape_have_no_requests(wrong, depth):
    for name in ("spans", "scopeSpans", "resourceSpans")[:depth]:
        wrong = {name: [wrong]}
    assert list(parse_requests(wrong)) == []
