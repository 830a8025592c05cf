"""Monitor of GPUs, through NVML."""

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from llmprof.run.launch.monitors.table import MonitorValue, Rates, Source

T = TypeVar("T")

_SLOW_EVERY_S: Final = 1.0
"""Seconds between two queries of PCIe throughput, which is queried if a GPU has no totals: each
takes 20 ms.
"""

_ALL_LINKS: Final = 0xFFFFFFFF
_PCIE: Final = {"received": 198, "sent": 197}
_NVLINK: Final = {"received": 139, "sent": 138}
_NVLINK_5: Final = {"received": 204, "sent": 202}
"""Numbers of NVML's fields ``PCIE_COUNT_*_BYTES`` (B), ``NVLINK_THROUGHPUT_DATA_*`` (KiB, all links
together) and ``NVLINK_COUNT_*_BYTES`` (B, each link, from NVLink 5 on); older bindings have no
names for them.
"""

_INSTEAD: Final = {"PCIe throughput": "PCIe totals", "NVLink bytes": "NVLink totals"}
"""Questions that are asked once a device has not answered another one."""

_MOST_LINKS: Final = 18
_FIELDS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_FOREVER: Final = (
    *(
        "NOT_SUPPORTED",
        "NO_PERMISSION",
        "FUNCTION_NOT_FOUND",
        "INVALID_ARGUMENT",
        "ARGUMENT_VERSION_MISMATCH",
    ),
)

Ask = Callable[[float], dict[str, float]]
"""Question to NVML about a device at a time (s): values by the name of their counter, without
``gpu.``.
"""

_UNITS: Final = {
    **dict.fromkeys(("utilization", "memory_utilization"), "%"),
    **dict.fromkeys(("temperature", "memory_temperature"), "°C"),
    **dict.fromkeys(("sm_clock", "memory_clock"), "Hz"),
} | {"memory_used": "B", "power": "W", "energy": "J", "throttle_reasons": "1"}
"""Units of the counters; the others are rates of bytes."""


class Gpus(Source):
    """Counters of GPUs."""

    def __init__(self, nvml: Any, visible: str | None = None) -> None:
        super().__init__()
        self._nvml = nvml
        self._rates = Rates()
        self._slow_s: dict[int, float] = {}
        self._first_j: dict[int, float] = {}
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        self._devices = [
            self._questions(i, handle)
            for i, handle in enumerate(visible_gpus(nvml, handles, visible))
        ]

    def _questions(self, device: int, handle: Any) -> dict[str, Ask]:
        nvml = self._nvml

        def get(name: str, *arguments: Any) -> Any:
            return getattr(nvml, f"nvmlDeviceGet{name}")(handle, *arguments)

        def utilization(_: float) -> dict[str, float]:
            rates = get("UtilizationRates")
            return {"utilization": rates.gpu, "memory_utilization": rates.memory}

        def memory(_: float) -> dict[str, float]:
            # the second version leaves out the memory that the driver reserves, as nvidia-smi does
            try:
                return {
                    "memory_used": nvml.nvmlDeviceGetMemoryInfo(
                        handle, version=nvml.nvmlMemory_v2
                    ).used
                }
            except nvml.NVMLError:
                return {"memory_used": get("MemoryInfo").used}

        def energy(
            _: float,
        ) -> dict[str, float]:  # since the first sample; NVML counts it since the driver was loaded
            joules = get("TotalEnergyConsumption") / 1e3
            return {"energy": joules - self._first_j.setdefault(device, joules)}

        def throttle(_: float) -> dict[str, float]:
            try:
                return {"throttle_reasons": get("CurrentClocksEventReasons")}
            except nvml.NVMLError:
                return {"throttle_reasons": get("CurrentClocksThrottleReasons")}

        return {
            "utilization": utilization,
            "memory": memory,
            "power": lambda _: {"power": get("PowerUsage") / 1e3},
            "energy": energy,
            "temperature": lambda _: {"temperature": get("Temperature", nvml.NVML_TEMPERATURE_GPU)},
            "memory temperature": lambda _: {
                "memory_temperature": self._field(handle, nvml.NVML_FI_DEV_MEMORY_TEMP)
            },
            "SM clock": lambda _: {"sm_clock": get("ClockInfo", nvml.NVML_CLOCK_SM) * 1e6},
            "memory clock": lambda _: {"memory_clock": get("ClockInfo", nvml.NVML_CLOCK_MEM) * 1e6},
            "throttle reasons": throttle,
            "PCIe totals": self._rate(device, "pcie", lambda way: self._field(handle, _PCIE[way])),
            "NVLink totals": self._rate(
                device, "nvlink", lambda way: 1024 * self._field(handle, (_NVLINK[way], _ALL_LINKS))
            ),
            # in place of the totals on devices without them
            "PCIe throughput": lambda now_s: self._pcie(device, handle, now_s),
            "NVLink bytes": self._rate(
                device, "nvlink", lambda way: self._of_links(handle, _NVLINK_5[way])
            ),
        }

    def sample(self, now_s: float) -> Iterator[MonitorValue]:
        """Values of all devices; a counter that a device does not support is queried only once."""
        for device, questions in enumerate(self._devices):
            for what in [name for name in questions if _INSTEAD.get(name) not in questions]:
                try:
                    answers = questions[what](now_s)
                except self._nvml.NVMLError as error:
                    if error.value in {
                        getattr(self._nvml, f"NVML_ERROR_{name}", None) for name in _FOREVER
                    }:
                        del questions[what]
                        if what not in _INSTEAD.values():
                            self.notes.append(f"GPU {device} does not report its {what}: {error}")
                    continue
                for name, value in answers.items():
                    yield MonitorValue(f"gpu.{name}", _UNITS.get(name, "B/s"), value, device)

    def _rate(self, device: int, link: str, total: Callable[[str], float]) -> Ask:
        def ask(now_s: float) -> dict[str, float]:
            rates = {
                way: self._rates((device, link, way), total(way), now_s)
                for way in ("received", "sent")
            }
            return {f"{link}_{way}": rate for way, rate in rates.items() if rate is not None}

        return ask

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

    def _pcie(self, device: int, handle: Any, now_s: float) -> dict[str, float]:
        if now_s - self._slow_s.get(device, float("-inf")) < _SLOW_EVERY_S:
            return {}
        self._slow_s[device] = now_s
        nvml = self._nvml
        ways = {"received": nvml.NVML_PCIE_UTIL_RX_BYTES, "sent": nvml.NVML_PCIE_UTIL_TX_BYTES}
        return {
            f"pcie_{way}": nvml.nvmlDeviceGetPcieThroughput(handle, which) * 1e3
            for way, which in ways.items()
        }

    def _field(self, handle: Any, field: Any) -> float:
        (value,) = self._nvml.nvmlDeviceGetFieldValues(handle, [field])
        if value.nvmlReturn:
            raise self._nvml.NVMLError(value.nvmlReturn)
        return float(getattr(value.value, _FIELDS[value.valueType]))

    def close(self) -> None:
        """Shut down NVML."""
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()


def nvml_value(nvml: Any, name: str, *arguments: Any) -> Any:
    """Answer of a function of NVML; None if the driver has none."""
    try:
        return getattr(nvml, f"nvmlDeviceGet{name}")(*arguments)
    except nvml.NVMLError:
        return None


def visible_gpus(nvml: Any, handles: Sequence[Any], visible: str | None) -> list[Any]:
    """Handles of the visible GPUs in their order; all GPUs if the choice cannot be matched to
    them (MIG).
    """
    if visible is None:
        return list(handles)
    out: list[Any] = []
    for name in (part.strip() for part in visible.split(",")):
        if name.isdigit() and int(name) < len(handles):
            out.append(handles[int(name)])
        elif name.startswith("GPU-"):
            out += [
                handle for handle in handles if str(nvml.nvmlDeviceGetUUID(handle)).startswith(name)
            ]
        elif name.startswith("MIG-"):
            return list(handles)
        else:  # like CUDA, stop at the first name that is not a GPU
            break
    return out


def ask_nvml(
    question: Callable[[Any], T], nvml: Any = None, *, keep: bool = False
) -> tuple[T | None, Exception | None]:
    """Answer to a question while NVML is open (and stays open if it is to be kept), or the error
    why there is none.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return None, ImportError("the package nvidia-ml-py is not installed")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return None, error
    kept = False
    try:
        out = question(nvml)
        kept = keep
    except nvml.NVMLError as error:
        return None, error
    finally:
        if not kept:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()
    return out, None


def versions(nvml: Any) -> dict[str, Any]:
    """Versions of the driver, and of the CUDA that it supports."""
    version = nvml.nvmlSystemGetCudaDriverVersion()
    cuda = f"{version // 1000}.{version % 1000 // 10}"
    return {"driver": os.fsdecode(nvml.nvmlSystemGetDriverVersion()), "cuda_driver": cuda}


def open_gpus(visible: str | None = None) -> tuple[Gpus | None, str]:
    """GPUs of this machine; None and the reason if NVML is not available."""
    gpus, error = ask_nvml(lambda nvml: Gpus(nvml, visible), keep=True)
    return gpus, "" if error is None else f"GPUs are not sampled: {error}"


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
