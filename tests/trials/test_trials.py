"""Trials: gains from pairs with a hand-computed answer, remedies of findings, and whole trials
on a stand-in engine.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import llmprof
from llmprof.errors import ConfigError, LaunchError, ReadError
from llmprof.run import launch, trials
from llmprof.run.launch import ExperimentConfig
from llmprof.run.launch.doctor.doctor import Gpu, GpuProcess
from llmprof.run.launch.monitors import table
from llmprof.run.trials import beside, gains, measure, schedule, settings
from tests.samples import sample
from tests.trials.conftest import config


def pairs(before, after, metric="wall_ns"):
    return pl.DataFrame(
        {"pair": range(len(before)), "metric": metric, "before": before, "after": after}
    )


def test_a_gain_is_the_share_of_time_saved_and_rates_say_the_same():
    (time_row,) = trials.effects(pairs([100.0, 200.0, 400.0], [80.0, 160.0, 320.0])).to_dicts()
    assert time_row["gain"] == pytest.approx(0.2)
    assert (time_row["gain_low"], time_row["gain_high"]) == pytest.approx((0.2, 0.2))
    assert time_row["before"] == pytest.approx(200.0)
    assert time_row["verdict"] == "better"
    (rate,) = trials.effects(
        pairs([10.0, 20.0, 40.0], [12.5, 25.0, 50.0], "output_tokens_per_s")
    ).to_dicts()
    assert rate["gain"] == pytest.approx(0.2)


def test_an_interval_is_widened_for_few_pairs():
    """Logs of 0.1, 0.2 and 0.3: the bootstrap means span 0.1 to 0.3 in its 2.5 % tails (1/27
    each), times t(2) / z.
    """
    logs = [0.1, 0.2, 0.3]
    (row,) = trials.effects(pairs([math.exp(x) for x in logs], [1.0] * 3)).to_dicts()
    wider = 4.303 / 1.959964 * math.sqrt(3 / 2)
    assert row["gain"] == pytest.approx(1 - math.exp(-0.2))
    assert row["gain_low"] == pytest.approx(1 - math.exp(-(0.2 - 0.1 * wider)))
    assert row["gain_high"] == pytest.approx(1 - math.exp(-(0.2 + 0.1 * wider)))
    assert row["verdict"] == "unknown"


def test_neighbours_that_are_alike_widen_an_interval():
    """Logs -3 … 3 in their order and in another one: sums of products of neighbours 16 and -17,
    of squares 28.
    """
    monotonous, mixed = [-3, -2, -1, 0, 1, 2, 3], [-3, 3, -1, 0, 1, -2, 2]
    for logs, r in ((monotonous, 16 / 28 + 1 / 7), (mixed, 0.0)):
        (row,) = trials.effects(pairs([math.exp(x / 100) for x in logs], [1.0] * 7)).to_dicts()
        width = math.log((1 - row["gain_low"]) / (1 - row["gain_high"])) * 100
        # of the means of seven samples of a uniform distribution of variance 4, nearly normal
        plain = 2 * 2.447 * math.sqrt(4 / 7) * math.sqrt(7 / 6)
        assert width == pytest.approx(plain * math.sqrt((1 + r) / (1 - r)), rel=0.04)


def test_a_trial_that_ends_when_it_knows_enough_is_not_wrong_more_often(tmp_path, monkeypatch):
    """60 trials of equal engines with noise of 3 %, each to 2 %: at most 5 % (and 1.6 standard
    errors) are wrong.
    """
    monkeypatch.setattr(gains, "RESAMPLES", 200)
    chance, same, wrong = np.random.default_rng(11), ExperimentConfig(model="random:tiny"), 0
    monkeypatch.setattr(measure, "_means", lambda worker, slo: {"wall_ns": worker["wall_ns"]})
    monkeypatch.setattr(beside, "device_processes", lambda config: set())
    for _ in range(60):
        state = measure.new_state(same, "again", {}, objective="wall_ns", until=0.02)
        one = measure.Trial(tmp_path, state, same.replace(monitor_hz=0), same, None, 40)
        monkeypatch.setattr(one, "store", lambda: None)
        engine = lambda timeout_s: {"wall_ns": math.exp(chance.normal(0, 0.03))}  # noqa: E731
        one.pairs({"A": engine, "B": engine})
        wrong += trials.Verdict(tmp_path, state).verdict in {"better", "worse"}
    assert wrong <= 60 * 0.05 + 1.6 * math.sqrt(60 * 0.05 * 0.95)


@pytest.mark.parametrize(
    ("after", "until", "verdict"),
    [
        ([1.001, 0.999, 1.0, 1.0], 0.02, "no effect"),
        ([1.2, 0.8, 1.1, 0.9], 0.02, "unknown"),
        ([1.1, 1.11, 1.09, 1.1], 0.02, "worse"),
        ([0.998, 0.998, 0.998, 0.998], 0.02, "no effect"),
        ([0.9], 0.02, "unknown"),
    ],
    ids=["within", "noise", "worse", "tiny", "one-pair"],
)
def test_verdicts(after, until, verdict):
    assert trials.effects(pairs([1.0] * len(after), after), until=until)["verdict"][0] == verdict


def test_equal_engines_have_no_effect_in_19_of_20_trials(monkeypatch):
    """Intervals of six pairs without an effect leave out 0 in at most 5 % of 400 trials (and 1.6
    standard errors).
    """
    monkeypatch.setattr(gains, "RESAMPLES", 1000)
    chance = np.random.default_rng(7)
    wrong = 0
    for k in range(400):
        a, b = np.exp(chance.normal(0, 0.02, (2, 6)))
        wrong += trials.effects(pairs(a, b), seed=k)["verdict"][0] in {"better", "worse"}
    assert wrong <= 400 * 0.05 + 1.6 * math.sqrt(400 * 0.05 * 0.95)


def test_unknown_values_are_left_out():
    frame = pairs([1.0, None, 0.0, 2.0], [1.0, 1.0, 1.0, None])
    assert trials.effects(frame)["pairs"].to_list() == [1]
    assert trials.effects(frame.head(0)).is_empty()


def test_drift_is_the_slope_against_the_means_of_the_sides():
    hour = 3_600_000_000_000
    rows = [
        {"at_ns": k * hour // 10, "side": side, "wall_ns": base * math.exp(0.1 * k / 10)}
        for k, (side, base) in enumerate([("A", 100.0), ("B", 50.0), ("B", 50.0), ("A", 100.0)] * 2)
    ]
    assert gains.drift(pl.DataFrame(rows))["per_hour"] == pytest.approx(0.1)
    assert gains.drift(pl.DataFrame(rows).head(4)) is None


@pytest.mark.parametrize(
    ("a", "b", "share"),
    [([[1, 2], [3, 4]], [[1, 2], [3, 5]], 0.75), ([[1, 2, 3]], [[1]], 1 / 3), ([[]], [[]], None)],
)
def test_equal_tokens(a, b, share):
    assert trials.tokens_equal(a, b) == (None if share is None else pytest.approx(share))


CONFIG = ExperimentConfig(model="m", eager=True, engine_args={"max_num_seqs": 4}, batch_size=8)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("graphs", {"eager": False, "layer_annotations": False}),
        ("more-sequences", {"engine_args.max_num_seqs": 8}),
        ("fewer-sequences", {"engine_args.max_num_seqs": 2}),
        ("prefix-cache", {"engine_args.enable_prefix_caching": True}),
        (
            "engine_args.block_size=32;dtype=float16",
            {"engine_args.block_size": 32, "dtype": "float16"},
        ),
    ],
)
def test_changes_by_name_and_by_field(text, fields):
    assert settings.parse_change(text, CONFIG, {})[1] == fields
    assert settings.changed_config(CONFIG, fields) != CONFIG


@pytest.mark.parametrize("text", ["graphics", "eager", "all-reduce", "fewer-ranks"])
def test_changes_that_cannot_be_made_say_why(text):
    with pytest.raises(ConfigError):
        settings.parse_change(text, CONFIG, {})


@pytest.mark.parametrize("fields", [{"eager": True}, {"no_such": 1}, {"dtype": "float7"}])
def test_a_change_that_is_none_or_wrong_is_refused(fields):
    with pytest.raises(ConfigError):
        settings.changed_config(CONFIG, fields)


def run(machine, change="graphs", **options):
    given = {"folder": machine.folder / "trial", "profile": False, "objective": "tpot_ns"}
    return llmprof.trial(config(machine), change, **(given | options))


def test_a_trial_measures_in_turn_and_says_what_the_change_did(machine):
    verdict = run(machine)
    assert verdict.verdict == "better"
    assert verdict.effect["gain"] == pytest.approx(0.5)
    assert verdict.keep == {"eager": False, "layer_annotations": False}
    order = [
        side
        for pair in verdict.state["pairs"]
        for side in sorted(pair, key=lambda side: pair[side]["at_ns"])
    ]
    assert "".join(order).startswith("ABBAAB")
    assert len(machine.calls("LLM")) == 2  # each engine was started once
    assert verdict.state["equal"] == {"between": 1.0, "within": 1.0}
    again = trials.open_trial(verdict.folder)
    assert again.effects.equals(verdict.effects)
    written = json.loads((verdict.folder / "verdict.json").read_text())
    assert written["verdict"] == "better"
    assert written["effects"] == verdict.effects.to_dicts()


def test_a_page_of_a_trial(machine):
    verdict = run(machine)
    page = verdict.report()
    assert page.index.read_text().count(verdict.says)
    assert pl.read_csv(verdict.folder / "pairs.csv").height == verdict.pairs.height
    assert (verdict.folder / "effects.png").is_file()


def test_the_page_draws_the_way_from_one_step_to_the_other(machine, monkeypatch):
    run(machine)
    state = json.loads((machine.folder / "trial" / "trial.json").read_text()) | {
        "profiled": {"A": "a", "B": "b"}
    }
    traces = {"a": sample("torch_tp1_eager"), "b": sample("torch_tp1_cudagraph")}
    monkeypatch.setattr(launch, "open_run", lambda path: SimpleNamespace(trace=traces[path.name]))
    verdict = trials.Verdict(machine.folder / "trial", state)
    verdict.report()
    assert (verdict.folder / "why.png").is_file()
    assert pl.read_csv(verdict.folder / "why.csv").height == verdict.why.height


def test_what_else_used_the_device_is_said(machine, monkeypatch):
    lists = iter(
        [[7], [7, 1, 2], [7, 1, 2], *[[7, 1, 2, 9]] * 30]
    )  # before the engines, with both, in the pairs

    def driver(nvml, visible):
        found = [GpuProcess(pid=pid, name=f"p{pid}", memory_bytes=pid) for pid in next(lists)]
        return {"gpus": (Gpu(index=0, name="H100", processes=tuple(found)),)}

    monkeypatch.setattr(beside, "ask_gpus", driver)
    monkeypatch.setattr(measure, "device_count", lambda: 0)
    # a busy machine adds notes of its own
    notes = [note for note in run(machine, most_pairs=3).state["notes"] if " used " in note]
    assert ["p7 (7) used" in note for note in notes] == [True, False]
    assert ["p9 (9) used" in note for note in notes] == [False, True]


def test_clocks_that_were_held_down_are_said(tmp_path):
    samples = table.SampleTable()
    for k, mask in enumerate((0x1, 0x4, 0x4, 0x44)):  # idle, power, power, power and heat
        samples.add(k, table.MonitorValue("gpu.throttle_reasons", "1", mask, 0))
    table.write(samples.frame(), tmp_path / "monitors.parquet", {})
    said = beside.slowed(tmp_path / "monitors.parquet")
    assert (
        said
        == "sw_power_cap in 75.0 % of the samples, hw_thermal_slowdown in 25.0 % of the samples"
    )
    assert not beside.slowed(tmp_path / "none.parquet")


def test_engines_can_be_started_in_turn(machine):
    verdict = run(machine, warm=False, most_pairs=3)
    assert verdict.verdict == "better"
    assert len(machine.calls("LLM")) == 6


def test_a_setting_that_the_engine_refuses_is_a_verdict(machine, monkeypatch):
    monkeypatch.setenv("STAND_IN_VLLM", json.dumps({"old": False, "fails_eager": False}))
    verdict = run(machine)
    assert verdict.verdict == "failed"
    assert "no such setting" in verdict.state["error"]
    assert verdict.keep == {}


def test_an_engine_that_fails_without_the_change_is_an_error(machine, monkeypatch):
    monkeypatch.setenv("STAND_IN_VLLM", json.dumps({"old": False, "fails_eager": True}))
    with pytest.raises(LaunchError, match="no such setting"):
        run(machine)


def test_a_trial_is_continued(machine):
    first = run(machine, most_pairs=3, until=1e-6, objective="wall_ns")
    assert first.pairs["pair"].n_unique() == 3
    more = run(machine, most_pairs=5, until=1e-6, objective="wall_ns")
    assert more.pairs["pair"].n_unique() == 5
    assert more.pairs.filter(pl.col("pair") < 3).equals(first.pairs)
    starts = len(machine.calls("LLM"))
    whole = run(machine, most_pairs=5, until=1e-6, objective="wall_ns")
    assert len(machine.calls("LLM")) == starts
    assert (whole.state["equal"], whole.state["engines"]) == (
        more.state["equal"],
        more.state["engines"],
    )
    with pytest.raises(ConfigError, match="another"):
        run(machine, "engine_args.max_num_seqs=4")


def test_a_killed_trial_leaves_no_process_and_goes_on(machine):
    program = (
        "import sys, llmprof; from llmprof.run.launch import ConfigManager; from llmprof.run.launch.run import passes\n"
        "passes.ask_doctor = lambda *_: None\n"
        "llmprof.trial(ConfigManager.load_config(sys.argv[1]), 'graphs', folder=sys.argv[2], until=1e-6,"
        " most_pairs=500, profile=False)"
    )
    path = machine.folder / "config.yaml"
    launch.ConfigManager.save_config(config(machine), path)
    target = machine.folder / "trial"
    process = subprocess.Popen([sys.executable, "-c", program, str(path), str(target)])
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            if len(trials.open_trial(target).state["pairs"]) >= 2:
                break
        except ReadError:
            time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = len(trials.open_trial(target).state["pairs"])
    assert kept >= 2
    while time.monotonic() < until and _running(target):
        time.sleep(0.05)
    assert not _running(target)
    assert (
        run(machine, most_pairs=kept + 3, until=1e-6, objective="wall_ns").pairs["pair"].n_unique()
        == kept + 3
    )


def _running(folder):
    listed = subprocess.run(
        ["ps", "-eo", "args"], capture_output=True, text=True, check=True
    ).stdout
    return [line for line in listed.splitlines() if f"{folder}/engine-" in line]


@pytest.mark.parametrize(
    "options", [{"until": 0}, {"until": 2.0}, {"most_pairs": 1}, {"objective": "speed"}]
)
def test_wrong_options_are_refused(machine, options):
    with pytest.raises(ConfigError):
        run(machine, **options)


def test_a_folder_without_a_trial_is_refused(tmp_path):
    with pytest.raises(ReadError):
        trials.open_trial(tmp_path)


def test_predictions_are_counted_against_their_outcomes(tmp_path):
    pair = {
        side: {"at_ns": 0, "means": {"wall_ns": ns}} for side, ns in (("A", 100.0), ("B", 80.0))
    }
    state = {
        "version": 1,
        "config": CONFIG.to_dict(),
        "change": "graphs",
        "fields": {"eager": False},
        "objective": "wall_ns",
        "until": 0.02,
        "notes": [],
        "pairs": [pair] * 4,
    }
    for name, (low, high) in {
        "held": (0.1, 0.25),
        "missed": (0.3, 0.4),
        "none": (None, None),
    }.items():
        (tmp_path / name).mkdir()
        predicted = (
            {"predicted": {"gain": (low + high) / 2, "low": low, "high": high}} if low else {}
        )
        (tmp_path / name / "trial.json").write_text(json.dumps(state | predicted))
    found = trials.calibration(tmp_path)
    assert dict(found.select("trial", "held").iter_rows()) == {"held": True, "missed": False}
    assert found["measured"].to_list() == pytest.approx([0.2, 0.2])


def test_remedies_of_a_run(machine, monkeypatch):
    done = launch.Run(launch.RunFolder.create(config(machine)), config(machine))
    found = pl.DataFrame(
        {"order": [1, 2], "rule": ["host_bound", "unexplained_idle"], "title": ["late", "idle"]},
        schema_overrides={"order": pl.Int32},
    )
    rows = trials.remedies(done, found)
    first = rows.row(0, named=True)
    assert (first["rule"], first["remedy"], first["reason"], first["change"]) == (
        *("host_bound", "graphs", None, "no-host-delay"),
    )
    last = rows.row(-1, named=True)
    assert (last["rule"], last["remedy"]) == ("unexplained_idle", None)
    assert last["reason"]
    assert measure._objective(config(machine)) == "output_tokens_per_s"


def test_a_pipeline_gets_a_batch_for_each_stage(machine):
    of_two = {"pipeline_parallel_size": 2, "batch_size": 5, "input_tokens": 30}
    fields = settings.remedy("a-batch-a-stage").fields
    assert fields(config(machine, **of_two), {}) == {"engine_args.max_num_batched_tokens": 75}
    for other in (
        {"batch_size": 1},
        {"pipeline_parallel_size": 1},
        {"input_tokens": None, "prompt": "a"},
    ):
        with pytest.raises(settings.NotHereError):
            fields(config(machine, **of_two | other), {})


def test_cards_of_findings_have_a_command(machine):
    done = launch.Run(launch.RunFolder.create(config(machine)), config(machine))
    found = settings.commands(done)
    assert found["host_bound"] == f"llmprof try {done.folder.path} graphs"
    assert "exposed_communication" not in found  # one rank
    graphs = settings.commands(launch.Run(done.folder, config(machine, eager=False)))
    assert graphs["host_bound"].endswith("async-scheduling")


def test_a_prediction_is_a_share_of_the_time_that_the_objective_has(machine):
    done = launch.Run(launch.RunFolder.create(config(machine)), config(machine))
    done.__dict__["trace"] = trace = sample("torch_tp4_eager_nccl")
    (row,) = llmprof.analyze.what_if(trace, "no-host-delay").to_dicts()
    of_decode = measure.predicted_gain(done, "graphs", "tpot_ns", {})
    assert of_decode["gain"] == pytest.approx(row["gain_ns"] / row["recorded_ns"])
    assert of_decode["low"] <= of_decode["gain"] <= of_decode["high"]
    of_all = measure.predicted_gain(done, "graphs", "output_tokens_per_s", {})
    whole = llmprof.analyze.steps(trace)["dur_ns"].sum()
    assert of_all["gain"] == pytest.approx(row["gain_ns"] * row["steps"] / whole)
    for name, objective in (("graphs", "ttft_ns"), ("kv-fp8", "tpot_ns"), ("kv-fp8", "wall_ns")):
        with pytest.raises(schedule.NoPredictionError):
            measure.predicted_gain(done, name, objective, {"engine_args.kv_cache_dtype": "fp8"})
