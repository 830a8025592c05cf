"""What a copy left out and what it replaced, and where copies are written."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from llmprof.errors import OutputError
from llmprof.storage.pseudonyms import Pseudonyms


class Ledger:
    """Counts of what stayed behind, by place and kind.

    Parameters
    ----------
    names : Pseudonyms
        What replaces texts.
    """

    def __init__(self, names: Pseudonyms) -> None:
        self.names = names
        self._left_out: Counter[tuple[str, str]] = Counter()
        self._examples: dict[tuple[str, str], str] = {}

    def leave_out(self, place: str, what: str, count: int = 1, *, example: object = None) -> None:
        """Count something that is not in the copy."""
        if count:
            self._left_out[place, what] += count
            if example is not None:
                self._examples.setdefault((place, what), str(example)[:80])

    def text(self, text: str, place: str) -> str:
        """A text as it stands in the copy."""
        made = self.names.text(text)
        if made != text:
            self.leave_out(place, "texts with a pseudonym", example=text)
        return made

    def frame(self, *, examples: bool) -> pl.DataFrame:
        """``place, what, count``, and ``example`` if asked for: the first text of each that was found, cut."""
        rows = [(place, what, count) for (place, what), count in sorted(self._left_out.items())]
        columns = {"place": pl.String, "what": pl.String, "count": pl.Int64}
        frame = pl.DataFrame(rows, schema=columns, orient="row")
        if not examples:
            return frame
        shown = [self._examples.get((place, what)) for place, what, _ in rows]
        return frame.with_columns(example=pl.Series(shown, dtype=pl.String))


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turn failures to write a copy into an error that names the copy, and not the file it is made of.

    Raises
    ------
    OutputError
        The copy cannot be written.
    """
    try:
        yield
    except (OSError, sqlite3.OperationalError, pl.exceptions.PolarsError) as error:
        said = getattr(error, "strerror", None) or error
        raise OutputError(
            f"cannot write the copy {target.name}: {said}",
            hint=f"free space in {target.parent}, or choose another folder",
        ) from error
