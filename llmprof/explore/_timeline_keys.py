"""Numbers for names and colours, so that the browser gets one byte for a colour and each name once."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from llmprof.charts import _palette

LIMIT = 160
"""Characters of a name that are sent for labels; the details of a selected event have all of them."""

_HOST = ("#8FA3B8", "#A9B7C6", "#7D93AB", "#B9C4CF", "#96A9A9", "#A7A3B8")
_OWN: dict[tuple[str, str], str] = {
    ("layer", "even"): "#AEB9C5",
    ("layer", "odd"): "#CBD3DC",
    ("collective", "waiting for the last rank"): _palette.WAIT,
    ("collective", "transfer"): _palette.COMMUNICATION,
    ("collective", "transfer and waiting"): "#EB8A3E",
    ("category", "waits for the device"): _palette.CAUSES["sync"],
    ("category", "marker"): "#7FA7A1",
}


class Keys:
    """Colours of the timeline by number: each is a name of a kind (stage, category, phase, cause and own ones)."""

    greys = len(_HOST)

    def __init__(self) -> None:
        tables = {"stage": _palette.STAGES, "category": _palette.CATEGORIES, "phase": _palette.PHASES,
                  "cause": _palette.CAUSES}  # fmt: skip
        self.table = {(kind, name): colour for kind, table in tables.items() for name, colour in table.items()}
        self.table |= {("category", f"host {i}"): colour for i, colour in enumerate(_HOST)} | _OWN
        self._numbers = {key: number for number, key in enumerate(self.table)}

    def __len__(self) -> int:
        return len(self.table)

    def codes(self, kind: str, values: pl.Series) -> pl.Series:
        """Number of the colour of each name; that of ``other`` where a name is null or not known."""
        known = {name: number for (of, name), number in self._numbers.items() if of == kind}
        rest = known.get("other", 0)
        return values.replace_strict(known, default=rest, return_dtype=pl.UInt8).fill_null(rest).alias("code")

    def described(self) -> list[dict[str, str]]:
        """Kind, name and colour of each number."""
        return [{"kind": kind, "name": name, "colour": colour} for (kind, name), colour in self.table.items()]


class Names:
    """Names of spans by number."""

    def __init__(self) -> None:
        self.full: list[str] = []
        self.short: list[str] = []
        self._numbers: dict[str, int] = {}

    def numbers(self, values: pl.Series, shorten: Callable[[pl.Series], pl.Series] | None = None) -> pl.Series:
        """Number of each name; new names get new ones, ``shorten`` makes their labels."""
        unique = values.fill_null("").unique(maintain_order=True)
        new = unique.filter(pl.Series([name not in self._numbers for name in unique], dtype=pl.Boolean))
        labels = shorten(new) if shorten is not None and new.len() else new
        for name, label in zip(new, labels, strict=True):
            self._numbers[name] = len(self.full)
            self.full.append(name)
            self.short.append((label or name)[:LIMIT])
        codes = pl.Series([self._numbers[name] for name in unique], dtype=pl.UInt32)
        return values.fill_null("").replace_strict(unique, codes, return_dtype=pl.UInt32).alias("name")
