"""Modules of the browser's side: put together, they import nothing and no name is defined twice."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from llmprof.errors import LlmprofError
from llmprof.explore.base import bundle

SCRIPTS = Path(__file__).parent / "js"
WIDGETS = sorted(p.stem for p in bundle.JS.glob("*.mjs") if "export default { render }" in p.read_text("utf-8"))


def _node() -> str:
    """Node from PATH, else the one that playwright's package carries."""
    if found := shutil.which("node"):
        return found
    import playwright

    return str(Path(playwright.__file__).parent / "driver/node")


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "JS", tmp_path)
    bundle.bundle.cache_clear()
    yield lambda **texts: [(tmp_path / f"{name}.mjs").write_text(text) for name, text in texts.items()]
    bundle.bundle.cache_clear()


def test_imports_are_put_before_what_needs_them_once(files):
    files(
        low="export const one = 1;\n",
        middle='import { one } from "./low.mjs";\nexport function two() {\n  return one + 1;\n}\n',
        top='import { one } from "./low.mjs";\nimport { two } from "./middle.mjs";\n'
        "const render = () => one + two();\nexport default { render };\n",
    )
    assert bundle.bundle("top") == (
        "const one = 1;\n\nfunction two() {\n  return one + 1;\n}\n\n"
        "const render = () => one + two();\nexport default { render };\n"
    )


def test_two_files_that_define_one_name_are_refused(files):
    files(low="const one = 1;\n", top='import { x } from "./low.mjs";\nfunction one() {}\n')
    with pytest.raises(LlmprofError, match=r"top\.mjs and low\.mjs both define one"):
        bundle.bundle("top")


def test_a_circle_and_a_missing_file_are_named(files):
    files(a='import { b } from "./b.mjs";\n', b='import { a } from "./a.mjs";\n', c='import { x } from "./gone.mjs";\n')
    with pytest.raises(LlmprofError, match="a -> b -> a"):
        bundle.bundle("a")
    with pytest.raises(LlmprofError, match=r"there is no gone\.mjs; expected one of \['a', 'b', 'c'\]"):
        bundle.bundle("c")


@pytest.mark.parametrize("name", WIDGETS)
def test_every_widget_is_one_module_that_loads_nothing(name, tmp_path):
    source = bundle.bundle(name)
    assert not re.search(r"^\s*import\b|\bimport\(", source, re.MULTILINE)
    assert not re.search(r"https?://|\binnerHTML\b|\bouterHTML\b|insertAdjacentHTML|document\.write|\beval\(", source)
    assert source.count("export default") == 1
    target = tmp_path / "widget.mjs"
    target.write_text(source, "utf-8")
    checked = subprocess.run([_node(), "--check", target], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("name", WIDGETS)
def test_styles_load_nothing(name):
    assert not re.search(r"@import|url\(", bundle.style(name))
    assert ".lp" in bundle.style(name)


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.test.mjs")), ids=lambda path: path.name.split(".")[0])
def test_pure_functions_of_the_browsers_side(script):
    ran = subprocess.run([_node(), "--test", script], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
