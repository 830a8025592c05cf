"""Analyses of a dataset on many workers: each rank separately, then a join of the results that
need all ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import polars as pl

from llmprof import names
from llmprof.analyze import catalog
from llmprof.analyze.collectives.collectives import collectives, matched, recorded_calls
from llmprof.analyze.idle.gaps import idle
from llmprof.analyze.idle.host import call_kinds, launch_delay
from llmprof.analyze.layers import host_times
from llmprof.analyze.operator_times import refuse_samples
from llmprof.analyze.step_times import (
    recorded_windows,
    request_pauses,
    slow_steps,
    steady_steps,
    step_windows,
    time_parts,
    used_windows,
    without_long_first,
)
from llmprof.errors import (
    AnalysisError,
    ClusterError,
    LlmprofError,
    NotCapturedError,
    bound,
    checked,
)
from llmprof.findings.card import REQUEST_PAUSES, SLOW_STEPS, USUAL_STEPS
from llmprof.findings.cause import AI_CPU_NAME
from llmprof.findings.causes.npu import CORE_FACTS, FORMAT_CHANGES
from llmprof.findings.ranking import rank_findings
from llmprof.findings.rows import measured_causes, scope_findings
from llmprof.findings.scope import STEADY, Scope, ScopeSteps, choose_scopes
from llmprof.label.events import label_events
from llmprof.label.steps.steps import steps_of
from llmprof.report.dataset.cluster import Lost, Workers, workers
from llmprof.report.dataset.plans import plan_of
from llmprof.text import Progress, counted
from llmprof.trace import Trace, schema
from llmprof.trace import kept as kept_results
from llmprof.trace.storage import deferred
from llmprof.trace.storage.deferred import Deferred
from llmprof.trace.storage.places import Place

CALLS: Final = ("rank", "start_ns", "dur_ns", "name", "wait_ns", "reason")
"""Columns that a worker needs of the calls of its rank."""

_EVENTS: Final = (
    "rank",
    "device",
    "start_ns",
    "dur_ns",
    "name",
    "source",
    "category",
    "stage",
    "layer",
    "confidence",
    "evidence",
    "operator",
    "shapes",
    "launch_start_ns",
)
_PAUSES: Final = (
    "rank",
    "device",
    "gap",
    "in_step",
    "begun_ns",
    "start_ns",
    "dur_ns",
    "cause",
    "waited_name",
    "waited_kind",
    "host_name",
    "host_kind",
    "launch_start_ns",
    "call",
    "who",
    "reason",
    "waited_ns",
)


def scope_windows(trace: Trace, *, words: str) -> pl.DataFrame:
    """Representative windows of one rank (``words``: steady, usual or slow decode steps, steps (of
    a phase) or whole recording).
    """
    if words == "whole recording":
        return used_windows(trace)
    windows = step_windows(trace)
    if words == "steps":
        return without_long_first(windows)
    if words == REQUEST_PAUSES:
        return request_pauses(windows)
    if words not in (STEADY, SLOW_STEPS, USUAL_STEPS):
        return windows.filter(pl.col("phase") == words.removesuffix(" steps"))
    chosen = steady_steps(trace)
    if words != STEADY:
        chosen = slow_steps(steps_of(trace), windows, chosen)
    if words == USUAL_STEPS:
        chosen = windows.filter(phase="decode").join(chosen, on=["rank", "step"], how="anti")
    return windows.join(chosen, on=["rank", "step"], how="semi", maintain_order="left")


def _scope(trace: Trace, words: str) -> Scope:
    return Scope(trace, words, None, scope_windows(trace, words=words), 0)


def scope_times(trace: Trace, *, words: str) -> pl.DataFrame:
    """Windows of one rank, divided into parts that add up to them."""
    return time_parts(trace, scope_windows(trace, words=words))


def scope_events(trace: Trace, *, words: str) -> pl.DataFrame:
    """Device events in the windows of one rank; texts are categorical, since few values repeat
    often.
    """
    return _numbered_texts(_scope(trace, words).events.select(_EVENTS))


def scope_bounds(trace: Trace, *, words: str) -> pl.DataFrame:
    """Operators of one rank with a bound, and their time in its windows."""
    return _scope(trace, words).bounds


def scope_pauses(trace: Trace, *, words: str) -> pl.DataFrame:
    """Pauses of the device in the windows of one rank."""
    return _numbered_texts(_scope(trace, words).pauses.select(_PAUSES))


def scope_hosts(trace: Trace) -> pl.DataFrame:
    """Whether one rank has operators of the host in place of device events:

    ``rank, events, operators``.
    """
    events = trace.events
    return events.group_by("rank").agg(events=pl.len(), operators=(pl.col("source") == "op").sum())


def replay_calls(trace: Trace) -> pl.DataFrame:
    """Calls of one rank that replay a graph."""
    if not trace.has("runtime"):
        return schema.empty("runtime")
    calls = trace.runtime
    return calls.filter(call_kinds(calls["name"])["replays"]).select(
        list(schema.TABLES["runtime"].schema)
    )


def copied_rows(trace: Trace) -> pl.DataFrame:
    """Copies of one rank."""
    return trace.copies.select(list(schema.TABLES["copies"].schema))


def measured_kernels(trace: Trace) -> pl.DataFrame:
    """Kernels of one rank with measured core metrics, or else those that an NPU's names single
    out.
    """
    kernels = trace.kernels
    facts = [column for column in CORE_FACTS if column in kernels.columns]
    kept = ["rank", "device", "start_ns", "dur_ns", "name", *facts]
    named = pl.col("name").str.contains(f"{AI_CPU_NAME}|{FORMAT_CHANGES}")
    return kernels.select(kept) if facts else kernels.select(kept).filter(named)


def _numbered_texts(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col(pl.String).cast(pl.Categorical))


OF_SCOPE: Final[dict[str, Callable[..., pl.DataFrame]]] = {
    one.__name__: one
    for one in (scope_windows, scope_times, scope_events, scope_pauses, scope_bounds)
}
"""Functions of one rank that depend on the representative steps."""

OF_RANK: Final[dict[str, Callable[..., pl.DataFrame]]] = {
    one.__name__: one
    for one in (scope_hosts, replay_calls, copied_rows, measured_kernels, host_times)
}
"""The other functions of one rank, except ``launch_delay``."""


def scope_choices(first: Mapping[str, pl.DataFrame | None]) -> list[ScopeSteps]:
    """The representative parts of the run, from the first pass over all ranks."""
    frames = {name: frame for name, frame in first.items() if frame is not None}
    if "recorded_windows" not in frames:
        raise NotCapturedError(
            "no rank of the dataset holds kernels, copies or operators", table="kernels"
        )
    return choose_scopes(frames["steps"], frames["step_windows"], frames["steady_steps"])


def findings_of_ranks(
    trace: Trace,
    chosen: ScopeSteps,
    results: Mapping[str, pl.DataFrame | None],
    calls: pl.DataFrame | None,
) -> pl.DataFrame:
    """Findings from the results of all ranks."""
    tables: dict[str, Any] = {name: results.get(result) for name, result in _TABLES.items()}
    # one row for each rank in a table that no rule looks at, so that it has the ranks of the
    # dataset
    ranks = pl.Series(trace.ranks, dtype=pl.Int32)
    tables["counters"] = pl.DataFrame({"rank": ranks}).with_columns(
        time_ns=0, name=pl.lit(""), value=0.0
    )
    # a trace with the tables that the rules look into; all other results are stored with it here
    small = Trace(
        {name: frame for name, frame in tables.items() if frame is not None},
        trace.meta,
        trace.coverage,
    )
    kept: list[tuple[Any, pl.DataFrame | None, dict[str, Any]]] = [
        (collectives, calls, {}),
        (launch_delay, results.get("launch_delay"), {}),
        (recorded_windows, results.get("recorded_windows"), {}),
        (host_times, results.get("host_times"), {}),
    ]
    for function, frame, options in kept:
        if frame is not None:
            kept_results.keep(small, function, frame, **options)
    texts = pl.col(pl.Categorical).cast(pl.String)
    windows, events, gaps = (
        results[name] for name in ("scope_windows", "scope_events", "scope_pauses")
    )
    recorded = results["recorded_windows"]
    assert windows is not None and recorded is not None  # noqa: S101, PT018 - choice looked at them
    words, steps, of_ns = chosen
    scope = Scope(small, words, steps, windows, int(recorded["dur_ns"].sum()), of_ns)
    hosts = results["scope_hosts"]
    on_host = (
        hosts is not None
        and hosts["events"].sum() > 0
        and hosts["events"].sum() == hosts["operators"].sum()
    )
    cut = None if gaps is None else gaps.with_columns(texts)
    scope.__dict__.update(  # set cached properties, which would otherwise read the whole trace
        events=None if events is None else events.with_columns(texts),
        pauses=cut,
        times=results["scope_times"],
        on_host=on_host,
    )
    if results["scope_bounds"] is not None:
        scope.__dict__["bounds"] = results["scope_bounds"]
    return scope_findings(scope, measured_causes(scope), whole=trace)


_TABLES: Final = {"runtime": "replay_calls", "copies": "copied_rows", "kernels": "measured_kernels"}
"""Tables that the rules look into, and the functions that collect the needed rows."""


_NUMBERED: Final = {"event": "events", "next_event": "events", "gap": "gaps", "window": "windows"}
"""Columns that number rows over all ranks: the numbers of a rank continue those of the rank
before it.
"""

_FUNCTIONS: Final[dict[str, Callable[..., pl.DataFrame]]] = {
    **OF_SCOPE,
    **OF_RANK,
    "events": label_events,
    "steady_steps": steady_steps,
    "step_windows": step_windows,
    "recorded_windows": recorded_windows,
    "recorded_calls": recorded_calls,
}


class Asked(NamedTuple):
    """An analysis and its options."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()


class DatasetPart(NamedTuple):
    """The selected part of a dataset, and everything that its analyses depend on."""

    root: str
    written: str
    """Changes when the dataset does."""
    window: tuple[float, float] | None
    tables: tuple[str, ...]
    asked: tuple[str, ...] | None
    patterns: tuple[tuple[str, str], ...]


@dataclass
class RankResults:
    """Results of one rank: frames by request, reasons why there is none, and the number of
    numbered rows.
    """

    frames: dict[Asked, pl.DataFrame] = field(default_factory=dict)
    absent: dict[Asked, NotCapturedError] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


def map(  # noqa: A001
    analysis: str | Callable[..., pl.DataFrame],
    trace: Trace,
    *,
    client: Any = None,
    progress: Progress | None = None,
    **options: Any,
) -> pl.DataFrame:
    """Analyse a dataset with each rank on a worker; the frame equals that of the analysis of the
    whole trace.

    Analyses of single ranks run on the workers. Analyses that need all ranks are split: workers
    find the calls of their rank, and a join on this machine matches them (collectives, arrivals,
    sizes), or the results of the workers are combined (findings, the time of steps, the balance of
    ranks). Other analyses (sums over all kernels, the critical path) load their tables on this
    machine.

    Parameters
    ----------
    analysis : str or callable
        Name of an analysis (:func:`llmprof.analyze.catalog.analyses` lists them) or its function.
    trace : Trace
        Trace from :func:`llmprof.open`, or a part of it. A trace from :func:`llmprof.read` is
        analysed in this process.
    client : dask.distributed.Client, str, None or False
        Workers: a Dask client, the address of a scheduler, or False for this process alone. By
        default one process for each core of this machine.
    progress : callable, optional
        Called with the current task, the number of finished ranks, and the number of all ranks.
    **options
        Options of the analysis.

    Returns
    -------
    polars.DataFrame
        As the analysis returns it.

    Raises
    ------
    LlmprofError
        There is no such analysis.
    NotCapturedError
        No rank recorded what it needs.
    ReadError
        A partition is damaged.
    ClusterError
        Dask is not installed, or its scheduler or all of its workers are gone.

    Examples
    --------
    >>> many = llmprof.convert(sample_folder, "dataset", client=False)
    >>> llmprof.map("overlap", many, client=False).equals(analyze.overlap(many))
    True
    """
    name = analysis if isinstance(analysis, str) else getattr(analysis, "__name__", "")
    entry = catalog.analysis(name)
    if not isinstance(trace._tables, Deferred):
        return checked(entry.function)(trace, **options)
    (frame,) = map_several({entry.name: options}, trace, client=client, progress=progress).values()
    return frame


def map_several(
    analyses: Mapping[str, Mapping[str, Any]] | Sequence[str],
    trace: Trace,
    *,
    client: Any = None,
    progress: Progress | None = None,
) -> dict[str, pl.DataFrame]:
    """Run several analyses of a dataset; workers read each rank only once. See :func:`map`.

    Parameters
    ----------
    analyses : mapping of str to mapping, or sequence of str
        Names of analyses, with their options.
    trace : Trace
        Of :func:`llmprof.open`, or a part of it.
    client, progress
        As of :func:`map`.

    Returns
    -------
    dict of str to polars.DataFrame
        Frames by the names of the analyses.
    """
    given = analyses if isinstance(analyses, Mapping) else {name: {} for name in analyses}
    chosen = {catalog.analysis(name).name: dict(options) for name, options in given.items()}
    with workers(client, len(trace.ranks)) as team:
        return _Work(trace, team, progress).frames(chosen)


def prepare(
    analyses: Mapping[str, Mapping[str, Any]],
    trace: Trace,
    *,
    client: Any = None,
    progress: Progress | None = None,
) -> dict[str, pl.DataFrame]:
    """Several analyses of a dataset, which are kept with it: calling them afterwards takes no
    time.
    """
    with workers(client, len(trace.ranks)) as team:
        return _Work(trace, team, progress).frames(analyses, kept=trace)


class _Work:
    """Analyses of one dataset on some workers."""

    def __init__(self, trace: Trace, team: Workers[Any], progress: Progress | None) -> None:
        assert isinstance(trace._tables, Deferred)  # noqa: S101 - map checked it
        self.trace, self.team, self.progress = trace, team, progress
        tables = trace._tables
        asked = None if trace.capture.asked is None else tuple(trace.capture.asked)
        self.view = DatasetPart(
            tables.place.root,
            _written(tables),
            tables.window,
            tables.names,
            asked,
            tuple(names.registered()),
        )

    def frames(
        self, chosen: Mapping[str, Mapping[str, Any]], *, kept: Trace | None = None
    ) -> dict[str, pl.DataFrame]:
        """Frames of analyses by their names; with a trace that keeps them, those without any are
        left out.
        """
        chosen = {
            name: bound(_function(name), self.trace, **options).kwargs
            for name, options in chosen.items()
        }
        every = {asked: None for name, options in chosen.items() for asked in _first(name, options)}
        parts = self.by_rank(list(every))
        whole = self.trace.select()  # stored results belong to this call
        calls = self._joined(Asked("recorded_calls"), parts)
        if calls is not None:
            calls = matched(calls, self.trace._meta, self.trace.ranks)
            kept_results.keep(whole, collectives, calls)
        for asked in every:
            if asked.name != "recorded_calls" and (frame := self._joined(asked, parts)) is not None:
                kept_results.keep(whole, _function(asked.name), frame, **dict(asked.options))
        after = [_asked(name, options) for name, options in chosen.items() if _after(name, options)]
        second = self.by_rank(after, self._calls_of(calls))
        out = {}
        for name, options in chosen.items():
            asked = _asked(name, options)
            try:
                if asked in every:
                    out[name] = _or_raise(asked, parts, self._joined(asked, parts))
                elif _after(name, options):
                    out[name] = _or_raise(asked, second, self._joined(asked, second))
                elif name == "findings" and not options:
                    out[name] = self._findings(whole, parts, calls)
                else:
                    out[name] = _function(name)(whole, **options)
            except NotCapturedError:
                if kept is None:
                    raise
                continue
            if kept is not None:
                kept_results.keep(kept, _function(name), out[name], **options)
        return out

    def by_rank(
        self, every: Sequence[Asked], more: Mapping[int, pl.DataFrame] | None = None
    ) -> dict[int, RankResults]:
        """Results of each rank, in the order of the ranks."""
        if not every:
            return {}
        what = f"analysing {counted(len(self.trace.ranks), 'rank')}"
        results: dict[int, RankResults] = {}
        things = [(rank, None if more is None else more.get(rank)) for rank in self.trace.ranks]
        for (rank, _), result in self.team.each(
            _of_rank, things, self.view, tuple(every), what=what, progress=self.progress
        ):
            if isinstance(result, Lost):
                hint = (
                    "use fewer workers with more memory each, or select fewer tables and steps:"
                    " trace.select(…)"
                )
                raise ClusterError(f"rank {rank} could not be analysed: {result}", hint=hint)
            results[rank] = result
        return dict(sorted(results.items()))

    def _joined(self, asked: Asked, parts: Mapping[int, RankResults]) -> pl.DataFrame | None:
        """One frame of all ranks; None where no rank has one."""
        frames = []
        before = dict.fromkeys(("events", "gaps", "windows"), 0)
        for part in parts.values():
            frame = part.frames.get(asked)
            if frame is not None:
                shifts = [
                    pl.col(column) + before[counted_rows]
                    for column, counted_rows in _NUMBERED.items()
                    if before[counted_rows] and column in frame.columns
                ]
                frames.append(frame.with_columns(shifts) if shifts else frame)
            for name, count in part.counts.items():
                before[name] += count
        return pl.concat(frames, how="vertical_relaxed") if frames else None

    def _calls_of(self, calls: pl.DataFrame | None) -> dict[int, pl.DataFrame] | None:
        """The matched calls of each rank."""
        if calls is None:
            return None
        kept = calls.partition_by("rank", as_dict=True)
        return {rank: kept.get((rank,), calls.clear()) for rank in self.trace.ranks}

    def _findings(
        self, whole: Trace, parts: Mapping[int, RankResults], calls: pl.DataFrame | None
    ) -> pl.DataFrame:
        """Findings: the first pass gives the representative steps, the second the events in
        them.
        """
        refuse_samples(self.trace, "what takes the time of a step")
        first = {
            name: self._joined(Asked(name), parts)
            for name in ("recorded_calls", *(plan_of("findings").first or ()))
        }
        more = self._calls_of(None if calls is None else calls.select(CALLS))
        frames = []
        for choice in scope_choices(first):  # a pass for each, since its windows are numbered
            every = [Asked(name, (("words", choice[0]),)) for name in OF_SCOPE]
            every += [Asked(name) for name in (*OF_RANK, "launch_delay")]
            parts = self.by_rank(every, more)
            second = {asked.name: self._joined(asked, parts) for asked in every}
            frames.append(findings_of_ranks(whole, choice, {**first, **second}, calls))
        return rank_findings(frames)


def _first(name: str, options: Mapping[str, Any]) -> Iterator[Asked]:
    """Requests to the workers for an analysis."""
    plan = plan_of(name)
    if _allows(plan.apart, options) and _by_rank_first(options):
        yield _asked(name, options)
    elif _after(name, options):
        yield Asked("recorded_calls")
    elif plan.first is not None:
        yield Asked("recorded_calls")
        yield from (Asked(needed) for needed in plan.first)


def _after(name: str, options: Mapping[str, Any]) -> bool:
    """Whether an analysis runs for each rank after the calls are matched."""
    plan = plan_of(name)
    if _allows(plan.apart, options):
        return False
    return _allows(plan.with_calls, options) and _by_rank_first(options)


def _allows(allowed: tuple[str, ...] | None, options: Mapping[str, Any]) -> bool:
    return allowed is not None and set(options) <= set(allowed)


def _by_rank_first(options: Mapping[str, Any]) -> bool:
    """Whether the rows of a result are in the order of the ranks."""
    by = options.get("by") or ("rank",)
    return by[0] == "rank" or "rank" not in by


def _asked(name: str, options: Mapping[str, Any]) -> Asked:
    return Asked(name, tuple((key, kept_results.frozen(options[key])) for key in sorted(options)))


def _function(name: str) -> Callable[..., pl.DataFrame]:
    return _FUNCTIONS[name] if name in _FUNCTIONS else catalog.analysis(name).function


def _or_raise(
    asked: Asked, parts: Mapping[int, RankResults], frame: pl.DataFrame | None
) -> pl.DataFrame:
    if frame is not None:
        return frame
    absent = [found.absent[asked] for found in parts.values() if asked in found.absent]
    raise (
        absent[0]
        if absent
        else AnalysisError(f"no rank of the dataset has a result of {asked.name}")
    )


def _written(tables: Deferred) -> str:
    """Names of the partitions, which change with their content."""
    return str(hash(tuple(partition.folder for partition in tables.partitions)))


@functools.lru_cache(maxsize=2)
def _opened(root: str, written: str) -> tuple[Deferred, dict[str, Any], dict[str, Any]]:
    """A dataset, opened once in each process."""
    return deferred.load(Place(root))


def _of_rank(
    thing: tuple[int, pl.DataFrame | None], view: DatasetPart, every: tuple[Asked, ...]
) -> RankResults:
    """Results of analyses of one rank. Runs on a worker."""
    rank, calls = thing
    for category, pattern in reversed(view.patterns):
        if (category, pattern) not in names.registered():
            names.register(category, pattern)
    tables, meta, _ = _opened(view.root, view.written)
    part = tables.narrow(ranks=[rank], window=view.window, tables=view.tables)
    own = {**meta, "ranks": [one for one in meta.get("ranks", ()) if one.get("rank") == rank]}
    tables_read = {} if view.asked is None else {"asked": dict.fromkeys(view.asked)}
    trace = Trace(part, own, {"files": [], "warnings": [], **tables_read})
    if calls is not None:
        kept_results.keep(trace, collectives, calls)
    results = RankResults()
    for one in every:
        try:
            results.frames[one] = _function(one.name)(trace, **dict(one.options))
        except NotCapturedError as error:
            results.absent[one] = error
    numbered = {
        name for frame in results.frames.values() for name in set(_NUMBERED) & set(frame.columns)
    }
    try:
        if not numbered.isdisjoint({"event", "next_event"}):
            results.counts["events"] = trace.events.height
        if "gap" in numbered:
            gaps = idle(trace)["gap"].max()
            results.counts["gaps"] = gaps + 1 if isinstance(gaps, int) else 0
        if "window" in numbered:
            (windows,) = (one for one in every if one.name == "scope_windows")
            results.counts["windows"] = results.frames[windows].height
    except LlmprofError:
        pass
    return results
