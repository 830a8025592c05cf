"""Start of the program that is packed with a job."""

import importlib
import sys

if __name__ == "__main__":
    sys.exit(importlib.import_module("llmprof_engine._job").main())
