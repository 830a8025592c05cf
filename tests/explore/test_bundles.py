"""The browser's side: bundles are those of the sources and load nothing; sources are linted, typed and tested."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from llmprof.explore.base.widget import BUNDLES

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "js"
WIDGETS = sorted(path.stem for path in BUNDLES.glob("*.js"))
ROOMS = ("collectives", "compare", "kernels", "layers", "overlap", "ranks", "requests", "timeline", "what_if")
INSTALLED = (ROOT / "node_modules/.bin/esbuild").exists()
needs_tools = pytest.mark.skipif(
    not INSTALLED and not (os.environ.get("CI") and shutil.which("npm")),
    reason="the tools of the browser's side are not installed: make web",
)


def _node() -> str:
    """Node from PATH, else the one that playwright's package carries."""
    if found := shutil.which("node"):
        return found
    import playwright

    return str(Path(playwright.__file__).parent / "driver/node")


def npm(script: str) -> None:
    """Run a script of package.json; the test fails with what it says."""
    done = subprocess.run(["npm", "run", "--silent", script], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_widget_has_its_bundle():
    assert tuple(WIDGETS) == ROOMS
    assert {path.name for path in BUNDLES.iterdir()} == {f"{room}.{kind}" for room in ROOMS for kind in ("js", "css")}


@needs_tools
def test_bundles_are_those_of_the_sources():
    npm("check")


@needs_tools
def test_a_stale_bundle_is_named(tmp_path):
    copied = tmp_path / "llmprof/explore"
    shutil.copytree(ROOT / "llmprof/explore", copied, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (tmp_path / "node_modules").symlink_to(ROOT / "node_modules")
    (copied / "bundles/layers.js").write_text("export default {};\n")
    done = subprocess.run(
        [_node(), copied / "build.mjs", "--check"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1
    assert re.fullmatch(r"Stale bundles, run `make bundles`: llmprof/explore/bundles/layers\.js\n", done.stderr)


@needs_tools
@pytest.mark.parametrize("script", ["lint", "types"])
def test_sources_are_formatted_linted_and_typed(script):
    npm(script)


@pytest.mark.parametrize("name", WIDGETS)
def test_a_bundle_is_one_module_that_loads_nothing(name, tmp_path):
    source = (BUNDLES / f"{name}.js").read_text("utf-8")
    assert not re.search(r"(?:^|[;}\s])import[\s{(*]", source)
    assert not re.search(r"https?://|\binnerHTML\b|\bouterHTML\b|insertAdjacentHTML|document\.write|\beval\(", source)
    assert re.search(r"export\{[\w$]+ as default\}", source)
    assert len(source) < 80_000
    target = tmp_path / "widget.mjs"
    target.write_text(source, "utf-8")
    checked = subprocess.run([_node(), "--check", target], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("name", WIDGETS)
def test_styles_load_nothing(name):
    style = (BUNDLES / f"{name}.css").read_text("utf-8")
    assert not re.search(r"@import|url\(", style)
    assert ".lp" in style


def test_the_lock_file_is_of_package_json_and_names_no_registry():
    package = json.loads((ROOT / "package.json").read_text())
    lock = json.loads((ROOT / "package-lock.json").read_text())
    assert lock["packages"][""]["devDependencies"] == package["devDependencies"]
    assert "://" not in re.sub(r'"url": "[^"]*"', "", (ROOT / "package-lock.json").read_text())
    every = [entry for name, entry in lock["packages"].items() if name]
    assert every
    assert all("resolved" not in entry and entry["integrity"].startswith("sha512-") for entry in every)


def test_npm_test_runs_every_test_of_the_pure_functions():
    """The command of ``npm test``, as npm runs it: by the shell, which expands the pattern for every Node."""
    command = json.loads((ROOT / "package.json").read_text())["scripts"]["test"]
    path = os.pathsep.join([str(Path(_node()).parent), os.environ.get("PATH", "")])
    ran = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    call = re.compile(r"^test\(", re.MULTILINE)
    written = sum(len(call.findall(script.read_text("utf-8"))) for script in SCRIPTS.glob("*.test.mjs"))
    assert re.findall(r"^\S tests (\d+)$", ran.stdout, re.MULTILINE) == [str(written)]
