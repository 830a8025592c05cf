"""From the shell to an answer: whole processes, as ratios to the least work.

``python benchmarks/first_answer.py PATH...`` runs each program several times and in turn, byte code
present, and prints the CPU time of the process and its children. The least work (``floor``) is to
import Polars, to unpack the files and to decode their events once with their types; of an export
of Nsight Systems, to read its rows. HTA reads traces, and nsys-ai diagnoses exports, where
``make bench`` installed them. ``--other`` names another checkout, whose commands run beside these.

``warm`` is the CPU time of findings alone in a process that has answered before. Beside it stand
those of a sixth of the recorded time, by the same calls: what is left is what the calls take, however
few the rows. And as many collections of one row as Polars made, and one sort of all recorded rows.
``--without-bytecode`` compiles every module in each process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from _jobs import reports_of
from _process import HERE, PEERS_PYTHON, ROOT, Measured, alternate, run
from _table import ratio, seconds, table

TWO_EVENTS = [
    {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 2, "dur": 2},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 4},
]
PLAIN = {
    "import polars": "import polars",
    "import polars, numpy": "import polars, numpy, numpy.ma",
    "import llmprof, read two events": (
        "import tempfile, llmprof; file = tempfile.NamedTemporaryFile('w', suffix='.json');"
        f" file.write({json.dumps({'traceEvents': TWO_EVENTS})!r}); file.flush();"
        " llmprof.read(file.name, cache=False)"
    ),
    "import llmprof, read": "import sys, llmprof; llmprof.read(sys.argv[1], cache=False)",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, default=[_sample("torch_tp1_eager")])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--other", type=Path, help="another checkout")
    parser.add_argument("--report", action="store_true", help="measure reports, too")
    parser.add_argument("--without-bytecode", action="store_true", help="compile every module")
    options = parser.parse_args()
    if options.without_bytecode:
        os.environ["PYTHONPYCACHEPREFIX"] = os.devnull
    for path in options.paths:
        measured = measure(path.resolve(), options.rounds, options.other, report=options.report)
        print(f"\n{path.name}\n\n{report(measured)}", flush=True)


def _sample(name: str) -> Path:
    return ROOT / "sample_traces" / name


def measure(
    path: Path, rounds: int, other: Path | None = None, *, report: bool = False
) -> dict[str, Measured]:
    """CPU seconds by program."""
    jobs = [sys.executable, str(HERE / "_jobs.py")]
    contenders = {"floor": partial(_process, [*jobs, "floor", str(path)], ROOT)}
    contenders["unpacked"] = partial(_process, [*jobs, "unpacked", str(path)], ROOT)
    reports = reports_of(str(path))
    if PEERS_PYTHON.exists() and reports:
        contenders["nsys-ai diagnose"] = partial(_diagnose, reports[0])
    elif PEERS_PYTHON.exists():
        hta = [str(PEERS_PYTHON), *jobs[1:], "load_hta", str(path), "0"]
        contenders["HTA: TraceAnalysis"] = partial(_process, hta, ROOT)
    for tree in (ROOT, *filter(None, [other])):
        of = "" if tree == ROOT else f" of {tree.name}"
        for name, code in PLAIN.items():
            contenders[name + of] = partial(
                _process, [sys.executable, "-c", code, str(path)], tree.resolve()
            )
        for name in ("findings", *["report"] * report):
            contenders[f"llmprof {name}{of}"] = partial(_command, name, path, tree.resolve())
        for part in ("findings", "findings of a sixth", "collections", "sort"):
            contenders[f"warm: {part}{of}"] = partial(run, "warm", path, part, tree=tree.resolve())
    alternate(contenders, 1)  # writes the byte code
    return alternate(contenders, rounds)


def _command(name: str, path: Path, tree: Path) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        output = ["-o", f"{folder}/report"] if name == "report" else []
        command = [sys.executable, "-m", "llmprof", name, str(path), "--no-cache", *output]
        return _process(command, tree)


def _diagnose(report: Path) -> Measured:
    """On a copy of its own, beside which it keeps what it made."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(report, folder)
        tool = str(PEERS_PYTHON.with_name("nsys-ai"))
        return _process([tool, "diagnose", copy, "--no-browser"], Path(folder))


def _process(command: list[str], tree: Path) -> Measured:
    """CPU seconds of a process with the package of a checkout."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = str(tree)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tree, env=environment
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_seconds": spent}


def report(results: dict[str, Measured]) -> str:
    """Table of CPU times and of their ratios to the least work."""
    floor = results["floor"].get("cpu_seconds")
    rows = []
    for name, found in results.items():
        spent = found.get("cpu_seconds")
        known = [] if spent is None else [seconds(spent), ratio(spent / floor) if floor else "?"]
        rows.append([name, *(known or [str(found["failed"])[:60], ""])])
    return table(["program", "CPU time", "to the floor"], rows)


if __name__ == "__main__":
    main()
