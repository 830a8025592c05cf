"""Saving charts to files that open without a network, and placing labels so that no text covers
another.
"""

from __future__ import annotations

import contextlib
import html
import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import altair as alt
import msgspec
import vl_convert as vlc

from llmprof.charts.base.dark import GROUND, Theme, dark_colours, themed
from llmprof.charts.base.script import unending
from llmprof.charts.base.theme import PAPER
from llmprof.errors import OutputError
from llmprof.trace.storage import files

SUFFIXES = (".png", ".svg", ".html", ".json")

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; \
style-src 'unsafe-inline'; img-src data: blob:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 0; background: {light}; }}
@media screen and (prefers-color-scheme: dark) {{ body {{ background: {dark}; }} }}
</style>
</head>
<body>
<div id="chart"></div>
<script>{library}</script>
<script id="spec" type="application/json">{spec}</script>
<script id="dark" type="application/json">{colours}</script>
<script>
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const draw = () => {{
  const recolour = (_, value) => (dark.matches && typeof value === "string" && read("dark")[value]) || value;
  const spec = JSON.parse(JSON.stringify(read("spec"), recolour));
  vegaEmbed("#chart", spec, {{actions: {{export: true, source: false, compiled: false, editor: false}}}});
}};
dark.addEventListener("change", draw);
draw();
</script>
</body>
</html>
"""  # noqa: E501


def vega_lite_version() -> str:
    """Version of Vega-Lite that Altair writes, as vl-convert names it (``6.4``)."""
    return ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])


_V8_BYTES: Final = 66_000 << 20
"""Address space that V8, which draws the charts, reserves when it starts (measured: 64,000 MiB
are too few).
"""


@cache
def check_room() -> None:
    """Raise if V8 could not start under a limit of the address space (``ulimit -v``): it would
    end the process.
    """
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    except ImportError:  # on Windows
        return
    if limit == resource.RLIM_INFINITY:
        return
    used = 0
    with contextlib.suppress(OSError):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    if limit - used < _V8_BYTES:
        raise OutputError(
            "no chart can be drawn: the address space of this process is limited to"
            f" {limit / 2**30:.1f} GiB",
            expected=f"{(_V8_BYTES + used) / 2**30:.0f} GiB, which are reserved and hardly used",
            hint=(
                "raise it: ulimit -v unlimited (a limit of the memory in use, as of a container, is"
                " no obstacle)"
            ),
        )


@cache
def vega_bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script (0.9 MB) that defines ``vegaEmbed`` and loads
    nothing.
    """
    folder = files.cache_folder("vega")
    kept = folder / f"vega-embed-{vega_lite_version()}-vl-convert-{version('vl-convert-python')}.js"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return _checked(kept.read_bytes().decode())
    check_room()
    script = vlc.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=vega_lite_version())
    script = _checked(script.replace("\r\n", "\n").replace("\r", "\n"))
    with contextlib.suppress(OSError):  # without a writable cache this only takes longer
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("wb", dir=folder, delete=False) as file:
            file.write(script.encode())
        Path(file.name).replace(kept)
    return script


def _checked(script: str) -> str:
    if "</script" in script.lower() or "<!--" in script or "vegaEmbed" not in script:
        found = "the Vega bundle of vl-convert cannot stand in a page"
        raise OutputError(found, hint="install another vl-convert-python")
    return script


def png(spec: str, *, scale: float = 2.0) -> bytes:
    """PNG image of a specification, by default two pixels for each of the chart."""
    check_room()
    return vlc.vegalite_to_png(spec, vl_version=vega_lite_version(), scale=scale)


def spec_json(chart: alt.TopLevelMixin) -> str:
    """Vega-Lite specification of a chart as JSON that is safe inside an HTML script element."""
    return safe_json(chart.to_dict(validate=False))


def safe_json(spec: Mapping[str, Any]) -> str:
    """JSON in which no character can end a script element."""
    return unending(msgspec.json.encode(spec).decode())


def to_png_bytes(chart: alt.TopLevelMixin, *, scale: float = 2.0, theme: Theme = "light") -> bytes:
    """PNG image of a chart.

    Parameters
    ----------
    scale : float
        Pixels of the image for each pixel of the chart.
    theme : str
        ``light`` or ``dark``.

    Examples
    --------
    >>> charts.to_png_bytes(charts.overlap(analyze.overlap(trace, by=("rank",))))[1:4]
    b'PNG'
    """
    return png(safe_json(themed(chart, theme)), scale=scale)


def to_html(chart: alt.TopLevelMixin, *, title: str = "llmprof") -> str:
    """HTML page with one chart in the theme of the reader's screen; it includes Vega (0.9 MB) and
    loads nothing.

    Parameters
    ----------
    title : str
        Title of the page, taken as text.

    Examples
    --------
    >>> page = charts.to_html(charts.overlap(analyze.overlap(trace, by=("rank",))))
    >>> page.startswith("<!DOCTYPE html>")
    True
    """
    spec = spec_json(chart)
    colours = json.dumps(dark_colours([spec]))
    return _PAGE.format(
        title=html.escape(title),
        library=vega_bundle(),
        spec=spec,
        colours=colours,
        light=PAPER,
        dark=GROUND,
    )


def save(
    chart: alt.TopLevelMixin,
    path: str | os.PathLike[str],
    *,
    theme: Theme = "light",
    overwrite: bool = False,
) -> Path:
    """Write a chart to a file that opens without a network, and return its path.

    Parameters
    ----------
    path : path
        File to write; the suffix chooses the format: ``.png`` (two pixels for each of the chart),
        ``.svg``, ``.html`` (Vega included) or ``.json`` (the Vega-Lite specification). Missing
        folders are made.
    theme : str
        ``light`` or ``dark``; a page (``.html``) follows the reader's screen.
    overwrite : bool
        Whether a file that exists is replaced; one that was read as an input never is.

    Raises
    ------
    OutputError
        The suffix is unknown, or the file exists or cannot be written.

    Examples
    --------
    >>> chart = charts.overlap(analyze.overlap(trace, by=("rank",)))
    >>> charts.save(chart, "overlap.html").name
    'overlap.html'
    """
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix not in SUFFIXES:
        found = f"{target.name} has the suffix {target.suffix!r}"
        raise OutputError(found, expected=f"one of {', '.join(SUFFIXES)}", path=target)
    files.check_output(target, overwrite=overwrite)
    if suffix == ".png":
        content = to_png_bytes(chart, theme=theme)
    elif suffix == ".svg":
        check_room()
        content = vlc.vegalite_to_svg(
            safe_json(themed(chart, theme)), vl_version=vega_lite_version()
        ).encode()
    elif suffix == ".html":
        content = to_html(chart, title=target.stem).encode()
    else:
        content = safe_json(themed(chart, theme)).encode()
    return files.write_output(target, content, overwrite=overwrite)


LineSegment = tuple[float, float, float, float]
"""Two ends of a line: x, y, x, y (px)."""

_GAP = 4
"""Space between a point and its text (px)."""

_AWAY = (0, 12, 24, 40, 60, 85, 110)
"""Further distances from the point that are tried (px)."""

_AROUND = (0, 8, 4, 12, 2, 6, 14, 10, 1, 15, 3, 5, 7, 9, 11, 13)
"""Directions that are tried, in sixteenths of a turn: right, left, below, above, then those in
between.
"""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of the plot (px), from the upper left."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Whether two rectangles share a point."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom

    def within(self, width: float, height: float) -> bool:
        """Whether it lies in a plot of this size."""
        return self.left >= 0 and self.top >= 0 and self.right <= width and self.bottom <= height


def around(x: float, y: float, radius: float) -> Box:
    """The square around a point."""
    return Box(x - radius, y - radius, x + radius, y + radius)


def along(start: tuple[float, float], end: tuple[float, float], every: float = 6) -> list[Box]:
    """Small squares along a line."""
    count = max(1, math.ceil(math.dist(start, end) / every))
    (x0, y0), (x1, y1) = start, end
    return [
        around(x0 + (x1 - x0) * i / count, y0 + (y1 - y0) * i / count, every / 2)
        for i in range(count + 1)
    ]


def free_place(
    point: tuple[float, float],
    radius: float,
    size: tuple[float, float],
    plot: tuple[float, float],
    taken: Sequence[Box],
) -> tuple[Box, LineSegment | None] | None:
    """First free place for a text: beside the point, below or above it, at its corners, then
    further away.
    """
    x, y = point
    reach = radius + _AWAY[-1] + 2 * _GAP + max(size)
    taken = [box for box in taken if box.meets(around(x, y, reach))]
    for away in _AWAY:
        for box in _beside(point, radius + away, size):
            if not box.within(*plot) or any(box.meets(other) for other in taken):
                continue
            if not away:
                return box, None
            # a line from the edge of the point to the nearest point of the text
            near = (min(max(x, box.left), box.right), min(max(y, box.top), box.bottom))
            share = radius / max(radius, math.dist(point, near))
            begin = (x + (near[0] - x) * share, y + (near[1] - y) * share)
            line = along(begin, near, every=2)
            if not any(mine.meets(other) for mine in line for other in taken):
                return box, (*begin, *near)
    return None


def _beside(point: tuple[float, float], radius: float, size: tuple[float, float]) -> list[Box]:
    """A text all around a point."""
    (x, y), (width, height), far = point, size, radius + _GAP
    boxes = []
    for sixteenth in _AROUND:
        right, down = math.cos(sixteenth * math.pi / 8), math.sin(sixteenth * math.pi / 8)
        left = x + right * far - width * (0.5 - _side(right) / 2)
        top = y + down * far - height * (0.5 - _side(down) / 2)
        boxes.append(Box(left, top, left + width, top + height))
    return boxes


def _side(share: float) -> int:
    """Which side of a text is next to the point: 1 and -1 for the ends, 0 for the middle."""
    return 0 if abs(share) < 0.3 else int(math.copysign(1, share))
