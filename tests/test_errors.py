from __future__ import annotations

import ast
import pickle
from pathlib import Path

import pytest

from llmprof import errors
from llmprof.errors import LlmprofError, NotCapturedError, ReadError


def test_message_says_what_was_found_expected_and_what_to_do():
    error = ReadError("a.json is empty", expected="a trace", hint="was the profiler killed?", size=0)
    assert str(error) == "a.json is empty; expected a trace; was the profiler killed?"
    assert (error.found, error.expected, error.hint) == ("a.json is empty", "a trace", "was the profiler killed?")
    assert error.facts == {"size": 0}


def test_message_leaves_out_what_is_not_known():
    assert str(LlmprofError("nothing there.")) == "nothing there."
    assert str(LlmprofError("nothing there", hint="look elsewhere.")) == "nothing there; look elsewhere."


@pytest.mark.parametrize(
    "kind", [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, LlmprofError)]
)
def test_every_kind_is_caught_as_the_base_and_survives_another_process(kind):
    error = kind("found", expected="expected", hint="hint", rank=3)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert isinstance(again, LlmprofError)
    assert str(again) == str(error)
    assert again.facts == {"rank": 3}


def test_kinds_of_reading_errors_are_reading_errors():
    assert issubclass(errors.UnknownFormatError, ReadError)
    assert issubclass(errors.MixedRunsError, ReadError)
    assert not issubclass(NotCapturedError, ReadError)


def _is_collection(node: ast.expr) -> bool:
    made = (ast.ListComp, ast.List, ast.Tuple, ast.Set, ast.SetComp, ast.Dict, ast.DictComp, ast.GeneratorExp)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("sorted", "list", "tuple", "set", "dict", "formats")
    return isinstance(node, made) or (isinstance(node, ast.Attribute) and node.attr in ("columns", "ranks"))


def _named_collections(function: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.NamedExpr) and _is_collection(node.value):
            names.add(node.target.id)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_collection(node.value):
            names.add(node.targets[0].id)
    return names


def test_no_message_shows_a_python_list():
    """A sentence names things with commas between them (``errors.listed``), not as ``['prefill', 'decode']``."""
    shown = []
    package = Path(errors.__file__).parent
    parsed = {path: ast.parse(path.read_text("utf-8")) for path in sorted(package.rglob("*.py"))}
    functions = [(path, node) for path, tree in parsed.items() for node in ast.walk(tree)]
    for module, function in functions:
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        names = _named_collections(function)
        values = [node.value for node in ast.walk(function) if isinstance(node, ast.FormattedValue)]
        lists = [one for one in values if _is_collection(one) or (isinstance(one, ast.Name) and one.id in names)]
        shown += [f"{module.name}:{one.lineno}: {ast.unparse(one)}" for one in lists]
    assert not shown
