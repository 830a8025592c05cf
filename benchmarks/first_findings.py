"""Whether first findings are true: every number of them computed again from the file, and a
judgement of each.

``python benchmarks/first_findings.py`` asks llmprof, in a process of its own, for the first finding
of each recording of ``first_findings.tsv``, computes its figures again with :mod:`_raw` (``json``,
``sqlite3``, ``csv``; nothing of llmprof), and writes the table of ``benchmarks/first_findings.md``. The
judgement and its reason are in the TSV file: they were written by hand, for the rule that stood
first then; where another rule stands first now, there is none.
"""

from __future__ import annotations

import argparse
import bisect
import csv
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import _raw
from _raw import Raw, Span

ROOT: Final = Path(__file__).resolve().parent.parent
JUDGED: Final = Path(__file__).with_name("first_findings.tsv")
PAGE: Final = ROOT / "benchmarks" / "first_findings.md"

STATED: Final = """
import json, sys, warnings
warnings.simplefilter("ignore")
import llmprof
from llmprof.errors import LlmprofError
from llmprof import analyze
from llmprof.findings.facts import run_facts
for path in sys.argv[1:]:
    try:
        trace = llmprof.read(path)
        rows = analyze.findings(trace).to_dicts()
        went = [r["value"] for r in run_facts(trace).to_dicts() if r["what"] == "recorded time"]
        steps = [] if trace.capture.on_host else analyze.steps(trace).select("rank", "phase", "start_ns", "dur_ns").to_dicts()
        print(json.dumps({"findings": rows[:3], "recorded": went[0] if went else None, "steps": steps}))
    except LlmprofError as error:
        print(json.dumps({"error": str(error)[:100]}))
"""

Interval = tuple[int, int]


def union(spans: Iterable[Interval]) -> list[Interval]:
    """Merged intervals, in order."""
    out: list[Interval] = []
    for start, end in sorted(spans):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        elif end > start:
            out.append((start, end))
    return out


def inside(merged: list[Interval], start: int, end: int) -> int:
    """Length of merged intervals within a window."""
    at = bisect.bisect_right(merged, (start,)) - 1
    total = 0
    for low, high in merged[max(0, at) :]:
        if low >= end:
            break
        total += max(0, min(high, end) - max(low, start))
    return total


def length(merged: list[Interval]) -> int:
    return sum(end - start for start, end in merged)


COMMUNICATION: Final = (
    r"(?i)nccl|rccl|hcom_|hccl|allreduce|all_reduce|cross_device_reduce"
    r"|^gloo:|c10d::|alltoall|dispatch_kernel|combine_kernel|internode|intranode"
)
GEMM: Final = (
    r"(?i)gemm|gemv|cutlass|cublas|Cijk|nvjet|splitK|xmma|wvSplit|matmul|MatMul|mm_kernel|Linear"
)
ATTENTION: Final = r"(?i)(?<!cache_)flash(?!::prepare)|fmha|attention|attn|paged"
EXPERTS: Final = r"(?i)moe|expert|topk_?gating"

LABEL: Final = re.compile(
    r"execute_(?:context_|new_)?(\d+)(?:\((\d+)\))?_(?:generation_|cached_)?(\d+)(?:\((\d+)\))?"
)


@dataclass
class Window:
    """Time of one step on one device, or all that was recorded of it."""

    rank: int
    lane: Any
    start: int
    end: int
    phase: str = "whole"
    key: Any = None
    span: int = 0

    @property
    def ns(self) -> int:
        return self.end - self.start


@dataclass
class Measured:
    """What was computed of a recording, by name; each is a time (ns), a share or a count."""

    times: dict[str, float] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)


class Recording:
    """A recording with its steps, windows and gaps, computed anew."""

    def __init__(self, raw: Raw, stated: dict[str, Any]) -> None:
        self.raw, self.stated = raw, stated
        self.by_lane: dict[tuple[int, Any], list[Span]] = defaultdict(list)
        for event in raw.device:
            self.by_lane[event.rank, event.lane].append(event)
        self.bounds: dict[int, Interval] = {}
        for event in (*raw.device, *raw.host):
            low, high = self.bounds.get(event.rank, (event.start, event.end))
            self.bounds[event.rank] = (min(low, event.start), max(high, event.end))
        self.windows_by = "the file"

    def call(self, event: Span) -> Span | None:
        """The launching call of a device event."""
        return self.raw.launches.get(event.link) if event.link is not None else None

    # steps

    @cached_property
    def steps(self) -> list[Window]:
        """Steps of each device, from its first event to that of the next step."""
        for find in (self._labelled, self._profiler_steps, self._optimizer_steps):
            if found := find():
                return found
        return self._stated_steps()

    def _labelled(self) -> list[Window]:
        ranges = [
            e
            for e in self.raw.host
            if e.kind == "range" and (LABEL.search(e.name) or e.name == "execute_model")
        ]
        spans = []
        for e in ranges:
            match = LABEL.search(e.name)
            if match is None:
                spans.append((e, "other", None))
                continue
            contexts, generations = int(match[1]), int(match[3])
            phase = {(True, True): "mixed", (True, False): "prefill", (False, True): "decode"}.get(
                (contexts > 0, generations > 0), "empty"
            )
            spans.append((e, phase, generations))
        return self._of_ranges(spans)

    def _profiler_steps(self) -> list[Window]:
        ranges = [e for e in self.raw.host if e.name.startswith("ProfilerStep#")]
        return self._of_ranges([(e, "other", None) for e in ranges], any_thread=True)

    def _optimizer_steps(self) -> list[Window]:
        ends = sorted(
            (e for e in self.raw.host if e.name.startswith("Optimizer.step#")), key=lambda e: e.end
        )
        last: dict[int, int] = {}
        spans = []
        for e in ends:
            begin = last.get(e.rank, self.bounds[e.rank][0])
            spans.append((e._replace(start=begin), "other", None))
            last[e.rank] = e.end
        return self._of_ranges(spans, any_thread=True)

    def _of_ranges(
        self, spans: list[tuple[Span, str, Any]], *, any_thread: bool = False
    ) -> list[Window]:
        """Steps by the range of the host in which the launch of each event begins."""
        lanes: dict[Any, list[tuple[Span, str, Any]]] = defaultdict(list)
        for span in spans:
            lanes[(span[0].rank,) if any_thread else (span[0].rank, span[0].lane)].append(span)
        starts = {}
        for lane, rows in lanes.items():
            rows.sort(key=lambda row: row[0].start)
            starts[lane] = [row[0].start for row in rows]
        of_step: dict[tuple[Any, int], list[Span]] = defaultdict(list)
        for event in self.raw.device:
            call = event if self.raw.on_host else self.call(event)
            if call is None:
                continue
            lane = (event.rank,) if any_thread or self.raw.on_host else (call.rank, call.lane)
            if lane not in starts and self.raw.on_host:
                lane = next((k for k in starts if k[0] == event.rank), lane)
            at = bisect.bisect_right(starts.get(lane, []), call.start) - 1
            if at < 0:
                continue
            label, phase, _ = lanes[lane][at]
            if label.end < call.start and (any_thread or label.name == "execute_model"):
                continue
            if label.end < call.start and phase == "empty":
                at += 1  # work after an empty step is the next one's
            if at < len(lanes[lane]):
                of_step[lane, at].append(event)
        found = []
        for (lane, at), events in of_step.items():
            start, end = min(e.start for e in events), max(e.end for e in events)
            found.append((events[0].rank, start, end, *lanes[lane][at][1:]))
        found.sort(key=lambda row: (row[0], row[1]))
        out = []
        for number, (rank, start, end, phase, key) in enumerate(found):
            follows = number + 1 < len(found) and found[number + 1][0] == rank
            until = found[number + 1][1] if follows else end
            lanes_of = [
                lane
                for of, lane in self.by_lane
                if of == rank and phase != "empty" and until > start
            ]
            out += [
                Window(rank, lane, start, until, phase, key, min(end, until) - start)
                for lane in lanes_of
            ]
        return out

    def _stated_steps(self) -> list[Window]:
        """Steps that no label names: where they begin and end is taken from llmprof, and only
        that.
        """
        rows = sorted(
            (r for r in self.stated["steps"] if r["start_ns"] is not None),
            key=lambda r: (r["rank"], r["start_ns"]),
        )
        if rows:
            self.windows_by = "llmprof"
        zero = min(low for low, _ in self.bounds.values())
        ranks = dict(zip(sorted({r["rank"] for r in rows}), sorted(self.bounds), strict=False))
        out = []
        for number, row in enumerate(rows):
            follows = number + 1 < len(rows) and rows[number + 1]["rank"] == row["rank"]
            start = row["start_ns"] + zero
            end = rows[number + 1]["start_ns"] + zero if follows else start + row["dur_ns"]
            rank = ranks[row["rank"]]
            lanes_of = [lane for of, lane in self.by_lane if of == rank]
            out += [
                Window(rank, lane, start, end, row["phase"], None, row["dur_ns"])
                for lane in lanes_of
            ]
        return out

    @cached_property
    def recorded(self) -> list[Window]:
        return [Window(rank, lane, *self.bounds[rank]) for rank, lane in self.by_lane]

    def scope(self, words: str, ranks: list[int] | None) -> list[Window]:
        """The windows that the words of a finding name."""
        if words == "whole recording":
            chosen = self.recorded
        elif words == "steady decode steps":
            chosen = self._steady()
        elif words.partition(" ")[0] in ("prefill", "mixed", "decode"):
            chosen = [w for w in self.steps if w.phase == words.partition(" ")[0]]
        else:
            chosen = self.steps
        return chosen if ranks is None else [w for w in chosen if w.rank in ranks]

    def _steady(self) -> list[Window]:
        out = []
        for lane in self.by_lane:
            rows = sorted(
                (w for w in self.steps if (w.rank, w.lane) == lane), key=lambda w: w.start
            )
            stretches: list[list[Window]] = []
            previous = ""
            for w in rows:
                if w.phase == "decode":
                    if previous != "decode":
                        stretches.append([])
                    stretches[-1].append(w)
                previous = w.phase
            if not stretches:
                continue
            counts = Counter(w.key for stretch in stretches for w in stretch)
            batch = min(
                (k for k, n in counts.items() if n == max(counts.values())), key=lambda k: k or 0
            )
            kept = [
                [(i, w) for i, w in enumerate(stretch) if w.key == batch] for stretch in stretches
            ]
            rows = max(kept, key=len)
            if len(rows) > 3:
                rows = [(i, w) for i, w in rows if i > 0]
            spans = [w.span for _, w in rows]
            middle = statistics.median(spans)
            spread = statistics.median(abs(s - middle) for s in spans) * 1.4826 * 4
            out += [w for _, w in rows if abs(w.span - middle) <= max(spread, 0.1 * middle)]
        return out

    # device time

    def merged(
        self, rank: int, lane: Any, keep: Callable[[Span], bool] = lambda e: True
    ) -> list[Interval]:
        return union((e.start, e.end) for e in self.by_lane[rank, lane] if keep(e))

    @cached_property
    def busy(self) -> dict[tuple[int, Any], list[Interval]]:
        return {lane: self.merged(*lane) for lane in self.by_lane}

    @cached_property
    def gaps(self) -> list[tuple[Window, Span, Span | None]]:
        """Gaps of each device, with the event that ends each and its launching call."""
        out = []
        for lane, merged in self.busy.items():
            first_at = {}
            for e in sorted(self.by_lane[lane], key=lambda e: (e.start, -(e.end - e.start))):
                first_at.setdefault(e.start, e)
            for (_, end), (start, _) in itertools.pairwise(merged):
                following = first_at[start]
                out.append((Window(*lane, end, start), following, self.call(following)))
        return out

    @cached_property
    def usual_delay(self) -> dict[int, int]:
        """Median time from a launching call to its event on an idle device, by rank; at most 50
        us.
        """
        seen = defaultdict(list)
        for gap, _, call in self.gaps:
            if call is not None and gap.start <= call.start <= gap.end:
                seen[gap.rank].append(gap.end - call.start)
        return {rank: int(min(50_000, statistics.median(rows))) for rank, rows in seen.items()}

    @cached_property
    def pieces(self) -> dict[tuple[int, Any], tuple[list[int], list[tuple[int, int, Span | None]]]]:
        """By thread, what is innermost on the host at each moment."""
        threads = defaultdict(list)
        for e in self.raw.host:
            threads[e.rank, e.lane].append(e)
        out = {}
        for lane, spans in threads.items():
            spans.sort(key=lambda e: (e.start, -e.end))
            rows: list[tuple[int, int, Span | None]] = []
            stack: list[Span] = []
            now = 0

            def upto(moment: int, rows: list[Any] = rows, stack: list[Span] = stack) -> None:
                nonlocal now
                while stack and stack[-1].end <= moment:
                    if stack[-1].end > now:
                        rows.append((now, stack[-1].end, stack[-1]))
                        now = stack[-1].end
                    stack.pop()
                if stack and moment > now:
                    rows.append((now, moment, stack[-1]))
                now = max(now, moment)

            for e in spans:
                if e.end <= e.start:
                    continue
                upto(e.start)
                if not stack or e.end <= stack[-1].end:
                    stack.append(e)
            upto(2**62)
            out[lane] = ([row[0] for row in rows], rows)
        return out

    def doing(self, rank: int, thread: Any, start: int, end: int) -> Iterable[tuple[Span, int]]:
        """Innermost spans of a thread in a window, each with its time."""
        starts, rows = self.pieces.get((rank, thread), ([], []))
        for low, high, span in rows[max(0, bisect.bisect_right(starts, start) - 1) :]:
            if low >= end:
                break
            shared = min(high, end) - max(low, start)
            if shared > 0 and span is not None:
                yield span, shared

    def causes(self, windows: list[Window]) -> dict[str, Any]:
        """Idle time of windows by cause, and what the launching thread did before late launches."""
        sums: dict[str, float] = defaultdict(float)
        doing: dict[str, float] = defaultdict(float)
        by_rank: dict[int, float] = defaultdict(float)
        pauses: dict[str, int] = defaultdict(int)
        longest: dict[str, int] = defaultdict(int)
        calls: dict[str, float] = defaultdict(float)
        of_lane = defaultdict(list)
        for w in windows:
            of_lane[w.rank, w.lane].append(w)
        for rows in of_lane.values():
            rows.sort(key=lambda w: w.start)
        syncs = defaultdict(list)
        for e in self.raw.host:
            if e.kind == "call" and re.search(
                r"(?i)synchroni[sz]e|^(?:cuda|hip|cu)memcpy(?!.*async)|^(?:cuda|hip)free$", e.name
            ):
                syncs[e.rank, e.lane].append((e.start, e.end, e.name))
        for rows_of in syncs.values():
            rows_of.sort()
        for gap, _, call in self.gaps:
            for w in of_lane.get((gap.rank, gap.lane), ()):
                low, high = max(gap.start, w.start), min(gap.end, w.end)
                if high <= low:
                    continue
                for cause, start, end in self._split(gap, call, syncs):
                    start, end = max(start, low), min(end, high)
                    if end <= start:
                        continue
                    sums[cause] += end - start
                    pauses[cause] += 1
                    longest[cause] = max(longest[cause], end - start)
                    if cause in ("late", "launch", "sync") and call is not None:
                        if cause != "sync":
                            by_rank[gap.rank] += end - start
                        for span, shared in self.doing(gap.rank, call.lane, start, end):
                            calls[span.name] += shared
                            if cause != "sync":
                                doing[span.name] += shared
                    elif cause == "queued":
                        for thread in {k[1] for k in self.pieces if k[0] == gap.rank}:
                            for span, shared in self.doing(gap.rank, thread, start, end):
                                if span.kind == "call":
                                    calls[span.name] += shared
        return {
            "sums": sums,
            "doing": doing,
            "by_rank": by_rank,
            "pauses": pauses,
            "longest": longest,
            "calls": calls,
        }

    def _split(
        self, gap: Window, call: Span | None, syncs: dict[Any, list[Any]]
    ) -> list[tuple[str, int, int]]:
        """Parts of a gap: until the launching call, the launch itself, and the wait after it."""
        if call is None:
            return [("unknown", gap.start, gap.end)]
        late = min(max(call.start, gap.start), gap.end)
        delay = self.usual_delay.get(gap.rank, 0)
        waits = any(
            s == call.start for s, _, _ in syncs.get((call.rank, call.lane), ())[-1:]
        ) or bool(re.search(r"(?i)memcpy(?!.*async)", call.name))
        until = call.start + delay if waits else max(call.start + delay, call.end)
        if gap.start <= call.start and gap.end - call.start <= 3 * delay:
            until = gap.end
        until = min(max(until, late), gap.end)
        synced = gap.start
        rows = syncs.get((call.rank, call.lane), [])
        at = bisect.bisect_right(rows, (gap.start, 2**62)) - 1
        if at >= 0 and gap.start <= rows[at][1] <= call.start:
            synced = min(max(gap.start + rows[at][1] - rows[at][0], gap.start), late)
        return [
            ("sync", gap.start, synced),
            ("late", synced, late),
            ("launch", late, until),
            ("queued", until, gap.end),
        ]


def of_rule(recording: Recording, finding: dict[str, Any]) -> tuple[float | None, Measured]:
    """The figure of a finding (ns, summed over the windows) and what its sentences may state."""
    rank_words = re.match(r"time of ranks? ([\d, and to]+):", finding["denominator"])
    ranks = numbers_of_ranks(rank_words[1]) if rank_words else None
    windows = recording.scope(finding["scope"], ranks)
    every = recording.scope(finding["scope"], None)
    found = Measured()
    span = sum(w.ns for w in windows)
    whole = sum(w.ns for w in recording.recorded)
    if not windows or not span:
        return None, found
    parts = len(windows)
    found.times |= {
        "step": span / parts,
        "recorded": whole / len(recording.recorded),
        "limit": 5_000,
    }
    found.shares["scope of recorded"] = sum(w.ns for w in every) / whole
    found.counts |= {
        "ranks": len({w.rank for w in windows}),
        "steps": max(Counter((w.rank, w.lane) for w in windows).values()),
        "devices": len(recording.recorded),
    }
    for phase in {w.phase for w in recording.steps}:
        rows = [w for w in recording.steps if w.phase == phase]
        found.shares[phase] = sum(w.ns for w in rows) / whole
        found.counts[phase] = max(Counter((w.rank, w.lane) for w in rows).values())
    found.shares["outside"] = 1 - sum(w.ns for w in recording.steps) / whole
    measure = MEASURES.get(finding["rule"])
    figure = None if measure is None else measure(recording, windows, every, found)
    if figure is not None:
        found.times["figure"] = figure / parts
        found.shares["figure"] = figure / span
    return figure, found


def numbers_of_ranks(words: str) -> list[int]:
    out: list[int] = []
    for part in re.split(r", | and ", words):
        low, _, high = part.partition(" to ")
        out += range(int(low), int(high or low) + 1)
    return out


def cut(recording: Recording, windows: list[Window], keep: Callable[[Span], bool]) -> int:
    """Time of the windows in which an event of a kind runs."""
    lanes = {lane: recording.merged(*lane, keep) for lane in {(w.rank, w.lane) for w in windows}}
    return sum(inside(lanes[w.rank, w.lane], w.start, w.end) for w in windows)


def alone(
    recording: Recording,
    windows: list[Window],
    keep: Callable[[Span], bool],
    others: Callable[[Span], bool],
) -> int:
    """Time in which events of one kind run and none of another."""
    return cut(recording, windows, lambda e: keep(e) or others(e)) - cut(recording, windows, others)


def in_windows(
    recording: Recording, windows: list[Window], keep: Callable[[Span], bool]
) -> list[tuple[Span, int]]:
    """Events that overlap the windows, with their time in them."""
    out = []
    for w in windows:
        for e in recording.by_lane[w.rank, w.lane]:
            if e.start >= w.end:
                break
            if e.end > w.start and keep(e):
                out.append((e, min(e.end, w.end) - max(e.start, w.start)))
    return out


def communicates(event: Span) -> bool:
    return event.kind == "kernel" and bool(re.search(COMMUNICATION, event.name))


OWN_REASON: Final = re.compile(
    r"^(?:cuda|cu|hip)_?(?:Mem|Host|Array|Pool)*(?:Malloc|Free|Alloc|Register|Unregister|Create|Release|Map|Unmap)"
    r"|nvrtc|CompileProgram|aclopCompile|ModuleLoad|LibraryLoad|ModuleGet|LibraryGet"
)
"""Calls whose time has findings of their own, which the lateness of the host leaves out."""


def host_bound(
    recording: Recording, windows: list[Window], every: list[Window], found: Measured
) -> float:
    causes = recording.causes(windows)
    late, launch = causes["sums"]["late"], causes["sums"]["launch"]
    late -= sum(ns for name, ns in causes["doing"].items() if OWN_REASON.search(name))
    if all(w.phase == "whole" for w in windows):
        launch -= sum(ns for ns, _ in first_launches(recording))
    total = max(1.0, late + launch)
    parts = len(windows)
    found.shares["launching calls"] = launch / total
    named: dict[str, float] = defaultdict(float)
    for name, ns in causes["doing"].items():
        if (
            not LABEL.search(name)
            and not name.startswith(("ProfilerStep#", "Optimizer.step"))
            and name != "execute_model"
            and not OWN_REASON.search(name)
        ):
            named[re.sub(r"\d+", "#", name)] += ns
    for place, (_, ns) in enumerate(Counter(named).most_common(2)):
        found.shares[f"host {place}"] = ns / total
    found.shares["host not recorded"] = 1 - sum(named.values()) / total
    kernels = [e for e, _ in in_windows(recording, windows, lambda e: e.kind == "kernel")]
    called = {(c.rank, c.lane, c.start) for e in kernels if (c := recording.call(e))}
    found.counts |= {"kernels": len(kernels) / parts, "calls": len(called) / parts}
    replayed = [
        c
        for e in kernels
        if (c := recording.call(e)) and re.search(r"(?i)graphlaunch|ModelExecute", c.name)
    ]
    found.shares["in graphs"] = len(replayed) / max(1, len(kernels))
    others = [w for w in every if w.rank not in {v.rank for v in windows}]
    if others:
        by_rank = recording.causes(others)["by_rank"]
        each = [by_rank[r] / sum(w.rank == r for w in others) for r in {w.rank for w in others}]
        found.times |= {"others, least": min(each), "others, most": max(each)}
        if (ns := layer_time(recording, others)) is not None:
            found.times["layer of others"] = ns
    if (ns := layer_time(recording, windows)) is not None:
        found.times["layer"] = ns
    return late + launch


def layer_time(recording: Recording, windows: list[Window]) -> float | None:
    """Host time of a layer: from the launch of one attention kernel to that of the next
    (median).
    """
    lengths = []
    named = Counter(
        e.name
        for e, _ in in_windows(recording, windows, lambda e: bool(re.search(ATTENTION, e.name)))
    )
    if not named:
        return None
    anchor = named.most_common(1)[0][0]
    for w in windows:
        calls = [
            c.start
            for e, _ in in_windows(recording, [w], lambda e: e.name == anchor)
            if (c := recording.call(e))
        ]
        calls = sorted(set(calls))
        lengths += [b - a for a, b in itertools.pairwise(calls)]
    return statistics.median(lengths) if lengths else None


def by_calls(pattern: str, kinds: tuple[str, ...] = ("call",)) -> Callable[..., float]:
    """Idle time in which the launching thread, or a call that holds the device, is in certain
    calls or functions.
    """

    def measured(
        recording: Recording, windows: list[Window], every: list[Window], found: Measured
    ) -> float:
        hit = re.compile(pattern)
        lanes = {(w.rank, w.lane) for w in windows}
        total, pauses, longest = 0, 0, 0
        by_name: Counter[str] = Counter()
        spans: dict[int, list[Span]] = defaultdict(list)
        for e in recording.raw.host:
            if e.kind in kinds and hit.search(e.name):
                spans[e.rank].append(e)
        merged = {rank: union((e.start, e.end) for e in rows) for rank, rows in spans.items()}
        for w in windows:
            for gap, _, _ in recording.gaps:
                if (
                    (gap.rank, gap.lane) != (w.rank, w.lane)
                    or gap.end <= w.start
                    or gap.start >= w.end
                ):
                    continue
                low, high = max(gap.start, w.start), min(gap.end, w.end)
                shared = inside(merged.get(gap.rank, []), low, high)
                total += shared
                pauses += shared > 0
                longest = max(longest, shared)
                if shared:
                    for e in spans[gap.rank]:
                        if e.start < high and e.end > low:
                            by_name[e.name] += min(e.end, high) - max(e.start, low)
        begun = [
            e
            for rank in {r for r, _ in lanes}
            for e in spans.get(rank, [])
            if any(w.start <= e.start < w.end for w in windows)
        ]
        if by_name:
            name, most = by_name.most_common(1)[0]
            found.shares["most of it"] = min(1.0, most / max(1, total))
            own = [e for e in begun if e.name == name]
            found.counts["calls"] = len(own)
            found.times["calls"] = sum(e.end - e.start for e in own)
        found.counts["pauses"] = pauses / len(windows)
        found.times["longest"] = longest
        return total

    return measured


def first_launches(recording: Recording) -> list[tuple[int, Span]]:
    """Launching calls of at least 1 ms that are a kernel's first, with their time in a gap."""
    firsts: dict[tuple[int, str], int] = {}
    for e in recording.raw.device:
        if e.kind == "kernel":
            firsts.setdefault((e.rank, e.name), e.start)
    longs = []
    for gap, following, call in recording.gaps:
        if (
            call is None
            or following.kind != "kernel"
            or firsts[gap.rank, following.name] != following.start
        ):
            continue
        shared = min(gap.end, call.end) - max(gap.start, call.start)
        if shared >= 1_000_000 and re.search("(?i)launch", call.name):
            longs.append((shared, call))
    return longs


def loading(
    recording: Recording, windows: list[Window], every: list[Window], found: Measured
) -> float:
    """Loading calls, and launching calls of at least 1 ms that are a kernel's first."""
    total = by_calls(r"(?i)ModuleLoad|LibraryLoad|ModuleGet|LibraryGet")(
        recording, windows, every, found
    )
    longs = first_launches(recording)
    if longs:
        total += sum(ns for ns, _ in longs)
        found.counts["pauses"] = len(longs)
        found.times["longest"] = max(ns for ns, _ in longs)
        own = [e for e in recording.raw.host if e.name == longs[0][1].name]
        found.counts["calls"], found.times["calls"] = len(own), sum(e.end - e.start for e in own)
        found.shares["most of it"] = sum(ns for ns, _ in longs) / total
    return total


def unexplained_idle(
    recording: Recording, windows: list[Window], every: list[Window], found: Measured
) -> float:
    causes = recording.causes(windows)
    unknown, queued = causes["sums"]["unknown"], causes["sums"]["queued"]
    found.counts["pauses"] = causes["pauses"]["unknown"] / len(windows)
    if not unknown:
        found.shares["launched"] = 1.0
        long = [g for g, _, _ in recording.gaps]
        found.counts["pauses"] = len(long) / len(windows)
    return unknown + (queued if not unknown else 0)


def left_out(
    recording: Recording, windows: list[Window], every: list[Window], found: Measured
) -> float:
    """Time between the events of a list, of which the file itself says that others ran in it."""
    found.counts["pauses"] = len(recording.gaps) / len(windows)
    return float(sum(gap.ns for gap, _, _ in recording.gaps))


def exposed_communication(
    recording: Recording, windows: list[Window], every: list[Window], found: Measured
) -> float:
    copy = copying(recording)
    computes = lambda e: e.kind == "kernel" and not communicates(e) and not copy(e)  # noqa: E731
    exposed = alone(recording, windows, communicates, computes)
    whole = cut(recording, windows, communicates)
    found.shares["hidden"] = 1 - exposed / max(1, whole)
    begun = [
        e
        for w in windows
        for e in recording.by_lane[w.rank, w.lane]
        if communicates(e) and w.start <= e.start < w.end
    ]
    found.counts["calls"] = len(begun) / len(windows)
    return exposed


def copying(recording: Recording) -> Callable[[Span], bool]:
    """Whether an event copies: a copy, or a kernel whose innermost operator only copies."""
    ops = defaultdict(list)
    for e in recording.raw.host:
        if e.kind == "op":
            ops[e.rank, e.lane].append(e)
    starts = {}
    for lane, rows in ops.items():
        rows.sort(key=lambda e: (e.start, -e.end))
        starts[lane] = [e.start for e in rows]
    known: dict[int, bool] = {}

    def copies(event: Span) -> bool:
        if event.kind in ("copy", "fill"):
            return True
        if id(event) not in known:
            known[id(event)] = _copies(event)
        return known[id(event)]

    def _copies(event: Span) -> bool:
        if re.search(COMMUNICATION, event.name):
            return False
        if re.search(
            r"(?i)direct_copy_kernel|copy_device_to_device|CatArrayBatchedCopy|batched_transpose|nchwToNhwc|nhwcToNchw|recat_copy|constant_pad|fused__to_copy_\d|FillFunctor|memcpy|memset|bfloat16_copy|float8_copy|LoadWithCast<1>",
            event.name,
        ):
            return True
        call = recording.call(event)
        if call is None:
            return False
        rows = ops.get((call.rank, call.lane), [])
        at = bisect.bisect_right(starts.get((call.rank, call.lane), []), call.start) - 1
        while at >= 0 and rows[at].end < call.end:
            at -= 1
        return at >= 0 and rows[at].name in (
            "aten::copy_",
            "aten::cat",
            "aten::fill_",
            "aten::zero_",
            "aten::clone",
        )

    return copies


def copies(
    recording: Recording, windows: list[Window], every: list[Window], found: Measured
) -> float:
    copy = copying(recording)
    own = alone(recording, windows, copy, lambda e: not copy(e))
    by_kernels = alone(
        recording, windows, lambda e: copy(e) and e.kind == "kernel", lambda e: not copy(e)
    )
    found.shares["kernels that copy"] = by_kernels / max(1, own)
    rows = in_windows(recording, windows, copy)
    by_name: Counter[str] = Counter()
    for e, ns in rows:
        by_name["kernel" if e.kind == "kernel" else e.name] += ns
    name = by_name.most_common(1)[0][0] if by_name else ""
    of_name = [(e, ns) for e, ns in rows if ("kernel" if e.kind == "kernel" else e.name) == name]
    found.shares["most of it"] = by_name[name] / max(1, sum(by_name.values()))
    found.counts["copies"] = len(of_name) / len(windows)
    return own


def short_kernels(
    recording: Recording, windows: list[Window], every: list[Window], found: Measured
) -> float:
    kernels = in_windows(recording, windows, lambda e: e.kind == "kernel")
    heavy = re.compile(
        f"{GEMM}|{ATTENTION}|{COMMUNICATION}|{EXPERTS}".replace("(?i)", ""), re.IGNORECASE
    )
    short = [(e, ns) for e, ns in kernels if ns < 5_000 and not heavy.search(e.name)]
    found.counts |= {"short": len(short) / len(windows), "kernels": len(kernels) / len(windows)}
    found.shares["of kernels"] = len(short) / len(kernels)
    found.times["median"] = statistics.median(ns for _, ns in kernels)
    return sum(ns for _, ns in short)


def synchronisation(
    recording: Recording, windows: list[Window], every: list[Window], found: Measured
) -> float:
    causes = recording.causes(windows)
    found.counts["pauses"] = causes["pauses"]["sync"] / len(windows)
    return float(causes["sums"]["sync"])


def device_held(
    recording: Recording, windows: list[Window], every: list[Window], found: Measured
) -> float:
    return by_calls(r"(?i)memcpy(?!.*async)|malloc|free|GraphInstantiate")(
        recording, windows, every, found
    )


def between_operators(
    recording: Recording, windows: list[Window], every: list[Window], found: Measured
) -> float:
    lengths = []
    for w in windows:
        rows = [
            g
            for g, _, _ in recording.gaps
            if (g.rank, g.lane) == (w.rank, w.lane) and g.end > w.start and g.start < w.end
        ]
        lengths += [min(g.end, w.end) - max(g.start, w.start) for g in rows]
    found.counts["pauses"] = len(lengths) / len(windows)
    if lengths:
        found.times["median"] = statistics.median(lengths)
    return float(sum(lengths))


def at_the_ends(
    recording: Recording, windows: list[Window], every: list[Window], found: Measured
) -> float:
    before = after = 0
    for w in windows:
        merged = recording.busy[w.rank, w.lane]
        before += merged[0][0] - w.start
        after += w.end - merged[-1][1]
    found.times |= {"before": before / len(windows), "after": after / len(windows)}
    return before + after


def all_compute(
    recording: Recording, windows: list[Window], every: list[Window], found: Measured
) -> float:
    """Time of the kernels with the most common kind of name, for recordings of few kernels."""
    kernels = in_windows(recording, windows, lambda e: e.kind == "kernel")
    by_name: Counter[str] = Counter()
    for e, ns in kernels:
        by_name[e.name] += ns
    total = sum(by_name.values())
    for place, (_, ns) in enumerate(by_name.most_common(2)):
        found.shares[f"kernel {place}"] = ns / total
        found.times[f"kernel {place}"] = ns
    found.shares["compute"] = cut(recording, windows, lambda e: e.kind == "kernel") / sum(
        w.ns for w in windows
    )
    found.counts["kernels"] = len(kernels)
    return float(total)


MEASURES: Final[dict[str, Callable[..., float]]] = {
    "host_bound": host_bound,
    "allocation": by_calls(
        r"^(?:cuda|cu|hip)_?(?:Mem|Host|Array|Pool)*(?:Malloc|Free|Alloc|Register|Unregister|Create|Release|Map|Unmap)"
    ),
    "compilation": by_calls(
        r"(?i)nvrtc|CompileProgram|compile_fx|async_compile|aclopCompile",
        ("call", "op", "python", "range"),
    ),
    "loading": loading,
    "data_loading": by_calls(r"DataLoader", ("op", "python", "range")),
    "input_preparation": by_calls(
        r"zoom_shift|image_(?:process|transform)|preprocess|tokeniz|ndimage", ("python",)
    ),
    "unexplained_idle": unexplained_idle,
    "left_out": left_out,
    "exposed_communication": exposed_communication,
    "copies": copies,
    "short_kernels": short_kernels,
    "synchronisation": synchronisation,
    "device_held": device_held,
    "between_operators": between_operators,
    "idle_at_the_ends": at_the_ends,
    "heaviest_stage": all_compute,
}

UNITS: Final = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
NUMBER: Final = re.compile(
    r"(?<![\w./(\[#:'\-])(\d[\d,]*(?:\.\d+)?)(?: (ns|us|ms|s|%)(?!\w))?(?![\w/])"
)


def numbers(text: str) -> list[tuple[float, str, float]]:
    """Numbers of a text with their unit, and half of what their last digit stands for."""
    text = re.sub(
        r"\{.*?(?:\}|…)|\branks? \d[\d, ]*(?:(?:and|to) \d+)*(?: to \d+)?|\S*::\S*|\S+\(\d+\)|<[^>]*>|[a-z]+\w*=\S+",
        " ",
        text,
    )
    out = []
    for match in NUMBER.finditer(text):
        digits = match[1].replace(",", "")
        places = len(digits.partition(".")[2])
        scale = UNITS.get(match[2] or "", 1.0)
        out.append((float(digits) * scale, match[2] or "", 0.5 * 10**-places * scale))
    return out


@dataclass
class Row:
    """What is said of a recording, and what was computed of it."""

    name: str
    rule: str
    stated: float
    recomputed: float | None
    step: tuple[float, float]
    unit: str
    stated_numbers: int
    unmatched: list[str]
    windows_by: str
    title: str


def compare(name: str, stated: dict[str, Any]) -> Row:
    """The first finding of a recording beside the same figures computed from its file."""
    recording = Recording(_raw.read(ROOT / name), stated)
    finding = stated["findings"][0]
    figure, found = of_rule(recording, finding)
    parts = len(recording.scope(finding["scope"], None)) or 1
    rank_words = re.match(r"time of ranks? ([\d, and to]+):", finding["denominator"])
    if rank_words:
        parts = len(recording.scope(finding["scope"], numbers_of_ranks(rank_words[1]))) or 1
    texts = [finding["title"], finding["detail"], finding["denominator"], stated["recorded"] or ""]
    unmatched = []
    count = 0
    for text in texts:
        for value, unit, rounding in numbers(text):
            pool = found.times if unit in UNITS else found.shares if unit == "%" else found.counts
            count += 1
            scale = 100 if unit == "%" else 1
            if not any(
                abs(v * scale - value) <= max(0.01 * abs(value), rounding * 1.02)
                for v in pool.values()
            ):
                unmatched.append(f"{value / UNITS.get(unit, 1):g} {unit}".strip())
    mean = re.search(r"(?:: |step: )([\d.,]+ (?:ns|us|ms|s))", finding["denominator"])
    said = numbers(mean[1])[0][0] if mean else float("nan")
    return Row(
        name,
        finding["rule"],
        finding["figure"],
        None if figure is None else figure / parts,
        (said, found.times.get("step", float("nan"))),
        finding["unit"],
        count,
        unmatched,
        recording.windows_by,
        finding["title"],
    )


def checked(name: str) -> Row | None:
    """What llmprof says of a recording, from a process of its own, beside what its file says;
    None without findings.
    """
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYTHONSAFEPATH": "1",
        "POLARS_MAX_THREADS": "1",
    }
    command = [sys.executable, "-c", STATED, str(ROOT / name)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    stated = json.loads(done.stdout)
    return compare(name, stated) if stated.get("findings") else None


def short(ns: float | None) -> str:
    """A time with three digits."""
    if ns is None:
        return "–"
    unit, scale = next(
        ((u, f) for u, f in (("s", 1e9), ("ms", 1e6), ("us", 1e3)) if ns >= f), ("ns", 1.0)
    )
    return f"{ns / scale:.3g} {unit}" if ns < 1e12 else f"{ns / scale:.0f} {unit}"


HEAD: Final = """# Are first findings true?

`python benchmarks/first_findings.py` asks llmprof for the first finding of {count} recordings and computes its numbers
again from the files, with a reader of its own (`benchmarks/_raw.py`: `json`, `sqlite3` and `csv`, nothing of llmprof).
The definitions are those of the documentation, written anew: a step reaches from its first device event to that of
the next step, and a gap is split at the launching call. The script makes this page; recordings of others are
named only.

- Figures: {near} of {count} are within 1 % of the recomputed ones.
- Numbers in the title, the detail, the denominator and the line on the recorded time: {matched:,} of {stated:,} are
  among the recomputed ones, within 1 % or the rounding of their last digit.
- Judgement by reading what is in each file: {judged}. Each is about the rule that stood first when it was written
  (`benchmarks/first_findings.tsv`); where another one stands first now, the table says *not judged*.

Why figures differ by more than 1 %: kernels of which only some names say that they copy or are GEMMs (copies, short
kernels, communication of deepseek); facts about one kind of kernel beside all kernels of the file (heaviest_stage);
hipFree beside pauses whose event had been launched and waited for something else (allocation of resnet18); calls with
a reason of their own inside of the data loader (data_loading); functions of Python with a reason of their own, which
the recomputed lateness of the host includes (host_bound of xdit and mtia); what a kind of work takes beyond its bound
is not recomputed (below_bound).

Why numbers have no match: the host time of a layer (its bounds are llmprof's); bytes, rates and counts of copies by
kind; counts of pauses of a kind; digits that belong to a name (`IO 190`, `driver call 386`, shapes); the denominator
of two Ascend databases, where the steps of another device are taken; and the figures above. The bounds of steps
without labels are llmprof's ({by_llmprof} recordings).

| recording | first finding | stated | recomputed | difference | numbers | without a match | judgement | reason |
| --- | --- | ---: | ---: | ---: | ---: | --- | --- | --- |
"""


def page(rows: list[tuple[Row, dict[str, str]]]) -> str:
    """The page of the documentation."""
    lines, near = [], 0
    words: Counter[str] = Counter()
    for row, judged in rows:
        off = row.stated / row.recomputed - 1 if row.recomputed else None
        near += off is not None and abs(off) <= 0.01
        same = judged["rule"] == row.rule
        words[judged["judgement"] if same else "not judged"] += 1
        unit = row.unit.removeprefix("ns ")
        name = Path(row.name)
        shown = f"{name.parent.name}/{name.name}" if len(name.name) < 12 else name.name
        shown = shown.split(".")[0] if len(shown) > 48 else shown
        matched = f"{row.stated_numbers - len(row.unmatched)}/{row.stated_numbers}"
        lines.append(
            f"| {shown} | {row.rule} | {short(row.stated)} {unit} | {short(row.recomputed)} | "
            f"{'–' if off is None else f'{off:+.1%}'} | {matched} | {', '.join(row.unmatched)} | "
            f"{judged['judgement'] if same else 'not judged'} | "
            f"{judged['reason'] if same else 'another finding stands first now'} |"
        )
    head = HEAD.format(
        count=len(rows),
        near=near,
        matched=sum(r.stated_numbers - len(r.unmatched) for r, _ in rows),
        stated=sum(r.stated_numbers for r, _ in rows),
        judged=", ".join(f"{n} {w}" for w, n in words.most_common()),
        by_llmprof=sum(r.windows_by == "llmprof" for r, _ in rows),
    )
    return head + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", help="recordings whose path has this part; the page is not written"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    args = parser.parse_args()
    with JUDGED.open(newline="") as stream:
        judged = {
            r["recording"]: r
            for r in csv.DictReader(stream, delimiter="\t")
            if args.only in r["recording"]
        }
    names = [name for name in judged if (ROOT / name).exists()]
    rows = []
    with ProcessPoolExecutor(args.jobs) as pool:
        for name, row in zip(names, pool.map(checked, names), strict=True):
            if row is None:
                sys.stdout.write(f"{name}: no finding\n")
                continue
            rows.append((row, judged[name]))
            times = f"stated {short(row.stated)}, recomputed {short(row.recomputed)}"
            steps = f"step {short(row.step[0])} and {short(row.step[1])}"
            sys.stdout.write(
                f"{name}: {row.rule}, {times}, {steps}, without a match: {row.unmatched}\n"
            )
            sys.stdout.flush()
    if not args.only:
        PAGE.write_text(page(rows))


if __name__ == "__main__":
    main()
