"""What a chart's specification and image hold, for the tests to look at."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import altair as alt


def marks(spec: Any) -> Iterator[dict[str, Any]]:
    """Every unit of a specification that has a mark, with its rows under ``rows``."""

    def walk(node: dict[str, Any], data: dict[str, Any]) -> Iterator[dict[str, Any]]:
        data = node.get("data", data)
        if "mark" in node:
            rows = data["values"] if "values" in data else spec["datasets"].get(data.get("name"), [])
            yield {**node, "rows": rows}
        for key in ("layer", "concat", "hconcat", "vconcat"):
            for child in node.get(key, []):
                yield from walk(child, data)

    yield from walk(spec, {})


def rows(chart: alt.TopLevelMixin, mark: str, *columns: str) -> list[dict[str, Any]]:
    """Rows of all marks of a kind whose rows have these columns."""
    found = [
        row
        for unit in marks(chart.to_dict())
        if unit["mark"]["type"] == mark
        for row in unit["rows"]
        if all(column in row for column in columns)
    ]
    assert found, f"no {mark} with {columns}"
    return found


def texts(chart: alt.TopLevelMixin) -> list[str]:
    """Everything that is written into the chart by text marks, titles and subtitles."""
    return texts_of(chart.to_dict())


def texts_of(spec: Any) -> list[str]:
    """Everything that a specification writes into its chart by text marks, titles and subtitles."""
    found: list[str] = []

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            title = node.get("title")
            if isinstance(title, str):
                found.append(title)
            elif isinstance(title, dict):
                for key in ("text", "subtitle"):
                    value = title.get(key, [])
                    found.extend([value] if isinstance(value, str) else value)
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk({name: value for name, value in spec.items() if name != "datasets"})
    for unit in marks(spec):
        if unit["mark"]["type"] == "text":
            text = unit["encoding"].get("text") or {"value": unit["mark"]["text"]}
            found.extend([text["value"]] if "value" in text else [str(row.get(text["field"])) for row in unit["rows"]])
    return found


def size(png: bytes) -> tuple[int, int]:
    """Width and height of an RGBA PNG without interlacing."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height, depth, kind, _, _, interlaced = struct.unpack(">IIBBBBB", png[16:29])
    assert (depth, kind, interlaced) == (8, 6, 0)
    return width, height


def image(png: bytes) -> tuple[int, int, int]:
    """Width, height and number of colours of an RGBA PNG without interlacing."""
    width, height = size(png)
    body, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            body += png[at + 8 : at + 8 + length]
        at += 12 + length
    raw = zlib.decompress(body)
    stride = 4 * width
    before = bytearray(stride)
    colours: set[bytes] = set()
    for y in range(height):
        method = raw[y * (stride + 1)]
        line = bytearray(raw[y * (stride + 1) + 1 : (y + 1) * (stride + 1)])
        _unfilter(method, line, before)
        colours.update(bytes(line[x : x + 4]) for x in range(0, stride, 4))
        before = line
    return width, height, len(colours)


def _unfilter(method: int, line: bytearray, before: bytearray) -> None:
    for i in range(len(line)):
        left = line[i - 4] if i >= 4 else 0
        above, corner = before[i], before[i - 4] if i >= 4 else 0
        if method == 1:
            guess = left
        elif method == 2:
            guess = above
        elif method == 3:
            guess = (left + above) // 2
        elif method == 4:
            ahead = left + above - corner
            guess = min((left, above, corner), key=lambda value: abs(ahead - value))
        else:
            guess = 0
        line[i] = (line[i] + guess) & 255
