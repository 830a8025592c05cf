"""The command line: what it prints, where to, and how it fails."""

import contextlib
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import polars as pl
import pytest

import llmprof
from llmprof import analyze
from llmprof.analyze.catalog import views
from llmprof.cli import info as cli_info
from llmprof.cli import main, output
from llmprof.cli.output import key_value
from llmprof.errors import PluginWarning, TraceWarning
from tests.readers.traces import kernel, launch, text_of
from tests.report.builders import HOSTILE, build
from tests.test_run_notebook import write_notebook


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folder with a small saved trace."""
    return str(build().save(tmp_path_factory.mktemp("trace") / "small"))


SAMPLES = ("sample:torch_tp1_eager", "sample:torch_tp1_cudagraph")


def rows(out):
    return [line.split() for line in out.splitlines()]


class TestInfo:
    def test_says_what_ran_and_what_is_missing(self, run, saved):
        code, out, err = run(f"info {saved}")
        assert (code, err) == (0, "")
        assert out.splitlines()[0] == "2 ranks on Test GPU"
        assert "  kernels               126  one kernel run on a device" in out
        assert "not captured: memory events (torch: profile_memory=True" in out
        assert "CUDA driver    12.4" in out
        assert ["decode", "3", "236", "us", "208", "us", "250", "us"] in rows(out)

    def test_names_what_lies_beside_the_trace(self, run, tmp_path):
        (tmp_path / "trace.json").write_bytes(text_of([kernel("a", 5, 2)]))
        (tmp_path / "timing.json").write_text('[{"startEnqMs": 1, "endEnqMs": 2}]')
        aside = json.loads(run(f"info {tmp_path} --json")[1])["left_aside"]
        assert [words.split()[0] for words in aside] == ["timing.json"]
        assert "Left aside: timing.json is times of iterations" in run(f"info {tmp_path}")[1]

    def test_says_what_was_launched_and_not_recorded(self, run, tmp_path):
        calls = [launch(ts=10 * i, correlation=i) for i in range(50)]
        work = [kernel(ts=10 * i + 5, dur=3, correlation=i) for i in range(0, 50, 5)]
        (tmp_path / "a.json").write_bytes(text_of([*calls, *work]))
        (tmp_path / "b.json").write_bytes(text_of(calls[::5] + work))
        [lost] = json.loads(run("info", str(tmp_path / "a.json"), "--json")[1])["recorded"]
        assert (lost["count"], lost["missing_count"]) == (50, 40)
        assert "40 of 50" in run("info", str(tmp_path / "a.json"))[1]
        assert "launched" not in run("info", str(tmp_path / "b.json"))[1].partition("Reading")[2]

    def test_without_device_activity(self, run, tmp_path):
        small = build()
        small = type(small)({"runtime": small.runtime}, small.meta)
        code, out, _ = run("info", str(small.save(tmp_path / "t")))
        assert code == 0
        assert "not captured: this capture holds host calls but no device activity" in out


NOT_RECORDED = (
    *(
        "event-waits",
        "links",
        "core-time",
        "memory",
        "memory-components",
        "hotspots",
        "totals",
        "counters",
        "modules",
    ),
    *("osrt_sum", "openacc_sum", "openmp_sum", "mpi_event_sum"),
)
"""Analyses of what the small trace does not hold."""


class TestAnalyze:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "what", [what for what in views() if what not in (*NOT_RECORDED, "bound")]
    )
    def test_every_analysis_prints_a_table_json_and_csv(self, run, saved, tmp_path, what):
        code, out, err = run(f"analyze {saved} --what {what} --limit 3")
        assert (code, err) == (0, "")
        assert out.strip()
        expected = views()[what].function(llmprof.read(saved), **views()[what].options)
        found = json.loads(run(f"analyze {saved} --what {what} --json")[1])
        assert len(found) == expected.height
        file = tmp_path / "out.csv"
        code, out, _ = run(f"analyze {saved} --what {what} --csv {file}")
        assert out == f"{expected.height:,} {'row' if expected.height == 1 else 'rows'} in {file}\n"
        assert pl.read_csv(file).columns == expected.columns

    @pytest.mark.parametrize("what", NOT_RECORDED)
    def test_what_was_not_recorded_is_an_error_that_says_how(self, run, saved, what):
        code, out, err = run(f"analyze {saved} --what {what}")
        assert (code, out) == (2, "")
        assert "record" in err

    def test_the_bound_needs_a_model(self, run, saved):
        code, out, err = run(f"analyze {saved} --what bound")
        assert (code, out) == (2, "")
        assert "bound needs --model" in err
        options = ("--what", "bound", "--model", "Qwen2.5-1.5B")
        code, out, _ = run(
            "analyze", "sample:torch_tp1_cudagraph", *options, "--json", "--limit", "0"
        )
        joined = analyze.roofline(llmprof.sample("torch_tp1_cudagraph"), "Qwen2.5-1.5B")
        assert (code, len(json.loads(out))) == (0, joined.height)
        for what, column, word in (
            ("operators", "source", "model and step label"),
            ("opportunities", "stage", "norm"),
        ):
            options = ("--what", what, "--model", "Qwen2.5-1.5B")
            code, out, _ = run("analyze", "sample:torch_tp1_cudagraph", *options, "--json")
            assert code == 0
            assert word in {row.get(column) for row in json.loads(out)}

    def test_operators_come_from_another_recording(self, run):
        path, other = "sample:nsys_transformers_generate", "sample:torch_transformers_generate"
        code, out, err = run(f"analyze {path} operators")
        assert (code, out) == (2, "")
        assert "--eager" in err
        for what in ("operators", "opportunities"):
            code, out, _ = run(f"analyze {path} {what} --eager {other} --json --limit 0")
            assert code == 0
            assert "aten::mm" in {row["operator"] for row in json.loads(out)}
        code, out, _ = run(f"analyze {path} operators --captures {other}")
        assert (code, out) == (2, "")  # no graph was captured there

    def test_findings_are_sentences(self, run, saved):
        out = run(f"analyze {saved}")[1]
        top = analyze.findings(llmprof.read(saved)).row(0, named=True)
        assert out.startswith(f"1. {top['title']} [")
        assert llmprof.read(saved).findings().time_went[0] in out
        length, recorded = top["denominator"].removeprefix("a step").split(", ", 1)
        assert length in out
        assert recorded not in out  # the line of where the time went has the shares
        assert f"   Try: {top['suggestion']}" in out
        assert f"   See: llmprof analyze {shlex.quote(str(saved))} --what {top['evidence']}" in out

    def test_a_pipe_has_names_that_can_be_read_and_files_have_them_whole(self, run, tmp_path):
        small, name = build(), f"gemm<{'int, ' * 300}>(Params)"
        kernels = small.kernels.with_columns(name=pl.lit(name))
        saved = str(type(small)({"kernels": kernels}, small.meta).save(tmp_path / "t"))
        out = run(f"analyze {saved} --what kernels --columns name,count")[1]
        assert max(map(len, out.splitlines())) < output.LONGEST_NAME + 20
        assert "gemm<int, " in out
        assert ">(Params)" in out
        assert name in run(f"analyze {saved} --what kernels --csv -")[1]
        assert json.loads(run(f"analyze {saved} --what kernels --json")[1])[0]["name"] == name

    def test_the_limit_says_what_is_left(self, run, saved):
        out = run(f"analyze {saved} --what events --limit 5")[1]
        assert out.splitlines()[-1] == "5 of 126 rows; --limit 0 shows all, --csv FILE writes them"
        assert len(run(f"analyze {saved} --what events --limit 0")[1].splitlines()) >= 127
        assert len(json.loads(run(f"analyze {saved} --what events --json --limit 5")[1])) == 5

    def test_one_rank_keeps_what_all_ranks_tell(self, run, saved):
        found = json.loads(run(f"analyze {saved} --what collectives --rank 0 --json")[1])
        assert {row["rank"] for row in found} == {0}
        assert {row["wait_ns"] for row in found} == {200}

    def test_by_columns_and_sort(self, run, saved):
        found = json.loads(run(f"analyze {saved} --what overlap --by rank --json")[1])
        assert [row["rank"] for row in found] == [0, 1]
        assert "step" not in found[0]
        out = run(f"analyze {saved} --what kernels --columns name,count --sort name --ascending")[1]
        lines = rows(out)
        assert lines[0] == ["name", "count"]
        assert [line[0] for line in lines[1:]] == sorted(line[0] for line in lines[1:])
        by_layer = rows(run(f"analyze {saved} --what layers --by layer")[1])
        assert [line[0] for line in by_layer] == ["layer", "0", "1"]
        steady = json.loads(run(f"analyze {saved} --what steps --steady --json")[1])
        assert {row["phase"] for row in steady} <= {"decode"}

    def test_a_query_in_place_of_an_analysis_reads_the_tables_alone(self, run, saved, tmp_path):
        query = "select rank, count(*) as n from kernels group by rank order by rank"
        assert json.loads(run(f"analyze {saved} --sql '{query}' --rank 1 --json")[1]) == [
            {"rank": 1, "n": llmprof.read(saved).select(rank=1).kernels.height}
        ]
        (tmp_path / "canary.csv").write_text("secret\nfound\n")
        code, out, err = run(
            "analyze", saved, "--sql", f"select * from \"read_csv\"('{tmp_path / 'canary.csv'}')"
        )
        assert code != 0
        assert "found" not in out
        assert "read_csv" in err

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--what", "steps", "--rank", "7"], "there is no rank 7; expected one of 0, 1"),
            (
                ["--what", "steps", "--columns", "nope"],
                "there is no column 'nope'; expected some of rank, step",
            ),
            (["--what", "steps", "--sort", "nope"], "there is no column 'nope'"),
            (["--what", "coverage", "--by", "rank"], "coverage takes no --by"),
            (["--what", "layers", "--by", "nope"], "by: there is no column 'nope'"),
            (["--what", "memory", "--by", "nope"], "by='nope' is not known"),
        ],
    )
    def test_wrong_options_are_one_line(self, run, saved, options, message):
        code, out, err = run("analyze", saved, *options)
        assert (code, out) == (2, "")
        assert err.startswith(f"llmprof: error: {message}")
        assert err.count("\n") == 1

    def test_what_was_not_captured(self, run, tmp_path):
        small = build()
        folder = type(small)({"kernels": small.kernels}, small.meta).save(tmp_path / "t")
        code, _, err = run(f"analyze {folder} --what operators")
        assert code == 2
        assert "this capture holds no ops; record it with host operators" in err

    def test_escape_sequences_of_a_trace_do_not_reach_the_terminal(self, run, tmp_path):
        names = {"other": "evil\x1b[2J\x07\rkernel", "op": HOSTILE[5]}
        folder = str(build(names).save(tmp_path / "t"))
        for what in ("kernels", "operators", "events", "findings"):
            out = run(f"analyze {folder} --what {what} --limit 0")[1]
            assert not set(out) & set("\x1b\x07\r\x00"), what
        assert "evil\\x1b[2J\\x07\\rkernel" in run(f"analyze {folder} --what kernels")[1]


def test_an_analysis_may_be_named_behind_the_paths(run, saved):
    assert run(f"analyze {saved} layers") == run(f"analyze {saved} --what layers")
    assert run(f"analyze {saved} findings") == run(f"analyze {saved}")


class TestDiff:
    @pytest.fixture
    def other(self, tmp_path):
        small = build()
        half = small.kernels.with_columns(
            pl.when(pl.col("name").str.contains("gemm_o"))
            .then(pl.col("dur_ns") // 2)
            .otherwise("dur_ns")
            .alias("dur_ns")
        )
        return str(
            type(small)(small.tables | {"kernels": half}, small.meta).save(tmp_path / "other")
        )

    def test_names_the_phase_and_the_largest_change(self, run, saved, other):
        code, out, _ = run(f"diff {saved} {other}")
        assert code == 0
        # the GEMMs are shorter and what follows them comes no earlier: the step is as long, and
        # idle for longer
        step = next(line for line in out.splitlines() if line.startswith("  decode: a step takes "))
        assert " in small, " in step
        assert " in other (x 1.00)" in step
        compute = next(line for line in rows(out) if line[:3] == ["decode", "compute", "o_proj"])
        assert compute[3:9] == ["16.0", "us", "8.00", "us", "-8.00", "us"]
        first = next(line for line in rows(out) if line[:3] == ["decode", "o_proj", "gemm"])
        assert first[3:] == ["16.0", "us", "8.00", "us", "-8.00", "us", "0.5", "2", "2", "faster"]

    def test_a_small_change_beyond_the_noise_is_not_called_the_same(self, run, monkeypatch):
        monkeypatch.setenv("COLUMNS", "160")
        found = json.loads(run("diff", *SAMPLES, "--json")[1])
        clear = [
            row
            for row in found
            if row["status"] == "same" and row["low_ns"] and row["low_ns"] * row["high_ns"] > 0
        ]
        out = run("diff", *SAMPLES, "--limit", "0")[1]
        assert clear
        assert out.count("slightly") == sum(row["level"] == "part" for row in clear)

    def test_json_csv_and_chart(self, run, saved, other, tmp_path):
        found = json.loads(run(f"diff {saved} {other} --json")[1])
        assert (found[0]["level"], found[0]["delta_ns"]) == ("step", 0)
        parts = {row["part"]: row["delta_ns"] for row in found if row["level"] == "part"}
        assert parts["o_proj"] == -8_000
        assert sum(parts.values()) == 0
        assert run(f"diff {saved} {other} --csv {tmp_path}/d.csv")[0] == 0
        code, out, _ = run(f"diff {saved} {other} --chart {tmp_path}/d.svg")
        assert code == 0
        assert (tmp_path / "d.svg").read_text("utf-8").startswith("<svg")
        assert f"Chart: {tmp_path / 'd.svg'}" in out


class TestSamples:
    def test_a_table_and_json(self, run):
        code, out, _ = run("samples")
        assert code == 0
        assert "torch_tp4_eager_nccl" in out
        found = json.loads(run("samples --json")[1])
        assert {"name", "ranks", "licence"} <= set(found[0])
        code, _, err = run("info sample:torch_tp1_cudagraphs")
        assert code == 2
        assert "torch_tp1_cudagraph" in err


class TestRedact:
    @pytest.fixture
    def trace(self, tmp_path):
        path = tmp_path / "trace.json"
        path.write_text(
            '{"host_name": "gpu-box-17",\n"traceName": "/home/someone/t.json",\n"traceEvents": []}'
        )
        return str(path)

    def test_says_what_was_removed_and_never_shows_it(self, run, trace, tmp_path):
        copy = tmp_path / "copy.json"
        code, out, err = run(f"redact {trace} -o {copy}")
        assert (code, err) == (0, "")
        assert out.splitlines()[0].split() == ["place", "what", "count"]
        assert "keys that no table needs" in out
        assert out.splitlines()[-1] == f"Copy  {copy}"
        for secret in ("gpu-box-17", "someone"):
            assert secret not in out
            assert secret not in copy.read_text("utf-8")
        code, out, err = run(f"redact {trace} -o {trace}")
        assert (code, out) == (2, "")
        assert err.startswith("llmprof: error:")
        assert "exists" in err
        code, out, err = run(f"redact {trace}")
        assert (code, out) == (2, "")
        assert "-o COPY" in err

    def test_a_check_lists_what_would_be_removed(self, run, trace, tmp_path):
        code, out, err = run(f"redact {trace} --check")
        assert (code, err) == (0, "")
        assert out.splitlines()[0].split() == ["place", "what", "count", "example"]
        assert "host_name" in out
        assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]
        said = json.loads(run(f"redact {trace} --check --json")[1])
        assert said["would_remove"][0]["what"] == "keys that no table needs"

    def test_a_key_file_gives_the_same_copy_again(self, run, trace, tmp_path):
        key = tmp_path / "key"
        key.write_text("a long enough key")
        copies = [tmp_path / "a.json", tmp_path / "b.json"]
        for copy in copies:
            assert run(f"redact {trace} -o {copy} --key-file {key}")[0] == 0
        assert copies[0].read_bytes() == copies[1].read_bytes()
        key.write_text("short")
        assert run(f"redact {trace} -o {tmp_path}/c --key-file {key}")[0] == 2


class TestReport:
    def test_writes_and_says_where(self, run, saved, tmp_path, quick_report):
        code, out, _ = run(f"report {saved} -o {tmp_path}/r --title Mine")
        assert code == 0
        assert f"Report  {tmp_path / 'r' / 'index.html'}" in out
        assert "See: llmprof explore" in out
        assert "<h1>Mine</h1>" in (tmp_path / "r" / "index.html").read_text("utf-8")

    def test_it_is_written_into_the_file_that_was_named(self, run, saved, tmp_path, quick_report):
        file = tmp_path / "x.html"
        assert str(file) in run(f"report {saved} -o {file}")[1]
        assert file.read_text("utf-8").startswith("<!DOCTYPE html>")
        assert list(tmp_path.iterdir()) == [file]

    def test_json(self, run, saved, tmp_path, quick_report):
        said = json.loads(run(f"report {saved} -o {tmp_path}/r --json")[1])
        assert said["index"] == str(tmp_path / "r" / "index.html")
        assert said["pngs"] == []
        assert len(json.loads(run(f"report {saved} -o {tmp_path}/r --json --png")[1])["pngs"]) == 15

    @pytest.mark.usefixtures("quick_report")
    def test_a_named_model_says_the_work_of_kernels_without_operators(self, run, tmp_path):
        assert (
            run(f"report sample:nsys_tp2_cudagraph -o {tmp_path}/r --model Qwen2.5-7B --tables")[0]
            == 0
        )
        gains = pl.read_csv(tmp_path / "r" / "opportunities.csv")
        assert "gate_up_proj" in gains.drop_nulls("gain_ns")["stage"]


@pytest.fixture
def quick_report(monkeypatch):
    """Reports without what takes long: Altair, V8 and Vega."""
    from llmprof.report import folder, page
    from llmprof.report.page import ReportFigure

    monkeypatch.setattr(
        folder, "make_figure", lambda trace, name: ReportFigure(name, name, spec="{}")
    )
    monkeypatch.setattr(folder, "png", lambda spec: b"\x89PNG\r\n\x1a\n")
    monkeypatch.setattr(page, "vega_bundle", lambda: "window.vegaEmbed = null;")


class TestNotebook:
    def test_runs_with_parameters(self, run, tmp_path, monkeypatch):
        write_notebook(tmp_path / "01_x.ipynb", "n = 1\nname = ''", "print(n + 1, name)")
        monkeypatch.setenv("LLMPROF_NOTEBOOKS", str(tmp_path))
        code, out, err = run(f"notebook 01_x -p n=41 -p name=a=b -o {tmp_path}/out --progress")
        assert code == 0
        assert out == f"Notebook  {tmp_path / 'out' / '01_x.ipynb'}\n"
        assert "42 a=b" in (tmp_path / "out" / "01_x.ipynb").read_text("utf-8")
        assert "llmprof: running 01_x\n" in err

    @pytest.mark.parametrize(
        ("item", "value"),
        [
            ("k=1", 1),
            ("k=1.5", 1.5),
            ("k=true", True),
            ("k=True", True),
            ("k=None", None),
            ("k=[0, 1]", [0, 1]),
            ("k=runs/a=b", "runs/a=b"),
            ("k=", ""),
            ("k=sample:x", "sample:x"),
        ],
    )
    def test_parameters(self, item, value):
        assert key_value(item, "-p") == ("k", value)


class TestDemo:
    @pytest.mark.slow
    def test_notebook_report_and_five_findings(self, run, tmp_path, monkeypatch):
        write_notebook(tmp_path / "stand_in.ipynb", "x = 1", "print('the notebook ran')")
        monkeypatch.setenv("LLMPROF_NOTEBOOKS", str(tmp_path))
        folder = tmp_path / "demo"
        code, out, err = run(f"demo -o {folder} --notebook stand_in")
        assert code == 0
        numbers = [line[:2] for line in out.splitlines() if line[:1].isdigit()]
        assert numbers == ["1.", "2.", "3.", "4.", "5."][: len(numbers)]
        assert len(numbers) >= 2
        assert "rank 3" in out
        assert f"Report    {folder / 'index.html'}" in out
        assert f"Notebook  {folder / 'stand_in.ipynb'}" in out
        assert "the notebook ran" in (folder / "stand_in.ipynb").read_text("utf-8")
        assert len(list(folder.glob("*.png"))) == 12
        assert len(list(folder.glob("*.csv"))) == 11
        assert "analysing: findings" in err
        assert "llmprof: running stand_in\n" in err
        assert run(f"demo -o {folder} --notebook stand_in")[0] == 0  # what it wrote is renewed

    def test_it_says_at_once_when_the_notebook_is_missing(self, run, tmp_path, monkeypatch):
        monkeypatch.setenv("LLMPROF_NOTEBOOKS", str(tmp_path))
        code, _, err = run(f"demo -o {tmp_path}/demo --notebook nope")
        assert code == 2
        assert "there is no notebook 'nope'" in err
        assert "reading" not in err  # at once: before it reads the sample
        assert "analysing" not in err
        assert not (tmp_path / "demo").exists()


def test_a_figure_stays_with_its_unit():
    words = "x" * 30 + " takes 10.4 % of it"
    assert output.wrap_words(words, 42, "", "").splitlines() == [
        "x" * 30 + " takes",
        "10.4 % of it",
    ]


class TestFailures:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "is empty"),
            (b"just text", "expected a file or folder in one of the"),
            (None, "does not exist"),
        ],
    )
    def test_files_that_are_no_traces(self, run, tmp_path, content, message):
        path = tmp_path / "x.json"
        if content is not None:
            path.write_bytes(content)
        code, out, err = run(f"info {path}")
        assert (code, out) == (2, "")
        assert err.startswith("llmprof: error: ")
        assert message in err
        assert err.count("\n") == 1

    def test_warnings_of_traces_are_one_line_each(self, run, saved, monkeypatch):
        def warn(*_):
            warnings.warn("two\nlines \x1b[31m", TraceWarning, stacklevel=1)
            warnings.warn("another", TraceWarning, stacklevel=1)
            return "done"

        monkeypatch.setattr(cli_info, "do_info", warn)
        code, out, err = run(f"info {saved}")
        assert (code, out) == (0, "done\n")
        assert err.splitlines() == [
            "llmprof: warning: two lines \\x1b[31m",
            "llmprof: warning: another",
        ]

    @pytest.mark.parametrize(
        ("argv", "command", "words"),
        [
            (["inof", "x"], "", "did you mean info"),
            (["analyze", "x", "--what", "step"], " analyze", "did you mean steps or step-time?"),
            (
                ["analyze", "x", "--colums", "a"],
                " analyze",
                "no option --colums; did you mean --columns?",
            ),
            (["info", "x", "--zzz"], " info", "no option --zzz"),
            (["run", "x"], " run", "'x' is one word too many"),
            (["completion", "fsh"], " completion", "did you mean fish"),
        ],
    )
    def test_a_word_that_is_not_known_gets_the_usage_of_the_command_and_the_nearest(
        self, argv, command, words, capsys
    ):
        with pytest.raises(SystemExit) as stopped:
            main.main(argv)
        assert stopped.value.code == 2
        said = capsys.readouterr().err
        assert said.startswith(f"usage: llmprof{command} [-h]")
        assert words in said

    def test_an_error_speaks_of_options_and_not_of_arguments_of_python(self, run, tmp_path):
        (tmp_path / "x.json").write_text('{"a": 1}')
        code, _, err = run(f"info {tmp_path}/x.json")
        assert code == 2
        assert "--format" in err
        assert "format=" not in err
        assert "Device" not in run("theory Qwen2.5-7B --gpu XYZ")[2]

    def test_version(self, capsys, run, saved, monkeypatch):
        with pytest.raises(SystemExit) as stopped:
            main.main(["--version"])
        assert stopped.value.code == 0
        assert capsys.readouterr().out == f"llmprof {llmprof.__version__}\n"

        def interrupt(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(cli_info, "do_info", interrupt)
        assert run(f"info {saved}") == (130, "", "llmprof: interrupted\n")


class TestPathAlone:
    def test_findings_and_what_to_ask_next(self, run, saved):
        code, out, err = run(saved)
        assert (code, err) == (0, "")
        assert out.startswith(run(f"findings {saved}")[1].rstrip())
        asked = [line.split("  ")[1] for line in out.partition("Next:\n")[2].splitlines()]
        assert f"llmprof analyze {shlex.quote(saved)} kernels" in asked
        for words in asked:
            if words.startswith("llmprof analyze"):
                assert run(*shlex.split(words)[1:])[0] == 0
        assert json.loads(run(f"{saved} --json")[1]) == json.loads(
            run(f"findings {saved} --json")[1]
        )
        assert run(f"{saved} steps") == run(f"analyze {saved} steps")
        assert run(f"{saved} --what steps") == run(f"analyze {saved} steps")

    def test_hardware_metrics(self, run):
        out = run("sample:ncu_tp1_eager")[1]
        assert "llmprof analyze sample:ncu_tp1_eager speed-of-light" in out

    @pytest.mark.parametrize("word", ["/nowhere/trace", "trace.json", "sample:nope"])
    def test_a_path_that_is_none(self, run, word):
        code, _, err = run(word)
        assert code == 2
        assert word.removeprefix("sample:") in err

    def test_a_recording_without_activity_shows_what_it_has(self, run, tmp_path):
        (tmp_path / "profile.json").write_text('[{"count": 2}, {"name": "conv", "timeMs": 3.0}]')
        (tmp_path / "timing.json").write_text(
            '[{"startEnqMs": 1, "endEnqMs": 2, "startComputeMs": 2, "computeMs": 4}]'
        )
        for words in (["analyze"], []):
            out = run(*words, str(tmp_path / "profile.json"))[1]
            assert ["layer", "100.0", "%", "3.00", "ms", "2"] in [row[:6] for row in rows(out)]
            out = run(*words, str(tmp_path / "timing.json"))[1]
            assert ["compute", "1", "4.00", "ms"] in [row[:4] for row in rows(out)]
        said = json.loads(run(f"analyze {tmp_path}/profile.json --json")[1])
        assert said[0]["total_ns"] == 3_000_000


def test_several_notebooks_do_not_go_into_one_file(run, tmp_path):
    code, _, err = run(f"notebook 01 --over {tmp_path} -o {tmp_path}/x.ipynb")
    assert (code, "-o FOLDER" in err) == (2, True)


class TestCompletion:
    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("llmprof ana", {"analyze"}),
            ("llmprof run --profile-mo", {"--profile-mode"}),
            ("llmprof run --profile-mode ns", {"nsys", "nsys_ncu"}),
            ("llmprof analyze x --what step", {"steps", "step-time"}),
            ("llmprof experiment b", {"bandwidth"}),
            ("llmprof loo", set()),
        ],
    )
    def test_commands_options_and_values_are_completed(self, tmp_path, line, expected):
        answer = tmp_path / "answer"
        asked = {
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
            "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
        }
        subprocess.run([sys.executable, "-m", "llmprof"], env=os.environ | asked, check=True)
        assert set(answer.read_text().split("\v")) - {""} == expected

    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_a_shell_asks_for_them(self, run, shell):
        script = run(f"completion {shell}")[1]
        assert "_ARGCOMPLETE" in script
        if path := shutil.which(shell):
            check = ["--no-execute"] if shell == "fish" else ["-n"]
            assert (
                subprocess.run([path, *check], input=script, text=True, check=False).returncode == 0
            )


class TestProgress:
    def test_a_line_each_without_a_terminal(self):
        stream = io.StringIO()
        progress = main.ProgressLine(stream, live=False)
        for what, done in (("reading a", 0), ("reading a", 50), ("reading b", 0)):
            progress(what, done, 100)
        progress.clear()
        assert stream.getvalue() == "llmprof: reading a\nllmprof: reading b\n"
        told = []
        tell = output.reading(output.Terminal(progress=lambda *said: told.append(said)))
        tell("folder/rank0.json.gz", 5, 10)
        assert told == [("reading rank0.json.gz", 5, 10)]


def start(*argv, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "llmprof", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.slow
class TestProcess:
    def test_a_reader_that_goes_away(self, saved):
        process = start("analyze", saved, "--what", "events", "--json")
        process.stdout.close()
        err = process.stderr.read()
        process.stderr.close()
        assert process.wait(timeout=300) == 141
        assert err == ""

    def test_output_that_the_encoding_cannot_hold(self, tmp_path):
        folder = str(build({"other": "kernel_é_…"}).save(tmp_path / "t"))
        process = start(
            "analyze", folder, "--what", "kernels", env=os.environ | {"PYTHONIOENCODING": "ascii"}
        )
        out, err = process.communicate(timeout=300)
        assert (process.returncode, err) == (0, "")
        assert "kernel_\\xe9_\\u2026" in out


ODD = [
    "\x1b[2J",
    "\x7f",
    *map(chr, range(0x80, 0xA0)),
    *"\u061c\u200e\u200f\u202a\u202e\u2066\u2069\ufeff\u2028",
]
"""Characters of names that a terminal obeys, or with which it shows text in another order."""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_a_terminal_gets_no_control_characters(tmp_path):
    name = "".join(f"{one}k" for one in ODD)
    folder = str(build({"other": name}).save(tmp_path / "t"))
    for options in (["--json"], ["--csv", "-"], []):
        terminal, end = os.openpty()
        shown = subprocess.Popen(
            [sys.executable, "-m", "llmprof", "analyze", folder, "--what", "kernels", *options],
            stdout=end,
            stderr=end,
        )
        os.close(end)
        parts = []
        with contextlib.suppress(OSError):  # the end of a terminal
            while part := os.read(terminal, 1 << 16):
                parts.append(part)
        os.close(terminal)
        assert shown.wait() == 0
        out = b"".join(parts).decode()
        assert not set("".join(ODD)) - set("[2Jk") & set(out), options
    assert name in {
        row["name"]
        for row in json.loads(main_output("analyze", folder, "--what", "kernels", "--json"))
    }


def main_output(*argv):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main.main(list(argv)) == 0
    return out.getvalue()


@pytest.mark.skipif(sys.platform == "win32", reason="a shell closes them")
@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)])
def test_closed_streams_are_no_error_and_get_nothing_of_others(saved, tmp_path, closed):
    csv = tmp_path / "kernels.csv"
    argv = [
        sys.executable,
        "-m",
        "llmprof",
        "analyze",
        saved,
        "--what",
        "kernels",
        "--csv",
        str(csv),
    ]
    streams = " ".join(f"{number}>&-" if number else "<&-" for number in closed)
    done = subprocess.run(
        ["sh", "-c", f'"$@" {streams}', "sh", *argv], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stderr == ""
    assert csv.read_text("utf-8").startswith("name,")


def test_warnings_of_libraries_are_for_debugging(run, saved, monkeypatch):
    def warned(*_):
        warnings.warn("of the trace\x9b", TraceWarning, stacklevel=1)
        warnings.warn("of a plug-in", PluginWarning, stacklevel=1)
        warnings.warn("of a library", UserWarning, stacklevel=1)
        return ""

    monkeypatch.setattr(cli_info, "do_info", warned)
    with warnings.catch_warnings(action="always"):
        said = run(f"info {saved}")[2].splitlines()
    assert said == ["llmprof: warning: of the trace\\x9b", "llmprof: warning: of a plug-in"]
    with pytest.warns(UserWarning, match="of a library"):
        assert run(f"info {saved} --debug")[2].splitlines() == said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_output_that_goes_to_a_full_disk_is_an_error_in_words():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "llmprof", "samples"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("llmprof: error: the output cannot be written")
    assert "Traceback" not in done.stderr


def test_an_interrupt_while_it_loads_ends_without_a_traceback(tmp_path):
    for delay in (0.05, 0.1, 0.2, 0.4, 0.8):
        child = subprocess.Popen(
            [sys.executable, "-m", "llmprof", "samples"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(delay)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=300)
        # in the first hundredths of a second the interpreter itself speaks, before the command line
        # is there
        assert "llmprof/cli" not in said


def test_the_list_of_commands_needs_none_of_the_libraries():
    code = (
        "import contextlib, sys; from llmprof.cli.main import main\n"
        "with contextlib.suppress(SystemExit): main(['--help'])\n"
        "heavy = {'numpy', 'polars', 'altair', 'llmprof.analyze', 'llmprof.run.launch'} & set(sys.modules)\n"
        "raise SystemExit(', '.join(sorted(heavy)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "experiment" in done.stdout
    assert (done.stderr.strip(), "what-if" in done.stdout) == ("", True)


REFUSED = {
    "analyze sample:torch_tp1_eager --what kernels --sort durations": "total_ns",
    "analyze sample:torch_tp1_eager --what kernels --rank 7": "0",
    "theory NoSuchModel --gpu H200": "Qwen2.5-7B",
    "theory Qwen2.5-7B --gpu NoSuchDevice": "H200",
    "what-if sample:torch_tp1_eager at-bound:nomodel": "theory --list",
    "explore sample:torch_tp1_eager --finding 99 --no-browser": "host-bound",
    "notebook nothing": "00_my_trace",
    "info {text}": "chrome",
    "report {text} -o {folder}/report": "chrome",
}


@pytest.mark.parametrize("given", REFUSED)
def test_what_is_refused_is_told_with_what_there_is(given, tmp_path, capsys):
    text = tmp_path / "users"
    text.write_text("root:x:0:0:root:/root:/bin/bash\n")
    assert main.main(given.format(text=text, folder=tmp_path).split()) == 2
    said = capsys.readouterr().err
    assert REFUSED[given] in said
    assert "Traceback" not in said
    assert not (tmp_path / "report").exists()


WRITING = {
    "report": "report sample:torch_tp1_eager -o {place}/x",
    "notebook": "notebook 00 -p path=sample:torch_tp1_eager -o {place}/x",
    "demo": "demo -o {place}/x",
    "export": "export sample:torch_tp1_eager -o {place}/x.json",
    "convert": "convert sample:torch_tp1_eager -o {place}/x",
    "redact": "redact {trace} -o {place}/x",
    "csv": "analyze sample:torch_tp1_eager --what kernels --csv {place}/x.csv",
    "chart": "diff sample:torch_tp1_eager sample:torch_tp1_cudagraph --chart {place}/x.html",
    "run": "run --model tiny --results-dir {place}/x",
    "sweep": "sweep --model tiny --parameter-sweep batch_size=1,2 --results-dir {place}/x",
    "record": "record http://127.0.0.1:1 --results-dir {place}/x",
    "tune": "tune {trace} -o {place}/x",
}


@pytest.mark.parametrize("command", WRITING)
def test_what_cannot_be_written_is_refused_before_anything_is_read(
    command, tmp_path, capsys, monkeypatch
):
    place, trace = tmp_path / "file", tmp_path / "trace.json"
    place.write_text("no folder")
    trace.write_text("{}")
    monkeypatch.setattr("llmprof.cli.make.open_trace", None)  # nothing gets so far
    monkeypatch.setattr("llmprof.cli.analyze.open_trace", None)
    given = WRITING[command].format(place=place, trace=trace).split()
    assert main.main(given) == 2
    said = capsys.readouterr().err
    assert str(place) in said
    assert place.read_text() == "no folder"
