from .base.dark import follow_theme as follow_theme, themed as themed
from .base.save import save as save, to_html as to_html, to_png_bytes as to_png_bytes
from .base.theme import narrow as narrow
from .breakdown import breakdown as breakdown, overlap as overlap
from .collectives import all_reduce as all_reduce
from .compare import diff as diff, diff_waterfall as diff_waterfall, opportunities as opportunities
from .counters import counters as counters
from .flame import flame as flame, speedscope as speedscope
from .heatmaps import (
    late_groups as late_groups,
    layer_heatmap as layer_heatmap,
    rank_heatmap as rank_heatmap,
    utilisation as utilisation,
)
from .idle import critical_path as critical_path, idle as idle, launch_delay as launch_delay
from .kernels import cuda_api as cuda_api, kernels as kernels, stalls as stalls
from .memory import memory as memory, memory_holders as memory_holders
from .requests import (
    dashboard as dashboard,
    request_latency as request_latency,
    request_waterfall as request_waterfall,
    requests as requests,
)
from .roofline import roofline as roofline
from .sweep import (
    study_pareto as study_pareto,
    study_slices as study_slices,
    sweep_latency as sweep_latency,
    sweep_scaling as sweep_scaling,
    sweep_throughput as sweep_throughput,
    sweep_time as sweep_time,
    trial_effects as trial_effects,
)
from .theory import (
    bound_gap as bound_gap,
    predicted as predicted,
    theory_curves as theory_curves,
    theory_memory as theory_memory,
    theory_parameters as theory_parameters,
    theory_roofline as theory_roofline,
    theory_shares as theory_shares,
    theory_structure as theory_structure,
)
from .timeline.timeline import timeline as timeline
