"""Columns out of values of JSON: repeated text is stored once, ids become int64, numbers that do not fit null."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import polars as pl

_NUMBERED: Final = re.compile(
    r"(?:(?:stream|queue|thread|process|pid|tid|hip|cuda api|nvtx|host|device|gpu|npu)[ _#:-]*)?(\d{1,18})",
    re.IGNORECASE,
)


class Texts:
    """Distinct texts of a file by column; rows hold a code, so a name that occurs a million times is stored once."""

    def __init__(self) -> None:
        self._codes: dict[str, _Codes] = defaultdict(_Codes)

    def codes(self, column: str, values: Iterable[Any]) -> pl.Series:
        """Code of each value (text, JSON bytes or None) of a column."""
        codes = self._codes[column]
        return pl.Series([codes[v] for v in values], dtype=pl.UInt32)

    def code_of_none(self, column: str) -> int:
        """Code of a value that is not there."""
        return self._codes[column][None]

    def texts(self, column: str, codes: pl.Series, text: Callable[[Any], str | None]) -> pl.Series:
        """Texts of the codes of a column; each distinct value is turned into text once."""
        table = pl.Series([text(value) for value in self._codes[column]], dtype=pl.String)
        return table.gather(codes)


class _Codes(dict[Any, int]):
    def __missing__(self, key: Any) -> int:
        self[key] = code = len(self)
        return code


def ids(values: Sequence[int | str | None]) -> pl.Series:
    """Identifiers as int64: integers as they are, ``"stream 7"`` as 7, other text as a number made of its hash.

    Hashed text is negative, so it never meets a real identifier, and the same in every file.

    Parameters
    ----------
    values : sequence of (int, str or None)
        Process, thread, stream or correlation identifiers.

    Returns
    -------
    polars.Series
        ``int64``, null where there is none.
    """
    try:
        return pl.Series(values, dtype=pl.Int64)
    except (TypeError, OverflowError):
        known = _Ids()
        return pl.Series([known[v] for v in values], dtype=pl.Int64)


class _Ids(dict[Any, int | None]):
    def __missing__(self, key: Any) -> int | None:
        self[key] = value = _id(key)
        return value


def _id(value: int | str | None) -> int | None:
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else _hash(str(value))
    if not value or not value.strip():
        return None
    numbered = _NUMBERED.fullmatch(value.strip())
    return int(numbered[1]) if numbered else _hash(value)


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
    return -2 - (int.from_bytes(digest, "big") >> 2)  # -1 is what profilers write for "none"


def integers(values: Sequence[int | float | None], dtype: pl.DataType | type[pl.DataType] = pl.Int64) -> pl.Series:
    """Whole numbers of a type; null for what does not fit into it."""
    try:
        return pl.Series(values, dtype=dtype)
    except (TypeError, OverflowError):
        bits = 31 if dtype == pl.Int32 else 63
        return pl.Series([_whole(v, 2**bits) for v in values], dtype=dtype)


def _whole(value: int | float | None, limit: int) -> int | None:
    return int(value) if value is not None and -limit <= value < limit else None
