"""A server that is watched: its history, a capture when a condition holds, and limits for what
all this may take.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx
import polars as pl
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from llmprof import analyze
from llmprof.errors import ConfigError, LaunchError, LlmprofError, guarded
from llmprof.run.launch import Run, open_run, runs
from llmprof.run.launch.run.folder import FINISHED, hold_file
from llmprof.run.live.changes import CHANGED, changed
from llmprof.run.live.condition import Condition
from llmprof.run.live.counters import Scrape, between
from llmprof.run.live.page import served
from llmprof.run.live.past import FOLDER, WatchHistory
from llmprof.run.live.recording import STEPS, Told, record_window
from llmprof.run.live.server import API_KEY, Address, LostError, ServerClient, send_request
from llmprof.run.live.slowest import slowest_request, with_row
from llmprof.run.live.spans import SCHEME, received
from llmprof.text import Progress
from llmprof.trace.storage import files, typed
from llmprof.units import NS_PER_S

CAPTURES: Final = "captures"
STATE: Final = "watch.json"
METRICS: Final = "metrics.prom"
FINDINGS: Final = "findings.json"
_STORE_S: Final = 60.0
_MOST_EVENTS: Final = 200
_LEAST_FREE: Final = 256 << 20
"""Bytes that stay free on the disk of a watch: below it the oldest capture goes."""
_WEBHOOK_S: Final = 5.0
_REFUSED: Final = 300
_TRACES_S: Final = 300.0
"""Longest wait for the traces of a capture."""
SEVERITIES: Final = ("info", "low", "medium", "high")

TakeCapture = Callable[[Path], Run]


class Watch:
    """One watched server: takes its counters, decides when to capture, and keeps to its limits.

    It has no clock and no network of its own: readings and captures come from outside, so that a
    day can pass in a minute.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        capture: TakeCapture,
        *,
        when: str | None = None,
        keep: int = 5,
        disk_bytes: int = 2 << 30,
        cooldown_s: float = 600.0,
        window_s: float = 30.0,
        baseline: str | os.PathLike[str] | None = None,
        severity: str = "high",
        tell: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        if keep < 1 or disk_bytes < 1 or cooldown_s < 0 or window_s <= 0:
            found = "a limit of the watch is wrong"
            raise ConfigError(
                found,
                expected="keep=1 or more, disk= above 0, cooldown= of 0 or more, window= above 0",
            )
        if severity not in SEVERITIES:
            raise ConfigError(
                f"severity is {severity!r}", expected=f"one of {', '.join(SEVERITIES)}"
            )
        self.folder = Path(folder)
        self.condition = None if when is None else Condition(when)
        self.history = WatchHistory.open(self.folder / FOLDER)
        self.events: list[dict[str, Any]] = []
        self.captures = self.scrapes = self.lost = self.unread = 0
        self.holds = False
        self.findings: list[dict[str, Any]] = []
        self.says = ""
        self.row: dict[str, Any] = {}
        self._capture, self._tell, self._severity = capture, tell, severity
        self._keep, self._disk_bytes, self._cooldown_s, self._window_s = (
            keep,
            disk_bytes,
            cooldown_s,
            window_s,
        )
        self._baseline = None if baseline is None else open_run(baseline)
        self._readings: deque[Scrape] = deque(maxlen=1000)
        self.quiet_until_s = -1.0
        self._stored_s: float | None = None
        earlier = typed.read_or_set_aside(self.folder / STATE, typed.WatchJson) or {}
        self.events = (earlier.get("events") or [])[-_MOST_EVENTS:]
        self.captures = earlier.get("captures") or 0

    @property
    def place(self) -> Path:
        """Folder of the captures."""
        return self.folder / CAPTURES

    def quiet(self, now_s: float, since_ns: int) -> None:
        """Keep the cooldown of a watch that ended: its last capture was at ``since_ns`` (since
        the epoch).
        """
        passed_s = (time.time_ns() - since_ns) / NS_PER_S
        if 0 <= passed_s < self._cooldown_s:  # a clock that was set back says nothing
            self.quiet_until_s = now_s + self._cooldown_s - passed_s

    def take(self, scrape: Scrape | None) -> bool:
        """Take a reading (None: the server did not answer); whether a capture is due now."""
        if scrape is None:
            self.lost += 1
            self._readings.clear()
            return self._ask({}, 0.0)
        self.scrapes += 1
        self.unread += scrape.unread
        last = self._readings[-1] if self._readings else None
        if last is not None and any(
            scrape.totals.get(name, 0.0) < total for name, total in last.totals.items()
        ):
            self._readings.clear()  # the server started again, or a counter vanished
            last = None
        self._readings.append(scrape)
        while scrape.at_s - self._readings[0].at_s > self._window_s and len(self._readings) > 2:
            self._readings.popleft()
        if last is None:
            return self._ask({}, scrape.at_s)
        self.history.add(between(last, scrape))
        self.row = between(self._readings[0], scrape)
        return self._ask(self.row, scrape.at_s) and scrape.at_s >= self.quiet_until_s

    def _ask(self, row: dict[str, Any], now_s: float) -> bool:
        """Whether the condition holds; an empty row, of which nothing is known, breaks what has
        to last.
        """
        self.holds = self.condition is not None and self.condition.holds(row, now_s)
        return self.holds

    def capture(self, now_s: Callable[[], float], *, why: str) -> Path | None:
        """Make a capture, write its findings and what changed, and keep to the limits; None if
        it failed.
        """
        made: Path | None = None
        try:
            self.place.mkdir(parents=True, exist_ok=True)
            self._make_room()
            run = self._capture(self.place)
            made = run.folder.path
            self.captures += 1
            self._judge(run, why)
        except LlmprofError as error:
            full = bool(error.facts.get("full"))
            self._event("capture failed", found=error.found, advice=error.hint)
            if full:
                self._drop_oldest()
        except OSError as error:
            self._event("capture failed", found=str(files.refused(self.place, error)))
        self._drop_failed()
        self._limit()
        self.quiet_until_s = now_s() + self._cooldown_s
        self.store()
        return made if made is not None and made.is_dir() else None

    def store(self) -> None:
        """Write history and state.

        On a full disk the oldest capture goes, and the history stays.
        """
        for _ in range(1 + len(runs(self.place))):
            try:
                self.history.store()
                files.write_small(self.folder / STATE, self.state())
                files.write(self.folder / METRICS, self.exposition())
            except LlmprofError as error:
                if not error.facts.get("full") or not self._drop_oldest():
                    self._event("not stored", found=error.found)
                    return
            else:
                return

    def due_to_store(self, now_s: float) -> bool:
        """Whether a minute has passed since the last call that said so."""
        if self._stored_s is not None and now_s - self._stored_s < _STORE_S:
            return False
        self._stored_s = now_s
        return True

    def state(self) -> dict[str, Any]:
        """What the watch did so far, for ``watch.json`` and the page."""
        return {
            "when": None if self.condition is None else self.condition.text,
            "scrapes": self.scrapes,
            "lost": self.lost,
            "unread": self.unread,
            "holds": self.holds,
            "captures": self.captures,
            "kept": [run.path.name for run in runs(self.place)],
            "says": self.says,
            "events": self.events,
        }

    def exposition(self) -> str:
        """Prometheus text of the watch itself, for a scraper or a textfile collector."""
        registry = CollectorRegistry()

        def gauge(name: str, words: str, value: float, **labels: str) -> None:
            found = known.get(name)
            if found is None:
                found = known[name] = Gauge(
                    f"llmprof_watch_{name}", words, tuple(labels), registry=registry
                )
            (found.labels(**labels) if labels else found).set(value)

        known: dict[str, Gauge] = {}
        gauge("scrapes", "Readings of the server's counters", self.scrapes)
        gauge("lost", "Readings that the server did not answer", self.lost)
        gauge("unread", "Lines of the server's counters that could not be read", self.unread)
        gauge("captures", "Captures that were made", self.captures)
        gauge("condition", "Whether the condition holds", self.holds)
        for row in (one for one in self.findings if one["share"] is not None):
            words = "Share of the time of the last capture that a finding explains"
            gauge("finding_share", words, row["share"], rule=row["rule"], severity=row["severity"])
        return generate_latest(registry).decode()

    def _judge(self, run: Run, why: str) -> None:
        """Findings of a capture, and what changed since the baseline."""
        path = run.folder.path
        event: dict[str, Any] = {"folder": path.name, "why": why}
        try:
            with guarded("the findings"):
                rows = capture_findings(run)
                self.findings = finding_rows(rows.to_dicts())
            files.write_json(path / FINDINGS, rows.to_dicts())
        except LlmprofError as error:
            self.findings = []
            event["findings"] = error.found
        try:
            with guarded("what changed"):
                told = changed(run, self._baseline, history=self.history.hours(), now=self._known())
            files.write_json(path / CHANGED, told)
            self.says = event["changed"] = told["says"]
        except LlmprofError as error:
            self.says = ""
            event["changed"] = f"unknown: {error.found}"
        self._event("captured", **event)
        worst = max((SEVERITIES.index(row["severity"]) for row in self.findings), default=0)
        if self._tell is not None and self.findings and worst >= SEVERITIES.index(self._severity):
            self._tell(
                {"capture": path.name, "why": why, "changed": self.says, "findings": self.findings}
            )

    def _known(self) -> dict[str, Any] | None:
        """Counters of the last readings, if there are any."""
        return {name: value for name, value in self.row.items() if value is not None} or None

    def _event(self, what: str, **facts: Any) -> None:
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        self.events = [*self.events, {"time": now, "what": what, **facts}][-_MOST_EVENTS:]

    def _drop_failed(self) -> None:
        """Remove captures that failed: what they lacked stands in the events."""
        for run in runs(self.place):
            if run.state["state"] != FINISHED and not run.locked:
                shutil.rmtree(run.path, ignore_errors=True)

    def _drop_oldest(self, least: int = 0) -> bool:
        kept = by_age(self.place)
        if len(kept) <= least:
            return False
        shutil.rmtree(kept[0], ignore_errors=True)
        self._event("dropped", folder=kept[0].name)
        return True

    def _limit(self) -> None:
        """Keep the newest captures, as many and as large as the limits allow."""
        while len(by_age(self.place)) > self._keep:
            self._drop_oldest()
        while folder_bytes(self.folder) > self._disk_bytes and self._drop_oldest(least=1):
            pass
        newest = by_age(self.place)[-1:]
        if newest and folder_bytes(self.folder) > self._disk_bytes:
            shutil.rmtree(newest[0] / "traces", ignore_errors=True)
            self._event(
                "traces dropped",
                folder=newest[0].name,
                found="one capture is larger than the limit",
            )

    def _make_room(self) -> None:
        """Before a capture: drop old ones while the disk is nearly full."""
        while shutil.disk_usage(self.place).free < _LEAST_FREE:
            if not self._drop_oldest():
                raise LaunchError(
                    "the disk is nearly full, and no capture is left to drop",
                    hint="free disk space",
                )


def finding_rows(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What the page, the webhook and Prometheus get of findings."""
    names = {"rule": "rule", "severity": "severity", "share": "recorded_share", "title": "title"}
    return [{name: row.get(key) for name, key in names.items()} for row in found]


def capture_findings(run: Run) -> pl.DataFrame:
    """Findings of a capture; with its requests, where the server told them, and the slowest of
    these explained.
    """
    if run.requests.is_empty():
        return analyze.findings(run.trace)
    try:
        joined = analyze.requests(run)
    except LlmprofError:
        # none of them began in the window, or another clock: the server's own times still count
        joined = None
    return with_row(
        analyze.findings(run.trace, requests=joined), slowest_request(run.trace, run.requests)
    )


def by_age(place: Path) -> list[Path]:
    """Captures, the oldest first."""
    return sorted(
        (run.path for run in runs(place)), key=lambda path: (path.stat().st_mtime_ns, path.name)
    )


def folder_bytes(folder: Path) -> int:
    """Bytes of the files below a folder."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def watch(
    url: str,
    when: str | None = None,
    *,
    keep: int = 5,
    disk_bytes: int = 2 << 30,
    cooldown_s: float = 600.0,
    every_s: float = 5.0,
    window_s: float = 30.0,
    seconds: float = 3.0,
    steps: int | None = STEPS,
    folder: str | os.PathLike[str] | None = None,
    fetch: Sequence[str] | None = None,
    ranks: int | None = None,
    requests: str | os.PathLike[str] | None = None,
    baseline: str | os.PathLike[str] | None = None,
    webhook: str | None = None,
    severity: str = "high",
    output: str | os.PathLike[str] | None = None,
    for_s: float | None = None,
    port: int | None = None,
    say: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Watch a server: keep a history of its counters, and record a window when a condition holds.

    Parameters
    ----------
    url : str
        Address of the server; it needs Prometheus metrics (vLLM, SGLang with ``--enable-metrics``,
        text-generation-inference, TensorRT-LLM).
    when : str, optional
        Condition, such as ``ttft_p99 > 500ms for 30s and waiting > 4``; without it only the history
        is kept. Names are columns of :func:`llmprof.run.live.history`; times need a unit. Quantiles are
        those of the last ``window_s``.
    keep : int
        Most captures that are kept, the newest.
    disk_bytes : int
        Most bytes of history and captures together.
    cooldown_s : float
        Seconds after a capture in which none is made.
    every_s : float
        Seconds between two readings of the counters.
    window_s : float
        Seconds over which the condition looks at rates and quantiles.
    seconds, steps, folder, fetch, ranks, requests
        Of the captures, as for :func:`llmprof.record`.
    baseline : path, optional
        Folder of an earlier capture with which each is compared; by default the best hour of the
        history.
    webhook : str, optional
        Address to which the findings of a capture are sent as JSON, if one is of ``severity`` or
        above. It is stored nowhere.
    severity : {"info", "low", "medium", "high"}
        Least severity for the webhook.
    output : path, optional
        Folder of the watch; ``results/watch_HOST-PORT`` by default. The next watch of the folder
        continues it.
    for_s : float, optional
        Seconds after which the watch ends; it ends with Ctrl-C if not given.
    port : int, optional
        Port on 127.0.0.1 at which a page shows the watch (0: a free one); no page if not given.
    say : callable, optional
        Called with the folder or the address of the page at the beginning, and with a sentence
        about each capture.
    progress : callable, optional
        As for :func:`llmprof.record`.

    Returns
    -------
    pathlib.Path
        Folder of the watch: ``history/``, ``captures/`` with ``findings.json`` and ``changed.json``
        in each, ``watch.json``, and ``metrics.prom`` (Prometheus text of the watch itself).

    Raises
    ------
    ConfigError
        The condition, the address or a limit cannot be used.
    LaunchError
        The server has no metrics at the first reading, the port is taken, or another watch works in
        the folder.

    Examples
    --------
    >>> llmprof.watch("http://127.0.0.1:8000", "ttft_p99 > 500ms for 30s", for_s=3600)  # doctest: +SKIP
    """  # noqa: E501
    if every_s <= 0 or (for_s is not None and for_s < 0):
        raise ConfigError(
            "every_s and for_s are times", expected="every_s= above 0, for_s= of 0 or more"
        )
    address = Address.of(url, token=os.environ.get(API_KEY))
    home = Path(output) if output is not None else Path("results") / f"watch_{address.name}"

    spans = contextlib.ExitStack()
    told: Told | None = requests

    def capture(place: Path) -> Run:
        return record_window(
            url,
            seconds=seconds,
            steps=steps,
            folder=folder,
            fetch=fetch,
            ranks=ranks,
            requests=told,
            results_dir=place,
            timeout_s=_TRACES_S,
            say=None,
            progress=progress,
        )

    def tell(message: dict[str, Any]) -> None:
        try:
            status = send_request("POST", str(webhook), message, timeout_s=_WEBHOOK_S).status
            if status >= _REFUSED:
                watched._event("webhook failed", found=f"status {status}")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            watched._event("webhook failed", found=type(error).__name__)

    watched = Watch(
        home,
        capture,
        when=when,
        keep=keep,
        disk_bytes=disk_bytes,
        cooldown_s=cooldown_s,
        window_s=window_s,
        baseline=baseline,
        severity=severity,
        tell=tell if webhook else None,
    )
    server = ServerClient(address)
    with alone(home), spans:
        server.metrics()
        if isinstance(requests, str) and requests.startswith(SCHEME):
            told = spans.enter_context(received(requests))
        captures = by_age(watched.place)
        if captures:
            watched.quiet(time.monotonic(), captures[-1].stat().st_mtime_ns)
        page = contextlib.nullcontext("") if port is None else served(watched, port)
        with page as shown:
            if say is not None:
                say(f"watching, into {home}; Ctrl-C ends it{f'. Page: {shown}' if shown else ''}")
            _loop(
                watched, server, every_s, None if for_s is None else time.monotonic() + for_s, say
            )
    return home


def _loop(
    watched: Watch,
    server: ServerClient,
    every_s: float,
    until_s: float | None,
    say: Callable[[str], None] | None,
) -> None:
    """Read, decide and capture until the time is over, or an interrupt ends it."""
    try:
        while until_s is None or time.monotonic() < until_s:
            began = time.monotonic()
            try:
                due = watched.take(server.scrape())
            except LostError:
                due = watched.take(None)
            if due and watched.condition is not None:
                made = watched.capture(time.monotonic, why=watched.condition.text)
                if say is not None:
                    last = watched.events[-1]
                    told = (
                        watched.says if made is not None else str(last.get("found") or last["what"])
                    )
                    say(f"{made if made is not None else 'no capture'}: {told}")
            elif watched.due_to_store(time.monotonic()):
                watched.store()
            left = began + every_s - time.monotonic()
            if until_s is not None:
                left = min(left, until_s - time.monotonic())
            time.sleep(max(0.0, left))
    finally:
        watched.store()


@contextlib.contextmanager
def alone(home: Path) -> Any:
    """Lock of the folder of a watch."""
    busy = LaunchError(
        f"another watch works in {home}", hint="end it, or choose another folder with output="
    )
    with hold_file(files.made(home) / ".lock", lambda: busy):
        yield
