"""Sentences of the notebooks: functions that take a trace and return true sentences about it.

Each function has one subject, takes a trace, and returns a list of Markdown sentences with figures from
:mod:`llmprof.analyze`. A sentence that the trace does not support is left out or replaced by the reason. :func:`say`
shows the sentences in a notebook: ``prose.say(prose.what_ran(run), prose.of_steps(run))``. Static cells of a notebook
explain methods and charts, and state no fact about a recording.

============= ====================================================================================================
Words         :func:`say`, :func:`or_why_not`, :func:`listed`, :func:`counted`, :func:`joined`
What it is    :func:`what_ran`, :func:`of_coverage`, :func:`of_findings`
Time          :func:`of_steps`, :func:`of_watched_rank`, :func:`of_steady_state`, :func:`of_timeline`, :func:`of_lead`,
              :func:`of_idle`
Layers        :func:`of_layer`, :func:`stages_of_layer`, :func:`of_small_kernels`, :func:`of_layer_times`
Ranks         :func:`matched_calls`, :func:`late_rank`, :func:`of_communication`, :func:`of_the_cause`,
              :func:`of_exposed`
Other runs    :func:`of_two_transfers`, :func:`decode_step`, :func:`of_decode_steps`, :func:`of_a_pipeline`
Kernels       :func:`hottest_kernel`, :func:`of_hottest_kernel`, :func:`of_weights_bound`, :func:`of_report`,
              :func:`of_bounds`, :func:`of_stalls`, :func:`of_reached_bound`, :func:`of_savings`
Gain          :func:`of_pace`, :func:`of_predictions`, :func:`compared`, :func:`of_decision`
============= ====================================================================================================
"""

from __future__ import annotations

from llmprof.notebook.prose.gain import compared, of_decision, of_pace, of_predictions
from llmprof.notebook.prose.kernels import (
    device_of,
    events_of_steps,
    feed_forward_bytes,
    hottest_kernel,
    of_bounds,
    of_hottest_kernel,
    of_reached_bound,
    of_report,
    of_savings,
    of_stalls,
    of_weights_bound,
    representative_steps,
)
from llmprof.notebook.prose.layers import (
    of_layer,
    of_layer_times,
    of_layers_found,
    of_small_kernels,
    stages_of_layer,
)
from llmprof.notebook.prose.ranks import (
    decode_step,
    late_rank,
    matched_calls,
    of_a_pipeline,
    of_communication,
    of_decode_steps,
    of_exposed,
    of_the_cause,
    of_two_transfers,
)
from llmprof.notebook.prose.timeline import (
    of_coverage,
    of_findings,
    of_idle,
    of_lead,
    of_steady_state,
    of_steps,
    of_timeline,
    of_watched_rank,
)
from llmprof.notebook.prose.words import listed, or_why_not, say, what_ran
from llmprof.text import counted, joined

__all__ = [
    "compared",
    "counted",
    "decode_step",
    "device_of",
    "events_of_steps",
    "feed_forward_bytes",
    "hottest_kernel",
    "joined",
    "late_rank",
    "listed",
    "matched_calls",
    "of_a_pipeline",
    "of_bounds",
    "of_communication",
    "of_coverage",
    "of_decision",
    "of_decode_steps",
    "of_exposed",
    "of_findings",
    "of_hottest_kernel",
    "of_idle",
    "of_layer",
    "of_layer_times",
    "of_layers_found",
    "of_lead",
    "of_pace",
    "of_predictions",
    "of_reached_bound",
    "of_report",
    "of_savings",
    "of_small_kernels",
    "of_stalls",
    "of_steady_state",
    "of_steps",
    "of_the_cause",
    "of_timeline",
    "of_two_transfers",
    "of_watched_rank",
    "of_weights_bound",
    "or_why_not",
    "representative_steps",
    "say",
    "stages_of_layer",
    "what_ran",
]
