"""All explorers of a trace in tabs: ``explore.open``."""

import asyncio
import base64
import contextlib
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final, Self

import ipywidgets  # type: ignore[import-untyped]
import polars as pl

from llmprof import analyze, explore
from llmprof.analyze import catalog
from llmprof.analyze.idle.host import host_spans
from llmprof.analyze.kernels import kernels_within
from llmprof.analyze.requests.requests import AnyRun
from llmprof.charts.bars import step_bars
from llmprof.errors import LlmprofError, listed
from llmprof.explore.base.widget import PICKS, Explorer, show_kept, smaller
from llmprof.explore.header.explorer import Header
from llmprof.explore.trying import PageCall, tryings
from llmprof.findings.card import (
    chain_findings,
    finding_row,
    first_sentence,
    headline_number,
    so,
    times_in_words,
)
from llmprof.findings.facts import facts_in_words, run_facts
from llmprof.findings.frame import Findings
from llmprof.findings.hardware import launches_in_a_row
from llmprof.replay.graph import graph
from llmprof.run.launch import Run
from llmprof.text import PART_WORDS, plain, sentence, unbroken
from llmprof.trace import Trace
from llmprof.trace.metrics.data import Metrics
from llmprof.trace.schema import END

WHERE: Final = {
    "collectives": "collectives",
    "events": "kernels",
    "operators": "kernels",
    "opportunities": "kernels",
    "overlap": "overlap",
    "layers": "layers",
}
"""Tab that shows the evidence of a finding, by its evidence; the timeline for all others."""

PROFILE_NOTE: Final = (
    "Nsight Compute replays each launch alone and does not record when it ran: the table of kernels"
    " has them one after the other, in their order."
)

_ONE_KERNEL: Final = re.compile(r"kernel_name = '((?:[^']|'')*)'")

_FRONT: Final = """<style>
.llmprof-front{font:13px/1.45 "Liberation Sans",Arial,Helvetica,sans-serif;white-space:normal}
.llmprof-front{color:var(--jp-ui-font-color1,inherit)}
.llmprof-front .facts{display:flex;flex-wrap:wrap;gap:4px 28px;margin:6px 0 4px}
.llmprof-front .facts span,.llmprof-front .facts b{display:block;overflow-wrap:anywhere}
.llmprof-front .facts span{font-size:12px}
.llmprof-front p{margin:2px 0;max-width:105ch;overflow-wrap:anywhere}
.llmprof-front .figure{font-size:17px;font-weight:600;font-variant-numeric:tabular-nums}
.llmprof-front .title{font-size:15px;font-weight:600}
.llmprof-front details{font-size:12px;max-width:105ch}.llmprof-front summary{cursor:pointer}
.llmprof-front h4{margin:8px 0 2px;font-size:14px}
.llmprof-front.high .figure{border-bottom:3px solid #c9452f}
.llmprof-front.medium .figure{border-bottom:3px solid #c77700}
.llmprof-front code{font-size:12px;background:rgba(128,128,128,.16);padding:0 4px;border-radius:3px;color:inherit}
</style>"""  # noqa: E501


class Front(ipywidgets.VBox):  # type: ignore[misc]
    """Facts about the run, and its findings; made by ``explore.open``."""

    def __init__(
        self,
        trace: Trace,
        show: Callable[[Mapping[str, Any]], None],
        findings: pl.DataFrame | None = None,
        *,
        run: Run | None = None,
        call: PageCall = lambda function: function(),
    ) -> None:
        super().__init__()
        self._show = show
        of_metrics, note = findings is not None, ""
        try:
            found = Findings(findings) if findings is not None else trace.findings()
        except LlmprofError as error:
            found, note = Findings(pl.DataFrame()), str(error)
        self.rows: list[dict[str, Any]] = list(found)
        if not self.rows:
            note = note or "No rule found anything worth saying in this recording."
        facts = run_facts(trace, recorded=False)
        if of_metrics:  # hardware metrics have neither steps nor an engine
            facts = facts.filter(what="device")
            note = f"{note} {PROFILE_NOTE}".strip()
        self._buttons = {row["order"]: self._button(row) for row in self.rows}
        self.tryings = tryings(run, found.frame, call) if self.rows else {}
        causes, effects, known = chain_findings(found.frame)
        lead = next(iter([*causes, *known]), {})
        picture = step_bars(found.parts, lead)
        lines = []
        for cause in causes:
            lines.append(self._line(cause, finding_html(cause)))
            lines += [
                self._line(row, fact_html(row | {"title": so(row)}))
                for row in effects.get(cause["order"], ())
            ]
            if cause is lead and picture:
                lines.append(ipywidgets.HTML(f'<div class="llmprof-front">{picture}</div>'))
        if known:
            lines.append(ipywidgets.HTML(f"<div class='llmprof-front'><h4>{FACTS}</h4></div>"))
            lines += [self._line(row, fact_html(row)) for row in known]
        notes = [*times_in_words(found.frame, found.time_went), note]
        lines.append(ipywidgets.HTML(_facts(facts, notes)))
        self.children = [ipywidgets.HTML(_FRONT), *lines]
        self.add_class("llmprof-findings")

    @property
    def buttons(self) -> list[Any]:
        """Buttons that show the findings, in the order of the findings."""
        return list(self._buttons.values())

    def _button(self, row: Mapping[str, Any]) -> Any:
        button = ipywidgets.Button(
            description="Show me",
            tooltip=f"Open the {_tab_of(row)} where this is worst",
            layout=ipywidgets.Layout(width="96px", min_width="96px", margin="4px 12px 0 4px"),
        )
        button.on_click(lambda _button: self._show(row))
        return button

    def _line(self, row: Mapping[str, Any], html: str) -> Any:
        wide = ipywidgets.Layout(flex="1 1 auto", min_width="0")
        words = ipywidgets.HTML(html, layout=wide)
        if (trying := self.tryings.get(row["order"])) is not None:
            words = ipywidgets.VBox([words, trying], layout=wide)
        return ipywidgets.HBox(
            [self._buttons[row["order"]], words], layout=ipywidgets.Layout(margin="0 0 10px 0")
        )


FACTS: Final = "Facts: what the time is made of, none of it a loss"


def _tab_of(row: Mapping[str, Any]) -> str:
    """Name of the tab that shows the evidence of a finding."""
    return WHERE.get(str(row["evidence"]), "timeline")


def filters_of(row: Mapping[str, Any]) -> dict[str, str]:
    """Filters that follow from the condition of a finding: a stage, a category or a kind of
    collective.
    """
    match = re.fullmatch(r"(stage|category|kind) = '(\w+)'", str(row["where"]))
    return {match[1]: match[2]} if match else {}


def _kernel_of(condition: str) -> str | None:
    """Name of the kernel in a condition; None for other conditions."""
    match = _ONE_KERNEL.fullmatch(condition)
    return None if match is None else match[1].replace("''", "'")


def _evidence_of(trace: Trace, row: Mapping[str, Any]) -> tuple[tuple[int, int] | None, int | None]:
    """Window that shows a finding, and the thread of the host if it is about the host.

    Idle time holds no event of the device: the window has as much on both sides, or what the
    launching thread did.
    """
    if row["start_ns"] is None:
        return None, None
    rank, start, end = row["rank"], row["start_ns"], row["end_ns"]
    if row["evidence"] != "idle" and row["rule"] != "idle_at_the_ends":
        return (start, end), None
    if row["rule"] == "idle_at_the_ends":
        inside = host_spans(trace).filter(
            pl.col("rank") == rank, pl.col("start_ns") < end, pl.col("thread") >= 0
        )
        threads = inside.filter(start < END)["thread"].mode().sort()
        if threads.len():
            return (start, end), int(threads[0])
    launch = None
    if row["rule"] not in DEVICE_IDLE and trace.has("runtime"):
        launch = _launch_after(trace, rank, start, end)
    if launch is not None:
        return (start, max(end, launch[1])), launch[0]
    return (2 * start - end, 2 * end - start), None


def _step_around(trace: Trace, row: Mapping[str, Any]) -> tuple[int, int] | None:
    """The step in which a finding of steps is worst: all of it is a part of the finding."""
    if row["start_ns"] is None or row["unit"] != "ns a step":
        return None
    steps = analyze.steps(trace).filter(
        pl.col("rank") == row["rank"], pl.col("start_ns") <= row["start_ns"], row["start_ns"] < END
    )
    return steps.select("start_ns", end=END).row(-1) if steps.height else None


def _cause_of(row: Mapping[str, Any]) -> str:
    """What the gaps of a finding about idle time are called; nothing for others."""
    causes = re.findall(r"'(\w+)'", str(row["where"])) if row["evidence"] == "idle" else []
    return next((PART_WORDS[cause] for cause in causes if cause in PART_WORDS), "")


DEVICE_IDLE: Final = ("between_queued_events", "unexplained_idle", "left_out")
"""Rules about idle time that no thread of the host explains."""


def _launch_after(trace: Trace, rank: int, start: int, end: int) -> tuple[int, int] | None:
    """Thread and end of the call that launched what ended the longest gap of a window."""
    shared = pl.min_horizontal(END, pl.lit(end)) - pl.max_horizontal("start_ns", pl.lit(start))
    gaps = analyze.idle(trace).filter(
        pl.col("rank") == rank, pl.col("launch_start_ns").is_not_null()
    )
    gaps = (
        gaps.select("launch_start_ns", shared=shared)
        .filter(pl.col("shared") > 0)
        .sort("shared", descending=True)
    )
    if not gaps.height:
        return None
    at = gaps["launch_start_ns"][0]
    calls = trace.runtime.filter(pl.col("rank") == rank, pl.col("start_ns") == at).select(
        "thread", end=END
    )
    known = calls.height and calls["thread"][0] is not None
    return (int(calls["thread"][0]), int(calls["end"][0])) if known else None


def _rows_of(trace: Trace, row: Mapping[str, Any]) -> pl.DataFrame:
    """Evidence of a finding: the rows of its analysis that fulfil its condition."""
    frame = catalog.analysis(str(row["evidence"])).function(trace)
    return frame.filter(pl.sql_expr(str(row["where"])))


def _text(value: object) -> str:
    return escape(unbroken(plain(str(value))))


def _facts(facts: pl.DataFrame, notes: Sequence[str]) -> str:
    pairs = "".join(
        f"<div><span>{_text(name)}</span><b>{_text(value)}</b></div>"
        for name, value in facts_in_words(facts)
    )
    lines = "".join(f"<p>{_text(sentence(line))}</p>" for line in notes if line)
    return (
        f'<div class="llmprof-front"><h4>What ran</h4><div class="facts">{pairs}</div>{lines}</div>'
    )


def finding_html(row: Mapping[str, Any]) -> str:
    """A loss as HTML: its one number, the sentence and what to try; its figures are folded."""
    number, meaning = headline_number(row)
    help_first, rest = first_sentence(row["suggestion"])
    advice = f"<p>Try: {_text(help_first)}</p>" if help_first else ""
    gain = row["prediction"] if row.get("predicted_ns") is not None else None
    more = "".join(f"<p>{_text(line)}</p>" for line in (row["detail"], rest, gain) if line)
    return (
        f'<div class="llmprof-front {_text(row["severity"])}"><p'
        f' class="title">{_text(row["title"])}</p><p><span class="figure">{_text(number)}</span>'
        f" {_text(meaning)}</p>{advice}<details><summary>Details</summary>{more}</details></div>"
    )


def fact_html(row: Mapping[str, Any]) -> str:
    """What is no loss of its own as HTML: a sentence, with its figures folded."""
    more = (
        f"<details><summary>Details</summary><p>{_text(row['detail'])}</p></details>"
        if row["detail"]
        else ""
    )
    return f'<div class="llmprof-front"><p>{_text(row["title"])}</p>{more}</div>'


Stage = tuple[str, Callable[[], object]]
"""Description of a computation, and its function; the results are kept with the trace."""


@dataclass(frozen=True)
class Given:
    """What ``explore.open`` was given."""

    trace: Trace
    metrics: Metrics | None = None
    other: Trace | None = None
    names: tuple[str, str] | None = None
    run: AnyRun | None = None
    tried: Run | None = None
    """Run whose remedies can be tried."""
    profile: pl.DataFrame | None = None
    """Findings of the hardware metrics, if there is no trace."""


@dataclass(frozen=True)
class Tab:
    """One tab: its name, its title, the function that makes its widget, and the computations
    before it.
    """

    name: str
    title: str
    make: Callable[[Given], Any]
    stages: Callable[[Given], Sequence[Stage]]


def _run(given: Given) -> AnyRun:
    if given.run is None:
        raise LlmprofError(
            "the requests of a trace are not known", hint="give its run: explore.open(trace, run=…)"
        )
    return given.run


def _other(given: Given) -> Trace:
    if given.other is None:
        raise LlmprofError(
            "there is no other trace to compare with", hint="give it: explore.open(trace, other=…)"
        )
    return given.other


def _labelled(trace: Trace, suffix: str = "") -> list[Stage]:
    return [
        (f"reading the device's events{suffix}", lambda: trace.events),
        (f"finding steps{suffix}", lambda: analyze.steps(trace)),
        (f"naming layers and stages{suffix}", lambda: trace.events),
    ]


def _then(words: str, compute: Callable[[Given], object]) -> Callable[[Given], Sequence[Stage]]:
    """The labels of a trace, and a computation after them."""
    return lambda given: [*_labelled(given.trace), (words, lambda: compute(given))]


PANELS: Final = (
    Tab(
        "timeline",
        "Timeline",
        lambda g: explore.timeline(g.trace, metrics=g.metrics, run=g.run),
        lambda _: [],
    ),
    Tab(
        "requests",
        "Requests",
        lambda g: explore.requests(_run(g)),
        lambda g: [("finding steps", lambda: analyze.steps(g.trace))],
    ),
    Tab(
        "layers",
        "Layers",
        lambda g: explore.layers(g.trace),
        _then("measuring layers", lambda g: analyze.layers(g.trace)),
    ),
    Tab(
        "overlap",
        "Overlap",
        lambda g: explore.overlap(g.trace, other=g.other),
        _then("measuring overlap", lambda g: analyze.overlap(g.trace, by=("rank", "step"))),
    ),
    Tab(
        "collectives",
        "Collectives",
        lambda g: explore.collectives(g.trace),
        _then("comparing the ranks", lambda g: analyze.collectives(g.trace)),
    ),
    Tab(
        "ranks",
        "Ranks",
        lambda g: explore.ranks(g.trace),
        _then("comparing the steps of the ranks", lambda g: analyze.ranks(g.trace, by="step")),
    ),
    Tab(
        "what_if",
        "What if",
        lambda g: explore.what_if(g.trace),
        _then("building the graph of what waits for what", lambda g: graph(g.trace)),
    ),
    Tab(
        "kernels",
        "Kernels",
        lambda g: explore.kernels(g.trace, metrics=g.metrics),
        _then("adding up kernels", lambda g: kernels_within(g.trace)),
    ),
    Tab(
        "compare",
        "Compare",
        lambda g: explore.compare(g.trace, _other(g), names=g.names),
        lambda g: [*_labelled(g.trace, ", first trace"), *_labelled(_other(g), ", second trace")],
    ),
)
"""All panels in the order of their tabs.

Requests need a run, ranks several ranks, and the last panel another trace.
"""


class Preparation(threading.Thread):
    """Stages computed one after another in a thread, until they are done or cancelled."""

    def __init__(
        self,
        stages: Sequence[Stage],
        told: Callable[[str, int, int], None],
        done: Callable[[], None],
    ) -> None:
        super().__init__(daemon=True)
        self._stages, self._told, self._all_done = stages, told, done
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Stop after the running stage; ``told`` and ``done`` are not called any more."""
        self._cancelled.set()

    def run(self) -> None:
        """Compute the stages."""
        for number, (words, compute) in enumerate(self._stages):
            if self._cancelled.is_set():
                return
            self._told(words, number, len(self._stages))
            with contextlib.suppress(LlmprofError):
                compute()
        if not self._cancelled.is_set():
            self._all_done()


def wrapped_text(text: str) -> Any:
    """A text that goes on in a new line where the window is narrow; a label of ipywidgets is cut
    there.
    """
    return ipywidgets.HTML(escape(text))


def _row(*parts: Any) -> Any:
    return ipywidgets.HBox(parts, layout=ipywidgets.Layout(flex_flow="row wrap"))


def _no_panel(_given: Given) -> Any:
    raise LlmprofError("the findings are no explorer", expected="the name of another tab")


def _findings_of(given: Given) -> pl.DataFrame:
    """Findings of the trace, or of the hardware metrics alone."""
    found: pl.DataFrame = (
        given.profile if given.profile is not None else given.trace.findings().frame
    )
    return found


FINDINGS: Final = Tab(
    "findings", "Findings", _no_panel, _then("finding what takes the time", _findings_of)
)
"""The first tab."""


class Open(ipywidgets.VBox):  # type: ignore[misc]
    """Findings, and linked tabs of explorers, each made when it is first shown; see :func:`open`.

    Above the tabs stand the filters, each as a chip that removes it, and the way back through the
    views. ``w["kernels"]`` is the explorer of a tab, which is made if necessary;
    ``w.show("kernels")`` brings it to the front.
    """

    keeps_picture: bool = True
    """Whether a picture is saved with the notebook, for where no kernel runs."""

    def __init__(self, given: Given, **options: Any) -> None:
        self._given = given
        several = given.trace if given.profile is None and len(given.trace.ranks) > 1 else None
        needs = {"compare": given.other, "requests": given.run, "ranks": several}
        shown = (
            [panel for panel in PANELS if panel.name == "kernels"]
            if given.profile is not None
            else PANELS
        )
        self._panels = [
            FINDINGS,
            *(panel for panel in shown if needs.get(panel.name, given) is not None),
        ]
        self._made: dict[str, Explorer] = {}
        self._preparing: dict[str, Preparation] = {}
        self._begins: dict[Explorer, str] = {}
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
        super().__init__(**options)
        self.add_class("llmprof-explorers")
        self._finding: Mapping[str, Any] | None = None
        self._front: Front | None = None
        self.tabs = ipywidgets.Tab(
            [ipywidgets.VBox() for _ in self._panels],
            titles=[panel.title for panel in self._panels],
            selected_index=0,
        )
        self.header = Header(
            given.trace, shown=lambda: self._panels[self.selected_index].name, show=self.show
        )
        self.children = [self.header, self.tabs]
        self._place(self._panels[1])
        self._shown(0)
        self.tabs.observe(lambda change: self._shown(change["new"]), "selected_index")
        self.tabs.observe(self.header.noted, "selected_index")

    @property
    def titles(self) -> tuple[str, ...]:
        """Titles of the tabs."""
        return tuple(self.tabs.titles)

    @property
    def selected_index(self) -> int:
        """Number of the visible tab."""
        return self.tabs.selected_index or 0

    @selected_index.setter
    def selected_index(self, number: int) -> None:
        self.tabs.selected_index = number

    @property
    def explorers(self) -> dict[str, Explorer]:
        """Explorers that have been made, by name."""
        return dict(self._made)

    def __getitem__(self, name: str) -> Explorer:
        """Explorer of a tab."""
        return self._place(self._panel(name))

    def show(self, name: str) -> None:
        """Bring a tab to the front."""
        self.selected_index = self._panels.index(self._panel(name))

    def show_finding(self, order: int) -> Self:
        """Open the tab that shows a finding, at its rank, window and filter, like the button of
        the finding.
        """
        self._show_finding(finding_row(_findings_of(self._given), order))
        return self

    def _show_finding(self, row: Mapping[str, Any]) -> None:
        self._finding = row
        if self._given.profile is not None:
            if (kernel := _kernel_of(str(row["where"]))) is not None:
                self["kernels"].set_trait("kernel", kernel)
            self.show("kernels")
            return
        trace = self._given.trace
        window, thread = _evidence_of(trace, row)
        timeline: Any = self["timeline"]
        timeline.show(
            _step_around(trace, row) or window,
            rank=row["rank"],
            thread=thread,
            search=_cause_of(row),
        )
        name = _tab_of(row)
        explorer = self[name]
        for trait, value in filters_of(row).items():
            if trait in PICKS and trait in explorer.narrows:
                explorer.only = {trait: value}  # what the finding sums, not all
            elif trait == "category" and explorer.has_trait("search"):
                explorer.set_trait("search", value)
            elif explorer.has_trait(trait):
                explorer.set_trait(trait, value)
        self.show(name)

    @property
    def selected(self) -> pl.DataFrame:
        """Selection in the visible tab; in the tab of findings, the rows of the finding that was
        shown last.
        """
        if not self.selected_index:
            if self._finding is None or self._given.profile is not None:
                return pl.DataFrame()
            return _rows_of(self._given.trace, self._finding)
        made = self._made.get(self._panels[self.selected_index].name)
        return made.selected if made is not None else pl.DataFrame()

    def _panel(self, name: str) -> Tab:
        panels = {panel.name: panel for panel in self._panels}
        if name not in panels:
            raise LlmprofError(
                f"there is no tab {name!r}", expected=f"one of {listed(list(panels))}"
            )
        return panels[name]

    def _box(self, panel: Tab) -> ipywidgets.VBox:
        box: ipywidgets.VBox = self.tabs.children[self._panels.index(panel)]
        return box

    def _place(self, panel: Tab) -> Explorer:
        """Make the explorer of a tab, unless it exists, put it into the tab, and link it with
        the others.
        """
        if panel.name not in self._made:
            made = panel.make(self._given)
            made.on_msg(self._asked)
            self._made[panel.name] = made
            self.header.add(panel.name, panel.title, made)
            self._box(panel).children = [made]
        return self._made[panel.name]

    def _asked(self, widget: Explorer, content: Mapping[str, Any], _buffers: object) -> None:
        """Tell a page again what the first tab holds when the explorer beside it begins to ask.

        A page reads the state of all widgets, then puts them together, and misses what changes in
        between.
        """
        if content.get("kind") == "ask" and content["what"] == self._begins.setdefault(
            widget, content["what"]
        ):
            self._box(FINDINGS).send_state("children")

    def _shown(self, index: int | None) -> None:
        """Prepare a tab that is shown for the first time, and report the progress."""
        panel = self._panels[index or 0]
        if (
            panel.name in self._made
            or (self._front is not None and panel is FINDINGS)
            or panel.name in self._preparing
        ):
            return
        words, cancel = wrapped_text(""), ipywidgets.Button(description="Cancel")
        bar = ipywidgets.IntProgress(0, 0, 1)

        def told(what: str, done: int, total: int) -> None:
            words.value, bar.max, bar.value = escape(f"{panel.title}: {what}"), total, done

        def finished() -> None:
            self._call(lambda: self._show_or_say(panel))

        def cancelled(_button: object) -> None:
            preparation.cancel()
            self._preparing.pop(panel.name, None)
            again = ipywidgets.Button(description="Go on")
            again.on_click(lambda _button: self._shown(self._panels.index(panel)))
            self._box(panel).children = [_row(wrapped_text(f"{panel.title}: cancelled"), again)]

        cancel.on_click(cancelled)
        preparation = Preparation(panel.stages(self._given), told, finished)
        self._preparing[panel.name] = preparation
        self._box(panel).children = [_row(words, bar, cancel)]
        preparation.start()

    def _call(self, function: Callable[[], None]) -> None:
        """Call a function in the thread of the Jupyter kernel: only from there do messages
        arrive.
        """
        if self._loop is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(function)
        else:
            function()

    def _show_or_say(self, panel: Tab) -> None:
        given = self._given
        try:
            if panel is FINDINGS:
                self._front = Front(
                    given.trace,
                    self._show_finding,
                    findings=given.profile,
                    run=given.tried,
                    call=self._call,
                )
                self._box(panel).children = [self._front]
            else:
                self._place(panel)
        except LlmprofError as error:
            self._box(panel).children = [wrapped_text(f"{panel.title}: {error}")]
        self._preparing.pop(panel.name, None)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """The live tabs, and an image of the visible one for notebooks that are opened without a
        kernel.
        """
        data = super()._repr_mimebundle_(**kwargs)
        made = self._made.get(self._panels[max(1, self.selected_index)].name)
        try:
            image = made.picture() if made is not None and self.keeps_picture else None
        except LlmprofError:
            image = None
        if data is not None and image:
            data = {**data, "image/png": base64.b64encode(smaller(image)).decode("ascii")}
        return data

    def _ipython_display_(self, **_: Any) -> None:
        """Show the image and the tabs as two outputs, of which one is seen."""
        data = self._repr_mimebundle_()
        show_kept(None if data is None else (data, {}))


def open(  # noqa: A001
    trace: Trace | Metrics,
    *,
    metrics: Metrics | None = None,
    other: Trace | None = None,
    names: tuple[str, str] | None = None,
    run: AnyRun | None = None,
) -> Open:
    """Findings of a trace, and all explorers in tabs: timeline, layers, overlap, collectives,
    ranks, kernels, compare.

    Selecting in one tab (a window, rank, step, layer or stage) highlights in the others and narrows
    none; ``Only this`` makes a filter of it. Above the tabs each filter is a chip that removes it,
    grey where the visible tab cannot be narrowed so, and ``←`` and ``→`` (Alt + arrows, the side
    buttons of a mouse) lead back and forward through the views. A tab is made when it is first
    shown. Its computations run in the background and can be cancelled.

    Parameters
    ----------
    trace : Trace or Metrics
        The trace. With hardware metrics alone, there are only their findings and the table of
        kernels, since the metrics do not say when launches ran.
    metrics : Metrics, optional
        What Nsight Compute measured of its kernels.
    other : Trace, optional
        Another trace, to compare with.
    names : (str, str), optional
        Names of the two traces; by default those of the folders or files that were read.
    run : Run, optional
        The run of the trace, or the trace and the rows of ``llmprof.read_requests``.
        It adds a tab of the slowest requests, and a row for each request in the timeline. Findings
        whose remedy is a setting of the engine get a button that tries it (:func:`llmprof.trial`),
        after it has asked.

    Returns
    -------
    Open
        The tabs. ``w["timeline"].selected`` is the selection in a tab as a frame, ``w.selected``
        that of the visible tab.

    Raises
    ------
    LlmprofError
        ``trace`` is neither a trace nor hardware metrics with durations.
    """
    if isinstance(trace, Metrics):
        return Open(
            Given(launches_in_a_row(trace), metrics or trace, profile=analyze.ncu.findings(trace))
        )
    for given in (trace, other):
        if given is not None and not isinstance(given, Trace):
            raise LlmprofError(
                f"open got a {type(given).__name__}",
                expected="a Trace",
                hint="read it: llmprof.read()",
            )
    return Open(
        Given(trace, metrics, other, names, run, tried=run if isinstance(run, Run) else None)
    )
