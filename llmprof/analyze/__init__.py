"""Analyses: functions that take a trace and return a Polars frame, which the caller may change.

===================== ===========================================================================================
Events                :func:`activity`, :func:`attribute`, :func:`events_within`, :func:`coverage`
Steps                 :func:`steps`, :func:`steady_state`, :func:`step_time`
Layers                :func:`layers`, :func:`layer_gaps`
Kernels               :func:`kernel_summary`, :func:`kernels_within`, :func:`kernel_categories`,
                      :func:`ops_to_kernels`, :func:`stacks`, :func:`captured`, :func:`with_captures`
Overlap and idle time :func:`overlap`, :func:`overlap_within`, :func:`idle`, :func:`stream_gaps`,
                      :func:`launch_delay`
CPU and summaries     :func:`hotspots`, :func:`totals`
Memory                :func:`memory`
Collectives           :func:`collectives`, :func:`collective_arrivals`, :func:`collective_sizes`
Ranks                 :func:`expert_exchange`, :func:`late_groups`, :func:`rank_balance`, :func:`rank_groups`,
                      :func:`rank_steps`
Hardware metrics      :func:`speed_of_light`, :func:`stalls`, :func:`hot_lines`, :func:`ncu_join`, :func:`name_layers`,
                      :func:`ncu_command`, :func:`hardware_findings`
On an NPU             :func:`launch_path`, :func:`host_synchronisation`, :func:`event_waits`, :func:`links`,
                      :func:`core_time`, :func:`operator_shapes`, :func:`memory_by_component`
Requests              :func:`requests`, :func:`request_spans`, :func:`request_steps`, :func:`slowest`,
                      :func:`with_requests`
Against theory        :func:`roofline_join`, :func:`stage_observations`
Kernels to fuse       :func:`fusion_candidates`
Operators alone       :func:`replayable`, and :func:`llmprof.replay`
What would be gained  :func:`critical_path`, :func:`slack`, :func:`path_share`, :func:`what_if` with
                      :mod:`llmprof.analyze.changes`
Conclusions           :func:`findings`, :func:`run_facts`
Two runs              :func:`diff`, :func:`diff_times`, :func:`diff_events`, :func:`diff_reports`,
                      :func:`diff_waterfall`, :func:`diff_words`, :func:`diff_context`, :func:`run_names`
===================== ===========================================================================================

Summaries under the names of Nsight Systems are in :mod:`llmprof.analyze.nsys`.
"""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING

from llmprof.lazy import attach

__all__ = [
    "activity",
    "attribute",
    "captured",
    "changes",
    "collective_arrivals",
    "collective_sizes",
    "collectives",
    "core_time",
    "coverage",
    "critical_path",
    "diff",
    "diff_context",
    "diff_events",
    "diff_reports",
    "diff_times",
    "diff_waterfall",
    "diff_words",
    "event_waits",
    "events_within",
    "expert_exchange",
    "findings",
    "fusion_candidates",
    "hardware_findings",
    "host_synchronisation",
    "hot_lines",
    "hotspots",
    "idle",
    "kernel_categories",
    "kernel_summary",
    "kernels_within",
    "late_groups",
    "launch_delay",
    "launch_path",
    "layer_gaps",
    "layers",
    "links",
    "memory",
    "memory_by_component",
    "name_layers",
    "ncu_command",
    "ncu_join",
    "nsys",
    "operator_shapes",
    "ops_to_kernels",
    "overlap",
    "overlap_within",
    "path_share",
    "rank_balance",
    "rank_groups",
    "rank_steps",
    "replayable",
    "request_spans",
    "request_steps",
    "requests",
    "roofline_join",
    "run_facts",
    "run_names",
    "slack",
    "slowest",
    "speed_of_light",
    "stacks",
    "stage_observations",
    "stalls",
    "steady_state",
    "step_time",
    "steps",
    "stream_gaps",
    "totals",
    "what_if",
    "with_captures",
    "with_requests",
]

if TYPE_CHECKING:
    from llmprof.analyze import changes, nsys
    from llmprof.analyze.activity import activity, kernel_categories
    from llmprof.analyze.balance import expert_exchange, rank_balance
    from llmprof.analyze.captures import captured, with_captures
    from llmprof.analyze.collectives.collectives import collective_arrivals, collective_sizes, collectives
    from llmprof.analyze.compare.diff import diff, diff_reports
    from llmprof.analyze.compare.story import diff_context, diff_waterfall, diff_words, run_names
    from llmprof.analyze.compare.times import diff_events, diff_times
    from llmprof.analyze.coverage import coverage
    from llmprof.analyze.findings.facts import run_facts
    from llmprof.analyze.findings.findings import findings
    from llmprof.analyze.fusion import fusion_candidates
    from llmprof.analyze.idle import idle, launch_delay, stream_gaps
    from llmprof.analyze.kernels import events_within, kernel_summary, kernels_within, ops_to_kernels
    from llmprof.analyze.layers.attribution import attribute
    from llmprof.analyze.layers.layers import layer_gaps, layers, name_layers
    from llmprof.analyze.memory import memory
    from llmprof.analyze.ncu.findings import hardware_findings
    from llmprof.analyze.ncu.hardware import hot_lines, speed_of_light, stalls
    from llmprof.analyze.ncu.launches import ncu_command, ncu_join
    from llmprof.analyze.npu import (
        core_time,
        event_waits,
        host_synchronisation,
        launch_path,
        links,
        memory_by_component,
        operator_shapes,
    )
    from llmprof.analyze.operator_calls import replayable
    from llmprof.analyze.overlap import overlap, overlap_within
    from llmprof.analyze.ranks import late_groups, rank_groups, rank_steps
    from llmprof.analyze.replay.critical_path import critical_path
    from llmprof.analyze.replay.slack import path_share, slack
    from llmprof.analyze.replay.what_if import what_if
    from llmprof.analyze.requests.outside import with_requests
    from llmprof.analyze.requests.requests import request_steps, requests, slowest
    from llmprof.analyze.requests.spans import request_spans
    from llmprof.analyze.roofline import roofline_join, stage_observations
    from llmprof.analyze.stacks import hotspots, stacks, totals
    from llmprof.analyze.steps.steps import steps
    from llmprof.analyze.steps.summary import steady_state, step_time
else:
    _own, __dir__ = attach(
        __name__,
        {
            "activity": "llmprof.analyze.activity",
            "attribute": "llmprof.analyze.layers.attribution",
            "captured": "llmprof.analyze.captures",
            "changes": None,
            "collective_arrivals": "llmprof.analyze.collectives.collectives",
            "collective_sizes": "llmprof.analyze.collectives.collectives",
            "collectives": "llmprof.analyze.collectives.collectives",
            "core_time": "llmprof.analyze.npu",
            "coverage": "llmprof.analyze.coverage",
            "critical_path": "llmprof.analyze.replay.critical_path",
            "diff": "llmprof.analyze.compare.diff",
            "diff_context": "llmprof.analyze.compare.story",
            "diff_events": "llmprof.analyze.compare.times",
            "diff_reports": "llmprof.analyze.compare.diff",
            "diff_times": "llmprof.analyze.compare.times",
            "diff_waterfall": "llmprof.analyze.compare.story",
            "diff_words": "llmprof.analyze.compare.story",
            "event_waits": "llmprof.analyze.npu",
            "events_within": "llmprof.analyze.kernels",
            "expert_exchange": "llmprof.analyze.balance",
            "findings": "llmprof.analyze.findings.findings",
            "hardware_findings": "llmprof.analyze.ncu.findings",
            "fusion_candidates": "llmprof.analyze.fusion",
            "host_synchronisation": "llmprof.analyze.npu",
            "hotspots": "llmprof.analyze.stacks",
            "idle": "llmprof.analyze.idle",
            "kernel_categories": "llmprof.analyze.activity",
            "kernel_summary": "llmprof.analyze.kernels",
            "kernels_within": "llmprof.analyze.kernels",
            "launch_delay": "llmprof.analyze.idle",
            "launch_path": "llmprof.analyze.npu",
            "layer_gaps": "llmprof.analyze.layers.layers",
            "layers": "llmprof.analyze.layers.layers",
            "links": "llmprof.analyze.npu",
            "memory": "llmprof.analyze.memory",
            "memory_by_component": "llmprof.analyze.npu",
            "name_layers": "llmprof.analyze.layers.layers",
            "ncu_command": "llmprof.analyze.ncu.launches",
            "ncu_join": "llmprof.analyze.ncu.launches",
            "nsys": None,
            "operator_shapes": "llmprof.analyze.npu",
            "ops_to_kernels": "llmprof.analyze.kernels",
            "overlap": "llmprof.analyze.overlap",
            "overlap_within": "llmprof.analyze.overlap",
            "rank_balance": "llmprof.analyze.balance",
            "rank_groups": "llmprof.analyze.ranks",
            "rank_steps": "llmprof.analyze.ranks",
            "late_groups": "llmprof.analyze.ranks",
            "replayable": "llmprof.analyze.operator_calls",
            "request_spans": "llmprof.analyze.requests.spans",
            "request_steps": "llmprof.analyze.requests.requests",
            "requests": "llmprof.analyze.requests.requests",
            "run_facts": "llmprof.analyze.findings.facts",
            "run_names": "llmprof.analyze.compare.story",
            "path_share": "llmprof.analyze.replay.slack",
            "slack": "llmprof.analyze.replay.slack",
            "slowest": "llmprof.analyze.requests.requests",
            "roofline_join": "llmprof.analyze.roofline",
            "hot_lines": "llmprof.analyze.ncu.hardware",
            "speed_of_light": "llmprof.analyze.ncu.hardware",
            "stacks": "llmprof.analyze.stacks",
            "stage_observations": "llmprof.analyze.roofline",
            "stalls": "llmprof.analyze.ncu.hardware",
            "steady_state": "llmprof.analyze.steps.summary",
            "step_time": "llmprof.analyze.steps.summary",
            "steps": "llmprof.analyze.steps.steps",
            "stream_gaps": "llmprof.analyze.idle",
            "totals": "llmprof.analyze.stacks",
            "what_if": "llmprof.analyze.replay.what_if",
            "with_captures": "llmprof.analyze.captures",
            "with_requests": "llmprof.analyze.requests.outside",
        },
    )

    def __getattr__(name: str) -> object:
        """An analysis of llmprof, or one that a plug-in adds, by the name of its function."""
        if name in __all__:
            return _own(name)
        if not name.startswith("_") and name not in {module.name for module in pkgutil.iter_modules(__path__)}:
            from llmprof.analyze.catalog import analyses

            for entry in analyses():
                if entry.name == name:
                    return entry.function
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
