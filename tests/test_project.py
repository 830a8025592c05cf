"""The project holds together: versions, dependencies, commands, layers, and the cost of
importing it.
"""

import importlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement

import llmprof
from tests.readers.traces import kernel, text_of, write

# Where conda-forge has another name than PyPI.
CONDA_NAMES = {
    "dask": "dask-core",
    "isal": "python-isal",
    "prometheus-client": "prometheus_client",
    "torch": "pytorch",
}
# What environment.yml installs from conda-forge, and what it leaves to pip.
INSTALLED_EXTRAS = ("launch", "watch", "notebook", "scale", "pandas", "tune", "docs", "dev")
BY_PIP = ["browser", "export", "mcp", "ncu"]
ENGINES = ("torch", "vllm")


@pytest.fixture(scope="module")
def project(root):
    return tomllib.loads((root / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def requirements(project):
    extras = project["project"]["optional-dependencies"]
    groups = [project["project"]["dependencies"], *(extras[name] for name in INSTALLED_EXTRAS)]
    return {Requirement(text) for group in groups for text in group}


def run_python(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | environment,
    )
    return done.stdout


def test_there_is_one_version(project, root):
    version = llmprof.__version__
    assert project["tool"]["hatch"]["version"]["path"] == "llmprof/__init__.py"
    assert importlib.metadata.version("llmprof") == version, "run `make setup` again"
    assert (
        re.search(r"^## \[(.+?)\]", (root / "CHANGELOG.md").read_text(), re.MULTILINE).group(1)
        == version
    )


def test_environment_yml_asks_for_what_pyproject_asks_for(project, requirements, root):
    text = (root / "environment.yml").read_text()
    *packages, pip = yaml.safe_load(text)["dependencies"]
    assert pip == {"pip": [f"-e .[{','.join(BY_PIP)}]"]}
    asked = {str(Requirement(text)) for text in packages if text != "pip"}
    python = f"python{project['project']['requires-python']}"
    assert asked == {python} | {conda_name(r) for r in requirements}
    engines = [project["project"]["optional-dependencies"][name][0] for name in ENGINES]
    named = re.findall(r"^ +# +- (\S+)$", text, re.MULTILINE)
    assert named == [conda_name(Requirement(engine)) for engine in engines]


def conda_name(requirement):
    return f"{CONDA_NAMES.get(requirement.name, requirement.name)}{requirement.specifier}"


def test_environment_yml_installs_what_make_setup_does(root):
    extras = re.search(r"--editable '\.\[(.+)\]'", (root / "Makefile").read_text()).group(1)
    # dev has what pandas asks for
    assert set(extras.split(",")) | {"pandas"} == {*INSTALLED_EXTRAS, *BY_PIP}


def test_the_chinese_readme_has_the_same_sections_commands_and_links(root):
    def outline(name):
        text = (root / name).read_text("utf-8")
        plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        return {
            "sections": [len(marks) for marks in re.findall(r"^(#+) ", plain, re.MULTILINE)],
            "commands and code": re.findall(r"```.*?```", text, re.DOTALL),
            "rows of tables": len(re.findall(r"^\|", plain, re.MULTILINE)),
            "points of lists": len(re.findall(r"^- ", plain, re.MULTILINE)),
            "names of code": sorted(set(re.findall(r"`([^`\n]+)`", plain))),
            "links": sorted(
                set(re.findall(r"\]\(([^)]+)\)", plain)) - {"README.md", "README.zh-CN.md"}
            ),
        }

    assert outline("README.zh-CN.md") == outline("README.md")


@pytest.mark.slow
def test_python_of_the_readme_runs(root):
    codes = re.findall(r"```python\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)
    assert codes
    names = {}
    for code in codes:
        exec(compile(code, "README.md", "exec"), names)


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make_setup(root, folder, python):
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(root / name, folder)
    return subprocess.run(
        ["make", "-C", str(folder), "setup", f"PYTHON={python}"],
        capture_output=True,
        text=True,
        timeout=300,
    )


@needs_make
def test_setup_names_the_package_when_venv_is_missing(root, tmp_path):
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\n')
    python.chmod(0o755)
    done = make_setup(root, tmp_path, str(python))
    assert done.returncode != 0
    assert "apt-get install python3-venv" in done.stderr
    assert not (tmp_path / ".venv").exists()


@needs_make
@pytest.mark.parametrize("python", ["", "/nowhere/python3", "false"])
def test_setup_asks_for_a_python_that_is_new_enough(root, tmp_path, python):
    done = make_setup(root, tmp_path, python)
    assert done.returncode != 0
    assert "needs Python 3.11 or newer" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_importing_the_package_loads_nothing_heavy():
    loaded = run_python("import llmprof, sys, json; print(json.dumps(sorted(sys.modules)))")
    heavy = {
        "polars",
        "altair",
        "numpy",
        "pandas",
        "pyarrow",
        "IPython",
        "ipywidgets",
        "vl_convert",
        "msgspec",
        "isal",
    }
    assert heavy & set(json.loads(loaded)) == set()
    code = (
        "import llmprof, sys, json; from llmprof import charts; from llmprof.cli import analyze, info;"
        "llmprof.sample('torch_tp1_eager').findings()._repr_html_(); print(json.dumps(sorted(sys.modules)))"
    )
    drawing = {"altair", "pandas", "pyarrow", "IPython", "ipywidgets", "vl_convert", "matplotlib"}
    assert drawing & set(json.loads(run_python(code))) == set()


def test_reading_a_file_imports_what_it_uses(tmp_path):
    path = write(tmp_path / "trace.json", text_of([kernel("a", 5, 2)]))
    code = f"import llmprof, sys, json; llmprof.read({str(path)!r}, cache=False); print(json.dumps(sorted(sys.modules)))"
    loaded = set(json.loads(run_python(code)))
    assert "llmprof.readers.chrome.reader" in loaded
    unused = {"llmprof.readers.nsys.reader", "adbc_driver_sqlite", "numpy", "llmprof.run.launch"}
    assert unused & loaded == set()


def test_findings_take_a_few_times_as_long_as_the_first_read(root):
    """Of CPU time in one process, so that a slow or busy machine makes no difference."""
    spent = {"read": [], "findings": []}
    for _ in range(3):
        began = time.process_time()
        trace = llmprof.read(root / "sample_traces" / "torch_tp1_eager", cache=False)
        spent["read"].append(time.process_time() - began)
        llmprof.analyze.findings(trace)
        spent["findings"].append(time.process_time() - began - spent["read"][-1])
    assert min(spent["findings"]) < 5 * min(spent["read"])


def test_names_of_the_package_resolve_and_are_listed():
    assert set(llmprof.__all__) <= set(dir(llmprof))
    for name in llmprof.__all__:
        assert getattr(llmprof, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = llmprof.nope


def test_every_module_imports_on_its_own(root):
    modules = [
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for path in (root / "llmprof").rglob("*.py")
    ]
    for module in modules:
        importlib.import_module(module)


def test_what_a_trace_holds_is_told_without_an_extra(root):
    """Modules of no base dependency are missing, as after ``pip install llmprof`` alone."""
    absent = "psutil pynvml yaml papermill ipykernel ipywidgets anywidget pandas pyarrow scipy"
    program = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({absent.split()!r}))\n"
        "from llmprof.cli import main\n"
        "for command in ('info', 'findings'):\n"
        "    assert main.main([command, sys.argv[1]]) == 0, command\n"
    )
    sample = root / "sample_traces" / "torch_tp1_eager"
    done = subprocess.run(
        [sys.executable, "-c", program, str(sample)], cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
