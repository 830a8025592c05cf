"""``llmprof run``, ``sweep``, ``runs`` and ``doctor``: options, dry runs, and what is said
afterwards.
"""

import argparse
import dataclasses
import json
import shlex
from types import SimpleNamespace

import pytest

from llmprof.cli import main
from llmprof.cli import run as cli_run
from llmprof.errors import ConfigError, LaunchError, LlmprofError, OutputError
from llmprof.report import Visualizer
from llmprof.run import launch
from llmprof.run.launch import ExperimentConfig, RunFolder
from tests.batch.runners import FakeRun, Runs, fail
from tests.building import table_of
from tests.report.builders import build
from tests.test_errors import Panic


def config_of(*argv):
    return cli_run.config_from(main.parser().parse_args(["run", *argv]))


class TestOptions:
    def test_every_field_of_the_configuration_has_an_option(self):
        parser = argparse.ArgumentParser()
        cli_run.add_config_options(parser)
        options = {option for action in parser._actions for option in action.option_strings}
        renamed = {"environment": "--env", "timeout_s": "--timeout", "engine_args": "--engine-arg"}
        renamed |= {f"{tool}_options": f"--{tool}-option" for tool in ("nsys", "ncu", "ops")}
        for field in dataclasses.fields(ExperimentConfig):
            assert renamed.get(field.name, f"--{field.name.replace('_', '-')}") in options

    def test_mappings_lists_lengths_and_switches(self):
        words = "--model m --prompt a --prompt b --engine-arg block_size=16 --engine-arg kv_cache_dtype=fp8 "
        words += "--nsys-option=--gpu-metrics-devices=all --ncu-option launch_count=3 --no-plain --eager --timeout 9 "
        words += "--env OMP_NUM_THREADS=1 --env=FLAG=true"
        config = config_of(*words.split(), '--engine-arg=compilation_config={"mode": 0}')
        assert config.prompt == ["a", "b"]
        assert config.engine_args == {
            "block_size": 16,
            "kv_cache_dtype": "fp8",
            "compilation_config": {"mode": 0},
        }
        assert config.environment == {"OMP_NUM_THREADS": "1", "FLAG": "true"}
        assert config.nsys_options == {"gpu-metrics-devices": "all"}
        assert config.ncu_options == {"launch_count": 3}
        assert (config.plain, config.eager, config.timeout_s) == (False, True, 9.0)
        assert config_of("--model", "m", "--input-tokens", "32:64").input_tokens == (32, 64)
        assert config_of("--model", "m", "--input-tokens", "32").input_tokens == 32

    def test_options_go_over_the_file(self, tmp_path):
        file = tmp_path / "run.yaml"
        file.write_text(
            "model: random:tiny\nprompt: Hello\nmax_tokens: 7\nengine_args: {block_size: 16, swap_space: 1}\n",
            "utf-8",
        )
        config = config_of(
            "--config", str(file), "--input-tokens", "8", "--engine-arg", "swap_space=2"
        )
        assert (config.max_tokens, config.prompt, config.input_tokens) == (7, None, 8)
        assert config.engine_args == {"block_size": 16, "swap_space": 2}
        assert config_of("--config", str(file)).prompt == "Hello"

    @pytest.mark.parametrize(
        ("argv", "words"),
        [
            (["--model", "m", "--engine-arg", "x"], "--engine-arg 'x' has no value"),
            (["--model", "m", "--env", "=x"], "--env '=x' has no value"),
            (["--model", "m", "--input-tokens", "many"], "is not a length"),
            (["--model", "m", "--input-tokens", "1:2:3"], "is not a length"),
            (["--model", "m", "--ncu-option", "launches=3"], "unknown key 'launches'"),
            (["--max-tokens", "3"], "names no model"),
            (["--config", "/nowhere/run.yaml"], "cannot be read"),
        ],
    )
    def test_what_cannot_be(self, argv, words):
        with pytest.raises(ConfigError, match=words):
            config_of(*argv)


class TestDryRun:
    def test_prints_what_would_be_run_and_writes_nothing(self, run, tmp_path):
        code, out, err = run(
            "run",
            "--model",
            "random:tiny",
            "--profile-mode",
            "nsys_ncu",
            "--results-dir",
            str(tmp_path / "r"),
            "--python",
            "/opt/engine/bin/python",
            "--env",
            "A=b c",
            "--dry-run",
        )
        assert (code, err) == (0, "")
        lines = out.splitlines()
        assert [line for line in lines if line.startswith("#")] == [
            "# environment",
            "# nsys",
            "# ncu",
        ]
        assert "VLLM_WORKER_MULTIPROC_METHOD=spawn" in lines[1]
        assert lines[1].endswith("A='<removed>'")
        same = {
            "profile_mode": "nsys_ncu",
            "results_dir": str(tmp_path / "r"),
            "python": "/opt/engine/bin/python",
        }
        plan = launch.plan(ExperimentConfig(model="random:tiny", **same))
        assert [shlex.split(lines[3]), shlex.split(lines[5])] == [argv for _, argv in plan]
        assert not list(tmp_path.iterdir())

    def test_of_a_sweep(self, run):
        code, out, _ = run(
            "sweep --model random:tiny --dry-run --preset quick --parameter-sweep max_tokens:4,8"
        )
        assert code == 0
        assert out.count("# engine") == 4  # two batch sizes, two lengths
        heads = [line for line in out.splitlines() if line.startswith("# point")]
        assert heads[0] == "# point 1 of 4: batch_size=1, max_tokens=4"
        assert heads[-1] == "# point 4 of 4: batch_size=2, max_tokens=8"
        said = run("sweep --model random:tiny --dry-run --json --parameter-sweep batch_size:1,2")[1]
        assert [point["values"] for point in json.loads(said)["points"]] == [
            {"batch_size": 1},
            {"batch_size": 2},
        ]
        assert [point["config"]["batch_size"] for point in json.loads(said)["points"]] == [1, 2]
        code, _, err = run("run --model random:tny --dry-run")
        assert (code, "did you mean random:tiny?" in err) == (2, True)


class TestOtherNames:
    """Options and defaults of scripts that llmprof takes the place of."""

    @staticmethod
    def config(run, *argv):
        code, out, err = run("run", "--dry-run", "--json", *argv)
        assert code == 0, err
        return json.loads(out)["config"]

    def test_options(self, run):
        said = self.config(
            run,
            *("--model-path", "/models/Qwen", "--base-prompt", "one", "--base-prompt", "two"),
            *("--tp", "2", "--pp", "4"),
        )
        assert (said["tensor_parallel_size"], said["pipeline_parallel_size"]) == (2, 4)
        assert (said["model"], said["prompt"]) == ("/models/Qwen", ["one", "two"])

    def test_a_preset_stands_below_the_file_and_the_options(self, run, tmp_path):
        file = tmp_path / "c.yaml"
        file.write_text("model_path: /models/Qwen\nbase_prompt: Hello\nmax_tokens: 7\n")
        said = self.config(run, "--config", str(file), "--preset", "classic", "--batch-size", "3")
        names = ("model", "prompt", "profile_mode", "max_tokens", "temperature", "batch_size")
        assert [said[name] for name in names] == [
            "/models/Qwen",
            "Hello",
            "inference_only",
            7,
            0.7,
            3,
        ]
        file.write_text("model_path: /models/Qwen\npreset: classic\n")
        said = self.config(run, "--config", str(file), "--profile-mode", "torch")
        usual = ["/models/Qwen", "Hello, how are you?", "torch", 100, 0.7, 1]
        assert [said[name] for name in names] == usual

    def test_a_preset_that_is_none(self, run, tmp_path):
        with pytest.raises(SystemExit) as ended:
            run("run --model m --preset fast --dry-run")
        assert ended.value.code == 2
        file = tmp_path / "c.yaml"
        file.write_text("model: m\npreset: fast\n")
        code, _, err = run(f"run --config {file} --dry-run")
        assert (code, "c.yaml: there is no preset 'fast'; expected one of classic" in err) == (
            2,
            True,
        )


def finished(folder, trace=None, **values):
    run = FakeRun(ExperimentConfig(model="random:tiny", results_dir=str(folder), **values), trace)
    run.state = "finished"
    run.summary = {
        "overhead": [{"metric": "wall_ns", "overhead": 0.25, "clear": False}],
        "peak_memory_bytes": {"0": 2**30, "1": 2**31},
        "notes": ["vLLM ignored x\x1b[31m"],
    }
    return run


@pytest.fixture
def runner(monkeypatch):
    """Let `llmprof run` find a run that is finished, and note with what it was asked."""
    asked = SimpleNamespace(config=None, check=None, run=None)

    class Runner:
        def __init__(self, config, *, progress=None, check=True, show=None):
            asked.config, asked.check, self.show = config, check, show

        def run(self):
            if isinstance(asked.run, BaseException):
                raise asked.run
            self.show(asked.run)
            return asked.run

    monkeypatch.setattr(launch, "ExperimentRunner", Runner)
    monkeypatch.setattr(launch, "resume", lambda path, *, progress, check, show: asked.run)
    return asked


class TestRun:
    def test_says_metrics_findings_and_places(self, run, runner, tmp_path):
        runner.run = finished(tmp_path, build())
        code, out, err = run("run --model random:tiny --no-report --no-check --no-progress")
        assert (code, err, runner.check) == (0, "", False)
        rows = [line.split() for line in out.splitlines()]
        assert [
            "plain",
            "whole",
            "batch",
            "101",
            "ms",
            "±",
            "12.7",
            "ms",
            "101",
            "ms",
            "102",
            "ms",
        ] in rows
        assert "on average" in " ".join(out.split())
        assert f"Run       {runner.run.folder.path} (finished)" in out
        assert (
            "Profiler  +25.0 % time for a batch, which is not beyond the noise of the repeats"
            in out
        )
        assert "Memory    2.00 GiB at most on a device" in out
        assert "vLLM ignored x\\x1b[31m" in out
        assert f"Next      llmprof analyze {runner.run.folder.path}" in out

    def test_without_a_timeline(self, run, runner, tmp_path):
        runner.run = finished(tmp_path, profile_mode="inference_only")
        out = run("run --model random:tiny --no-report --no-progress")[1]
        assert "No timeline" not in out
        assert "Next" not in out
        runner.run = finished(tmp_path, profile_mode="nsys")
        assert (
            "No timeline: no timeline."
            in run("run --model random:tiny --no-report --no-progress")[1]
        )
        runner.run = finished(tmp_path, profile_mode="nsys")
        runner.run.state = "finished without import"
        out = run("run --model random:tiny --no-report --no-progress")[1]
        assert out.splitlines()[-1] == f"Next      llmprof run --resume {runner.run.folder.path}"

    def test_a_run_folder_is_a_path_to_analyse(self, run, tmp_path):
        done = finished(tmp_path, build())
        code, _, err = run(f"info {done.folder.path}")
        assert (code, "has no timeline" in err) == (2, True)
        build().save(done.folder.traces)
        assert run(f"info {done.folder.path}")[1].splitlines()[0] == "2 ranks on Test GPU"

    def test_an_error_is_one_line(self, run, runner):
        runner.run = LaunchError("out of memory", hint="lower batch_size")
        code, out, err = run("run --model random:tiny --no-progress")
        assert (code, out) == (2, "")
        assert err == "llmprof: error: out of memory; lower batch_size.\n"
        runner.run = KeyboardInterrupt()
        assert run("run --model random:tiny --no-progress")[0] == 130

    def test_going_on_with_a_run(self, run, runner, tmp_path):
        runner.run = finished(tmp_path)
        assert run(f"run --resume {tmp_path} --no-report --no-progress")[0] == 0
        code, _, err = run(f"run --resume {tmp_path} --model m")
        assert (code, "expected the folder alone" in err) == (2, True)

    def test_needs_no_altair_without_a_report(self, tmp_path):
        import subprocess
        import sys

        code = (
            "import sys\n"
            "for name in ('altair', 'vl_convert', 'IPython', 'papermill'): sys.modules[name] = None\n"
            "from llmprof.cli import main\n"
            "sys.exit(main.main(['run', '--model', '/nowhere', '--no-report', '--no-progress', '--no-check']))\n"
        )
        how = {
            "capture_output": True,
            "text": True,
            "cwd": tmp_path,
            "env": {"PYTHONPATH": ":".join(sys.path)},
        }
        done = subprocess.run([sys.executable, "-c", code], **how)
        assert done.returncode == 2
        assert done.stderr.startswith("llmprof: error: ")
        assert "/nowhere" in done.stderr


SHOWN = {
    "llmprof.report.run.Visualizer.generate_report_html": {"dashboard"},
    "llmprof.report.run.Visualizer.create_all_visualizations": {"index"},
    "llmprof.analyze.findings": {"index", "dashboard"},
    "llmprof.cli.run.summarize": {"index", "dashboard"},
}


@pytest.mark.parametrize("place", SHOWN)
def test_what_cannot_be_shown_does_not_cost_the_run(run, runner, tmp_path, monkeypatch, place):
    runner.run = done = finished(tmp_path, build())
    files = {
        "index": done.folder.path / "index.html",
        "dashboard": done.folder.path / "x_dashboard.png",
    }
    monkeypatch.setattr(Visualizer, "generate_report_html", lambda self, **_: files["index"])
    monkeypatch.setattr(Visualizer, "create_all_visualizations", lambda self: [files["dashboard"]])
    for raised in (KeyError("a bug"), Panic("a bug"), OutputError("a bug"), LlmprofError("a bug")):

        def broken(*_, error=raised, **options):
            raise error

        monkeypatch.setattr(place, broken)
        ours = isinstance(raised, LlmprofError)
        code, out, err = run("run --model random:tiny --no-progress --png")
        assert (code, f"{done.folder.path} (finished)" in out) == (0, True)
        assert {name for name, path in files.items() if str(path) in out} == SHOWN[place]
        assert "a bug" in out + err
        assert ("--resume" in err, "Traceback" in err) == (
            not (ours and place.endswith("findings")),
            False,
        )
        code, out, err = run("run --model random:tiny --no-progress --json --debug --png")
        assert (code, json.loads(out)["state"]) == (0, "finished")
        assert ("in broken" in err) == ("Visualizer" in place and not ours)


@pytest.mark.slow
def test_a_real_engine_from_the_command_line(run, engine_python, tmp_path):
    words = f"run --model random:tiny --engine transformers --python {engine_python} --results-dir {tmp_path}"
    words += " --batch-size 2 --input-tokens 16 --max-tokens 4 --repeat 2 --no-progress"
    code, out, err = run(*words.split())
    assert code == 0, err
    (folder,) = tmp_path.iterdir()
    assert f"{folder} (finished)" in out
    assert (folder / "report" / "index.html").is_file()
    assert not list(folder.rglob("*.png"))
    assert run(f"analyze {folder} --what kernels")[0] == 0


class TestSweep:
    def test_compares_and_names_what_failed(self, run, tmp_path, monkeypatch):
        runs = Runs(b2=fail)
        monkeypatch.setattr("llmprof.run.batch.runner.ExperimentRunner", runs)
        argv = [
            "--model",
            "random:tiny",
            "--results-dir",
            str(tmp_path),
            "--parameter-sweep",
            "batch_size:1,2",
        ]
        argv.append("--fresh-engine")
        code, out, _ = run("sweep", *argv, "--no-report")
        assert code == 0
        lines = [line.split() for line in out.splitlines()]
        assert lines[1][:3] == ["1", "finished", "99.02"]
        assert "failed: batch_size=2: out of memory; lower batch_size." in out
        (folder,) = tmp_path.glob("*_sweep_*")
        healed = json.loads(run(f"sweep --resume {folder} --no-report --json")[1])
        assert [row["state"] for row in healed["comparison"]] == ["finished", "failed"]
        assert runs.ran == [(1, 16), (2, 16), (2, 16)]

    @pytest.mark.parametrize("more", [[], ["--json"]])
    def test_fails_if_every_point_failed(self, run, tmp_path, monkeypatch, more):
        monkeypatch.setattr("llmprof.run.batch.runner.ExperimentRunner", Runs(b1=fail, b2=fail))
        argv = [
            "--model",
            "random:tiny",
            "--results-dir",
            str(tmp_path),
            "--parameter-sweep",
            "batch_size:1,2",
        ]
        code, out, _ = run("sweep", *argv, "--fresh-engine", "--no-report", *more)
        assert (code, out.count("lower batch_size.")) == (1, 2 + 2 * bool(more))

    @pytest.mark.parametrize(
        ("argv", "words"),
        [
            (["--model", "m"], "nothing to sweep"),
            (["--model", "m", "--preset", "fast"], "no preset 'fast'"),
            (["--model", "m", "--preset", "classic"], "nothing to sweep"),
            (["--model", "m", "--parameter-sweep", "batch_size"], "has no values"),
            (["--resume", "x", "--preset", "quick"], "the folder alone"),
            (["--resume", "/nowhere"], "no sweep in /nowhere"),
        ],
    )
    def test_what_cannot_be(self, run, argv, words):
        code, _, err = run("sweep", *argv, "--no-progress")
        assert code == 2
        assert words in err


class TestRunsAndDoctor:
    def test_lists_runs_with_what_went_wrong_and_cleans_up(self, run, tmp_path):
        config = ExperimentConfig(model="random:tiny", results_dir=str(tmp_path))
        done, failed = RunFolder.create(config), RunFolder.create(config)
        done.set_state("finished", stage="done")
        failed.set_state(
            "failed", stage="engine", error={"type": "LaunchError", "message": "out of memory"}
        )
        out = run(f"runs {tmp_path}")[1]
        assert [line.split()[1] for line in out.splitlines()[1:3]] == ["finished", "failed"]
        assert "out of memory" in out
        assert json.loads(run(f"runs {tmp_path} --json")[1])[1]["state"] == "failed"
        assert run(f"runs {tmp_path} --clean --match other*")[1] == "there was nothing to remove\n"
        assert (
            run(f"runs {tmp_path} --clean --state interrupted")[1]
            == "there was nothing to remove\n"
        )
        assert run(f"runs {tmp_path} --clean")[1] == f"removed {failed.path}\n"
        assert run(f"runs {tmp_path} --clean")[1] == "there was nothing to remove\n"
        assert done.path.is_dir()

    def test_no_runs(self, run, tmp_path):
        code, _, err = run(f"runs {tmp_path}")
        assert (code, "there are no runs" in err) == (2, True)

    @pytest.mark.parametrize(
        ("argv", "model"),
        [([], None), (["--tensor-parallel-size", "2"], "random:tiny"), (["--model", "m"], "m")],
        ids=["machine", "ranks", "model"],
    )
    def test_doctor(self, run, monkeypatch, argv, model):
        asked = []

        def doctor(config=None):
            asked.append(config)
            rows = [
                ("engine", "ok", "vllm 1", "", ""),
                ("disk", "fail", "1 MiB free", "5 GiB", "make room"),
            ]
            return table_of("check status found expected advice", rows)

        monkeypatch.setattr("llmprof.cli.run.ask", doctor)
        code, out, _ = run("doctor", *argv)
        assert code == 0
        *_, (status, *words) = [line.split() for line in out.splitlines()]
        assert (status, words[-2:]) == ("fail", ["Make", "room."])
        assert (asked[0].model if asked[0] else None) == model
        assert json.loads(run("doctor", *argv, "--json")[1])[1]["status"] == "fail"


def test_a_configuration_to_start_from(run, tmp_path):
    assert "# max_tokens: 16" in run("config")[1]
    path = tmp_path / "mine.yaml"
    assert run(f"config --init {path}")[1] == f"wrote {path}; llmprof run --config {path}\n"
    code, _, err = run(f"config --init {path}")
    assert (code, "already exists" in err) == (2, True)
    assert "# engine" in run(f"run --config {path} --dry-run")[1]
