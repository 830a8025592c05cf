"""Work around profilers: reports of nsys, the choice of kernels for ncu, samples of the host by
perf or VTune.

perf records times of the monotonic clock, whose offset from the epoch is saved when the run starts.
So the samples can be put on the clock of the timeline and cut to a step or to an idle gap of the
device. VTune's report has only sums.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import polars as pl

from llmprof import analyze, text
from llmprof.analyze.ncu.launches import counted_launches
from llmprof.errors import CaptureError, LaunchError, LlmprofError
from llmprof.names import kernels as names_kernels
from llmprof.readers.saved import CPU_CLOCK, CPU_TABLE, CPU_TEXT
from llmprof.run.launch.run import command
from llmprof.run.launch.run.command import DEFAULT_LAUNCHES
from llmprof.run.launch.run.folder import RunFolder
from llmprof.trace import Trace
from llmprof.trace.metrics.data import Metrics
from llmprof.trace.storage import files

_MOST_ROWS: Final = 50


@dataclass(frozen=True, slots=True)
class Choice:
    """Choice of launches that ncu profiles: a stretch of consecutive launches of some functions."""

    functions: tuple[str, ...]
    skip: int
    count: int
    device: int | None
    steps: int | None
    share: float
    elsewhere: tuple[str, ...] = ()


def choose_launches(trace: Trace, *, top: int, most: int = DEFAULT_LAUNCHES) -> Choice:
    """Choose the most expensive functions of a timeline, and the shortest stretch of launches that
    has all of them.

    Collectives are left out: a kernel that waits for other ranks waits forever when it is replayed.
    The stretch lies in one step of the phase (prefill or decode) that takes the most time; of
    several shortest stretches it is the first. The step is the second one of its phase. With
    several ranks it is the first one, because processes take turns under ncu and a step then takes
    many seconds.
    """
    events = trace.events.filter(source="kernel")
    events = events.with_columns(function=names_kernels.function(events["name"]))
    waits = events.filter(category="collective")["function"].unique()
    alone = events.filter(~pl.col("function").is_in(waits.implode()))
    if not alone.height:
        found = "all kernels of the timeline are collectives, which ncu cannot replay alone"
        raise CaptureError(
            found, hint="profile a run on one GPU, whose kernels do not wait for other ranks"
        )
    cost = dict(_longest(alone, "function").head(max(1, top)).iter_rows())
    rank = _longest(alone, "rank")["rank"][0]
    counted = counted_launches(events.filter(rank=rank), recorded=trace.has("runtime"))
    sequence = counted.filter(pl.col("function").is_in(list(cost)))
    first, last = _steady(sequence, place=1 if len(trace.ranks) == 1 else 0)
    skip, count = _stretch(sequence["function"].to_list()[first:last], cost, most)
    stretch = set(sequence["function"].to_list()[first + skip : first + skip + count])
    step = sequence["step"][first + skip + count - 1]
    return Choice(
        functions=tuple(cost),
        skip=first + skip,
        count=count,
        device=next(iter(sequence["device"].drop_nulls()), None),
        steps=None if step is None else int(step) + 1,
        share=sum(ns for name, ns in cost.items() if name in stretch)
        / max(1, int(alone["dur_ns"].sum())),
        elsewhere=tuple(name for name in cost if name not in stretch),
    )


def _longest(events: pl.DataFrame, by: str) -> pl.DataFrame:
    """Total time (ns) of each value of a column, the longest first."""
    return events.group_by(by).agg(pl.sum("dur_ns")).sort(["dur_ns", by], descending=[True, False])


def _steady(sequence: pl.DataFrame, *, place: int) -> tuple[int, int]:
    """Range of the launches in one step of the phase with the most time; all launches if steps
    are not known.
    """
    in_steps = sequence.with_row_index("launch").drop_nulls("step")
    if not in_steps.height:
        return 0, sequence.height
    phase = _longest(in_steps, "phase")["phase"][0]
    steps = in_steps.filter(phase=phase)["step"].unique().sort()
    chosen = in_steps.filter(pl.col("step") == steps[min(place, len(steps) - 1)])["launch"]
    return int(chosen[0]), int(chosen[-1]) + 1


def _stretch(functions: list[str], cost: dict[str, int], most: int) -> tuple[int, int]:
    """Start and length of the shortest stretch with all functions.

    If it would be longer than ``most`` launches, the stretch with the most time of the functions is
    taken.
    """
    best: tuple[tuple[float, ...], int, int] | None = None
    last: dict[str, int] = {}
    for end, function in enumerate(functions):
        last[function] = end
        inside = {name: place for name, place in last.items() if place > end - most}
        begin = min(inside.values())
        score = (-sum(cost[name] for name in inside), end - begin)
        if best is None or score < best[0]:
            best = (score, begin, end - begin + 1)
    return (0, 1) if best is None else best[1:]


def write_numbers(metrics: Metrics, folder: RunFolder) -> list[dict[str, Any]]:
    """Write ``ncu_metrics.json``: one row per profiled launch, with the messages of the
    profiler's rules.
    """
    try:
        rows = analyze.ncu.speed_of_light(metrics).to_dicts()
    except LlmprofError:
        rows = metrics.kernels.select("kernel_id", "kernel_name", "dur_ns").to_dicts()
    launches = metrics.kernels.select("kernel_id", "grid", "block", "device_name").rows_by_key(
        "kernel_id", named=True
    )
    for row in rows:
        row |= {
            k: v for k, v in launches.get(row["kernel_id"], [{}])[0].items() if k != "kernel_id"
        }
    rules = metrics.rules.select(
        "kernel_id", "rule", "kind", "text", "estimated_speedup_pct"
    ).to_dicts()
    files.write_json(
        folder.ncu_metrics, {"launches": rows, "rules": rules, "coverage": dict(metrics.coverage)}
    )
    return rows


def write_comparison(trace: Trace, metrics: Metrics, folder: RunFolder) -> pl.DataFrame:
    """Write ``kernel_comparison.csv``: kernels of the timeline with the metrics of ncu."""
    matched = analyze.ncu.join(trace, metrics)
    try:
        light = analyze.ncu.speed_of_light(metrics)
    except LlmprofError:
        light = matched.select("kernel_id")
    columns = ["compute_share", "memory_share", "bound_share", "bound_by"]
    light = light.with_columns(pl.lit(None).alias(c) for c in columns if c not in light.columns)
    per_kernel = (
        matched.join(light.select("kernel_id", *columns), on="kernel_id", how="left")
        .with_columns(name=pl.coalesce("name", "kernel_name"))
        .group_by("name", maintain_order=True)
        .agg(
            pl.mean("ratio", "compute_share", "memory_share", "bound_share", "confidence"),
            launches=pl.len(),
            ncu_mean_ns=pl.mean("other_dur_ns"),
            bound_by=pl.col("bound_by").mode().sort().first(),
        )
        .select("name", "launches", "ncu_mean_ns", "ratio", *columns, "confidence")
    )
    of_timeline = analyze.nsys.cuda_gpu_kern_sum(trace).select(
        "name", "share", "total_ns", "count", "mean_ns"
    )
    both = of_timeline.head(_MOST_ROWS).join(per_kernel, on="name", how="full", coalesce=True)
    measured = of_timeline.join(per_kernel.select("name"), on="name", how="semi")
    both = both.update(measured, on="name").sort(
        "total_ns", "name", descending=[True, False], nulls_last=True
    )
    files.write(folder.kernel_comparison, text.csv(both))
    return both


_IMPORTER: Final = "QdstrmImporter"
_TIMEOUT_S: Final = 1800


class Imported(NamedTuple):
    """Result of importing a capture."""

    done: bool
    advice: str = ""
    commands: tuple[tuple[str, ...], ...] = ()


def import_capture(folder: RunFolder, *, log_tail: str = "") -> Imported:
    """Turn the output of nsys into an SQLite file, if this machine has the programs for it."""
    if _there(folder.sqlite):
        return Imported(done=True)
    commands: list[tuple[str, ...]] = []
    report = _report(folder)
    if report is None and _there(folder.qdstrm):
        if (importer := find_importer()) is not None:
            argv = [str(importer), "-i", str(folder.qdstrm), "-o", str(folder.nsys_report)]
            _ran(argv, folder, commands, importer.parent)
        report = _report(folder)
        if report is None:
            raw, wanted = folder.qdstrm.name, folder.nsys_report.name
            advice = (
                f"nsys wrote raw data only ({raw}), and {_IMPORTER} (part of the full Nsight"
                " Systems) was not found "
            )
            advice += (
                f"here; copy the folder to a machine that has it, run `{_IMPORTER} -i {raw} -o"
                f" {wanted}`, then "
            )
            return Imported(
                False, f"{advice}`llmprof run --resume` with the folder", tuple(commands)
            )
    if report is None:
        why = (
            "see the messages of nsys in experiment.log; check that it can write to the folder and"
            " supports the driver"
        )
        if "No reports were generated" in log_tail or "capture range" in log_tail.lower():
            why = (
                "the capture range never began: the engine must call cudaProfilerStart in a process"
                " that nsys follows "
            )
            why += "(spawned workers)"
        found = "nsys wrote no report"
        raise CaptureError(
            found, expected=f"{folder.nsys_report.name} in {folder.path.name}", hint=why
        )
    sentence = "there is no nsys on PATH to export the report"
    if (nsys := shutil.which("nsys")) is not None:
        sentence = _ran(
            command.export_command(report, folder.sqlite, executable=nsys), folder, commands
        )
    if _there(folder.sqlite):
        return Imported(done=True, commands=tuple(commands))
    export = (
        f"`nsys export --type=sqlite --output={folder.sqlite.name} {report.name}` in the run's"
        " folder"
    )
    advice = (
        f"{sentence}; on a machine with Nsight Systems, run {export}, then `llmprof run --resume`"
        " with the folder"
    )
    return Imported(done=False, advice=advice, commands=tuple(commands))


def _report(folder: RunFolder) -> Path | None:
    """Path of the report; the first one if the capture range was repeated, None if there is
    none.
    """
    candidates = [folder.nsys_report, *sorted(folder.path.glob("report.*.nsys-rep"))]
    return next((path for path in candidates if _there(path)), None)


def _there(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def find_importer() -> Path | None:
    """Path of the importer of raw captures: on PATH, or in the folders of the nsys on PATH; None
    if there is none.
    """
    if (on_path := shutil.which(_IMPORTER)) is not None:
        return Path(on_path)
    if (nsys := shutil.which("nsys")) is None:
        return None
    home = Path(nsys).resolve().parent
    places = [
        home,
        home.parent / "host-linux-x64",
        home.parent / "host-linux-armv8",
        *sorted(home.glob("host-*")),
    ]
    return next((p / _IMPORTER for p in places if os.access(p / _IMPORTER, os.X_OK)), None)


def _ran(
    argv: list[str],
    folder: RunFolder,
    commands: list[tuple[str, ...]],
    libraries: Path | None = None,
) -> str:
    """Run a command; its output goes to the log."""
    commands.append(tuple(argv))
    env = dict(os.environ)
    if libraries is not None:
        env["LD_LIBRARY_PATH"] = os.pathsep.join(
            filter(None, [str(libraries), env.get("LD_LIBRARY_PATH")])
        )
    try:
        done = subprocess.run(  # noqa: S603
            argv,
            capture_output=True,
            check=False,
            timeout=_TIMEOUT_S,
            env=env,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{Path(argv[0]).name} could not be run: {error}"
    output = b"\n".join(
        line.rpartition(b"\r")[2] for line in (done.stdout + done.stderr).split(b"\n")
    )
    try:
        with folder.log.open("ab") as log:
            log.write(f"# {' '.join(argv)}\n".encode() + output)
    except OSError as error:
        raise files.refused(folder.log, error) from error
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return f"{Path(argv[0]).name}: {lines[-1] if lines else f'exit status {done.returncode}'}"


HZ: Final = 199
"""Samples per second of each busy processor: enough for a run of a few seconds, and no multiple
of usual timers.
"""

_DATA, _RESULT = "perf.data", "vtune"
_REPORT_S: Final = 600.0
_GOT: Final = {
    "perf": "install the package linux-tools or perf of the distribution, or leave cpu_sampler out",
    "vtune": (
        "install Intel VTune Profiler and put its bin64 folder on PATH, or leave cpu_sampler out"
    ),
}


def wrapped(
    sampler: str, folder: Path, program: Sequence[str], *, executable: str | None = None
) -> list[str]:
    """Command of the engine under a sampler of the CPU."""
    options = {
        "perf": [
            "record",
            "-F",
            str(HZ),
            "-g",
            "-k",
            "CLOCK_MONOTONIC",
            "-o",
            str(folder / _DATA),
            "--",
        ],
        "vtune": ["-collect", "hotspots", "-result-dir", str(folder / _RESULT), "--"],
    }
    return (
        [executable or sampler, *options[sampler], *program]
        if sampler in options
        else list(program)
    )


def start(sampler: str, folder: Path) -> str:
    """Find the program of a sampler, and write the offset of its clock from the epoch into the
    run's folder.
    """
    program = shutil.which(sampler)
    if program is None:
        raise LaunchError(f"{sampler} is not on PATH", hint=_GOT[sampler])
    before = time.time_ns() - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    files.write_json(
        folder / CPU_CLOCK,
        {"epoch_minus_monotonic_ns": before, "hz": HZ if sampler == "perf" else None},
    )
    return program


def finish_sampler(sampler: str, folder: Path, note: Callable[[str], None]) -> None:
    """Export the recording of a sampler as text; if that fails, a note says why, and the rest of
    the run is kept.
    """
    executable = shutil.which(sampler) or sampler
    if sampler == "perf":
        argv = [executable, "script", "-i", str(folder / _DATA)]
        made = folder / CPU_TEXT
    else:
        argv = [
            executable,
            "-report",
            "top-down",
            "-result-dir",
            str(folder / _RESULT),
            "-format",
            "csv",
        ]
        argv += ["-csv-delimiter", "comma", "-column", "CPU Time:Self,Module"]
        made = folder / CPU_TABLE
    try:
        with made.open("wb") as out:
            done = subprocess.run(  # noqa: S603
                argv, stdout=out, stderr=subprocess.PIPE, timeout=_REPORT_S, check=False
            )
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        failed = done.returncode or not made.stat().st_size
        why = (lines[-1][:300] if lines else f"status {done.returncode}") if failed else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    if why:
        made.unlink(missing_ok=True)
        note(f"{sampler} gave no samples of the CPU: {why}")
    else:
        (folder / _DATA).unlink(missing_ok=True)
