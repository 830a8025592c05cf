"""The state of a run's folder, kept true however the run ends."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llmprof.errors import LlmprofError
from llmprof.launch import _files
from llmprof.launch.folder import FAILED, INTERRUPTED, RUNNING, RunFolder


class At:
    """Says which stage a run is in, in its folder."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self.stage, self.state = "start", RUNNING

    def __call__(self, stage: str, state: str = RUNNING) -> None:
        self.stage, self.state = stage, state
        self._folder.set_state(state, stage=stage)


@contextlib.contextmanager
def kept(folder: RunFolder) -> Iterator[At]:
    """Keep the state of a folder true, however the run ends.

    Yields
    ------
    At
        To be called with the name of each stage.
    """
    at = At(folder)
    at("start")
    try:
        yield at
    except KeyboardInterrupt:
        _end(folder, INTERRUPTED, at, {"type": "KeyboardInterrupt", "message": "interrupted"})
        raise
    except LlmprofError as error:
        _end(folder, FAILED, at, _told(error))
        error.facts.setdefault("folder", str(folder.path))
        raise
    except OSError as error:
        _end(folder, FAILED, at, {"type": type(error).__name__, "message": str(error)})
        raise _files.refused(Path(str(error.filename or folder.path)), error) from error
    except BaseException as error:
        details = {"type": type(error).__name__, "message": str(error), "traceback": traceback.format_exc()[-4000:]}
        _end(folder, FAILED, at, details)
        raise


def _told(error: LlmprofError) -> dict[str, Any]:
    return {"type": type(error).__name__, "message": str(error), "found": error.found, "advice": error.hint}


def _end(folder: RunFolder, state: str, at: At, error: dict[str, Any]) -> None:
    """Write how it ended; a disk that is full may not even take that, and then the first error counts."""
    with contextlib.suppress(LlmprofError):
        folder.set_state(state, stage=at.stage, error=error)
