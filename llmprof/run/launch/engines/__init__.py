"""Engines: stand-alone scripts that run a model, each made of the modules of this folder as text.

An engine runs in a separate process, with the interpreter that has the engine; the script does not
import llmprof. It contains the job as data, so it repeats a run by itself: ``python
inference_script.py --out FOLDER``.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from llmprof.errors import ConfigError, nearest
from llmprof.plugins import records_in
from llmprof.run.launch.engines.engine import ENGINES, Engine

__all__ = ["BUILT_IN", "Engine", "engine", "engines", "interpreter", "script"]

BUILT_IN: Final = records_in(globals(), Engine)
"""The engines: a new one needs its own modules and a line above."""

_COMMON: Final = ("_machine", "_job")


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


def script(job: Mapping[str, Any]) -> str:
    """Text of the script that runs a job."""
    chosen = engine(job["engine"], served=bool(job["served"]))
    imports: dict[str, None] = {}
    bodies = [_body(_source(name), imports) for name in (*_COMMON, *chosen.modules)]
    call = f"{chosen.run}(job, record{', EXTENSION' if chosen.worker else ''})"
    pairs = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in job.items()]
    inner = [f"{pair}, " for pair in pairs[:-1]] + pairs[-1:]
    data = f"JOB = json.loads({_literal(['{', *inner, '}'])})"
    if chosen.worker:
        timer = chosen.timer if job["profiler"] == "ops" else ()
        data += (
            "\nEXTENSION ="
            f" {_literal(_together('annotate', chosen.worker, *timer).splitlines(keepends=True))}"
        )
    return "\n\n".join(
        [
            (
                f'"""A run of {job["engine"]}, written by llmprof. To repeat it: python THIS_FILE'
                ' [--out FOLDER]."""'
            ),
            "from __future__ import annotations",
            "\n".join(sorted(imports, key=lambda line: (line.startswith("from"), line))),
            data,
            *bodies,
            'if __name__ == "__main__":\n    sys.exit(run_job(JOB, lambda job, record: '
            + call
            + "))\n",
        ]
    )


def _together(*names: str) -> str:
    """Text of several modules joined."""
    imports: dict[str, None] = {}
    bodies = [_body(_source(name), imports) for name in names]
    head = "\n".join(sorted(imports, key=lambda line: (line.startswith("from"), line)))
    return "\n\n".join(["from __future__ import annotations", head, *bodies])


def _literal(parts: list[str]) -> str:
    """Python string literals of a text, one for each line."""
    return "(\n" + "\n".join(f"    {part!r}" for part in parts) + "\n)"


def _source(name: str) -> str:
    spec = importlib.util.find_spec(f"{__name__}.{name}")
    if spec is None or spec.origin is None:
        raise ConfigError(f"an engine names the module {name!r}, which is not in {__name__}")
    return Path(spec.origin).read_text("utf-8")


def _body(source: str, imports: dict[str, None]) -> str:
    """Source of a module without its docstring and imports; ``imports`` collects the imports of
    other packages.
    """
    lines = source.splitlines()
    tree = ast.parse(source)
    heads = {1}  # the module's docstring
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.Expr) and node is tree.body[0]
        ):
            heads |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, ast.Import):
            imports[ast.unparse(node)] = None
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(
            ("llmprof", "__future__")
        ):
            for name in node.names:
                imports[ast.unparse(ast.ImportFrom(node.module, [name], 0))] = None
    return "\n".join(line for i, line in enumerate(lines, 1) if i not in heads).strip() + "\n"
