"""``python -m llmprof`` and the command ``llmprof``: the command line."""

from __future__ import annotations

import sys

_INTERRUPTED = 130


def main() -> int:
    """Run a command; an interrupt while modules are imported gives the same short message as a
    later one.
    """
    try:
        from llmprof.cli import main as command_line
    except KeyboardInterrupt:
        sys.stderr.write("llmprof: interrupted\n")
        return _INTERRUPTED
    return command_line.main()


if __name__ == "__main__":
    raise SystemExit(main())
