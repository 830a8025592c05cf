"""What ``llmprof.analyze`` exports, under headings that are pages of the reference, in the order of the catalogue.

One line adds an analysis to the package, the command line, the report, the exports, the docs and the methods of a
trace.
"""  # noqa: E501

# Findings and differences
from .findings.findings import findings as findings
from .compare.diff import diff as diff

# Steps and layers
from .steps.steps import steps as steps
from .steps.summary import steady_state as steady_state, step_time as step_time
from .steps.speculation import speculation as speculation
from .layers.layers import layers as layers, layer_gaps as layer_gaps

# Communication and overlap
from .overlap import overlap as overlap, overlap_within as overlap_within
from .collectives.collectives import (
    collectives as collectives,
    collective_sizes as collective_sizes,
)
from .collectives.collectives import collective_arrivals as collective_arrivals
from .balance import expert_exchange as expert_exchange, rank_balance as rank_balance
from .ranks import rank_steps as rank_steps, rank_groups as rank_groups, late_groups as late_groups

# Idle time and the host
from .idle.gaps import idle as idle, stream_gaps as stream_gaps
from .idle.host import launch_delay as launch_delay, host_pauses as host_pauses
from .queues import queue_length as queue_length

# What would be gained
from .replay.critical_path import critical_path as critical_path
from .replay.opportunities import opportunities as opportunities
from .replay.slack import slack as slack, path_share as path_share
from .replay.what_if import what_if as what_if

# Kernels
from .kernels import kernel_summary as kernel_summary, ops_to_kernels as ops_to_kernels
from .operators import operators as operators
from .operator_calls import replayable as replayable
from .fusion import fusion_candidates as fusion_candidates
from .activity import activity as activity, kernel_categories as kernel_categories
from .captures import with_captures as with_captures
from .eager import with_eager_steps as with_eager_steps
from .beside import running_beside as running_beside
from .counters import counters as counters
from .tensor_cores import tensor_cores as tensor_cores
from .spikes import spikes as spikes
from .module_times import module_times as module_times

# Memory
from .memory import memory as memory
from .copies import copy_rates as copy_rates

# Call stacks, and sums of a profiler
from .stacks import hotspots as hotspots, totals as totals, stacks as stacks

# Coverage, and measured time against its bound
from .coverage import coverage as coverage
from .roofline import roofline_join as roofline_join, stage_observations as stage_observations
from .layers.attribution import attribute as attribute

# Questions of an NPU
from .npu.waits import launch_path as launch_path, host_synchronisation as host_synchronisation
from .npu.waits import event_waits as event_waits, links as links
from .npu.cores import core_time as core_time, operator_shapes as operator_shapes
from .npu.cores import memory_by_component as memory_by_component

## Above are functions of a trace, which are its methods, too; below are others.

# What would be gained
from . import changes as changes

# Kernels measured by Nsight Compute
from .ncu.hardware import hot_lines as hot_lines, speed_of_light as speed_of_light, stalls as stalls
from .ncu.launches import ncu_command as ncu_command, ncu_join as ncu_join
from .ncu.findings import hardware_findings as hardware_findings
from .layers.layers import name_layers as name_layers

# Requests
from .requests.requests import requests as requests, slowest as slowest

# Summaries with the names of Nsight Systems
from . import nsys as nsys
