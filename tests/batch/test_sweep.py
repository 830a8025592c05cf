"""Sweeps: every point once, failures noted, and going on where it stopped."""

import fcntl
import json

import polars as pl
import pytest

from llmprof.errors import ConfigError, LaunchError, LlmprofError, OutputError, ReadError
from llmprof.report.sweep import overhead_in_words
from llmprof.run import batch
from llmprof.run.batch import BatchRunner
from tests.batch.runners import Runs, config, fail, interrupt

GRID = {"batch_size": [1, 2, 4], "max_tokens": [8, 16]}


def states(sweep):
    return sweep.comparison["state"].to_list()


def test_every_combination_runs_once_in_order(tmp_path):
    runs, told = Runs(), []
    sweep = BatchRunner(
        config(tmp_path),
        runner=runs,
        progress=lambda what, done, total: told.append((what, done, total)),
    ).run_parameter_sweep(GRID)
    assert runs.ran == [(1, 8), (1, 16), (2, 8), (2, 16), (4, 8), (4, 16)]
    assert states(sweep) == ["finished"] * 6
    assert sweep.folder.parent == tmp_path
    assert sweep.folder.name.startswith("tiny_torch_sweep_")
    assert [run.parent for run in sweep.runs] == [sweep.folder] * 6
    assert [run.folder.path for run in sweep] == sweep.runs
    assert len(sweep) == 6
    assert len({run.name for run in sweep.runs}) == 6
    assert ("point 2 of 6 (batch_size=1, max_tokens=16): plain 1 of 3", 1, 6) in told
    assert told[-1] == ("sweep", 6, 6)


def test_the_comparison_has_latencies_rates_and_shares_of_the_trace(tmp_path):
    sweep = BatchRunner(config(tmp_path), runner=Runs()).run_parameter_sweep({"batch_size": [1, 2]})
    first, second = sweep.comparison.to_dicts()
    assert (first["label"], first["batch_size"], first["measured"]) == ("batch_size=1", 1, "plain")
    # repeats of 0.1 and 0.102 s: 10 output tokens each
    assert first["output_tokens_per_s"] == pytest.approx((10 / 0.1 + 10 / 0.102) / 2)
    assert second["wall_ns"] == pytest.approx(202_000_000)
    assert first["overhead"] == pytest.approx(0.2 / 0.101 - 1)
    assert (first["peak_memory_bytes"], first["kv_cache_tokens"], first["ranks"]) == (5, 7, 2)
    assert first["agree"] is True
    shares = [first[name] for name in sweep.comparison.columns if name.startswith("share_")]
    assert sum(shares) == pytest.approx(1)
    assert first["share_exposed_communication"] > 0
    where = sweep.where
    assert where["point"].unique().to_list() == [0, 1]
    assert where.filter(point=0)["share"].sum() == pytest.approx(1)
    assert where["steps"].unique().to_list() == [2]


def test_a_run_without_a_trace_has_no_shares(tmp_path):
    runs = Runs()
    runs.trace = None
    sweep = BatchRunner(
        config(tmp_path, profile_mode="inference_only"), runner=runs
    ).run_parameter_sweep({"batch_size": [1]})
    assert sweep.comparison["share_idle"].to_list() == [None]
    assert sweep.where.is_empty()
    assert sweep.state["points"][0]["result"]["note"] == "no timeline."


def test_a_point_whose_values_do_not_go_together_is_a_failed_point(tmp_path):
    sweep = BatchRunner(config(tmp_path, engine="transformers"), runner=Runs()).run_parameter_sweep(
        {"tensor_parallel_size": [1, 2]}
    )
    assert states(sweep) == ["finished", "failed"]
    assert "transformers" in sweep.failed["tensor_parallel_size=2"]
    sweep = BatchRunner(config(tmp_path), runner=Runs(b2=fail)).run_parameter_sweep(
        {"batch_size": [1, 2, 4]}
    )
    assert states(sweep) == ["finished", "failed", "finished"]
    assert sweep.failed == {"batch_size=2": "out of memory; lower batch_size."}
    assert len(sweep.runs) == 2
    assert sweep.comparison.row(1, named=True)["output_tokens_per_s"] is None


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path):
    stopped, again = Runs(b2=interrupt), Runs(b4=fail)
    with pytest.raises(KeyboardInterrupt):
        BatchRunner(config(tmp_path), runner=stopped).run_parameter_sweep({"batch_size": [1, 2, 4]})
    (folder,) = tmp_path.glob("*_sweep_*")
    assert states(batch.open_sweep(folder)) == ["finished", "interrupted", "pending"]
    sweep = BatchRunner.resume(folder, runner=again)
    assert again.ran == [(2, 16), (4, 16)]
    assert states(sweep) == ["finished", "finished", "failed"]
    healed = Runs()
    assert states(BatchRunner.resume(folder, runner=healed)) == ["finished"] * 3
    assert healed.ran == [(4, 16)]
    assert BatchRunner.resume(folder, runner=healed).comparison.equals(
        batch.open_sweep(folder).comparison
    )
    assert healed.ran == [(4, 16)]


def test_a_point_whose_run_is_gone_runs_again(tmp_path):
    import shutil

    sweep = BatchRunner(config(tmp_path), runner=Runs()).run_parameter_sweep({"batch_size": [1, 2]})
    shutil.rmtree(sweep.runs[0])
    again = Runs()
    BatchRunner.resume(sweep.folder, runner=again)
    assert again.ran == [(1, 16)]


def test_folders_that_cannot_be_taken_are_refused(tmp_path):
    runner = BatchRunner(config(tmp_path), runner=Runs())
    sweep = runner.run_parameter_sweep({"batch_size": [1]})
    with pytest.raises(LlmprofError, match="has the parameters"):
        runner.run_parameter_sweep({"batch_size": [1, 2]}, folder=sweep.folder)
    sweep = BatchRunner(config(tmp_path), runner=Runs()).run_parameter_sweep({"batch_size": [1]})
    with (sweep.folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LlmprofError, match="another process runs the sweep"):
            BatchRunner.resume(sweep.folder, runner=Runs())
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        BatchRunner(config(tmp_path), runner=Runs()).run_parameter_sweep(
            {"batch_size": [1]}, folder=tmp_path / "file" / "x"
        )


def test_the_state_is_whole_at_every_moment(tmp_path):
    seen = []

    def look():
        (folder,) = tmp_path.glob("*_sweep_*")
        seen.append(
            [point["state"] for point in json.loads((folder / "sweep.json").read_text())["points"]]
        )

    BatchRunner(config(tmp_path), runner=Runs(b1=look, b2=look)).run_parameter_sweep(
        {"batch_size": [1, 2]}
    )
    assert seen == [["running", "pending"], ["finished", "running"]]
    assert not list(tmp_path.glob("*/.sweep.json*"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no sweep"),
        ("{", r"sweep\.json"),
        ("[]", r"sweep\.json"),
        ('{"version": 1, "points": [3]}', r"sweep\.json"),
    ],
    ids=["none", "damaged", "list", "points"],
)
def test_folders_that_hold_no_sweep(tmp_path, content, words):
    if content is not None:
        (tmp_path / "sweep.json").write_text(content)
    with pytest.raises(ReadError, match=words):
        batch.open_sweep(tmp_path)


def test_one_option_of_the_engine_varies_and_the_others_stay(tmp_path):
    seen = []

    class Noting(Runs):
        def __call__(self, config, *, progress):
            seen.append((config.engine_args, config.results_dir))
            return super().__call__(config, progress=progress)

    base = config(tmp_path, engine_args={"block_size": 16, "swap_space": 1})
    sweep = BatchRunner(base, runner=Noting()).run_parameter_sweep(
        {"engine_args.block_size": [32, None]}
    )
    assert [args for args, _ in seen] == [
        {"block_size": 32, "swap_space": 1},
        {"block_size": None, "swap_space": 1},
    ]
    assert {folder for _, folder in seen} == {str(sweep.folder)}
    assert sweep.comparison["engine_args.block_size"].to_list() == [32, None]


def test_synthetic_lengths_take_the_place_of_prompts(tmp_path):
    sweep = BatchRunner(config(tmp_path, prompt="Hello"), runner=Runs()).run_parameter_sweep(
        {"input_tokens": [8, [4, 16]]}
    )
    assert states(sweep) == ["finished"] * 2
    assert sweep.comparison["input_tokens"].to_list() == ["8", "[4, 16]"]


def test_the_report_of_a_sweep(tmp_path):
    def broken():
        raise LaunchError("out of memory <b>")

    sweep = BatchRunner(config(tmp_path), runner=Runs(b4=broken)).run_parameter_sweep(
        {"batch_size": [1, 2, 4]}
    )
    written = batch.write_report(sweep)
    text = written.index.read_text("utf-8")
    assert written.index == sweep.folder / "index.html"
    assert "batch_size=4 failed: out of memory &lt;b&gt;" in text
    assert "2 of 3 finished" in text
    assert "<dd>None</dd>" not in text
    assert "not known" in (
        overhead_in_words({"overhead": 0.1, "overhead_clear": None}) or ""
    )  # of one repeat
    assert 'id="findings"' not in text
    assert {path.stem for path in written.pngs} == {
        "throughput",
        "latency",
        "scaling",
        "where_time",
    }
    assert pl.read_csv(sweep.folder / "comparison.csv").height == 3


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({}, "no parameter"),
        ({"batchsize": [1]}, "such as batch_size"),
        ({"batch_size": []}, "no list of values"),
        ({"batch_size": "12"}, "no list of values"),
        ({"batch_size": [1, 2, 1]}, "a value twice"),
        ({"engine_args": [{}]}, "no 'engine_args' to sweep"),
        ({"results_dir": ["a"]}, "no 'results_dir' to sweep"),
    ],
    ids=["none", "unknown", "empty", "text", "twice", "mapping", "folder"],
)
def test_parameters_that_cannot_be_swept(tmp_path, parameters, words):
    with pytest.raises(ConfigError, match=words):
        BatchRunner(config(tmp_path), runner=Runs()).run_parameter_sweep(parameters)
    assert not list(tmp_path.iterdir())


def test_two_points_that_are_one_run_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="batch_size=0 and batch_size=1 are the same run"):
        BatchRunner(config(tmp_path), runner=Runs()).run_parameter_sweep({"batch_size": [0, 1]})
    assert not list(tmp_path.iterdir())
