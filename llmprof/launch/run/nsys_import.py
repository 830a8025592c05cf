"""What nsys left behind: raw capture to report, report to SQLite."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llmprof.errors import CaptureError
from llmprof.launch.run import command, files
from llmprof.launch.run.folder import RunFolder

_IMPORTER: Final = "QdstrmImporter"
_TIMEOUT_S: Final = 1800


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of a capture.

    Attributes
    ----------
    done : bool
        Whether there is an SQLite file.
    advice : str
        What to do where there is none.
    commands : tuple
        Command lines that were run.
    """

    done: bool
    advice: str = ""
    commands: tuple[tuple[str, ...], ...] = ()


def import_capture(folder: RunFolder, *, log_tail: str = "") -> Imported:
    """Turn what nsys wrote into an SQLite file, as far as that is possible here.

    Parameters
    ----------
    folder : RunFolder
        With a report, a raw capture, or an export that was put there.
    log_tail : str
        What nsys said.

    Returns
    -------
    Imported
        Not done where only a raw capture (``.qdstrm``) is left and there is no importer, or no nsys to export with.

    Raises
    ------
    CaptureError
        nsys wrote nothing.
    """
    if _there(folder.sqlite):
        return Imported(done=True)
    commands: list[tuple[str, ...]] = []
    report = _report(folder)
    if report is None and _there(folder.qdstrm):
        report = _imported(folder, commands)
        if report is None:
            return Imported(done=False, advice=_advice(folder), commands=tuple(commands))
    if report is None:
        raise CaptureError(
            "nsys wrote no report",
            expected=f"{folder.nsys_report.name} in {folder.path.name}",
            hint=_why(log_tail),
        )
    nsys = shutil.which("nsys")
    if nsys is None:
        said = "there is no nsys on PATH to export the report"
    else:
        argv = command.export(report, folder.sqlite, executable=nsys)
        said = _ran(argv, folder, commands)
    if _there(folder.sqlite):
        return Imported(done=True, commands=tuple(commands))
    advice = (
        f"{said}; where Nsight Systems is, run `nsys export --type=sqlite --output={folder.sqlite.name} {report.name}` "
        f"in the run's folder, then `llmprof run --resume` with the folder"
    )
    return Imported(done=False, advice=advice, commands=tuple(commands))


def _report(folder: RunFolder) -> Path | None:
    """The report; the first one where the capture range was repeated."""
    candidates = [folder.nsys_report, *sorted(folder.path.glob("report.*.nsys-rep"))]
    return next((path for path in candidates if _there(path)), None)


def _there(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _imported(folder: RunFolder, commands: list[tuple[str, ...]]) -> Path | None:
    """The report that the importer made of a raw capture; None where there is no importer or it failed."""
    importer = find_importer()
    if importer is None:
        return None
    _ran([str(importer), "-i", str(folder.qdstrm), "-o", str(folder.nsys_report)], folder, commands, importer.parent)
    return folder.nsys_report if _there(folder.nsys_report) else None


def find_importer() -> Path | None:
    """The importer of raw captures: on PATH, or in the folders of the nsys on PATH."""
    if (found := shutil.which(_IMPORTER)) is not None:
        return Path(found)
    nsys = shutil.which("nsys")
    if nsys is None:
        return None
    home = Path(nsys).resolve().parent
    places = [home, home.parent / "host-linux-x64", home.parent / "host-linux-armv8", *sorted(home.glob("host-*"))]
    return next((p / _IMPORTER for p in places if os.access(p / _IMPORTER, os.X_OK)), None)


def _ran(argv: list[str], folder: RunFolder, commands: list[tuple[str, ...]], libraries: Path | None = None) -> str:
    """Run a command with its output in the log.

    Returns
    -------
    str
        What it said last, for an error.
    """
    commands.append(tuple(argv))
    env = dict(os.environ)
    if libraries is not None:
        env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(libraries), env.get("LD_LIBRARY_PATH")]))
    try:
        done = subprocess.run(  # noqa: S603
            argv, capture_output=True, check=False, timeout=_TIMEOUT_S, env=env, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{Path(argv[0]).name} could not be run: {error}"
    output = b"\n".join(line.rpartition(b"\r")[2] for line in (done.stdout + done.stderr).split(b"\n"))
    try:
        with folder.log.open("ab") as log:
            log.write(f"# {' '.join(argv)}\n".encode() + output)
    except OSError as error:
        raise files.refused(folder.log, error) from error
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return f"{Path(argv[0]).name}: {lines[-1] if lines else f'exit status {done.returncode}'}"


def _advice(folder: RunFolder) -> str:
    return (
        f"this nsys only captures: {folder.qdstrm.name} is its raw data, and {_IMPORTER} (part of the full Nsight "
        f"Systems) was not found here; copy the folder to where it is, run `{_IMPORTER} -i {folder.qdstrm.name} "
        f"-o {folder.nsys_report.name}`, then `llmprof run --resume` with the folder"
    )


def _why(log_tail: str) -> str:
    if "No reports were generated" in log_tail or "capture range" in log_tail.lower():
        return (
            "the capture range never began: the engine must call cudaProfilerStart, in a process that nsys follows "
            "(spawned workers)"
        )
    return "experiment.log has what nsys said; check that it can write to the folder and supports the driver"
