"""Monitor of GPUs, through NVML."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from llmprof.launch.monitors.table import Monitor, Rates, Value

_SLOW_EVERY_S: Final = 1.0
"""Seconds between two queries of PCIe throughput, which is queried if a GPU has no totals: each takes 20 ms."""

_ALL_LINKS: Final = 0xFFFFFFFF
_PCIE: Final = {"received": 198, "sent": 197}
_NVLINK: Final = {"received": 139, "sent": 138}
_NVLINK_5: Final = {"received": 204, "sent": 202}
"""Numbers of NVML's fields ``PCIE_COUNT_*_BYTES`` (B), ``NVLINK_THROUGHPUT_DATA_*`` (KiB, all links together) and
``NVLINK_COUNT_*_BYTES`` (B, each link, from NVLink 5 on); older bindings have no names for them."""

_MOST_LINKS: Final = 18

_FIELDS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_FOREVER: Final = (
    "NOT_SUPPORTED",
    "NO_PERMISSION",
    "FUNCTION_NOT_FOUND",
    "INVALID_ARGUMENT",
    "ARGUMENT_VERSION_MISMATCH",
)

Ask = Callable[[Any, float], list[tuple[str, str, float]]]


class Gpus:
    """Counters of GPUs."""

    def __init__(self, nvml: Any, visible: str | None = None) -> None:
        self.notes: list[str] = []
        self._nvml = nvml
        self._rates = Rates()
        self._devices: list[tuple[int, Any, dict[str, Ask]]] = []
        self._slow_s: dict[int, float] = {}
        self._first_j: dict[int, float] = {}
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        for device, handle in enumerate(chosen(nvml, handles, visible)):
            self._devices.append((device, handle, self._questions(device)))

    def _questions(self, device: int) -> dict[str, Ask]:
        nvml = self._nvml
        return {
            "utilization": self._utilization,
            "memory": self._memory,
            "power": lambda h, _: [("gpu.power", "W", nvml.nvmlDeviceGetPowerUsage(h) / 1e3)],
            "energy": lambda h, _: self._energy(device, h),
            "temperature": lambda h, _: [
                ("gpu.temperature", "°C", nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU))
            ],
            "memory temperature": lambda h, _: [
                ("gpu.memory_temperature", "°C", self._field(h, nvml.NVML_FI_DEV_MEMORY_TEMP))
            ],
            "SM clock": lambda h, _: [("gpu.sm_clock", "Hz", nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM) * 1e6)],
            "memory clock": lambda h, _: [
                ("gpu.memory_clock", "Hz", nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_MEM) * 1e6)
            ],
            "throttle reasons": self._throttle,
            "PCIe totals": lambda h, now_s: self._totals(device, now_s, "pcie", lambda way: self._field(h, _PCIE[way])),
            "NVLink totals": lambda h, now_s: self._totals(
                device, now_s, "nvlink", lambda way: 1024 * self._field(h, (_NVLINK[way], _ALL_LINKS))
            ),
        }

    def sample(self, now_s: float) -> Iterator[Value]:
        """Values of all devices; a counter that a device does not support is queried only once."""
        for device, handle, questions in self._devices:
            for what in list(questions):
                try:
                    answers = questions[what](handle, now_s)
                except self._nvml.NVMLError as error:
                    if error.value in {getattr(self._nvml, f"NVML_ERROR_{name}", None) for name in _FOREVER}:
                        del questions[what]
                        self._instead(what, device, questions, str(error))
                    continue
                for name, unit, value in answers:
                    yield Value(name, unit, value, device)

    def _instead(self, what: str, device: int, questions: dict[str, Ask], why: str) -> None:
        if what == "PCIe totals":
            questions["PCIe throughput"] = lambda h, now_s: self._pcie(device, h, now_s)
        elif what == "NVLink totals":
            questions["NVLink bytes"] = lambda h, now_s: self._totals(
                device, now_s, "nvlink", lambda way: self._of_links(h, _NVLINK_5[way])
            )
        else:
            self.notes.append(f"GPU {device} does not report its {what}: {why}")

    def _utilization(self, handle: Any, _: float) -> list[tuple[str, str, float]]:
        rates = self._nvml.nvmlDeviceGetUtilizationRates(handle)
        return [("gpu.utilization", "%", rates.gpu), ("gpu.memory_utilization", "%", rates.memory)]

    def _memory(self, handle: Any, _: float) -> list[tuple[str, str, float]]:
        nvml = self._nvml
        try:  # the second version leaves out the memory that the driver reserves, as nvidia-smi does
            used = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used
        except nvml.NVMLError:
            used = nvml.nvmlDeviceGetMemoryInfo(handle).used
        return [("gpu.memory_used", "B", used)]

    def _energy(self, device: int, handle: Any) -> list[tuple[str, str, float]]:
        """Energy since the first sample; NVML counts it since the driver was loaded (Volta and later)."""
        joules = self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3
        return [("gpu.energy", "J", joules - self._first_j.setdefault(device, joules))]

    def _throttle(self, handle: Any, _: float) -> list[tuple[str, str, float]]:
        nvml = self._nvml
        try:
            mask = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        except nvml.NVMLError:
            mask = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        return [("gpu.throttle_reasons", "1", mask)]

    def _totals(
        self, device: int, now_s: float, link: str, total: Callable[[str], float]
    ) -> list[tuple[str, str, float]]:
        rates = {way: self._rates((device, link, way), total(way), now_s) for way in ("received", "sent")}
        return [(f"gpu.{link}_{way}", "B/s", rate) for way, rate in rates.items() if rate is not None]

    def _of_links(self, handle: Any, field: int) -> float:
        """Sum of a field over the NVLinks that report it."""
        totals = []
        for link in range(_MOST_LINKS):
            try:
                totals.append(self._field(handle, (field, link)))
            except self._nvml.NVMLError as error:
                last = error
        if not totals:
            raise last
        return sum(totals)

    def _pcie(self, device: int, handle: Any, now_s: float) -> list[tuple[str, str, float]]:
        if now_s - self._slow_s.get(device, float("-inf")) < _SLOW_EVERY_S:
            return []
        self._slow_s[device] = now_s
        nvml = self._nvml
        ways = {"received": nvml.NVML_PCIE_UTIL_RX_BYTES, "sent": nvml.NVML_PCIE_UTIL_TX_BYTES}
        return [
            (f"gpu.pcie_{way}", "B/s", nvml.nvmlDeviceGetPcieThroughput(handle, which) * 1e3)
            for way, which in ways.items()
        ]

    def _field(self, handle: Any, field: Any) -> float:
        (value,) = self._nvml.nvmlDeviceGetFieldValues(handle, [field])
        if value.nvmlReturn:
            raise self._nvml.NVMLError(value.nvmlReturn)
        return float(getattr(value.value, _FIELDS[value.valueType]))

    def close(self) -> None:
        """Shut down NVML."""
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()


def answer(nvml: Any, name: str, *arguments: Any) -> Any:
    """Answer of a function of NVML; None if the driver has none."""
    try:
        return getattr(nvml, f"nvmlDeviceGet{name}")(*arguments)
    except nvml.NVMLError:
        return None


def chosen(nvml: Any, handles: Sequence[Any], visible: str | None) -> list[Any]:
    """Handles of the visible GPUs in their order; all GPUs if the choice cannot be matched to them (MIG)."""
    if visible is None:
        return list(handles)
    out: list[Any] = []
    for name in (part.strip() for part in visible.split(",")):
        if name.isdigit() and int(name) < len(handles):
            out.append(handles[int(name)])
        elif name.startswith("GPU-"):
            out += [handle for handle in handles if str(nvml.nvmlDeviceGetUUID(handle)).startswith(name)]
        elif name.startswith("MIG-"):
            return list(handles)
        else:  # like CUDA, stop at the first name that is not a GPU
            break
    return out


def open_gpus(visible: str | None = None) -> tuple[Gpus | None, str]:
    """GPUs of this machine; None and the reason if NVML is not available."""
    try:
        import pynvml
    except ImportError:
        return None, "GPUs are not sampled: the package nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"GPUs are not sampled: {error}"
    try:
        return Gpus(pynvml, visible), ""
    except pynvml.NVMLError as error:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
        return None, f"GPUs are not sampled: {error}"


MONITOR = Monitor("GPUs", lambda watched: open_gpus(watched.visible))

REASONS: Final[dict[int, str]] = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clocks_setting",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Reasons by their bit (NVML: ``nvmlClocksEventReasons``)."""


def reasons_of(mask: int) -> list[str]:
    """Names of the reasons of a mask."""
    return [name for bit, name in REASONS.items() if mask & bit]
