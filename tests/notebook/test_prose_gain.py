"""Sentences about gains: each follows from its frame, and says so where there is nothing to say."""

from __future__ import annotations

import polars as pl

from llmprof.analyze import changes, critical_path, findings
from llmprof.notebook import prose
from tests.analyze.test_replay import device_bound, host_bound


def test_the_pace_is_where_the_path_lies() -> None:
    slow_host = prose.of_pace(critical_path(host_bound()))
    assert slow_host[1] == "Faster kernels would change little."
    slow_device = prose.of_pace(critical_path(device_bound()))
    assert slow_device[1].startswith("Faster kernels would change something")
    assert prose.of_pace(critical_path(host_bound()).clear()) == [
        "No step of this recording ends on a device, so nothing is known to set its pace."
    ]


def test_the_decision_names_the_best_and_what_is_in_vain() -> None:
    rows = prose.compared(host_bound(), [changes.scale("host", 0.5), changes.scale("nvjet", 0.5)])
    assert rows["change"].to_list() == ["host x 0.5", "nvjet x 0.5", "host x 0.5; nvjet x 0.5"]
    said = prose.of_decision(rows)
    assert said[0].startswith("The most is gained by “host x 0.5")
    assert said[1] == "Nothing is gained alone by “nvjet x 0.5”."
    none = prose.compared(host_bound(), [changes.scale("no such kernel", 0.5)])
    assert none["unknown"][0].startswith("cannot be made here")
    assert prose.of_decision(none) == ["None of these changes can be made in this recording."]


def test_predictions_are_said_or_their_absence() -> None:
    found = findings(host_bound())
    assert prose.of_predictions(found.clear()) == [
        "No finding of this recording has a remedy that a replay could make."
    ]
    known = found.head(1).with_columns(
        predicted_ns=pl.lit(10.0), gain_ns=pl.lit(1e6), share_of_time=pl.lit(0.5), figure=pl.lit(1e6),
        change=pl.lit("balance"), prediction=pl.lit("Replayed."), rule=pl.lit("arrival_skew"), unit=pl.lit("ns a step"),
    )  # fmt: skip
    assert prose.of_predictions(known) == [
        "The most is predicted for `balance` (arrival_skew). Replayed.",
        "arrival_skew is about 1.00 ms a step, but its remedy would gain only 10 ns: something else sets the pace.",
    ]
