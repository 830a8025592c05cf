"""Explorer of what would be gained: changes with sliders, and the step time that a replay
predicts for them.
"""

import shlex
from collections.abc import Sequence
from typing import Any, Final, Literal

import altair as alt
import msgspec
import polars as pl
import traitlets

from llmprof import analyze
from llmprof.analyze.collectives.collectives import collectives
from llmprof.charts.base import theme
from llmprof.charts.base.draw import float_of, inline
from llmprof.charts.base.save import to_png_bytes
from llmprof.errors import AnalysisError, LlmprofError
from llmprof.explore.base.messages import MessageRecord
from llmprof.explore.base.widget import Explorer, Reply, request_handler
from llmprof.replay.changes import NOT_WHOLE_GRAPHS, ReplayChange
from llmprof.replay.graph import graph
from llmprof.replay.plan import ReplayPlan
from llmprof.replay.targets import TARGET
from llmprof.replay.what_if import change_of, moved_in_words
from llmprof.trace import Trace
from llmprof.units import format_ns, format_share

RECORDED, PREDICTED = "recorded", "predicted"
_COLOURS: Final = {RECORDED: theme.MUTED, PREDICTED: "#6FB1E8"}
_ROW: Final = 46
"""Height of a phase (px)."""

_LABEL: Final = 76
"""Room for a time behind a bar (px)."""


def _step_times(frame: pl.DataFrame, *, title: str, changes: Sequence[str]) -> alt.LayerChart:
    """Bars of the recorded and the predicted time of a step, by phase; a line is the interval of
    the prediction.
    """
    named = frame.with_columns(row=pl.col("phase").fill_null("the recording"))
    unit = theme.time_unit(
        float_of(
            frame.select(pl.max_horizontal("recorded_ns", "predicted_ns", "high_ns")).max().item()
        )
    )
    parts = [
        named.select(
            "row",
            what=pl.lit(what),
            time=pl.col(f"{what}_ns") / unit.ns,
            low=low / unit.ns,
            high=high / unit.ns,
            text=pl.col(f"{what}_ns").map_elements(format_ns, return_dtype=pl.String),
        )
        for what, low, high in (
            (RECORDED, pl.lit(None, pl.Float64), pl.lit(None, pl.Float64)),
            (PREDICTED, pl.col("low_ns"), pl.col("high_ns")),
        )
    ]
    rows = list(named["row"].unique(maintain_order=True))
    width = (
        theme.inner() - 20 - _LABEL - round(max(theme.text_px(row, theme.TEXT_PX) for row in rows))
    )
    base = alt.Chart(inline(pl.concat(parts))).encode(
        y=theme.row_axis(rows),
        yOffset=alt.YOffset("what:N", scale=alt.Scale(domain=[RECORDED, PREDICTED])),
    )
    of = "the whole recording" if named["phase"].null_count() else "a step"
    mean = "mean " if (frame["steps"] > 1).any() else ""
    times = alt.X(
        "time:Q",
        title=f"{mean}time of {of} ({unit.symbol})",
        axis=alt.Axis(grid=True, tickCount=8),
    )
    legend = alt.Legend(title=None, orient="top", direction="horizontal", symbolType="square")
    colour = alt.Color("what:N", scale=theme.shades(_COLOURS), sort=None, legend=legend)
    bars = base.mark_bar(height=14).encode(x=times, color=colour)
    between = base.transform_filter("isValid(datum.low) && datum.high > datum.low").mark_rule(
        color=theme.INK, strokeWidth=2
    )
    ends = base.mark_text(
        align="left", dx=6, color=theme.INK, fontSize=theme.TEXT_PX
    ).transform_calculate(end="max(datum.time, isValid(datum.high) ? datum.high : 0)")
    between = between.encode(x=alt.X("low:Q"), x2=alt.X2("high:Q"))
    chart = theme.layered(
        bars, between, ends.encode(x=alt.X("end:Q"), text=alt.Text("text:N"))
    ).properties(width=width, height=_ROW * len(rows))
    how = (
        "Predicted by replaying the recorded dependencies; the line is the interval of the"
        " prediction."
    )
    made = f"Changes: {'; '.join(changes)}." if changes else "Without any change."
    return theme.finish_chart(chart, title, [made, how])


FieldKind = Literal["work", "text", "number", "choice"]


class ChangeField(MessageRecord):
    """What a change takes: work of the devices, a text, a number with its slider, or one of
    several words.
    """

    name: str
    kind: FieldKind
    label: str
    value: str
    keyword: bool = False
    optional: bool = False
    host: bool = False
    low: float = 0.0
    high: float = 1.0
    step: float = 0.0
    unit: str = ""
    options: list[tuple[str, str]] = msgspec.field(default_factory=list)


class Offer(MessageRecord):
    """A change that can be made: its word, what it is, what it takes, and why it cannot be made
    of this recording.
    """

    name: str
    title: str
    words: str
    fields: list[ChangeField]
    why: str = ""


class Made(MessageRecord):
    """A change that was asked for: in words, what it cannot know, and why it could not be made."""

    change: str
    words: str
    unknown: str
    error: str = ""


class Predicted(MessageRecord):
    """Time of a step of a phase (ns): as recorded, as predicted, and between what; and the gain."""

    phase: str | None
    steps: int
    recorded_ns: float
    predicted_ns: float
    low_ns: float
    high_ns: float
    gain_ns: float
    gain_low_ns: float
    gain_high_ns: float
    speedup: float


RANKS: Final = (1, 2, 4, 8, 16, 32, 64)
"""Sizes of a tensor-parallel group that are offered."""

BANDWIDTH_GBPS, LATENCY_US = 300.0, 10.0
"""Where the sliders of a link begin if the recording says nothing."""

COLLECTIVES: Final = ("all_reduce", "all_to_all", "all_gather", "collective")
"""Stages and categories that are offered first as what could run beside other work."""

_WORDS: Final = {
    "no-host-delay": (
        "No waiting for the host",
        "The layers run as under CUDA graphs: no call for each kernel.",
    ),
    "run-ahead": (
        "The host runs ahead",
        "The next step is prepared while the device works on this one.",
    ),
    "scale": (
        "Faster or slower",
        "A stage, a category, kernels by name, or the host take so many times as long.",
    ),
    "remove": ("Without", "Work of the devices is gone, with its launches."),
    "fuse": ("Fused", "Kernels that follow each other directly become one."),
    "balance": ("No rank late", "No rank waits for another one in a collective."),
    "transfer": (
        "Another link",
        "Collectives take the time of a link with this bus bandwidth and latency.",
    ),
    "tensor-parallel": ("Another number of GPUs", "The layers' work is spread over so many ranks."),
    "to-bound": (
        "Nearer to the bound",
        "Operators reach a share of the bound that follows from their shapes.",
    ),
    "at-bound": ("At the bound", "Stages run at the theoretical bound of the device."),
    "overlap-with": (
        "Beside each other",
        "Collectives run beside the work that follows them, on a stream of their own.",
    ),
    "without-call": (
        "Without a call of the host",
        "Calls of this name take no time, and wait for nothing.",
    ),
}
"""Changes by their word (:func:`llmprof.replay.what_if.change_of`): a title, and a
sentence.
"""

_TRIED: Final = {
    "no-host-delay": "no-host-delay",
    "run-ahead": "run-ahead",
    "balance": "balance",
    "transfer": f"transfer:bandwidth={BANDWIDTH_GBPS:g}",
    "tensor-parallel": "tensor-parallel:2:all_reduce_us=20",
    "to-bound": "to-bound",
}
"""Changes that a recording may not allow, and how they are tried."""


def _works(trace: Trace) -> list[tuple[str, str]]:
    """Stages, then categories of the devices' work, with words that say their share of its time;
    the longest first.
    """
    rows = graph(trace).events.filter(where="device")
    total = max(int(rows["dur_ns"].sum()), 1)
    choices: list[tuple[str, str]] = []
    for column in ("stage", "category"):
        sums = rows.drop_nulls(column).group_by(column).agg(pl.sum("dur_ns"))
        for name, ns in sums.sort("dur_ns", column, descending=[True, False]).iter_rows():
            if name not in dict(choices) and ":" not in name:
                choices.append((name, f"{name} ({column}, {format_share(ns / total)})"))
    return choices


def offers(trace: Trace) -> list[Offer]:
    """Changes with what they take, set to values that mean something for this recording."""
    named = _works(trace)
    first = next((name for name, _ in named if name != "other"), "other")
    device = str(trace.meta.get("device") or "")
    calls = collectives(trace) if "kernels" in trace.tables else pl.DataFrame()
    sent = calls["bus_gbps"].drop_nulls() if calls.height else pl.Series([], dtype=pl.Float64)
    median = sent.median()
    bandwidth = f"{median:.2g}" if isinstance(median, float) else f"{BANDWIDTH_GBPS:g}"
    communication = next((name for name, _ in named if name in COLLECTIVES), first)
    phases = theme.in_order(analyze.steps(trace)["phase"].drop_nulls(), theme.PHASES)
    phases = [phase for phase in phases if phase not in NOT_WHOLE_GRAPHS]
    named_phases = [(phase, f"steps of {phase}") for phase in phases]
    work = ChangeField(name="what", kind="work", label="of", value=first)
    fields: dict[str, list[ChangeField]] = {
        "no-host-delay": [
            ChangeField(
                name="phase",
                kind="choice",
                label="in",
                value="",
                optional=True,
                options=[("", "all steps"), *named_phases],
            )
        ],
        "run-ahead": [],
        "scale": [
            ChangeField(name="what", kind="work", label="of", value=first, host=True),
            ChangeField(
                name="factor",
                kind="number",
                label="takes",
                value="0.5",
                high=2.0,
                step=0.05,
                unit="x",
            ),
        ],
        "remove": [work],
        "fuse": [
            ChangeField(
                name="pattern", kind="text", label="names, as a regular expression", value="norm"
            )
        ],
        "balance": [],
        "transfer": [
            _given("bandwidth", "bandwidth", bandwidth, (1, 4000), "GB/s"),
            _given("latency", "latency", "", (0.5, 500), "us"),
        ],
        "tensor-parallel": [
            ChangeField(
                name="n",
                kind="choice",
                label="ranks",
                value="2",
                options=[(str(n), str(n)) for n in RANKS],
            ),
            _given("all_reduce_us", "an all-reduce takes", "20", (1, 2000), "us"),
        ],
        "to-bound": [
            ChangeField(
                name="share",
                kind="number",
                label="at",
                value=f"{TARGET:g}",
                low=0.05,
                step=0.05,
                unit="x",
            ),
            ChangeField(
                name="what",
                kind="text",
                label="stage or operator (all if empty)",
                value="",
                optional=True,
            ),
        ],
        "at-bound": [
            ChangeField(name="model", kind="text", label="model", value=""),
            ChangeField(name="device", kind="text", label="device", value=device, optional=True),
            ChangeField(
                name="stage",
                kind="text",
                label="stage (all if empty)",
                value="",
                keyword=True,
                optional=True,
            ),
        ],
        "overlap-with": [
            ChangeField(name="collective", kind="work", label="collectives", value=communication),
            ChangeField(name="with", kind="work", label="beside", value=first),
        ],
        "without-call": [
            ChangeField(name="name", kind="text", label="named", value="StreamSynchronize")
        ],
    }
    why = {name: _made_of(trace, tried).error for name, tried in _TRIED.items()}
    return [
        Offer(name=name, title=title, words=words, fields=fields[name], why=why.get(name, ""))
        for name, (title, words) in _WORDS.items()
    ]


def _given(
    name: str, label: str, value: str, between: tuple[float, float], unit: str
) -> ChangeField:
    """A number that may be given or not, on a logarithmic slider."""
    low, high = between
    return ChangeField(
        name=name,
        kind="number",
        label=label,
        value=value,
        keyword=True,
        optional=True,
        low=low,
        high=high,
        unit=unit,
    )


def _made_of(trace: Trace, text: str) -> Made:
    """A change of a recording, and why it cannot be made; nothing is replayed for that."""
    if "" in text.split(":")[1:]:
        return Made(change=text, words=text, unknown="", error="a value is missing")
    made = Made(change=text, words=text, unknown="")
    try:
        change = change_of(text)
        made.words, made.unknown = change.words, change.unknown
        change.apply(ReplayPlan(graph(trace), "middle"), trace)
    except LlmprofError as error:
        made.error = str(error)
    return made


def python_call(text: str) -> str:
    """A change as a call of Python:

    ``changes.transfer(bandwidth=300.0)`` of ``transfer:bandwidth=300``.
    """
    name, *given = text.split(":")
    texts = {"model", "device", "stage", "pattern", "collective", "with", "name", "what"}
    if name == "no-host-delay":
        arguments = ["phases=" + repr(tuple(given))] if given else []
    else:
        keywords = {
            "transfer": ("bandwidth", "latency"),
            "at-bound": ("stage",),
            "tensor-parallel": ("all_reduce_us",),
        }
        arguments = []
        for place, part in enumerate(given):
            key, _, value = part.partition("=")
            if key in keywords.get(name, ()):
                arguments.append(f"{key}={value!r}" if key in texts else f"{key}={float(value)!r}")
            elif (name, place) in (("scale", 1), ("to-bound", 0)):
                arguments.append(repr(float(part)))
            elif (name, place) == ("tensor-parallel", 0):
                arguments.append(repr(int(part)))
            else:
                arguments.append(repr(part))
    return f"changes.{name.replace('-', '_')}({', '.join(arguments)})"


class WhatIf(Explorer, room="what_if"):
    """Changes, and the time of a step under them. Made by :func:`what_if`."""

    changes = traitlets.List(traitlets.Unicode(), default_value=[]).tag(sync=True)
    """Changes that are made, in their order, each as the command line takes it:

    ``scale:attention:0.5``.
    """

    @property
    def made(self) -> list[ReplayChange]:
        """Changes that can be made of this recording, as :func:`llmprof.analyze.what_if` takes
        them.
        """
        return [change_of(text) for text in self._texts]

    @property
    def selected(self) -> pl.DataFrame:
        """The frame of ``analyze.what_if`` for the changes; those that match nothing are left
        out.
        """
        return analyze.what_if(self.trace, *self.made)

    @property
    def python(self) -> str:
        """Python that gives ``selected`` for a ``trace``."""
        return _python(self._texts)

    @property
    def command(self) -> str:
        """Command that prints the same for a ``PATH``."""
        return _command(self._texts)

    @property
    def _texts(self) -> list[str]:
        return [
            made.change for text in self.changes if not (made := _made_of(self.trace, text)).error
        ]

    def picture(self) -> bytes | None:
        """PNG image: the recorded and the predicted time of a step of each phase; None if no
        step was recorded.
        """
        frame, made, good = self._predicted(self.changes)
        if frame.is_empty():
            return None
        changes = [change.words for change in made if not change.error]
        title = _in_words(frame, len(good)).removesuffix(f" {_ADD}")
        return to_png_bytes(
            _step_times(_in_both_times(frame), title=title, changes=changes),
            scale=1.25,
            theme="any",
        )

    @request_handler(
        busy="building the graph of what waits for what",
        offers=list[Offer],
        works=list[tuple[str, str]],
        why=str,
    )
    def _on_choices(self) -> Reply:
        try:
            graph(self.trace)
        except LlmprofError as error:
            return {"offers": [], "works": [], "why": str(error)}, []
        return {
            "offers": msgspec.to_builtins(offers(self.trace)),
            "works": _works(self.trace),
            "why": "",
        }, []

    @request_handler(
        busy="replaying the steps",
        rows=list[Predicted],
        made=list[Made],
        words=str,
        python=str,
        command=str,
    )
    def _on_predict(self, *, changes: list[str]) -> Reply:
        frame, made, good = self._predicted(changes)
        return {
            "rows": _in_both_times(frame).select(Predicted.__struct_fields__).to_dicts(),
            "made": msgspec.to_builtins(made),
            "words": _in_words(frame, len(good)),
            "python": _python(good),
            "command": _command(good),
        }, []

    def _predicted(self, texts: Sequence[str]) -> tuple[pl.DataFrame, list[Made], list[str]]:
        """The prediction, the changes, and those made; one that cannot be made after the others
        leaves all out.
        """
        made = [_made_of(self.trace, text) for text in texts]
        good = [change.change for change in made if not change.error]
        try:
            return analyze.what_if(self.trace, *map(change_of, good)), made, good
        except AnalysisError as error:
            for change in made:
                change.error = change.error or f"not together with the others: {error}"
            return analyze.what_if(self.trace), made, []


def _in_both_times(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with ``speedup``, and a further row for each phase whose time without the profiler
    is known.
    """
    times = [f"{name}_ns" for name in ("recorded", "predicted", "low", "high")]
    plain = frame.drop_nulls("plain_recorded_ns")
    plain = plain.with_columns(
        phase=pl.format("{}, without the profiler", "phase"),
        **{name: f"plain_{name}" for name in times},
    )
    gains = {
        f"gain_{name}_ns": pl.col("recorded_ns") - pl.col(f"{other}_ns")
        for name, other in _ENDS.items()
    }
    gained = pl.col("recorded_ns") - pl.col("predicted_ns")
    rows = pl.concat([frame, plain.with_columns(gain_ns=gained, **gains)])
    return rows.with_columns(speedup=pl.col("recorded_ns") / pl.col("predicted_ns"))


_ENDS: Final = {"low": "high", "high": "low"}
"""The least gain is that of the longest step."""


def _in_words(frame: pl.DataFrame, changes: int) -> str:
    """The result in a sentence: of the phase with the most recorded time, without the profiler
    where that is known.
    """
    if frame.is_empty():
        return "No step was recorded."
    row = frame.sort(pl.col("recorded_ns") * pl.col("steps"), descending=True).row(0, named=True)
    plain = row["plain_recorded_ns"] is not None
    of = "plain_" if plain else ""
    phase = f" of {row['phase']}" if row["phase"] != "other" else ""
    what = (
        f"A step{phase} (mean)"
        if row["phase"] is not None
        else "The whole recording, which has no steps,"
    )
    times = [row[f"{of}{name}_ns"] for name in ("recorded", "predicted", "low", "high")]
    recorded, predicted, low, high = map(format_ns, times)
    took = (
        f"{recorded} without the profiler ({format_ns(row['recorded_ns'])} under it)"
        if plain
        else recorded
    )
    if not changes:
        return f"{what} takes {took}. {_ADD}"
    share = (times[0] - times[1]) / max(times[0], 1.0)
    if abs(share) < LEAST_SHARE:
        return (
            f"{what} stays at {took}: something else sets its pace (analyze.critical_path says"
            " what)."
        )
    between = f" ({low} to {high})" if low != high else ""
    word = "less" if share > 0 else "more"
    took = took if plain else f"{recorded} recorded"
    said = (
        f"{what.rstrip(',')}: {took}, {predicted} predicted{between}, {format_share(abs(share))}"
        f" {word}."
    )
    return " ".join(filter(None, (said, moved_in_words(row))))


_ADD: Final = "Add a change to see what it would bring."
LEAST_SHARE: Final = 0.0005
"""Share of the step below which a change is said to bring nothing."""


def _python(texts: Sequence[str]) -> str:
    lines = [f"    {python_call(text)}," for text in texts]
    call = (
        "\n".join(["analyze.what_if(", "    trace,", *lines, ")"])
        if lines
        else "analyze.what_if(trace)"
    )
    return f"from llmprof import analyze\nfrom llmprof.analyze import changes\n\n{call}"


def _command(texts: Sequence[str]) -> str:
    return " ".join(["llmprof what-if PATH", *map(shlex.quote, texts)])


def what_if(trace: Trace, *changes: str, **traits: Any) -> WhatIf:
    """Choose changes with sliders and see the step time that a replay of the recording predicts, by
    phase.

    Beside the prediction stand its interval, the recorded time, what each change cannot know, and
    the Python and the command that give the same; ``.selected`` is the frame.

    Parameters
    ----------
    trace : Trace
        A trace with device activity; one without says so.
    *changes : str
        Changes to begin with, as the command line takes them: ``"scale:attention:0.5"``,
        ``"no-host-delay"``.
    **traits
        ``theme`` to begin with.

    Examples
    --------
    >>> from llmprof import explore
    >>> w = explore.what_if(trace, "scale:attention:0.5")
    >>> bool((w.selected["gain_ns"] >= 0).all())
    True
    """
    return WhatIf(trace, **{"changes": list(changes)} | traits)
