"""Analyses: functions that take a trace and return a Polars frame, which the caller may change.

``docs/reference.md`` lists them with the questions that they answer. Changes for :func:`what_if`
are in :mod:`llmprof.replay.changes`; analyses of kernels measured by Nsight Compute, of an NPU, and
under the names of Nsight Systems are in :mod:`~llmprof.analyze.ncu`, :mod:`~llmprof.analyze.npu`
and :mod:`~llmprof.analyze.nsys`.
"""

from typing import TYPE_CHECKING

from llmprof.analyze import ncu, npu, nsys
from llmprof.analyze.balance import expert_exchange
from llmprof.analyze.collectives.collectives import collectives
from llmprof.analyze.compare.diff import diff
from llmprof.analyze.concurrency import concurrency
from llmprof.analyze.copies import copies
from llmprof.analyze.counters import counters
from llmprof.analyze.coverage import coverage
from llmprof.analyze.eager import add_operators
from llmprof.analyze.events import events, steps
from llmprof.analyze.idle.gaps import idle, stream_gaps
from llmprof.analyze.idle.host import host_pauses, launch_delay
from llmprof.analyze.kernels import kernels
from llmprof.analyze.layers import layer_gaps, layers
from llmprof.analyze.memory import memory
from llmprof.analyze.modules import modules
from llmprof.analyze.operator_calls import operator_calls
from llmprof.analyze.operators import operators
from llmprof.analyze.overlap import overlap
from llmprof.analyze.queues import queue_length
from llmprof.analyze.ranks import ranks
from llmprof.analyze.requests.requests import requests
from llmprof.analyze.roofline import roofline
from llmprof.analyze.speculation import speculation
from llmprof.analyze.spikes import spikes
from llmprof.analyze.stacks import hotspots, stacks, totals
from llmprof.analyze.step_times import step_time
from llmprof.analyze.synchronisation import host_synchronisation
from llmprof.analyze.tensor_cores import tensor_cores
from llmprof.analyze.transfer import transfer
from llmprof.errors import door

if TYPE_CHECKING:
    from llmprof.findings.findings import findings
    from llmprof.replay import changes
    from llmprof.replay.critical_path import critical_path
    from llmprof.replay.fusion import fusion
    from llmprof.replay.opportunities import opportunities
    from llmprof.replay.slack import slack
    from llmprof.replay.what_if import what_if


def __getattr__(name: str) -> object:
    """An analysis that a plug-in adds, by the name of its function; None if there is none."""
    from llmprof.analyze.catalog import analyses

    added = () if name.startswith("_") else analyses()
    return next((one.function for one in added if one.package and one.name == name), None)


door(
    globals(),
    {
        "findings.findings": "findings",
        "replay.changes": "changes",
        "replay.critical_path": "critical_path",
        "replay.fusion": "fusion",
        "replay.opportunities": "opportunities",
        "replay.slack": "slack",
        "replay.what_if": "what_if",
    },
    rooms=("ncu", "npu", "nsys"),
)
