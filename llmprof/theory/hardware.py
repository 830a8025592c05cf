"""Peaks of devices as their vendors state them (``hardware.toml``): dense arithmetic, memory and
links, with a source for every number.

``None`` means that no document of the vendor states a number, or that documents disagree. If the
clock is lower under load, the reachable rate is lower in the same proportion.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl
from msgspec import Struct, field

from llmprof.errors import AnalysisError, LlmprofError, checked, listed, one_of

TYPES: Final = ("bf16", "fp16", "fp8", "fp4", "int8", "tf32", "fp32")
"""Types of numbers with peaks; all but that of fp32 are peaks of the tensor (matrix) units."""

_UNITS: Final = {
    "memory_bytes_per_s": "B/s",
    "memory_bytes": "B",
    "link_bytes_per_s": "B/s",
    "multiprocessors": "1",
    "cache_bytes": "B",
    "host_link_bytes_per_s": "B/s",
}
"""Units of the other numbers of a device."""

_NOISE: Final = re.compile(
    r"\b(?:nvidia|amd|huawei|geforce|tesla|instinct|graphics)\b|\(r\)|\(tm\)"
)


class Device(Struct, frozen=True):
    """Peak rates and sizes of a device.

    Parameters
    ----------
    name : str
        Short name.
    pattern : str
        Regular expression for the device's name in profiles, in lower case and without the vendor.
    flop_per_s : mapping of str to float or None
        Dense operations per second of each of :data:`TYPES`; a fused multiply-add is two.
    memory_bytes_per_s, memory_bytes : float or None
        Bandwidth and size of the device memory (decimal units, as vendors count).
    link_bytes_per_s : float or None
        NVLink (or Infinity Fabric) bandwidth, both directions together; 0 if the device has no such
        links.
    multiprocessors : int or None
        Number of SMs, compute units or AI cores.
    cache_bytes : float or None
        Size of the last cache before the device memory, which all multiprocessors share.
    host_link_bytes_per_s : float or None
        PCIe bandwidth, both directions together.
    sources : mapping of str to str
        Document of each known number, by type of number (for ``flop_per_s``) or by field.
    """

    name: str
    pattern: str
    flop_per_s: Mapping[str, float | None]
    memory_bytes_per_s: float | None = None
    memory_bytes: float | None = None
    link_bytes_per_s: float | None = None
    multiprocessors: int | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    cache_bytes: float | None = None
    host_link_bytes_per_s: float | None = None

    def matrix_peak(self, dtype: str) -> float | None:
        """Dense operations per second of matrix products of a type of number; None where none is
        stated.

        The fp32 of an Ascend device is that of its vector cores; its cube multiplies matrices of
        fp32 faster, and not in IEEE fp32 (HF32).
        """
        if dtype == "fp32" and self.name.startswith("Ascend"):
            return None
        return self.flop_per_s.get(dtype)

    def peak(self, dtype: str) -> float:
        """Dense operations per second of a type of number.

        Raises
        ------
        LlmprofError
            The type is unknown, or the vendor states no peak for it.
        """
        if dtype not in TYPES:
            raise LlmprofError(f"there is no type {dtype!r}", expected=f"one of {listed(TYPES)}")
        value = self.flop_per_s.get(dtype)
        if value is None:
            stated = [t for t in TYPES if self.flop_per_s.get(t)]
            raise LlmprofError(
                f"no peak of {dtype} is stated for {self.name}", expected=f"one of {listed(stated)}"
            )
        return value


SHEET: Final = {
    "memory_gb_per_s": ("memory_bytes_per_s", 1e9),
    "memory_gb": ("memory_bytes", 1e9),
    "link_gb_per_s": ("link_bytes_per_s", 1e9),
    "multiprocessors": ("multiprocessors", 1),
    "cache_mib": ("cache_bytes", 2.0**20),
    "host_link_gb_per_s": ("host_link_bytes_per_s", 1e9),
}
"""Field and factor of each number of a data sheet."""


@checked
def device_of_sheet(sheet: Mapping[str, Any]) -> Device:
    """Make a device from numbers in the units of data sheets; ``source`` is that of all numbers
    not in ``sources``.
    """
    sizes = {name: sheet[key] * scale for key, (name, scale) in SHEET.items() if key in sheet}
    rates = {dtype: rate * 1e12 for dtype, rate in sheet["tflops"].items()}
    sources = dict.fromkeys([*rates, *sizes], sheet.get("source")) | sheet.get("sources", {})
    peaks = dict.fromkeys(TYPES) | rates
    return Device(sheet["name"], sheet["pattern"], flop_per_s=peaks, sources=sources, **sizes)


DEVICES: Final = tuple(
    map(
        device_of_sheet,
        tomllib.loads(Path(__file__).with_name("hardware.toml").read_text("utf-8"))["devices"],
    )
)
"""The devices with known peaks."""


@checked
def device(name: str | Device) -> Device:
    """Peaks of a device.

    Parameters
    ----------
    name : str
        Name as profilers write it (``NVIDIA H200``, ``NVIDIA A100-SXM4-80GB``, ``Tesla T4``), or a
        short name in :data:`DEVICES`. A :class:`Device` is returned unchanged.

    Returns
    -------
    Device
        The device with its peaks.

    Raises
    ------
    LlmprofError
        The device is unknown, the name fits several devices, or it is a part of a device (MIG).

    Examples
    --------
    >>> device("NVIDIA H200").memory_bytes_per_s
    4800000000000.0
    """
    if isinstance(name, Device):
        return name
    plain = _plain(name)
    for candidate in DEVICES:
        if plain == _plain(candidate.name) or re.fullmatch(candidate.pattern, plain):
            return candidate
    names = {_plain(candidate.name): candidate.name for candidate in DEVICES}
    near = [n for p, n in names.items() if plain and (p.startswith(plain) or plain.startswith(p))]
    near += [names[p] for p in difflib.get_close_matches(plain, list(names), n=4, cutoff=0.5)]
    raise AnalysisError(
        f"the peaks of the device {name!r} are not known",
        expected=one_of(list(names.values()), list(dict.fromkeys(near))),
        hint=(
            "or write figures of its data sheet into a YAML file; help(llmprof.theory.read_device)"
            " shows its form"
        ),
        near=list(dict.fromkeys(near)),
    )


_VARIANT: Final = re.compile(r"(?: (?:sxm\d?|pcie|nvl|\d+ ?gb))+")


@checked
def similar_devices(name: str) -> list[Device]:
    """Devices of the family that a name means (``H100``), or whose variants it tells apart
    (``t4-pcie-15gb``).

    Examples
    --------
    >>> [each.name for each in similar_devices("h100")]
    ['H100 SXM', 'H100 PCIe', 'H100 NVL']
    """
    plain = _plain(name)
    if not re.search(r"\d", plain):
        return []
    names = {_plain(each.name): each for each in DEVICES}
    family = [each for known, each in names.items() if known.startswith(f"{plain} ")]
    return family or [
        each for known, each in names.items() if _VARIANT.fullmatch(plain.removeprefix(known))
    ]


def _plain(name: str) -> str:
    return " ".join(re.sub(r"[\s_-]+", " ", _NOISE.sub(" ", name.lower())).split())


def peak_sources() -> pl.DataFrame:
    """Table of every number with its source.

    Returns
    -------
    polars.DataFrame
        ``device, quantity, value, unit, source``; value and source are null if no document states a
        number.
    """
    rows: list[tuple[str, str, float | None, str, str | None]] = []
    for each in DEVICES:
        numbers: list[tuple[str, float | None, str]] = [
            (t, each.flop_per_s.get(t), "FLOP/s") for t in TYPES
        ]
        numbers += [(what, getattr(each, what), unit) for what, unit in _UNITS.items()]
        rows += [
            (each.name, what, value, unit, each.sources.get(what)) for what, value, unit in numbers
        ]
    schema = {
        "device": pl.String,
        "quantity": pl.String,
        "value": pl.Float64,
        "unit": pl.String,
        "source": pl.String,
    }
    return pl.DataFrame(rows, schema=schema, orient="row")
