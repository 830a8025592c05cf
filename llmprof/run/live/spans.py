"""Receiver of a server's spans:

OTLP over HTTP, as OpenTelemetry sends it, on this machine alone by default.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import polars as pl

from llmprof.errors import ConfigError, LaunchError, needs
from llmprof.readers.otlp import parse_requests, request_frame
from llmprof.run.live.server import MOST_BYTES
from llmprof.run.live.serving import Handler, serve_requests

SCHEME: Final = "otlp://"
HOST: Final = "127.0.0.1"
PORT: Final = 4318
"""Port that OpenTelemetry has for OTLP over HTTP."""
_PATH: Final = "/v1/traces"
_MOST_REQUESTS: Final = 20_000
_MOST_DIGITS: Final = 12


class Spans:
    """Requests that were told so far, the newest of them, by the spans of the server."""

    def __init__(self) -> None:
        self._rows: dict[Any, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self.refused = 0
        """Number of bodies that could not be read."""

    def add(self, body: bytes, kind: str) -> None:
        """Take the body of a request of OTLP, in protobuf or JSON; ValueError if it is neither."""
        with self._lock:  # of large bodies one at a time is in memory as objects
            self._rows |= dict(parse_requests(_document(body, kind)))
            for key in list(self._rows)[:-_MOST_REQUESTS]:
                del self._rows[key]

    def frame(self) -> pl.DataFrame:
        """The requests, with the columns of :func:`llmprof.read_requests`."""
        with self._lock:
            return request_frame(list(self._rows.values()))


def _document(body: bytes, kind: str) -> Any:
    if kind == "application/json":
        return json.loads(body)
    from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    try:
        return MessageToDict(ExportTraceServiceRequest.FromString(body))
    except DecodeError as error:
        raise ValueError(str(error)) from error


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of an address such as ``otlp://127.0.0.1:4318``; what is left out is
    127.0.0.1 and 4318.
    """
    parts = urlsplit(address)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if port == -1 or parts.path.strip("/") or parts.query or parts.username is not None:
        raise ConfigError(
            f"{address} is no place for spans", expected=f"such as {SCHEME}{HOST}:{PORT}"
        )
    return parts.hostname or HOST, PORT if port is None else port


@contextmanager
def received(address: str) -> Iterator[Spans]:
    """Receive spans at an address until the end of the block.

    Raises
    ------
    ConfigError
        It is no address.
    LaunchError
        The package that decodes spans is missing, or the port is taken.
    """
    with needs("opentelemetry-proto", "spans need", "watch", LaunchError):
        import opentelemetry.proto.collector.trace.v1.trace_service_pb2  # noqa: F401
    spans = Spans()

    class Receiver(Handler):
        """Takes spans."""

        def do_POST(self) -> None:  # noqa: N802 (the name that it has there)
            """Take a body, whole and not too large."""
            kind, digits = self.headers.get_content_type(), self.headers.get("Content-Length", "")
            size = int(digits[:_MOST_DIGITS]) if digits.isdecimal() else -1
            if self.place.path != _PATH:
                return self.answer(404)
            if not 0 <= size <= MOST_BYTES:
                return self.answer(411 if size < 0 else 413)
            try:
                body = self.rfile.read(size)
                whole = len(body) == size
                if self.headers.get("Content-Encoding") == "gzip":
                    packed = zlib.decompressobj(wbits=31)
                    body = packed.decompress(body, MOST_BYTES)
                    whole = whole and packed.eof
                if not whole:
                    raise ValueError("a part is missing, or too much")
                spans.add(body, kind)
            except (ValueError, zlib.error, RecursionError):
                spans.refused += 1
                return self.answer(400)
            return self.answer(200, b"{}" if kind == "application/json" else b"", kind)

    with serve_requests(*parse_address(address), Receiver):
        yield spans
