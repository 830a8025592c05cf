"""Traces of many ranks: a dataset on disk, workers that make and analyse it, and synthetic large runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmprof.lazy import attach

__all__ = ["convert", "large_run", "map", "open", "read_truth", "several"]

if TYPE_CHECKING:
    from llmprof.dataset.convert import convert, open  # noqa: A004
    from llmprof.dataset.large import large_run, read_truth
    from llmprof.dataset.mapping import map, several  # noqa: A004
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "convert": "llmprof.dataset.convert",
            "large_run": "llmprof.dataset.large",
            "map": "llmprof.dataset.mapping",
            "open": "llmprof.dataset.convert",
            "read_truth": "llmprof.dataset.large",
            "several": "llmprof.dataset.mapping",
        },
    )
