"""llmprof's readers, a line each: a file is read by the first that knows it."""

from typing import Final

MODULES: Final = (
    "ascend.reader",
    "chrome.reader",
    "xplane",
    "nvprof",
    "rocm.reader",
    "nsys.reader",
    "nsys_stats",
    "ops",
    "saved",
    "monitors.reader",
    "ncu.reader",
    "vtune",
    "perf",
    "tensorrt",
    "proton",
    "torch_memory.reader",
    "perfetto",
)
"""Modules of this folder with a ``READER`` or ``READERS``; each is imported when it is asked."""
