"""Engines: stand-alone scripts that run a model, each made of the modules of this folder as text.

An engine runs in a process of its own, with the interpreter that has it; llmprof is not imported there. What the script
runs (the job) stands in it as data, so it repeats a run by itself: ``python inference_script.py --out FOLDER``.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any, Final

from llmprof.errors import ConfigError

__all__ = ["script"]

_COMMON: Final = ("_record", "_failures", "_children", "_main", "_place")
_VLLM: Final = (*_COMMON, "_vllm", "_vllm_profiler")
_TRANSFORMERS: Final = (*_COMMON, "_hooks", "_transformers", "transformers_offline")
_PARTS: Final[dict[tuple[str, bool], tuple[tuple[str, ...], str]]] = {
    ("vllm", False): ((*_VLLM, "vllm_offline"), "run_vllm(job, record, EXTENSION)"),
    ("vllm", True): ((*_VLLM, "_load", "_server", "vllm_served"), "run_served(job, record, EXTENSION)"),
    ("transformers", False): (
        (*_COMMON, "_hooks", "_transformers", "transformers_offline"),
        "run_transformers(job, record)",
    ),
}
"""Modules of each engine's script, in an order in which each finds what it needs, and the call that runs a job."""


def script(job: Mapping[str, Any]) -> str:
    """Text of the script that runs a job.

    Parameters
    ----------
    job : mapping
        What is run: plain data.

    Returns
    -------
    str
        A Python program that needs its standard library and the engine.

    Raises
    ------
    ConfigError
        There is no such engine.
    """
    chosen = _PARTS.get((job["engine"], bool(job["served"])))
    if chosen is None:
        served = " as a server" if job["served"] else ""
        raise ConfigError(f"the engine is {job['engine']}{served}", expected="vllm, transformers, or a served vllm")
    names, call = chosen
    imports: dict[str, None] = {}
    bodies = [_body(_source(name), imports) for name in names]
    pairs = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in job.items()]
    inner = [f"{pair}, " for pair in pairs[:-1]] + pairs[-1:]
    data = f"JOB = json.loads({_literal(['{', *inner, '}'])})"
    if job["engine"] == "vllm":
        data += f"\nEXTENSION = {_literal(_source('vllm_worker').splitlines(keepends=True))}"
    return "\n\n".join(
        [
            f'"""A run of {job["engine"]}, written by llmprof. To repeat it: python THIS_FILE [--out FOLDER]."""',
            "from __future__ import annotations",
            "\n".join(sorted(imports, key=lambda line: (line.startswith("from"), line))),
            data,
            *bodies,
            'if __name__ == "__main__":\n    sys.exit(run_job(JOB, lambda job, record: ' + call + "))\n",
        ]
    )


def _literal(parts: list[str]) -> str:
    """A text as literals, one of its parts a line."""
    return "(\n" + "\n".join(f"    {part!r}" for part in parts) + "\n)"


def _source(name: str) -> str:
    return resources.files(__name__).joinpath(f"{name}.py").read_text("utf-8")


def _body(source: str, imports: dict[str, None]) -> str:
    """A module without its head; its imports go to ``imports``, those of llmprof away."""
    lines = source.splitlines()
    tree = ast.parse(source)
    heads = {1}  # the module's docstring
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom) or (isinstance(node, ast.Expr) and node is tree.body[0]):
            heads |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, ast.Import):
            imports[ast.unparse(node)] = None
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(("llmprof", "__future__")):
            for name in node.names:
                imports[ast.unparse(ast.ImportFrom(node.module, [name], 0))] = None
    return "\n".join(line for i, line in enumerate(lines, 1) if i not in heads).strip() + "\n"
