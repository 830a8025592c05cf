"""The rules behind findings, as data: what each measures, from which share on it speaks, and in which words.

A title begins with ``{time} of {part} ({share})``, which are the number that the finding is ranked by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmprof.analyze.findings import communication, waiting, work
from llmprof.analyze.findings.communication import CUSTOM_ALL_REDUCE_BYTES
from llmprof.analyze.findings.measures import Measure
from llmprof.analyze.findings.scope import Scope
from llmprof.units import format_bytes


@dataclass(frozen=True)
class Rule:
    """What is measured, when it is worth saying, and how it is said."""

    name: str
    measure: Callable[[Scope], Measure | None]
    title: str
    detail: str
    suggestion: str
    evidence: str
    minimum_share: float = 0.01
    info: bool = False
    last: bool = False
    """Whether it speaks of the labels and not of the run, and comes after what does."""


RULES: tuple[Rule, ...] = (
    Rule(
        "arrival_skew",
        communication.arrival_skew,
        "{time} of {part} ({share}) is waiting for the last rank: rank {late} arrives last in {late_share} of the "
        "{kind}s, the other ranks spend {waited} of theirs waiting, and the transfer itself takes {transfer} where "
        "their durations suggest {seen}.",
        "{calls} calls; the first and the last rank arrive {skew} apart, and all leave a call within {spread} of each "
        "other (medians): {clocks}{sure}.",
        "Find out why that rank is late before touching communication: compare its host time and idle causes with "
        "the others', pin each worker to cores of its GPU's NUMA node, look for other processes on those cores, and "
        "take the launches off the critical path with graphs.",
        "collectives",
    ),
    Rule(
        "pipeline_wait",
        communication.pipeline_wait,
        "{time} of {part} ({share}) is waiting of one pipeline stage for another: in its {kind}s a rank waits {waited} "
        "of their duration, the transfer itself takes {transfer} where the durations suggest {seen}.",
        "{calls} calls; rank {late} arrives last in {late_share}, {skew} after the first (median).",
        "In a pipeline, one batch in flight leaves every stage but one idle: keep as many batches in flight as there "
        "are stages, or use tensor parallelism inside a host.",
        "collectives",
    ),
    Rule(
        "host_bound",
        waiting.host_bound,
        "{time} of {part} ({share}) the device is idle because the host is late: on {who} the next kernel was not "
        "launched yet, and the launching thread was longest in {doing}.",
        "{launching} of it are the launching calls themselves; {calls} launch calls for {kernels} kernels in {part}"
        "{graphs}.{host}",
        "Launch earlier, or with fewer calls.",
        "idle",
    ),
    Rule(
        "device_held",
        waiting.device_held,
        "{time} of {part} ({share}) the device stands still with work launched, while the host is in {call} ({by_call} "
        "of it).",
        "{count} such pauses in {part}, the longest of {longest}.",
        "Take that call out of the step.",
        "idle",
    ),
    Rule(
        "synchronisation",
        waiting.synchronisation,
        "{time} of {part} ({share}) the device is idle after a synchronising call, mostly {call}, until the next "
        "launch.",
        "{count} such pauses in {part}; the launching thread is then longest in {doing}.",
        "Find the .item(), .cpu() or synchronize() (its operator is around the call) and take it out of the step, so "
        "that the host can launch ahead.",
        "idle",
        0.005,
    ),
    Rule(
        "exposed_communication",
        communication.exposed_communication,
        "{what} with no compute beside it takes {time} of {part} ({share}); {hidden} of it is hidden.",
        "{calls} calls in {part}, most time in {kinds}.{why}",
        "Fewer or fused collectives, all-reduce fused with the norm, sequence parallelism, compute beside it, or a "
        "smaller tensor-parallel size.",
        "collectives",
        0.005,
    ),
    Rule(
        "copies",
        work.copies,
        "Copies with nothing beside them take {time} of {part} ({share}), {by_name} of it {name}.",
        "{count} of these in {part}{size}.",
        "Copy less, or beside compute.",
        "attribute",
    ),
    Rule(
        "unexplained_idle",
        waiting.unexplained,
        "{time} of {part} ({share}) the device is idle and nothing recorded says why.",
        "{count} pauses in {part}; in {launched} of the time the next event had been launched already.",
        "Record the host's calls of all threads (CPU activity; nsys: -t cuda,nvtx,osrt), and look for other processes "
        "on the device and for events that the profiler dropped.",
        "idle",
    ),
    Rule(
        "idle_at_the_ends",
        waiting.outside,
        "{time} of {part} ({share}) the device runs nothing before its first event and after its last.",
        "{before} before and {after} after them.",
        "Start the profiler after loading and warm-up, or look at what the host does there: this time is no part of a "
        "steady run.",
        "activity",
        0.05,
    ),
    Rule(
        "between_operators",
        waiting.between_operators,
        "{time} of {part} ({share}) no operator runs.",
        "{count} pauses in {part}, {median} each (median): Python, or work that is not an operator.",
        "Record Python functions (with_stack=True) to see what runs there.",
        "idle",
    ),
    Rule(
        "nccl_for_small_messages",
        communication.nccl_for_small,
        "{time} of {part} ({share}) is transfer of all-reduces of {size} through NCCL ({algorithm}): {transfer} each, "
        "at {bus} on the bus.",
        "{calls} in {part}; vLLM's custom all-reduce takes messages up to "
        f"{format_bytes(CUSTOM_ALL_REDUCE_BYTES)} between GPUs with peer access.",
        "Compare a run with the custom all-reduce (no disable_custom_all_reduce); if it is off by itself, check peer "
        "access between the GPUs.",
        "collectives",
        0.002,
    ),
    Rule(
        "between_queued_events",
        waiting.between_queued,
        "{time} of {part} ({share}) passes between events that were launched in time, {by_kind} of it {kind}.",
        "{count} pauses in {part}, {median} each (median).",
        "Fewer and larger kernels: each costs the device such a pause.",
        "idle",
    ),
    Rule(
        "short_kernels",
        work.short_kernels,
        "{time} of {part} ({share}) goes to kernels shorter than {limit} that are neither GEMM, attention nor "
        "communication: {many} of all kernels ({count} of {of} in {part}).",
        "The median of all kernels is {median}; each costs a launch or a graph node besides.",
        "Fuse them (torch.compile, fused norm and rope kernels) or raise the batch, so that a launch does more work.",
        "attribute",
        0.0,
    ),
    Rule(
        "split_k",
        work.split_k,
        "{time} of {part} ({share}) is split-K reductions: {count} extra kernels, {of_gemms} of the time of the GEMMs.",
        "cuBLAS splits the inner dimension of a GEMM that is too small to fill the GPU, and adds a kernel for the sum.",
        "A larger batch needs no split; smaller tensor parallelism makes GEMMs wider; or tune the algorithm choice.",
        "attribute",
        0.001,
    ),
    Rule(
        "uneven_compute",
        work.uneven_compute,
        "Rank {most} computes {time} longer in {part} ({share}), {ratio} times as long as rank {least}.",
        "Compute time without communication, copies and idle, mean over the scope.",
        "Look for uneven sharding, experts or stages, and for a slower or throttled GPU.",
        "overlap",
        0.02,
    ),
    Rule(
        "heaviest_stage",
        work.heaviest_stage,
        "{time} of {part} ({share}) is compute of {stage}, {of_compute} of all compute{next}.",
        "Compute is {compute} of the time; {kernels} of this stage in {part}, longest in sum {kernel}.",
        "Compare this stage with its bound (bytes of its weights over the memory bandwidth) before optimising it.",
        "attribute",
        0.0,
        info=True,
    ),
    Rule(
        "unnamed_time",
        work.unnamed,
        "{time} of {part} ({share}) is compute without a known stage: {of_events} of the time of all events ({count} "
        "events).",
        "Most of it is {name}. Shares by stage leave it out.",
        'Teach llmprof the kernels: llmprof.names.register("attention", r"name of yours").',
        "attribute",
        0.01,
        info=True,
        last=True,
    ),
)
"""Every rule; their order decides among findings of equal weight."""
