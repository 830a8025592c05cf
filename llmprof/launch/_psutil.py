"""psutil, which is an extra: what needs it is imported from here, with an error that says how to get it."""

from __future__ import annotations

from llmprof.errors import LaunchError

try:
    from llmprof.launch._family import MARK, Family
except ImportError as error:
    raise LaunchError(
        "launching a run needs the package psutil, which is not installed", hint="pip install 'llmprof[launch]'"
    ) from error

__all__ = ["MARK", "Family"]
