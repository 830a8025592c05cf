"""The analyses of the package are functions, whichever of its modules is imported first."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from llmprof import analyze

MODULES = ("changes", "nsys")


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [
        "import llmprof.analyze.steps, llmprof.analyze.overlap, llmprof.analyze.idle",
        "from llmprof.analyze.findings import findings",
        "from llmprof.analyze import layers",
        "import llmprof; llmprof.analyze",
    ],
)
def test_functions_and_not_modules(first: str) -> None:
    then = (
        "; from llmprof import analyze; import llmprof.analyze.compare, llmprof.analyze.layers.layers"
        "; print([n for n in analyze.__all__ if not callable(getattr(analyze, n))])"
    )
    shown = subprocess.run([sys.executable, "-c", first + then], capture_output=True, text=True, check=True)
    assert shown.stdout == "['changes', 'nsys']\n"


def test_every_analysis_is_listed_once() -> None:
    for package in (analyze, analyze.nsys):
        assert package.__all__ == sorted(set(package.__all__)) == dir(package)
        listed = re.findall(r":func:`(\w+)`", package.__doc__ or "")
        assert sorted(listed) == [name for name in package.__all__ if name not in MODULES], package.__name__
