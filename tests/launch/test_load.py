"""Loads: lengths, arrivals, shared prefixes and files of requests."""

from __future__ import annotations

import json
import statistics

import pytest

from llmprof.errors import ConfigError
from llmprof.launch import ExperimentConfig
from llmprof.launch.engines._job import token_ids, turns
from llmprof.launch.engines._server import achieved
from llmprof.launch.run.command import job
from llmprof.launch.run.load import lengths, load


def config(**values) -> ExperimentConfig:
    return ExperimentConfig.from_dict({"model": "random:tiny", **values})


def served(file=None, **load_of) -> ExperimentConfig:
    more = {"file": str(file)} if file is not None else {}
    return config(served=True, load=more | load_of)


@pytest.mark.parametrize(
    ("said", "mean", "deviation"),
    [
        ("512", 512, 0),
        ("100:300", 200, 58),  # uniform: (300 - 100) / sqrt(12)
        ("normal:400:50", 400, 50),
        ("lognormal:400:200", 400, 200),
        ("exponential:300", 300, 300),
    ],
)
def test_lengths_have_the_mean_and_deviation_that_were_asked_for(said, mean, deviation):
    found = lengths(said, 20_000, seed=1)
    assert statistics.fmean(found) == pytest.approx(mean, rel=0.03)
    assert statistics.pstdev(found) == pytest.approx(deviation, rel=0.06, abs=0.1)
    assert found == lengths(said, 20_000, seed=1)
    assert found[:50] != lengths(said, 50, seed=2) or not deviation


@pytest.mark.parametrize(
    "said", ["", "0", "-3", "9:3", "gauss:4:5", "normal:5", "exponential:a", "lognormal:0:1", "nan"]
)
def test_lengths_that_are_none_are_refused(said):
    with pytest.raises(ConfigError, match=r"load\.input is .*expected N, LOW:HIGH"):
        lengths(said, 3, seed=0)


def test_every_request_of_a_served_run_has_a_prompt_of_its_own():
    made, _ = job(config(served=True, input_tokens=64, server={"num_prompts": 20}), "tiny")
    prompts = token_ids(made["synthetic"])
    assert len(prompts) == 20
    assert len({tuple(prompt) for prompt in prompts}) == 20
    assert {len(prompt) for prompt in prompts} == {64}
    assert made["prefix_caching"] is False


def test_prompts_share_the_stated_share():
    made, _ = job(served(input="40:80", shared_prefix=0.5, prefixes=2), "tiny")
    prompts = token_ids(made["synthetic"])
    assert len({tuple(prompt) for prompt in prompts}) == 16
    for one, other in zip(prompts, prompts[2:], strict=False):
        half = min(len(one), len(other)) // 2
        assert one[:half] == other[:half]
    assert prompts[0][:20] != prompts[1][:20]
    assert made["prefix_caching"] is True


def test_azure_traces_have_lengths_and_times(tmp_path):
    file = tmp_path / "azure.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:48.1805900,7,2\n"
    )
    found = load(served(file))
    assert (found.input_tokens, found.output_tokens) == ([374, 7], [44, 2])
    assert found.arrivals_s == pytest.approx([0.0, 1.5])
    assert load(served(file, speed=3.0)).arrivals_s == pytest.approx([0.0, 0.5])


def test_json_lines_come_in_the_order_of_their_times(tmp_path):
    file = tmp_path / "mooncake.jsonl"
    rows = [{"timestamp": 3000, "input_length": 9, "output_length": 2}, {"timestamp": 1000, "input_length": 5}]
    file.write_text("\n".join(map(json.dumps, rows)))
    found = load(served(file, time_unit="ms"))
    assert (found.input_tokens, found.arrivals_s) == ([5, 9], [0.0, 2.0])
    assert found.output_tokens == [16, 2]
    made, _ = job(served(file, time_unit="ms"), "tiny")
    assert made["server"]["num_prompts"] == 2
    assert [len(prompt) for prompt in token_ids(made["synthetic"])] == [5, 9]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{broken", "line 2 of load.jsonl: '{broken' is not a JSON object"),
        ('{"timestamp": 1, "input_length": -4}', "line 2 .*input_length is -4, which is not a number of tokens"),
        ('{"timestamp": "soon", "input_length": 4}', "line 2 .*'soon' is not a time"),
        ('{"timestamp": 1}', "line 2 .*neither a length .* nor a prompt"),
    ],
)
def test_a_broken_line_is_named_and_left_out_only_when_asked(tmp_path, line, words):
    file = tmp_path / "load.jsonl"
    good = '{"timestamp": 0, "input_length": 3}'
    file.write_text(f"{good}\n{line}\n{good}\n")
    with pytest.raises(ConfigError, match=words) as error:
        load(served(file))
    assert error.value.facts["line"] == 2
    found = load(served(file, skip_broken=True))
    assert found.input_tokens == [3, 3]
    assert found.notes == ("1 broken lines of load.jsonl were left out: 2",)


def test_a_file_without_requests_and_times_in_some_lines(tmp_path):
    file = tmp_path / "load.jsonl"
    file.write_text("\n")
    with pytest.raises(ConfigError, match="has no requests"):
        load(served(file))
    file.write_text('{"timestamp": 0, "input_length": 3}\n{"input_length": 3}')
    with pytest.raises(ConfigError, match=r"only some lines of .* have a time"):
        load(served(file))


def test_the_achieved_rate_is_over_the_time_that_the_requests_took():
    requests = [{"start_ns": k * 10**9, "e2e_s": 2.0, "arrived_s": 0.0} for k in range(4)]
    # four requests arrive within 3 s, and the last one ends after 5 s
    assert achieved(requests, [0.0, 1.0, 2.0, 3.0]) == {"arrived_per_s": 1.0, "answered_per_s": 0.8}
    assert achieved(requests[:1], [0.0]) == {"arrived_per_s": None, "answered_per_s": None}


class _Notes:
    def __init__(self, walls):
        self.document, self.notes, self._walls = {"stages": []}, [], iter(walls)

    def measure(self):
        self.document["stages"].append({"name": "plain", "dur_ns": next(self._walls)})

    def note(self, text):
        self.notes.append(text)


@pytest.mark.parametrize(
    ("walls", "until", "repeats", "noted"),
    [
        ([100, 130, 90, 100], None, 2, 0),
        ([100, 101, 100] * 9, 0.03, 3, 0),  # half width: 4.303 * 0.577 / sqrt(3) = 1.43 of 100.3
        ([100, 200] * 20, 0.03, 6, 1),
    ],
)
def test_repeats_go_on_until_the_mean_is_known(walls, until, repeats, noted):
    record = _Notes(walls)
    for _ in turns({"until": until, "most_repeats": 6}, record, "plain", 2):
        record.measure()
    assert len(record.document["stages"]) == repeats
    assert len(record.notes) == noted
