"""``python -m llmprof``: the command line."""

from __future__ import annotations

from llmprof.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
