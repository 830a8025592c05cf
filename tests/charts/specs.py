"""What a chart's specification and image hold, for the tests to look at."""

import struct
import zlib

import numpy as np


def marks(spec):
    """Every unit of a specification that has a mark, with its rows under ``rows``."""

    def walk(node, data):
        data = node.get("data", data)
        if "mark" in node:
            rows = (
                data["values"] if "values" in data else spec["datasets"].get(data.get("name"), [])
            )
            yield {**node, "rows": rows}
        for key in ("layer", "concat", "hconcat", "vconcat"):
            for child in node.get(key, []):
                yield from walk(child, data)

    yield from walk(spec, {})


def rows(chart, mark, *columns):
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


def texts(chart):
    """Everything that is written into the chart by text marks, titles and subtitles."""
    return texts_of(chart.to_dict())


def texts_of(spec):
    """Everything that a specification writes into its chart by text marks, titles and subtitles."""
    found = []

    def walk(node):
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
            found.extend(
                [text["value"]]
                if "value" in text
                else [str(row.get(text["field"])) for row in unit["rows"]]
            )
    return found


def size(png):
    """Width and height of an RGBA PNG without interlacing."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height, depth, kind, _, _, interlaced = struct.unpack(">IIBBBBB", png[16:29])
    assert (depth, kind, interlaced) == (8, 6, 0)
    return width, height


def pixels(png):
    """Pixels (height, width, 3) of a PNG whose rows have the filter Sub, as those of vl-convert."""
    at, data, head = 8, b"", b""
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        kind, content = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", png, at + 8 + length)[0] == zlib.crc32(kind + content)
        head = content if kind == b"IHDR" else head
        data += content if kind == b"IDAT" else b""
        at += 12 + length
    width, height, _, colour = struct.unpack(">IIBB", head[:10])
    channels = {2: 3, 6: 4}[colour]
    rows = np.frombuffer(zlib.decompress(data), dtype=np.uint8).reshape(
        height, 1 + channels * width
    )
    assert (rows[:, 0] == 1).all()
    return np.cumsum(rows[:, 1:].reshape(height, width, channels), axis=1, dtype=np.uint8)[:, :, :3]


def image(png):
    """Width, height and number of colours of a PNG of vl-convert."""
    found = pixels(png)
    return found.shape[1], found.shape[0], len(np.unique(found.reshape(-1, 3), axis=0))
