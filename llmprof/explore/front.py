"""First page of ``explore.open``: the run and its findings, each with a button that shows the place in the trace."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from html import escape
from typing import Any, Final

import ipywidgets  # type: ignore[import-untyped]
import polars as pl

from llmprof import analyze
from llmprof.analyze.findings.facts import facts_in_words, run_facts
from llmprof.errors import LlmprofError
from llmprof.text import plain
from llmprof.trace import Trace
from llmprof.units import format_ns, format_share

WHERE: Final = {"collectives": "all_reduce", "attribute": "kernels", "overlap": "overlap", "layers": "layers"}
"""Tab that shows the evidence of a finding, by its evidence; the timeline for all others."""

PROFILE_NOTE: Final = (
    "Nsight Compute replays each launch alone and does not record when it ran: the table of kernels has them one after "
    "the other, in their order."
)

_ONE_KERNEL: Final = re.compile(r"kernel_name = '((?:[^']|'')*)'")
_ONE_STAGE: Final = re.compile(r"stage = '(\w+)'")
_ONE_CATEGORY: Final = re.compile(r"category = '(\w+)'")
_ONE_KIND: Final = re.compile(r"kind = '(\w+)'")

_STYLE: Final = """<style>
.llmprof-front{font:13px/1.45 "Liberation Sans",Arial,Helvetica,sans-serif;white-space:normal}
.llmprof-front{color:var(--jp-ui-font-color1,inherit)}
.llmprof-front .facts{display:flex;flex-wrap:wrap;gap:4px 28px;margin:6px 0 4px}
.llmprof-front .facts span,.llmprof-front .facts b{display:block;overflow-wrap:anywhere}
.llmprof-front .facts span{font-size:12px}
.llmprof-front p{margin:2px 0;max-width:105ch;overflow-wrap:anywhere}
.llmprof-front .figure{font-size:17px;font-weight:600;font-variant-numeric:tabular-nums}
.llmprof-front .bar{height:8px;border-radius:4px;background:rgba(128,128,128,.25);max-width:460px;margin:3px 0}
.llmprof-front .bar i{display:block;height:8px;border-radius:4px;background:#2f7fb5}
.llmprof-front .high i{background:#c9452f}.llmprof-front .medium i{background:#c77700}
.llmprof-front .info i{background:#7b8794}
.llmprof-front code{font-size:12px;background:rgba(128,128,128,.16);padding:0 4px;border-radius:3px;color:inherit}
</style>"""


class Front(ipywidgets.VBox):  # type: ignore[misc]
    """Facts about the run, and its findings; made by ``explore.open``."""

    def __init__(
        self, trace: Trace, show: Callable[[Mapping[str, Any]], None], findings: pl.DataFrame | None = None
    ) -> None:
        super().__init__()
        self._show = show
        self.rows: list[dict[str, Any]] = []
        self.buttons: list[Any] = []
        try:
            self.rows = (analyze.findings(trace) if findings is None else findings).to_dicts()
            note = "" if self.rows else "No rule found anything worth saying in this recording."
        except LlmprofError as error:
            note = str(error)
        facts = run_facts(trace)
        if findings is not None:  # hardware metrics have neither steps nor an engine
            facts = facts.filter(pl.col("what") == "device")
            note = f"{note} {PROFILE_NOTE}".strip()
        head = ipywidgets.HTML(_head(trace.name, facts, self.rows, note))
        self.children = [head, *(self._line(row) for row in self.rows)]
        self.add_class("llmprof-findings")

    def _line(self, row: Mapping[str, Any]) -> Any:
        button = ipywidgets.Button(
            description="Show me",
            tooltip=f"Open the {tab_of(row)} where this is worst",
            layout=ipywidgets.Layout(width="96px", min_width="96px", margin="4px 12px 0 4px"),
        )
        button.on_click(lambda _button: self._show(row))
        self.buttons.append(button)
        words = ipywidgets.HTML(finding_html(row), layout=ipywidgets.Layout(flex="1 1 auto", min_width="0"))
        return ipywidgets.HBox([button, words], layout=ipywidgets.Layout(margin="0 0 10px 0"))


def tab_of(row: Mapping[str, Any]) -> str:
    """Name of the tab that shows the evidence of a finding."""
    return WHERE.get(str(row["evidence"]), "timeline")


def filters_of(row: Mapping[str, Any]) -> dict[str, str]:
    """Filters that follow from the condition of a finding: a stage, a category or a kind of collective."""
    patterns = {"stage": _ONE_STAGE, "category": _ONE_CATEGORY, "kind": _ONE_KIND}
    condition = str(row["where"])
    return {name: match[1] for name, pattern in patterns.items() if (match := pattern.fullmatch(condition))}


def kernel_of(condition: str) -> str | None:
    """Name of the kernel in a condition; None for other conditions.

    >>> kernel_of("kernel_name = 'f<int>'")
    'f<int>'
    """
    match = _ONE_KERNEL.fullmatch(condition)
    return None if match is None else match[1].replace("''", "'")


def rows_of(trace: Trace, row: Mapping[str, Any]) -> pl.DataFrame:
    """Evidence of a finding: the rows of its analysis that fulfil its condition."""
    frame: pl.DataFrame = getattr(analyze, str(row["evidence"]))(trace)
    return frame.filter(pl.sql_expr(str(row["where"])))


def _text(value: object) -> str:
    return escape(plain(str(value)))


def _head(name: str | None, facts: pl.DataFrame, rows: list[dict[str, Any]], note: str) -> str:
    pairs = "".join(
        f"<div><span>{_text(name)}</span><b>{_text(value)}</b></div>" for name, value in facts_in_words(facts)
    )
    times = {str(row["denominator"]) for row in rows}
    denominator = f"<p>All shares are of one time, {_text(times.pop())}.</p>" if len(times) == 1 else ""
    title = _text(name or "What takes the time")
    more = f"<p>{_text(note)}</p>" if note else ""
    facts_html = f'<div class="facts">{pairs}</div>'
    return f'{_STYLE}<div class="llmprof-front"><h3>{title}</h3>{facts_html}{denominator}{more}</div>'


def finding_html(row: Mapping[str, Any]) -> str:
    """A finding as HTML: its time, its share as a bar, the sentence, its figures and what to try; names are escaped."""
    share = float(row["share_of_time"])
    unit = {"ns a step": "a step", "ns a profile": "the profile"}.get(str(row["unit"]), "a rank")
    width = f"{100 * min(1.0, max(0.005, share)):.1f}%"
    gain = f"<p>Gain: {_text(row['prediction'])}</p>" if row.get("prediction") else ""
    return (
        f'<div class="llmprof-front"><span class="figure">{format_ns(row["figure"])}</span> of {unit}, '
        f"{format_share(share)}"
        f'<div class="bar {_text(row["severity"])}"><i style="width:{width}"></i></div>'
        f"<p><b>{_text(row['title'])}</b></p><p>{_text(row['detail'])}</p>"
        f"<p>Try: {_text(row['suggestion'])}</p>{gain}</div>"
    )
