"""Imports that are put off until something is used."""

import importlib
import subprocess
import sys

import pytest

from llmprof.lazy import put_off


@pytest.fixture
def library(tmp_path, monkeypatch) -> str:
    """Name of a package that can be imported, and has not been."""
    name = "a_library_of_grammars"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(
        "def twice(number, *, plus=0): return 2 * number + plus\nSIZE = 3\n"
    )
    (tmp_path / name / "part.py").write_text("WORD = 'part'\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]


def is_imported(library: str) -> bool:
    return "SIZE" in vars(sys.modules[library])


def test_a_function_imports_its_library_when_it_is_called(library):
    put_off(library, "twice")
    taken = {}
    exec(f"from {library} import twice", taken)  # as another library would at its own import
    assert not is_imported(library)
    assert taken["twice"](4, plus=1) == 9
    assert is_imported(library)
    assert importlib.import_module(library).twice is not taken["twice"]
    assert taken["twice"](1) == 2


def test_what_is_imported_or_not_installed_is_left_alone(library):
    module = importlib.import_module(library)
    put_off(library, "twice")
    assert sys.modules[library] is module
    put_off("a_library_that_is_not_there", "twice")
    assert "a_library_that_is_not_there" not in sys.modules


@pytest.mark.slow
def test_charts_do_not_build_the_grammars_of_jsonschema_which_still_checks():
    pytest.importorskip("rfc3987_syntax")
    code = """if True:
        import sys, llmprof.charts.base.save, jsonschema
        assert not {"lark", "arrow.arrow"} & set(sys.modules)
        checked = jsonschema.FormatChecker(["iri", "uri", "duration"])
        for of, good, bad in [("iri", "http://example.org/a", "no iri"), ("duration", "PT5M", "P5M2")]:
            print(checked.conforms(good, of), checked.conforms(bad, of))
        print(checked.conforms("http://example.org/a", "uri"), "lark" in sys.modules)
    """
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert shown.split() == ["True", "False"] * 2 + ["True", "True"]
