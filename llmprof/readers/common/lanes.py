"""Kinds of events that have no category: by the names of their process and of its lanes."""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.names.matching import first_true

DEVICE_NAME: Final = r"(?i)^(?:gpu ?|/device:[gt]pu:)(\d+)(?: |$)"
"""Name of the process that stands for a device."""
_STREAM, _PROGRAMS, _OPERATIONS = r"^Stream #", "XLA Modules", r"XLA Ops$"
"""Lanes of a device that XLA names: with kernels, with runs of programs, with operations, which
are the kernels where no stream is recorded. Others repeat these in other words.
"""
_AROUND: Final = r"^%?(?:while|conditional|call)(?:[._]\d+)*$"
"""Operations of XLA that hold others."""
_COPY_NAME: Final = r"(?i)^(?:copy(?:host|device|peer)|memcpy|memset|fillbuffer)"
_CALL_NAME: Final = r"^(?:hip|cuda|cu|hsa_)[A-Z]\w+$"
_PROGRAM: Final = "xla_module"

REPEATS: Final = "event that repeats another lane"
"""Reason for leaving out an event, and the kind of such events."""

ON_HOST: Final = ("process", "thread", "start_ns", "dur_ns", "name", "op_id")
ON_DEVICE: Final = ("stream", "start_ns", "dur_ns", "name", "correlation", "op_id")


def frames_by_lane(events: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Events as frames by kind: kernel, copy, runtime, marker, device_marker, and
    :data:`REPEATS`. They have the columns of :data:`ON_HOST` and :data:`ON_DEVICE`, ``domain``,
    and the names of process and lane, ``process_name`` and ``lane``.
    """
    process, lane = (pl.col(column).fill_null("") for column in ("process_name", "lane"))
    name, on_device = pl.col("name"), process.str.contains(DEVICE_NAME)
    by_xla, streams = process.str.starts_with("/device:"), lane.str.contains(_STREAM)
    operations = lane.str.contains(_OPERATIONS) & ~streams.any().over("process")
    kinds = {
        "device_marker": by_xla & ((lane == _PROGRAMS) | operations & name.str.contains(_AROUND)),
        REPEATS: by_xla & ~streams & ~operations,
        "copy": on_device & name.str.contains(_COPY_NAME),
        "kernel": on_device,
        "runtime": name.str.contains(_CALL_NAME),
    }
    kind = first_true(kinds, "marker")
    device = process.str.extract(DEVICE_NAME, 1).cast(pl.Int32)
    domain = pl.when(lane == _PROGRAMS).then(pl.lit(_PROGRAM)).otherwise("domain")
    apart = events.with_columns(kind=kind, device=device, domain=domain).partition_by(
        "kind", as_dict=True, include_key=False
    )
    columns = {
        "kernel": ("device", *ON_DEVICE),
        "copy": ("device", *ON_DEVICE),
        "runtime": (*ON_HOST, "correlation"),
        "marker": (*ON_HOST, "domain"),
        "device_marker": ("device", "stream", "start_ns", "dur_ns", "name", "domain"),
        REPEATS: ("name",),
    }
    return {str(key[0]): frame.select(columns[str(key[0])]) for key, frame in apart.items()}
