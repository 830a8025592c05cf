"""Charts: a frame of an analysis goes in, an Altair chart comes out.

Charts do no analysis, and only :func:`save` writes a file. A frame without rows, or without the columns that a chart
needs, raises :class:`~llmprof.errors.AnalysisError`. Altair is imported with the first chart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmprof.lazy import attach, put_off_iri_grammars

__all__ = [
    "all_reduce",
    "bound_gap",
    "breakdown",
    "counters",
    "critical_path",
    "cuda_api",
    "dashboard",
    "diff",
    "diff_waterfall",
    "flame",
    "follow_theme",
    "idle",
    "kernels",
    "late_groups",
    "launch_delay",
    "layer_heatmap",
    "memory",
    "memory_holders",
    "narrow",
    "overlap",
    "predicted",
    "rank_heatmap",
    "request_latency",
    "request_waterfall",
    "requests",
    "roofline",
    "save",
    "speedscope",
    "stalls",
    "sweep_latency",
    "sweep_scaling",
    "sweep_throughput",
    "sweep_time",
    "themed",
    "theory_curves",
    "theory_memory",
    "theory_parameters",
    "theory_roofline",
    "theory_shares",
    "theory_structure",
    "timeline",
    "to_html",
    "to_png_bytes",
]

if TYPE_CHECKING:
    from llmprof.charts.base.dark import follow_theme, themed
    from llmprof.charts.base.save import save, to_html, to_png_bytes
    from llmprof.charts.base.theme import narrow
    from llmprof.charts.breakdown import breakdown, overlap
    from llmprof.charts.collectives import all_reduce
    from llmprof.charts.compare import diff, diff_waterfall
    from llmprof.charts.counters import counters
    from llmprof.charts.flame import flame, speedscope
    from llmprof.charts.idle import critical_path, idle, launch_delay
    from llmprof.charts.kernels import cuda_api, kernels, stalls
    from llmprof.charts.layers import layer_heatmap
    from llmprof.charts.memory import memory, memory_holders
    from llmprof.charts.ranks import late_groups, rank_heatmap
    from llmprof.charts.requests import dashboard, request_latency, request_waterfall, requests
    from llmprof.charts.roofline import roofline
    from llmprof.charts.sweep import sweep_latency, sweep_scaling, sweep_throughput, sweep_time
    from llmprof.charts.theory.curves import bound_gap, predicted, theory_curves, theory_memory
    from llmprof.charts.theory.structure import theory_parameters, theory_roofline, theory_shares, theory_structure
    from llmprof.charts.timeline.timeline import timeline
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "all_reduce": "llmprof.charts.collectives",
            "breakdown": "llmprof.charts.breakdown",
            "counters": "llmprof.charts.counters",
            "cuda_api": "llmprof.charts.kernels",
            "kernels": "llmprof.charts.kernels",
            "dashboard": "llmprof.charts.requests",
            "diff": "llmprof.charts.compare",
            "diff_waterfall": "llmprof.charts.compare",
            "flame": "llmprof.charts.flame",
            "speedscope": "llmprof.charts.flame",
            "critical_path": "llmprof.charts.idle",
            "follow_theme": "llmprof.charts.base.dark",
            "idle": "llmprof.charts.idle",
            "launch_delay": "llmprof.charts.idle",
            "layer_heatmap": "llmprof.charts.layers",
            "memory": "llmprof.charts.memory",
            "memory_holders": "llmprof.charts.memory",
            "narrow": "llmprof.charts.base.theme",
            "overlap": "llmprof.charts.breakdown",
            "late_groups": "llmprof.charts.ranks",
            "rank_heatmap": "llmprof.charts.ranks",
            "request_latency": "llmprof.charts.requests",
            "request_waterfall": "llmprof.charts.requests",
            "requests": "llmprof.charts.requests",
            "roofline": "llmprof.charts.roofline",
            "save": "llmprof.charts.base.save",
            "to_html": "llmprof.charts.base.save",
            "to_png_bytes": "llmprof.charts.base.save",
            "stalls": "llmprof.charts.kernels",
            "sweep_latency": "llmprof.charts.sweep",
            "sweep_throughput": "llmprof.charts.sweep",
            "sweep_scaling": "llmprof.charts.sweep",
            "sweep_time": "llmprof.charts.sweep",
            "themed": "llmprof.charts.base.dark",
            "theory_parameters": "llmprof.charts.theory.structure",
            "theory_roofline": "llmprof.charts.theory.structure",
            "theory_shares": "llmprof.charts.theory.structure",
            "theory_curves": "llmprof.charts.theory.curves",
            "theory_memory": "llmprof.charts.theory.curves",
            "bound_gap": "llmprof.charts.theory.curves",
            "predicted": "llmprof.charts.theory.curves",
            "theory_structure": "llmprof.charts.theory.structure",
            "timeline": "llmprof.charts.timeline.timeline",
        },
    )

put_off_iri_grammars()  # Altair, which each chart imports, imports jsonschema
