"""What each step computed: its requests with their new tokens and contexts, from the labels of the engine."""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.theory.plan import Batch, Requests

_SUMS: Final = r"^sq(\d+)sk(\d+)"
_PAIRS: Final = r"^(\d+)_(\d+)$"
_INSIDE: Final = r"context_\d+\(([^)]*)\)_generation_\d+\(([^)]*)\)"

SOURCES: Final = ("label", "followed", "estimated", "unknown")
"""How a step's contexts are known: said by its label; followed from the prompts that earlier steps read; estimated
where the number of requests changed in between; unknown where the trace begins after their prompts (the context is
taken as the new token alone, so that what is computed from it is a lower bound)."""


def batches(steps: pl.DataFrame, *, context: float | None = None) -> dict[tuple[int, int], tuple[Batch, str]]:
    """Requests of each step.

    Labels in the detailed form give the sums of query and key lengths. Others give requests and tokens only; there
    the contexts are followed: a prompt's tokens stay for the steps that generate from it, and each adds one. Where
    fewer requests generate than are held, the oldest ones are taken to have ended.

    Parameters
    ----------
    steps : polars.DataFrame
        Of :func:`llmprof.analyze.steps`.
    context : float, optional
        Tokens of a request's context at the first step whose requests came before the trace.

    Returns
    -------
    dict
        By ``(rank, step)`` the batch and how its contexts are known (:data:`SOURCES`); steps without tokens are left
        out.
    """
    found: dict[tuple[int, int], tuple[Batch, str]] = {}
    said = steps.with_columns(
        _context=pl.col("name").str.extract(_INSIDE, 1), _generation=pl.col("name").str.extract(_INSIDE, 2)
    )
    for rank in said["rank"].unique(maintain_order=True).to_list():
        held = _Held(context)
        for row in said.filter(pl.col("rank") == rank).sort("step").iter_rows(named=True):
            batch, source = held.step(row)
            if batch:
                found[rank, row["step"]] = batch, source
    return found


class _Held:
    """Requests that the engine holds: groups of their number and mean context, the oldest first."""

    def __init__(self, context: float | None) -> None:
        self.groups: list[list[float]] = []
        self.given, self.known = context, True

    def step(self, row: dict[str, object]) -> tuple[Batch, str]:
        """The batch of a step; keeps what it leaves behind."""
        detailed = _sums(row["_context"]), _sums(row["_generation"])
        parts: list[Requests] = []
        source = "label" if any(detailed) else "followed"
        generating, made = _number(row["generation_requests"]), _number(row["generation_tokens"])
        reading, read = _number(row["context_requests"]), _number(row["context_tokens"])
        if generating and made is None:
            made = generating
        if generating and made:
            before, source = self._context(generating, detailed[1], source)
            each = made / generating
            parts.append(Requests(generating, each, before + each))
            for group in self.groups:
                group[1] += each
        if reading and read:
            sums = detailed[0]
            length = max(sums[1] / reading if sums else 0.0, read / reading)
            parts.append(Requests(reading, read / reading, length, "prefill"))
            self.groups.append([reading, length])
        return tuple(reversed(parts)), source

    def _context(self, generating: float, sums: tuple[float, float] | None, source: str) -> tuple[float, str]:
        """Mean of the cached tokens of each generating request before the step."""
        if sums is not None:
            self.groups = [[generating, max(sums[1] - sums[0], 0.0) / generating]]
            return self.groups[0][1], "label"
        held = sum(count for count, _ in self.groups)
        if generating > held:
            self.known = self.given is not None
            self.groups.insert(0, [generating - held, self.given or 0.0])
        elif generating < held:
            source = "estimated"
            self._end(held - generating)
        mean = sum(count * tokens for count, tokens in self.groups) / generating
        return mean, source if self.known else "unknown"

    def _end(self, ended: float) -> None:
        """Let the oldest requests go."""
        while ended > 0 and self.groups:
            gone = min(ended, self.groups[0][0])
            self.groups[0][0] -= gone
            ended -= gone
            if self.groups[0][0] <= 0:
                self.groups.pop(0)


def _sums(text: object) -> tuple[float, float] | None:
    """Sums of query and key lengths from what stands in the parentheses of a detailed label."""
    found = pl.select(
        a=pl.lit(text, dtype=pl.String).str.extract(_SUMS, 1).cast(pl.Float64),
        b=pl.lit(text, dtype=pl.String).str.extract(_SUMS, 2).cast(pl.Float64),
    ).row(0)
    return None if found[0] is None or found[1] is None or found[0] == 0 else (found[0], found[1])


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int) else None
