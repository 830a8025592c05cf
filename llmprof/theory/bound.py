"""Devices for the theory, and the least time of an operator on one: arithmetic, memory and links at stated peaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from llmprof import hardware
from llmprof.errors import LlmprofError, listed
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
    """A device with its links and its assumed efficiencies.

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
        """Operations per second in a number format; if the device lacks the format, in the nearest one that it has."""
        stated = self.device.flop_per_s
        order = {"fp8": ("fp8", "bf16", "fp16"), "int8": ("int8", "bf16", "fp16"), "fp32": ("fp32",)}
        for one in order.get(kind, (kind, "fp16", "bf16")):
            value = stated.get(one)
            if value:
                if one != kind:
                    self._note(f"{self.device.name} states no rate of {kind}: that of {one} is taken")
                return value * self.efficiency.flops
        raise LlmprofError(f"{self.device.name} states no rate of {kind}", expected=f"one of {listed(sorted(stated))}")

    def link(self, ranks: int) -> float:
        """Bytes per second, one direction, of the links between ``ranks`` devices.

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


_FIELDS: Final = {
    "memory_gb_per_s": ("memory_bytes_per_s", 1e9),
    "memory_gb": ("memory_bytes", 1e9),
    "link_gb_per_s": ("link_bytes_per_s", 1e9),
    "host_link_gb_per_s": ("host_link_bytes_per_s", 1e9),
    "cache_mib": ("cache_bytes", 2.0**20),
}


def find_device(name: str | Path | hardware.Device) -> hardware.Device:
    """Peaks of a device, checked to have what the theory needs.

    Parameters
    ----------
    name : str, path or Device
        A name that :func:`llmprof.hardware.device` knows (``H200``, ``a100-sxm-40gb``), a YAML file
        (:func:`read_device`), or the device itself.

    Raises
    ------
    LlmprofError
        The device is unknown, or its bandwidth or rate of arithmetic is not stated.

    Examples
    --------
    >>> find_device("a100-sxm-40gb").memory_bytes_per_s
    1555000000000.0
    """
    if isinstance(name, hardware.Device):
        peaks = name
    elif isinstance(name, Path) or str(name).endswith((".yaml", ".yml")):
        peaks = read_device(name)
    else:
        peaks = hardware.device(name)
    if peaks.memory_bytes_per_s is None or not any(peaks.flop_per_s.values()):
        raise LlmprofError(
            f"the memory bandwidth or the arithmetic rates of {peaks.name} are not stated by its vendor",
            hint="write those that you trust into a YAML file: llmprof.theory.read_device shows its form",
        )
    return peaks


def read_device(path: str | Path) -> hardware.Device:
    """A device from a YAML file.

    The file has ``name``; ``tflops``, a mapping of ``bf16, fp16, fp8, int8, tf32, fp32`` to dense TFLOP/s;
    ``memory_gb_per_s``; and as far as they are known ``memory_gb, link_gb_per_s`` (both directions together)``,
    host_link_gb_per_s, cache_mib`` and ``source``, the document of the numbers.

    Parameters
    ----------
    path : str or pathlib.Path
        The file.

    Raises
    ------
    LlmprofError
        It cannot be read, lacks a number that is needed, or has a key or value that makes no sense.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "device.yaml"
    >>> _ = file.write_text("{name: mine, tflops: {bf16: 400}, memory_gb_per_s: 1800, source: data sheet}")
    >>> read_device(file).peak("bf16")
    400000000000000.0
    """
    try:
        import yaml
    except ImportError as error:
        raise LlmprofError("reading YAML needs pyyaml", hint="pip install 'llmprof[launch]'") from error
    try:
        values = yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise LlmprofError(f"the device file {Path(path).name} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise LlmprofError(f"{Path(path).name} is not valid YAML", hint=str(error)) from error
    if not isinstance(values, Mapping):
        raise LlmprofError(f"{Path(path).name} holds no mapping", expected="name, tflops, memory_gb_per_s, …")
    return device_of(values)


def device_of(values: Mapping[str, Any]) -> hardware.Device:
    """A device from a mapping in the form of :func:`read_device`.

    Raises
    ------
    LlmprofError
        A number that is needed is missing, or a key or value makes no sense.

    Examples
    --------
    >>> device_of({"name": "mine", "tflops": {"bf16": 400}, "memory_gb_per_s": 1800}).peak("bf16")
    400000000000000.0
    """
    unknown = sorted(set(values) - {"name", "tflops", "source", "multiprocessors", *_FIELDS})
    if unknown:
        raise LlmprofError(f"a device has no {listed(unknown)}", expected=f"name, tflops, source, {', '.join(_FIELDS)}")
    rates = values.get("tflops")
    if not values.get("name") or not isinstance(rates, Mapping) or not rates or "memory_gb_per_s" not in values:
        raise LlmprofError("a device needs name, tflops and memory_gb_per_s", expected="tflops as {bf16: 400, …}")
    if others := set(rates) - set(hardware.TYPES):
        raise LlmprofError(f"tflops has {listed(sorted(others))}", expected=f"some of {listed(hardware.TYPES)}")
    flops = {kind: _number(f"tflops.{kind}", rates[kind]) * 1e12 if kind in rates else None for kind in hardware.TYPES}
    sizes = {field: _number(key, values[key]) * scale for key, (field, scale) in _FIELDS.items() if key in values}
    source = str(values.get("source", "the user's file"))
    sources = dict.fromkeys([*rates, *sizes], source)
    return hardware.Device(
        str(values["name"]),
        r"(?!)",
        flops,
        sizes.get("memory_bytes_per_s"),
        sizes.get("memory_bytes"),
        sizes.get("link_bytes_per_s"),
        values.get("multiprocessors"),
        sources,
        sizes.get("cache_bytes"),
        sizes.get("host_link_bytes_per_s"),
    )


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise LlmprofError(f"{key} of a device is {value!r}", expected="a number")
    return float(value)
