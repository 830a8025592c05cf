"""``python -m llmprof`` and the command ``llmprof``: the command line."""

from __future__ import annotations

import gc
import sys

_INTERRUPTED = 130
_OBJECTS = 1_000_000
"""New objects between two walks of the collector: imports and tables make many, and no cycles."""


def main() -> int:
    """Run a command; an interrupt while modules are imported gives the same short message as a
    later one.
    """
    gc.set_threshold(_OBJECTS)
    try:
        from llmprof.cli import main as command_line
    except KeyboardInterrupt:
        sys.stderr.write("llmprof: interrupted\n")
        return _INTERRUPTED
    code = command_line.main()
    gc.freeze()  # the interpreter walks through what is left before it ends
    return code


if __name__ == "__main__":
    raise SystemExit(main())
