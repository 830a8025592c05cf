"""Analyses: functions that take a trace and return a Polars frame, which the caller may change.

===================== ===========================================================================================
Events                :func:`activity`, :func:`attribute`, :func:`events_within`, :func:`coverage`
Steps                 :func:`steps`, :func:`steady_state`, :func:`step_time`
Layers                :func:`layers`, :func:`layer_gaps`
Kernels               :func:`kernel_summary`, :func:`kernels_within`, :func:`kernel_categories`,
                      :func:`ops_to_kernels`, :func:`stacks`
Overlap and idle time :func:`overlap`, :func:`overlap_within`, :func:`idle`, :func:`stream_gaps`,
                      :func:`launch_delay`
Collectives           :func:`collectives`, :func:`collective_arrivals`, :func:`collective_sizes`
Hardware metrics      :func:`speed_of_light`, :func:`stalls`, :func:`ncu_join`, :func:`name_layers`,
                      :func:`ncu_command`
On an NPU             :func:`launch_path`, :func:`host_synchronisation`, :func:`event_waits`, :func:`links`,
                      :func:`core_time`, :func:`operator_shapes`, :func:`memory_by_component`
Against theory        :func:`roofline_join`, :func:`stage_observations`
Conclusions           :func:`findings`, :func:`diff`, :func:`diff_times`, :func:`diff_events`, :func:`diff_reports`
===================== ===========================================================================================

Summaries under the names of Nsight Systems are in :mod:`llmprof.analyze.nsys`.
"""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING

# All are imported here, so that llmprof.analyze.steps is the function and never the folder: a submodule becomes an
# attribute of its package when it is first loaded, which is before these lines bind the function to the name.
from llmprof.analyze import nsys
from llmprof.analyze.activity import activity, kernel_categories
from llmprof.analyze.collectives.collectives import collective_arrivals, collective_sizes, collectives
from llmprof.analyze.compare import diff, diff_events, diff_reports, diff_times
from llmprof.analyze.coverage import coverage
from llmprof.analyze.findings.findings import findings
from llmprof.analyze.idle import idle, launch_delay, stream_gaps
from llmprof.analyze.kernels.kernels import events_within, kernel_summary, kernels_within
from llmprof.analyze.kernels.operators import ops_to_kernels
from llmprof.analyze.layers.attribution import attribute
from llmprof.analyze.layers.launches import name_layers
from llmprof.analyze.layers.layers import layer_gaps, layers
from llmprof.analyze.ncu.command import ncu_command
from llmprof.analyze.ncu.join import ncu_join
from llmprof.analyze.ncu.speed_of_light import speed_of_light, stalls
from llmprof.analyze.npu import (
    core_time,
    event_waits,
    host_synchronisation,
    launch_path,
    links,
    memory_by_component,
    operator_shapes,
)
from llmprof.analyze.overlap import overlap, overlap_within
from llmprof.analyze.roofline.join import roofline_join
from llmprof.analyze.roofline.observed import stage_observations
from llmprof.analyze.stacks import stacks
from llmprof.analyze.steps.steps import steps
from llmprof.analyze.steps.summary import steady_state, step_time

__all__ = [
    "activity",
    "attribute",
    "collective_arrivals",
    "collective_sizes",
    "collectives",
    "core_time",
    "coverage",
    "diff",
    "diff_events",
    "diff_reports",
    "diff_times",
    "event_waits",
    "events_within",
    "findings",
    "host_synchronisation",
    "idle",
    "kernel_categories",
    "kernel_summary",
    "kernels_within",
    "launch_delay",
    "launch_path",
    "layer_gaps",
    "layers",
    "links",
    "memory_by_component",
    "name_layers",
    "ncu_command",
    "ncu_join",
    "nsys",
    "operator_shapes",
    "ops_to_kernels",
    "overlap",
    "overlap_within",
    "roofline_join",
    "speed_of_light",
    "stacks",
    "stage_observations",
    "stalls",
    "steady_state",
    "step_time",
    "steps",
    "stream_gaps",
]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # for a type checker, only what is imported above exists

    def __getattr__(name: str) -> object:
        """An analysis that a plug-in adds, by the name of its function."""
        if not name.startswith("_") and name not in {module.name for module in pkgutil.iter_modules(__path__)}:
            from llmprof.analyze.catalog import analyses

            for one in analyses():
                if one.name == name:
                    return one.function
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
