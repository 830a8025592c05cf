"""Vega in a page: the library itself, the specifications of charts, and their data as columns."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs
import vl_convert as vlc

from llmprof.charts.base.save import check_room, safe_json, spec_json, vega_lite_version
from llmprof.charts.base.theme import narrow
from llmprof.errors import OutputError

if TYPE_CHECKING:
    import altair as alt


@functools.cache
def library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script (0.9 MB), from the packages that are installed."""
    kept = _cache_folder() / f"vega-embed-{vega_lite_version()}-vl-convert-{version('vl-convert-python')}.js"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return _checked(kept.read_bytes().decode())
    check_room()
    script = vlc.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=vega_lite_version())
    script = _checked(script.replace("\r\n", "\n").replace("\r", "\n"))
    with contextlib.suppress(OSError):  # without a writable cache this only takes longer
        kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("wb", dir=kept.parent, delete=False) as file:
            file.write(script.encode())
        Path(file.name).replace(kept)
    return script


def _checked(script: str) -> str:
    if "</script" in script.lower() or "<!--" in script or "vegaEmbed" not in script:
        raise OutputError(
            "the Vega bundle of vl-convert cannot stand in a page", hint="install another vl-convert-python"
        )
    return script


def _cache_folder() -> Path:
    chosen = os.environ.get("LLMPROF_CACHE")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("llmprof")) / "vega"


def png(spec: str) -> bytes:
    """PNG image of a specification, two pixels for each of the chart."""
    check_room()
    return vlc.vegalite_to_png(spec, vl_version=vega_lite_version(), scale=2)


def source_hash(script: str) -> str:
    """Hash of a script for a Content-Security-Policy: only a script with this content runs."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def twice(draw: Callable[[], alt.TopLevelMixin]) -> tuple[str, str]:
    """Specifications of a chart for a desk and for a telephone; the second is empty where they are the same."""
    check_room()
    wide = spec_json(draw())
    with narrow():
        small = spec_json(draw())
    return wide, "" if small == wide else small


def packed(spec: str, small: str = "") -> str:
    """Both specifications of a chart as one JSON for a page: their data once, as columns, with nine digits."""
    tables: dict[str, Any] = {}
    out: dict[str, Any] = {"tables": tables}
    for key, text in (("wide", spec), ("narrow", small)):
        if text:
            chart = json.loads(text)
            sets = chart.get("datasets", {})
            tables |= {name: _columns(rows) for name, rows in sets.items() if name not in tables}
            out[key] = chart | {"datasets": list(sets)}
    return safe_json(out)


def _columns(rows: Any) -> Any:
    """Rows of the same columns as columns; anything else as it is."""
    if not rows or not all(isinstance(row, Mapping) and row.keys() == rows[0].keys() for row in rows):
        return rows
    return {name: _column([row[name] for row in rows]) for name in rows[0]} if rows[0] else rows


def _column(values: list[Any]) -> Any:
    """Values with nine digits; texts that come again and again as their places in a list of them."""
    words = list(dict.fromkeys(values)) if all(isinstance(value, str) for value in values) else values
    if 2 * len(words) > len(values):
        return [_short(value) for value in values]
    places = {word: place for place, word in enumerate(words)}
    return {"words": words, "at": [places[value] for value in values]}


def _short(value: Any) -> Any:
    """A number with nine digits: a nanosecond of a second."""
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    cut = float(f"{value:.9g}")
    return int(cut) if cut.is_integer() and abs(cut) < 1e15 else cut
