"""What a reader returns for one file or process: frames with absolute times, and what the file says of itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

_RANK_IN_NAME = (
    re.compile(r"(?<![a-z])rank[-_.]?(\d+)", re.IGNORECASE),
    re.compile(r"(?<![a-z])worker[-_.]?(\d+)", re.IGNORECASE),
    re.compile(r"(?<![a-z])TP-(\d+)(?!.*(?:DP|PP|EP)-[1-9])"),  # SGLang
)


@dataclass(slots=True)
class Part:
    """Frames of one file, without the ``rank`` column and with absolute times in ns."""

    path: Path
    tables: dict[str, pl.DataFrame]
    head: dict[str, Any]
    """What the file says: ``rank``, ``world_size``, ``backend``, ``devices``, ``device_count``, ``groups``,
    ``versions`` and ``options``, as far as known."""
    coverage: dict[str, Any]
    """What was read and lost: ``events``, ``kept``, ``skipped``, ``bytes``, ``lost_bytes``, ``lost_pieces``, and
    ``notes`` to be passed on as warnings."""

    @property
    def says_rank(self) -> bool:
        """Whether the file itself says its rank."""
        return self.head.get("rank") is not None

    @property
    def rank(self) -> int | None:
        """Rank as the file says, else as its name says, else None; a front end has none."""
        if self.head.get("front_end"):
            return None
        rank = self.head.get("rank")
        if isinstance(rank, int) and rank >= 0:
            return rank
        for pattern in _RANK_IN_NAME:
            if match := pattern.search(self.path.name):
                return int(match[1])
        return None

    @property
    def on_device(self) -> bool:
        """Whether the file has device work."""
        return any(self.tables[t].height for t in ("kernels", "copies") if t in self.tables)

    def span_ns(self) -> tuple[int, int] | None:
        """First start and last end of what the file holds (absolute ns), None if it is empty."""
        spans = [
            frame.select(pl.col("start_ns").min(), end=(pl.col("start_ns") + pl.col("dur_ns")).max()).row(0)
            for frame in self.tables.values()
            if "start_ns" in frame.columns and frame.height
        ]
        return (min(s[0] for s in spans), max(s[1] for s in spans)) if spans else None

    def losses(self) -> list[str]:
        """What was lost or changed on the way, in words."""
        c, name, out = self.coverage, self.path.name, []
        out += [f"{name}: {note}" for note in c.get("notes", [])]
        if reason := c.get("truncated") or ("some of it is no valid JSON" if c.get("lost_bytes") else ""):
            out.append(
                f"{name}: {reason}; {c.get('lost_bytes', 0):,} of {c.get('bytes', 0):,} bytes in about "
                f"{c.get('lost_pieces', 0):,} event(s) were lost, {c.get('events', 0):,} events were read"
            )
        if c.get("unread_bytes"):
            out.append(f"{name}: the last {c['unread_bytes']:,} bytes of the file could not be read")
        if c.get("repaired"):
            out.append(f"{name}: NaN, control characters or invalid UTF-8 were replaced")
        if c.get("wrong_types"):
            out.append(f"{name}: {c['wrong_types']:,} field(s) of a wrong type were left out")
        if lost := c.get("skipped", {}).get(NO_TIME):
            out.append(f"{name}: {lost:,} event(s) without a time or name were left out")
        if "events" in c and not c["events"]:
            out.append(f"{name} holds no event: was the profiler ever active?")
        elif "events" in c and not c.get("kept"):
            out.append(f"{name}: none of its {c['events']:,} events belongs to a table")
        return out


NO_TIME = "event without a time or name"
"""Reason for which an event is left out."""
