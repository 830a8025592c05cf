"""Vega once for a whole page, and specifications that can stand in it."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import os
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs
import vl_convert as vlc

from llmprof.charts.base.save import spec_json, vega_lite_version
from llmprof.errors import OutputError

if TYPE_CHECKING:
    import altair as alt


@functools.cache
def library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script (0.9 MB), from the packages that are installed.

    Bundling takes seconds, so the script is kept in the user's cache folder under the versions it was made from.

    Raises
    ------
    OutputError
        The script could end the element that holds it.
    """
    kept = _cache_folder() / f"vega-embed-{vega_lite_version()}-vl-convert-{version('vl-convert-python')}.js"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return _checked(kept.read_bytes().decode())
    script = vlc.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=vega_lite_version())
    script = _checked(script.replace("\r\n", "\n").replace("\r", "\n"))
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time, nothing else
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


def specification(chart: alt.TopLevelMixin) -> str:
    """Vega-Lite specification as JSON in which no character can end a script element."""
    return spec_json(chart)


def png(spec: str) -> bytes:
    """PNG image of a specification, two pixels for each of the chart."""
    return vlc.vegalite_to_png(spec, vl_version=vega_lite_version(), scale=2)


def source_hash(script: str) -> str:
    """A script's name in a Content-Security-Policy: only a script with this content runs."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
