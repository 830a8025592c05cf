"""Start of a packed program."""

import importlib
import json
import pkgutil
import sys

if __name__ == "__main__":
    start = json.loads(pkgutil.get_data("llmprof_engine", "job.json") or b"")["start"]
    sys.exit(importlib.import_module(f"llmprof_engine.{start}").main())
