"""Workers: programs that run with another Python, such as that of an engine, where llmprof need
not be installed.

Their modules know only each other, so they are packed with what a worker is to do into a zip that
repeats it by itself: ``python inference_script.pyz --out FOLDER``.
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any, Final

PACKAGE: Final = "llmprof_engine"
"""Name of these modules in the process of a worker."""
JOB: Final = f"{PACKAGE}/job.json"
"""Place of what a worker is to do in the zip."""


def packed(start: str, **document: Any) -> bytes:
    """Program that runs ``main`` of a module of this folder: a zip that Python runs."""
    program = io.BytesIO()
    with zipfile.ZipFile(program, "w") as archive:

        def add(name: str, content: str | bytes) -> None:
            archive.writestr(zipfile.ZipInfo(name), content)

        add(f"{PACKAGE}/__init__.py", "")
        for path in sorted(Path(__file__).parent.glob("*.py")):
            if path.name != "__init__.py":
                inside = f"{PACKAGE}/{path.name}" if path.name != "start.py" else "__main__.py"
                add(inside, path.read_bytes())
        add(JOB, json.dumps({"start": start, **document}, indent=1))
    return program.getvalue()
