"""Counters of servers: names of the engines, quantiles, and counters that vanish or begin anew."""

import math
import time

import polars as pl
import pytest

from llmprof.run.live import history
from llmprof.run.live.counters import SAMPLE, Scrape, between, parsed, quantile
from llmprof.run.live.past import LEVELS, WatchHistory, best_hour, coarser

VLLM = """
# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0"} 0.2
vllm:kv_cache_usage_perc{engine="1"} 0.4
vllm:generation_tokens_total{engine="0"} 1000.0
vllm:generation_tokens_created{engine="0"} 1.7e9
vllm:iteration_tokens_total_sum{engine="0"} 40.0
vllm:iteration_tokens_total_count{engine="0"} 10.0
vllm:prefix_cache_hits_total{engine="0"} 30.0
vllm:prefix_cache_queries_total{engine="0"} 40.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1"} 50.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5"} 90.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 100.0
vllm:time_to_first_token_seconds_sum{engine="0"} 20.0
vllm:time_to_first_token_seconds_count{engine="0"} 100.0
"""
SGLANG = """
sglang:num_running_reqs{model_name="m"} 7
sglang:num_queue_reqs{model_name="m"} 2
sglang:token_usage{model_name="m"} 0.5
sglang:generation_tokens_total{model_name="m"} 500
sglang:time_to_first_token_seconds_sum{model_name="m"} 3.5
sglang:time_to_first_token_seconds_count{model_name="m"} 7
"""
TGI = """
tgi_batch_current_size 6
tgi_queue_size 1
tgi_request_generated_tokens_sum 900
tgi_request_generated_tokens_count 30
tgi_request_duration_sum 12
tgi_request_duration_count 30
"""


def test_names_of_the_engines():
    vllm, sglang, tgi = parsed(VLLM), parsed(SGLANG), parsed(TGI)
    assert vllm.gauges == {"running": 5.0, "kv_usage": pytest.approx(0.3)}
    assert vllm.totals == {"output_tokens": 1000.0, "hits": 30.0, "queries": 40.0}
    assert (vllm.histograms["step_tokens"].sum, vllm.histograms["step_tokens"].count) == (
        40.0,
        10.0,
    )
    assert vllm.histograms["ttft"].buckets == {0.1: 50.0, 0.5: 90.0, math.inf: 100.0}
    assert sglang.gauges == {"running": 7.0, "waiting": 2.0, "kv_usage": 0.5}
    assert sglang.histograms["ttft"].sum == 3.5
    assert tgi.gauges == {"running": 6.0, "waiting": 1.0}
    assert tgi.totals == {"output_tokens": 900.0}
    assert "ttft" not in tgi.histograms, "it has no such histogram"


def test_an_older_name_counts_only_without_the_newer():
    both = "vllm:time_per_output_token_seconds_sum 5\nvllm:inter_token_latency_seconds_sum 7\n"
    for text in (both, "\n".join(reversed(both.splitlines()))):
        assert parsed(text).histograms["tpot"].sum == 7
    assert parsed(both.splitlines()[0]).histograms["tpot"].sum == 5


@pytest.mark.parametrize(
    "text", ["", "<html>", "vllm:num_requests_running NaN", "vllm:num_requests_running{", "\x00"]
)
def test_what_is_no_metric_is_left_out(text):
    assert parsed(text).gauges == {}
    assert parsed(text + "\n" + SGLANG).gauges["running"] == 7.0


UNREAD = [
    'vllm:time_to_first_token_seconds_bucket{le="abc"} 1',
    'vllm:time_to_first_token_seconds_bucket{le="NaN"} 1',
    'vllm:time_to_first_token_seconds_bucket{le=""} 1',
    "vllm:time_to_first_token_seconds_bucket 1",
    'vllm:num_requests_running{engine="0"}',
    "vllm:num_requests_running",
    "vllm:num_requests_running x",
    "vllm:num_requests_running 1 2 3",
    "vllm:num_requests_running 1 x",
    'vllm:num_requests_running{engine="0} 1',
    "vllm:num_requests_running{engine} 1",
    "vllm:num_requests_running{ 1",
    "vllm:num_requests_running} 1",
    "vllm:num_requests_running 0x10",
    "vllm:num_requests_running \x00",
    "vllm:\ud7ff 1",
    "vllm:",
]


@pytest.mark.parametrize("line", UNREAD)
def test_lines_that_cannot_be_read_are_counted(line):
    scrape = parsed(f"{line}\n{VLLM}{line}\n# {line}\nanother_{line}\n")
    assert scrape.unread == 2
    usual = parsed(VLLM)
    assert (scrape.gauges, scrape.totals, scrape.histograms) == (
        usual.gauges,
        usual.totals,
        usual.histograms,
    )


WRITTEN = [
    "NAME 3",
    "NAME\t3.0  ",
    "NAME 3 1800000000000",
    "NAME 3\r",
    "NAME{} 3",
    'NAME{a="b",} 3',
    'NAME { a = "b" , c="d" }3e0',
    'NAME{a="\\"} 4"} 3',
    'NAME{a="\\\\",b="\\n"} +3',
    'NAME{a=",le=",b="x,y}"} 3',
]


@pytest.mark.parametrize("line", WRITTEN)
def test_how_a_line_may_be_written(line):
    scrape = parsed(line.replace("NAME", "vllm:num_requests_running"))
    assert (scrape.gauges, scrape.unread) == ({"running": 3.0}, 0)
    bucket = (
        line.replace("{", '{le="0.5",', 1)
        if "{" in line
        else line.replace("NAME", 'NAME{le="0.5"}')
    )
    bucket = bucket.replace("NAME", "vllm:e2e_request_latency_seconds_bucket")
    assert parsed(bucket).histograms["e2e"].buckets == {0.5: 3.0}


def test_values_that_are_not_finite_count_nothing():
    lines = [
        f"vllm:num_requests_running {value}"
        for value in ("NaN", "+Inf", "-Inf", "1e999", "9" * 5000)
    ]
    assert parsed("\n".join([*lines, "vllm:num_requests_running 2"])).gauges == {"running": 2.0}
    most = "vllm:num_requests_running 1.7e308\n"
    assert parsed(most * 2).gauges == {}, "nor does a sum that is not"
    texts = [f"{VLLM}vllm:generation_tokens_total {value}\n" for value in ("-1.7e308", "1.7e308")]
    row = between(*(reading(text, at_s) for at_s, text in enumerate(texts)))
    assert row["output_tokens_per_s"] is None


SIZES = [0.25, 2.0]
LONG = {
    "labels": lambda size: "vllm:num_requests_running{" + 'a="1",' * (size // 6) + "} 3",
    "labels without an end": lambda size: "vllm:num_requests_running{" + 'a="1",' * (size // 6),
    "one label": lambda size: 'vllm:num_requests_running{a="' + "x" * size + '"} 3',
    "escapes without an end": lambda size: 'vllm:num_requests_running{a="' + "\\x" * (size // 2),
    "a name": lambda size: "vllm:" + "a" * size,
    "spaces": lambda size: "vllm:x" + " " * size + "y z",
    "lines": lambda size: "tgi_queue_size 1\n" * (size // 17),
    "bounds": lambda size: "".join(
        f'tgi_request_duration_bucket{{le="{k}"}} 1\n' for k in range(size // 40)
    ),
    "lines that cannot be read": lambda size: "tgi_\n" * (size // 5),
}


@pytest.mark.parametrize("kind", LONG)
def test_time_grows_with_the_text(kind):
    """Eight times the text takes about eight times as long, and not 64 times."""
    times = []
    for size in SIZES:
        text = LONG[kind](int(size * 2**20))
        took = []
        for _ in range(3):
            began = time.process_time()
            parsed(text)
            took.append(time.process_time() - began)
        times.append(min(took))
    assert times[1] < 0.02 + 24 * times[0]


def reading(text, at_s):
    return parsed(text, time_ns=int(at_s * 1e9), at_s=at_s)


def test_what_happened_between_two_readings():
    later = VLLM
    for before, after in [
        ('generation_tokens_total{engine="0"} 1000', 'generation_tokens_total{engine="0"} 1500'),
        ('le="0.1"} 50', 'le="0.1"} 55'),
        ('le="0.5"} 90', 'le="0.5"} 99'),
        ('le="+Inf"} 100', 'le="+Inf"} 110'),
        ('seconds_sum{engine="0"} 20', 'seconds_sum{engine="0"} 24'),
        ('seconds_count{engine="0"} 100', 'seconds_count{engine="0"} 110'),
        ('hits_total{engine="0"} 30', 'hits_total{engine="0"} 31'),
        ('queries_total{engine="0"} 40', 'queries_total{engine="0"} 44'),
    ]:
        later = later.replace(before, after)
    row = between(reading(VLLM, 10.0), reading(later, 20.0))
    assert row["output_tokens_per_s"] == 50.0
    assert row["ttft_count"] == 10
    assert row["ttft_mean"] == pytest.approx(0.4)
    assert row["ttft_p50"] == pytest.approx(0.1)  # 5 of 10 lie below 0.1
    assert row["ttft_p90"] == pytest.approx(0.5)
    assert row["ttft_p99"] == pytest.approx(
        0.5
    )  # in the last bucket, which has no end: at least its beginning
    assert row["hit_rate"] == 0.25
    assert row["waiting"] is None
    assert set(row) == set(SAMPLE)


def test_a_server_that_began_anew_has_no_rates():
    row = between(
        reading(VLLM, 10.0), reading(VLLM.replace("1000.0", "4.0").replace("100.0", "1.0"), 20.0)
    )
    assert row["output_tokens_per_s"] is None
    assert row["ttft_mean"] is None
    assert between(reading(VLLM, 10.0), reading(VLLM, 10.0))["output_tokens_per_s"] is None


@pytest.mark.parametrize(
    ("buckets", "share", "value"),
    [
        ({1.0: 10.0, 2.0: 20.0, math.inf: 20.0}, 0.5, 1.0),
        ({1.0: 10.0, 2.0: 20.0, math.inf: 20.0}, 0.75, 1.5),
        ({1.0: 4.0, math.inf: 4.0}, 0.5, 0.5),
        ({math.inf: 4.0}, 0.5, None),
        ({1.0: 0.0, math.inf: 0.0}, 0.5, None),
        ({1.0: 9.0, 2.0: 4.0, math.inf: 9.0}, 0.5, None),
        ({}, 0.5, None),
    ],
)
def test_quantiles(buckets, share, value):
    assert quantile(buckets, share) == value


def row(time_s, **values):
    return dict.fromkeys(SAMPLE) | {"time_ns": int(time_s * 1e9), "seconds": 5.0} | values


def test_a_coarser_level_weighs_by_time_and_by_requests():
    rows = pl.DataFrame(
        [
            row(0, running=1.0, ttft_mean=1.0, ttft_count=1.0, ttft_p99=1.0),
            row(5, running=3.0, ttft_mean=0.5, ttft_count=3.0, ttft_p99=3.0, seconds=15.0),
            row(61, running=None),
        ],
        schema=SAMPLE,
    )
    first, second = coarser(rows, 60).to_dicts()
    assert (first["time_ns"], second["time_ns"]) == (0, 60 * 10**9)
    assert first["running"] == pytest.approx((1 * 5 + 3 * 15) / 20)
    assert first["ttft_mean"] == pytest.approx((1 + 3 * 0.5) / 4)
    assert (first["ttft_count"], first["ttft_p99"], first["seconds"]) == (4.0, 2.0, 20.0)
    assert second["running"] is None
    assert second["ttft_count"] is None


def test_a_history_is_bounded_and_is_read_again(tmp_path):
    kept = WatchHistory.open(tmp_path / "history")
    for k in range(12_000):
        kept.add(row(5 * k, running=float(k % 7)))
    kept.store()
    frame = history(tmp_path)
    sizes = dict(frame.group_by("level").len().iter_rows())
    assert sizes == {"recent": LEVELS[0].rows, "minutes": 1000, "hours": 17}
    again = WatchHistory.open(tmp_path / "history")
    assert again.recent().equals(kept.recent())
    again.add(row(3, running=4.0))  # the clock was set back by seventeen hours
    assert again.hours().height == 17
    assert again.hours()["seconds"][0] == 3605.0


def test_the_best_hour_has_load_and_was_observed():
    hours = pl.DataFrame(
        [
            row(0, tpot_mean=0.02, output_tokens_per_s=9.0, seconds=3600.0),
            row(3600, tpot_mean=0.01, output_tokens_per_s=9.0, seconds=60.0),
            row(7200, tpot_mean=0.03, output_tokens_per_s=9.0, seconds=3600.0),
            row(10800, tpot_mean=0.001, output_tokens_per_s=0.0, seconds=3600.0),
        ],
        schema=SAMPLE,
    )
    assert best_hour(hours)["time_ns"] == 0


def test_a_scrape_is_empty_by_default():
    assert between(Scrape(0, 0.0), Scrape(1, 1.0))["running"] is None
