"""The analyses of the package are functions, whichever of its modules is imported first."""

import subprocess
import sys


def test_functions_and_not_modules():
    code = (
        "import llmprof.analyze.events, llmprof.analyze.overlap, llmprof.analyze.idle"
        "; from llmprof import analyze; import llmprof.analyze.compare, llmprof.analyze.layers"
        "; print([n for n in analyze.__all__ if not callable(getattr(analyze, n))])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "['ncu', 'npu', 'nsys', 'changes']\n"
