"""Analyses: functions that take a trace and return a Polars frame, which the caller may change.

``docs/analyses.md`` lists them with the questions that they answer. Summaries under the names of
Nsight Systems are in :mod:`llmprof.analyze.nsys`, changes for :func:`what_if` in
:mod:`llmprof.analyze.changes`.
"""

# Findings and differences
# What would be gained
from llmprof.analyze import changes

# Summaries with the names of Nsight Systems
from llmprof.analyze import nsys
from llmprof.analyze.balance import expert_exchange, rank_balance
from llmprof.analyze.beside import running_beside
from llmprof.analyze.captures import with_captures
from llmprof.analyze.collectives.collectives import (
    collective_arrivals,
    collective_sizes,
    collectives,
)
from llmprof.analyze.compare.diff import diff
from llmprof.analyze.copies import copy_rates
from llmprof.analyze.counters import counters

# Coverage, and measured time against its bound
from llmprof.analyze.coverage import coverage
from llmprof.analyze.eager import with_eager_steps
from llmprof.analyze.fusion import fusion_candidates

# Idle time and the host
from llmprof.analyze.idle.gaps import idle, stream_gaps
from llmprof.analyze.idle.host import host_pauses, launch_delay

# Kernels
from llmprof.analyze.kernels import kernel_summary, ops_to_kernels
from llmprof.analyze.layers import layer_gaps, layers, name_layers

# Memory
from llmprof.analyze.memory import memory
from llmprof.analyze.module_times import module_times
from llmprof.analyze.ncu.findings import hardware_findings

# Kernels measured by Nsight Compute
from llmprof.analyze.ncu.hardware import hot_lines, speed_of_light, stalls
from llmprof.analyze.ncu.launches import ncu_command, ncu_join
from llmprof.analyze.npu.cores import core_time, memory_by_component, operator_shapes
from llmprof.analyze.npu.waits import event_waits, host_synchronisation

# Questions of an NPU
from llmprof.analyze.npu.waits import launch_path, links
from llmprof.analyze.operator_calls import replayable
from llmprof.analyze.operators import operators

# Communication and overlap
from llmprof.analyze.overlap import overlap, overlap_within
from llmprof.analyze.queues import queue_length
from llmprof.analyze.ranks import late_groups, rank_groups, rank_steps

# Requests
from llmprof.analyze.requests.requests import requests, slowest
from llmprof.analyze.roofline import roofline_join, stage_observations
from llmprof.analyze.speculation import speculation
from llmprof.analyze.spikes import spikes

# Call stacks, and sums of a profiler
from llmprof.analyze.stacks import hotspots, stacks, totals
from llmprof.analyze.step_times import steady_state, step_time
from llmprof.analyze.tensor_cores import tensor_cores
from llmprof.arguments import door
from llmprof.errors import no_attribute
from llmprof.findings.findings import findings

# Steps and layers
from llmprof.analyze.events import events, kernel_categories, steps

# What would be gained
from llmprof.replay.critical_path import critical_path
from llmprof.replay.opportunities import opportunities
from llmprof.replay.slack import path_share, slack
from llmprof.replay.what_if import what_if


def __getattr__(name: str) -> object:
    """An analysis that a plug-in adds, by the name of its function."""
    from llmprof.analyze.catalog import analyses

    added = () if name.startswith("_") else analyses()
    for entry in added:
        if entry.name == name:
            return entry.function
    raise AttributeError(no_attribute(f"module {__name__!r}", name, globals()["__all__"]))


door(globals(), "changes", "nsys")
