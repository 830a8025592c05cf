"""Charts as files that open without a network."""

from __future__ import annotations

import html
import json
import os
from functools import cache
from pathlib import Path

import altair as alt
import vl_convert as vlc

from llmprof.errors import OutputError

SUFFIXES = (".png", ".svg", ".html", ".json")

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; \
style-src 'unsafe-inline'; img-src data: blob:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>body {{ margin: 0; background: #fff; }}</style>
</head>
<body>
<div id="chart"></div>
<script>{library}</script>
<script id="spec" type="application/json">{spec}</script>
<script>
const spec = JSON.parse(document.getElementById("spec").textContent);
vegaEmbed("#chart", spec, {{actions: {{export: true, source: false, compiled: false, editor: false}}}});
</script>
</body>
</html>
"""


def vega_lite_version() -> str:
    """Version of Vega-Lite that Altair writes, as vl-convert names it (``6.4``)."""
    return ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])


@cache
def vega_bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script that defines ``vegaEmbed``; it loads nothing."""
    return vlc.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=vega_lite_version())


def spec_json(chart: alt.TopLevelMixin) -> str:
    """Vega-Lite specification of a chart as JSON that is safe inside an HTML script element."""
    text = json.dumps(chart.to_dict(), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def to_png_bytes(chart: alt.TopLevelMixin, *, scale: float = 2.0) -> bytes:
    """PNG image of a chart.

    Parameters
    ----------
    chart : altair chart
        What to draw.
    scale : float
        Pixels of the image a pixel of the chart.

    Returns
    -------
    bytes
        The file's content.

    Examples
    --------
    >>> charts.to_png_bytes(charts.overlap(analyze.overlap(trace, by=("rank",))))[1:4]
    b'PNG'
    """
    return vlc.vegalite_to_png(spec_json(chart), vl_version=vega_lite_version(), scale=scale)


def to_html(chart: alt.TopLevelMixin, *, title: str = "llmprof") -> str:
    """Page with one chart, Vega included; it loads nothing from anywhere.

    Parameters
    ----------
    chart : altair chart
        What to draw.
    title : str
        Title of the page, taken as text.

    Returns
    -------
    str
        The page (about 0.9 MB, nearly all of it Vega).

    Examples
    --------
    >>> page = charts.to_html(charts.overlap(analyze.overlap(trace, by=("rank",))))
    >>> page.startswith("<!DOCTYPE html>")
    True
    """
    return _PAGE.format(title=html.escape(title), library=vega_bundle(), spec=spec_json(chart))


def save(chart: alt.TopLevelMixin, path: str | os.PathLike[str]) -> Path:
    """Write a chart to a file that needs no network to be looked at.

    Parameters
    ----------
    chart : altair chart
        What to write.
    path : path
        Where to; the suffix chooses the format: ``.png`` (two pixels for each of the chart), ``.svg``, ``.html``
        (Vega included) or ``.json`` (the Vega-Lite specification). Missing folders are made.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    OutputError
        The suffix is none of these, or the file cannot be written.

    Examples
    --------
    >>> chart = charts.overlap(analyze.overlap(trace, by=("rank",)))
    >>> charts.save(chart, "overlap.html").name
    'overlap.html'
    """
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix not in SUFFIXES:
        raise OutputError(
            f"{target.name} has the suffix {target.suffix!r}", expected=f"one of {', '.join(SUFFIXES)}", path=target
        )
    if suffix == ".png":
        content = to_png_bytes(chart)
    elif suffix == ".svg":
        content = vlc.vegalite_to_svg(spec_json(chart), vl_version=vega_lite_version()).encode()
    elif suffix == ".html":
        content = to_html(chart, title=target.stem).encode()
    else:
        content = spec_json(chart).encode()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    except OSError as error:
        raise OutputError(
            f"cannot write {target}: {error.strerror or error}", hint="choose a folder that can be written", path=target
        ) from error
    return target
