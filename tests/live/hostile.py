"""Servers that answer as no server should, by kind, made for a test."""

import contextlib
import gzip
import json
import socket
import threading
import time
from collections.abc import Mapping

STEP_S = 0.02
ENOUGH_S = 20.0
"""Seconds after which a slow answer ends after all, so that who waits for its end is seen to
have waited.
"""
MOST_SENT = 256 << 20


def whole(body, *, status=200, **headers):
    """An answer as it should be, but for its content."""
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
    head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{''.join(lines)}\r\n"
    return lambda connection: connection.sendall(head.encode() + body)


def slow(begin, piece, end):
    """An answer in small pieces, each of which comes soon."""

    def reply(connection):
        connection.sendall(begin)
        until = time.monotonic() + ENOUGH_S
        while time.monotonic() < until:
            connection.sendall(piece)
            time.sleep(STEP_S)
        connection.sendall(end)

    return reply


def endless(begin, piece):
    """An answer that comes as fast as it is taken, and has no end."""

    def reply(connection):
        connection.sendall(begin)
        for _ in range(MOST_SENT // len(piece)):
            connection.sendall(piece)

    return reply


def silent(connection):
    """Nothing at all."""
    time.sleep(ENOUGH_S)


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
END = b"Content-Length: 2\r\nConnection: close\r\n\r\n{}"

SLOW = {
    "nothing": silent,
    "status": slow(b"HTTP/1.1 200 ", b"O", b"\r\n" + END),
    "head": slow(OK, b"X: y\r\n", END),
    "head in bytes": slow(OK + b"X: ", b"y", b"\r\n" + END),
    "interim answers": slow(b"", b"HTTP/1.1 100 Continue\r\n\r\n", OK + END),
    "body": slow(OK + b"Content-Length: 100000000\r\n\r\n", b" ", b""),
    "body without a length": slow(OK + b"\r\n", b" ", b"{}"),
    "chunks": slow(CHUNKED, b"1\r\n \r\n", b"0\r\n\r\n"),
    "size of a chunk": slow(CHUNKED, b"0", b"1\r\n \r\n0\r\n\r\n"),
    "trailer": slow(CHUNKED + b"0\r\n", b"X: y\r\n", b"\r\n"),
    "many chunks": endless(CHUNKED, b"1\r\n \r\n" * 8192),
}
ENDLESS = {
    "body": endless(OK + b"\r\n", b" " * 65536),
    "body with a length": endless(OK + b"Content-Length: 99999999999\r\n\r\n", b" " * 65536),
    "chunks": endless(CHUNKED, b"10000\r\n" + b" " * 65536 + b"\r\n"),
    "one chunk": endless(CHUNKED + b"ffffffffffff\r\n", b" " * 65536),
    "words behind the size of a chunk": endless(CHUNKED + b"1;", b"x" * 65536),
    "heads": endless(OK, b"X: y\r\n" * 8192),
    "one head": endless(OK + b"X: ", b"y" * 65536),
    "trailer": endless(CHUNKED + b"0\r\n", b"X: y\r\n" * 8192),
    "gzip": whole(gzip.compress(bytes(64 << 20)), Content_Encoding="gzip"),
    "gzip in gzip": whole(
        gzip.compress(gzip.compress(bytes(64 << 20))), Content_Encoding="gzip, gzip"
    ),
}
NO_JSON = {
    "lists in lists": whole(b"[" * 100_000),
    "objects in objects": whole(b'{"a":' * 100_000),
    "digits": whole(b'{"data":' + b"9" * 100_000 + b"}"),
    "cut": whole(b'{"data": ['),
    "bytes": whole(bytes(range(256))),
    "an error": whole(b"{}", status=500),
    "another address": whole(b"{}", status=302, Location="http://127.0.0.1:9/"),
}


class Hostile:
    """What a hostile server was asked, and how it answers by path; ``""`` is any other path."""

    def __init__(self, replies):
        self.replies = replies
        self.heads = []
        self.url = ""

    def _serve(self, listening):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection):
        with connection, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head and (part := connection.recv(65536)):
                head += part
            self.heads.append(head.decode("latin-1"))
            path = self.heads[-1].split(" ")[1].partition("?")[0]
            self.replies.get(path, self.replies.get("", whole(b"", status=404)))(connection)


@contextlib.contextmanager
def hostile(replies):
    """A server with these answers, at ``url`` on this machine."""
    server = Hostile(replies if isinstance(replies, Mapping) else {"": replies})
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread = threading.Thread(target=server._serve, args=(listening,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def models(**values):
    """What vLLM says of its model."""
    model = {"id": "tiny", "owned_by": "vllm", "root": "tiny", "max_model_len": 64} | values
    return whole(json.dumps({"data": [model]}).encode())


def told(folder, **sizes):
    """What vLLM says of its folder for traces and its ranks."""
    config = {"profiler_config": {"torch_profiler_dir": str(folder)}, "parallel_config": sizes}
    return whole(json.dumps({"vllm_config": config}).encode())
