"""The border of reading: whatever a file makes the code below raise leaves it as an error that names the file."""

from __future__ import annotations

import csv
import lzma
import sqlite3
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import polars as pl

from llmprof.errors import LlmprofError, ReadError

_BY_CONTENT: Final = (
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,  # not an Exception: a panic of Rust
    sqlite3.Error,
    csv.Error,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    ArithmeticError,
    AttributeError,
    AssertionError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What content that no reader expects can raise in the libraries and in our own code."""


@contextmanager
def border(what: str) -> Iterator[None]:
    """Turn what a file causes into a :class:`~llmprof.errors.ReadError`; an interrupt passes.

    Parameters
    ----------
    what : str
        What is read, as the message names it.

    Raises
    ------
    ReadError
        Something failed that is no error of llmprof.
    """
    try:
        yield
    except LlmprofError:
        raise
    except MemoryError as error:
        raise ReadError(
            f"there is not enough memory to read {what}",
            hint="read fewer tables with tables=, or fewer ranks at a time",
        ) from error
    except OSError as error:
        raise ReadError(
            f"cannot read {what}: {error.strerror or error}",
            hint="check that it is there, that it may be read, and that nothing replaces it meanwhile",
        ) from error
    except _BY_CONTENT as error:
        said = str(error).strip().splitlines()
        raise ReadError(
            f"{what} holds something that its reader does not understand "
            f"({type(error).__name__}{f': {said[0][:200]}' if said else ''})",
            expected="a file as its profiler wrote it",
            hint="record or export it again; if it is as the profiler wrote it, send a copy made by llmprof redact",
        ) from error
