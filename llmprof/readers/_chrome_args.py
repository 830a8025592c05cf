"""Arguments of Chrome trace events by the table they go to; the decoder skips all others."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from llmprof.readers._events import Id

Number = int | float | None
NOTHING: Final = msgspec.Raw(b"")
"""Raw JSON that is not there."""


def _arg(name: str, default: Any = None) -> Any:
    return msgspec.field(default=default, name=name)


class Args(msgspec.Struct, gc=False):
    """What events of every kind may have."""

    external_id: Id = _arg("External id")
    external_id_2021: Id = _arg("external id")

    @property
    def op_id(self) -> Id:
        """Identifier of the operator that was running."""
        return self.external_id_2021 if self.external_id is None else self.external_id


class CallArgs(Args, gc=False):
    """Calls of a device runtime: Kineto, Ascend and NVTX exporters name the correlation each their way."""

    correlation: Id = None
    correlation_ascend: Id = _arg("connection_id")
    correlation_nsys: Id = _arg("correlationId")

    @property
    def any_correlation(self) -> Id:
        """The correlation under whatever name."""
        return self.correlation_nsys if self.correlation_ascend is None else self.correlation_ascend


class CopyArgs(CallArgs, gc=False):
    """Copies and fills on a device."""

    device: Id = None
    stream: Id = None
    size: Number = _arg("bytes")
    graph_node: Id = _arg("graph node id")


class KernelArgs(CallArgs, gc=False):
    """Kernels, with the description of a collective where they are one."""

    device: Id = None
    stream: Id = None
    registers: Number = _arg("registers per thread")
    shared: Number = _arg("shared memory")
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    occupancy: float | None = _arg("est. achieved occupancy %")
    graph_node: Id = _arg("graph node id")
    collective: str | None = _arg("Collective name")
    in_elements: Number = _arg("In msg nelems")
    out_elements: Number = _arg("Out msg nelems")
    group_size: Number = _arg("Group size")
    dtype: str | None = None
    group: str | None = _arg("Process Group Name")
    group_ranks: str | None = _arg("Process Group Ranks")
    source_rank: Number = _arg("Src Rank")
    target_rank: Number = _arg("Dst Rank")


class ProcessArgs(CallArgs, gc=False):
    """Events without a category, which their process tells apart (Ascend, rpd)."""

    stream: Id = _arg("Stream Id")
    stream_physical: Id = _arg("Physic Stream Id")
    task: str | None = _arg("Task Type")
    elements: Number = _arg("count")
    dtype: str | None = _arg("data_type")


class OpArgs(Args, gc=False):
    """Operators of torch, torch_npu and ONNX Runtime, with their shapes as JSON."""

    dims: msgspec.Raw = _arg("Input Dims", NOTHING)
    dims_2021: msgspec.Raw = _arg("Input dims", NOTHING)
    dims_ascend: msgspec.Raw = _arg("Input Shapes", NOTHING)
    types: msgspec.Raw = _arg("Input type", NOTHING)
    types_and_dims: msgspec.Raw = _arg("input_type_shape", NOTHING)


class DeviceMarkerArgs(Args, gc=False):
    """Markers on a device."""

    device: Id = None
    stream: Id = None


class MemoryArgs(msgspec.Struct, gc=False):
    """Allocations and releases."""

    device_type: Number = _arg("Device Type")
    device: Id = _arg("Device Id")
    address: Id = _arg("Addr")
    size: Number = _arg("Bytes")
    allocated: Number = _arg("Total Allocated")
    reserved: Number = _arg("Total Reserved")


class NameArgs(msgspec.Struct, gc=False):
    """Name of a process."""

    name: Id = None
