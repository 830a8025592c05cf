"""Explorer of kernels: a table of all kernels of a trace, and the details of the picked one."""

import contextlib
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Self

import msgspec
import polars as pl
import traitlets

from llmprof import charts
from llmprof.analyze import ncu
from llmprof.analyze.kernels import PLACES, events_within, kernels_within
from llmprof.errors import LlmprofError, NotCapturedError
from llmprof.explore.base.messages import (
    Buffers,
    FrameColumn,
    FrameRow,
    MessageRecord,
    TimeRange,
    array,
    pack,
)
from llmprof.explore.base.widget import PICKS, Explorer, Reply, optional, request_handler, sorted_by
from llmprof.names import kernels as kernel_names
from llmprof.names import readable
from llmprof.names.mangled import demangled
from llmprof.names.readable import distinct_labels
from llmprof.replay.slack import add_slack, unknown_slack
from llmprof.replay.targets import operators_with_bounds
from llmprof.text import shorten
from llmprof.theory import hardware
from llmprof.theory.bound import find_device
from llmprof.trace import Trace
from llmprof.trace.metrics import explain
from llmprof.trace.metrics.data import Metrics
from llmprof.trace.schema import END

BINS: Final = 48
"""Points of a sparkline."""

FILTERS: Final = ("rank", "step", "phase", "layer", "stage", "stream", "category")
SPLITS: Final = ("phase", "stage", "layer", "stream", "rank")
"""Labels that rows can be filtered by, and labels that can divide launches into rows."""

NUMBERS: Final[tuple[str, ...]] = (
    *(
        "count",
        "total_ns",
        "share",
        "mean_ns",
        "median_ns",
        "p99_ns",
        "min_ns",
        "max_ns",
        "slack_ns",
    ),
)
SORTABLE: Final = ("name", "category", "limit", *PLACES, *NUMBERS)

_MOST_TEXT: Final = 2_000
"""Most characters of a name in a row; the details have the full name."""

_NAMED: Final = 2


class KernelsView(MessageRecord):
    """View of the table: filters, labels that divide launches into rows, a search text, an
    order, a window.
    """

    rank: int | None = None
    step: int | None = None
    phase: str | None = None
    layer: int | None = None
    stage: str | None = None
    stream: int | None = None
    category: str | None = None
    by: tuple[str, ...] = ()
    search: str = ""
    sort: str = "-total_ns"
    window: TimeRange | None = None

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Self:
        """View that the browser requested, by known labels."""
        by = tuple(label for label in SPLITS if label in message.get("by", ()))
        return msgspec.convert({**message, "by": by}, cls)

    @property
    def where(self) -> dict[str, int | str]:
        """The filters that hold."""
        return {label: value for label in FILTERS if (value := getattr(self, label)) is not None}

    @property
    def key(self) -> tuple[Any, ...]:
        """Everything that the rows depend on, except their order and the search text."""
        return (tuple(self.where.items()), self.by, self.window)


def _options(events: pl.DataFrame) -> dict[str, list[int | str]]:
    """Values that each filter can take."""
    return {label: events[label].drop_nulls().unique().sort().to_list() for label in FILTERS}


def _places(values: Sequence[int | str] | None, plural: str) -> str:
    """Short text for the values of a label: one or two of them, a range of numbers, or their
    number.
    """
    if not values:
        return ""
    first, last = values[0], values[-1]
    numbers = isinstance(first, int) and isinstance(last, int)
    if len(values) <= _NAMED:
        return ", ".join(str(value) for value in values)
    return (
        f"{first} to {last}"
        if numbers and int(last) - int(first) == len(values) - 1
        else f"{len(values)} {plural}"
    )


def _arranged(frame: pl.DataFrame, view: KernelsView) -> pl.DataFrame:
    """Rows whose name contains the view's text, regardless of case, in the view's order
    (``-column``: descending).
    """
    kept = frame.filter(
        pl.col("name").str.to_lowercase().str.contains(view.search.lower(), literal=True)
    )
    column, falling = view.sort.lstrip("-"), view.sort.startswith("-")
    if column in PLACES and column not in frame.columns:
        key = pl.col(PLACES[column]).list.first()
    elif column in SORTABLE and column in frame.columns:
        key = pl.col(column)
    else:
        return kept
    return kept.sort(key, descending=falling, nulls_last=True, maintain_order=True)


_MOST_NAMES: Final = 3_000
"""Rows up to which a name is told apart from those of all rows, beyond from those of the same
block.
"""


def block(frame: pl.DataFrame, offset: int, count: int) -> tuple[list[dict[str, Any]], Buffers]:
    """Some of the rows, and their sparklines as bytes (255 is the largest value of a row)."""
    rows = frame.slice(max(0, offset), max(0, count))
    every = (frame if frame.height <= _MOST_NAMES else rows)["name"].unique(maintain_order=True)
    labels = dict(zip(every, distinct_labels(every, _short(every)), strict=True))
    telling = [column for column in (*PLACES, "category") if column in frame.columns]
    several = frame.group_by("name").agg(pl.col(telling).n_unique())
    parts = {
        name: [c for c, n in zip(telling, counts, strict=True) if n > 1]
        for name, *counts in several.iter_rows()
    }
    texts = []
    for row in rows.iter_rows(named=True):
        words = [
            _place(label, row[label]) for label in parts[row["name"]] if row[label] is not None
        ]
        label = " · ".join([labels[row["name"]][:_MOST_TEXT], *words])
        cells: dict[str, Any] = {column: row[column] for column in NUMBERS if column in row}
        cells |= {
            place: row[place] if place in row else _places(row[many], many)
            for place, many in PLACES.items()
        }
        cells |= {"name": row["name"][:_MOST_TEXT], "label": label}
        cells |= {"category": row["category"], "limit": row.get("limit")}
        texts.append({key: _finite(cell) for key, cell in cells.items()})
    if not rows.height:
        return texts, [array(pl.Series([], dtype=pl.UInt8), "u1")]
    series = rows["series"].explode(empty_as_null=False, keep_nulls=False)
    peaks = rows.select(pl.col("series").list.max().clip(1).repeat_by(BINS).explode())["series"]
    return texts, [array((series * 255 / peaks).round().cast(pl.UInt8), "u1")]


def _place(label: str, value: int | str) -> str:
    return f"{label} {value}" if isinstance(value, int) else value


def _short(names: pl.Series) -> pl.Series:
    """Readable names; C++ functions without return type, namespaces and parameters, so that
    their beginnings differ.
    """
    made = pl.DataFrame(
        {"name": names, "short": kernel_names.comparable(names), "readable": readable(names)}
    )
    cpp = pl.col("name").str.contains(r"^(?:void|std::\S+) |\w<.*>") & (
        pl.col("short").str.len_chars() > 0
    )
    of_library = pl.col("readable").str.contains(" ", literal=True) | pl.col("name").str.contains(
        "^_Z|_kernel_time$"
    )
    return made.select(
        short=pl.when(of_library).then("readable").when(cpp).then("short").otherwise("name")
    )["short"]


def _finite(cell: Any) -> Any:
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


MOST_POINTS: Final = 8_000
"""Most launches that are drawn one by one; more are drawn as a range for each interval of time."""

PARTS: Final = 600
_MOST_ROWS: Final = 50
_MOST_OPERATORS, _MOST_SHAPES = 300, 48
_GRID: Final = (
    "grid_x",
    "grid_y",
    "grid_z",
    "block_x",
    "block_y",
    "block_z",
    "registers",
    "shared_bytes",
)


def _launches(events: pl.DataFrame) -> tuple[dict[str, Any], Buffers]:
    """Launches over time, packed: one by one, or shortest, median and longest of each interval
    of time.
    """
    if events.is_empty():
        return {"condensed": False, "columns": [], "span": None}, []
    span = events.select(pl.min("start_ns"), end_ns=END.max()).row(0)
    if events.height <= MOST_POINTS:
        frame = events.select("event", "rank", "step", "layer", "stage", "start_ns", "dur_ns")
    else:
        length = max(1, -(-(span[1] - span[0]) // PARTS))
        dur = pl.col("dur_ns")
        frame = (
            events.group_by(part=(pl.col("start_ns") - span[0]) // length)
            .agg(least_ns=dur.min(), middle_ns=dur.median(), most_ns=dur.max(), count=pl.len())
            .sort("part")
            .with_columns(
                start_ns=span[0] + pl.col("part") * length,
                end_ns=span[0] + (pl.col("part") + 1) * length,
            )
            .drop("part")
        )
    columns, buffers = pack(frame)
    return {
        "condensed": events.height > MOST_POINTS,
        "columns": columns,
        "span": list(span),
    }, buffers


def _shapes(trace: Trace, name: str, rank: int | None) -> dict[str, Any]:
    """Operators that launched a kernel, and their shapes: ``rows``, or ``why`` there are none."""
    try:
        trace.table("ops")
    except NotCapturedError as error:
        return {"rows": [], "why": str(error)}
    events = trace.events.filter(name=name)
    of_rank = events if rank is None else events.filter(rank=rank)
    dur = pl.col("dur_ns")
    rows = (
        of_rank.group_by("shapes", op="operator")
        .agg(count=pl.len(), total_ns=dur.sum(), mean_ns=dur.mean())
        .sort("total_ns", "op", "shapes", descending=[True, False, False], nulls_last=True)
    )
    why = "" if rows.height else "No operator was recorded for its launches."
    of_operators = operators_roofline(trace, rank) if trace.has("kernels") else None
    return {
        "rows": rows.head(_MOST_ROWS).to_dicts(),
        "why": why,
        "total": rows.height,
        "roofline": of_operators,
    }


def operators_roofline(trace: Trace, rank: int | None) -> dict[str, Any] | None:
    """Operators with a bound under the roofs of the device, those with most time; None without
    any.
    """
    rows, events = operators_with_bounds(trace)
    rows = rows.filter(pl.lit(rank is None) | (pl.col("rank") == (rank or 0)))
    rows = rows.filter(
        (pl.col("flops") > 0) & (pl.col("bound_ns") > 0) & (pl.col("flop_per_s") > 0)
    )
    if not rows.height:
        return None
    device = find_device(trace.meta["device"])
    types = (
        rows.filter(~pl.col("bound_by").is_in(["memory", "launch"]))["bound_by"]
        .unique()
        .sort()
        .to_list()
    )
    flat = {one: rate for one in types or ["bf16"] if (rate := device.flop_per_s.get(one))}
    short = pl.col("operator").str.split("::").list.last()
    rows = rows.sort("total_ns", "row", descending=[True, False]).head(_MOST_OPERATORS)
    longest = events.group_by("row").agg(pl.col("event").sort_by("dur_ns").last())
    rows = rows.join(longest, on="row", how="left", maintain_order="left")
    points = rows.select(
        "row",
        "event",
        "kernel",
        "bound_share",
        "bound_by",
        "intensity",
        "flop_per_s",
        ns="total_ns",
        shapes=pl.Series(
            [
                shorten(text.replace(", []", ""), _MOST_SHAPES)
                for text in rows["shapes"].fill_null("")
            ]
        ),
        function=pl.concat_str(short, "stage", separator=", ", ignore_nulls=True),
    )
    bandwidth = device.memory_bytes_per_s
    return {
        "points": points.to_dicts(),
        "bandwidth": bandwidth,
        "peaks": flat,
        "device": device.name,
    }


def _grids(trace: Trace, events: pl.DataFrame) -> list[dict[str, Any]]:
    """Grids and blocks of launches: ``grid, block, registers, shared_bytes, count, mean_ns``."""
    if not trace.has("kernels") or events.is_empty():
        return []
    key = ["rank", "stream", "start_ns", "name"]
    with_grid = trace.kernels.select(*key, *_GRID).drop_nulls(["grid_x"]).unique(key, keep="first")
    rows = events.select(*key, "dur_ns").join(with_grid, on=key, nulls_equal=True)
    triple = [
        pl.format("{} x {} x {}", *(pl.col(f"{side}_{axis}").fill_null(1) for axis in "xyz")).alias(
            side
        )
        for side in ("grid", "block")
    ]
    found = rows.group_by("registers", "shared_bytes", *triple).agg(
        count=pl.len(), mean_ns=pl.mean("dur_ns")
    )
    return (
        found.sort("count", "grid", "block", descending=[True, False, False])
        .head(_MOST_ROWS)
        .to_dicts()
    )


def nothing_of(trace: Trace) -> pl.DataFrame:
    """Frame of :attr:`llmprof.Trace.events` without rows; without columns, too, if the
    trace has no events.
    """
    with contextlib.suppress(NotCapturedError):
        return trace.events.clear()
    return pl.DataFrame()


PEAKS: Final = {
    "compute_share": ("compute", "sm__throughput.avg.pct_of_peak_sustained_elapsed"),
    "memory_share": ("memory", "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"),
    "bound_share": ("of its roof", ""),
}
"""Bars of the speed of light: column, label, and the metric whose glossary text explains it."""

_SPEED: Final = (
    *(
        "dur_ns",
        "flops",
        "dtype",
        "flop_per_s",
        "memory_bytes",
        "bytes_per_s",
        "intensity",
    ),
    *(
        "bound_flop_per_s",
        "bound_share",
        "compute_share",
        "memory_share",
        "memory_level",
        "bound_by",
        "stall",
        "stall_share",
    ),
)
_MOST_RULES: Final = 40
MOST_VALUES: Final = 60
"""Most metrics in one answer."""


@dataclass(frozen=True)
class Profiled:
    """Hardware metrics of a trace's kernels: the kernel of each profiled launch, and its shares
    of the peaks.
    """

    metrics: Metrics
    launches: pl.DataFrame
    stalls: pl.DataFrame
    peaks: hardware.Device | None
    note: str

    @property
    def unmatched(self) -> int:
        """Profiled launches that are no kernel of the trace."""
        return self.launches["name"].null_count()

    def limits(self) -> pl.DataFrame:
        """``name, limit`` of each profiled kernel, taken from the longest of its best matching
        launches.
        """
        best = self.launches.drop_nulls("name").sort(
            "confidence", "other_dur_ns", descending=True, nulls_last=True
        )
        return best.unique("name", keep="first", maintain_order=True).select("name", "limit")

    def of(self, name: str) -> pl.DataFrame:
        """Profiled launches of a kernel, the best matches first."""
        return self.launches.filter(name=name).sort(
            "confidence", "kernel_id", descending=[True, False], maintain_order=True
        )


def profiled(trace: Trace, metrics: Metrics) -> Profiled:
    """Match metrics with a trace and rate each launch."""
    launches, note, peaks = ncu.join(trace, metrics), "", None
    try:
        speed = ncu.speed_of_light(metrics)
        named = metrics.kernels["device_name"].drop_nulls()
        peaks = hardware.device(named[0]) if named.len() else None
        if not named.len():
            note = (
                "these metrics do not name their device: there are no roofs, and no shares of them"
            )
    except LlmprofError as error:
        note = str(error)
        nothing = {
            "bound_by": pl.String,
            "dtype": pl.String,
            "memory_level": pl.String,
            "stall": pl.String,
        }
        types = {column: nothing.get(column, pl.Float64) for column in _SPEED}
        speed = pl.DataFrame(schema={"kernel_id": pl.Int32, **types})
    joined = launches.join(
        speed.select("kernel_id", *_SPEED), on="kernel_id", how="left", maintain_order="left"
    )
    limit = pl.when(pl.col("bound_share").is_finite()).then(
        pl.format(
            "{} · {} %",
            "bound_by",
            (100 * pl.col("bound_share")).round(0).cast(pl.Int64, strict=False),
        )
    )
    return Profiled(
        metrics,
        joined.with_columns(limit=pl.coalesce(limit, "bound_by")),
        ncu.stalls(metrics),
        peaks,
        note,
    )


def kernel_detail(profile: Profiled, name: str, kernel_id: int | None = None) -> dict[str, Any]:
    """Data of a profiled kernel for the explorer, as JSON; ``launches`` is empty if it was not
    profiled.
    """
    launches = profile.of(name)
    columns = ("kernel_id", "grid", "block", "other_dur_ns", "dur_ns", "evidence", "confidence")
    out: dict[str, Any] = {"launches": launches.select(columns).to_dicts(), "note": profile.note}
    if launches.is_empty():
        return out
    matching = launches.filter(pl.col("kernel_id") == (-1 if kernel_id is None else kernel_id))
    row = (matching if matching.height else launches).row(0, named=True)
    number, level = row["kernel_id"], row["memory_level"]
    of_level = {"memory_share": f"memory ({level.upper()})"} if level else {}
    rules = profile.metrics.rules.filter(kernel_id=number)
    rules = rules.sort(
        "estimated_speedup_pct", descending=True, nulls_last=True, maintain_order=True
    )
    return out | {
        "chosen": number,
        "speed": {column: _finite(row[column]) for column in _SPEED},
        "bars": [
            {"label": of_level.get(column, label), "share": _finite(row[column]), "metric": metric}
            for column, (label, metric) in PEAKS.items()
        ],
        "roofline": _roofline(profile, number),
        "stalls": profile.stalls.filter(kernel_id=number).select("reason", "share").to_dicts(),
        "rules": rules.head(_MOST_RULES).drop("kernel_id").to_dicts(),
    }


def _values(profile: Profiled, kernel_id: int, search: str = "") -> dict[str, Any]:
    """Metrics of a launch whose name or section contains a text, with titles; those of the
    details page first.
    """
    frame = profile.metrics.metrics.filter(kernel_id=kernel_id)
    words = pl.concat_str(
        "metric", pl.col("section").fill_null(""), separator=" "
    ).str.to_lowercase()
    fitting = frame.filter(words.str.contains(search.strip().lower(), literal=True))
    fitting = fitting.sort(pl.col("section").is_null(), maintain_order=True)
    rows = fitting.head(MOST_VALUES).select("section", "metric", "unit", "value", "text").to_dicts()
    titled = [
        row | {"value": _finite(row["value"]), "title": _glossary(row["metric"])["title"]}
        for row in rows
    ]
    return {"rows": titled, "total": fitting.height}


def _roofline(profile: Profiled, kernel_id: int) -> dict[str, Any] | None:
    """All launches on the roofline, the device's roofs, and which launch is picked."""
    x, y = "intensity", "flop_per_s"
    placed = profile.launches.filter([(pl.col(c) > 0) & pl.col(c).is_finite() for c in (x, y)])
    if placed.filter(kernel_id=kernel_id).is_empty():
        return None
    types = placed["dtype"].drop_nulls().unique().sort().to_list()
    peaks = profile.peaks
    flat = {t: rate for t in types if peaks is not None and (rate := peaks.flop_per_s.get(t))}
    points = placed.select("kernel_id", "dtype", x, y, ns="other_dur_ns")
    return {
        "points": points.with_columns(
            function=kernel_names.function(placed["kernel_name"])
        ).to_dicts(),
        "bandwidth": peaks.memory_bytes_per_s if peaks is not None else None,
        "peaks": flat,
        "device": peaks.name if peaks is not None else None,
    }


@lru_cache(maxsize=4096)
def _glossary(metric: str) -> dict[str, Any]:
    """Glossary entry of a metric or warp state, as JSON."""
    try:
        entry = explain(metric)
    except LlmprofError as error:
        return {
            "title": "not in the glossary",
            "meaning": str(error),
            "good": "",
            "action": "",
            "source": "",
        }
    meaning = entry.meaning or "; ".join(f"{part}: {words}" for part, words in entry.parts.items())
    return {
        "meaning": meaning,
        **{name: getattr(entry, name) for name in ("title", "good", "action", "source")},
    }


RowLabels = dict[str, Any]
"""Values of the labels that divide launches into rows: ``{"phase": "decode"}``."""


class PeakBar(MessageRecord):
    """Share of a peak (%), and the metric whose glossary text explains it."""

    label: str
    share: float | None
    metric: str


class Roofline(MessageRecord):
    """Profiled launches, or operators, on the roofline of a device."""

    points: list[FrameRow]
    bandwidth: float | None
    peaks: dict[str, float]
    device: str | None


_SERIES = "time over the trace of each row (u1), the same number of points a row"


PROGRAM: Final = ("python", "program.py")
OWN: Final = ("phase", "stream", "category", "by", "search", "sort")
"""Parts of the view that no other explorer shares."""

_TOP: Final = 18
_MOST_TITLE: Final = 90


class Kernels(Explorer, room="kernels"):
    """Widget of :func:`kernels`."""

    narrows = (*PICKS, "phase", "stream", "category", "search")

    phase = optional(traitlets.Unicode)
    category = optional(traitlets.Unicode)
    stream = optional(traitlets.Int)
    search = traitlets.Unicode("").tag(sync=True)
    """Text to search for in names, regardless of case."""

    by = traitlets.List(traitlets.Enum(SPLITS)).tag(sync=True)
    """Labels that divide the launches of a kernel into rows."""

    sort = traitlets.Unicode("-total_ns").tag(sync=True)
    """Column that the table is sorted by; with ``-`` the largest value comes first."""

    of = traitlets.Dict().tag(sync=True)
    """Labels of the picked row, if the table divides launches by labels."""

    event = optional(traitlets.Int)
    """Row number of the picked launch in ``trace.events``."""

    hidden_columns = traitlets.List(traitlets.Unicode()).tag(sync=True)
    """Names of the columns of the table that are not shown; the browser keeps what was chosen
    there.
    """

    has_metrics = traitlets.Bool(default_value=False).tag(sync=True)
    program = traitlets.Unicode(shlex.join(PROGRAM)).tag(sync=True)
    """The program and its arguments, for the ``ncu`` command."""

    def __init__(self, trace: Trace, metrics: Metrics | None = None, **traits: Any) -> None:
        self.metrics = (
            metrics if trace.has("kernels") else None
        )  # metrics belong to kernels, not to operators
        self._profiled: Profiled | None = None
        self._kept: tuple[Any, pl.DataFrame] = (None, pl.DataFrame())
        self._slack = False
        super().__init__(trace, has_metrics=self.metrics is not None, **traits)

    _known_column = sorted_by(SORTABLE)

    @traitlets.observe("kernel", "of")
    def _another(self, _change: object) -> None:
        self.event = None

    @property
    def table(self) -> pl.DataFrame:
        """Rows of the table in its order: those of :func:`llmprof.analyze.kernels.kernels_within`.

        A widget that is shown finds ``slack_ns``, too, soon after its first picture.
        """
        return self._rows(self._view)

    @property
    def selected(self) -> pl.DataFrame:
        """Launches of the picked kernel, or the picked launch alone: rows of
        :attr:`llmprof.Trace.events`.
        """
        if self.event is not None:
            return self.trace.events.filter(event=self.event)
        return self.launches

    @property
    def launches(self) -> pl.DataFrame:
        """All launches of the picked kernel that pass the filters; no rows if none is picked."""
        return self._launches(self._view, self.kernel, self.of)

    def picture(self) -> bytes | None:
        """PNG image of the longest kernels of the table."""
        return charts.to_png_bytes(
            charts.kernels(self.table, top=_TOP, variants=True), scale=1.25, theme="any"
        )

    @property
    def _view(self) -> KernelsView:
        return KernelsView.of({name: getattr(self, name) for name in OWN} | self.only)

    def _rows(self, view: KernelsView) -> pl.DataFrame:
        key, frame = self._kept  # another request may replace it meanwhile
        if key != view.key:
            frame = kernels_within(
                self.trace, by=view.by, where=view.where, window=view.window, bins=BINS, absent=True
            )
            if self.metrics is not None:
                limits = self._matched().limits()
                frame = frame.join(limits, on="name", how="left", maintain_order="left")
            if self._slack:
                events = events_within(
                    self.trace, where=view.where, window=view.window, absent=True
                )
                frame = add_slack(frame, self.trace, events, [*view.by, "name", "category"])
            self._kept = (view.key, frame)
        return _arranged(frame, view)

    def _launches(self, view: KernelsView, kernel: str | None, of: RowLabels) -> pl.DataFrame:
        if kernel is None:
            return nothing_of(self.trace)
        where = {**view.where, **of, "name": kernel}
        return events_within(self.trace, where=where, window=view.window, absent=True)

    def _matched(self) -> Profiled:
        if self._profiled is None:
            if self.metrics is None:
                raise NotCapturedError(
                    "there are no hardware metrics", hint="give them: kernels(trace, metrics)"
                )
            self._profiled = profiled(self.trace, self.metrics)
        return self._profiled

    @request_handler(
        asks={"view": KernelsView},
        busy="adding up kernels",
        buffers=_SERIES,
        rows=list[FrameRow],
        total=int,
        at=int | None,
        launches=int,
        total_ns=int,
        options=dict[str, list[int | str]],
        unmatched=int,
    )
    def _on_table(self, view: RowLabels, count: int = 60, kernel: str | None = None) -> Reply:
        frame, events = self._rows(KernelsView.of(view)), self.trace.events
        rows, buffers = block(frame, 0, count)
        message = {
            "rows": rows,
            "total": frame.height,
            "at": None if kernel is None else frame["name"].index_of(kernel),
            "launches": int(frame["count"].sum()),
            "total_ns": int(frame["total_ns"].sum()),
            "options": _options(events),
            "unmatched": self._matched().unmatched if self.metrics is not None else 0,
        }
        return message, buffers

    @request_handler(busy="finding what each kernel delays", why=str)
    def _on_slack(self) -> Reply:
        """Find the slack of all kernels, which the rows have from then on, or say why it is
        unknown.
        """
        why = unknown_slack(self.trace)
        if not self._slack and not why:
            self._slack, self._kept = True, (None, pl.DataFrame())
        return {"why": why}, []

    @request_handler(asks={"view": KernelsView}, buffers=_SERIES, rows=list[FrameRow], offset=int)
    def _on_rows(self, view: RowLabels, offset: int, count: int) -> Reply:
        rows, buffers = block(self._rows(KernelsView.of(view)), offset, min(count, 200))
        return {"rows": rows, "offset": offset}, buffers

    @request_handler(asks={"view": KernelsView})
    def _on_pick(self, view: RowLabels, row: int) -> None:
        table_view = KernelsView.of(view)
        frame = self._rows(table_view)
        if 0 <= row < frame.height:
            picked = frame.row(row, named=True)
            with self.hold_sync():
                self.of = {
                    label: picked[label] for label in table_view.by if picked[label] is not None
                }
                self.kernel = picked["name"]

    @request_handler()
    def _on_launch(self, event: int) -> None:
        """Pick a launch, and set the window around it; linked explorers then show this window."""
        rows = self.trace.events.filter(event=event)
        if rows.height:
            start, length = rows.select("start_ns", "dur_ns").row(0)
            around = max(4 * length, 5_000)
            self.event = event
            self.window = [float(start - around), float(start + length + around)]

    @request_handler(
        asks={"view": KernelsView},
        buffers="the launches' columns",
        name=str,
        label=str,
        category=str | None,
        count=int,
        total_ns=float,
        mean_ns=float | None,
        least_ns=float | None,
        most_ns=float | None,
        condensed=bool,
        columns=list[FrameColumn],
        span=TimeRange | None,
        grids=list[FrameRow],
    )
    def _on_kernel(self, view: RowLabels, kernel: str, of: RowLabels) -> Reply:
        events = self._launches(KernelsView.of(view), kernel, of)
        message, buffers = _launches(events)
        length = events["dur_ns"] if events.width else pl.Series([], dtype=pl.Int64)
        about = {
            "name": demangled(pl.Series([kernel])).get(kernel, kernel),
            "label": shorten(_short(pl.Series([kernel]))[0], _MOST_TITLE),
            "category": events["category"][0] if events.height else None,
            "count": events.height,
            "total_ns": length.sum(),
            "mean_ns": length.mean(),
            "least_ns": length.min(),
            "most_ns": length.max(),
        }
        return message | about | {"grids": _grids(self.trace, events)}, buffers

    @request_handler(row=int | None)
    def _on_operator(self, event: int) -> Reply:
        """Number of the operator that a launch is part of, as in the points of the roofline of
        operators.
        """
        rows = operators_with_bounds(self.trace)[1].filter(event=event)["row"]
        return {"row": rows[0] if rows.len() else None}, []

    @request_handler(
        busy="finding the operators",
        rows=list[FrameRow],
        why=str,
        total=int | None,
        roofline=Roofline | None,
    )
    def _on_shapes(self, kernel: str, rank: int | None) -> Reply:
        return _shapes(self.trace, kernel, rank), []

    @request_handler(
        busy="matching the hardware metrics",
        launches=list[FrameRow],
        note=str,
        chosen=int | None,
        speed=FrameRow | None,
        bars=list[PeakBar] | None,
        roofline=Roofline | None,
        stalls=list[FrameRow] | None,
        rules=list[FrameRow] | None,
    )
    def _on_metrics(self, kernel: str, kernel_id: int | None = None) -> Reply:
        return kernel_detail(self._matched(), kernel, kernel_id), []

    @request_handler(rows=list[FrameRow], total=int)
    def _on_values(self, kernel_id: int, search: str = "") -> Reply:
        return _values(self._matched(), kernel_id, search), []

    @request_handler(title=str, meaning=str, good=str, action=str, source=str)
    def _on_explain(self, metric: str) -> Reply:
        return _glossary(metric), []

    @request_handler(asks={"view": KernelsView}, command=str)
    def _on_command(self, program: str, view: RowLabels, kernel: str, of: RowLabels) -> Reply:
        self.program = program
        where = {**KernelsView.of(view).where, **of}
        kept = {
            label: where[label]
            for label in ("layer", "stage", "step", "phase", "rank")
            if label in where
        }
        try:
            words = shlex.split(program)
        except ValueError as error:
            raise LlmprofError(
                f"the program cannot be read: {error}", expected="words as in a shell"
            ) from error
        return {"command": shlex.join(ncu.command(self.trace, words, kernel=kernel, **kept))}, []


def kernels(trace: Trace, *, metrics: Metrics | None = None, **traits: Any) -> Kernels:
    """Table of all kernels, with launches, shapes and hardware metrics of the picked one.

    Rows can be filtered by phase, stream, category, text, and ``only`` a rank, step, layer, stage
    or window (``{"stage": "attention"}``),
    divided by some of these labels, and sorted by any column. A click (or Enter) picks a kernel.

    Parameters
    ----------
    trace : Trace
        Any trace with device activity. In the trace of a CPU run, operators of the host take the
        place of kernels.
    metrics : Metrics, optional
        What Nsight Compute measured of its kernels (:func:`llmprof.read_metrics`).
    **traits
        Initial values of ``only, phase, stream, category, search, by, sort, window, kernel,
        program`` and ``theme``.

    Returns
    -------
    Explorer
        The widget. ``.selected``: launches of the picked kernel; ``.table``: the visible rows.
    """
    return Kernels(trace, metrics, **traits)
