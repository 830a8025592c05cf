"""Speed and memory of llmprof and its peers, side by side:

``make bench``, or ``python benchmarks/run.py load import``.

Prints tables and writes the numbers to ``benchmarks/results/``; asserts nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import before
import big
import explore
import files
import imports
import load
import nsys
import scale
from _process import HERE, PEERS_PYTHON, ROOT

_WHICH = ["import", "load", "files", "big", "scale", "nsys", "explore", "before"]
_SAMPLE_EXPORT = ROOT / "sample_traces" / "nsys_tp2_cudagraph" / "report.sqlite"
_HTA_TRACE = "real/chrome/hta/df_index_resolver__df_index_resolver.json.gz"


def main() -> None:
    options = _options()
    names = options.which or [name for name in _WHICH if name != "before" or options.other]
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}"
    )
    print(f"trace: {options.trace.name}; sample: {options.sample}")
    if "load" in names:
        print("AMD TraceLens is distributed through git only and is not measured.")
        if not PEERS_PYTHON.exists():
            print("HTA is not installed: `make bench` does that.")
    results: dict[str, object] = {}
    for name in names:
        if name == "import":
            results[name] = measured = imports.measure(options.rounds * 3)
            text = imports.report(measured)
        elif name == "load":
            results[name] = measured = load.measure(options.trace, options.rounds)
            text = load.report(measured)
        elif name == "files":
            results[name] = measured = files.measure(1)
            text = files.report(measured)
        elif name == "big":
            results[name] = measured = big.measure(options.trace, int(options.gb * 1e9), 1)
            text = big.report(measured)
        elif name == "before":
            results[name] = measured = before.measure(
                options.other, options.sample, options.kernels, options.rounds
            )
            text = before.report(measured)
        elif name == "nsys":
            count = int(options.nsys_millions * 1e6)
            results[name] = measured = nsys.measure(options.export, count, 1)
            text = nsys.report(measured)
        elif name == "explore":
            results[name] = measured = explore.measure(options.explore_sample, options.millions)
            text = explore.report(measured)
        else:
            counts = [int(m * 1e6) for m in options.millions]
            results[name] = measured = scale.measure(options.sample, counts, 1)
            text = scale.report(measured)
        print(f"\n{text}", flush=True)
    _write(results, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "which", nargs="*", choices=_WHICH, help="all, if none is named (before only with --other)"
    )
    parser.add_argument(
        "--trace", type=Path, default=_default_trace(), help="Chrome trace for load and big"
    )
    parser.add_argument(
        "--sample", default="torch_tp4_cudagraph", help="sample or trace that scale repeats"
    )
    parser.add_argument(
        "--explore-sample", default="torch_tp4_eager_nccl", help="sample that explore repeats"
    )
    parser.add_argument(
        "--millions",
        type=float,
        nargs="+",
        default=[1, 10],
        help="kernels for scale, in millions; events for explore",
    )
    parser.add_argument(
        "--export", type=Path, default=_SAMPLE_EXPORT, help="SQLite export that nsys repeats"
    )
    parser.add_argument(
        "--nsys-millions", type=float, default=5, help="kernels for nsys, in millions"
    )
    parser.add_argument("--gb", type=float, default=1.0, help="GB of JSON for big")
    parser.add_argument(
        "--other", type=Path, help="another checkout, whose package before measures beside this one"
    )
    parser.add_argument(
        "--kernels", type=int, default=400_000, help="kernels to which before repeats the sample"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="processes of each contender, in turn"
    )
    options = parser.parse_args()
    if "before" in options.which and not options.other:
        parser.error("before: name the other checkout with --other (git worktree add makes one)")
    return options


def _default_trace() -> Path:
    """The trace that HTA's own tests use where it is at hand, else the largest bundled one."""
    shared = ROOT / ".." / "shared" / _HTA_TRACE
    if shared.exists():
        return shared.resolve()
    return max((ROOT / "sample_traces").glob("*/*.json.gz"), key=lambda path: path.stat().st_size)


def _write(results: dict[str, object], options: argparse.Namespace) -> None:
    about = {
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "polars": version("polars"),
        "trace": options.trace.name,
        "sample": options.sample,
    }
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    path = folder / f"{about['when'].replace(':', '')}.json"
    path.write_text(json.dumps({**about, "results": results}, indent=1), encoding="utf-8")
    print(f"\nwritten to {path.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main())
