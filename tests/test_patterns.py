"""Every regular expression of the package works in time that grows with the text, not with its
square.
"""

import ast
import importlib
import pkgutil
import re
import time
from pathlib import Path

import pytest

import llmprof

METHODS = ("search", "match", "fullmatch", "sub", "findall", "finditer", "split")
ANCHORED = {"match", "fullmatch"}
UNITS = (
    *"aAfg0195_-./\\:;,\"'([{<>}])=@%+*#| \t\n\0\u4e00",
    "aA1",
    "a_",
    "a-",
    "a.",
    "a/",
    "a:",
    "a,",
    "a ",
    " a",
    "0-",
    "0.",
    "0:",
    "1,",
    "a=",
    "f0",
    "{}",
    "[]",
    "()",
    "{ }",
    "::",
    "ab\\",
    "//",
    "--",
    '"a',
    "', '",
    " \n",
    "a\n",
)
SMALL, FACTOR = 1_000, 10


def _modules():
    for found in pkgutil.walk_packages(llmprof.__path__, "llmprof."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def _within(value, depth=0):
    """The value and what its tuples, lists, sets and dictionaries hold."""
    yield value
    if depth < 4 and isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if depth < 4 and isinstance(value, tuple | list | set | frozenset):
        for one in value:
            yield from _within(one, depth + 1)


def _texts(node, tree, module):
    """The patterns that an argument of ``re.…`` may be: a literal, a constant, or those over
    which a loop runs.
    """
    if isinstance(node, ast.Constant):
        return {node.value}
    if isinstance(node, ast.JoinedStr):
        return {
            "".join(
                str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values
            )
        }
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    loops = [one for one in ast.walk(tree) if isinstance(one, ast.comprehension | ast.For)]
    for loop in loops:
        if names & {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)}:
            names |= {one.id for one in ast.walk(loop.iter) if isinstance(one, ast.Name)}
    values = [vars(module).get(name) for name in names]
    return {
        text
        for value in values
        for text in _within(value)
        if isinstance(text, str | bytes) and text
    }


def _methods(tree):
    """The methods that a module calls on each name, or on what a loop takes from it."""
    used = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in METHODS:
            for one in ast.walk(node.value):
                if isinstance(one, ast.Name | ast.Attribute):
                    used.setdefault(one.id if isinstance(one, ast.Name) else one.attr, set()).add(
                        node.attr
                    )
    for loop in (node for node in ast.walk(tree) if isinstance(node, ast.comprehension | ast.For)):
        taken = {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
        for name in (one.id for one in ast.walk(loop.iter) if isinstance(one, ast.Name)):
            used.setdefault(name, set()).update(*(used.get(one, ()) for one in taken))
    return used


def _patterns():
    """Every pattern of the package, by module and text, with the methods that are called on it."""
    found = {}
    for module in _modules():
        tree = ast.parse(Path(str(module.__file__)).read_text())
        used = _methods(tree)
        for name, value in vars(module).items():
            for pattern in _within(value):
                if isinstance(pattern, re.Pattern):
                    known = found.setdefault(repr(pattern.pattern), (pattern, set()))[1]
                    known |= used.get(name, set())
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args):
            function = call.func
            if (
                isinstance(function, ast.Attribute)
                and isinstance(function.value, ast.Name)
                and function.value.id == "re"
                and function.attr in (*METHODS, "compile")
            ):
                for text in _texts(call.args[0], tree, module):
                    try:
                        pattern = re.compile(text)
                    except re.error:
                        continue
                    known = found.setdefault(repr(text), (pattern, set()))[1]
                    known |= {function.attr} - {"compile"}
    return {text: (pattern, methods or {"search"}) for text, (pattern, methods) in found.items()}


def _inputs(pattern):
    """Makers of long texts that come close to the pattern: its own words, followed by much of
    the same.
    """
    source = (
        pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    )
    words = sorted(set(re.findall(r"(?<!\\)[A-Za-z][A-Za-z_]+|[-/@:=\"'#.]+", source)), key=len)[
        -5:
    ]
    units = [*UNITS, *words, *(word + unit for word in words for unit in ("0", " ", "_"))]
    starts = [("", unit) for unit in units] + [
        (word, unit) for word in words for unit in ("a", "0", " ")
    ]
    for start, unit in starts:
        text = (start + unit * (SMALL * FACTOR))[: SMALL * FACTOR]
        whole, end = (text, "\0!") if isinstance(pattern.pattern, str) else (text.encode(), b"\0!")
        yield lambda length, whole=whole, end=end: whole[:length] + end


def _seconds(pattern, method, text):
    start = time.thread_time()
    if method == "search":
        pattern.search(text)
    elif method in ANCHORED:
        getattr(pattern, method)(text)
    else:
        for _ in pattern.finditer(text):
            pass
    return time.thread_time() - start


def _grows_faster(pattern, method, make):
    """Whether ten times the text takes more than forty times the work, measured again before it
    is believed.
    """
    for length in (SMALL // FACTOR, SMALL):
        ratios = []
        for _ in range(4):
            large = _seconds(pattern, method, make(length * FACTOR))
            if large < 0.01:
                break
            ratios.append(
                large / max(min(_seconds(pattern, method, make(length)) for _ in range(3)), 1e-7)
            )
            if ratios[-1] < 40:
                break
        else:
            return True
    return False


@pytest.mark.slow
def test_every_pattern_takes_time_that_grows_with_the_text():
    patterns = _patterns()
    assert len(patterns) > 150
    slow = set()
    for name, (pattern, methods) in patterns.items():
        for method in methods:
            for make in _inputs(pattern):
                if _grows_faster(pattern, method, make):
                    slow.add(f"{name} {method} {make(40)!r}")
                    break
    assert sorted(slow) == []
