"""What a range of time holds, in a few facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from llmprof.explore._timeline_data import TimelineData
from llmprof.units import format_ns, format_share

MOST = 6
"""Most stages to name."""


def summary(data: TimelineData, span: Sequence[float]) -> dict[str, Any]:
    """Device events that touch a range of time: how many, and where its time goes.

    Parameters
    ----------
    data : TimelineData
        The rows.
    span : (float, float)
        First and last time (ns).

    Returns
    -------
    dict
        ``facts``: pairs of label and value; shares are of the range, a mean over the ranks.
    """
    lo, hi = span
    events = data.frame("stream") if data.found and data.events.height and not data.missing else data.events
    by = "stage" if "stage" in events.columns else "category"
    end = pl.col("start_ns") + pl.col("dur_ns")
    inside = events.filter(pl.col("start_ns") < hi, end > lo)
    ns = pl.min_horizontal(end, pl.lit(hi)) - pl.max_horizontal("start_ns", pl.lit(lo))
    ranks = max(1, inside["rank"].n_unique())
    parts = inside.group_by(pl.col(by).fill_null("other")).agg(ns=ns.sum()).sort("ns", by, descending=[True, False])
    facts = [["duration", format_ns(hi - lo)], ["device events", f"{inside.height:,}"]]
    whole = max(hi - lo, 1.0) * ranks
    facts += [[name, format_share(of / whole)] for name, of in parts.head(MOST).iter_rows()]
    return {"facts": facts}
