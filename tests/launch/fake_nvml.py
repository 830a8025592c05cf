"""A stand-in for pynvml: two GPUs, of which some calls are not supported, and a record of what
was asked.
"""

from collections import Counter
from types import SimpleNamespace


class FakeNvml:
    """Two GPUs; ``refuse`` names the calls that are not supported."""

    NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_UNKNOWN, NVML_ERROR_DRIVER_NOT_LOADED = 3, 999, 9
    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_CLOCK_GRAPHICS = 0, 1, 2, 0
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
    NVML_FI_DEV_MEMORY_TEMP = 82
    nvmlMemory_v2 = 2  # noqa: N815

    class NVMLError(Exception):
        """An error with its number."""

        def __init__(self, value):
            super().__init__(
                {3: "Not Supported", 9: "Driver Not Loaded"}.get(value, f"error {value}")
            )
            self.value = value

    def __init__(self, *refuse, count=2):
        self.refuse, self.count = set(refuse), count
        self.asked = Counter()
        self.totals = {197: 0, 198: 0, 138: 0, 139: 0, 202: 0, 204: 0}
        self.shut = 0
        self.processes = []
        self.clocks = {"now": 1980, "set": 1980, "default": 1980}
        self.mask = 0x4

    def _ask(self, name):
        self.asked[name] += 1
        if name in self.refuse:
            raise self.NVMLError(self.NVML_ERROR_NOT_SUPPORTED)

    def nvmlInit(self):  # noqa: N802
        self._ask("init")

    def nvmlShutdown(self):  # noqa: N802
        self.shut += 1

    def nvmlDeviceGetCount(self):  # noqa: N802
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        return f"GPU-{'ab'[handle]}000"

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802
        self._ask("utilization")
        return SimpleNamespace(gpu=40 + handle, memory=10)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):  # noqa: N802
        self._ask("energy")
        return 5_000_000 + 2_000 * self.asked["energy"]

    def nvmlDeviceGetMemoryInfo(self, handle, version=None):  # noqa: N802
        self._ask("memory_v2" if version else "memory")
        return SimpleNamespace(used=1000 if version else 1500, free=79_000, total=80_000)

    def nvmlDeviceGetPowerUsage(self, handle):  # noqa: N802
        self._ask("power")
        return 401_500

    def nvmlDeviceGetTemperature(self, handle, sensor):  # noqa: N802
        self._ask("temperature")
        return 51

    def nvmlDeviceGetClockInfo(self, handle, kind):  # noqa: N802
        self._ask("clock")
        return self.clocks["now"] if kind == self.NVML_CLOCK_SM else 2619

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):  # noqa: N802
        self._ask("event_reasons")
        return self.mask

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):  # noqa: N802
        self._ask("throttle_reasons")
        return 0x8

    def nvmlDeviceGetPcieThroughput(self, handle, way):  # noqa: N802
        self._ask("pcie")
        return 20 if way else 10

    def nvmlDeviceGetFieldValues(self, handle, fields):  # noqa: N802
        (field,) = (f[0] if isinstance(f, tuple) else f for f in fields)
        self.asked[f"field {field}"] += 1
        code = 3 if f"field {field}" in self.refuse else 0
        number = 60 if field == 82 else self.totals.get(field, 0)
        return [SimpleNamespace(nvmlReturn=code, valueType=3, value=SimpleNamespace(ullVal=number))]
