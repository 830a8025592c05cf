"""What a cause is: a measurement in a scope, its figures, and the sentences that say them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final

import polars as pl
from msgspec import Struct, field

from llmprof.findings.scope import Scope, sum_of
from llmprof.names import readable
from llmprof.text import ranks_in_words, shorten
from llmprof.units import format_ns, format_share


class Context(Struct, frozen=True):
    """What the sentences of every cause may say beside its own figures."""

    time_ns: float
    """The time of the finding, of one step or rank."""
    share: float
    per: str
    """What that time is of: ``per step``, ``per rank``, ``in the recording``."""
    words: Mapping[str, str]
    """Words of the platform (:attr:`llmprof.trace.capture.Capture.words`)."""
    ranks: int = 1
    """Ranks of the scope."""
    on: list[int] | None = None
    """The ranks that it is about, if it is not about all."""
    of_torch: bool = False
    on_host: bool = False
    follows_from: str | None = None
    """The finding that tells of its cause."""

    @property
    def amount(self) -> str:
        """Its time and share: ``3.2 ms per step (86.1 %)``."""
        return f"{format_ns(self.time_ns)} {self.per} ({format_share(self.share)})"

    @property
    def where(self) -> str:
        """The ranks that it is about, as the end of a subject."""
        return "" if self.on is None else f" on {ranks_in_words(self.on)}"

    @property
    def device_is(self) -> str:
        """The device or devices that it is about, with their verb, as the start of a sentence."""
        device = self.words["device"]
        if self.on is None:
            return f"{'The' if self.ranks == 1 else 'Each'} {device} is"
        of_ranks = f"of {ranks_in_words(self.on)}"
        return (
            f"The {device} {of_ranks} is" if len(self.on) == 1 else f"The {device}s {of_ranks} are"
        )


class Figures(Struct, frozen=True):
    """The figures of a cause and its sentences; names of figures end in their unit."""

    @abstractmethod
    def title(self, of: Context) -> str:
        """What takes the time, in at most 25 words: the subject, one figure, its share."""

    @abstractmethod
    def detail(self, of: Context) -> str:
        """The figures behind it."""

    @abstractmethod
    def advice(self, of: Context) -> str:
        """What to try."""


class Measurement(Struct, frozen=True):
    """The time of a cause in a scope, and where in the trace it is."""

    ns: float
    """Its time, summed over ranks and steps (ns); findings are ranked by it."""
    figures: Figures
    gain_ns: float | None = None
    """Most that removing it could gain, if that is less than its time."""
    whole_ns: float | None = None
    """What its share is of, if not the time of the scope: all that was recorded."""
    each_ns: float | None = None
    """Its time of one step, if the steps of the scope are not all that it happens in."""
    where: str = "true"
    """SQL condition for the rows of the evidence that show it."""
    rank: int | None = None
    """Rank on which most of it happens."""
    window_ns: tuple[int, int] | None = None
    """Window in which it is worst: from, to (ns)."""
    change: str | None = None
    """The remedy as a change that a replay can make, as ``llmprof what-if`` takes it."""
    own: list[int] | None = None
    """Ranks that it is about, if it is not about all: its figure and share are of their time
    alone.
    """
    by_rank: pl.DataFrame | None = None
    """``rank, dur_ns`` of its time: if ranks differ, it is about those with most of it."""
    each_rank_ns: Mapping[int, float] = field(default_factory=dict)
    """Its time of a step of every rank."""
    follows_from: str | None = None
    """The cause of this one."""
    unsure: bool = False
    """Whether the recording does not say why, or it is inferred from what stands beside it."""
    is_fact: bool = False
    """Whether it is no loss of the run itself, such as time that the profiler takes."""
    about: str | None = None
    """Full name of the kernel, call or function that the sentences name."""
    few: str = ""
    """Which few of its rows hold nearly all of it, as a sentence."""

    @classmethod
    def of(
        cls, rows: pl.DataFrame, figures: Figures, *, ns: float | None = None, **more: Any
    ) -> Measurement:
        """About the time of some rows (``rank, start_ns, dur_ns``), or ``ns``, and where these
        are worst.
        """
        rank, window = _worst(rows)
        ns = sum_of(rows, "dur_ns") if ns is None else ns
        few = few_longest(rows["dur_ns"])
        return cls(ns, figures, rank=rank, window_ns=window, few=few, **more)


NEARLY_ALL: Final = 0.85
"""Least share of a time for the few longest of its rows, at most a tenth of them, to be told."""

FEW: Final = 50
"""More rows than these are not few."""


def few_longest(lengths: pl.Series) -> str:
    """Which few of some rows take nearly all of their time, as a sentence; empty without any."""
    whole, most = float(lengths.sum() or 0), max(1, min(FEW, len(lengths) // 10))
    longest = [float(length) for length in lengths.top_k(most).sort(descending=True)]
    if len(lengths) <= most + 1 or not whole or sum(longest) < NEARLY_ALL * whole:
        return ""
    few = next(n for n in range(1, most + 1) if sum(longest[:n]) >= NEARLY_ALL * whole)
    # and those of about the same length
    few = sum(length >= longest[few - 1] / 2 for length in longest)
    number = "" if few == 1 else f"{few:,} "
    take = "takes" if few == 1 else "take"
    share = format_share(sum(longest[:few]) / whole)
    return f" The longest {number}of {len(lengths):,} in all {take} {share} of it."


def _worst(rows: pl.DataFrame) -> tuple[int | None, tuple[int, int] | None]:
    """Rank with most of the time of some rows, and the longest of its rows as a window."""
    if not rows.height:
        return None, None
    longest = pl.col("start_ns", "dur_ns").get(pl.col("dur_ns").arg_max().fill_null(0))
    ranks = rows.group_by("rank").agg(pl.sum("dur_ns").alias("ns"), longest)
    rank, _, start, length = min(ranks.iter_rows(), key=lambda row: (-row[1], row[0]))
    return rank, (start, start + length)


POTENTIAL: Final = 0.2
"""What could be gained of a stage is not known without its bound; it is ranked as if this were."""

FUSED: Final = 0.3
"""Part of the time of short kernels, and of gaps between kernels, that fewer ones may gain: what a
fused kernel reads and writes stays, and every step has some.
"""


class Cause(Struct, frozen=True):
    """One thing that takes time: how it is measured, and when that is a finding."""

    name: str
    measure: Callable[[Scope], Measurement | None]
    evidence: str
    """The analysis whose rows show it, and the chart of that name."""
    min_share: float = 0.01
    info: bool = False
    last: bool = False
    """Whether it is about labels and not about the run; such findings come last."""
    follows_from: str | None = None
    """The cause whose time it measures a part of."""
    potential: float = 0.0
    """Part of its time that could be gained, by which it is ranked and graded; 0: not known for a
    loss, and none for a fact, which stands after them.
    """
    unless: str | None = None
    """The cause in place of which it stands, where that one finds nothing, or little of other time.
    """


AI_CPU_NAME: Final = r"AiCpu|AI_?CPU"
"""Names of kernels that run on a general-purpose processor of an NPU."""

NAME_THEM: Final = "Name the kernels in a file: --own FILE, or llmprof.names.register in Python."
"""Advice on kernels of which no name says what they do."""


def readable_name(name: str | None) -> str:
    """The name of a kernel or copy as a sentence has it."""
    if name is None:
        return "a kernel without a name"
    return shorten(readable(pl.Series([name], dtype=pl.String))[0], 100)


def longest_in(what: str, share: float) -> str:
    """What a share of a finding's time is in: ``in X`` for all of it, or else ``longest in X``."""
    return f"in {what}" if share >= 0.9995 else f"longest in {what}"
