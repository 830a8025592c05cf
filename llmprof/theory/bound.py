"""The least time of an operator on a device: arithmetic, memory and links at their stated peaks.

The roofline of Williams, Waterman and Patterson (2009, Communications of the ACM 52(4)), made a true lower bound: the
memory part counts only what has to cross the device memory. Weights and the cached keys and values of earlier steps
do, once a step (unless a model is so small that all of it stays in the last cache); of an operator's input and of its
result only what is larger than that cache, since the operator before may have left the one there and this one the
other; and nothing of what engines fuse away (rotation and cache write, see :mod:`llmprof.theory.work`).

An all-reduce of m bytes over n ranks sends and receives 2 (n - 1) / n x m bytes on every rank, an all-gather of m bytes
in all (n - 1) / n x m (Thakur, Rabenseifner and Gropp 2005, International Journal of High Performance Computing
Applications 19(1)). Links are stated for both directions together; one direction is half. Reduction inside the
switch (NVLS) sends less; it is not assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from llmprof.errors import LlmprofError
from llmprof.hardware import Device
from llmprof.theory.plan import Efficiency, Plan
from llmprof.theory.work import Operator

INTER_NODE_BYTES_PER_S: Final = 100e9
"""Network of a device, both directions together, where none is given: one adapter of 400 Gb/s each way."""

_VOLUME: Final = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
_BETWEEN_STAGES: Final = ("send_recv", "broadcast")


@dataclass(frozen=True)
class Timing:
    """Least time of one operator in one layer, in seconds, and the part that sets it.

    Parameters
    ----------
    compute_s, memory_s, communication_s : float
        Time of each resource alone.
    memory_bytes : float
        Bytes that have to cross the device memory.
    bound : str
        ``compute``, ``memory`` or ``communication``; ``none`` where nothing takes time by this count.
    """

    compute_s: float
    memory_s: float
    communication_s: float
    memory_bytes: float
    bound: str

    @property
    def latency_s(self) -> float:
        """The longest of the three: they can overlap."""
        return max(self.compute_s, self.memory_s, self.communication_s)


class Machine:
    """A device with its links and the efficiencies that are assumed of it.

    Parameters
    ----------
    device : Device
        Peaks.
    plan : Plan
        Layout; says which links a collective crosses.
    efficiency : Efficiency
        Shares of the peaks.
    inter_node_bytes_per_s : float
        Network of a device, both directions together.
    resident : bool
        Whether the model is small enough to stay in the last cache.
    """

    def __init__(
        self,
        device: Device,
        plan: Plan,
        efficiency: Efficiency | None = None,
        *,
        inter_node_bytes_per_s: float = INTER_NODE_BYTES_PER_S,
        resident: bool = False,
    ) -> None:
        self.device, self.plan, self.resident = device, plan, resident
        self.efficiency = efficiency or Efficiency()
        if device.memory_bytes_per_s is None:
            raise LlmprofError(f"the memory bandwidth of {device.name} is not stated")
        self.bandwidth = device.memory_bytes_per_s * self.efficiency.memory
        self.network = inter_node_bytes_per_s / 2 * self.efficiency.inter_node
        self.notes: list[str] = []

    def rate(self, kind: str) -> float:
        """Operations per second in a number format; the nearest that the device has where it has none for it."""
        stated = self.device.flop_per_s
        order = {"fp8": ("fp8", "bf16", "fp16"), "int8": ("int8", "bf16", "fp16"), "fp32": ("fp32",)}
        for one in order.get(kind, (kind, "fp16", "bf16")):
            value = stated.get(one)
            if value:
                if one != kind:
                    self._note(f"{self.device.name} states no rate of {kind}: that of {one} is taken")
                return value * self.efficiency.flops
        raise LlmprofError(f"{self.device.name} states no rate of {kind}", expected=f"one of {sorted(stated)}")

    def link(self, ranks: int) -> float:
        """Bytes per second of one direction of what connects ``ranks`` devices.

        Raises
        ------
        LlmprofError
            The device's links are not stated.
        """
        if ranks > self.plan.devices_per_node:
            return self.network
        both = self.device.link_bytes_per_s or self.device.host_link_bytes_per_s
        if not both:
            raise LlmprofError(
                f"the links of {self.device.name} are not stated", hint="give link_gb_per_s in a YAML file of your own"
            )
        if not self.device.link_bytes_per_s:
            self._note(f"{self.device.name} has no links of its own: messages go over PCIe")
        return both / 2 * self.efficiency.intra_node

    def time(self, operator: Operator) -> Timing:
        """Least time of an operator in one layer.

        Examples
        --------
        >>> from llmprof.hardware import device
        >>> machine = Machine(device("H200"), Plan())
        >>> machine.time(Operator("x", "o_proj", weight_bytes=4.8e9)).latency_s
        0.001
        """
        compute = operator.flops / self.rate(operator.math) if operator.flops else 0.0
        crossing = self.crossing(operator)
        memory = crossing / self.bandwidth
        sent = self._sent(operator.stage, operator.message_bytes)
        ranks = self.plan.tp * (self.plan.pp if operator.stage in _BETWEEN_STAGES else 1)
        communication = sent / self.link(ranks) if sent else 0.0
        longest = max(compute, memory, communication)
        names = ("compute", compute), ("memory", memory), ("communication", communication)
        bound = next(name for name, value in names if value == longest) if longest else "none"
        return Timing(compute, memory, communication, crossing, bound)

    def crossing(self, operator: Operator) -> float:
        """Bytes of an operator that have to cross the device memory."""
        compulsory = 0.0 if self.resident else operator.weight_bytes + operator.kv_read_bytes
        kept = self.device.cache_bytes
        if kept is None or operator.fusable:
            return compulsory
        written = operator.output_bytes + operator.kv_write_bytes
        return compulsory + max(0.0, operator.input_bytes - kept) + max(0.0, written - kept)

    def _sent(self, stage: str, message: float) -> float:
        if stage in _BETWEEN_STAGES:
            return message
        ranks = self.plan.tp
        return _VOLUME.get(stage, 1.0) * message * (ranks - 1) / ranks if ranks > 1 else 0.0

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def total(self, operators: Sequence[Operator]) -> float:
        """Sum of the least times of operators over their layers, in seconds: they run one after another."""
        return sum(self.time(one).latency_s * one.layers for one in operators)
