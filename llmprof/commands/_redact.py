"""``llmprof redact``: a copy of a profiler's file that can be shown to others."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from llmprof import redaction, text
from llmprof.commands._output import Terminal, rows_of, to_json


def redact(args: Namespace, terminal: Terminal) -> str:
    """Write a copy without secrets, users, hosts and paths, and say what was removed."""
    copy = Path(args.output)
    removed = redaction.redact(args.file, copy)
    if args.json:
        return to_json({"copy": copy, "removed": rows_of(removed)})
    table = text.table(removed, width=terminal.width) if removed.height else "nothing was found that had to be removed"
    return f"{table}\nCopy  {text.plain(copy)}"
