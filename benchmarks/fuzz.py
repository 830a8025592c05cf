"""Mutated files through every reader: how many end raw, hang, lose something without a word, or take too much memory.

    python benchmarks/fuzz.py --files 10000 --results .bench/fuzz.jsonl   # figures of README.md; may be cut and resumed
    python benchmarks/fuzz.py --files 500 nsys   # a look at one reader
    python benchmarks/fuzz.py --files 10000 --workers 32 --minutes 8 --results part.jsonl   # on a machine that is idle
    python benchmarks/fuzz.py --results .bench/fuzz.jsonl --merge part.jsonl --files 0   # figures of both

A file is a number: the same one gives the same file. Each 250 files run in a process of their own with an address space
of 4 GB; a file that takes the processor for longer than 10 s is a hang. What breaks is kept in --keep as a small file.
Seeds are made in --corpus, or taken from there where the samples of this repository are not at hand.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("POLARS_MAX_THREADS", "1")

BATCH = 250
HANG_S = 10
"""Seconds of the processor after which a file counts as a hang, and of the clock, on a machine that is busy:"""
WAIT_S = 120
SPACE_BYTES = 4 << 30
LEAST_BYTES = 200 << 20


def expanded_bytes(path: Path) -> int:
    """Size of what a file expands to."""
    import gzip
    import zlib

    if path.is_dir():
        return sum(expanded_bytes(p) for p in path.rglob("*") if p.is_file())
    try:
        with gzip.open(path) as file:
            return len(file.read())
    except (OSError, EOFError, zlib.error):
        return path.stat().st_size


def run_batch(name: str, numbers: range, keep: Path, corpus: Path, results: str) -> None:
    """Try some files of one reader, and write what became of them."""
    from tests.fuzz.targets import TooLongError, mutated, targets, try_file

    resource.setrlimit(resource.RLIMIT_AS, (SPACE_BYTES, SPACE_BYTES))
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)  # a panic of Rust prints itself

    def too_long(*_: object) -> None:
        raise TooLongError

    signal.signal(signal.SIGALRM, too_long)
    signal.signal(signal.SIGPROF, too_long)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        target = next(iter(targets(corpus, name)))
        try_file(target, mutated(target, -1, work), work, deep=True)  # imports
        base, largest, slowest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0, 0.0
        for number in numbers:
            path = mutated(target, number, work)
            largest = max(largest, expanded_bytes(path))
            begin = time.process_time()
            kind, said = "", ""
            signal.setitimer(signal.ITIMER_PROF, HANG_S)
            signal.alarm(WAIT_S)
            try:
                outcome = try_file(target, path, work, deep=number % 10 == 0)
                counts[outcome.said] += 1
                counts["compared"] += outcome.checked
                kind, said = (
                    ("raw", outcome.raw) if outcome.raw else ("silent", outcome.silent) if outcome.silent else ("", "")
                )
            except TooLongError:
                kind = "hang"
            finally:
                signal.alarm(0)
                signal.setitimer(signal.ITIMER_PROF, 0)
            slowest = max(slowest, time.process_time() - begin)
            if kind:
                counts[kind] += 1
                place = keep / f"{name.replace(' ', '_')}-{number}-{kind}"
                fresh = mutated(target, number, work)
                shutil.copytree(fresh, place, dirs_exist_ok=True) if fresh.is_dir() else shutil.copyfile(fresh, place)
                place.with_name(place.name + ".txt").write_text(said or kind)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) * 1024
        counts["over memory"] += grown > 3 * largest + LEAST_BYTES
    Path(results).write_text(json.dumps({"counts": counts, "grown": grown, "slowest": slowest, "largest": largest}))


def table(done: dict[tuple[str, int], dict[str, Any]], names: list[str]) -> str:
    """What became of all files, a line a reader."""
    heads = ("reader", "files", "read", "compared", "refused", "raw", "hangs", "silent losses", "crashed")
    heads += ("over memory", "slowest", "grown")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for name in names:
        batches = [batch for (reader, _), batch in done.items() if reader == name]
        total: Counter[str] = Counter()
        for batch in batches:
            total.update(batch["counts"])
        cells = [sum(batch["files"] for batch in batches), total["read"], total["compared"], total["refused"]]
        cells += [total["raw"], total["hang"], total["silent"], total["crashed"], total["over memory"]]
        slowest, grown = (max((batch[key] for batch in batches), default=0) for key in ("slowest", "grown"))
        lines.append(f"| {name} | " + " | ".join(map(str, cells)) + f" | {slowest:.1f} s | {grown / 2**20:.0f} MiB |")
    return "\n".join(lines)


def one_batch(name: str, first: int, count: int, keep: Path, corpus: Path) -> dict[str, Any]:
    """What became of some files, which a process of their own tried."""
    with tempfile.NamedTemporaryFile(suffix=".json") as result:
        context = multiprocessing.get_context("spawn")
        child = context.Process(target=run_batch, args=(name, range(first, first + count), keep, corpus, result.name))
        child.start()
        child.join()
        outcome = {"counts": {"crashed": 1}, "grown": 0, "slowest": 0, "largest": 0}
        if child.exitcode:
            (keep / f"{name}-{first}-crashed.txt").write_text(f"status {child.exitcode}")
        else:
            outcome = json.loads(Path(result.name).read_text())
    return {"reader": name, "first": first, "files": count, **outcome}


def main() -> None:
    """Run what is not in the results yet, and print a table of Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readers", nargs="*", help="names, or the beginning of names (default: all)")
    parser.add_argument("--files", type=int, default=1000, help="files a reader")
    parser.add_argument("--first", type=int, default=0, help="number of the first of them, for files not yet tried")
    parser.add_argument("--keep", type=Path, default=Path(".bench/fuzz"), help="where to keep what breaks")
    parser.add_argument("--corpus", type=Path, default=Path(".bench/fuzz-seeds"), help="where the seeds are")
    parser.add_argument("--results", type=Path, help="file to go on from and to add to: a run may be cut at any time")
    parser.add_argument("--merge", type=Path, nargs="*", default=[], help="results of other machines to take in")
    parser.add_argument("--workers", type=int, default=1, help="processes at a time")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing new after so long")
    options = parser.parse_args()
    end, last = time.monotonic() + 60 * options.minutes, options.first + options.files
    from tests.fuzz import seeds

    options.keep.mkdir(parents=True, exist_ok=True)
    options.corpus.mkdir(parents=True, exist_ok=True)
    names = sorted(p.name for p in seeds.make(options.corpus).iterdir() if p.is_dir())
    names = [n for n in names if not options.readers or any(n.startswith(r) for r in options.readers)]
    done: dict[tuple[str, int], dict[str, Any]] = {}

    def take(batch: dict[str, Any]) -> None:
        done[batch["reader"], batch["first"]] = batch
        if options.results is not None:
            with options.results.open("a") as file:
                file.write(json.dumps(batch) + "\n")

    for path in [options.results, *options.merge]:
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                batch = json.loads(line)
                if (batch["reader"], batch["first"]) not in done:
                    take(batch) if path != options.results else done.update({(batch["reader"], batch["first"]): batch})
    wanted = [
        (name, first) for first in range(options.first, last, BATCH) for name in names if (name, first) not in done
    ]

    def tried(name: str, first: int) -> dict[str, Any] | None:
        if time.monotonic() > end:
            return None
        return one_batch(name, first, min(BATCH, last - first), options.keep, options.corpus)

    with ThreadPoolExecutor(options.workers) as workers:
        for future in as_completed([workers.submit(tried, *one) for one in wanted]):
            if batch := future.result():
                take(batch)
                print(f"{batch['reader']} {batch['first']}: {batch['counts']}", file=sys.stderr, flush=True)
    print(table(done, names))
    bad = ("raw", "hang", "silent", "crashed", "over memory")
    sys.exit(any(batch["counts"].get(kind) for batch in done.values() for kind in bad))


if __name__ == "__main__":
    main()
