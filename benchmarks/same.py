"""Whether two checkouts compute the same: every table of every recording at hand.

``python benchmarks/same.py --other ../main`` reads each recording once with the package of each
checkout, in a process of its own, computes the trace's tables and all analyses of the catalogue,
and compares them: floats to 1e-12, errors by class, columns of prose not at all. What a package
computed is kept in the temporary folder by the content of the package and of the recording, so that
only changed code computes again. The exit code is 1 if a difference is not accepted:
``same_reasons.txt`` has those that are, each with its reason.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import inspect
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import polars as pl

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(tempfile.gettempdir()) / f"llmprof-same-{os.getuid()}"
MOST_BYTES = 6 << 20
"""Larger recordings only with ``--all``."""
LIMIT_S = 900

PLACES = (
    "sample_traces/*/",
    "tests/analyze/labelled/*.*",
    "tests/several/*/",
    "../shared/captures/*/",
    "../shared/real/ascend/mindinsight/",
    "../shared/real/ascend/msinsight_level1/*/",
    "../shared/real/ascend/msprof_analyze/*",
    "../shared/real/chrome/megatron_tp8/",
    "../shared/real/chrome/param/*/",
    "../shared/real/chrome/*/*.json*",
    "../shared/real/[norpt]*/*.*",
    "../shared/strangers/ascend/*/*/",
    "../shared/strangers/[cr]*/*.*",
    "../shared/strangers/small/*/*/",
    "../shared/strangers/small/*/*/*.*",
)
"""Recordings as they are passed to ``read``; a file in a folder that is itself one is left out."""

PROSE = ("title", "detail", "suggestion", "prediction", "scope", "denominator")
"""Columns of sentences, in any table."""
NEEDED = {"model": "Qwen2.5-1.5B"}
OF_METRICS = {
    "speed_of_light": "speed_of_light",
    "stalls": "stalls",
    "hot_lines": "hot_lines",
    "layers": "name_layers",
    "findings": "hardware_findings",
}
"""Functions of ``analyze.ncu``, and what they were called in ``analyze``."""

TABLES = {
    "copy_rates": "copies",
    "fusion_candidates": "fusion",
    "kernel_summary": "kernels",
    "module_times": "modules",
    "rank_balance": "ranks",
    "replayable": "operator_calls",
    "roofline_join": "roofline",
    "running_beside": "concurrency",
}
"""What analyses were called, and are called."""

BY: dict[str, tuple[str, dict[str, Any]]] = {
    "late_groups": ("ranks", {"by": "group"}),
    "path_share": ("slack", {"by": ("layer",)}),
    "rank_groups": ("ranks", {"by": "place"}),
    "rank_steps": ("ranks", {"by": "step"}),
    "steady_state": ("steps", {"steady": True}),
}
"""Analyses that are another one with options now."""

COLUMNS: dict[str, dict[str, str | tuple[str, float]]] = {
    "coverage": {"measure": "kind", "events": "count"},
    "collectives": {"share_of_peak": "peak_share", "share_last": "last_share"},
    "fusion": {"a_step": "per_step"},
    "host_pauses": {"longest_ns": "max_ns"},
    "late_groups": {"share_last": "last_share", "by": "kind", "calls": "count"},
    "launch_delay": {"share_launched": "launched_share", "calls": "launches"},
    "links": {"link": "kind", "gb_per_s": "gbps", "typical_gb_per_s": "typical_gbps"},
    "metrics-kernels": {"duration_ns": "dur_ns"},
    "modules": {"calls": "count"},
    "memory": {"largest_bytes": "max_bytes", "op": "operator"},
    "operators": {
        "share_of_bound": "bound_share",
        "tb_per_s": ("bytes_per_s", 1e12),
        "tflop_per_s": ("flop_per_s", 1e12),
    },
    "memory_by_component": {"samples": "count"},
    "opportunities": {"share_of_bound": "bound_share", "time_ns": "total_ns"},
    "path_share": {"events": "count"},
    "queue_length": {"launches": "count"},
    "rank_steps": {"step_ns": "dur_ns"},
    "roofline": {"efficiency": "bound_share", "gap_us": ("gap_ns", 1e3)},
    "speed_of_light": {
        "arithmetic_intensity": "intensity",
        "compute_pct": ("compute_share", 0.01),
        "memory_pct": ("memory_share", 0.01),
    },
    "slack": {"unknown": "reason"},
    "spikes": {"excess_ns": "gap_ns", "usual_ns": "typical_ns"},
    "stream_gaps": {"share_busy_elsewhere": "busy_share"},
    "tensor_cores": {"kernels": "count"},
    "totals": {"flops_per_s": "flop_per_s"},
}
"""What columns of a table were called: the name of today, and a factor where the unit is another."""

RENAMED = {
    "agrees": "evidence",
    "allocations": "count",
    "api_max_ns": "call_max_ns",
    "api_mean_ns": "call_mean_ns",
    "api_median_ns": "call_median_ns",
    "api_min_ns": "call_min_ns",
    "api_name": "call",
    "api_std_ns": "call_std_ns",
    "before_category": "waited_category",
    "before_name": "waited_name",
    "blocked_ns": "wait_ns",
    "bound": "bound_by",
    "busy_elsewhere_ns": "busy_ns",
    "busy_elsewhere_share": "busy_share",
    "bytes_saved": "saved_bytes",
    "bytes_source": "source",
    "candidates": "count",
    "categories": "category",
    "changes": "change",
    "component": "holder",
    "context_from": "source",
    "context_requests": "prefill_requests",
    "context_tokens": "prefill_tokens",
    "dram_bytes": "memory_bytes",
    "dram_read_bytes": "read_bytes",
    "dram_write_bytes": "written_bytes",
    "duration_ns": "dur_ns",
    "exchange": "call",
    "first": "first_name",
    "flops_source": "source",
    "fusion": "name",
    "generation_requests": "decode_requests",
    "generation_tokens": "decode_tokens",
    "held_by": "waited_name",
    "held_kind": "waited_kind",
    "host_activity": "host_name",
    "host_activity_kind": "host_kind",
    "host_activity_share": "host_share",
    "host_call_ns": "host_dur_ns",
    "impossible_events": "impossible_count",
    "in_queue_ns": "queue_ns",
    "input_dtypes": "dtypes",
    "input_formats": "formats",
    "input_shapes": "shapes",
    "instance": "occurrence",
    "kinds": "kind",
    "lag_ns": "late_ns",
    "last": "last_count",
    "launches_saved": "saved_launches",
    "layers": "layer",
    "match": "kind",
    "match_confidence": "confidence",
    "matched_by": "evidence",
    "max": "max_value",
    "mean": "mean_value",
    "measured_ns": "total_ns",
    "measured_share": "known_share",
    "min": "min_value",
    "missing_events": "missing_count",
    "note": "reason",
    "of": "denominator",
    "of_steps": "recorded_steps",
    "oldest_ns": "first_time_ns",
    "op_type": "kind",
    "operation": "kind",
    "others_wait_ns": "other_wait_ns",
    "pause_ns": "gap_ns",
    "peak_bytes": "peak_allocated_bytes",
    "peak_ns": "peak_time_ns",
    "phases": "phase",
    "prefill_others_ns": "prefill_other_ns",
    "profiled_ns": "other_dur_ns",
    "projected_max_ns": "max_ns",
    "projected_mean_ns": "mean_ns",
    "projected_median_ns": "median_ns",
    "projected_min_ns": "min_ns",
    "projected_std_ns": "std_ns",
    "queued_count": "queue_count",
    "ranks_seen": "ranks",
    "rate_gbps": "gbps",
    "relative": "ratio",
    "reserved_peak_bytes": "peak_reserved_bytes",
    "roof_flop_per_s": "bound_flop_per_s",
    "roof_share": "bound_share",
    "samples": "count",
    "second": "second_name",
    "self": "own_value",
    "self_share": "own_share",
    "share_of_recorded": "recorded_share",
    "share_of_time": "share",
    "slower_ns": "delta_ns",
    "slowest_rank": "last_rank",
    "slowest_times": "ratio",
    "stacks": "count",
    "style": "kind",
    "sync_name": "call",
    "together": "together_share",
    "torch_inputs": "arguments",
    "torch_strides": "strides",
    "total": "total_value",
    "total_projected_ns": "total_ns",
    "total_range_ns": "host_total_ns",
    "ttft_others_ns": "ttft_other_ns",
    "unexplained_ns": "rest_ns",
    "unmatched": "reason",
    "waited_for": "waited_stream",
    "why": "reason",
    "with_share": "tensor_share",
    "without_launch": "missing_count",
    "work_ns": "dur_ns",
    "worst_gap_ns": "max_gap_ns",
    "worst_rank": "last_rank",
}
"""What columns of analyses were called, and are called, in any table."""

WORDS = {
    "linear": "gemm",
    "attention backward": "attention",
    "attention merge": "attention",
    "attention schedule": "attention",
    "norm backward": "norm",
    "softmax backward": "softmax",
    "embedding backward": "embedding",
    "top-k": "top_k",
}
"""What categories and kinds of operators were called, and are called."""
OF_WORDS = ("kind", "first_name", "second_name")
"""Columns that hold them, beside those of categories."""


Result = dict[str, str]
"""Class of the error by table, and how many warnings there were of each class."""


# What runs in a process of its own, with the package of either checkout.


def compute(path: str, folder: Path) -> None:
    """Write all tables of a recording, and what failed, into a folder."""
    import llmprof
    from llmprof.analyze import catalog

    found: Result = {}

    def add(name: str, function: Any) -> Any:
        try:
            frame = function()
        except Exception as error:  # noqa: BLE001  # any error of a checkout is what is compared
            found[name] = type(error).__name__
            return None
        if isinstance(frame, pl.DataFrame):
            frame.write_ipc(folder / f"{name}.arrow", compression="zstd")
        return frame

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trace = add("read", lambda: llmprof.read(path))
        if trace is not None:
            for name in trace.tables:
                add(f"trace-{name}", functools.partial(trace.tables.get, name))
            known = {entry.name: entry for entry in catalog.analyses()}
            for entry in known.values():
                options = dict(entry.options) | {name: NEEDED[name] for name in entry.needs}
                name = TABLES.get(entry.name, entry.name)
                add(name, functools.partial(entry.function, trace, **options))
            for name, (of, options) in BY.items():
                if name not in known:
                    add(name, functools.partial(known[of].function, trace, **options))
        else:
            metrics = add("read-metrics", lambda: llmprof.read_metrics(path))
            if metrics is not None:
                for name in ("metrics", "rules", "launches", "kernels"):
                    add(f"metrics-{name}", functools.partial(getattr, metrics, name))
                room = llmprof.analyze.ncu
                for name, before in OF_METRICS.items():
                    named = (room, name) if hasattr(room, "stalls") else (llmprof.analyze, before)
                    add(before, functools.partial(getattr(*named), metrics))
    counts = Counter(warning.category.__name__ for warning in caught)
    found["warnings"] = str(dict(sorted(counts.items())))
    (folder / "found.json").write_text(json.dumps(found))


def today(name: str, frame: pl.DataFrame) -> pl.DataFrame:
    """A table with the names of columns that it has today."""
    everywhere = {} if name.startswith(("trace-", "metrics-")) else RENAMED
    for old, new in (*COLUMNS.get(name, {}).items(), *everywhere.items()):
        if old in frame.columns:
            column, factor = (new, 1.0) if isinstance(new, str) else new
            values = pl.col(old) * factor if factor != 1 else pl.col(old)
            values = pl.coalesce(values, column) if column in frame.columns else values
            frame = frame.with_columns(values.alias(column)).drop(old)
    said = [name for name in frame.columns if name in OF_WORDS or name.endswith("category")]
    texts = pl.col([name for name in said if frame[name].dtype != pl.Null])
    return frame.with_columns(texts.cast(pl.String).replace(WORDS)) if said else frame


# The comparison.


class Checkout:
    """A copy of a checkout's package, which stays as it is while others work on the checkout."""

    def __init__(self, folder: Path) -> None:
        trees = CACHE / "trees"
        trees.mkdir(parents=True, exist_ok=True)
        copy = Path(tempfile.mkdtemp(dir=trees))
        shutil.copytree(
            folder / "llmprof", copy / "llmprof", ignore=shutil.ignore_patterns("__pycache__")
        )
        self.key = content(copy / "llmprof")
        self.tree = trees / self.key
        try:
            copy.rename(self.tree)
        except OSError:  # it is there
            shutil.rmtree(copy)

    def tables(self, recording: str, key: str) -> Path:
        """Folder of what this checkout computes of a recording, kept from earlier times or anew."""
        kept = CACHE / "results" / f"{self.key}-{key}"
        if kept.exists():
            return kept
        kept.parent.mkdir(exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=kept.parent))
        command = [sys.executable, str(Path(__file__).resolve()), recording, "--compute", str(part)]
        environment = os.environ | {
            "PYTHONPATH": str(self.tree),
            "PYTHONSAFEPATH": "1",
            "POLARS_MAX_THREADS": "1",
            "LLMPROF_WORKERS": "1",
        }
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                timeout=LIMIT_S,
                capture_output=True,
                text=True,
                check=False,
            )
            fault = f"exit code {done.returncode}: {done.stderr[-200:]}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            fault = f"more than {LIMIT_S} s"
        if fault:
            (part / "found.json").write_text(json.dumps({"process": fault}))
        part.rename(kept)
        return kept


def content(path: Path) -> str:
    """Hash of a file, or of the names and contents of the files in a folder."""
    total = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            total.update(
                str(file.relative_to(path.parent)).encode()
                + b"\0"
                + hashlib.sha256(file.read_bytes()).digest()
            )
    return total.hexdigest()[:20]


def recordings(most: float, only: str) -> list[str]:
    """Paths relative to the root of this checkout, without those above a size."""
    found = dict.fromkeys(path for place in PLACES for path in sorted(ROOT.glob(place)))
    found = dict.fromkeys(
        p for p in found if p.suffix not in (".md", ".py", ".txt") or "perf" in p.parts
    )
    chosen = [p for p in found if not any(q in found for q in p.parents) and size(p) <= most]
    names = [os.path.relpath(path, ROOT) for path in chosen]
    return [name for name in names if fnmatch(name, f"*{only}*")]


def size(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files)


def differences(recording: str, trees: tuple[Checkout, Checkout]) -> tuple[int, dict[str, str]]:
    """Number of tables of a recording, and what differs: text by ``table.column``."""
    made_by = inspect.getsource(compute), TABLES, BY, NEEDED, sys.version, pl.__version__
    key = hashlib.sha256(f"{content(ROOT / recording)}{made_by}".encode())
    folders = [tree.tables(recording, key.hexdigest()[:20]) for tree in trees]
    before, now = (json.loads((folder / "found.json").read_text()) for folder in folders)
    names = {file.stem for folder in folders for file in folder.glob("*.arrow")}
    out: dict[str, str] = {}
    for name in sorted(names | {*before, *now}):
        files = [folder / f"{name}.arrow" for folder in folders]
        if all(file.exists() for file in files):
            a, b = (today(name, pl.read_ipc(file)).drop(PROSE, strict=False) for file in files)
            out |= {f"{name}.{column}": text for column, text in compare(a, b).items()}
            continue
        was, is_now = (
            f"{pl.read_ipc(file).height} rows" if file.exists() else found.get(name, "absent")
            for file, found in zip(files, (before, now), strict=True)
        )
        if was != is_now:
            out[name] = f"{was} -> {is_now}"
    return len(names | {*before, *now}), out


def compare(a: pl.DataFrame, b: pl.DataFrame) -> dict[str, str]:
    """What differs between two frames: text by column."""
    out = {c: "column is new" for c in b.columns if c not in a.columns}
    out |= {c: "column is gone" for c in a.columns if c not in b.columns}
    if a.height != b.height:
        return out | {"rows": f"{a.height} -> {b.height}"}
    for name in (c for c in a.columns if c in b.columns):
        if a[name].dtype != b[name].dtype:
            out[name] = f"{a[name].dtype} -> {b[name].dtype}"
            continue
        unlike = pl.select(unequal(a[name], b[name])).to_series()
        if unlike.any():
            row = unlike.arg_true()[0]
            out[name] = (
                f"{unlike.sum()} of {a.height} rows, first {row}: {a[name][row]!r} -> {b[name][row]!r}"
            )
    common = [
        c
        for c in a.columns
        if c in b.columns and not a[c].dtype.is_nested() and a[c].dtype == b[c].dtype
    ]
    moved = set(out) & set(common)
    if moved and a.select(common).sort(common).equals(b.select(common).sort(common)):
        return {"order": f"the same {a.height} rows in another order"}
    return out


def unequal(a: pl.Series, b: pl.Series) -> pl.Series:
    """Whether the values of each row differ; floats by more than 1e-12 of their size."""
    if a.dtype.is_nested():
        return pl.Series(
            [str(x) != str(y) for x, y in zip(a.to_list(), b.to_list(), strict=True)],
            dtype=pl.Boolean,
        )
    if a.dtype in (pl.Categorical, pl.Enum):
        a, b = a.cast(pl.String), b.cast(pl.String)
    unlike = a.ne_missing(b)
    if a.dtype.is_float():
        near = (a - b).abs() <= 1e-12 * pl.select(pl.max_horizontal(a.abs(), b.abs())).to_series()
        unlike &= ~near.fill_null(value=False)
    return unlike


def accepted(file: Path) -> dict[str, str]:
    """Reason by pattern: a line is a pattern of ``recording:table.column`` without spaces, and
    its reason.
    """
    lines = file.read_text().splitlines() if file.exists() else []
    pairs = [line.split(maxsplit=1) for line in lines if line.strip() and not line.startswith("#")]
    return dict(pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recordings", nargs="*", help="in place of all that are at hand")
    parser.add_argument(
        "--other", type=Path, help="checkout to compare with, such as that of before a change"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument(
        "--only", default="", metavar="GLOB", help="recordings whose path has this part"
    )
    parser.add_argument(
        "--all", action="store_true", help=f"recordings of more than {MOST_BYTES >> 20} MiB, too"
    )
    parser.add_argument(
        "--allow",
        type=Path,
        default=ROOT / "benchmarks/same_reasons.txt",
        help="file of accepted differences, a line each: PATTERN REASON",
    )
    parser.add_argument("--compute", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.compute:
        compute(args.recordings[0], args.compute)
        return 0
    if args.other is None:
        parser.error("--other is needed")
    began = time.monotonic()
    trees = Checkout(args.other), Checkout(ROOT)
    reasons, used = accepted(args.allow), Counter[str]()
    largest = float("inf") if args.all else MOST_BYTES
    files = args.recordings or recordings(largest, args.only)
    tables = bad = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        for name, (count, unlike) in zip(
            files, pool.map(lambda f: differences(f, trees), files), strict=True
        ):
            tables += count
            new = {}
            for what, text in unlike.items():
                pattern = next((p for p in reasons if fnmatch(f"{name}:{what}", p)), None)
                if pattern is None:
                    new[what] = text
                else:
                    used[pattern] += 1
            differ = len({what.split(".")[0] for what in new})
            bad += differ
            print(f"{name}: {count - differ} of {count} tables equal", flush=True)
            for what, text in new.items():
                print(f"    {what}: {text}", flush=True)
    for pattern, count in used.items():
        print(f"accepted {count} x {pattern}: {reasons[pattern]}")
    verdict = f"{bad} tables differ" if bad else "no difference"
    verdict += f" beyond the {sum(used.values())} accepted" if used else ""
    print(f"{len(files)} recordings, {tables} tables, {time.monotonic() - began:.0f} s: {verdict}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
