"""What a Chrome trace document says of the run: rank, world size, devices, versions and options of the profiler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

_OPTIONS: Final = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules")


def base_ns(head: Mapping[str, msgspec.Raw]) -> int:
    """Time that the document's times count from (ns since the epoch), 0 where it says nothing."""
    base = _decoded(head, "baseTimeNanoseconds")
    try:
        found = int(base)
    except (TypeError, ValueError, OverflowError):
        return 0
    return found if 0 <= found < 2**61 else 0


def describe(head: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    """What the document says of the run.

    Returns
    -------
    dict
        ``rank`` and ``world_size`` (int or None), ``backend``, ``devices`` (names), ``groups`` (ranks by name of the
        process group), ``versions`` and ``options``.
    """
    distributed = _decoded(head, "distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    properties = _decoded(head, "deviceProperties")
    properties = properties if isinstance(properties, list) else []
    groups = distributed.get("pg_config")
    groups = [groups] if isinstance(groups, dict) else groups if isinstance(groups, list) else []
    versions = {key: _decoded(head, key) for key in head if key.endswith("_version")}
    return {
        "rank": _natural(distributed.get("rank")),
        "world_size": _natural(distributed.get("world_size")) or None,
        "backend": distributed.get("backend"),
        "devices": [str(name) for d in properties if isinstance(d, dict) and (name := d.get("name"))],
        "device_count": len(properties),
        "groups": {str(g.get("pg_name")): g.get("ranks") for g in groups if isinstance(g, dict)},
        "versions": {key: value for key, value in versions.items() if isinstance(value, str | int)},
        "options": {key: bool(_decoded(head, key)) for key in _OPTIONS if key in head},
    }


def _decoded(head: Mapping[str, msgspec.Raw], key: str) -> Any:
    try:
        return msgspec.json.decode(head[key]) if key in head else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _natural(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None
