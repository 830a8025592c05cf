"""Notebooks run with parameters, say how far they are, and fail with one clear sentence."""

import errno
import importlib.util
import os

import pytest

from llmprof.errors import LlmprofError, OutputError, ReadError
from llmprof.run.notebook import tutorials

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("papermill")


def write_notebook(path, *cells):
    """A notebook whose first cell is tagged ``parameters``."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(notebook, path)


@pytest.fixture
def notebooks(tmp_path, monkeypatch):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    write_notebook(folder / "01_small.ipynb", 'trace = "none"', "print(trace)", "1 + 1")
    write_notebook(folder / "02_broken.ipynb", "x = 1", "1 / 0", "x")
    monkeypatch.setenv(tutorials.ENVIRONMENT_VARIABLE, str(folder))
    return folder


@pytest.mark.slow
def test_a_notebook_runs_with_parameters(notebooks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = []
    path = tutorials.run_notebook(
        "01",
        tmp_path / "out",
        parameters={"trace": "mine"},
        progress=lambda *said: told.append(said),
    )
    assert path == tmp_path / "out" / "01_small.ipynb"
    text = path.read_text("utf-8")
    executed = nbformat.reads(text, as_version=4)
    (printed,) = [
        out["text"]
        for cell in executed.cells
        for out in cell.outputs
        if out.output_type == "stream"
    ]
    assert printed == "mine\n"
    assert str(tmp_path) not in text
    assert executed.metadata.papermill["output_path"] == "01_small.ipynb"
    named = tutorials.run_notebook("01_small", tmp_path / "out" / "mine.ipynb")
    assert named == tmp_path / "out" / "mine.ipynb"
    assert "none" in named.read_text("utf-8")
    assert [done for name, done, cells in told if (name, cells) == ("01_small", 4)] == [
        0,
        1,
        2,
        3,
        4,
    ]


@pytest.mark.slow
def test_a_failing_cell_is_one_sentence_and_the_notebook_is_kept(notebooks, tmp_path):
    with pytest.raises(
        LlmprofError,
        match=r"02_broken stopped at cell \[2\] with ZeroDivisionError: division by zero",
    ):
        tutorials.run_notebook("02_broken", tmp_path / "out")
    assert "ZeroDivisionError" in (tmp_path / "out" / "02_broken.ipynb").read_text("utf-8")


def test_unknown_names_and_parameters(notebooks, tmp_path):
    with pytest.raises(
        LlmprofError, match=r"there is no notebook '01_smll'; expected one of 01_small"
    ):
        tutorials.run_notebook("01_smll", tmp_path)
    with pytest.raises(
        LlmprofError, match=r"there is no notebook '0'; expected one of 01_small, 02_broken"
    ):
        tutorials.run_notebook("0", tmp_path)
    with pytest.raises(ReadError, match="there is no notebook at"):
        tutorials.run_notebook("somewhere/else.ipynb", tmp_path)
    with pytest.raises(
        LlmprofError, match=r"01_small has no parameter 'trac'; expected one of trace"
    ):
        tutorials.run_notebook("01_small", tmp_path, parameters={"trac": "x"})


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("1", "01_small"),
        ("01", "01_small"),
        ("2", "02_broken"),
        ("10", "10_many"),
        ("01_s", "01_small"),
    ],
)
def test_the_number_or_the_beginning_of_a_name_is_enough(notebooks, name, found):
    write_notebook(notebooks / "10_many.ipynb", "x = 1")
    assert tutorials.find_notebook(name).stem == found


def test_what_is_no_notebook(tmp_path, notebooks, monkeypatch):
    (tmp_path / "x.ipynb").write_text("{}")
    with pytest.raises(ReadError, match="is not a notebook"):
        tutorials.run_notebook(str(tmp_path / "x.ipynb"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="cannot write"):
        tutorials.run_notebook("01_small", tmp_path / "file")
    monkeypatch.setenv(tutorials.ENVIRONMENT_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(LlmprofError, match=f"set {tutorials.ENVIRONMENT_VARIABLE}"):
        tutorials.find_notebook("01_small")


def test_without_papermill_it_says_what_to_install(notebooks, tmp_path, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "papermill" else find_spec(name)
    )
    with pytest.raises(
        LlmprofError, match=r"papermill is not installed; pip install 'llmprof\[notebook\]'"
    ):
        tutorials.run_notebook("01_small", tmp_path)


def test_a_full_disk_is_an_error_that_names_the_notebook(notebooks, tmp_path, monkeypatch):
    import papermill

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(papermill, "execute_notebook", full)
    with pytest.raises(OutputError, match=r"cannot write 01_small\.ipynb: the disk is full"):
        tutorials.run_notebook("01_small", tmp_path / "out")
