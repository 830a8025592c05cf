"""Texts for people: words, numbers, the progress of long work, and frames as tables for a
terminal: aligned, with units, never wider than asked for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import polars as pl

from llmprof.units import format_bytes, format_ns, format_share

Progress: TypeAlias = Callable[[str, int, int], None]
"""Function that is called with the current task, the amount that is done, and the whole amount (in
bytes, points or files; 0 if unknown).

>>> def progress(what: str, done: int, total: int) -> None:
...     print(f"{what}: {done} of {total}")
>>> progress("rank0.json", 512, 1024)
rank0.json: 512 of 1024
"""

UNKNOWN = "-"
PART_WORDS: Final = {
    "compute": "compute",
    "transfer": "transfer",
    "wait or transfer": "transfer or waiting",
    "wait": "waiting for ranks",
    "copy": "copies",
    "host_bound": "host-bound",
    "launch": "host-bound, in the launch",
    "sync": "after a synchronising call",
    "queued": "between launched events",
    "unknown": "no recorded cause",
    "outside": "ends of the recording",
}
"""What every picture, sentence and page calls a part of a step or a cause of idle time, by its
value in frames.
"""

PART_MEANINGS: Final = {
    "compute": "kernels that neither communicate nor copy",
    "transfer": "a collective after its last rank has arrived",
    "wait or transfer": "a collective whose calls could not be matched over the ranks",
    "wait": "a collective until its last rank arrives",
    "copy": "copies beside which nothing else runs",
    "host_bound": "idle: the host had not begun to launch what comes next",
    "launch": "idle: the call that launches it was at work",
    "sync": "idle: the host had waited in a synchronising call",
    "queued": "idle: launched, and held by something",
    "unknown": "idle: the launch was not captured",
    "outside": "idle before the first or after the last event of a device",
}
_GAP = "  "
_NARROWEST = 12
_NUMBERS_THAT_NAME = {
    "rank",
    "step",
    "layer",
    "stream",
    "device",
    "call",
    "thread",
    "process",
    "event",
    "correlation",
}
_NUMBERS_THAT_NAME |= {"op_id", "last_rank", "next_event", "order", "launch_thread", "group"}


def escaped(words: str, escape: Callable[[str], str]) -> str:
    """Words in which each character that is not printed, but line feeds, is written in another
    way.
    """
    return re.sub(
        r"[^ -~\n]", lambda found: found[0] if found[0].isprintable() else escape(found[0]), words
    )


def plain(given: object) -> str:
    """Text that is safe to print: control characters and escape sequences become visible."""
    shown = escaped(
        str(given), lambda one: one.encode("unicode_escape", "backslashreplace").decode("ascii")
    )
    return shown.replace("\n", "\\n")


_UNIT = re.compile(r"(\d) (%|[num]?s\b|[KMG]?i?B\b)")


def unbroken(words: str) -> str:
    """Words in which no line breaks between a number and its unit."""
    return _UNIT.sub("\\1\N{NO-BREAK SPACE}\\2", words)


def sentence(text: str) -> str:
    """A text with a capital letter and a full stop."""
    return text[:1].upper() + text[1:].rstrip(".") + "." if text else ""


def step_of(phase: str) -> str:
    """Name a step by its phase; one whose phase is unknown is just a step."""
    return "step" if phase == "other" else f"step of {phase}"


def shorten(text: str, limit: int) -> str:
    """A text of at most ``limit`` characters, shortened in the middle."""
    if len(text) <= limit:
        return text
    head = max(1, (limit - 1) * 2 // 3)
    tail = limit - 1 - head
    return f"{text[:head]}…{text[len(text) - tail :] if tail > 0 else ''}"


def distinct(names: Iterable[str]) -> list[str]:
    """The names in order; a repeated name gets a number at its end.

    >>> distinct(["a", "b", "a"])
    ['a', 'b', 'a (2)']
    """
    seen: dict[str, int] = {}
    out = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return out


def counted(number: float, noun: str) -> str:
    """A number, to a tenth, and its noun."""
    if round(number, 1) == 1:
        return f"{number:,.0f} {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{noun}s"
    if noun.endswith(("ch", "s", "x")):
        plural = f"{noun}es"
    return f"{tenths(number)} {plural}"


def tenths(number: float) -> str:
    """A number to a tenth."""
    return f"{number:,.0f}" if float(round(number, 1)).is_integer() else f"{number:,.1f}"


def are(number: float) -> str:
    """The verb for so many things."""
    return "is" if number == 1 else "are"


def joined(words: Sequence[object]) -> str:
    """Words separated by commas, the last by *and*."""
    texts = [str(word) for word in words]
    return (
        texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}" if texts else ""
    )


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Text for some ranks, by their numbers."""
    return f"rank{'' if len(set(ranks)) == 1 else 's'} {numbers_in_words(ranks)}"


def numbers_in_words(numbers: Iterable[int]) -> str:
    """Text for some numbers in their order: four or more consecutive ones as a range, at most 12
    parts.
    """
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [
        text
        for run in runs
        for text in ([f"{run[0]} to {run[-1]}"] if len(run) > 3 else map(str, run))
    ]
    return joined(parts if len(parts) <= 12 else [*parts[:11], f"{len(parts) - 11} more"]) or "none"


def left_out(number: int, noun: str, which: str = "") -> str:
    """A sentence that says how many things were left out."""
    words = " ".join(filter(None, [counted(number, noun), which]))
    return f"{words} {'was' if number == 1 else 'were'} left out"


def value(name: str, item: Any) -> str:
    """One value for display, by the name of its column: times, sizes and shares get a unit."""
    if item is None or (isinstance(item, float) and not math.isfinite(item)):
        return _UNKNOWN_OF.get(name, UNKNOWN)
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, pl.Series):
        return " ".join(map(str, item))
    if not isinstance(item, int | float):
        return plain(item)
    if name.endswith("_ns"):
        return format_ns(item, 6 if "start" in name else 3)
    if name == "bytes" or name.endswith("_bytes"):
        return format_bytes(item)
    if "share" in name.split("_"):
        return format_share(item)
    if isinstance(item, int):
        return str(item) if name in _NUMBERS_THAT_NAME else f"{item:,}"
    if name in _RATES:
        return f"{item / 1e12:,.4g}"
    return f"{item:,.1f}" if name.endswith("_gbps") else f"{item:,.4g}"


_UNKNOWN_OF: Final = {"mean_value": "not sampled"}
"""Words for what is not known, in columns that say why."""

_RATES: Final = {"flop_per_s": "TFLOP/s", "bytes_per_s": "TB/s"}
"""Columns that are shown in trillions, and what these are called."""


def _head(name: str) -> str:
    """Heading of a column, without the unit that its values have."""
    if name in _RATES:
        return _RATES[name]
    return name.removesuffix("_ns").removesuffix("_gbps") + (
        " GB/s" if name.endswith("_gbps") else ""
    )


def format_table(
    frame: pl.DataFrame,
    *,
    width: int | None = None,
    columns: Sequence[str] | None = None,
    longest: int | None = None,
    spare: Sequence[Sequence[str]] = (),
    whole: Sequence[str] = (),
) -> str:
    """A frame as an aligned table; if it is too wide, groups of ``spare`` columns go first;
    ``whole`` are not cut.
    """
    names = [name for name in (columns or frame.columns) if name in frame.columns]
    cells = {name: [value(name, item) for item in frame[name]] for name in names}
    numeric = {name for name in names if frame.schema[name].is_numeric()}
    if longest is not None:
        cells |= {
            name: [shorten(cell, longest) for cell in cells[name]]
            for name in names
            if name not in numeric
        }
    widths = {name: max([len(_head(name)), *map(len, cells[name])]) for name in names}
    texts = [name for name in names if name not in numeric and name not in whole]
    dropped = _fit(widths, texts, width, spare) if width else []
    shown = [name for name in names if name not in dropped]
    lines = [_line([_head(name) for name in shown], shown, widths, numeric)]
    lines += [
        _line([cells[name][i] for name in shown], shown, widths, numeric)
        for i in range(frame.height)
    ]
    if any(UNKNOWN in cells[name] for name in shown):
        lines.append(f"({UNKNOWN}: none, or not known from this capture)")
    if dropped:
        lines.append(f"(too narrow for: {', '.join(dropped)})")
    return "\n".join(lines)


def _fit(
    widths: dict[str, int], texts: list[str], width: int, spare: Sequence[Sequence[str]]
) -> list[str]:
    """Narrow the texts, widest first, until the line fits; then leave out spare columns, then
    those on the right.
    """

    def over() -> int:
        return sum(widths.values()) + len(_GAP) * (len(widths) - 1) - width

    whole = dict(widths)
    dropped: list[str] = []
    while over() > 0:
        wide = [
            name
            for name in texts
            if name in widths and widths[name] > max(_NARROWEST, len(_head(name)))
        ]
        if wide:
            widest = max(wide, key=lambda name: widths[name])
            second = max(
                [_NARROWEST, len(_head(widest)), *(widths[n] for n in wide if n != widest)]
            )
            floor = second if second < widths[widest] else widths[widest] - 1
            widths[widest] = max(floor, widths[widest] - over(), len(_head(widest)))
        elif len(widths) > 1:
            group = next(
                (group for group in spare if widths.keys() & {*group}), [next(reversed(widths))]
            )
            dropped[:0] = group = [name for name in group if name in widths]
            for name in group:
                del widths[name]
            widths.update({n: whole[n] for n in widths})  # room was made: shorten anew
        else:
            break
    return dropped


def _line(cells: list[str], names: list[str], widths: dict[str, int], numeric: set[str]) -> str:
    parts = [
        cell.rjust(widths[name])
        if name in numeric
        else shorten(cell, widths[name]).ljust(widths[name])
        for cell, name in zip(cells, names, strict=True)
    ]
    return _GAP.join(parts).rstrip()


def pairs(rows: Sequence[tuple[str, str]], *, indent: str = "  ") -> str:
    """Lines of names and values, with aligned values."""
    longest = max((len(name) for name, _ in rows), default=0)
    return "\n".join(
        f"{indent}{plain(name).ljust(longest)}  {plain(shown)}".rstrip() for name, shown in rows
    )


_FORMULA = re.compile(
    "^(?:[\\s\\x00-\\x1f\\x7f-\\x9f\\u200b-\\u200f\\ufeff]*[-=+@\uff1d\uff0b\uff0d\uff20]|[\\t\\r\\n])"
)
"""What spreadsheets take for a formula: these signs, also wide ones, and behind what they leave
out when they read.
"""


def csv(frame: pl.DataFrame) -> str:
    r"""A frame as CSV in which a spreadsheet finds no formula."""
    lists = [name for name, dtype in frame.schema.items() if dtype == pl.List]
    frame = frame.with_columns(
        pl.col(name).cast(pl.List(pl.String)).list.join(" ") for name in lists
    )
    texts = frame.select(
        pl.selectors.string() | pl.selectors.categorical() | pl.selectors.enum()
    ).columns
    frame = frame.with_columns(pl.col(texts).cast(pl.String))
    guarded = [
        pl.when(pl.col(name).str.contains(_FORMULA.pattern))
        .then("'" + pl.col(name))
        .otherwise(name)
        .alias(name)
        for name in texts
    ]
    heads = {name: f"'{name}" for name in frame.columns if _FORMULA.match(name)}
    return frame.with_columns(guarded).rename(heads).write_csv()


SLO_WORDS: Final = {True: "holds the SLO", False: "misses the SLO", None: "measured"}
"""What is said of a point of a study; None: there is no SLO."""

METRIC_WORDS: Final = {
    "output_tokens_per_s": "output tokens a second",
    "requests_per_s": "requests a second",
    "wall_ns": "time of the batch",
    "ttft_ns": "time to first token",
    "tpot_ns": "time to each other token",
    "e2e_ns": "time of a request",
}
"""Metrics of runs, as nouns."""


def layout_name(tp: int, pp: int, *, single: str = "one GPU") -> str:
    """A layout of devices in words: ``TP=2``, ``TP=2 × PP=2``, or that of a single one."""
    parts = [f"{name}={size}" for name, size in (("TP", tp), ("PP", pp)) if size > 1]
    return " × ".join(parts) or single
