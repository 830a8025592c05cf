"""Receiver of a server's spans:

OTLP over HTTP, as OpenTelemetry sends it, on this machine alone by default.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

import polars as pl

from llmprof.errors import ConfigError, LaunchError, needs
from llmprof.readers.otlp import frame_of, rows_of

SCHEME: Final = "otlp://"
HOST: Final = "127.0.0.1"
PORT: Final = 4318
"""Port that OpenTelemetry has for OTLP over HTTP."""
_PATH: Final = "/v1/traces"
_MOST_REQUESTS: Final = 20_000
_MOST_BYTES: Final = 64 << 20
_PATIENCE_S: Final = 5.0


class Spans:
    """Requests that were told so far, the newest of them, by the spans of the server."""

    def __init__(self) -> None:
        self._rows: dict[Any, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self.refused = 0
        """Number of bodies that could not be read."""

    def add(self, body: bytes, kind: str) -> None:
        """Take the body of a request of OTLP, in protobuf or JSON; ValueError if it is neither."""
        if kind == "application/json":
            document = json.loads(body)
        else:
            from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
            from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
            from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
                ExportTraceServiceRequest,
            )

            try:
                document = MessageToDict(ExportTraceServiceRequest.FromString(body))
            except DecodeError as error:
                raise ValueError(str(error)) from error
        with self._lock:
            self._rows |= dict(rows_of(document))
            for key in list(self._rows)[:-_MOST_REQUESTS]:
                del self._rows[key]

    def frame(self) -> pl.DataFrame:
        """The requests, with the columns of :func:`llmprof.read_requests`."""
        with self._lock:
            return frame_of(list(self._rows.values()))


def place_of(address: str) -> tuple[str, int]:
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

    class Handler(BaseHTTPRequestHandler):
        """Takes spans, and tells nothing."""

        timeout = _PATIENCE_S

        def do_POST(self) -> None:
            """Take a body, whole and not too large."""
            kind = self.headers.get_content_type()
            try:
                size = int(self.headers.get("Content-Length") or -1)
            except ValueError:
                size = -1
            if urlsplit(self.path).path != _PATH:
                return self._answer(404)
            if not 0 <= size <= _MOST_BYTES:
                return self._answer(411 if size < 0 else 413)
            try:
                body = self.rfile.read(size)
                if self.headers.get("Content-Encoding") == "gzip":
                    body = zlib.decompressobj(wbits=31).decompress(body, _MOST_BYTES)
                spans.add(body, kind)
            except (ValueError, OSError, zlib.error, RecursionError):
                spans.refused += 1
                return self._answer(400)
            return self._answer(200, b"{}" if kind == "application/json" else b"", kind)

        def _answer(self, status: int, body: bytes = b"", kind: str = "text/plain") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the name that it has there)
            """Say nothing."""

    host, port = place_of(address)
    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise LaunchError(
            f"{host}:{port} cannot be used: {error.strerror}", hint="choose another port"
        ) from error
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield spans
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
