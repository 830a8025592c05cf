"""The columns of all results: type, unit and meaning of each name.

An idea has one name in all analyses, and a name has one unit: ``*_ns`` are nanoseconds, ``*_gbps``
1e9 bytes a second, ``*_share`` numbers from 0 to 1. What an analysis says beyond this stands in its
docstring. Statistics, sides and shares are made of other names (:data:`STATISTICS`, :data:`SIDES`):
``transfer_p90_ns`` is the 90th percentile of ``transfer_ns``, ``b_count`` the ``count`` of run b,
and ``idle_share`` the part of the whole that ``idle_ns`` is; the share of a ``cause`` is named by
it: ``padding_share``. Columns that a table of a trace has stand in :mod:`llmprof.trace.schema`, and
here only where results say more.
"""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

import polars as pl

from llmprof.analyze.shortfall import CAUSES
from llmprof.trace import schema

STATISTICS: Final = {
    "total": "sum",
    "mean": "mean",
    "median": "median",
    "min": "least",
    "max": "greatest",
    "std": "sample standard deviation",
    "p10": "10th percentile",
    "p90": "90th percentile",
    "p95": "95th percentile",
    "p99": "99th percentile",
    "typical": "median of all that are alike",
    "low": "low end of the interval",
    "high": "high end of the interval",
}
"""Statistics that stand in a name before the unit, or before the whole name; of ``dur_ns`` where
nothing else is named: ``median_ns``.
"""

SIDES: Final = {
    "a": "of the reference",
    "b": "of the other run",
    "first": "of the first, or first of two",
    "second": "second of two",
    "last": "of the last one",
    "next": "of the event that follows",
    "waited": "of what was waited for",
    "after": "of the event before",
    "other": "of the others: recording, ranks or requests",
    "host": "of the host: when it did it, and how long",
    "launch": "of the launching call",
    "call": "of the call of the host",
    "kernel": "of the kernel",
    "range": "of the range",
    "output": "of what it returns",
    "pace": "of the pace: from the start of one to that of the next",
    "queue": "between its call or arrival and its start",
    "ttft": "before its first token",
    "missing": "of what was not recorded, or is not covered",
    "impossible": "in no table, as their time or length cannot be",
    "own": "of itself, without what is inside of it",
    "exposed": "with no other work beside it",
    "hidden": "with other work beside it",
    "prefill": "of requests with prompt tokens in the step",
    "decode": "of requests with generated tokens in the step",
    "draft": "of drafts",
    "dispatch": "while tokens go to their experts",
    "combine": "while results come back from the experts",
    "algorithm": "by the bytes of the message",
    "bound": "of its bound",
    "bus": "by the bytes that the links move",
    "peak": "at its peak: most that there was, or that the device can",
    "saved": "that one kernel in place of several would save",
    "plain": "without the profiler",
    "recorded": "in the recording",
    "predicted": "in the replay",
}
"""Sides that stand before a name."""

_TABLE: Final = """
Where and when
rank | whole | | number of the process that used a device
step | whole | | step of the engine, from 0 on each rank
phase | text | | prefill, decode, mixed, empty, other
layer | whole or text | | layer of the model, from 0 in each step
stage | text | | part of a layer, or of a step outside its layers
occurrence | whole | | number among those of one name in one place, from 0
event | whole | | row of trace.events
end_ns | whole | ns | end, from the start of the trace
dur_ns | number | ns | duration, also of what the row sums
node | text | | machine of the rank
group | text or whole | | ranks that call collectives together
dp | whole | | place in data parallelism, from 0
pp | whole | | place in pipeline parallelism, from 0
tp | whole | | place in tensor parallelism, from 0
instance | text | | engine among others, by its folder or number
ep | whole | | place in expert parallelism, from 0
ranks | list or whole | | ranks of the group, or their number
steps | whole | steps | number of steps

What
name | text | | name of the event, kernel, call or range
readable | text | | name of a kernel as people read it
category | text | | kind of work by the event's name
kind | text | | kind of what the row is about
part | text | | part of the whole that the rows of a group make up
cause | text | | what held the device, or what an operator loses most by
operator | text | | operator of the host that launched it
strides | text | | strides of the operator's inputs, JSON
arguments | text | | other arguments of the operator, JSON
kernel | text | | kernel with the most time
kernels | number or text | kernels | number of kernels (with copies), or their names, one a line
source | text | | where it was found, or what it is known from
evidence | text | | how it is known, or what agrees
confidence | number | | how sure the labels are, 0 to 1
reason | text | | why, in words: why it is so, or why it is not known
assumed | text | | what was not recorded and is assumed
rule | text | | rule of the finding

Time and its parts
ns | number | ns | time
share | number | 0 to 1 | part of the whole that the docstring names
count | number | | number of events, calls or launches that the row sums
compute_ns | whole | ns | something else than collectives and copies runs
communication_ns | whole | ns | collectives run
copy_ns | whole | ns | copies of copy engines run
idle_ns | whole | ns | nothing of the rank runs
busy_ns | whole | ns | something of it runs
other_ns | number | ns | only other work of the rank runs
imbalance | number | | greatest over the mean of the ranks, or this rank over the mean; 1 is even
rest_ns | whole | ns | rest that no part explains
gap_ns | number | ns | whole gap, or what is beyond the bound or the typical time
outlier | yes/no | | whether the gap is beyond what the others have
ratio | number | | over the other side, or over the typical one
together_ns | whole | ns | both run
sms | number | 0 to 1 | most of the multiprocessors that the grids can fill, mean over time
per_step | number | | chains in each step
length | number | | launches in a queue, or kernels in a chain

Steps, layers and modules
requests | number | requests | requests of the step
tokens | number | tokens | tokens of the step, or of this request in it
device_ns | whole | ns | time of what was launched in the module, with those inside
path | text | | names of the modules from the outermost one inwards
depth | number | | number of modules or ranges around it
tokens_per_request | number | tokens | tokens that a request gets in the step
acceptance | number | 0 to 1 | part of the drafts that was right
token_ns | number | ns | from token to token of a request, or when it came

Host and launches
call | text or whole | | call of the host, or the number of a collective call
launches | number | launches | number of launching calls
replayed | yes/no | | whether a graph launched it
category_by | text | | what tells the category
launched | whole | kernels | kernels whose launch was recorded
gap | whole | | number of the gap
in_step | yes/no | | whether the step had begun on the device
full_ns | whole | ns | time with a full queue
to_queue_ns | whole | ns | from the operator to the task queue
to_launch_ns | whole | ns | from the queue to the launch
to_device_ns | whole | ns | from the launch to the start

Communication
bytes | number | bytes | size of the message, copy or allocation
arrival_skew_ns | whole | ns | last start minus first start of the ranks
end_spread_ns | whole | ns | last end minus first end of the ranks
clock_offset_ns | whole | ns | correction of the rank's clock
wait_ns | whole | ns | waits for a rank that comes later, or for room in a queue
transfer_ns | number | ns | does not wait
expected_share | number | 0 to 1 | that part by chance
late_ns | number | ns | start after the first rank
gbps | number | GB/s | bytes over time
sent_rows | whole | rows | rows that the rank sends
received_rows | whole | rows | rows that the rank gets
experts_ns | whole | ns | experts run
waits | yes/no | | whether the call returns when the copy is done
handover_ns | whole | ns | from the end of its prefill to the first copy
connector | text | | what moves keys and values, as names tell it

Bounds
flops | number | FLOP | floating-point operations
read_bytes | number | bytes | bytes that are read
written_bytes | number | bytes | bytes that are written
memory_bytes | number | bytes | bytes between the device and its memory
message_bytes | number | bytes | bytes between ranks
intensity | number | FLOP/B | operations for each byte
flop_per_s | number | FLOP/s | operations over time
bytes_per_s | number | B/s | bytes over time
bound_ns | number | ns | least possible time
bound_by | text | | resource that sets the bound, or that limits it
mfu | number | 0 to 1 | operations over time, of the peak
mbu | number | 0 to 1 | bytes over time, of the peak
explained | yes/no | | whether theory knows what it does
fits_cache | yes/no | | whether the operands fit the device's cache
tile | text | | rows x columns of a block's result
blocks | whole | blocks | blocks of the launch, or of memory
turns | whole | | most blocks that one multiprocessor takes after each other
gain_ns | number | ns | what a step would gain
target_share | number | 0 to 1 | part of the bound that it is brought to
key | text | | name of an operator with its arguments
unknown_ns | whole | ns | what it is is not known
tensor_share | number | 0 to 1 | with tensor cores

Replay
path_ns | whole | ns | time on the critical path
slack_ns | whole | ns | how much longer it may take before a step ends later
moved | whole | steps | steps that only end as much earlier as those before them
level | text | | plain step, step, part, between steps, or kernels
run | text | | name of a run
delta_ns | number | ns | b minus a
beyond_noise | yes/no | | whether the change is larger than the noise
status | text | | faster, slower, same, or only in one run

Memory
released_bytes | whole | bytes | memory that is released
fragmentation | number | 0 to 1 | reserved but not allocated at the peak
holder | text | | innermost frame, operator or allocator that holds it

Requests
request | whole | | number of the request
id | text | | identifier of the request
trace_step | whole | | step of the trace
prompt_tokens | whole | tokens | length of the prompt
e2e_ns | whole | ns | from the arrival to the last token
left_out_ns | whole | ns | steps without it
between_ns | whole | ns | no step ran
delivery_ns | whole | ns | from the end of its last step to the client
preemptions | whole | | how often it was taken out
preempted | yes/no | | whether it was taken out for this step
behind | list | | requests whose prefill ran while it waited
slowest_step | whole | | its step that was longest against those alike

Counters, samples and sums of profilers
counter | text | | name of the counter
known_ns | whole | ns | time of the work with a sample
stack | list | | frames, outermost first

Findings
order | whole | | place of the finding
severity | text | | high, medium, low
title | text | | the finding in a sentence
figure | number | | its number in its unit
follows_from | text | | rule whose finding this one is an effect of
predicted_tokens_per_s | number | tokens/s | rate after the change
predicted_plain | yes/no | | whether predictions are without the profiler
change | text | | change that was predicted, or changes
prediction | text | | the prediction in a sentence
denominator | text | | what the share is of
where | text | | condition on the rows of the evidence, SQL
detail | text | | what else was found
suggestion | text | | what can be done
about | text | | what the finding is about

Nsight Compute
traffic_bytes | number | bytes | reads, and the larger of writes to memory and by the SMs
memory_level | text | | dram, l2 or l1
stall | text | | state in which warps spent most time
file | text | | file of the source
line | whole | | line of the source
sass | text | | instruction of the device
ptx | text | | instruction of PTX
instructions | whole | | executions by warps

NPU
core | text | | type of the core
cube_share | number | 0 to 1 | arithmetic of the cube cores
vector_share | number | 0 to 1 | arithmetic of the vector cores
formats | text | | formats of the inputs

Nsight Systems
range | whole | | number of the range
parent | whole | | range around it
"""


class ResultColumn(NamedTuple):
    """A column of results."""

    name: str
    type: str
    """whole (a number), number, text, yes/no, list, or two of them."""
    unit: str
    meaning: str


@cache
def subjects() -> dict[str, tuple[ResultColumn, ...]]:
    """The columns by subject."""
    parts = [part.split("\n") for part in _TABLE.strip().split("\n\n")]
    return {
        subject: tuple(ResultColumn(*(cell.strip() for cell in row.split("|"))) for row in rows)
        for subject, *rows in parts
    }


@cache
def result_columns() -> dict[str, ResultColumn]:
    """The columns by name."""
    return {column.name: column for rows in subjects().values() for column in rows}


@cache
def table_columns() -> dict[str, ResultColumn]:
    """The columns of the tables of a trace by name."""
    tables = (*schema.TABLES.values(), *schema.PROFILES.values())
    return {
        column.name: ResultColumn(column.name, _type_of(column.dtype), column.unit, column.meaning)
        for table in tables
        for column in table.columns
    }


def _type_of(dtype: pl.DataType) -> str:
    if dtype.is_integer():
        return "whole"
    return "number" if dtype.is_float() else "yes/no" if dtype == pl.Boolean else "text"


def column_of(name: str) -> ResultColumn | None:
    """The column that a name stands for: itself, or what a statistic, side or share is of; None if
    no result may have it.
    """
    known = result_columns()
    if name in known:
        return known[name]
    words = name.split("_")
    without = ("_".join(words[:i] + words[i + 1 :]) for i, w in enumerate(words) if w in STATISTICS)
    if found := next(filter(None, map(column_of, without)), None):
        return found
    if name in table_columns():
        return table_columns()[name]
    whole = name.removesuffix("_share")
    if whole != name and (
        whole in CAUSES or any(column_of(whole + unit) for unit in ("_ns", "_bytes", "_gbps", ""))
    ):
        return known["share"]
    side, _, rest = name.partition("_")
    return column_of(rest) if side in SIDES else None
