"""Reader of ``gpustat --json``: one document, a list of them, or one after another in a file."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from llmprof.readers._monitor import EPOCH, LOCAL, Samples, local_ns, text_of
from llmprof.trace import Trace

_COUNTERS: Final[dict[str, tuple[str, str]]] = {
    "utilization.gpu": ("gpu.utilization", "%"),
    "utilization.enc": ("gpu.encoder", "%"),
    "utilization.dec": ("gpu.decoder", "%"),
    "memory.used": ("gpu.memory_used", "MiB"),
    "memory.total": ("gpu.memory_total", "MiB"),
    "temperature.gpu": ("gpu.temperature", "C"),
    "fan.speed": ("gpu.fan", "%"),
    "power.draw": ("gpu.power", "W"),
    "enforced.power.limit": ("gpu.power_limit_enforced", "W"),
}

_BEGIN: Final = re.compile(r"[\[{]")


def read(path: Path) -> Trace:
    """Read what ``gpustat --json`` printed.

    Parameters
    ----------
    path : pathlib.Path
        One document or several, one after another (``gpustat --json`` in a loop).

    Returns
    -------
    Trace
        Table ``counters`` only. Times are local, of a zone that the file does not say, unless ``query_time`` has an
        offset.

    Raises
    ------
    ReadError
        There is no sample.
    """
    found, zoned, devices = Samples(), True, list[str]()
    for document in _documents(text_of(path), found):
        gpus = document.get("gpus")
        try:
            when = datetime.fromisoformat(str(document.get("query_time")))
        except ValueError:
            found.lost += 1
            continue
        zoned = zoned and when.tzinfo is not None
        time_ns = round(when.timestamp() * 1e6) * 1000 if when.tzinfo else local_ns(when)
        for gpu in gpus if isinstance(gpus, list) else []:
            index = gpu.get("index")
            device = index if isinstance(index, int) else None
            devices.append(str(gpu.get("name") or ""))
            for field, (name, unit) in _COUNTERS.items():
                value = gpu.get(field)
                found.add(time_ns, name, float(value) if isinstance(value, int | float) else None, unit, device)
    clock = EPOCH if zoned else LOCAL
    return found.trace(path, "gpustat", clock=clock, devices=[d for d in devices if d])


def _documents(text: str, found: Samples) -> list[dict[str, Any]]:
    """The documents of a file; one that is cut counts as lost."""
    decoder, at, out = json.JSONDecoder(), 0, list[Any]()
    while found_at := _BEGIN.search(text, at):
        at = found_at.start()
        try:
            document, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            found.lost += 1
            break
        out += document if isinstance(document, list) else [document]
    return [document for document in out if isinstance(document, dict)]
