"""Requests of a server: spans that are received, records that it writes, and its slowest one."""

import gzip
import http.client
import json
import socket
import time

import httpx
import polars as pl
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import llmprof
from llmprof.errors import ConfigError, LaunchError, ReadError
from llmprof.run.live import recording as module
from llmprof.run.live.slowest import slowest_request, with_row
from llmprof.run.live.spans import parse_address, received
from llmprof.run.live.watching import capture_findings
from tests.live.stand_in import trace

S = 10**9


def protobuf(*requests):
    """A request of OTLP with a span for each request of a server."""
    message = ExportTraceServiceRequest()
    scope = message.resource_spans.add().scope_spans.add()
    for number, request in enumerate(requests):
        span = scope.spans.add(
            name="llm_request",
            trace_id=bytes([number]) * 16,
            span_id=request["id"].encode().ljust(8)[:8],
            start_time_unix_nano=request["start_ns"],
        )
        for name, value in {
            "latency.e2e": request["e2e"],
            "latency.time_to_first_token": request["ttft"],
            "latency.time_in_queue": request["queue"],
        }.items():
            span.attributes.add(key=f"gen_ai.{name}").value.double_value = value
        span.attributes.add(key="gen_ai.request.id").value.string_value = request["id"]
        span.attributes.add(key="gen_ai.usage.completion_tokens").value.int_value = request.get(
            "tokens", 6
        )
    return message.SerializeToString()


def free():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def receiver():
    port = free()
    with received(f"otlp://127.0.0.1:{port}") as spans:
        yield spans, f"http://127.0.0.1:{port}/v1/traces"


def test_spans_are_received_as_opentelemetry_sends_them(receiver):
    spans, url = receiver
    one = {"id": "a", "start_ns": 5 * S, "e2e": 2.0, "ttft": 0.5, "queue": 0.25}
    kind = {"Content-Type": "application/x-protobuf"}
    assert httpx.post(url, content=protobuf(one), headers=kind).status_code == 200
    assert httpx.post(url, content=protobuf(one), headers=kind).status_code == 200, (
        "sent twice, it counts once"
    )
    packed = gzip.compress(protobuf(one | {"id": "b", "start_ns": 4 * S}))
    assert (
        httpx.post(url, content=packed, headers=kind | {"Content-Encoding": "gzip"}).content == b""
    )
    attributes = [{"key": "gen_ai.latency.e2e", "value": {"doubleValue": 1.5}}]
    span = {"spanId": "c", "startTimeUnixNano": str(6 * S), "attributes": attributes}
    document = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
    assert httpx.post(url, json=document).json() == {}
    frame = spans.frame()
    assert frame["start_epoch_ns"].to_list() == [4 * S, 5 * S, 6 * S]
    assert frame["e2e_ns"].to_list() == [2 * S, 2 * S, 3 * S // 2]
    assert frame["queue_ns"].to_list() == [S // 4, S // 4, None]
    assert frame["id"].to_list() == ["b", "a", None]


def test_what_is_no_span_is_refused(receiver):
    spans, url = receiver
    kind = {"Content-Type": "application/x-protobuf"}
    assert httpx.post(url, content=b"\xff" * 20, headers=kind).status_code == 400
    assert (
        httpx.post(
            url, content=b"[" * 100_000, headers={"Content-Type": "application/json"}
        ).status_code
        == 400
    )
    assert (
        httpx.post(url, content=b"no gzip", headers=kind | {"Content-Encoding": "gzip"}).status_code
        == 400
    )
    assert httpx.post(url.replace("traces", "logs"), content=b"").status_code == 404
    plain = http.client.HTTPConnection(httpx.URL(url).netloc.decode())
    plain.putrequest("POST", "/v1/traces")
    plain.putheader("Content-Length", "99999999999")
    plain.endheaders()
    assert plain.getresponse().status == 413
    plain.close()
    assert spans.refused == 3
    assert spans.frame().is_empty()
    with (
        pytest.raises(LaunchError, match="cannot be used"),
        received(url.replace("http", "otlp").replace("/v1/traces", "")),
    ):
        pass


def test_places_for_spans():
    assert parse_address("otlp://") == ("127.0.0.1", 4318)
    assert parse_address("otlp://0.0.0.0:99") == ("0.0.0.0", 99)
    for wrong in ("otlp://host:port", "otlp://host/path", "otlp://user@host"):
        with pytest.raises(ConfigError):
            parse_address(wrong)


def test_a_window_with_the_spans_that_come_during_it(server, monkeypatch):
    monkeypatch.setattr(module, "SPANS_S", 0.0)
    port, url = free(), server.start(dev=True)
    now = time.time_ns()
    mine = [
        {"id": "late", "start_ns": now - 20 * S, "e2e": 60.0, "ttft": 15.0, "queue": 14.0},
        {"id": "old", "start_ns": now - 900 * S, "e2e": 60.0, "ttft": 15.0, "queue": 14.0},
        {"id": "quick", "start_ns": now - 2 * S, "e2e": 30.0, "ttft": 0.1, "queue": 0.0},
    ]

    def send(words):
        httpx.post(
            f"http://127.0.0.1:{port}/v1/traces",
            content=protobuf(*mine),
            headers={"Content-Type": "application/x-protobuf"},
        )

    run = llmprof.record(
        url, seconds=0.3, timeout_s=60.0, requests=f"otlp://127.0.0.1:{port}", say=send
    )
    assert run.requests["id"].to_list() == ["late", "quick"], "those that overlap with the window"
    found = capture_findings(run).filter(rule="slowest_request")
    assert found.select("figure", "about", "severity").row(0) == (60.0 * S, "late", "medium")
    assert found["share"].item() == pytest.approx(45 / 60)


@pytest.fixture
def window(tmp_path):
    """Steps of 1 ms from the start of the trace, of four decoding requests each."""
    path = tmp_path / "rank0.pt.trace.json"
    path.write_bytes(trace(0, 1, steps=6, base_ns=1_800_000_000 * S))
    return llmprof.read(path)


def request(**values):
    return {
        "request": 0,
        "id": "r",
        "queue_ns": None,
        "ttft_ns": None,
        "prompt_tokens": 9,
        "output_tokens": 4,
    } | values


def test_the_slowest_request_and_the_steps_that_ran_meanwhile(window):
    start = window.meta["start_epoch_ns"]
    rows = pl.DataFrame(
        [
            request(start_epoch_ns=start, e2e_ns=1_000_000, queue_ns=0, ttft_ns=1000),
            request(
                request=1,
                id="s",
                start_epoch_ns=start,
                queue_ns=2_000_000,
                ttft_ns=3_000_000,
                e2e_ns=5_500_000,
            ),
        ]
    )
    row = slowest_request(window, rows)
    assert (row["about"], row["where"], row["figure"]) == ("s", "request = 1", 5.5e6)
    assert row["share"] == pytest.approx(2.5 / 5.5)
    assert row["severity"] == "medium", "more than twice as slow as the other"
    assert "3 steps recorded meanwhile (100.0 %" in row["detail"], (
        "decode from 3 to 5.5 ms, and steps of a ms"
    )
    assert row["detail"].count(" 4 decoding requests") == 3
    found = with_row(llmprof.analyze.findings(window), row)
    assert found["order"].to_list() == list(range(1, found.height + 1))
    assert found["rule"].to_list()[-1] == "slowest_request"


def test_steps_that_left_it_out(window):
    start = window.meta["start_epoch_ns"]
    whole = {"start_epoch_ns": start, "queue_ns": 0, "ttft_ns": 0, "e2e_ns": 5_500_000}
    told = [
        slowest_request(window, pl.DataFrame([request(**whole, output_tokens=n)]))["detail"]
        for n in (2, 6)
    ]
    assert ["ran without it" in words for words in told] == [True, False]
    # of what was not recorded nothing is known
    longer = request(**whole | {"e2e_ns": 60_000_000}, output_tokens=2)
    assert "ran without it" not in slowest_request(window, pl.DataFrame([longer]))["detail"]


def test_a_server_that_tells_only_the_whole(window):
    row = slowest_request(window, pl.DataFrame([request(start_epoch_ns=0, e2e_ns=S)]))
    assert (row["severity"], row["share"]) == ("info", None)
    assert slowest_request(window, pl.DataFrame([request(start_epoch_ns=0, e2e_ns=None)])) is None


SGLANG = {
    "id": "x",
    "prompt_tokens": 12,
    "completion_tokens": 5,
    "e2e_latency": 2.0,
    "queue_time": 0.25,
    "request_received_ts": 100.0,
    "forward_entry_time": 100.3,
    "prefill_finished_time": 100.5,
    "request_finished_ts": 102.0,
}


def test_records_of_sglang(tmp_path):
    path = tmp_path / "sglang.log"
    in_log = {
        "event": "request.finished",
        "out": {"meta_info": SGLANG | {"id": "y", "request_received_ts": 90.0}},
    }
    path.write_text(f"{json.dumps(SGLANG)}\n[2026-01-01] a line of its log\n{json.dumps(in_log)}\n")
    rows = llmprof.read_requests(path, skip_broken=True)
    assert rows["id"].to_list() == ["y", "x"]
    assert rows.select(
        "queue_ns", "ttft_ns", "prefill_ns", "decode_ns", "e2e_ns", "output_tokens"
    ).row(1) == (
        S // 4,
        S // 2,
        S // 5,
        3 * S // 2,
        2 * S,
        5,
    )
    path.write_text(json.dumps({"e2e_latency": 2.0}))
    with pytest.raises(ReadError, match="no request"):
        llmprof.read_requests(path)
