"""Charts: a frame of an analysis goes in, an Altair chart comes out.

Charts do no analysis, and only :func:`save` writes a file. A frame without rows, or without the
columns that a chart needs, raises :class:`~llmprof.errors.AnalysisError`. Altair is imported with
the first chart.
"""

from llmprof.errors import door

from llmprof.charts.base.dark import follow_theme, themed
from llmprof.charts.base.save import save, to_html, to_png_bytes
from llmprof.charts.base.theme import narrow
from llmprof.charts.breakdown import breakdown, overlap
from llmprof.charts.collectives import collectives
from llmprof.charts.compare import diff, diff_waterfall, opportunities
from llmprof.charts.counters import counters
from llmprof.charts.flame import flame, speedscope
from llmprof.charts.heatmaps import layers, ranks, utilization
from llmprof.charts.idle import critical_path, idle, launch_delay
from llmprof.charts.kernels import cuda_api, kernels, stalls
from llmprof.charts.memory import memory
from llmprof.charts.requests import dashboard, latencies, requests
from llmprof.charts.roofline import roofline
from llmprof.charts.sweep import (
    study_pareto,
    study_slices,
    sweep_latency,
    sweep_scaling,
    sweep_throughput,
    sweep_time,
    trial_effects,
)
from llmprof.charts.theory import (
    predicted,
    theory_curves,
    theory_memory,
    theory_parameters,
    theory_roofline,
    theory_shares,
    theory_structure,
)
from llmprof.charts.timeline.timeline import timeline

door(globals())
