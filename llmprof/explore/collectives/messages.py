"""Messages of the explorer of collectives."""

from __future__ import annotations

from typing import Final

from llmprof.explore.base.messages import Message, Row, Window

CHOICES: Final = Message(
    "choices",
    answers={"kinds": list[tuple[str, int]], "phases": list[str], "ranks": list[int]},
    busy="matching calls over the ranks",
)
VIEW: Final = Message(
    "view",
    asks={"kind": str, "phase": str | None, "rank": int | None, "window": Window | None},
    answers={
        "count": int,
        "matched": int,
        "histogram": dict[str, list[tuple[float, float, int]]],
        "medians": dict[str, float | None],
        "sizes": list[Row],
        "peak_gbps": float | None,
        "device": str | None,
        "arrivals": list[Row],
        "over_time": list[Row],
        "calls": list[Row],
    },
    busy="measuring calls",
)
CALL: Final = Message(
    "call",
    asks={"call": int | None, "kind": str | None, "phase": str | None},
    answers={"call": int | None, "rows": list[Row], "before": int | None, "after": int | None},
)
PICK: Final = Message("pick", asks={"call": int})

MESSAGES: Final = (CHOICES, VIEW, CALL, PICK)
