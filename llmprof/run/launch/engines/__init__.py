"""Engines: how a model is run, by which worker."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from llmprof.errors import ConfigError, nearest
from llmprof.plugins import records_in
from llmprof.run.launch.engines.engine import ENGINES, Engine
from llmprof.run.workers import packed

__all__ = ["BUILT_IN", "Engine", "engine", "engines", "interpreter", "script"]

BUILT_IN: Final = records_in(globals(), Engine)
"""The engines: a new one needs its own modules and a line above."""


def engines() -> tuple[Engine, ...]:
    """All engines; an engine that runs in two ways (offline, served) has two records.

    >>> sorted({engine.name for engine in engines()})
    ['sglang', 'tensorrt_llm', 'transformers', 'vllm']
    """
    return BUILT_IN


def engine(name: str, *, served: bool = False) -> Engine:
    """Record of an engine by its name."""
    named = [entry for entry in engines() if entry.name == name]
    if not named:
        names = sorted({entry.name for entry in engines()})
        found, expected = f"there is no engine {name!r}", f"one of {', '.join(names)}"
        raise ConfigError(found, expected=expected, hint=nearest(name, names))
    for entry in named:
        if entry.served == served:
            return entry
    if served:
        others = ", ".join(sorted({entry.name for entry in engines() if entry.served}))
        raise ConfigError(
            f"the engine {name} has no server", hint=f"choose engine {others} for served runs"
        )
    raise ConfigError(f"the engine {name} runs as a server only", hint="set served: true")


_MADE: Final = Path(__file__).parents[4] / ".venv-vllm"
"""Environment that ``make engine`` fills."""


def interpreter(packages: Collection[str]) -> str:
    """Python with some packages: that of ``LLMPROF_ENGINE_PYTHON``, else this one, else that of
    ``make engine``.
    """
    if named := os.environ.get("LLMPROF_ENGINE_PYTHON"):
        return named
    here = all(importlib.util.find_spec(name) is not None for name in packages)
    if here or not all(any(_MADE.glob(f"lib/python*/site-packages/{name}")) for name in packages):
        return sys.executable
    return str(_MADE / "bin" / "python")


def script(job: Mapping[str, Any]) -> bytes:
    """Program of a job: a zip that Python runs."""
    chosen = engine(job["engine"], served=bool(job["served"]))
    return packed("job", run=chosen.run, job=dict(job))
