"""Explorer of requests: the slowest requests of a run, what each waited for, and why its slowest
step was slow.
"""

import contextlib
from collections.abc import Mapping
from typing import Any, Final

import polars as pl
import traitlets

from llmprof import analyze, charts
from llmprof.analyze.requests.requests import PARTS, WORDS, AnyRun, run_of, slowest
from llmprof.charts.base import theme
from llmprof.errors import AnalysisError, LlmprofError
from llmprof.explore.base.messages import Fact, FrameRow, MessageRecord
from llmprof.explore.base.widget import (
    Explorer,
    Reply,
    Trait,
    link,
    optional,
    request_handler,
    sorted_by,
)
from llmprof.explore.timeline.explorer import Timeline
from llmprof.units import format_ns, format_share

COLOURS: Final = {
    "queue_prefill_ns": theme.COMMUNICATION,
    "queue_decode_ns": theme.WAIT,
    "queue_other_ns": theme.REST,
    "prefill_ns": theme.PHASES["prefill"],
    "prefill_other_ns": "#E2A36F",
    "decode_ns": theme.PHASES["decode"],
    "decode_prefill_ns": "#B5485D",
    "left_out_ns": "#8B6F47",
    "between_ns": "#9FB3C8",
    "delivery_ns": "#CC79A7",
}
"""Colour of each part of a latency."""

SORTABLE: Final = (
    *(
        "request",
        "start_ns",
        "prompt_tokens",
        "output_tokens",
        "ttft_ns",
        "e2e_ns",
        "max_gap_ns",
        "preemptions",
    ),
    *("ratio", "reason"),
)
_FINDINGS: Final = 4
_SENT: Final = (*SORTABLE, "id", "slowest_step", *PARTS)


class LatencyPart(MessageRecord):
    """A part of the latency: its column, its description, and its color."""

    name: str
    words: str
    colour: str


class Reason(MessageRecord):
    """A finding about a step."""

    severity: str
    title: str


class RequestsExplorer(Explorer, room="requests"):
    """Widget of :func:`requests`."""

    sort = traitlets.Unicode("-ttft_ns").tag(sync=True)
    """Column that the table is sorted by; with ``-`` the largest value comes first."""

    picked: Trait = optional(traitlets.Int)
    """Number of the request that is picked."""

    def __init__(self, run: AnyRun, **traits: Any) -> None:
        self.run = run_of(run)
        self.frame = analyze.requests(run)
        """Rows of ``analyze.requests(run)``."""
        self._spans: pl.DataFrame | None = None
        super().__init__(self.run.trace, **traits)

    _known_column = sorted_by(SORTABLE)

    @traitlets.validate("picked")
    def _known_request(self, proposal: Mapping[str, Any]) -> int | None:
        number: int | None = proposal["value"]
        if number is not None and self.frame.filter(request=number).is_empty():
            raise traitlets.TraitError(f"there is no request {number}; expected one of .frame")
        return number

    @traitlets.observe("picked")
    def _followed(self, change: Mapping[str, Any]) -> None:
        """Show the time of the picked request in linked explorers."""
        if change["new"] is not None:
            start, end = self._row(change["new"]).select("start_ns", "end_ns").row(0)
            self.window = [float(start), float(end)]

    @property
    def spans(self) -> pl.DataFrame:
        """Rows of ``analyze.requests(run, by="span")``: the spans of each request over time."""
        if self._spans is None:
            self._spans = analyze.requests(self.run, by="span")
        return self._spans

    @property
    def table(self) -> pl.DataFrame:
        """The rows of the table, in its order."""
        return self._sorted(self.sort)

    @property
    def selected(self) -> pl.DataFrame:
        """Rows of ``spans`` of the picked request; no rows if none is picked."""
        return self.spans.clear() if self.picked is None else self.spans.filter(request=self.picked)

    def timeline(self, **traits: Any) -> Timeline:
        """Timeline of the run at the picked request, linked to this table: it follows the picked
        request.
        """
        if self.window is not None:
            traits = {"window": list(self.window)} | traits
        made = Timeline(self.trace, run=self.run, **traits)
        link(self, made)
        return made

    def picture(self) -> bytes | None:
        """PNG image of the requests with the latest first token."""
        return charts.to_png_bytes(charts.requests(self.frame), scale=1.25, theme="any")

    def _row(self, number: int) -> pl.DataFrame:
        row = self.frame.filter(request=number)
        if row.is_empty():
            raise AnalysisError(
                f"there is no request {number}", expected="a number of the column request"
            )
        return row

    def _sorted(self, sort: str) -> pl.DataFrame:
        if (column := sort.lstrip("-")) not in SORTABLE:
            return self.frame
        return self.frame.sort(
            column, descending=sort.startswith("-"), nulls_last=True, maintain_order=True
        )

    def _block(self, sort: str, offset: int, count: int) -> list[FrameRow]:
        return (
            self._sorted(sort)
            .slice(max(0, offset), max(0, min(count, 500)))
            .select(_SENT)
            .to_dicts()
        )

    @request_handler(
        rows=list[FrameRow], total=int, longest=int, parts=list[LatencyPart], title=str
    )
    def _on_table(self, sort: str, count: int) -> Reply:
        parts = [name for name in PARTS if self.frame[name].max() not in (None, 0)]
        longest = self.frame["e2e_ns"].max()
        return {
            "rows": self._block(sort, 0, count),
            "total": self.frame.height,
            "longest": int(longest) if isinstance(longest, int) else 0,
            "parts": [
                {"name": name, "words": WORDS[name], "colour": COLOURS[name]} for name in parts
            ],
            "title": slowest(self.frame)["title"] if self.frame.height else "",
        }, []

    @request_handler(rows=list[FrameRow], offset=int)
    def _on_rows(self, sort: str, offset: int, count: int) -> Reply:
        return {"rows": self._block(sort, offset, count), "offset": offset}, []

    @request_handler()
    def _on_pick(self, sort: str, row: int) -> None:
        if 0 <= row < self.frame.height:
            self.picked = int(self._sorted(sort)["request"][row])

    @request_handler(
        busy="looking at its slowest step",
        facts=list[Fact],
        parts=list[Fact],
        step=int | None,
        reasons=list[Reason],
    )
    def _on_details(self, request: int) -> Reply:
        row = self._row(request).row(0, named=True)
        step = row["slowest_step"]
        facts = [
            ("first token", format_ns(row["ttft_ns"])),
            ("end to end", format_ns(row["e2e_ns"])),
            (
                "longest from token to token",
                "" if row["max_gap_ns"] is None else format_ns(row["max_gap_ns"]),
            ),
            ("tokens", f"{row['prompt_tokens']:,} in, {row['output_tokens']:,} out"),
            ("steps", f"{row['steps']} ({row['prefill_steps']} with its prompt)"),
            ("waited behind the prefill of", ", ".join(map(str, row["behind"]))),
            ("preempted", f"{row['preemptions']} times" if row["preemptions"] else ""),
            (
                "slowest step",
                "" if step is None else f"{step}, {row['ratio']:.1f} times its usual time",
            ),
            ("identifier", row["id"] or ""),
        ]
        parts = sorted(
            ((name, row[name]) for name in PARTS if row[name]), key=lambda part: -part[1]
        )
        return {
            "facts": [fact for fact in facts if fact[1]],
            "parts": [
                (WORDS[name], f"{format_ns(ns)} ({format_share(ns / row['e2e_ns'])})")
                for name, ns in parts
            ],
            "step": step,
            "reasons": self._reasons(step),
        }, []

    def _reasons(self, step: int | None) -> list[dict[str, str]]:
        """Findings about a step; empty if the trace does not hold enough for findings."""
        with contextlib.suppress(LlmprofError):
            if step is not None:
                return (
                    analyze.findings(self.trace, step=step)
                    .head(_FINDINGS)
                    .select("severity", "title")
                    .to_dicts()
                )
        return []


def requests(run: AnyRun, **traits: Any) -> RequestsExplorer:
    """Requests of a run, the slowest first: a bar of what each waited for, and why its slowest step
    was slow.

    Click on a column's head to sort: time to the first token, end to end, the longest gap between
    two tokens. A click on a row picks the request: its figures, the parts of its latency, and the
    findings about the step that was slowest for it. Explorers that are linked (``w.timeline()``,
    ``explore.open(trace, run=run)``) show its time.

    Parameters
    ----------
    run : Run
        A profiled run whose engine noted its steps (``launch.open_run``), or a trace and the rows
        of ``llmprof.read_requests``.
    **traits
        Initial values of ``sort, picked`` and ``theme``.

    Returns
    -------
    RequestsExplorer
        ``.selected``: spans of the picked request over time; ``.table``: the rows in their order;
        ``.timeline()``: the timeline at the picked request.

    Raises
    ------
    NotCapturedError
        The run has no trace, no profiled requests, or its engine noted no steps.
    AnalysisError
        The clocks of requests and trace disagree by more than 1 ms.
    """
    return RequestsExplorer(run, **traits)
