"""Spans of vLLM as OTLP in JSON.

The files are synthetic, made here after vLLM 0.32's ``do_tracing``.
"""

import json

import pytest

import llmprof
from llmprof.errors import ReadError


def span(start_ns, *, name="llm_request", number=1, **attributes):
    """A span as the collector writes it:

    ``usage__prompt_tokens=3`` is ``gen_ai.usage.prompt_tokens``.
    """
    kinds = {str: "stringValue", int: "intValue", float: "doubleValue"}
    written = [
        {
            "key": f"gen_ai.{key.replace('__', '.')}",
            "value": {kinds[type(v)]: str(v) if type(v) is int else v},
        }
        for key, v in attributes.items()
    ]
    ids = {"traceId": f"{number:032x}", "spanId": f"{number:016x}"}
    return {**ids, "name": name, "startTimeUnixNano": str(start_ns), "attributes": written}


def document(*spans):
    scope = {"scope": {"name": "vllm.llm_engine"}, "spans": list(spans)}
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [scope]}]}


FIRST = span(
    1_700_000_000_000_000_000,
    number=1,
    request__id="cmpl-a",
    usage__prompt_tokens=64,
    usage__completion_tokens=8,
    latency__time_in_queue=0.25,
    latency__time_to_first_token=0.5,
    latency__e2e=1.5,
    latency__time_in_model_prefill=0.2,
    latency__time_in_model_decode=1.0,
)
SECOND = span(1_600_000_000_000_000_000, number=2, request__id="cmpl-b", latency__e2e=2.0)


@pytest.mark.parametrize("lines", [False, True], ids=["document", "lines"])
def test_requests_come_by_their_start(tmp_path, lines):
    file = tmp_path / "spans.json"
    several = "\n".join(json.dumps(document(one)) for one in (FIRST, SECOND, FIRST))
    file.write_text(several if lines else json.dumps(document(FIRST, SECOND, FIRST)))
    found = llmprof.read_requests(file)
    assert found["id"].to_list() == ["cmpl-b", "cmpl-a"]  # the first one was sent twice
    assert found.row(1, named=True) == {
        "phase": "profiled",
        "repeat": 0,
        "request": 1,
        "id": "cmpl-a",
        "start_epoch_ns": 1_700_000_000_000_000_000,
        "prompt_tokens": 64,
        "output_tokens": 8,
        "queue_ns": 250_000_000,
        "ttft_ns": 500_000_000,
        "prefill_ns": 200_000_000,
        "decode_ns": 1_000_000_000,
        "e2e_ns": 1_500_000_000,
        "itl_ns": None,
    }


def test_what_is_no_span_of_a_request_is_passed_over_or_named(tmp_path):
    file = tmp_path / "spans.json"
    for text in (
        "[]",
        "{}",
        json.dumps(document({"name": "GET"}, span(1, usage__prompt_tokens=3), 7)),
    ):
        file.write_text(text)
        with pytest.raises(ReadError, match=r"spans\.json has no request"):
            llmprof.read_requests(file)
    with pytest.raises(ReadError, match="cannot be read"):
        llmprof.read_requests(tmp_path / "none")
    odd = span(5, latency__e2e="soon", latency__time_to_first_token=0.5)
    file.write_text(json.dumps(document(odd)))
    assert llmprof.read_requests(file)["e2e_ns"].to_list() == [None]


def test_a_broken_line_is_named_and_left_out_only_when_asked(tmp_path):
    file = tmp_path / "spans.jsonl"
    file.write_text(json.dumps(document(FIRST)) + "\n{broken\n" + json.dumps(document(SECOND)))
    with pytest.raises(
        ReadError, match=r"line 2 of spans\.jsonl is not JSON.*skip_broken=True"
    ) as error:
        llmprof.read_requests(file)
    assert error.value.facts["line"] == 2
    assert llmprof.read_requests(file, skip_broken=True)["id"].to_list() == ["cmpl-b", "cmpl-a"]
