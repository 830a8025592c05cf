"""The wheel, installed with its extra for notebooks into an empty environment, outside the
checkout.
"""

import os
import subprocess
import sys
import venv
import zipfile

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]


def run(*command, cwd, code=0):
    plain = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHON", "LLMPROF", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=plain, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory, root):
    folder = tmp_path_factory.mktemp("wheel")
    run(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "--target",
        "wheel",
        "--directory",
        folder,
        cwd=root,
    )
    return next(folder.glob("*.whl"))


def environment(folder, wanted):
    """Folder of the commands of an environment that has nothing but what is wanted and what that
    asks for.
    """
    venv.create(folder, symlinks=True)
    # pip of the tests' own environment; Python compiles the few modules of hundreds that the
    # commands import
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        folder / "bin/python",
        "install",
        "--quiet",
        "--no-compile",
    ]
    run(*pip, wanted, cwd=folder)
    return folder / "bin"


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    return environment(tmp_path_factory.mktemp("environment"), f"{wheel}[notebook]")


def test_the_wheel_holds_the_notebooks_and_two_samples(wheel, root):
    names = zipfile.ZipFile(wheel).namelist()
    inside = "llmprof/data/notebooks/"
    held = {name.removeprefix(inside) for name in names if name.startswith(inside)}
    wanted = [*(root / "notebooks").glob("*.ipynb"), *(root / "notebooks" / "data").rglob("*.*")]
    assert held == {
        path.relative_to(root / "notebooks").as_posix() for path in wanted if path.is_file()
    }
    samples = [
        name.removeprefix("llmprof/data/sample_traces/")
        for name in names
        if "/sample_traces/" in name
    ]
    scripts = {path.name for path in root.glob("sample_traces/*.py")}
    assert scripts < set(samples)
    samples = sorted(set(samples) - scripts)
    whole = {name.split("/")[0] for name in samples if not name.endswith("sample.json")}
    assert whole == {"ncu_tp1_eager", "torch_tp4_eager_custom_allreduce"}
    assert {name.split("/")[0] for name in samples} == {
        p.parent.name for p in root.glob("sample_traces/*/sample.json")
    }
    assert wheel.stat().st_size < 15e6
    assert not [
        name for name in names if name.startswith(("tests/", "notebooks/", "sample_traces/"))
    ]


def test_commands_work_without_a_checkout(installed, tmp_path):
    listed = run(installed / "llmprof", "samples", cwd=tmp_path)
    assert "torch_tp4_eager_custom_allreduce" in listed.split("In the repository")[0]
    assert "torch_tp4_eager_nccl" in listed.split("In the repository")[1]
    shown = run(installed / "llmprof", "demo", "--output", "demo", "--no-progress", cwd=tmp_path)
    assert "rank 3" in shown
    assert (tmp_path / "demo" / "index.html").is_file()
    assert (tmp_path / "demo" / "01_gpu_timeline.ipynb").is_file()
    # the demo has run the first notebook; this one needs the data that travel beside the notebooks
    made = run(
        installed / "llmprof",
        "notebook",
        "08_hardware_and_scaling",
        "--output",
        "out",
        cwd=tmp_path,
    )
    assert "08_hardware_and_scaling" in made


def test_a_sample_that_was_not_installed_says_where_it_is(installed, tmp_path):
    code = "import llmprof; llmprof.sample('torch_tp4_eager_nccl')"
    said = run(installed / "python", "-c", code, cwd=tmp_path, code=1)
    assert "are not installed" in said
    assert "clone the repository of llmprof and set LLMPROF_SAMPLES" in said


def test_what_needs_an_extra_names_it(wheel, tmp_path):
    python = environment(tmp_path / "bare", wheel) / "python"
    said = run(python, "-c", "from llmprof import explore; explore.timeline", cwd=tmp_path, code=1)
    assert "pip install 'llmprof[notebook]'" in said
    assert "pip install 'llmprof[notebook]'" in run(
        python, "-m", "llmprof", "demo", cwd=tmp_path, code=2
    )
