"""Reasons for a lower clock of a GPU."""

from __future__ import annotations

from typing import Final

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
