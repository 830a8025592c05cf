"""The documentation: it builds without a warning, and the reference has every public name."""

import re
import subprocess
import sys

import kubernetes_validate
import pytest
import yaml

import llmprof


@pytest.fixture(scope="module")
def reference(root):
    sys.path.insert(0, str(root / "docs"))
    try:
        import reference
    finally:
        sys.path.pop(0)
    return reference


@pytest.mark.parametrize(
    "package", ["llmprof.analyze", "llmprof.charts", "llmprof.explore", "llmprof.run.launch"]
)
def test_every_public_name_is_on_one_page(reference, package):
    import importlib
    from types import ModuleType

    module = importlib.import_module(package)
    public = {name for name in module.__all__ if not isinstance(getattr(module, name), ModuleType)}
    listed = [
        name
        for page in reference.PAGES
        if page.package == package
        for name in reference.names_on(page)
    ]
    assert sorted(listed) == sorted(public)


def test_every_package_that_is_public_has_a_page(reference, root):
    from types import ModuleType

    packages = {page.package for page in reference.PAGES}
    modules = {
        module.__name__
        for module in (getattr(llmprof, name) for name in llmprof.__all__)
        if isinstance(module, ModuleType)
    }
    assert modules - {"llmprof.trace.schema", "llmprof.run.ops"} <= packages, (
        "schema has a page of its own"
    )
    contents = (root / "docs" / "index.md").read_text("utf-8").split()
    assert {path.stem for path in (root / "docs").glob("*.md")} - {"index"} <= set(contents)


def test_manifests_are_those_of_kubernetes(root):
    text = (root / "docs" / "server.md").read_text("utf-8")
    manifests = [
        yaml.safe_load(block)
        for block in re.findall(r"```yaml\n(apiVersion:.*?)```", text, re.DOTALL)
    ]
    assert [one["kind"] for one in manifests] == ["Pod"]
    for one in manifests:
        kubernetes_validate.validate(one, "1.31", strict=True)


def test_the_device_of_the_page_is_read(root, tmp_path):
    [text] = re.findall(
        r"```yaml\n(.*?)```", (root / "docs" / "my_own.md").read_text("utf-8"), re.DOTALL
    )
    (tmp_path / "mine.yaml").write_text(text)
    mine = llmprof.theory.read_device(tmp_path / "mine.yaml")
    assert (mine.peak("fp8"), mine.memory_bytes) == (800e12, 80e9)


@pytest.mark.slow
@pytest.mark.xdist_group("docs")
def test_the_documentation_builds_without_a_warning(root, tmp_path):
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--builder", "html"]
    done = subprocess.run(
        [*command, root / "docs", tmp_path / "html"], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    index = (tmp_path / "html" / "index.html").read_text("utf-8")
    assert "Why does this LLM inference run take the time it takes?" in index
    pages = {path.stem for path in (tmp_path / "html" / "notebooks").glob("*.html")}
    assert {path.stem for path in (root / "notebooks").glob("*.ipynb")} <= pages
