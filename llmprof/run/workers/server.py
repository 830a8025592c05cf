"""Of the program of an engine: a server as a supervised child process, and timed requests to it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import os
import random
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .job import RunRecord, token_ids, turns
from .machine import Refused

HOST = "127.0.0.1"
OK = 200


async def completion(port: int, body: Mapping[str, Any]) -> dict[str, Any]:
    """Request one streamed completion and time it."""
    seen = _Seen()
    async with _asked(port, {**body, "stream": True}) as reader:
        async for message in _stream_of(reader):
            seen.take(message)
    return seen.values()


@contextlib.asynccontextmanager
async def _asked(port: int, body: Mapping[str, Any]) -> AsyncIterator[asyncio.StreamReader]:
    """Send a request for a completion; what comes back is read in the block."""
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}:{port}\r\nContent-Type:"
        " application/json\r\n"
    )
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            writer.write(
                f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data
            )
            await writer.drain()
            yield reader
        finally:
            writer.close()
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise RuntimeError(f"the server ended in the middle of a request: {error}") from error


_TO_BE_SENT = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    **dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")),
}


async def routed(ports: tuple[int, int], body: Mapping[str, Any]) -> dict[str, Any]:
    """A completion whose prompt one server reads, and which another one generates."""
    start, began = time.time_ns(), time.perf_counter()
    first = {name: value for name, value in body.items() if name != "stream_options"}
    first |= {"max_tokens": 1, "kv_transfer_params": _TO_BE_SENT}
    async with _asked(ports[0], first) as reader:
        head, _, text = (await reader.read()).partition(b"\r\n\r\n")
    prefilled = time.perf_counter() - began
    try:
        answer = json.loads(text)  # a server that ends meanwhile leaves a part of it, or nothing
    except ValueError:
        answer = None
    if answer is None or head.split(b" ")[1:2] != [str(OK).encode()]:
        said = (head[:60] + b" " + text[:500]).decode("utf-8", "replace")
        raise RuntimeError(f"the server that prefills answered {said}")
    found = answer.get("kv_transfer_params")
    values = await completion(ports[1], {**body, "kv_transfer_params": found} if found else body)
    times = {name: values[name] + prefilled for name in ("ttft_s", "e2e_s")}
    return {**values, **times, "start_ns": start, "prefilled_s": prefilled}


async def _stream_of(reader: asyncio.StreamReader) -> Any:
    """Messages of an event stream, which is sent in chunks or ends when the connection closes."""
    status = int((await _line(reader)).split()[1])
    headers = {}
    while (line := (await _line(reader)).strip()) != b"":
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip().lower()
    chunked = "chunked" in headers.get("transfer-encoding", "")
    rest = b""
    while True:
        if chunked:
            size = int((await _line(reader)).split(b";")[0], 16)
            part = (await reader.readexactly(size + 2))[:-2] if size else b""
        else:
            part = await reader.read(65536)
        rest += part
        if status != OK:
            if not part:
                raise RuntimeError(
                    f"the server answered {status}: {rest.decode('utf-8', 'replace')[:500]}"
                )
            continue
        *lines, rest = rest.split(b"\n")
        for event_line in lines:
            if event_line.startswith(b"data:") and event_line[5:].strip() != b"[DONE]":
                yield json.loads(event_line[5:])
        if not part:
            return


async def _line(reader: asyncio.StreamReader) -> bytes:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise asyncio.IncompleteReadError(line, None)
    return line


class _Seen:
    """Times and text of a request as the client sees them."""

    def __init__(self) -> None:
        self.start_ns, self._began = time.time_ns(), time.perf_counter()
        self._at: list[float] = []
        self._count = 0
        self._usage: Mapping[str, Any] = {}
        self._id: str | None = None
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._finish: str | None = None

    def take(self, message: Mapping[str, Any]) -> None:
        now = time.perf_counter()
        if "error" in message:
            raise RuntimeError(f"the server refused a request: {message['error']}")
        self._usage = message.get("usage") or self._usage
        self._id = self._id or message.get("id")
        for choice in message.get("choices") or []:
            self._texts.append(choice.get("text") or "")
            self._tokens += choice.get("token_ids") or []
            self._finish = choice.get("finish_reason") or self._finish
            count = self._usage.get("completion_tokens", self._count + 1)
            if count > self._count:
                self._at.append(now)
            self._count = count

    def values(self) -> dict[str, Any]:
        times, count = self._at, self._usage.get("completion_tokens", self._count)
        if not times:
            raise RuntimeError("the server sent no token")
        return {
            "id": self._id,
            "start_ns": self.start_ns,
            "prompt_tokens": self._usage.get("prompt_tokens"),
            "output_tokens": count,
            "ttft_s": times[0] - self._began,
            "tpot_s": (times[-1] - times[0]) / (count - 1) if count > 1 else None,
            "itl_s": [b - a for a, b in zip(times, times[1:])],  # noqa: B905, RUF007
            "e2e_s": times[-1] - self._began,
            "finish_reason": self._finish,
            "text": "".join(self._texts),
            "tokens": self._tokens,
        }


async def load(
    port: int,
    bodies: Sequence[Mapping[str, Any]],
    arrive: Sequence[float],
    *,
    concurrency: int,
    routes: Sequence[tuple[int, int]] = (),
) -> list[dict[str, Any]]:
    """Request many completions; with routes, each of two servers, in turn."""
    turn = itertools.cycle(routes)
    places = asyncio.Semaphore(concurrency or len(bodies))

    async def one(body: Mapping[str, Any], arrives: float) -> dict[str, Any]:
        await asyncio.sleep(arrives - time.perf_counter())
        async with places:
            waited = max(0.0, time.perf_counter() - arrives)
            answer = await (routed(next(turn), body) if routes else completion(port, body))
            return {**answer, "arrived_s": waited}

    now = time.perf_counter()
    tasks = [asyncio.ensure_future(one(body, now + start)) for body, start in zip(bodies, arrive)]  # noqa: B905
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Arrival times of requests (s, from the first): exponential gaps (Poisson), or all at once for
    rate 0.

    They are stretched to the mean rate that was asked for: a few dozen gaps by chance miss it by a
    third.
    """
    chance = random.Random(seed)  # noqa: S311 (no secret)
    gaps = [chance.expovariate(rate) if rate else 0.0 for _ in range(count - 1)]
    stretch = len(gaps) / (rate * sum(gaps)) if sum(gaps) else 0.0
    return list(itertools.accumulate((gap * stretch for gap in gaps), initial=0.0))[:count]


def achieved(
    requests: Sequence[Mapping[str, Any]], arrive: Sequence[float]
) -> dict[str, float | None]:
    """Rates of arrivals and of answers (1/s), each from the first to the last; None if there is
    no time between.
    """
    count, last = (
        len(requests),
        max(request["start_ns"] / 1e9 + request["e2e_s"] for request in requests),
    )
    first = min(request["start_ns"] / 1e9 - request["arrived_s"] for request in requests)
    rates = {
        "arrived_per_s": (count - 1, arrive[-1] - arrive[0]),
        "answered_per_s": (count, last - first),
    }
    return {
        name: number / span if count > 1 and span > 0 else None
        for name, (number, span) in rates.items()
    }


_HEALTH_EVERY_S = 0.2
_ANSWER_S = 5.0
_MOST_BYTES = 8 << 20
_WRITE_TRACE_S = 1800.0
_END_S = 20.0


def free_port(port: int) -> int:
    """Check that a port is free; for 0, choose a free port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            why = error.strerror or str(error)
            raise Refused(
                f"port {port} cannot be used: {why}", "choose another server port, or 0"
            ) from error
        return int(probe.getsockname()[1])


def arguments(options: Mapping[str, Any]) -> list[str]:
    """Options of an engine as arguments of a command:

    ``--name value``, ``--name`` or ``--no-name``.
    """
    words: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list):
            words += [f"--{flag}", *map(str, value)]
        else:
            words += [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return words


def end_of_talk(connection: socket.socket) -> None:
    """End what is read of a connection; the answer may have ended or closed it meanwhile."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class EngineServer:
    """A server on this machine, which runs with its children in a separate session."""

    def __init__(
        self,
        argv: Sequence[str],
        port: int,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.port, self.name = port, log.stem
        with log.open("wb") as out:
            self._process = subprocess.Popen(  # noqa: S603
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )

    def wait(self, timeout_s: float, others: Sequence[EngineServer] = ()) -> None:
        """Wait until the server answers, as long as it and the others run."""
        until = time.monotonic() + timeout_s
        while True:
            for server in (self, *others):
                server.check()
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.ask("GET", "/health")[0] == OK:
                    return
            if time.monotonic() > until:
                found = f"the {self.name} did not answer within {timeout_s:g} s"
                advice = "raise server.health_timeout_s, or look for the reason in"
                raise Refused(found, f"{advice} {self.name}.log")
            time.sleep(_HEALTH_EVERY_S)

    def check(self) -> None:
        """Raise RuntimeError if the server ended."""
        status = self._process.poll()
        if status is not None:
            raise RuntimeError(f"the {self.name} ended with status {status}")

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        timeout_s: float = _ANSWER_S,
    ) -> tuple[int, str]:
        """Send a request to the server, and return status and text of its answer, which come in
        time together.
        """
        until, connection = (
            time.monotonic() + timeout_s,
            http.client.HTTPConnection(HOST, self.port, timeout=timeout_s),
        )
        connection.connect()
        # the limit of a socket is for single waits, which an answer in small pieces never reaches
        end = threading.Timer(timeout_s, end_of_talk, [connection.sock])
        end.start()
        try:
            data = None if body is None else json.dumps(body)
            connection.request(
                method, path, data, {"Content-Type": "application/json"} if data else {}
            )
            answer = connection.getresponse()
            text = answer.read(_MOST_BYTES).decode("utf-8", "replace")
        finally:
            end.cancel()
            connection.close()
        if time.monotonic() > until:
            raise TimeoutError(f"the server did not answer {path} within {timeout_s:g} s")
        return answer.status, text

    def command(self, path: str, body: Mapping[str, Any] | None = None) -> str:
        """Send a command, which may take long (for example to write a trace)."""
        status, text = self.ask("POST", path, body, timeout_s=_WRITE_TRACE_S)
        if status != OK:
            raise RuntimeError(f"the server answered {path} with {status}: {text[:500]}")
        return text

    def metrics(self) -> dict[str, float]:
        """Values of the server's Prometheus metrics, by name with labels; a line that cannot be
        read is left out.
        """
        values: dict[str, float] = {}
        with contextlib.suppress(OSError, http.client.HTTPException):
            status, text = self.ask("GET", "/metrics")
            if status == OK:
                for name, value in re.findall(r"(?m)^([a-z][\w:]*(?:\{.*\})?) (\S+)$", text):
                    with contextlib.suppress(ValueError):
                        values[name] = float(value)
        return values

    def stop(self) -> None:
        """End the server: interrupt it, so that it ends its workers; if needed, kill its whole
        session.
        """
        for how, patience in ((signal.SIGINT, _END_S), (signal.SIGTERM, _ANSWER_S)):
            if self._process.poll() is None:
                self._process.send_signal(how)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(patience)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def serving(
    argv: Sequence[str], job: Mapping[str, Any], record: RunRecord, port: int
) -> Iterator[EngineServer]:
    """Start a server, wait until it answers, and stop it at the end."""
    with serving_all([("server", argv, port, {})], job, record) as (server,):
        yield server


@contextlib.contextmanager
def serving_all(
    starts: Sequence[tuple[str, Sequence[str], int, Mapping[str, str]]],
    job: Mapping[str, Any],
    record: RunRecord,
) -> Iterator[list[EngineServer]]:
    """Start servers (name, command, port, environment) at one time, wait until all answer, and stop
    them at the end; the error says which one ended.
    """
    servers: list[EngineServer] = []
    try:
        with record.stage("serve", message="starting the server"):
            for name, argv, port, environment in starts:
                log = record.out / f"{name}.log"
                servers.append(EngineServer(argv, port, log, environment))
            for server in servers:
                server.wait(job["server"]["health_timeout_s"], servers)
        yield servers
    except RuntimeError:
        time.sleep(1.0)  # an engine that fails needs a moment to write the reason, and to end
        if len(servers) > 1:
            for server in servers:
                server.check()
        raise
    finally:
        for server in servers:
            server.stop()


class Client:
    """Client that sends the requests of a run and records their times."""

    def __init__(
        self,
        job: Mapping[str, Any],
        record: RunRecord,
        server: EngineServer,
        *,
        model: str = "model",
        **more: Any,
    ) -> None:
        self.job, self.record, self.server = job, record, server
        prompts: Sequence[Any] = (
            job["prompts"] or job["prompt_token_ids"] or token_ids(job["synthetic"])
        )
        count = job["server"]["num_prompts"] or len(prompts)
        each = job["max_tokens_each"] or [job["max_tokens"]]
        rate = job["server"]["request_rate"]
        self.arrivals: list[float] = (job["load"] or {}).get("arrivals_s") or arrivals(
            count, rate, job["seed"]
        )
        self.bodies = [
            {
                "model": model,
                "prompt": prompts[k % len(prompts)],
                "max_tokens": each[k % len(each)],
                "temperature": job["temperature"],
                "ignore_eos": job["ignore_eos"],
                "stream_options": {"include_usage": True},
                **{
                    name: job[name]
                    for name, usual in (("top_p", 1.0), ("n", 1))
                    if job[name] != usual
                },
                **({"seed": job["seed"] + k} if job["temperature"] > 0 else {}),
                **more,
            }
            for k in range(count)
        ]

    def empty_cache(self) -> None:
        """Empty the prefix cache before a repeat."""

    def send(
        self, bodies: Sequence[Mapping[str, Any]], arrive: Sequence[float]
    ) -> list[dict[str, Any]]:
        """Send the requests of one repeat."""
        concurrency = self.job["server"]["max_concurrency"]
        return asyncio.run(load(self.server.port, bodies, arrive, concurrency=concurrency))

    def repeats(self, phase: str, least: int, *, first: int | None = None) -> list[dict[str, Any]]:
        """Send the requests in each repeat of a phase, and record them; returns the answers of
        the last repeat.
        """
        answers: list[dict[str, Any]] = []
        bodies, before = self.bodies[:first], self.server.metrics()
        arrive = self.arrivals if phase != "warmup" else [0.0] * len(bodies)
        for i in turns(self.job, self.record, phase, least):
            self.empty_cache()
            with self.record.stage(phase, repeat=i, total=least, message=f"{len(bodies)} requests"):
                answers = self.send(bodies, arrive)
            for k, answer in enumerate(answers):
                values = {
                    name: value for name, value in answer.items() if name not in {"text", "tokens"}
                }
                self.record.request(phase, i, k, **values)
            if phase != "warmup":
                self.record.held(
                    phase, i, achieved(answers, arrive), self.job["server"]["request_rate"]
                )
        self.record.prefix_cache(phase, before, self.server.metrics())
        return answers
