"""The frame of findings: its columns, and how it shows itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from typing import Any, Final

import polars as pl

SCHEMA: Final = {
    "order": pl.Int32,
    **dict.fromkeys(("rule", "severity", "title"), pl.String),
    "figure": pl.Float64,
    "unit": pl.String,
    **dict.fromkeys(("share", "recorded_share"), pl.Float64),
    "follows_from": pl.String,
    **dict.fromkeys(
        ("gain_ns", "predicted_ns", "predicted_low_ns", "predicted_high_ns"), pl.Float64
    ),
    "predicted_tokens_per_s": pl.Float64,
    "predicted_plain": pl.Boolean,
    **dict.fromkeys(
        ("change", "prediction", "scope", "denominator", "evidence", "where"), pl.String
    ),
    "rank": pl.Int32,
    **dict.fromkeys(("start_ns", "end_ns"), pl.Int64),
    **dict.fromkeys(("detail", "suggestion", "about"), pl.String),
}


class Findings(pl.DataFrame):
    """The frame of :func:`findings`, which shows itself as sentences in a notebook.

    Attributes
    ----------
    time_went : list of str
        Where the recorded time went by phase, and that of the requests; frames of some of these
        findings keep it.
    parts : polars.DataFrame, optional
        ``rank, part, ns``: what a mean step of each rank is made of, in the scope of the first
        finding; kept, too.
    """

    time_went: Sequence[str] = ()
    parts: pl.DataFrame | None = None

    def _repr_html_(self, **kwargs: Any) -> str:
        if not set(SCHEMA) <= set(self.columns):
            plain: str = super()._repr_html_(**kwargs)
            return plain
        # imported by name: lower layers do not know the report
        shown: str = import_module("llmprof.report.cards").of_findings(self)
        return shown


def _keep_attributes(name: str) -> Callable[..., Findings]:
    """A method of frames that gives some of its rows, for :class:`Findings`."""
    of_frame = getattr(pl.DataFrame, name)

    @wraps(of_frame)
    def method(self: Findings, *args: Any, **kwargs: Any) -> Findings:
        kept = Findings(of_frame(self, *args, **kwargs))
        kept.time_went, kept.parts = self.time_went, self.parts
        return kept

    return method


for _name in ("clone", "filter", "head", "limit", "slice", "sort", "tail"):
    setattr(Findings, _name, _keep_attributes(_name))
