"""Traces of a capture: found where the server writes them, and taken when they are whole."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from isal import igzip

from llmprof.errors import CaptureError, ConfigError, LaunchError, ReadError, listed
from llmprof.readers.registry import detect
from llmprof.text import Progress, counted
from llmprof.trace.storage import files

_LOOK_S: Final = 0.3
_SETTLED_S: Final = 3.0
_FETCH_S: Final = 600.0
_BLOCK: Final = 1 << 20
_TRACE: Final = re.compile(r"\.json(?:\.gz)?$")
_FRONTEND: Final = "async_llm"
"""Part of the name of the trace of vLLM's front end, which runs no part of the model."""
_SIZE: Final = re.compile(r"(?:^|[_.-])(tp|pp|dp)-?(\d+)(?=[_.-])", re.IGNORECASE)
TO: Final = "{to}"


def _opened(path: Path) -> BinaryIO:
    """A file that can have been exchanged since it was looked at: by a link, or by a pipe, which
    may never begin.
    """
    return open(
        path, "rb", opener=lambda name, how: os.open(name, how | os.O_NOFOLLOW | os.O_NONBLOCK)
    )


def is_whole(path: Path) -> bool:
    """Whether a trace was written to its end: a gzip file with its checksum, and JSON that ends
    with a brace.
    """
    last = b""
    try:
        with _opened(path) as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if packed:
                with igzip.GzipFile(fileobj=file) as content:
                    while block := content.read(_BLOCK):
                        last = (last + block)[-64:]
            else:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 64))
                last = file.read()
    except (OSError, EOFError, igzip.BadGzipFile):
        return False
    return last.rstrip().endswith(b"}")


@dataclass(slots=True)
class TracePlace:
    """Where the server's traces are found: a folder that is seen here, or a command that copies
    them here.
    """

    folder: Path
    prefix: str
    """Beginning of the names of this capture, or name of its own folder; older versions of vLLM
    do not know it.
    """
    fetch: tuple[str, ...] = ()
    before: set[Path] = field(default_factory=set)

    def remember(self) -> None:
        """Keep in mind which files exist before the capture."""
        if self.fetch:
            self.copy()
        self.before = set(self._all())

    def copy(self) -> None:
        """Run the command that copies the server's folder here."""
        self.folder.mkdir(parents=True, exist_ok=True)
        to = str(self.folder)
        argv = [word.replace(TO, to) for word in self.fetch]
        argv += [] if any(TO in word for word in self.fetch) else [to]
        try:
            done = subprocess.run(  # noqa: S603
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_FETCH_S,
                check=False,
            )
        except OSError as error:
            raise LaunchError(
                f"{argv[0]} cannot be started: {error.strerror}", hint="see fetch"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise LaunchError(
                f"{argv[0]} took more than {_FETCH_S:g} s", hint="see fetch"
            ) from error
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())[-300:]
            raise LaunchError(
                f"{argv[0]} ended with status {done.returncode}: {said}", hint="see fetch"
            )

    def found(self) -> dict[Path, int]:
        """Traces of ranks that are new and belong to this capture, by name, with their sizes."""
        all_now = sorted(self._all().items())
        new = {path: size for path, size in all_now if path not in self.before and _is_trace(path)}
        return {
            p: new[p] for p in new if p.name.startswith(self.prefix) or self.prefix in p.parts
        } or new

    def clear(self) -> bool:
        """Remove what this capture left in the server's folder, as far as its name says so;
        whether all went.
        """
        if self.fetch:
            shutil.rmtree(self.folder, ignore_errors=True)
            return True
        try:
            for path in self.folder.glob(f"{self.prefix}*"):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        except OSError:
            return False
        return not self.found()

    def _all(self) -> dict[Path, int]:
        """Files with the name of a trace, and their sizes: no pipes, and nothing that a link
        leads to.
        """
        sizes: dict[Path, int] = {}
        root = Path(os.path.realpath(self.folder))
        for path in (
            root.rglob("*") if self.fetch else [*root.glob("*"), *root.glob(f"{self.prefix}/*")]
        ):
            with contextlib.suppress(OSError):
                if (
                    _TRACE.search(path.name)
                    and _FRONTEND not in path.name
                    and os.path.realpath(path) == str(path)
                ):
                    about = path.lstat()
                    if stat.S_ISREG(about.st_mode):
                        sizes[path] = about.st_size
        return sizes


def _is_trace(path: Path) -> bool:
    """Whether the content is that of a trace, also of one that is not whole yet."""
    try:
        return detect(path) == "chrome"
    except ReadError:
        return False


def find_traces(
    folder: str | os.PathLike[str] | None,
    fetch: Sequence[str] | None,
    prefix: str,
    own: Path,
    *,
    made: bool = False,
) -> TracePlace:
    """Where the traces of a capture are found; ``made``: the server, on this machine, makes it
    at its first trace.
    """
    if fetch is not None:
        if not fetch:
            raise ConfigError(
                "fetch has no word",
                expected='a command, such as ["kubectl", "cp", "pod:/profiles"]',
            )
        return TracePlace(own, prefix, tuple(fetch))
    expected = "the folder into which the server writes its traces, as it is seen from here"
    if folder is None:
        found = "the server does not say where it writes its traces, or is on another machine"
        hint = "or fetch=, the command that copies it here, such as kubectl cp POD:/profiles"
        raise ConfigError(found, expected=f"folder=, {expected}", hint=hint)
    seen = Path(folder).expanduser()
    if not seen.is_dir() and not made:
        found = f"the server writes its traces to {folder}, which is no folder on this machine"
        hint = "or fetch=, the command that copies it here, such as kubectl cp POD:/profiles"
        raise ConfigError(found, expected=f"folder=, {expected} (a mounted volume)", hint=hint)
    return TracePlace(seen, prefix)


def collect(
    source: TracePlace,
    to: Path,
    *,
    ranks: int | None,
    timeout_s: float,
    progress: Progress | None = None,
) -> list[Path]:
    """Wait until every rank has written its trace to the end, and copy the traces.

    If the number of ranks is not known, the traces count that are there when nothing has changed
    for three seconds.
    """
    until = time.monotonic() + timeout_s
    sizes: dict[Path, int] = {}
    good: set[Path] = set()
    changed = time.monotonic()
    while True:
        if source.fetch:
            source.copy()
        now = source.found()
        found = list(now)
        still = {path for path in found if sizes.get(path) == now[path]}
        done = {path for path in still if path in good or is_whole(path)}
        if now != sizes:
            changed, good = time.monotonic(), set()
        good |= done
        sizes = now
        if ranks is not None and len(done) >= ranks and len(done) == len(found):
            break
        if (
            ranks is None
            and done
            and len(done) == len(found)
            and time.monotonic() - changed >= _SETTLED_S
        ):
            break
        if progress is not None:
            progress("waiting for the traces of all ranks", len(done), ranks or 0)
        if time.monotonic() > until:
            raise _incomplete(source, found, done, ranks)
        time.sleep(_LOOK_S)
    return [_copied(path, to) for path in found]


def _copied(path: Path, to: Path) -> Path:
    target, part = to / path.name, to / f".{path.name}.part"
    try:
        to.mkdir(exist_ok=True)
        with _opened(path) as source, part.open("wb") as copy:
            shutil.copyfileobj(source, copy, _BLOCK)
        if not _is_trace(part):
            raise CaptureError(
                f"{path.name} is no trace any more", hint="look what else writes into the folder"
            )
        part.replace(target)
    except OSError as error:
        raise files.refused(target, error) from error
    finally:
        part.unlink(missing_ok=True)
    return target


def _incomplete(
    source: TracePlace, found: list[Path], done: set[Path], ranks: int | None
) -> CaptureError:
    where = " ".join(source.fetch) or str(source.folder)
    if not found:
        return CaptureError(
            f"the server wrote no trace that is seen in {where}",
            hint=(
                "give folder= or fetch=, and look into the server's log for an error of its"
                " profiler; a window in which nothing is computed leaves no trace in some versions"
            ),
        )
    half = [path.name for path in found if path not in done]
    return CaptureError(
        f"of {counted(ranks, 'rank') if ranks else 'the ranks'} {len(done)} wrote a whole trace"
        f"{f'; not whole: {listed(half)}' if half else ''}",
        expected=f"a trace of each rank in {where}",
        hint=(
            "look into the log of the ranks that are missing; a rank on another machine writes into"
            " its own folder"
        ),
        whole=len(done),
    )


def sizes_of(names: Sequence[str]) -> dict[str, int]:
    """Sizes of the groups of ranks by the names of their traces:

    ``…_pp0_tp1_…`` (vLLM), ``…-TP-1…`` (SGLang).
    """
    most: dict[str, int] = {}
    for name in names:
        for group, rank in _SIZE.findall(name):
            most[group.lower()] = max(most.get(group.lower(), 0), int(rank) + 1)
    return most
