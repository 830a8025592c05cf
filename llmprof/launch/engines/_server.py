"""Part of an engine script: a server as a child process, from its start to its certain end."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmprof.launch.engines._failures import Refused
from llmprof.launch.engines._load import HOST, OK

_HEALTH_EVERY_S = 0.2
_ANSWER_S = 5.0
_WRITE_TRACE_S = 1800.0
_END_S = 20.0


def free_port(wanted: int) -> int:
    """The port that was asked for, or a free one for 0.

    Raises
    ------
    Refused
        Something else listens there.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted))
        except OSError as error:
            why = error.strerror or str(error)
            raise Refused(f"port {wanted} cannot be used: {why}", "choose another server port, or 0") from error
        return int(probe.getsockname()[1])


def arguments(options: Mapping[str, Any]) -> list[str]:
    """Options of an engine as arguments of a command: ``--name value``, ``--name`` or ``--no-name``."""
    found: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            found.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list):
            found += [f"--{flag}", *map(str, value)]
        else:
            found += [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return found


class Server:
    """A server on this machine; it and its children lead a session of their own.

    Parameters
    ----------
    argv : sequence of str
        Its command.
    port : int
        Where it will listen.
    log : pathlib.Path
        Gets its output.
    """

    def __init__(self, argv: Sequence[str], port: int, log: Path) -> None:
        self.port = port
        with log.open("wb") as out:
            self._process = subprocess.Popen(  # noqa: S603
                list(argv), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait(self, timeout_s: float) -> None:
        """Wait until it answers.

        Raises
        ------
        RuntimeError
            It ended.
        Refused
            It took too long.
        """
        until = time.monotonic() + timeout_s
        while True:
            self.check()
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.ask("GET", "/health")[0] == OK:
                    return
            if time.monotonic() > until:
                raise Refused(
                    f"the server did not answer within {timeout_s:g} s",
                    "raise server.health_timeout_s, or look for the reason in server.log",
                )
            time.sleep(_HEALTH_EVERY_S)

    def check(self) -> None:
        """Raise if it ended."""
        status = self._process.poll()
        if status is not None:
            raise RuntimeError(f"the server ended with status {status}")

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = _ANSWER_S
    ) -> tuple[int, str]:
        """Status and text of an answer."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=timeout_s)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode("utf-8", "replace")
        finally:
            connection.close()

    def command(self, path: str, body: Mapping[str, Any] | None = None) -> str:
        """Ask for something to be done; it may take long, as writing a trace does.

        Raises
        ------
        RuntimeError
            It was refused.
        """
        status, text = self.ask("POST", path, body, timeout_s=_WRITE_TRACE_S)
        if status != OK:
            raise RuntimeError(f"the server answered {path} with {status}: {text[:500]}")
        return text

    def metrics(self) -> dict[str, float]:
        """Values of its Prometheus metrics; the name stands with its labels."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            status, text = self.ask("GET", "/metrics")
            if status == OK:
                rows = re.findall(r"(?m)^([a-z][\w:]*(?:\{.*\})?) (\S+)$", text)
                return {name: float(value) for name, value in rows}
        return {}

    def stop(self) -> None:
        """End it: an interrupt first, so that it ends its workers; in the end, a kill of its whole session."""
        for how, patience in ((signal.SIGINT, _END_S), (signal.SIGTERM, _ANSWER_S)):
            if self._process.poll() is None:
                self._process.send_signal(how)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(patience)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
