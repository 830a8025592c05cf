"""Sentences of findings: templates that take figures with units, and words of the platform and the
program.

A rule measures and gives figures; the template of its name says them. Names of figures end in their
unit (``_ns``, ``_share``, ``_bytes``). Blanks and line ends of a template count as one blank; those
of figures stay.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from llmprof.text import counted, joined, ranks_in_words, shorten
from llmprof.units import format_bytes, format_ns, format_share

if TYPE_CHECKING:
    import jinja2


class Words(NamedTuple):
    """Templates of a finding."""

    title: str
    detail: str
    suggestion: str


_SHARED: Final = {
    "doing(": """{%- macro doing(d) -%}
  {%- if d.unrecorded_share is not none or not d.name -%} code that was not recorded
    {%- if d.unrecorded_share is not none %} ({{ d.unrecorded_share|share }}){% endif -%}
    {%- if d.name %}, then {% endif -%}
  {%- endif -%}
  {%- if d.name -%}
    {{ {"range": "the range ", "ranges": "ranges such as ", "python": "the Python function "}.get(d.kind, "") -}}
    {{ d.name|unversioned }} ({{ d.share|share }})
  {%- endif -%}
{%- endmacro -%}""",
    "for_part(": """{%- macro for_part(words) -%}
  {%- if on -%} on {{ on|ranks }}, {% endif -%} for {{ time_ns|ns }} of {{ part }} ({{ share|share }}) {{ words }}
{%- endmacro -%}""",
    "in_part(": """{%- macro in_part(words) -%}
  {%- if on -%} on {{ on|ranks }}, {% endif -%} {{ time_ns|ns }} of {{ part }} ({{ share|share }}) {{ words }}
{%- endmacro -%}""",
}
"""Macros by how they are called; each text is compiled with those that it calls."""

_ELSEWHERE: Final = """
{%- if others_ns %} {% if others_ns[1] %}The other ranks lose {{ others_ns[0]|ns -}}
{%- if others_ns[0]|ns != others_ns[1]|ns %} to {{ others_ns[1]|ns }}{% endif -%}
{%- else %}The other ranks lose nothing{% endif %}.{% endif %}"""
"""The time of ranks that a finding is not about."""

_REASONS: Final = {
    "allocation": ("in calls that allocate and free memory, mostly ", "{{ advice['memory'] }}"),
    "compilation": ("to compile kernels, mostly in ", "{{ compiling }}"),
    "loading": (
        "to load the code of kernels{% if first_launches %} at the first launch of each{% endif %}, mostly in ",
        "{{ loading }}",
    ),
    "data_loading": (
        "to load the next batch of data, mostly in ",
        """{% if of_torch %}Load batches beside the device's work: more workers (num_workers), prefetch_factor,
        persistent_workers, pinned memory with non_blocking copies; decode and resize less for each sample.
        {%- else %}Load the next batch beside the device's work, with more workers.{% endif %}""",
    ),
    "input_preparation": (
        "to prepare inputs on the CPU, mostly in ",
        """Prepare the next inputs beside the device's work (other processes), or on the device, and cache what is
        prepared again and again.""",
    ),
}
"""What the host does when a finding knows the reason, and advice."""

_UNEVEN: Final = {
    "slow_device": (
        ": all its kernels are slower by about the same factor",
        """The same kernels are slower there: look for a lower clock (power or temperature limit) and for other
        processes on that {{ device }}, and compare it with another one.""",
    ),
    "uneven_experts": (
        ": only its experts take longer",
        """It likely has more tokens for its experts: count the tokens of each expert, and place or replicate experts by
        their load.""",
    ),
    "uneven_compute": (
        "",
        """Look for {% if of_torch %}uneven sharding, experts or stages{% else %}an uneven division of the work
        {%- endif %}, and for a slower or throttled {{ device }}: which of them is not clear from the times.""",
    ),
}
"""What makes a rank compute longer, and advice."""

FINDINGS: Final = {
    "arrival_skew": Words(
        """{% if group %}{{ in_part("is waiting for the last rank:") }} {{ group.who }} arrive last in
        {{ group.share_last|share }} of the {{ kind }}s.
        {%- elif late_wait_share >= 0.5 %}{% if on %}{{ on|ranks }} wait{{ "s" if on|length == 1 else "" }}
        {{ time_ns|ns }} of {{ part }} ({{ share|share }}) for{% else %}{{ in_part("is waiting for") }}{% endif %}
        {%- if late_wait_share >= 0.9 %} rank {{ late }}, which causes {{ late_wait_share|share }} of it and
        {%- else %} the last rank: rank {{ late }} causes {{ late_wait_share|share }} of it and
        {%- endif %} arrives last in {{ late_share|share }} of the {{ kind }}s.
        {%- else %}{{ in_part("is waiting for whichever rank comes last,") }} most for rank {{ late }}
        ({{ late_wait_share|share }} of the waiting).{% endif %}""",
        """{{ calls|n }} calls: {{ waited_share|share }} of their summed time on the other ranks is waiting. In the
        median, a rank spends {{ seen_ns|ns }} in a call, {{ transfer_ns|ns }} of it transfer; the first and the last
        rank arrive {{ skew_ns|ns }} apart, and all leave within {{ spread_ns|ns }} of each other
        {%- if clock_offset_ns %}, after their clocks were corrected by up to {{ clock_offset_ns|ns }}
        {%- else %}, so their clocks agree{% endif %}.
        {%- if overlapping_share is not none and overlapping_share < 1 %} {{ overlapping_share|share }} of the calls
        overlap on all ranks, as they must.{% endif %}
        {%- if group %} The middle one of these ranks comes {{ group.late_median_ns|ns }} after the first rank of a call
        (groups by {{ group.evidence }}).{% endif %}""",
        """{% if group %}Look for what these ranks share before touching communication: their host (other processes,
        clocks, power and temperature limits), their switch, their part of the model or of the requests.
        analyze.late_groups compares all groups, charts.ranks shows when it happens.
        {%- elif cause %}The finding {{ cause|replace("_", " ") }} says why rank {{ late }} is late.
        {%- elif on_host %}Find out why that rank is late before touching communication: compare the times of its
        operators with those of the others, pin each rank to cores of its own, and look for other processes on those
        cores.
        {%- else %}Find out why that rank is late before touching communication: compare its host time and idle causes
        with the others', {{ pin }}, look for other processes on those cores, and take the launches off the critical
        path with {{ graphs }}.{% endif %}""",
    ),
    "pipeline_wait": Words(
        """{{ in_part("is waiting for another stage of the pipeline.") }}""",
        """{{ calls|n }} {{ kind }}s: waiting is {{ waited_share|share }} of their time, the transfer takes
        {{ transfer_ns|ns }} of {{ seen_ns|ns }} (medians). Rank {{ late }} arrives last in {{ late_share|share }},
        {{ skew_ns|ns }} after the first (median).""",
        """In a pipeline, one batch in flight leaves every stage but one idle: keep as many batches in flight as there
        are stages, or use tensor parallelism inside a host.""",
    ),
    "host_bound": Words(
        """{% if on and on|length > 1 %}The {{ device }}s of {{ on|ranks }} wait
        {%- elif on %}The {{ device }} of {{ on|ranks }} waits
        {%- elif ranks > 1 %}Each {{ device }} waits{% else %}The {{ device }} waits{% endif %}
        {{ time_ns|ns }} of {{ part }} ({{ share|share }}) for
        {{ "their hosts, which launch" if on and on|length > 1 else "its host, which launches" }} kernels too late.""",
        """While the device waits, the launching thread is longest in {{ doing(host) }}. The launching calls
        themselves are {{ launching_share|share }} of the waiting. In {{ part }}, {{ calls|n_or_unknown }} calls launch
        {{ kernels|n_or_unknown }} kernels{% if replayed_share %}, {{ replayed_share|share }} of them from replayed
        graphs{% endif %}.
        {%- if has_layer_times %} The host launches a layer in {{ layer_ns|ns }}
        {%- if layer_of_others_ns is not none and layer_ns > layer_of_others_ns %}, that of the other ranks in
        {{ layer_of_others_ns|ns }}{% endif -%}
        .{% endif %}""",
        """{% if elsewhere %}
        {%- if elsewhere.set_up == "memory" %}{{ advice["memory"] }}
        {%- elif elsewhere.set_up == "loading" %}{{ loading }}
        {%- elif elsewhere.set_up == "compiling" %}{{ compiling }}
        {%- else %}Do {{ elsewhere.call }} while the device works, on another thread or after the launches, or find out
        what it waits for (a file, another thread or process).{% endif %}
        Fewer launches do not shorten {{ elsewhere.call }} ({{ elsewhere.share|share }}).
        {%- if elsewhere.once %} Most of it is one pause: if it comes only once, start the profiler after it.{% endif %}
        {%- else %}
        {%- if in_graphs and launching_share >= 0.5 %}Launch the graph of the next step while the device
        works on this one (asynchronous scheduling), or fewer or smaller graphs. Most kernels come from replayed graphs
        already.
        {%- elif in_graphs %}Do what the host does between the replays, above all {{ doing(host) }}, for the
        next step while the device works on this one (asynchronous scheduling), or take it out of the step. Most kernels
        come from replayed graphs already.
        {%- elif long_share >= 0.5 %}
        {%- if (host.share or 0) >= 0.5 and host.kind in ("range", "ranges", "call") %}Do what the thread is in,
        {{ doing(host) }}, while the device works, on another thread or after the launches, or find out
        what it waits for (a file, another thread or process).
        {%- else %}Sample the CPU of the launching thread, or record its functions, to see what it does then.
        {%- endif %} Fewer launches gain little: {{ long_share|share }} of it are pauses of 1 ms or more.
        {%- elif engine and reads_prompts %}Launch more work with each call: {{ compile }}, or more tokens of prompts
        in a step; engines run whole graphs for decode alone.{{ ahead }}
        {%- elif engine %}Let one call launch a whole step: {{ use_graphs }}, or {{ compile }}. Then look at the Python
        time of a layer on that rank, the CPU's governor and clocks, and the profiler's own overhead.{{ ahead }}
        {%- elif of_torch %}Launch more work with each call: {{ compile }}, fused operators, a larger batch, or
        {{ graphs }} where shapes repeat. The profiler's own overhead is part of it.{{ ahead }}
        {%- else %}Launch more work with each call: fewer and larger kernels, or {{ graphs }} where the same launches
        repeat. The profiler's own overhead is part of it.
        {%- endif -%}
        {%- if of_torch and host.set_up == "operators" %} This call compiles operators while the step waits:
        torch.npu.set_compile_mode(jit_compile=False) takes compiled ones.
        {%- elif host.set_up == "loading" %} {{ loading }}{% elif host.set_up == "compiling" %} {{ compiling }}
        {%- endif %}{% endif %}""",
    ),
    **{
        reason: Words(
            """{{ for_part("the device waits for its host") }} """
            + what
            + """{{ who|cut(101) }}
        {%- if by_who_share < 0.9995 %} ({{ by_who_share|share }} of it){% endif %}.""",
            """{% if calls %}{{ calls|n }} calls of it on all ranks take {{ calls_ns|ns }} in all;{% endif %}
            {{ pauses|count("such pause") }}
        in {{ part }}, the longest of {{ longest_ns|ns }}.""",
            advice,
        )
        for reason, (what, advice) in _REASONS.items()
    },
    "device_held": Words(
        """{{ for_part("launched work waits") }} while the host is in {{ call }}
        {%- if by_call_share < 0.9995 %} ({{ by_call_share|share }} of it){% endif %}.""",
        "{{ pauses|count('such pause') }} in {{ part }}, the longest of {{ longest_ns|ns }}.",
        "{{ advice[kind] or 'Take that call out of the step.' }}",
    ),
    "synchronisation": Words(
        """{{ for_part("the device is idle after a synchronising call,") }} mostly {{ call }}, until the next
        launch.""",
        """{{ pauses|count("such pause") }} in {{ part }}; the launching thread is then longest in
        {{ doing(host) }}.""",
        """{% if of_torch %}Find the .item(), .cpu() or synchronize() (its operator is around the call) and take it out
        of the step, so that the host can launch ahead.
        {%- else %}Find where the program makes this call, and leave it out where the host does not need the result at
        once (asynchronous copies, events between streams), so that the host can launch ahead.{% endif %}""",
    ),
    "exposed_communication": Words(
        """{{ in_part("is " ~ ("transfer" if waits_known else "communication") ~ " with no compute beside it.") }}""",
        """{{ hidden_share|share }} of all communication is hidden behind compute. {{ calls|n }} calls in {{ part }},
        {{ "of no known kind" if kinds == ["other"] else "most time in " ~ kinds|join(", ") }}.
        {%- if not waits_known %} How much of it is waiting for other ranks is not known
        {%- if why %}: {{ why }}{% endif %}.{% endif %}""",
        """{% if has_layers %}Fewer or fused collectives, {{ fuse_communication }}, sequence parallelism, compute beside
        it, or a smaller tensor-parallel size.
        {%- else %}Fewer or fused collectives, larger messages, or compute beside them.{% endif %}""",
    ),
    "copies": Words(
        """{{ in_part("goes to copies with nothing beside them,") }} {{ by_name_share|share }} of it {{ name }}.""",
        """{{ count|amount }} of these in {{ part }}
        {%- if moved_bytes %}, {{ moved_bytes|bytes }} {{ unit }} at {{ "{:,.1f}".format(gbps) }} GB/s{% endif %}.""",
        """{% if kind == "pageable" %}{% if of_torch %}Use pinned memory (pin_memory=True) and non_blocking=True: copies
        {%- else %}Use pinned memory and asynchronous copies: copies{% endif %} from pageable memory go through a buffer
        and cannot run beside compute.
        {%- elif kind == "to device" %}{% if of_torch %}Keep what is copied again and again (offloaded weights, KV
        blocks, constants) on the device, or fetch it on a stream of its own while the step before computes.
        {%- else %}Keep what is copied again and again on the device, or fetch it on a stream of its own while other
        work runs.{% endif %}
        {%- elif kind == "to host" %}{% if of_torch %}Copy results on a stream of their own while the next step
        computes, and copy less: token ids instead of logits.
        {%- else %}Copy results on a stream of their own while other work runs, and copy less of them.{% endif %}
        {%- elif kind == "peer" %}Send between devices while others compute, or place what is exchanged on the device
        that uses it.
        {%- elif of_torch %}Look for the operators that copy (contiguous, to, cat, index_copy): a neighbouring operation
        may be able to change the layout or type while it reads.
        {%- else %}Look for changes of layout or type that a neighbouring operation could do while it reads.
        {%- endif %}""",
    ),
    "unexplained_idle": Words(
        """{{ for_part("the device is idle and nothing recorded says why.") }}""",
        """{{ pauses|count("pause") }} in {{ part }}; {% if launched_share %}in {{ launched_share|share }} of the time
        the next event had been launched already{% else %}when the next events were launched is not known{% endif
        %}.""",
        """Record the host's calls of all threads{{ record_host }}, and look for other processes on the device and
        for events that the profiler dropped.""",
    ),
    "left_out": Words(
        """{% if copies_only %}{{ for_part("no copy runs; kernels were not recorded.") }}
        {%- else %}{{ for_part("nothing in the file runs, but what does is not all in it.") }}{% endif %}""",
        """{{ pauses|count("pause") }} in {{ part }}{% if copies_only %}: whether the device was idle in them is not
        known.{% else %}. The profiler recorded that the kernels after these pauses waited for less than half of that
        time, so something else ran before them.{% endif %}""",
        "Read the whole profile to see what ran there.",
    ),
    "idle_at_the_ends": Words(
        """{% if on_host %}{{ for_part("no operator runs before the first one and after the last.") }}
        {%- else %}{{ for_part("the device runs nothing before its first event and after its last.") }}{% endif %}""",
        """{{ before_ns|ns }} before the first and {{ after_ns|ns }} after the last.
        {%- if started_in %} Before the first the host is in {{ started_in }} ({{ started_in_share|share }}).
        {%- endif %}""",
        """Start the profiler after loading and warm-up, or look at what the host does there: this time is no part of a
        steady run.""",
    ),
    "between_operators": Words(
        """{{ for_part("no operator runs.") }}""",
        """{{ pauses|count("pause") }} in {{ part }}, {{ (time_ns / pauses)|ns }} on average,
        {{ median_ns|ns }} in the median:
        {% if in_python %}Python, or {% endif %}work that is not an operator.""",
        """{% if in_python %}Record Python functions (with_stack=True) to see what runs there.
        {%- else %}Sample the host's CPU (perf record -g) to see what runs there.{% endif %}""",
    ),
    "nccl_for_small_messages": Words(
        """{{ in_part("is transfer of all-reduces of") }} {{ message_bytes|bytes }} through {{ communication }}
        ({{ algorithm or "an unknown algorithm" }}): {{ transfer_ns|ns }} each, at {{ "{:,.1f}".format(bus_gbps) }} GB/s
        on the bus.""",
        """{{ calls|n }} in {{ part }}; vLLM's custom all-reduce takes messages up to {{ most_bytes|bytes }} between
        {{ device }}s with peer access.""",
        """Compare a run with the custom all-reduce (no disable_custom_all_reduce); if it is off by itself, check peer
        access between the {{ device }}s.""",
    ),
    "between_queued_events": Words(
        """{{ in_part("passes between events that were launched in time,") }} {{ by_kind_share|share }} of it
        {{ {"graph": "between nodes of a replayed graph", "stream": "between events of one stream",
            "copy": "after a copy on the same stream", "event": "in an event wait of a stream for another one"
           }[kind] }}.""",
        """{{ pauses|n }} pauses in {{ part }}, {{ (time_ns / pauses)|ns }} on average, {{ median_ns|ns }} in the
        median.""",
        "Fewer and larger kernels: each costs the device such a pause.",
    ),
    "short_kernels": Words(
        """{{ in_part("goes to kernels shorter than") }} {{ limit_ns|ns }}: {{ count|n }} of {{ kernels|n }}.""",
        """They are {{ of_kernels_share|share }} of all kernels, and neither GEMM, attention nor communication. The
        median of all kernels is {{ median_ns|ns }}; each costs a launch or a graph node besides.""",
        """{% if of_torch %}Fuse them ({{ fuse }}) or raise the batch, so that a launch does more work.
        {%- else %}Fuse them with their neighbours, or give each more work.{% endif %}""",
    ),
    "split_k": Words(
        """{{ in_part("is split-K reductions:") }} {{ count|n }} extra kernels.""",
        """{{ gemm }} splits the inner dimension of a GEMM that is too small to fill the {{ device }}, and adds a kernel
        for the sum: {{ of_gemms_share|share }} of the time of the GEMMs.""",
        """A larger batch needs no split; {% if parallel %}smaller tensor parallelism makes GEMMs wider; {% endif -%}
        or tune the algorithm choice.""",
    ),
    "drafting": Words(
        """{{ in_part("goes to drafting") }}
        {%- if draft_tokens %}: {{ "%.1f"|format(draft_tokens) }} tokens a request and step{% endif %}.""",
        """A draft model or prediction heads guess tokens, which the model verifies in the next step. By the time of the
        kernels, it pays if a step gives a request more than {{ "%.2f"|format(even_tokens) }} tokens.""",
        """See how many are right: analyze.speculation(run.trace, engine_steps=run.engine_steps), or the engine's
        counter of accepted tokens. If too few are, draft fewer, or by n-grams, which take the device no time.""",
    ),
    "ai_cpu_operators": Words(
        """{{ in_part("goes to operators on the AI CPUs and not on the AI cores:") }} {{ count|amount }} of them in
        {{ part }}, the most time in {{ name|cut(101) }} ({{ by_name_share|share }} of it).""",
        "An operator falls back to the AI CPUs where CANN has no kernel for its types or shapes.",
        """Give it types that the AI cores compute (int32 for int64, float32 or bfloat16 for float64), or take another
        operator: msprof-analyze lists the types that each supports.""",
    ),
    "format_changes": Words(
        """{{ in_part("goes to changes of format (TransData):") }} {{ count|amount }} of them in {{ part }}, the most
        time in {{ name|cut(101) }} ({{ by_name_share|share }} of it).""",
        "CANN puts them between operators that want their tensors in different formats, such as ND and NZ.",
        """Keep one format: torch.npu.config.allow_internal_format = False keeps ND throughout; weights that stay can be
        turned to NZ once, with npu_format_cast after loading.""",
    ),
    **{
        rule: Words(
            """Rank {{ most }} computes {{ time_ns|ns }} longer in {{ part }} ({{ share|share }}),
            {{ "{:.2f}".format(ratio) }} times as long as rank {{ least }}"""
            + what
            + ".",
            """{% for kind, times in kinds %}{{ "Against the mean of the others: " if loop.first else ", " }}
            {{- kind|replace("_", " ") }} {{ "{:.2f}".format(times) }} times
            {{- "." if loop.last else "" }}{% endfor %}""",
            advice,
        )
        for rule, (what, advice) in _UNEVEN.items()
    },
    "below_bound": Words(
        """{% if on %}on {{ on|ranks }}, {% endif %}compute of {{ what }} reaches {{ of_bound_share|share }} of its
        bound; at {{ target_share|share }} its kernels would be shorter by {{ time_ns|ns }} of {{ part }}
        ({{ share|share }}).""",
        """{% for part, share in following %}{{ "Next are " if loop.first else ", " }}{{ part }} {{ share|share }}
        {{- "." if loop.last else "" }}{% endfor %} In all, {{ what }} takes {{ compute_ns|ns }} of {{ part }} in
        {{ count|amount }} call{{ "s" if count != 1 else "" }}; most of the loss is in {% if operator %}{{ operator }}
        with shapes {{ (shapes or "unknown")|shorten(100) }}, run by {% endif -%}
        {{ (name or "a kernel without a name")|shorten(100) }};
        {% if bound_by == "memory" %}its bytes at the peak of the memory set the bound.
        {%- else %}its FLOPs at the peak of {{ bound_by }} set the bound.{% endif %}""",
        """{% if bound_by == "memory" %}Look at why it reads slowly: few blocks, a layout that is copied or strided, or
        bytes that a fused kernel would not move.
        {%- else %}Compare other kernels for these shapes: tiles that divide them, a tuned library or autotuning, and
        fewer, larger products.{% endif %}""",
    ),
    "above_bound": Words(
        """{{ in_part("is operators faster than their bound:") }} {{ operator }} reaches {{ of_bound_share|share }} of
        it.""",
        """{{ operators|count("operator") }} of this kind, {{ count|amount }} call{{ "s" if count != 1 else "" }} in
        {{ part }}, the longest with shapes {{ (shapes or "unknown")|shorten(100) }} against the peak of {{ bound_by }}
        ({{ (name or "a kernel without a name")|shorten(100) }}).""",
        """{% if cached %}Their operands fit into the cache of the device, and were there already: their bound by the
        device memory does not hold.
        {%- else %}Do not trust this bound: the formula counts too much, the peak in the data sheet is too low for this
        device, or its clock was higher.{% endif %}""",
    ),
    "heaviest_stage": Words(
        """{{ in_part("is compute of") }}
        {% if stage == "other" and name %}kernels of no known kind, most of it {{ name|shorten(60) }}
        {%- else %}{{ stage }}{{ "" if is_stage else " " ~ event ~ "s" }}{% endif %}, {{ of_compute_share|share }} of
        all compute.""",
        """{% for part, share in following %}{{ "Then come " if loop.first else ", " }}{{ part }} {{ share|share }}
        {{- "." if loop.last else "" }}{% endfor %} All compute is {{ compute_share|share }} of the time.
        {{ kernels|round|count(event) }} of this {{ "stage" if is_stage else "kind" }} in {{ part }}, most of it
        {{ (name or "a kernel without a name")|shorten(100) }} ({{ by_name_share|share }}).""",
        """{% if of_weights %}Compare this stage with its bound (bytes of its weights over the memory bandwidth) before
        optimising it.
        {%- else %}Compare it with its bound (what it reads and writes over the memory bandwidth, or its FLOPs over the
        peak) before optimising it.{% endif %}""",
    ),
    "ai_core_units": Words(
        """{{ in_part("is kernels whose AI cores were measured:") }} in that time
        {% for unit, share in units.items() %}{{ "" if loop.first else " and " }}the {{ unit }} units {{ share|share }}
        {%- endfor %} are at work.""",
        "{{ count|n }} kernels in {{ part }}; the rest of their time the cores move data or wait.",
        "See them by category: the cube units compute MatMul and attention, the vector units the rest.",
    ),
    "sampled_units": Words(
        """{{ in_part("is compute of " ~ stage ~ ", the most of any kind:") }} in it
        {% for unit, share in units.items() -%}
        {{ "" if loop.first else " and " if loop.last else ", " -}}
        the {{ unit }} {{ "are" if unit.endswith("s") else "is" }} {{ share|share }} busy
        {%- endfor %}, as sampled.""",
        """Means over {{ samples|count("sample") }} of the device's counters. This work ran in {{ own_share|share }} of
        the time that they cover.""",
        """{% if units.get("device memory", 0) >= 0.8 %}It moves bytes as fast as the memory can: only fewer bytes help
        (smaller types, larger batches for the same weights, fusion).
        {%- elif units.get("tensor cores", 0) >= 0.8 %}It computes as fast as the tensor cores can: only fewer FLOPs or
        smaller types help.
        {%- else %}Neither limit is near: look for too little work in flight, and for waiting inside it.{% endif %}""",
    ),
    "unnamed_time": Words(
        """{{ in_part("is compute without a known stage.") }}""",
        """{{ count|count("event") }} in all, {{ of_events_share|share }} of the summed time of compute, communication
        and copies. The most time is in {{ (name or "an event without a name")|shorten(100) }}
        ({{ by_name_share|share }}). Shares by stage leave it out.""",
        """{% if has_layers %}Teach llmprof the kernels: llmprof.names.register("attention", r"name of yours").
        {%- else %}Stages are parts of a transformer's layers, and no layers were found.{% endif %}""",
    ),
    "slow_first_tokens": Words(
        """The {{ percentile }} of the time to the first token is {{ part }}: {{ part_ns|ns }} of {{ ttft_ns|ns }}
        {%- if part == "an idle device" %}, in steps and beside them:
        {% if reason %}the host was there {{ reason_words }} {{ who|cut(101) }} ({{ by_who_share|share }} of it)
        {%- else %}the launching thread was longest in {{ doing(host) }}{% endif %}{% endif %}.""",
        """{{ part_share|share }} of it; besides {% for other, ns in others %}{{ other }} {{ ns|ns }}
        {{- "" if loop.last else ", " }}{% else %}nothing{% endfor %}.
        The slowest is request {{ slowest }}, {{ slowest_ns|ns }}.""",
        """{% if at_once and part in ("prefill of others", "decode of others") %}All requests came at once, so
        the later ones wait for the earlier: no setting of the scheduler makes all of them first. Send them as they
        arrive in use, or read the throughput of the batch.{% else %}{{ {
            "prefill of others": "Smaller chunks of prefill (max_num_batched_tokens), or prefill on devices of its own,"
                " keep long prompts of others out of the way.",
            "decode of others": "All seats are taken: raise max_num_seqs if the cache of keys and values has room, add"
                " a replica, or send fewer requests.",
            "its own prefill": "The first token costs the prompt itself: a larger chunk (max_num_batched_tokens), "
                "tensor parallelism, or a cached prefix.",
            "no step running": "Look at the front end, the tokenizer and the scheduler, and at idle time of the device"
                " then.",
            "an idle device": reason_advice|default("") or "Smaller chunks of prefill do not shorten this: see which"
                " findings say why the device waits, and warm up with the same shapes if it happens only once.",
            "the rest": "Look at the steps of the slowest request: analyze.requests(run, by='span').",
        }[part] }}{% endif %}""",
    ),
    "limited_kernel": Words(
        """{{ ns|ns }} of the profiled time ({{ share|share }}) is {{ name }},
        {% if bound == "compute" %}limited by compute: its multiprocessors are at {{ compute_pct|n }} % of their peak
        {%- elif bound == "memory" %}limited by memory:
        {{ {"dram": "the device memory", "l2": "the L2 cache", "l1": "the L1 cache and shared memory"
           }.get(memory_level, "memory") }} is at {{ memory_pct|n }} % of its peak
        {%- elif bound == "latency" %}limited by latency: it reaches {{ compute_pct|n }} % of the peak of compute and
        {{ memory_pct|n }} % of memory's
        {%- else %}whose limit is not known from these metrics{% endif %}.""",
        """{% if launches == 1 %}One launch.{% else %}{{ launches }} launches, {{ (ns / launches)|ns }} on average.
        {%- endif -%}
        {% if bounds > 1 %} Launches that take {{ bound_ns|ns }} of this have that limit.{% endif -%}
        {% if roof_share is not none %} It reaches {{ roof_share|share }} of what the device allows at its ratio of
        arithmetic to bytes.{% endif -%}
        {% if stall %} Its warps wait mostly in {{ stall }} ({{ stall_share|share }} of the time).{% endif %}""",
        """{% if bound == "compute" %}Its instructions set the pace, not the memory: fewer or cheaper ones help (a
        smaller number type, tensor cores, multiplications for divisions, fewer padded tiles).
        {%- elif bound == "memory" %}Move fewer bytes: fuse it with the kernels before and after it, use a smaller type,
        keep what is read again in cache.
        {%- elif not bound %}Profile it with ncu --set full, so that its limit is known.
        {%- elif action %}{{ action }}
        {%- else %}Record its warp states with ncu --section WarpStateStats to see what its warps wait for.
        {%- endif %}""",
    ),
    "profiler_estimate": Words(
        """Up to {{ ns|ns }} of the profiled time ({{ share|share }}) by the estimate of Nsight Compute: {{ first }}""",
        """The same advice is given for {% if launches == 1 %}one launch{% else %}{{ launches }} launches{% endif %};
        these words are of {{ name }}.""",
        "{{ rest or 'See the section of the report that the advice is of.' }}",
    ),
    "hot_line": Words(
        """Line {{ line }} of {{ file }} has {{ of_samples_share|share }} of the samples of {{ name }}
        {%- if stall %}; its warps wait there mostly in {{ stall }}{% endif %}.""",
        "{{ samples|n }} samples of its warps.",
        "{{ action or 'Look at the instructions of that line.' }}",
    ),
}
"""Title, detail and suggestion of each rule."""

_CALLS: Final = {
    "copy": (
        "A blocking copy keeps the stream from going on: copy from and to pinned memory with non_blocking=True, on a "
        "stream of its own, and take .item(), .cpu() and .tolist() out of the step.",
        "A blocking copy keeps the stream from going on: copy asynchronously, from and to pinned memory, on a stream "
        "of its own.",
    ),
    "memory": (
        "Take the memory before the step: warm up with the largest batch, and keep blocks in the allocator's cache "
        "instead of giving them back.",
        "Take the memory once, before the work that repeats, and keep it.",
    ),
    "code": (
        "Load the code before the step: one warm-up run with the same shapes.",
        "Load the code before the work that repeats: run it once to warm up.",
    ),
    "graph": (
        "Build the graphs before the step, and replay them.",
        "Build the graphs before the work that repeats, and replay them.",
    ),
}
"""Advice by the kind of call that holds a device: for a program of PyTorch, and for any other."""

_SET_UP: Final = {
    "loading": "The code of a kernel is loaded once, before its first run: warm up before the profiler starts.",
    "compiling": "This compiles kernels, once for each shape: warm up with the same shapes before the profiler starts.",
}

SLO_WORDS: Final = {True: "holds the SLO", False: "misses the SLO", None: "measured"}
"""What is said of a point of a study; None: there is no SLO."""
METRIC_WORDS: Final = {
    "output_tokens_per_s": "output tokens a second",
    "requests_per_s": "requests a second",
    "wall_ns": "time of the batch",
    "ttft_ns": "time to first token",
    "tpot_ns": "time to each other token",
    "e2e_ns": "time of a request",
}
"""Metrics of runs, as nouns."""

FOLLOWS: Final = "It follows from another finding, which says what its remedy gains."
"""In place of the gain of a finding that has its cause in another one."""

GAIN: Final = """
{%- macro signed(ns) %}{{ "-" if ns < 0 else "" }}{{ ns|abs|ns }}{% endmacro -%}
Replayed with “{{ words }}”, {{ unit }} takes
{%- if not changed %} as long as before: something else sets the pace
{%- else %}
{%- set alike = (recorded_ns - ns)|ns == recorded_ns|ns %} {{ (ns|abs if alike else recorded_ns - ns)|ns }}
{%- if alike %} {{ "less" if ns >= 0 else "more" }} than{% else %} in place of{% endif %} {{ recorded_ns|ns }}
{%- if plain %} without the profiler ({{ mean_ns|ns }} under it)
{%- elif replayed < steps %} (mean of {{ replayed }} of the {{ steps }} steps)
{%- elif of_steps and recorded_ns|ns != mean_ns|ns %} (counted from the end of the step before){% endif %}
{%- if not alike %}, {{ ns|abs|ns }} {{ "less" if ns >= 0 else "more" }}{% endif %}
{%- if interval %} ({{ signed(low_ns) }} to {{ signed(high_ns) }}){% endif %}
{%- if tokens_per_s is not none %}, {{ "{:+,.0f}".format(tokens_per_s) }} tokens/s{% endif %}{% endif %}.
{%- if beyond_ns is not none %} The replay gains {{ beyond_ns|ns }} in all, since other losses shrink with this one;
counted here is only its own time and that of what follows from it.{% endif %}
{%- if of_part %} {{ of_part[:1]|upper }}{{ of_part[1:] }}.{% endif %}"""
"""What a replay predicts for the remedy of a finding."""


CHANGE: Final = """
{%- macro changed(word, rows) -%}
  {%- for delta, part, counts in rows -%}
    {{ " " ~ word ~ (" in " ~ second if phase is none else "") ~ ": " if loop.first else ", " }}
    {{- part }} {{ delta|abs|ns }}
    {%- if counts %} ({{ "{:,.10g}".format(counts[1]) }} events a rank in place of {{ "{:,.10g}".format(counts[0]) }})
    {%- endif %}{{ "." if loop.last else "" }}
  {%- endfor -%}
{%- endmacro -%}
{%- if level == "recording" -%}
At least one run has no known steps, so whole recordings are compared: {{ a_ns|ns }} in {{ first }}, {{ b_ns|ns }} in
{{ second }}. How long a recording lasts says nothing of speed.
{%- else -%}
A step {% if phase == "other" %}whose phase is unknown{% else %}of {{ phase }}{% endif %} takes {{ b_ns|ns }} in
{{ second }} against {{ a_ns|ns }} in {{ first }} (typical steps, first to last event):
{% if a_ns == b_ns %}the same{% else %}
{%- set way = "more" if b_ns > a_ns else "less" -%}
{% if a_ns %}{{ (b_ns - a_ns)|abs|ns }} {{ way }} ({{ ((b_ns - a_ns)|abs / a_ns)|share }}){% else %}{{ way }}{% endif %}
{%- if beyond_noise is none %}; {% if [a_steps, b_steps]|min <= 1 %}one step says nothing of the noise
{%- else %}too few steps to know the noise{% endif %}
{%- elif not beyond_noise %}, which is within the noise of the steps{% endif %}{% endif %}.
{%- endif -%}
{{ changed("Less", less) }}{{ changed("More", more) }}"""
"""The change of a step from one run to another, and of its parts."""

SHORTFALL: Final = {
    "other_kernels": """{{ share|share }} of the time beyond the bound is that of other kernels of the call
        {%- if split %}, which add up the parts of split sums{% endif %}.""",
    "start": "Beginning and ending {{ 'a kernel' if kernels == 1 else 'kernels' }} takes {{ share|share }} of the time "
    "beyond the bound.",
    "few_blocks": """{{ items|n }} {{ "tiles of " ~ tile if tile else "blocks" }}
        are too few for {{ units|n }} multiprocessors
        {%- if resident > 1 %}, each with room for {{ resident|n }}{% endif %}: {{ share|share }} of the time beyond the
        bound.""",
    "waves": """{{ items|n }} {{ "tiles of " ~ tile if tile else "blocks" }} on {{ workers|n }} multiprocessors take
        {{ turns|n }} turns, and the last one fills {{ full|share }} of them: {{ share|share }} of the time beyond the
        bound.""",
    "padding": """Tiles of {{ tile }} do not divide {{ rows|n }} x {{ columns|n }}: {{ padded|share }} of what they
        compute is thrown away, {{ share|share }} of the time beyond the bound.""",
    "alignment": "The kernel reads its operands in small pieces (rows do not begin at multiples of 16 bytes).",
    "strides": "Its operands lie in different orders in memory: what runs along the rows of one jumps in the other.",
    "rest": "{{ share|share }} of the time beyond the bound is explained neither by the launch nor by other kernels.",
}
"""Why a call takes longer than its bound."""

ALONE: Final = """
{%- set named = phases|reject("equalto", "other")|list -%}
{%- if not phases %}Only {{ name }} holds work on a device: there is nothing to compare it with.
{%- else %}Only {{ name }} has {% if named %}steps of {{ named|joined }}{% endif %}
{%- if "other" in phases %}{{ " and " if named else "" }}steps whose phase is unknown{% endif %}: they are not compared.
{%- endif %}"""
"""What only one of two runs has."""


SLOWEST: Final = Words(
    """The slowest of {{ of|count("request") }}, {{ id|shorten(60) }}, took {{ e2e_ns|ns }}
    {%- if usual_ns %} (the others {{ usual_ns|ns }} in the middle){% endif %}{% if part %}, most of it
    {{ {"queue": "in the queue", "the rest": "after the queue", "first token": "before its first token"}.get(part, part)
    }}{% endif %}.""",
    """{% for name, own in stretches.items() %}{{ name|capitalize }} {{ own.ns|ns }}
    {%- if own.steps %}: {{ own.steps|count("step") }} recorded meanwhile ({{ own.recorded|share }} of that time), with
    {{ own.requests|amount }} decoding requests on average, {{ own.prefill|share }} of their time with a prefill
    {%- endif %}. {% else %}The server did not tell what of it was queue, prefill and decode. {% endfor %}
    {%- if prompt_tokens is not none %}Its prompt had {{ prompt_tokens|n }} tokens
    {%- if output_tokens is not none %}, its answer {{ output_tokens|n }}{% endif %}. {% endif %}
    {%- if left_out %}{{ left_out|count("step") }} ran without it: it was preempted, or had no room.{% endif %}""",
    """{{ {
        "queue": "Requests wait while all places are taken or the KV cache is full: see kv_usage and waiting among the"
            " counters; raise max_num_seqs if there is room, or add a replica.",
        "prefill": "Its prompt was computed in steps with others: see their share above, and max_num_batched_tokens.",
        "decode": "Compare its steps with the others: a large batch or prefills of others make each token longer, and a"
            " long answer has many.",
    }.get(part, "Look at its spans: analyze.requests(run, by='span').") }}""",
)
"""The slowest request of the window of a capture."""


def finding(rule: str, figures: dict[str, Any], words: Words | None = None) -> tuple[str, str, str]:
    """Title, detail and suggestion of a finding."""
    torch = bool(figures.get("of_torch"))
    calls = {kind: texts[0 if torch else 1] for kind, texts in _CALLS.items()}
    figures = {**_SET_UP, "advice": {**calls, None: ""}, **figures}
    if reason := figures.get("reason"):
        figures["reason_words"], figures["reason_advice"] = (
            say(words, **figures) for words in _REASONS[reason]
        )
    title, detail, suggestion = (say(template, **figures) for template in words or FINDINGS[rule])
    detail = f"{detail}{say(_ELSEWHERE, **({'others_ns': None} | figures))}".strip()
    return title[:1].upper() + title[1:], detail, suggestion


def say(template: str, **figures: Any) -> str:
    """The text of a template."""
    return _compiled(template).render(figures)


@cache
def _environment() -> jinja2.Environment:
    import jinja2  # when the first sentence is said

    # the texts are plain; what shows them as HTML escapes them
    environment = jinja2.Environment(autoescape=False, undefined=jinja2.StrictUndefined)  # noqa: S701
    environment.filters |= {
        "ns": format_ns,
        "share": format_share,
        "bytes": format_bytes,
        "count": counted,
        "amount": lambda number: (
            f"{number:,.0f}" if round(number, 1).is_integer() else f"{number:,.1f}"
        ),
        "n": lambda number: f"{number:,.0f}",
        "n_or_unknown": lambda number: (
            "an unknown number of" if number is None else f"{number:,.0f}"
        ),
        "ranks": ranks_in_words,
        "joined": joined,
        "shorten": shorten,
        "unversioned": lambda name: re.sub(
            r"_v\d{4,}$", "", name
        ),  # nsys adds the version of the call
        "cut": lambda text, limit: text if len(text) < limit else f"{text[: limit - 1]}…",
    }
    return environment


@cache
def _compiled(template: str) -> jinja2.Template:
    shared = "".join(text for call, text in _SHARED.items() if call in template)
    return _environment().from_string(" ".join(f"{shared}{template}".split()))
