"""One rule for all that is written for the user: never onto an input, and not over a file unless
told so.
"""

import os
from pathlib import Path

import pytest

import llmprof
from llmprof import charts, report
from llmprof.cli.main import main
from llmprof.errors import OutputError
from llmprof.report.export import export
from llmprof.run.launch import ConfigManager, ExperimentConfig
from llmprof.trace.storage import files
from tests.readers.traces import kernel, op, text_of, write
from tests.report.builders import build


@pytest.fixture
def recording(tmp_path):
    (tmp_path / "in").mkdir()
    return write(tmp_path / "in" / "trace.json", text_of([op(ts=1), kernel("a", 5, 2)]))


@pytest.fixture(autouse=True)
def no_inputs(monkeypatch):
    """Inputs of other tests do not count."""
    monkeypatch.setattr(files, "_INPUTS", {})


COMMANDS = [
    "analyze {0} --what kernels --csv {1}",
    "what-if {0} no-host-delay --csv {1}",
    "diff {0} {0} --csv {1}",
    "diff {0} {0} --chart {1}.svg",
    "report {0} -o {1}.html",
    "export {0} -o {1}.json",
    "export {0} --as chrome -o {1}",
    "config --init {1}",
    "time-operators {0} -o {1}",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_exists_needs_force(recording, tmp_path, capsys, command):
    words = command.format(recording, tmp_path / "kept").split()
    target = Path(next(word for word in reversed(words) if word.startswith(str(tmp_path / "kept"))))
    target.write_text("mine")
    assert main(words) == 2
    assert "--force" in capsys.readouterr().err
    assert target.read_text() == "mine"
    if not command.startswith(
        ("time-operators", "report", "diff", "what-if")
    ):  # one of each kind of writer
        assert main([*words, "--force"]) == 0
        assert target.read_bytes() != b"mine"
    assert {path.name for path in tmp_path.iterdir()} == {"in", target.name}


@pytest.mark.parametrize(
    "command", [command for command in COMMANDS if "{0}" in command and "{1}." not in command]
)
@pytest.mark.parametrize("how", ["itself", "symbolic link", "hard link", "of the folder"])
def test_never_onto_an_input(recording, tmp_path, capsys, command, how):
    before = recording.read_bytes()
    target = tmp_path / "link"
    if how == "symbolic link":
        target.symlink_to(recording)
    elif how == "hard link":
        target.hardlink_to(recording)
    else:
        target = recording
    given = recording.parent if how == "of the folder" else recording
    assert main([*command.format(given, target).split(), "--force"]) == 2
    assert "input" in capsys.readouterr().err
    assert recording.read_bytes() == before


def test_a_report_replaces_its_own_files_only(recording, tmp_path, monkeypatch):
    monkeypatch.setattr("llmprof.report.folder.png", lambda _: b"png")
    trace = build()
    folder = tmp_path / "report"
    first = report.write(trace, folder)
    report.write(trace, folder)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / first.csvs[0].name).write_text("mine")
    with pytest.raises(OutputError):
        report.write(trace, mine)
    assert [path.name for path in mine.iterdir()] == [first.csvs[0].name]
    assert report.write(trace, mine, overwrite=True).csvs
    (mine / "index.html").write_text("x")
    files.note_input(mine / "index.html")
    with pytest.raises(OutputError, match="input"):
        report.write(trace, mine, overwrite=True)


def test_writers_of_the_api(recording, tmp_path):
    trace = llmprof.read(recording, cache=False)
    chart = charts.overlap(llmprof.analyze.overlap(trace, by=("rank",)))
    writers = {
        "x.json": lambda path, **how: charts.save(chart, path, **how),
        "y.json": lambda path, **how: export(trace, path, **how),
        "z.yaml": lambda path, **how: ConfigManager.save_config(
            ExperimentConfig(model="m"), path, **how
        ),
    }
    for name, writer in writers.items():
        target = tmp_path / "out" / name
        writer(target)
        first = target.read_bytes()
        target.write_text("mine")
        with pytest.raises(OutputError):
            writer(target)
        assert target.read_text() == "mine"
        writer(target, overwrite=True)
        assert target.read_bytes() == first
        before = recording.read_bytes()
        if target.suffix == ".json":
            with pytest.raises(OutputError, match="input"):
                writer(recording, overwrite=True)
            assert recording.read_bytes() == before
    saved = trace.save(tmp_path / "saved")
    trace.save(saved)
    with pytest.raises(OutputError, match="input"):
        llmprof.read(saved).save(saved)


def test_what_is_written_into_a_folder_after_it_was_read_is_no_input(recording):
    llmprof.read(recording.parent, cache=False)
    out = recording.parent / "x.csv"
    files.write_output(out, "1")
    os.utime(out, (2**31, 2**31))
    files.write_output(out, "2", overwrite=True)
    assert out.read_text() == "2"
