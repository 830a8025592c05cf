"""Whether a recording that lacks events gets causes that the whole one does not have.

``python benchmarks/removal.py PATH…`` removes events of the device from each recording: shares at
random, a stream, a rank, stretches of time. It prints a line for each case whose findings above low
have a rule that the whole recording has not, and the sums.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator

import polars as pl

import llmprof
from llmprof.errors import LlmprofError

SHARES = (0.02, 0.1, 0.5, 0.95)
STRETCHES = ((0.0, 0.3), (0.4, 0.6), (0.7, 1.0))


def kept_of(trace: llmprof.Trace) -> Iterator[tuple[str, pl.Expr]]:
    """What is left of the events of the device in each case."""
    kernels = trace.kernels
    begin = kernels["start_ns"].min()
    length = (kernels["start_ns"] + kernels["dur_ns"]).max() - begin
    for share in SHARES:
        yield f"{share:.0%} at random", pl.int_range(pl.len()).hash(7) % 1000 >= 1000 * share
    streams = kernels.group_by("rank", "stream").len().sort("len", descending=True)
    for rank, stream, _ in streams.head(2).iter_rows():
        of_stream = (pl.col("rank") == rank) & (pl.col("stream") == stream)
        yield f"stream {stream} of rank {rank}", ~of_stream
    if len(trace.ranks) > 1:
        yield f"rank {trace.ranks[-1]}", pl.col("rank") != trace.ranks[-1]
    for start, end in STRETCHES:
        stretch = (begin + length * start, begin + length * end)
        yield f"time {start:.0%} to {end:.0%}", ~pl.col("start_ns").is_between(*stretch)


def without(trace: llmprof.Trace, kept: pl.Expr) -> llmprof.Trace:
    """The recording with a part of its events."""
    tables = {name: trace.table(name) for name in trace.table_names if name != "collectives"}
    for name in {"kernels", "copies"} & set(tables):
        tables[name] = tables[name].filter(kept)
    tables = {name: table for name, table in tables.items() if table.height}
    return llmprof.Trace(tables, meta=trace.meta, coverage=trace.coverage)


def loud(trace: llmprof.Trace, *severities: str) -> set[str]:
    """Rules of its findings with one of some severities."""
    return set(llmprof.analyze.findings(trace).filter(pl.col("severity").is_in(severities))["rule"])


def main() -> None:
    """Print what is wrong, and the sums."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+")
    warnings.simplefilter("ignore")
    cases = wrong = 0
    for path in parser.parse_args().paths:
        try:
            trace = llmprof.read(path)
            if not trace.has("runtime", "kernels"):
                continue
            known = loud(trace, "high", "medium", "low")
        except LlmprofError:
            continue
        for words, kept in kept_of(trace):
            try:
                new = loud(without(trace, kept), "high", "medium") - known
            except LlmprofError:  # nothing is left to explain
                continue
            cases += 1
            if new:
                wrong += 1
                print(f"{path}: without {words}: {', '.join(sorted(new))}", flush=True)
    print(f"{cases} cases, {wrong} with a cause that the whole recording does not have")


if __name__ == "__main__":
    main()
