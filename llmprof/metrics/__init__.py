"""Glossary of hardware metrics: what each means, what a good value is, and what to do about a bad one.

>>> print(explain("dram__throughput.avg.pct_of_peak_sustained_elapsed"))  # doctest: +ELLIPSIS
dram__throughput.avg.pct_of_peak_sustained_elapsed: use of the device memory
...
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from functools import cache

import polars as pl

from llmprof.arguments import checked
from llmprof.errors import LlmprofError
from llmprof.metrics.data import SAME, STALLS, base, parts
from llmprof.metrics.entries import _STALL_SOURCE, ENTRIES, Entry

__all__ = ["Explanation", "explain", "glossary"]

_STALL = re.compile(r"issue_stalled_(\w+?)(?:_not_issued)?(?:_per_issue_active)?(?:_not_issued)?$")
_NAMING = "NVIDIA Nsight Compute documentation, Kernel Profiling Guide: Metrics Structure"


@dataclass(frozen=True)
class Explanation:
    """What is known of a metric; ``str()`` of it is for reading.

    Parameters
    ----------
    name : str
        As it was asked for.
    title, meaning, good, action, source : str
        What it is in a word, what it means, what a good value is, what to do about a bad one, and where it is
        documented. The middle three are empty for a metric that the glossary does not hold.
    parts : dict of str to str
        What the parts of the name say.
    near : tuple of str
        Names in the glossary that are like it, where it is not there itself.
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
        """Whether the glossary holds it."""
        return not self.near and bool(self.good)

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.title}", self.meaning]
        lines += [f"{head}: {text}" for head, text in (("Good", self.good), ("Otherwise", self.action)) if text]
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
        Name of a metric with or without rollup (``dram__bytes_read.sum``), its label on the details page
        (``Achieved Occupancy``), or a warp state (``long_scoreboard``).

    Returns
    -------
    Explanation
        For a metric that the glossary does not hold: what the parts of its name say, and names like it.

    Raises
    ------
    LlmprofError
        Nothing of the name is known; the message has names like it.
    """
    label = name.rsplit(": ", 1)[-1].strip()
    key = base(name)
    state = _STALL.search(key)
    reason = state[1] if state else SAME.get(label.lower(), label.lower())
    reason = SAME.get(reason, reason)
    if reason in STALLS:
        return _stall(name, reason)
    entry = _find(key, name.strip()) or _find(key, label)
    name_parts = parts(name)
    if entry is not None:
        return Explanation(name, entry.title, entry.meaning, entry.good, entry.action, entry.source, name_parts)
    near = tuple(difflib.get_close_matches(key, _known_names(), n=5, cutoff=0.5))
    near = near or tuple(difflib.get_close_matches(label, _known_labels(), n=5, cutoff=0.5))
    if not name_parts:
        raise LlmprofError(
            f"nothing is known of the metric {name!r}",
            expected="a name such as dram__throughput.avg.pct_of_peak_sustained_elapsed",
            hint=f"names like it: {', '.join(near)}" if near else "llmprof.metrics.glossary() lists what is explained",
            near=list(near),
        )
    title = "not in the glossary"
    return Explanation(name, title, "", "", "", _NAMING, name_parts, near or ("dram__throughput", "sm__throughput"))


def _stall(name: str, reason: str) -> Explanation:
    meaning, action = STALLS[reason]
    good = (
        "It is a state of work, not of waiting."
        if reason in ("selected", "not_selected")
        else "A small share of the warp cycles between instructions; the largest is worth a look only where no pipe "
        "and no memory is near its peak."
    )
    name_parts = parts(name)
    return Explanation(
        name, f"warp state {reason}", _sentence(meaning), good, _sentence(action), _STALL_SOURCE, name_parts
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _find(key: str, label: str) -> Entry | None:
    """Entry of a name: of its label, then of its exact name, then of the longest pattern."""
    best: tuple[int, Entry] | None = None
    for entry in ENTRIES:
        if label.lower() in (known.lower() for known in entry.labels) or key in entry.names:
            return entry
        for pattern in entry.names:
            if "*" not in pattern or not re.fullmatch(re.escape(pattern).replace(r"\*", r"\w*"), key):
                continue
            if best is None or len(pattern) > best[0]:
                best = (len(pattern), entry)
    return best[1] if best else None


@cache
def _known_names() -> list[str]:
    return [name.rstrip("*_") for entry in ENTRIES for name in entry.names]


@cache
def _known_labels() -> list[str]:
    return [*(label for entry in ENTRIES for label in entry.labels), *STALLS]


def glossary() -> pl.DataFrame:
    """All that is explained.

    Returns
    -------
    polars.DataFrame
        ``names`` (with ``*`` for families)``, labels`` (of the details page)``, title, meaning, good, action,
        source``.
    """
    rows = [(list(e.names), list(e.labels), e.title, e.meaning, e.good, e.action, e.source) for e in ENTRIES]
    for reason in STALLS:
        made = _stall(reason, reason)
        name = f"smsp__average_warps_issue_stalled_{reason}_per_issue_active"
        rows.append(([name], [], made.title, made.meaning, made.good, made.action, made.source))
    texts = dict.fromkeys(("title", "meaning", "good", "action", "source"), pl.String)
    return pl.DataFrame(rows, schema={"names": pl.List(pl.String), "labels": pl.List(pl.String), **texts}, orient="row")
