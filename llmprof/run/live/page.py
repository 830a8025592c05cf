"""Page of a watch on this machine: its history as lines, its captures, what changed and the last
findings.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

import jinja2
import polars as pl
from markupsafe import Markup

from llmprof.run.live.serving import Handler, serve_requests

if TYPE_CHECKING:
    from llmprof.run.live.watching import Watch

HOST: Final = "127.0.0.1"
_WIDTH, _HEIGHT = 640, 80
_ROWS: Final = 720
_EVERY_S: Final = 10
LINES: Final = {
    "ttft_p99": "first token, 99 % (s)",
    "tpot_mean": "further token, mean (s)",
    "running": "requests that run",
    "waiting": "requests that wait",
    "output_tokens_per_s": "output tokens a second",
}
_TEMPLATE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
{% if every_s %}<meta http-equiv="refresh" content="{{ every_s }}">{% endif %}
<title>llmprof watch</title><style>{{ css }}
polyline { fill: none; stroke: var(--link); stroke-width: 1.5; } svg { display: block; width: 100%; height: 80px; }
.pair { margin: 0 0 16px; } .pair h2 { font-size: 16px; margin: 0; }</style></head>
<body><header><h1>llmprof watch</h1>
<p class="made">{{ state.scrapes }} readings, {{ state.lost }} without an answer
{%- if state.get("unread") %}, {{ state.unread }} lines that could not be read{% endif %}.
Condition: {{ state.when or "none" }}
{%- if state.when %} ({{ "holds" if state.holds else "does not hold" }}){% endif %}.</p></header><main>
{% if state.says %}<p class="card"><strong>{{ state.says }}</strong></p>{% endif %}
<div class="pair">{% for line in lines %}<div class="card"><h2>{{ line.words }}: {{ line.last }}</h2>
<p class="of">{{ "always " ~ line.low if line.low == line.high else line.low ~ " to " ~ line.high }}</p>
<svg role="img" aria-label="{{ line.words }}, from {{ line.low }} to {{ line.high }}" viewBox="0 0 640 80"
preserveAspectRatio="none"><polyline points="{{ line.points }}" vector-effect="non-scaling-stroke"/></svg></div>
{% endfor %}</div>
{% if findings %}<div class="card"><h3>Findings of the last capture</h3><div class="scroll"><table class="data">
<tr><th>severity</th><th class="num">share</th><th>finding</th></tr>{% for row in findings %}
<tr><td>{{ row.severity }}</td><td class="num">
{%- if row.share is not none %}{{ "%.1f"|format(100 * row.share) }} %{% endif %}</td><td>{{ row.title }}</td></tr>
{% endfor %}</table></div></div>{% endif %}
{% if state.events %}<div class="card"><h3>Events</h3><div class="scroll"><table class="data">
<tr><th>time</th><th>event</th><th>capture</th><th>what changed</th></tr>{% for event in state.events|reverse %}
<tr><td>{{ event.time|replace("T", " ") }}</td><td>{{ event.what }}</td><td>{{ event.get("folder") or "" }}</td>
<td>{{ event.get("changed") or event.get("found") or "" }}</td></tr>{% endfor %}</table></div></div>{% endif %}
</main></body></html>"""  # noqa: E501


def watch_page(
    recent: pl.DataFrame,
    state: Mapping[str, Any],
    findings: Sequence[Mapping[str, Any]],
    *,
    every_s: int,
) -> str:
    """The page of a watch, from the readings of its history; it loads itself again after some
    seconds (0: never).
    """
    rows = recent.tail(_ROWS)
    lines = [
        line for name, words in LINES.items() if (line := _line(rows[name], words)) is not None
    ]
    page = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(
        _TEMPLATE
    )
    css = Markup(files("llmprof.report").joinpath("page.css").read_text("utf-8"))  # noqa: S704 - our own file
    return page.render(css=css, state=state, lines=lines, findings=findings, every_s=every_s)


def _line(values: pl.Series, words: str) -> dict[str, Any] | None:
    """Points of a line; readings without the value leave no point."""
    known = [(place, value) for place, value in enumerate(values.to_list()) if value is not None]
    if len(known) < 2:
        return None
    low, high = min(value for _, value in known), max(value for _, value in known)
    span, last = high - low or 1.0, known[-1][0] or 1
    low_y = _HEIGHT - 2 if high > low else _HEIGHT / 2
    points = [
        f"{_WIDTH * at / last:.1f},{low_y - (_HEIGHT - 4) * (v - low) / span:.1f}"
        for at, v in known
    ]
    numbers = {"last": known[-1][1], "low": low, "high": high}
    return {"words": words, "points": " ".join(points)} | {
        name: f"{value:.4g}" for name, value in numbers.items()
    }


@contextmanager
def served(watch: Watch, port: int = 0) -> Iterator[str]:
    """Serve the page, and the watch's own metrics at ``/metrics``, to who knows the token; yields
    the address.

    Raises
    ------
    LaunchError
        The port is taken.
    """
    token = secrets.token_urlsafe(24)

    class Page(Handler):
        """Answers to requests that have the token."""

        def do_GET(self) -> None:  # noqa: N802 (the name that it has there)
            """Send the page or the metrics."""
            given = parse_qs(self.place.query).get("token", [""])[0]
            if not hmac.compare_digest(given.encode(), token.encode()):
                self.answer(403)
            elif self.place.path == "/":
                text = watch_page(
                    watch.history.frames["recent"], watch.state(), watch.findings, every_s=_EVERY_S
                )
                self.answer(200, text.encode(), "text/html; charset=utf-8")
            elif self.place.path == "/metrics":
                self.answer(200, watch.exposition().encode(), "text/plain; charset=utf-8")
            else:
                self.answer(404)

    with serve_requests(HOST, port, Page) as number:
        yield f"http://{HOST}:{number}/?token={token}"
