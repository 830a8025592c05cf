import pytest

from llmprof.errors import LlmprofError, OutputError
from llmprof.run import batch
from llmprof.run.batch import notebooks
from llmprof.run.launch import RunFolder
from tests.report.runs import Run
from tests.test_run_notebook import write_notebook


@pytest.fixture
def runs(tmp_path):
    """A folder of two runs."""
    folder = tmp_path / "results"
    paths = [Run(folder).folder.path for _ in range(2)]
    for path in paths:
        (path / "traces").mkdir()
    return folder, paths


@pytest.fixture
def executed(monkeypatch):
    """What would be executed, without a kernel."""
    asked = []

    def run_notebook(name, folder, *, parameters, progress, overwrite):
        asked.append((name, folder, parameters))
        progress("x", 1, 4)
        if "bad" in parameters["trace"]:
            raise LlmprofError("cell 3 failed: <b>no kernels</b>")
        if "full" in parameters["trace"]:
            raise OutputError("cannot write")
        folder.mkdir(parents=True)
        (folder / "walk.ipynb").write_text("{}")
        return folder / "walk.ipynb"

    monkeypatch.setattr(notebooks, "run_notebook", run_notebook)
    return asked


@pytest.fixture
def walk(tmp_path):
    write_notebook(tmp_path / "walk.ipynb", "trace = ''\nrank = 0")
    return str(tmp_path / "walk.ipynb")


def test_each_run_of_a_folder_gets_its_notebook_and_a_place_on_the_page(
    runs, executed, walk, tmp_path
):
    folder, paths = runs
    told = []
    done = batch.notebooks_over(
        [folder],
        walk,
        tmp_path / "out",
        parameters={"rank": 1},
        progress=lambda *said: told.append(said),
    )
    assert list(done.notebooks) == sorted(path.name for path in paths)
    assert executed[0][2] == {"rank": 1, "trace": str(paths[0] / "traces")}
    page = done.index.read_text("utf-8")
    for path in paths:
        assert f'<a href="{path.name}/walk.ipynb">' in page
    assert "2 of 2 runs executed." in page
    assert told[0][1:] == (0, 2)
    assert "cell 1 of 4" in told[0][0]


def test_one_failure_does_not_stop_the_rest_and_is_text_on_the_page(executed, walk, tmp_path):
    traces = []
    (tmp_path / "Qwen2.5-7B").mkdir()
    for name in ("bad.json", "good.json", "sub/good.json"):
        traces.append(tmp_path / name)
        traces[-1].parent.mkdir(exist_ok=True)
        traces[-1].write_text("{}")
    done = batch.notebooks_over([*traces, tmp_path / "Qwen2.5-7B"], walk, tmp_path / "out")
    assert list(done.notebooks) == ["good", "good-2", "Qwen2.5-7B"]
    assert done.errors == {"bad": "cell 3 failed: <b>no kernels</b>."}
    page = done.index.read_text("utf-8")
    assert "&lt;b&gt;no kernels" in page
    assert "3 of 4 runs executed, 1 failed." in page


def test_a_run_gives_its_timeline_or_itself(runs, executed, walk, tmp_path):
    folder, paths = runs
    (paths[0] / "report.sqlite").write_text("")
    (paths[1] / "traces").rmdir()
    done = batch.notebooks_over([folder], walk, tmp_path / "out")
    assert executed[0][2]["trace"] == str(paths[0] / "report.sqlite")
    assert "has no timeline" in done.errors[paths[1].name]
    write_notebook(tmp_path / "walk.ipynb", "trace = ''\nrun = ''")
    batch.notebooks_over(
        [paths[1]], walk, tmp_path / "again", parameter="run", parameters={"trace": ""}
    )
    assert executed[-1][2] == {"run": str(paths[1]), "trace": ""}


def test_a_folder_that_cannot_be_written_stops_all(executed, walk, tmp_path):
    (tmp_path / "full.json").write_text("{}")
    with pytest.raises(OutputError):
        batch.notebooks_over([tmp_path / "full.json"], walk, tmp_path / "out")


def test_a_notebook_without_the_parameter(tmp_path):
    path = tmp_path / "other.ipynb"
    write_notebook(path, "file = ''")
    with pytest.raises(LlmprofError, match="no parameter 'trace'; expected one of file"):
        batch.notebooks_over([tmp_path], str(path), tmp_path / "out")


def test_a_run_that_failed_or_goes_on_is_listed_and_not_executed(runs, executed, walk, tmp_path):
    folder, (first, second) = runs
    RunFolder(first).set_state(
        "failed", stage="engine", error={"type": "LaunchError", "message": "out of memory"}
    )
    done = batch.notebooks_over([folder], walk, tmp_path / "out")
    assert list(done.notebooks) == [second.name]
    assert done.errors == {
        first.name: "the run is failed: out of memory; llmprof run --resume continues it"
    }
    assert "out of memory" in done.index.read_text("utf-8")
