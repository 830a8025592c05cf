"""Replay of operators: a script runs an operator of a recording alone; its time is compared with the recorded one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmprof.lazy import attach

__all__ = ["Replay", "compare", "read_results", "replay"]

if TYPE_CHECKING:
    from llmprof.operator_replay.results import compare, read_results
    from llmprof.operator_replay.script import Replay, replay
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "Replay": "llmprof.operator_replay.script",
            "compare": "llmprof.operator_replay.results",
            "read_results": "llmprof.operator_replay.results",
            "replay": "llmprof.operator_replay.script",
        },
    )
