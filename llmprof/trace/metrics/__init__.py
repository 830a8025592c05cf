"""Glossary of hardware metrics: the meaning of each, good values, and advice for bad ones.

>>> print(explain("dram__throughput.avg.pct_of_peak_sustained_elapsed"))  # doctest: +ELLIPSIS
dram__throughput.avg.pct_of_peak_sustained_elapsed: use of the device memory
...
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field

import polars as pl

from llmprof.errors import LlmprofError, checked
from llmprof.trace.metrics.entries import ENTRIES, GUIDE, SAME, STALLS, Entry, base_name, parts

__all__ = ["Explanation", "explain", "glossary"]

_STALL = re.compile(
    r"issue_stalled_(\w{1,64}?)(?:_not_issued)?(?:_per_issue_active)?(?:_not_issued)?$"
)


@dataclass(frozen=True)
class Explanation:
    """Explanation of a metric; ``str()`` gives a text for people.

    Parameters
    ----------
    name : str
        Name of the metric as it was given.
    title, meaning, good, action, source : str
        Short title, meaning, good values, advice for bad values, and source. ``meaning``, ``good``
        and ``action`` are empty for a metric that the glossary does not hold.
    parts : dict of str to str
        Meaning of each part of the name.
    near : tuple of str
        Similar names in the glossary, if the glossary does not hold the metric.
    """

    name: str
    title: str
    meaning: str
    good: str
    action: str
    source: str
    parts: dict[str, str] = field(default_factory=dict)
    near: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """Whether the glossary holds the metric."""
        return not self.near and bool(self.good)

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.title}", self.meaning]
        lines += [
            f"{head}: {text}"
            for head, text in (("Good", self.good), ("Otherwise", self.action))
            if text
        ]
        lines += [f"  {part}: {meaning}" for part, meaning in self.parts.items()]
        if self.near:
            lines.append(f"Like it: {', '.join(self.near)}")
        return "\n".join([*(line for line in lines if line), f"Source: {self.source}"])


@checked
def explain(name: str) -> Explanation:
    """Explain a metric.

    Parameters
    ----------
    name : str
        Name of a metric with or without rollup (``dram__bytes_read.sum``), its label on the details
        page (``Achieved Occupancy``), or a warp state (``long_scoreboard``).

    Returns
    -------
    Explanation
        The explanation. For a metric that the glossary does not hold, it consists of the meaning of
        the parts of its name, and of similar names.

    Raises
    ------
    LlmprofError
        No part of the name is known; the message has similar names.
    """
    label = name.rsplit(": ", 1)[-1].strip()
    key = base_name(name)
    state = _STALL.search(key)
    reason = state[1] if state else SAME.get(label.lower(), label.lower())
    reason = SAME.get(reason, reason)
    if reason in STALLS:
        return _stall(name, reason)
    entry = _find(key, name.strip()) or _find(key, label)
    name_parts = parts(name)
    if entry is not None:
        return Explanation(name, *entry[2:], name_parts)
    names = [name.rstrip("*_") for entry in ENTRIES for name in entry.names]
    labels = [*(label for entry in ENTRIES for label in entry.labels), *STALLS]
    near = tuple(
        difflib.get_close_matches(key, names, 5, 0.5)
        or difflib.get_close_matches(label, labels, 5, 0.5)
    )
    if not name_parts:
        expected = "a name such as dram__throughput.avg.pct_of_peak_sustained_elapsed"
        hint = (
            f"similar names: {', '.join(near)}"
            if near
            else "llmprof.trace.metrics.glossary() lists the known metrics"
        )
        raise LlmprofError(
            f"the metric {name!r} is not known", expected=expected, hint=hint, near=list(near)
        )
    title = "not in the glossary"
    return Explanation(
        name,
        title,
        "",
        "",
        "",
        GUIDE + "Metrics Structure",
        name_parts,
        near or ("dram__throughput", "sm__throughput"),
    )


def _stall(name: str, reason: str) -> Explanation:
    good = (
        "It is a state of work, not of waiting."
        if reason in ("selected", "not_selected")
        else (
            "A small share of the warp cycles between instructions; the largest is worth a look"
            " only where no pipe and no memory is near its peak."
        )
    )
    meaning, action = (f"{text[:1].upper()}{text[1:]}." for text in STALLS[reason].values())
    source = GUIDE + "Metrics Reference, Warp Stall Reasons"
    return Explanation(name, f"warp state {reason}", meaning, good, action, source, parts(name))


def _find(key: str, label: str) -> Entry | None:
    """Entry for a name, found by its label, then by the exact name, then by the longest pattern."""
    best: tuple[int, Entry] | None = None
    for entry in ENTRIES:
        if label.lower() in (name.lower() for name in entry.labels) or key in entry.names:
            return entry
        for pattern in entry.names:
            if "*" not in pattern or not re.fullmatch(
                re.escape(pattern).replace(r"\*", r"\w*"), key
            ):
                continue
            if best is None or len(pattern) > best[0]:
                best = (len(pattern), entry)
    return best[1] if best else None


def glossary() -> pl.DataFrame:
    """All metrics of the glossary.

    Returns
    -------
    polars.DataFrame
        ``names``, with ``*`` for families of metrics; ``labels`` on the details page; ``title,
        meaning, good, action, source``.

    Examples
    --------
    >>> glossary().filter(title="use of the device memory")["labels"].to_list()
    [['DRAM Throughput']]
    """
    rows = [*ENTRIES]
    for reason in STALLS:
        stall = _stall(reason, reason)
        name = f"smsp__average_warps_issue_stalled_{reason}_per_issue_active"
        rows.append(
            Entry([name], [], stall.title, stall.meaning, stall.good, stall.action, stall.source)
        )
    texts = dict.fromkeys(("title", "meaning", "good", "action", "source"), pl.String)
    return pl.DataFrame(
        rows,
        schema={"names": pl.List(pl.String), "labels": pl.List(pl.String), **texts},
        orient="row",
    )
