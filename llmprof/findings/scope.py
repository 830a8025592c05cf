"""Scope of the findings: the steady decode steps, or else all steps, or else the whole
recording.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Any, Final

import polars as pl
from msgspec import Struct
from msgspec.structs import replace

from llmprof.analyze.edge import LANE
from llmprof.analyze.idle.gaps import gap_parts, idle_in_pieces
from llmprof.analyze.idle.host import host_spans
from llmprof.analyze.step_times import (
    decode_steps,
    recorded_windows,
    request_pauses,
    steady_steps,
    step_parts,
    step_windows,
    time_parts,
    used_windows,
    without_long_first,
)
from llmprof.errors import AnalysisError
from llmprof.findings.card import PHASE_SCOPES, REQUEST_PAUSES, SLOW_STEPS, USUAL_STEPS
from llmprof.findings.reasons import pauses_of
from llmprof.label.completeness import has_lost
from llmprof.label.groups import last_before
from llmprof.label.intervals import clip_intervals
from llmprof.label.steps.labels import ENGINES
from llmprof.label.steps.steps import steps_of
from llmprof.names import readable
from llmprof.replay.changes import NOT_WHOLE_GRAPHS
from llmprof.replay.targets import operators_with_bounds
from llmprof.text import counted, ranks_in_words
from llmprof.trace import Trace
from llmprof.trace.kept import per_trace
from llmprof.trace.schema import END
from llmprof.units import format_ns, format_share

_TORCH = {
    "ops": (
        r"^(?:aten|c10d|c10|prims|npu|vllm|_C\w*|sgl_kernel|torch\w*|autograd)::|^nn\.Module|\.py\(\d+\)|^torch\b"
    ),
    "markers": (
        r"^(?:aten|c10d|prims|autograd|vllm)::|^ProfilerStep#|^nn\.Module|^Optimizer\.\w+#|^DataLoader"
    ),
    "kernels": (
        r"\b(?:at|c10|vllm|sgl_kernel|flashinfer)::|^triton_(?:poi|red|per|tem)_|\bat_cuda_detail\b"
    ),
}
"""Names that only programs of PyTorch write, by table."""


def sum_of(frame: pl.DataFrame, column: str) -> float:
    """Sum of a column; 0 where it has no value."""
    return float(frame[column].cast(pl.Float64).sum())


def median_of(frame: pl.DataFrame, column: str) -> float | None:
    """Median of a column; None where it has no value."""
    value = frame[column].cast(pl.Float64).median()
    return float(value) if isinstance(value, int | float) else None


def max_of(frame: pl.DataFrame, column: str) -> float | None:
    """Largest value of a column; None where it has none."""
    value = frame[column].cast(pl.Float64).max()
    return float(value) if isinstance(value, int | float) else None


def whole_pauses(pauses: pl.DataFrame) -> pl.DataFrame:
    """The pieces of each gap as one row, from the start of its first part: ``rank, start_ns,
    dur_ns``.
    """
    # gaps of other ranks of a dataset may have the same number
    whole = pauses.group_by("rank", "gap", maintain_order=True).agg(
        pl.min("begun_ns").alias("start_ns"), pl.sum("dur_ns")
    )
    return whole.drop("gap")


_MANY_ROWS: Final = 1 << 18

_FEW_GAPS: Final = 1 << 15
"""So many parts of gaps are described together in less time than those of each scope apart."""


def heaviest(rows: pl.DataFrame, by: str, weight: str = "dur_ns") -> tuple[Any, float]:
    """Value of a column with the largest sum of another column, without null, and its share of
    the total.
    """
    by_value = rows.lazy().select(by, weight).drop_nulls(by).group_by(by).agg(pl.col(weight).sum())
    # of many values, the streaming engine takes less than half of the memory, but longer to begin
    sums = by_value.collect(engine="streaming" if rows.height > _MANY_ROWS else "in-memory")
    whole = sum_of(rows, weight)
    if not sums.height or not whole:
        return None, 0.0
    largest_sum = sums[weight].max()
    found = sums[by].filter(sums[weight] == largest_sum).min()
    return found, float(largest_sum) / whole  # type: ignore[arg-type]


def heaviest_name(rows: pl.DataFrame) -> tuple[str | None, float]:
    """Name with most time of some events, and the share of all that sentences give its name."""
    sums = rows.drop_nulls("name").group_by("name").agg(pl.sum("dur_ns")).sort("name")
    named = sums.with_columns(as_read=readable(sums["name"]))
    as_read, share = heaviest(named, "as_read")
    own = named.filter(pl.col("as_read").eq_missing(as_read))
    # a row without a name has no share of its own, but counts in the whole
    known = sum_of(sums, "dur_ns") / max(1.0, sum_of(rows, "dur_ns"))
    return heaviest(own, "name")[0], share * known


_ALONE: Final = 0.75
"""A rank is named alone if the time of the next one is below this multiple of its own."""


HOST_LATE: Final = ("host_bound", "launch")
"""Causes of idle time that earlier launches, or fewer calls, would remove."""


def change_without(call: str | None) -> str | None:
    """The change that removes a call; None if a change cannot hold its name."""
    return f"without-call:^{call}$" if call is not None and call.isidentifier() else None


def ranks_with_most(scope: Scope, rows: pl.DataFrame) -> tuple[list[int], dict[int, float]]:
    """Ranks with most of the time of some rows (``rank, dur_ns``), at least half of the largest
    share each, and the time of a part on every rank.
    """
    sums = dict(rows.group_by("rank").agg(pl.sum("dur_ns")).iter_rows())
    spans = {rank: span for rank, span in scope.ranks.items() if span[0] > 0}
    shares = {rank: sums.get(rank, 0) / span for rank, (span, _) in spans.items()}
    each = {rank: sums.get(rank, 0) / parts for rank, (_, parts) in spans.items()}
    first, *rest = sorted(shares, key=lambda rank: (-shares[rank], rank))
    most_of_it = sorted(rank for rank in shares if shares[rank] >= shares[first] / 2)
    if rest and max(each[rank] for rank in rest) < _ALONE * each[first]:
        most_of_it = [first]
    return most_of_it, each


def worst_ranks(scope: Scope, rows: pl.DataFrame) -> tuple[Scope, pl.DataFrame]:
    """The part of a scope that is of the ranks with most of some rows, and their rows."""
    ranks, _ = ranks_with_most(scope, rows)
    return scope.of(ranks), rows.filter(pl.col("rank").is_in(ranks))


_BATCH: Final = ("prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens")

MEDIAN_APART: Final = 0.05
"""A median is told that differs from the mean by this share of it."""

UNEQUAL: Final = 3
"""Times of steps of which one is this many times another are told beside their mean."""


class Scope(Struct, frozen=True, dict=True):
    """The representative time of a run, as windows, and the events in it."""

    trace: Trace
    """The whole trace."""
    words: str
    """The scope in words: ``steady decode steps``, ``all steps`` or ``whole recording``."""
    steps: pl.DataFrame | None
    """The steps; None if the trace has none and the scope is the whole recording."""
    windows: pl.DataFrame
    """``rank, device, step, phase, start_ns, dur_ns``: the time, one row per step and device."""
    recorded_ns: int
    """All recorded time, summed over the devices."""
    phase_ns: int | None = None
    """Time of all steps of the phase that the windows stand for; that of the windows if it is
    not given.
    """

    @property
    def weight(self) -> float:
        """The time that a ns in the windows stands for (ns)."""
        return 1.0 if self.phase_ns is None else self.phase_ns / max(1, self.span_ns)

    @property
    def span_ns(self) -> int:
        """Length of the windows, the denominator of every share (ns)."""
        return int(self.windows["dur_ns"].sum())

    @property
    def parts(self) -> int:
        """Steps, counted on every device; devices if the scope is the whole recording."""
        return max(1, self.windows.height)

    @property
    def part(self) -> str:
        """Unit of counts and times:

        ``a step`` (of one device), ``a mixed step`` or the like, or ``a rank``.
        """
        if self.steps is None:
            return "a rank"
        return f"a {self.words.removesuffix('s')}" if self.words in PHASE_SCOPES else "a step"

    @cached_property
    def has_layers(self) -> bool:
        """Whether layers of a transformer were found in it."""
        return bool(self.events["layer"].is_not_null().any())

    @cached_property
    def has_kernels(self) -> bool:
        """Whether kernels ran in it."""
        return bool((self.events["source"] == "kernel").any())

    @cached_property
    def reads_prompts(self) -> bool:
        """Whether all of its steps read prompts."""
        return bool(self.windows["phase"].is_in(NOT_WHOLE_GRAPHS).fill_null(False).all())

    @cached_property
    def decodes(self) -> bool:
        """Whether all of its steps decode alone."""
        return bool((self.windows["phase"] == "decode").fill_null(False).all())

    @cached_property
    def starts_ahead(self) -> bool:
        """Whether the host begins most steps of the run before the device ends those before."""
        if self.steps is None:
            return False
        begun = steps_of(self.trace).select("rank", "step", host_ns="host_start_ns")
        windows = step_windows(self.trace)
        rows = windows.join(begun, on=["rank", "step"]).sort("rank", "start_ns")
        ended = pl.col("start_ns") + pl.col("span_ns")
        ahead = pl.col("host_ns").shift(-1).over("rank", "device") < ended
        return bool(rows.select(ahead.mean().fill_null(0.0) > 0.5).item())

    def of(self, ranks: list[int] | None) -> Scope:
        """The time of some ranks of it; of all with None."""
        if ranks is None:
            return self
        if (key := tuple(ranks)) not in self._of_ranks:
            windows = self.windows.filter(pl.col("rank").is_in(ranks))
            self._of_ranks[key] = replace(self, windows=windows, recorded_ns=0)
        return self._of_ranks[key]

    @cached_property
    def _of_ranks(self) -> dict[tuple[int, ...], Scope]:
        return {}

    @cached_property
    def denominator(self) -> str:
        """Denominator of every share, in words and numbers."""
        if not self.recorded_ns:  # of some ranks
            mean = format_ns(self.span_ns / self.parts)
            ranks_named = ranks_in_words(self.windows["rank"].unique().sort().to_list())
            if self.steps is None:
                return f"{USED} of {ranks_named}: {mean}"
            steps = counted(self.windows["step"].n_unique(), "step")
            return f"{self.part} of {ranks_named}: {mean} ({steps})"
        ranks = self.windows["rank"].n_unique()
        where = (
            f"on {counted(ranks, 'rank')}"
            if self.steps is not None or ranks > 1
            else "on the only rank"
        )
        if self.steps is None:
            return f"{USED}: {format_ns(self.span_ns / self.parts)} {where}"
        number = self.windows["step"].n_unique()
        single = (
            self.words if self.words.startswith("step ") else f"1 {self.words.removesuffix('s')}"
        )
        what = f"{number} {self.words}" if number > 1 else single
        share = format_share(self.span_ns / max(1, self.recorded_ns))
        mean = format_ns(self.span_ns / self.parts)
        if self.parts == 1:
            return f"{what} {where}: {mean}, {share} of the recorded time"
        if self.spread and number > 1:
            what = str(number)
        mean += f" on average{self.spread}"
        return f"{self.part}: {mean} over {what} {where}, {share} of the recorded time"

    @cached_property
    def of_steps(self) -> str:
        """How many of the steps it is of and their times, as a sentence, where that is not all of
        them or they are unlike.
        """
        if self.steps is None:
            return ""
        number, times = self.windows["step"].n_unique(), self.windows["dur_ns"]
        least, most = (float(times.quantile(at) or 0) for at in (0, 1))
        unlike = most > UNEQUAL * least and number > 1
        times_said = f" The {number} steps take {format_ns(least)} to {format_ns(most)}." * unlike
        every = steps_of(self.trace).drop_nulls("start_ns")
        every = every.filter(pl.col("phase") != "empty", pl.col("source") != "capture")
        whole = every["step"].n_unique()
        if self.words == "steps" and number < whole:
            return (
                f" These are {number} of {counted(whole, 'step')}; the others are first, or not"
                f" whole on every rank.{times_said}"
            )
        return times_said

    @cached_property
    def spread(self) -> str:
        """Least and most of its times, or the median, where the mean alone would mislead."""
        times = self.windows["dur_ns"]
        least, middle, most = (float(times.quantile(at) or 0) for at in (0, 0.5, 1))
        mean = self.span_ns / self.parts
        if most > UNEQUAL * least:
            return f" ({format_ns(least)} to {format_ns(most)})"
        apart = abs(middle - mean) >= MEDIAN_APART * mean
        return f" (median {format_ns(middle)})" if apart else ""

    @cached_property
    def platform_words(self) -> dict[str, str]:
        """Words of the platform, without advice that is in force already."""
        words = self.trace.capture.words
        if not self.events["name"].unique().str.contains(INDUCTOR).any():
            return words
        fused = words["fuse"].replace("torch.compile, ", "")
        compiled = "larger compiled regions (kernels of Inductor run already)"
        return words | {"compile": compiled, "fuse": fused}

    @cached_property
    def of_torch(self) -> bool:
        """Whether anything recorded shows a program of PyTorch, for advice that names its
        functions.
        """
        # Evidence: operators, labels of steps, ranges of its own names, and kernels and runtime
        # calls in its namespaces.
        if self.steps is not None and bool(
            self.steps["source"].is_in([*ENGINES, "profiler_step"]).any()
        ):
            return True
        return any(
            bool(self.trace.table(table)["name"].unique().str.contains(pattern).any())
            for table, pattern in _TORCH.items()
            if self.trace.has(table)
        )

    @cached_property
    def step_ranges(self) -> pl.Series:
        """Names of ranges of the host in which a whole step of their rank lies, as it ran on a
        device.
        """
        if self.steps is None or not self.trace.has("markers"):
            return pl.Series("name", dtype=pl.String)
        ranges = self.trace.markers.filter(~pl.col("on_device")).select(
            "rank", "name", "start_ns", range_end=END
        )
        begun = self.windows.select("rank", "start_ns", step_end=END).sort("start_ns")
        following = ranges.sort("start_ns").join_asof(
            begun, on="start_ns", by="rank", strategy="forward", check_sortedness=False
        )
        return following.filter(pl.col("step_end") <= pl.col("range_end"))["name"].unique()

    @cached_property
    def events(self) -> pl.DataFrame:
        """Labelled device events of the windows, cut to the windows; ``window`` is the row
        number of the window.
        """
        return clip_intervals(self.trace.events, self.windows, LANE)

    @cached_property
    def times(self) -> pl.DataFrame:
        """Parts that add up to the windows: :func:`~llmprof.analyze.step_times.time_parts`."""
        if self.steps is None:
            return time_parts(self.trace, self.windows)
        own = self.windows.select(*LANE, "step").with_row_index("window")
        parts = own.join(  # operators of a host have no device
            step_parts(self.trace),
            on=[*LANE, "step"],
            nulls_equal=True,
            maintain_order="left_right",
        )
        return parts.drop(*LANE, "step")

    @cached_property
    def _sums(self) -> list[tuple[int, str, str, int]]:
        """Rank, kind, part and sum of its times."""
        ranks = self.windows["rank"][self.times["window"]]
        sums = self.times.group_by(ranks, "kind", "part").agg(pl.sum("ns"))
        return sums.sort("rank").rows()

    def time(self, kind: str, *parts: str) -> float:
        """Time of the windows that a kind, or some parts of it, take (ns)."""
        return sum_of(self.rank_times(kind, *parts), "dur_ns")

    def rank_times(self, kind: str, *parts: str) -> pl.DataFrame:
        """The same time by rank: ``rank, dur_ns``."""
        times: Counter[int] = Counter()
        for rank, of, part, ns in self._sums:
            if of == kind and part in (parts or (part,)):
                times[rank] += ns
        schema = {"rank": pl.Int32, "dur_ns": pl.Int64}
        return pl.DataFrame([list(times), list(times.values())], schema=schema)

    @cached_property
    def ranks(self) -> dict[int, tuple[int, int]]:
        """Length of the windows of each rank, and their number."""
        of_rank = self.windows.group_by("rank").agg(pl.sum("dur_ns"), parts=pl.len())
        return {rank: (span, parts) for rank, span, parts in of_rank.iter_rows()}

    @cached_property
    def compute_by_rank(self) -> pl.DataFrame | None:
        """Mean compute time of a step of each rank, least first; None where ranks cannot be
        compared.
        """
        if len(self.ranks) < 2 or not self._has_same_batches:
            return None
        compute = dict(self.rank_times("compute").iter_rows())
        means = {rank: compute.get(rank, 0) / parts for rank, (_, parts) in self.ranks.items()}
        rows = sorted(means.items(), key=lambda of: (of[1], of[0]))
        schema = {"rank": pl.Int32, "ns": pl.Float64}
        return pl.DataFrame(rows, schema=schema, orient="row") if rows[0][1] else None

    @property
    def _has_same_batches(self) -> bool:
        """Whether the steps have the same batches on all ranks, as far as batches are known."""
        if self.steps is None:
            return True
        keys = self.windows[["rank", "step"]].unique()
        batch = pl.concat_str(*_BATCH, separator="/", ignore_nulls=True)
        batches = (
            self.steps.join(keys, on=["rank", "step"])
            .group_by("rank")
            .agg(batch.unique().sort().str.join(" "))
        )
        return batches.to_series(1).n_unique() <= 1

    def cut(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Rows with ``rank, start_ns, dur_ns``, cut to the windows of their rank."""
        lanes = LANE if "device" in frame.columns else ["rank"]
        windows = self.windows.unique([*lanes, "start_ns"], keep="first", maintain_order=True)
        return clip_intervals(frame, windows, lanes)

    @cached_property
    def pauses(self) -> pl.DataFrame:
        """Parts of the gaps of the devices, cut to the windows and in pieces: see
        :func:`pauses_of`.
        """
        kernels = self.trace.kernels if self.trace.has("kernels") else None
        times = gap_parts(self.trace)[0].select(*LANE, "start_ns", "dur_ns")
        own = None  # few are described together, once for all scopes
        if times.height > _FEW_GAPS:
            own = self.cut(times.with_row_index("whole"))["whole"].unique().sort()
        parts, pieces, spans = idle_in_pieces(self.trace, own)
        parts = parts.with_row_index("whole").drop(
            "step",
            "gap_ns",
            "after_name",
            "after_stream",
            "next_event",
            "next_stream",
        )
        calls = host_spans(self.trace).filter(kind="call")
        return pauses_of(self.cut(parts), pieces, spans, calls, kernels)

    def idle(self, *causes: str) -> pl.DataFrame:
        """Pauses of devices with one of some causes, but those with a reason of the host."""
        if self.trace.capture.on_host:
            return self.pauses.clear()
        return self.pauses.filter(pl.col("cause").is_in(causes) & pl.col("reason").is_null())

    @cached_property
    def bounds(self) -> pl.DataFrame:
        """Operators with a bound in the windows of each rank: their time there, at the bound,
        and the longest event.
        """
        rows, events = operators_with_bounds(self.trace)
        of_row = (
            "stage",
            "operator",
            "shapes",
            "kernel",
            "bound_by",
            "fits_cache",
            "bound_share",
        )
        times = (
            self.cut(events.select(*LANE, "start_ns", "dur_ns", "row", "call"))
            .group_by("rank", "row")
            .agg(
                pl.col("start_ns", "dur_ns").sort_by("dur_ns").last(),
                count=pl.n_unique("call"),
                time_ns=pl.sum("dur_ns"),
            )
        )
        known = rows.drop_nulls("bound_share").select("row", *of_row)
        times = times.join(known, on="row").with_columns(
            bound_ns=pl.col("time_ns") * pl.col("bound_share")
        )
        return times.select(
            "rank", *of_row[:-1], "count", "time_ns", "bound_ns", "start_ns", "dur_ns"
        ).sort("rank", "stage", "operator", "shapes", "kernel", "time_ns")

    def begun(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Rows with ``rank, start_ns`` that begin in a window of their rank; they are not cut."""
        ends = self.windows.select("rank", "start_ns", end=END)
        ends = ends.unique(["rank", "start_ns"])
        window = last_before(frame, ends, ["rank"], at="start_ns")
        return frame.filter((frame["start_ns"] < ends["end"].gather(window)).fill_null(False))

    def own_rows(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Rows of a frame with ``rank`` and ``step`` that belong to the steps."""
        if self.steps is None:
            return frame
        return frame.join(self.steps[["rank", "step"]], on=["rank", "step"], how="semi")


def scope_of(trace: Trace, *, step: int | None = None) -> Scope:
    """The scope of the phase that takes most of the time: see :func:`scopes_of`."""
    return scopes_of(trace, step=step)[0]


def scopes_of(trace: Trace, *, step: int | None = None) -> list[Scope]:
    """A scope for each phase with much of the time, else the steps with device work, else the
    whole recording.
    """
    # Captures of graphs do not count as a run; a recording of captures alone has an empty scope.
    step_rows, recorded = steps_of(trace), recorded_windows(trace)
    recorded_ns = int(recorded["dur_ns"].sum())
    ran = (
        step_rows["start_ns"].null_count() < step_rows.height
    )  # a label may hold no work of a device
    if not ran and step is None:
        used = used_windows(trace)
        if has_lost(trace):  # what is not complete gets no cause
            used = used.clear()
        return [Scope(trace, "whole recording", None, used, recorded_ns)]
    windows = step_windows(trace)
    if step is not None:
        every = _working_steps(step_rows, windows)
        return [
            Scope(
                trace,
                f"step {step}",
                _one_step(every, step),
                windows.filter(step=step),
                recorded_ns,
            )
        ]
    return [
        Scope(trace, words, chosen, windows_of(words, windows, chosen), recorded_ns, of_ns)
        for words, chosen, of_ns in _choices(trace)
    ]


@per_trace
def _choices(trace: Trace) -> list[ScopeSteps]:
    """The scopes of a trace with steps."""
    return choose_scopes(steps_of(trace), step_windows(trace), steady_steps(trace))


def windows_of(words: str, windows: pl.DataFrame, chosen: pl.DataFrame | None) -> pl.DataFrame:
    """Windows of the chosen steps, or of the pauses after them."""
    return _step_windows(request_pauses(windows) if words == REQUEST_PAUSES else windows, chosen)


def _step_windows(windows: pl.DataFrame, chosen: pl.DataFrame | None) -> pl.DataFrame:
    assert chosen is not None  # noqa: S101 - there are steps
    return windows.join(
        chosen[["rank", "step"]], on=["rank", "step"], how="semi", maintain_order="left"
    )


MUCH = 0.1
"""Least share of the time of all steps for a phase to have findings of its own."""

USED: Final = "the time from the first to the last event of a device"
"""Denominator of the shares of a recording without steps."""

INDUCTOR: Final = r"^triton_(?:poi|per|red|tem|mm)_"
"""Names of kernels that torch.compile has made."""

MIN_SLOW = 0.05
"""Least share of the time of decoding for slow steps to have findings of their own."""

STEADY = "steady decode steps"

ScopeSteps = tuple[str, pl.DataFrame | None, int | None]
"""Words for a part of a run, its steps (None without steps), and the time of all steps that it
stands for (ns).
"""


def choose_scopes(
    step_rows: pl.DataFrame, windows: pl.DataFrame, steady: pl.DataFrame
) -> list[ScopeSteps]:
    """Representative parts of a run, that of the phase with most of the time first."""
    # Steady decode steps stand for all decode steps if every rank has some.
    if step_rows["start_ns"].null_count() == step_rows.height:
        return [("whole recording", None, None)]
    every, warm = (_working_steps(step_rows, of) for of in (windows, without_long_first(windows)))
    ranks = every["rank"].n_unique()
    phases = windows.group_by("phase").agg(pl.sum("dur_ns"), ranks=pl.n_unique("rank"))
    phases = phases.sort("dur_ns", "phase", descending=[True, False])
    # ranks of one phase each are instances for it
    of_rank = windows.group_by("rank", "phase").agg(pl.sum("dur_ns"))
    share = pl.col("dur_ns") / pl.sum("dur_ns").over("rank")
    apart = of_rank.filter(share >= MUCH)["rank"].is_unique().all()
    much = phases.filter(
        (pl.col("dur_ns") >= MUCH * pl.sum("dur_ns")) & ((pl.col("ranks") == ranks) | apart)
    )
    if not much.height or "other" in much["phase"]:
        return [("steps", warm, None)]
    chosen: list[ScopeSteps] = []
    for phase, ns, phase_ranks in much.iter_rows():
        if phase == "decode" and steady.height and steady["rank"].n_unique() == phase_ranks:
            chosen += _usual_and_slow(step_rows, windows, steady, ns)
        elif phases.height == 1:
            chosen.append(("steps", warm, None))
        else:
            chosen.append((f"{phase} steps", every.filter(phase=phase), ns))
    pauses = request_pauses(windows)
    paused_ns = int(pauses["dur_ns"].sum())
    if paused_ns >= MUCH * (paused_ns + int(windows["dur_ns"].sum())):
        chosen.append((REQUEST_PAUSES, _working_steps(step_rows, pauses), paused_ns))
    return chosen


def _usual_and_slow(
    step_rows: pl.DataFrame, windows: pl.DataFrame, steady: pl.DataFrame, decode_ns: int
) -> list[ScopeSteps]:
    """Steady steps stand for decoding, or all usual ones where these take another time; slow
    ones for themselves, where they are much of it.
    """
    typical, slow = decode_steps(step_rows, windows, steady)
    slow_ns = int(_step_windows(windows, slow)["dur_ns"].sum())
    chosen: ScopeSteps = (STEADY if typical is steady else USUAL_STEPS, typical, decode_ns)
    if slow_ns < MIN_SLOW * decode_ns:
        return [chosen]
    return [(*chosen[:2], decode_ns - slow_ns), (SLOW_STEPS, slow, slow_ns)]


def _working_steps(step_rows: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    some = windows[["rank", "step"]].unique()
    return step_rows.join(some, on=["rank", "step"], how="semi", maintain_order="left")


def _one_step(every: pl.DataFrame, step: int) -> pl.DataFrame:
    chosen = every.filter(step=step)
    if chosen.is_empty():
        numbers = every["step"].unique().sort().to_list()
        expected = f"one from {numbers[0]} to {numbers[-1]}" if numbers else "a trace with steps"
        raise AnalysisError(f"there is no step {step} with device work", expected=expected)
    return chosen
