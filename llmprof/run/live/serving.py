"""Servers of our own: requests come to a thread each, have their time, and few are open at once."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from llmprof.errors import LaunchError

MOST_OPEN: Final = 32


class Handler(BaseHTTPRequestHandler):
    """Part of a handler of requests: it tells nothing, since an address may hold a token."""

    @property
    def place(self) -> SplitResult:
        """The path and the query that are asked for; empty if they cannot be read."""
        try:
            return urlsplit(self.path)
        except ValueError:
            return urlsplit("")

    def answer(self, status: int, body: bytes = b"", kind: str = "text/plain") -> None:
        """Send an answer."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the name that it has there)
        """Say nothing."""


class PatientHttpServer(ThreadingHTTPServer):
    """A server that cuts clients off when their time is over, however slowly they send or read."""

    patience_s: float = 10.0
    """Time of a connection, from its beginning to the end of the answer."""

    def __init__(self, host: str, port: int, handler: type[Handler]) -> None:
        self._until: dict[Any, float] = {}
        super().__init__((host, port), handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Refuse a connection while too many are open."""
        return len(self._until) < MOST_OPEN

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin a thread."""
        self._until[request] = time.monotonic() + self.patience_s
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End connections whose time is over; the loop of the server calls it, at least twice a
        second.
        """
        for request, until in list(self._until.items()):
            if time.monotonic() > until:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection that has ended."""
        self._until.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away, or was cut off."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def serve_requests(host: str, port: int, handler: type[Handler]) -> Iterator[int]:
    """Answer requests until the end of the block; yields the port, which was chosen if it was 0.

    Raises
    ------
    LaunchError
        The port is taken.
    """
    try:
        server = PatientHttpServer(host, port, handler)
    except (OSError, OverflowError) as error:
        found = f"{host}:{port} cannot be used: {getattr(error, 'strerror', None) or error}"
        raise LaunchError(found, hint="choose another port; 0 is a free one") from error
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
