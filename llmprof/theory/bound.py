"""Lower bound of an operator's time on a device, from the stated peaks of arithmetic, memory and
links.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from llmprof.errors import LlmprofError, listed
from llmprof.theory import hardware
from llmprof.theory.hardware import Device
from llmprof.theory.plan import Efficiency, Plan
from llmprof.theory.work import OperatorWork
from llmprof.trace.storage import typed

INTER_NODE_BYTES_PER_S: Final = 100e9
"""Default network bandwidth of a device (bytes/s, both directions together): one adapter of 400
Gb/s each way.
"""

_VOLUME: Final = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
_BETWEEN_STAGES: Final = ("send_recv", "broadcast")


class Timing(Struct, frozen=True):
    """Lower bound of the time of one operator in one layer, and the resource that sets it
    (``none`` without work).
    """

    compute_s: float
    memory_s: float
    communication_s: float
    memory_bytes: float
    bound: str

    @property
    def latency_s(self) -> float:
        """Longest of the three times (s): the resources can work at the same time."""
        return max(self.compute_s, self.memory_s, self.communication_s)


class Machine:
    """A device with its links and its assumed efficiencies."""

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
        """Operations per second in a number format, or in the nearest format that the device
        has.
        """
        stated = self.device.flop_per_s
        order = {
            "fp8": ("fp8", "bf16", "fp16"),
            "int8": ("int8", "bf16", "fp16"),
            "fp32": ("fp32",),
        }
        order["fp4"] = ("fp4", *order["fp8"])
        for candidate in order.get(kind, (kind, "fp16", "bf16")):
            value = stated.get(candidate)
            if value:
                if candidate != kind:
                    self._note(
                        f"{self.device.name} states no rate of {kind}: that of {candidate} is used"
                    )
                return value * self.efficiency.flops
        raise LlmprofError(
            f"{self.device.name} states no rate of {kind}",
            expected=f"one of {listed(sorted(stated))}",
        )

    def link(self, ranks: int) -> float:
        """Bandwidth of the links between ``ranks`` devices (bytes/s in one direction)."""
        if ranks > self.plan.devices_per_node:
            return self.network
        bandwidth = self.device.link_bytes_per_s or self.device.host_link_bytes_per_s
        if not bandwidth:
            found = f"the links of {self.device.name} are not stated"
            raise LlmprofError(found, hint="state link_gb_per_s in a YAML file of the device")
        if not self.device.link_bytes_per_s:
            self._note(f"{self.device.name} has no direct links: messages go over PCIe")
        return bandwidth / 2 * self.efficiency.intra_node

    def time(self, operator: OperatorWork) -> Timing:
        """Lower bound of the time of an operator in one layer; each resource works at its peak
        times its efficiency.
        """
        compute = operator.flops / self.rate(operator.math) if operator.flops else 0.0
        crossing = self.crossing(operator)
        memory = crossing / self.bandwidth
        between, ranks, sent = (
            operator.stage in _BETWEEN_STAGES,
            self.plan.tp,
            operator.message_bytes,
        )
        if not between:
            sent = (
                _VOLUME.get(operator.stage, 1.0) * sent * (ranks - 1) / ranks if ranks > 1 else 0.0
            )
        ranks *= self.plan.pp if between else 1
        communication = sent / self.link(ranks) if sent else 0.0
        longest = max(compute, memory, communication)
        names = ("compute", compute), ("memory", memory), ("communication", communication)
        bound = next(name for name, value in names if value == longest) if longest else "none"
        return Timing(compute, memory, communication, crossing, bound)

    def crossing(self, operator: OperatorWork) -> float:
        """Bytes that an operator must read from or write to the device memory; data in the last
        cache do not count.
        """
        compulsory = 0.0 if self.resident else operator.weight_bytes + operator.kv_read_bytes
        cache = self.device.cache_bytes
        if cache is None or operator.fusable:
            return compulsory
        written = operator.output_bytes + operator.kv_write_bytes
        return compulsory + max(0.0, operator.input_bytes - cache) + max(0.0, written - cache)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def total(self, operators: Sequence[OperatorWork]) -> float:
        """Sum of the lower bounds of operators over their layers (s); they run one after
        another.
        """
        return sum(self.time(operator).latency_s * operator.layers for operator in operators)


def find_device(name: str | Path | hardware.Device) -> hardware.Device:
    """Device with its peaks, after a check that those which the theory needs are stated.

    Parameters
    ----------
    name : str, path or Device
        A name that :func:`llmprof.theory.hardware.device` knows (``H200``, ``a100-sxm-40gb``), a YAML file
        (:func:`read_device`), or the device itself.

    Raises
    ------
    LlmprofError
        The device is unknown, or its memory bandwidth or arithmetic rate is not stated.

    Examples
    --------
    >>> find_device("a100-sxm-40gb").memory_bytes_per_s
    1555000000000.0
    """  # noqa: E501
    if isinstance(name, hardware.Device):
        peaks = name
    elif isinstance(name, Path) or str(name).endswith((".yaml", ".yml")):
        peaks = read_device(name)
    else:
        peaks = hardware.device(name)
    if peaks.memory_bytes_per_s is None or not any(peaks.flop_per_s.values()):
        raise LlmprofError(
            f"the memory bandwidth or the arithmetic rates of {peaks.name} are not stated by its"
            " vendor",
            hint=(
                "write figures that you trust into a YAML file; help(llmprof.theory.read_device)"
                " shows its form"
            ),
        )
    return peaks


def nearest_device(name: str | Path | hardware.Device) -> tuple[hardware.Device, str]:
    """Device of :func:`find_device`; of a family that a name means, the first, with a note that
    says so.
    """
    try:
        return find_device(name), ""
    except LlmprofError:
        family = hardware.similar_devices(name) if isinstance(name, str) else []
        if not family:
            raise
        others = f"; others: {listed(each.name for each in family[1:])}" if family[1:] else ""
        return find_device(family[0]), f"{name} is taken as {family[0].name}{others}"


def read_device(path: str | Path) -> hardware.Device:
    """Read a device from a YAML file.

    Required keys are ``name``; ``tflops``, a mapping of ``bf16, fp16, fp8, fp4, int8, tf32, fp32``
    to dense TFLOP/s; and ``memory_gb_per_s``. Optional keys are ``memory_gb``, ``link_gb_per_s``
    (both directions together), ``host_link_gb_per_s``, ``cache_mib`` and ``source``, the document
    that states the numbers.

    Raises
    ------
    LlmprofError
        The file cannot be read, lacks a required number, or has an unknown key or an invalid value.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "device.yaml"
    >>> _ = file.write_text("{name: mine, tflops: {bf16: 400}, memory_gb_per_s: 1800, source: data sheet}")
    >>> read_device(file).peak("bf16")
    400000000000000.0
    """  # noqa: E501
    values = typed.read_yaml(Path(path).expanduser(), error=LlmprofError)
    if not isinstance(values, Mapping):
        raise LlmprofError(
            f"{Path(path).name} does not hold a mapping",
            expected="name, tflops, memory_gb_per_s, …",
        )
    return parse_device(values)


def parse_device(values: Mapping[str, Any]) -> hardware.Device:
    """Device from a mapping with the keys of :func:`read_device`.

    Raises
    ------
    LlmprofError
        A required number is missing, a key is unknown, or a value is invalid.

    Examples
    --------
    >>> mine = {"name": "mine", "tflops": {"bf16": 400}, "memory_gb_per_s": 1800}
    >>> parse_device(mine).peak("bf16")
    400000000000000.0
    """
    unknown = sorted(set(values) - {"name", "tflops", "source", *hardware.SHEET})
    if unknown:
        found = f"a device has no key {listed(unknown)}"
        raise LlmprofError(found, expected=f"name, tflops, source, {', '.join(hardware.SHEET)}")
    rates = values.get("tflops")
    if (
        not values.get("name")
        or not isinstance(rates, Mapping)
        or not rates
        or "memory_gb_per_s" not in values
    ):
        raise LlmprofError(
            "a device needs name, tflops and memory_gb_per_s", expected="tflops as {bf16: 400, …}"
        )
    if unknown_types := set(rates) - set(hardware.TYPES):
        raise LlmprofError(
            f"tflops has {listed(sorted(unknown_types))}",
            expected=f"some of {listed(hardware.TYPES)}",
        )
    numbers = {key: values[key] for key in hardware.SHEET if key in values}
    for key, value in (numbers | {f"tflops.{kind}": rate for kind, rate in rates.items()}).items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
            raise LlmprofError(f"{key} of a device is {value!r}", expected="a number")
    return hardware.device_of_sheet(
        {"source": "the user's file", **values, "name": str(values["name"]), "pattern": r"(?!)"}
    )
