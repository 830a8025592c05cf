"""Copies without compute or communication at the same time."""

from __future__ import annotations

from typing import Final

import polars as pl

from llmprof.findings.cause import Cause, Context, Figures, Measurement, readable_name
from llmprof.findings.host import MOSTLY, RangeAround, first_match, range_around
from llmprof.findings.scope import Scope, heaviest, sum_of
from llmprof.text import tenths
from llmprof.units import format_bytes, format_share

LITTLE_BYTES: Final = 1 << 20
"""The rate of copies is stated from this number of bytes on; below it, their start-up time
dominates.
"""

KINDS: Final = {
    "pageable": "(?i)pageable",
    "to device": "(?i)HtoD|HostToDevice|host.to.device",
    "to host": "(?i)DtoH|DeviceToHost|device.to.host",
    "peer": "(?i)PtoP|peer",
}
"""Kinds of copies, by their names and memories."""


class Copies(Figures, frozen=True):
    """Counts and bytes are of one step or rank."""

    name: str
    """The name with most of the time, and the kinds of memory."""
    by_name_share: float
    copies: float
    kind: str | None = None
    moved_bytes: float | None = None
    gbps: float | None = None
    around: RangeAround | None = None
    kernel: str = ""
    """The kernel with most of it, if kernels copy."""
    operator: str = ""
    """The operator that launches most of them."""
    by_operator_share: float = 0.0
    of_convolutions: bool = False
    """Whether most of them change the layout for convolutions."""
    beside_kernels: bool = True
    """Whether kernels were recorded, which they could overlap."""

    def title(self, of: Context) -> str:
        return (
            f"Copies{' that overlap nothing' * self.beside_kernels} take {of.amount}{of.where},"
            f" most in {readable_name(self.name)}."
        )

    def detail(self, of: Context) -> str:
        text = (
            f"{format_share(self.by_name_share)} of it is {readable_name(self.name)}:"
            f" {tenths(self.copies)} {of.per}"
        )
        if self.moved_bytes and self.gbps is not None:
            text += f", {format_bytes(self.moved_bytes)} in all at {self.gbps:,.1f} GB/s"
        if self.kernel and self.by_operator_share >= MOSTLY:
            text += f", the most time in {self.operator} ({format_share(self.by_operator_share)})"
        return f"{text}." if self.around is None else f"{text}. {self.around}."

    def advice(self, of: Context) -> str:
        torch = of.of_torch
        if self.kind == "pageable":
            how = "pinned memory (pin_memory=True) and non_blocking=True"
            return (
                f"Use {how if torch else 'pinned memory and asynchronous copies'}: copies from"
                " pageable memory go through a buffer and cannot run beside compute."
            )
        if self.kind == "to device":
            what = " (offloaded weights, KV blocks, constants)" if torch else ""
            when = "the step before computes" if torch else "other work runs"
            return (
                f"Keep what is copied more than once{what} on the device. Or fetch it from pinned"
                f" memory on a stream of its own while {when}."
            )
        if self.kind == "to host":
            if torch:
                return (
                    "Copy results on a stream of their own while the next step computes, and copy"
                    " less: token ids instead of logits."
                )
            return (
                "Copy results on a stream of their own while other work runs, and copy less of"
                " them."
            )
        if self.kind == "peer":
            return (
                "Send between devices while others compute, or place what is exchanged on the"
                " device that uses it."
            )
        if not self.kernel:
            return "Copy less, or on a stream of its own while other work runs."
        if torch and self.of_convolutions:
            return "Keep tensors in channels_last: convolutions convert between NCHW and NHWC here."
        if torch:
            return (
                "Look for the operators that copy or fill (contiguous, to, cat, zero_): a"
                " neighbouring operation may do it while it reads or writes."
            )
        return (
            "Look for changes of layout or type that a neighbouring operation could do while it"
            " reads."
        )


def _measure(scope: Scope) -> Measurement | None:
    rows = scope.times.filter(kind="copy")
    if not rows.height:
        return None
    name, share = heaviest(rows, "part", "ns")
    events = scope.events.filter(pl.col("category").is_in(["copy", "fill"]))
    of_name = events.filter(pl.col("name").eq_missing(name))
    shown = of_name if of_name.height else events.filter(source="kernel")
    moved = None
    if of_name.height and "copies" in scope.trace.table_names:
        moved = scope.begun(scope.trace.copies.filter(pl.col("name").eq_missing(name)))
    kernel = "" if of_name.height else str(heaviest(shown, "name")[0] or "")
    operator, of_operator = heaviest(shown, "operator")
    layout = pl.concat_str("name", "operator", ignore_nulls=True).str.contains("(?i)nchw|nhwc|conv")
    what = f"{name}{_memories(name, moved)}"
    many = 0.0 if moved is None else sum_of(moved, "bytes")
    figures = Copies(
        what,
        share,
        shown.height / scope.parts,
        first_match(f"{what} {kernel}", KINDS),
        many / scope.parts if many >= LITTLE_BYTES * scope.parts else None,
        None if moved is None else many / max(1.0, sum_of(moved, "dur_ns")),
        range_around(scope, events),
        kernel,
        str(operator or ""),
        of_operator,
        sum_of(shown.filter(layout), "dur_ns") > MOSTLY * sum_of(shown, "dur_ns"),
        scope.has_kernels,
    )
    # copies without a separate category cannot be told from other work
    change = "remove:copy" if bool((scope.events["category"] == "copy").any()) else None
    return Measurement.of(
        shown if shown.height else events,
        figures,
        ns=scope.time("copy"),
        where="category IN ('copy', 'fill')",
        change=change,
        by_rank=scope.rank_times("copy"),
        about=what,
    )


def _memories(name: str, moved: pl.DataFrame | None) -> str:
    """The kinds of memory between which most bytes of copies with one name go, if the name does
    not say them.
    """
    if moved is None or pl.Series([name]).str.contains("(?i)pinned|pageable")[0]:
        return ""
    both = pl.format("{} to {} memory", "src_kind", "dst_kind")
    kinds, _ = heaviest(moved.with_columns(_both=both), "_both")
    return "" if kinds is None else f" ({kinds})"


COPIES: Final = Cause("copies", _measure, "events")
