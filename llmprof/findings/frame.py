"""The columns of findings, and how a notebook shows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Final

import polars as pl
from msgspec import Struct
from msgspec.structs import replace

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


class Findings(Struct, frozen=True):
    """Findings, which a notebook shows as sentences; what a frame has, they have, too."""

    frame: pl.DataFrame
    """Rows of :func:`llmprof.analyze.findings`, or some of them."""
    time_went: Sequence[str] = ()
    """Where the recorded time went by phase, and that of the requests."""
    parts: pl.DataFrame | None = None
    """``rank, part, ns``: what a mean step of each rank is made of, in the scope of the first
    finding.
    """

    def head(self, n: int = 5) -> Findings:
        """The first of them."""
        return replace(self, frame=self.frame.head(n))

    def filter(self, *conditions: Any, **values: Any) -> Findings:
        """Those that fulfil conditions, as :meth:`polars.DataFrame.filter` takes them."""
        return replace(self, frame=self.frame.filter(*conditions, **values))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.frame, name)

    def __getitem__(self, key: Any) -> Any:
        return self.frame[key]

    def __len__(self) -> int:
        return self.frame.height

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.frame.iter_rows(named=True)

    def __repr__(self) -> str:
        return repr(self.frame)

    def _repr_html_(self) -> str:
        # imported by name: lower layers do not know the report
        shown: str = import_module("llmprof.report.cards").of_findings(self)
        return shown
