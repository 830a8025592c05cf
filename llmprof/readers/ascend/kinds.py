"""What the tasks, calls and operators of an Ascend recording are: the words of its tools as data."""

from __future__ import annotations

from typing import Final

import polars as pl

NO_ID: Final = 0xFFFF_FFFF
"""What msprof writes where there is no identifier."""

EVENT_WAIT, EVENT_RECORD, NOTIFY_WAIT, NOTIFY_RECORD = "event_wait", "event_record", "notify_wait", "notify_record"
KERNEL, COPY, TRANSFER, CONTROL = "kernel", "copy", "transfer", "control"

_TASKS: Final[tuple[tuple[str, str], ...]] = (
    (EVENT_WAIT, r"event_?\s?wait|stream_?wait_?event"),
    (EVENT_RECORD, r"event_?\s?(?:record|reset)"),
    (NOTIFY_WAIT, r"notify_?\s?wait"),
    (NOTIFY_RECORD, r"notify_?\s?record|^write[_ ]value|ipc_?notify"),
    (COPY, r"^memcpy_|^memcpy$|^memset_async"),
    (TRANSFER, r"^(?:sdma|rdma|reduce_async|reduce_inline|inline_reduce|ub_|d2d_)"),
    (
        CONTROL,
        r"^(?:profiling|profiler)_|place_?holder|^model_|^stream_|^label_|^flip|^fusion_issue|^end_graph|^cmo|^barrier|"
        r"^maintenance|^active_?aicpu|^debug_|^create_stream|^hostfunc|^callback|^get_device_msg|^ffts_plus$|^switch|"
        r"^datadump|^overflow|^npu_get|^nop$|^update_|^aicpu_info|^ctrl",
    ),
)
"""Kinds of device tasks by their name and type, the first match wins; what matches none is a kernel."""

COMPUTE_CORES: Final = r"^(?:AI_CORE|AI_VECTOR_CORE|AI_?CPU|MIX_AI[CV]|AIV|AIC|DSA_SQE|KERNEL_\w+|DVPP|VECTOR)"
"""Types of tasks that compute."""

WITHIN_CALL: Final = (NOTIFY_WAIT, NOTIFY_RECORD, TRANSFER)

_COMMUNICATION: Final = r"(?i)^hcom_|(?:^|/)(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast)\w*-op\d+"
"""Names of collective calls: HCCL's own, and MindSpore's operators."""

LEVELS: Final = {"acl": "AscendCL", "node": "Node", "model": "Model", "hccl": "Hccl", "runtime": "Runtime"}
"""Prefix that msprof's text gives to the calls of each level; its database gives none."""

_OPERATOR: Final = (
    r"^\w[\w.]*::|^aclnn|^acl_|^autograd::|Backward\d*$|^empty_tensor|^record_event|^wait_event|^destroy_event|^Hccl|"
    r"^(?:detach_?|contiguous_\w+|format_\w+|\w*memRepoint)$|^[A-Z][A-Za-z0-9]+$"
)
"""Names of operators of the host; the ranges that the program set itself (``record_function``) look the same."""


def kind(name: pl.Expr, task_type: pl.Expr) -> pl.Expr:
    """Kind of each device task: event_wait, event_record, notify_wait, notify_record, transfer, copy, control, kernel.

    A task of a compute type is a kernel whatever its name.
    """
    both = (name, task_type.fill_null(""))
    found = [
        pl.when(pl.any_horizontal(text.str.contains(f"(?i){pattern}") for text in both)).then(pl.lit(what))
        for what, pattern in _TASKS
    ]
    computes = task_type.str.contains(COMPUTE_CORES).fill_null(value=False)
    generic = name.str.contains(f"(?i)^(?:{'|'.join(pattern.replace('^', '') for _, pattern in _TASKS[:4])})")
    return pl.when(computes & ~generic).then(pl.lit(KERNEL)).otherwise(pl.coalesce(*found, pl.lit(KERNEL)))


def is_call(name: pl.Expr) -> pl.Expr:
    """Whether a name is one of a whole collective call, not of a part of one."""
    return name.str.contains(_COMMUNICATION)


def is_range(name: pl.Expr) -> pl.Expr:
    """Whether a host event is a range that the program set rather than an operator."""
    return ~name.str.contains(_OPERATOR)


def copy_kind(task_type: pl.Expr, launched_by: pl.Expr) -> pl.Expr:
    """Direction of a copy, by the call that launched it, else by the engine that moved it, else unknown."""
    by = launched_by.fill_null("").str.to_lowercase()
    return (
        pl.when(by.str.contains("host_to_device|h2d|hosttodevice"))
        .then(pl.lit("HtoD"))
        .when(by.str.contains("device_to_host|d2h|devicetohost"))
        .then(pl.lit("DtoH"))
        .when(by.str.contains("device_to_device|d2d|devicetodevice") | task_type.fill_null("").str.contains("^SDMA"))
        .then(pl.lit("DtoD"))
        .otherwise(pl.lit("unknown"))
    )
