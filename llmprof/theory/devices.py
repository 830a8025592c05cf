"""Devices for the theory: those of :mod:`llmprof.hardware`, and the user's own from YAML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from llmprof import hardware
from llmprof.errors import LlmprofError

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
        found = name
    elif isinstance(name, Path) or str(name).endswith((".yaml", ".yml")):
        found = read_device(name)
    else:
        found = hardware.device(name)
    if found.memory_bytes_per_s is None or not any(found.flop_per_s.values()):
        raise LlmprofError(
            f"the memory bandwidth or the arithmetic rates of {found.name} are not stated by its vendor",
            hint="write those that you trust into a YAML file: llmprof.theory.read_device shows its form",
        )
    return found


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
        raise LlmprofError(f"a device has no {unknown}", expected=f"name, tflops, source, {', '.join(_FIELDS)}")
    rates = values.get("tflops")
    if not values.get("name") or not isinstance(rates, Mapping) or not rates or "memory_gb_per_s" not in values:
        raise LlmprofError("a device needs name, tflops and memory_gb_per_s", expected="tflops as {bf16: 400, …}")
    if set(rates) - set(hardware.TYPES):
        raise LlmprofError(f"tflops has {sorted(set(rates) - set(hardware.TYPES))}", expected=f"of {hardware.TYPES}")
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
