"""Charts: a frame of an analysis goes in, an Altair chart comes out.

Charts do no analysis, and only :func:`save` writes a file. A frame without rows, or without the
columns that a chart needs, raises :class:`~llmprof.errors.AnalysisError`. Altair is imported with
the first chart.
"""

from typing import TYPE_CHECKING

from llmprof.errors import door

if TYPE_CHECKING:
    from llmprof.charts.base.dark import follow_theme, themed
    from llmprof.charts.base.save import save, to_html, to_png_bytes
    from llmprof.charts.base.theme import narrow
    from llmprof.charts.subjects.breakdown import breakdown, overlap
    from llmprof.charts.subjects.collectives import collectives
    from llmprof.charts.subjects.compare import diff, diff_waterfall, opportunities
    from llmprof.charts.subjects.counters import counters
    from llmprof.charts.subjects.flame import flame, speedscope
    from llmprof.charts.subjects.hardware import (
        all_reduce_bandwidth,
        hardware_peaks,
        length_curves,
        link_bandwidth,
        parallel_efficiency,
    )
    from llmprof.charts.subjects.heatmaps import layers, ranks, utilization
    from llmprof.charts.subjects.idle import critical_path, idle, launch_delay
    from llmprof.charts.subjects.kernels import cuda_api, kernels, stalls
    from llmprof.charts.subjects.memory import memory
    from llmprof.charts.subjects.requests import dashboard, latencies, requests
    from llmprof.charts.subjects.roofline import roofline
    from llmprof.charts.subjects.sweep import (
        study_pareto,
        study_slices,
        sweep_latency,
        sweep_scaling,
        sweep_throughput,
        sweep_time,
        trial_effects,
    )
    from llmprof.charts.subjects.theory import (
        predicted,
        theory_curves,
        theory_memory,
        theory_parameters,
        theory_roofline,
        theory_shares,
        theory_structure,
    )
    from llmprof.charts.subjects.timeline.timeline import timeline

door(
    globals(),
    {
        "charts.base.dark": "follow_theme themed",
        "charts.base.save": "save to_html to_png_bytes",
        "charts.base.theme": "narrow",
        "charts.subjects.breakdown": "breakdown overlap",
        "charts.subjects.collectives": "collectives",
        "charts.subjects.compare": "diff diff_waterfall opportunities",
        "charts.subjects.counters": "counters",
        "charts.subjects.flame": "flame speedscope",
        "charts.subjects.hardware": (
            "all_reduce_bandwidth hardware_peaks length_curves link_bandwidth parallel_efficiency"
        ),
        "charts.subjects.heatmaps": "layers ranks utilization",
        "charts.subjects.idle": "critical_path idle launch_delay",
        "charts.subjects.kernels": "cuda_api kernels stalls",
        "charts.subjects.memory": "memory",
        "charts.subjects.requests": "dashboard latencies requests",
        "charts.subjects.roofline": "roofline",
        "charts.subjects.sweep": (
            "study_pareto study_slices sweep_latency sweep_scaling sweep_throughput"
            " sweep_time trial_effects"
        ),
        "charts.subjects.theory": (
            "predicted theory_curves theory_memory theory_parameters theory_roofline"
            " theory_shares theory_structure"
        ),
        "charts.subjects.timeline.timeline": "timeline",
    },
)
