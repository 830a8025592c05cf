"""Made from ``llmprof.analyze.catalog`` by ``docs/made.py``."""

from llmprof import analyze

class Methods:
    activity = analyze.activity
    attribute = analyze.attribute
    collective_arrivals = analyze.collective_arrivals
    collective_sizes = analyze.collective_sizes
    copy_rates = analyze.copy_rates
    core_time = analyze.core_time
    critical_path = analyze.critical_path
    diff = analyze.diff
    event_waits = analyze.event_waits
    expert_exchange = analyze.expert_exchange
    findings = analyze.findings
    fusion_candidates = analyze.fusion_candidates
    host_pauses = analyze.host_pauses
    host_synchronisation = analyze.host_synchronisation
    hotspots = analyze.hotspots
    idle = analyze.idle
    kernel_categories = analyze.kernel_categories
    kernel_summary = analyze.kernel_summary
    late_groups = analyze.late_groups
    launch_delay = analyze.launch_delay
    launch_path = analyze.launch_path
    layer_gaps = analyze.layer_gaps
    layers = analyze.layers
    links = analyze.links
    memory_by_component = analyze.memory_by_component
    module_times = analyze.module_times
    operator_shapes = analyze.operator_shapes
    operators = analyze.operators
    opportunities = analyze.opportunities
    ops_to_kernels = analyze.ops_to_kernels
    overlap = analyze.overlap
    overlap_within = analyze.overlap_within
    path_share = analyze.path_share
    queue_length = analyze.queue_length
    rank_balance = analyze.rank_balance
    rank_groups = analyze.rank_groups
    rank_steps = analyze.rank_steps
    replayable = analyze.replayable
    roofline_join = analyze.roofline_join
    running_beside = analyze.running_beside
    slack = analyze.slack
    speculation = analyze.speculation
    spikes = analyze.spikes
    stacks = analyze.stacks
    stage_observations = analyze.stage_observations
    steady_state = analyze.steady_state
    step_time = analyze.step_time
    steps = analyze.steps
    stream_gaps = analyze.stream_gaps
    tensor_cores = analyze.tensor_cores
    what_if = analyze.what_if
    with_captures = analyze.with_captures
    with_eager_steps = analyze.with_eager_steps
