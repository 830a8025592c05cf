"""Head of a report: what ran, and what the reading kept."""

from __future__ import annotations

from typing import Any

import polars as pl

from llmprof.trace import Trace
from llmprof.units import format_bytes, format_ns

MEASURES = {
    "step": "a step",
    "stage": "a named stage",
    "category": "a named category",
    "launch": "its launch call",
    "operator": "an operator",
}
"""What device time has by the measures of ``llmprof.analyze.coverage``."""

_LOST = {"truncated", "lost_bytes", "lost_pieces"}


def headline(trace: Trace) -> str:
    """Title of a report that was given none."""
    count = len([rank for rank in trace.ranks if rank >= 0])
    device = trace.meta.get("device")
    ranks = {0: "no rank", 1: "one rank"}.get(count, f"{count} ranks")
    return f"Where the time goes: {ranks}" + (f" on {device}" if device else "")


def work(trace: Trace) -> str:
    """What device time is made of: kernels and copies, or operators that stand in for them."""
    return (
        "operators" if not (trace.has("kernels") or trace.has("copies")) and trace.has("ops") else "kernels and copies"
    )


def facts(trace: Trace) -> list[tuple[str, str]]:
    """What ran, as names and values; what is not known says so."""
    low, high = trace.span_ns
    meta = trace.meta
    ranks = [rank for rank in trace.ranks if rank >= 0]
    world = meta.get("world_size")
    out = [
        ("Device", str(meta.get("device") or "not recorded")),
        ("Ranks", f"{_runs(ranks)} ({len(ranks)} of {world})" if world else _runs(ranks) or "none"),
        ("Recorded time", format_ns(high - low) if high > low else "nothing with a time"),
        ("Clock", str(meta.get("clock") or "not recorded")),
    ]
    out += [(_label(key), version(key, value)) for key, value in dict(meta.get("versions") or {}).items()]
    if work(trace) == "operators":
        out.insert(1, ("Device activity", "none recorded: outermost operators of the host stand in for it"))
    options = ", ".join(f"{key}={value}" for key, value in dict(meta.get("options") or {}).items())
    if options:
        out.append(("Profiler options", options))
    backends = sorted({str(r["backend"]) for r in _list(meta.get("ranks")) if r.get("backend")})
    if backends:
        out.append(("Backend", ", ".join(backends)))
    return out


def files(trace: Trace) -> list[tuple[str, str]]:
    """Files that were read: name, and what of it was kept."""
    out = []
    for file in _list(trace.coverage.get("files")):
        kept, events = file.get("kept"), file.get("events")
        counts = f"{kept:,} of {events:,} events kept" if isinstance(kept, int) and isinstance(events, int) else ""
        size = format_bytes(file["bytes"]) if isinstance(file.get("bytes"), int) else ""
        out.append(
            (str(file.get("file", "")), ", ".join(part for part in (f"rank {file.get('rank')}", size, counts) if part))
        )
    return out


def reading(trace: Trace) -> list[tuple[str, str]]:
    """What reading the files kept and left aside."""
    coverage = trace.coverage
    if not coverage:
        return [("Reading", "nothing is known of how this trace was read")]
    out = []
    if isinstance(coverage.get("events"), int):
        out.append(("Events read", f"{coverage['events']:,}, {coverage.get('kept', 0):,} of them kept"))
    skipped: dict[str, int] = {}
    for file in _list(coverage.get("files")):
        for kind, count in dict(file.get("skipped") or {}).items():
            skipped[kind] = skipped.get(kind, 0) + int(count)
    if skipped:
        words = ", ".join(
            f"{count:,} {kind.replace('_', ' ')}" for kind, count in sorted(skipped.items(), key=lambda i: -i[1])
        )
        out.append(("Left aside on purpose", words))
    lost = coverage.get("lost_bytes", 0)
    out.append(
        ("Lost to damage", f"{lost:,} bytes, about {coverage.get('lost_pieces', 0):,} event(s)" if lost else "nothing")
    )
    return out


def warnings(trace: Trace) -> list[str]:
    """What a reader must know before believing the figures."""
    out = []
    if missing := _list(trace.meta.get("missing_ranks")):
        world = trace.meta.get("world_size")
        out.append(f"Ranks {_runs(missing)} of {world} are missing: waiting for them cannot be seen.")
    for file in _list(trace.coverage.get("files")):
        if file.get("truncated") or file.get("lost_bytes"):
            reason = file.get("truncated") or "some events are not valid JSON"
            out.append(f"{file.get('file')}: {reason}; {file.get('lost_bytes', 0):,} bytes were lost.")
    return out


def shares(coverage: pl.DataFrame | None) -> pl.DataFrame:
    """Coverage over all ranks: ``measure, share, least, rank, of``, ``least`` being the worst rank's share."""
    if coverage is None or not coverage.height:
        return pl.DataFrame(
            schema={"measure": pl.String, "share": pl.Float64, "least": pl.Float64, "rank": pl.Int32, "of": pl.String}
        )
    whole = pl.col("total_ns").sum()
    return coverage.group_by("measure", maintain_order=True).agg(
        share=pl.when(whole > 0).then(pl.col("covered_ns").sum() / whole),
        least=pl.col("share").min(),
        rank=pl.col("rank").sort_by("share", nulls_last=True).first(),
        of=pl.col("of").first(),
    )


def version(key: str, value: Any) -> str:
    """A version as people write it: CUDA's 13000 is 13.0."""
    text = str(value)
    if key.startswith(("cuda_", "cupti_")) and text.isdigit() and len(text) in (5, 6):
        number = int(text)
        return (
            f"{number // 1000}.{number % 1000 // 10}"
            if len(text) == 5
            else f"{number // 10000}.{number % 10000 // 100}.{number % 100}"
        )
    return text


def _label(key: str) -> str:
    names = {"cuda": "CUDA", "cupti": "CUPTI", "vllm": "vLLM", "hip": "HIP", "nccl": "NCCL"}
    words = [names.get(word, word) for word in key.removesuffix("_version").split("_")]
    return " ".join([words[0] if words[0] in names.values() else words[0].capitalize(), *words[1:]])


def _runs(ranks: list[int]) -> str:
    """Numbers with runs joined: ``0-3, 6``."""
    out: list[list[int]] = []
    for rank in ranks:
        if out and rank == out[-1][-1] + 1:
            out[-1].append(rank)
        else:
            out.append([rank])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in out)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
