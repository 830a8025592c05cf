"""Mangled names of C++, and what the filter programs of binutils and LLVM make of them."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from typing import IO, Final

import polars as pl

_SYMBOL: Final = r"^_Z[\w.$@]+$"
_PROGRAMS: Final = ("c++filt", "llvm-cxxfilt")
_MOST_MEMORY: Final = 1 << 29
_MOST_OUTPUT: Final = 1 << 26
_MOST_S: Final = 5.0


def demangled(names: pl.Series) -> dict[str, str]:
    """Mangled names among names, with what ``c++filt`` of binutils or LLVM makes of them; none if
    neither is installed.

    A short symbol can stand for a name that fills any memory, so the program has limits; beyond
    them there are none.
    """
    symbols = names.drop_nulls().unique(maintain_order=True)
    symbols = symbols.filter(symbols.str.contains(_SYMBOL))
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if symbols.is_empty() or program is None:
        return {}
    try:
        with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as told:
            asked.writelines(f"{symbol}\n".encode() for symbol in symbols)
            asked.seek(0)
            _run(program, asked, told)
            told.seek(0)
            lines = told.read().decode("utf-8", errors="replace").split("\n")[:-1]
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(symbols, lines, strict=True)) if len(lines) == len(symbols) else {}


def _run(program: str, asked: IO[bytes], told: IO[bytes]) -> None:
    """Let a program read one file and write another, within limits of time and, on Linux, of
    memory and output.
    """
    with subprocess.Popen([program], stdin=asked, stdout=told, stderr=subprocess.DEVNULL) as run:  # noqa: S603 (no shell)
        try:
            if sys.platform == "linux":
                import resource

                with contextlib.suppress(ProcessLookupError):
                    resource.prlimit(run.pid, resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
                    resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (_MOST_OUTPUT, _MOST_OUTPUT))
            if status := run.wait(_MOST_S):
                raise subprocess.CalledProcessError(status, program)
        except BaseException:
            run.kill()
            raise
