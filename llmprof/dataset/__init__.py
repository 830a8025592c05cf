"""Traces of many ranks: a dataset on disk, the workers that make it and analyse it, and large runs to try it on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmprof.lazy import attach

__all__ = ["convert", "open"]

if TYPE_CHECKING:
    from llmprof.dataset.convert import convert, open  # noqa: A004
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "convert": "llmprof.dataset.convert",
            "open": "llmprof.dataset.convert",
        },
    )
