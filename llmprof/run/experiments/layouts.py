"""Whether several devices are worth it: a verdict on each layout, and what the theory predicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import polars as pl

from llmprof import theory
from llmprof.errors import AnalysisError, LlmprofError
from llmprof.run.experiments.scaling import (
    PHASES,
    PREFILL_TOKENS,
    WORKLOAD,
    WORTH,
    fitted,
    median,
    parallelism,
)
from llmprof.text import joined, layout_name
from llmprof.theory.plan import decode, prefill
from llmprof.theory.profiler import machine_for
from llmprof.theory.work import step_operators

_FEWEST_POINTS: Final = 4
_PREDICTED: Final = {
    **dict.fromkeys(("tp", "pp", "devices", *WORKLOAD), pl.Int64),
    **dict.fromkeys(("decode_s", "communication_s", "smaller_s", "prefill_s"), pl.Float64),
}

Range: TypeAlias = tuple[float, float]
Worth: TypeAlias = Literal["throughput", "latency", "none"]


@dataclass(frozen=True)
class LayoutVerdict:
    """What a layout of devices is worth, over the workloads that one device ran, too.

    Parameters
    ----------
    tp, pp : int
        The layout.
    worth : {"throughput", "latency", "none"}
        Whether it gives as many tokens a second as replicas on as many devices, or only a shorter
        time to the next token (the medians over the workloads).
    cache : float, optional
        Tokens that its KV cache holds, as a multiple of those of as many replicas.
    decode, prefill, whole : (float, float), optional
        Least and largest speed-up over one device of a decode step, of the prefill, and of the
        tokens a second.
    """

    tp: int
    pp: int
    worth: Worth
    cache: float | None = None
    decode: Range | None = None
    prefill: Range | None = None
    whole: Range | None = None

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.tp * self.pp

    @property
    def of_replicas(self) -> Range | None:
        """Tokens a second, as a share of what as many replicas give, each on one device."""
        return self.whole and (self.whole[0] / self.devices, self.whole[1] / self.devices)

    def __str__(self) -> str:
        name, replicas = layout_name(self.tp, self.pp), f"{self.devices} replicas"
        evidence = []
        if self.decode:
            evidence.append(f"it decodes {_span(self.decode)} times as fast as one GPU")
        if self.whole and self.of_replicas:
            evidence.append(
                f"a batch gets {_span(self.whole)} times the tokens a second of one GPU,"
                f" {_span(self.of_replicas)} of what {replicas} give"
            )
        head = {
            "throughput": f"{name} is worth it",
            "latency": f"{name} is worth it for the time of a token, not for tokens a second",
            "none": f"{name} is not worth it where the model fits on one GPU",
        }[self.worth]
        words = f"{head}: {', and '.join(evidence)}."
        if self.cache is not None:
            words += f" Its KV cache holds {self.cache:.2f} times the tokens of {replicas}."
        return words


def _span(span: Range) -> str:
    low, high = (f"{one:.2f}" for one in span)
    return low if low == high else f"{low} to {high}"


def layout_verdicts(layouts: pl.DataFrame) -> list[LayoutVerdict]:
    """The verdict on each layout of :func:`parallelism`, the most worth first."""
    found = []
    for (tp, pp), rows in layouts.group_by("tp", "pp", maintain_order=True):
        of = {name: rows.filter(phase=name).drop_nulls("speedup") for name in PHASES}
        spans: dict[str, Range] = {
            name: one.select(pl.min("speedup"), high=pl.max("speedup")).row(0)
            for name, one in of.items()
            if one.height
        }
        if not {"decode", "whole"} & set(spans):
            continue
        worth: Worth = "none"
        if (median(of["whole"], "efficiency") or 0.0) >= 1:
            worth = "throughput"
        elif (median(of["decode"], "speedup") or 0.0) >= WORTH:
            worth = "latency"
        held = pl.col("kv_tokens") / pl.col("single_kv_tokens") / pl.col("devices")
        found.append(
            LayoutVerdict(int(tp), int(pp), worth, rows.select(held.median()).item(), **spans)
        )
    order = ("throughput", "latency", "none")
    return sorted(found, key=lambda one: (order.index(one.worth), one.devices))


def answer(verdicts: Sequence[LayoutVerdict]) -> str:
    """In a sentence, whether more devices than one are worth it."""
    best = verdicts[0].worth
    names = joined([layout_name(one.tp, one.pp) for one in verdicts if one.worth == best])
    return {
        "throughput": f"{names} gives at least the tokens a second of as many replicas.",
        "latency": (
            f"For the time of a token, {names} is worth it; for tokens a second it is not: as many"
            " replicas give more."
        ),
        "none": (
            "No: none of the layouts is faster than one GPU, and as many replicas give more tokens"
            " a second. They are for models that do not fit on one."
        ),
    }[best]


def judged(points: pl.DataFrame) -> list[str]:
    """The answer and the verdict on each layout; nothing if there is nothing to compare."""
    try:
        verdicts = layout_verdicts(parallelism(points))
    except AnalysisError:
        return []
    return [answer(verdicts), *map(str, verdicts)] if verdicts else []


def predicted_layouts(points: pl.DataFrame, model: Any, device: Any) -> pl.DataFrame:
    """What the theory predicts for each layout of as many devices as were measured, and of twice
    as many, beside what was measured.

    The constants are fitted to the points on one device, so that no prediction has seen its own
    layout; where these are too few, they are those that come with the package. Without a value are
    ``prefill_s`` of a prompt that takes several steps, and ``smaller_s``, the time of a decode step
    beyond its share of one device that is no communication, of pipelines.
    """
    one = points.filter((pl.col("tp") == 1) & (pl.col("pp") == 1))
    found = _calibration(one, model, device)
    most: int = points.select((pl.col("tp") * pl.col("pp")).max()).item()
    workloads = (one if one.height else points).unique(WORKLOAD).sort("batch", "prompt", "out")
    rows = []
    for tp, pp in _layouts((1, max(most, 2), 2 * max(most, 2))):
        try:
            plan = theory.profile(model, device, tp_size=tp, pp_size=pp)
        except LlmprofError:  # the model cannot be split so, or does not fit
            continue
        machine = machine_for(plan.shape, plan.device, plan.plan)
        for batch, prompt, out in workloads.select("batch", "prompt", "out").iter_rows():
            step = decode(batch, prompt + out / 2)
            sent = sum(
                operator.layers * found.operator_s(machine, operator, prefill=False)
                for operator in step_operators(plan.shape, step, plan.plan)
                if operator.message_bytes
            )
            first = (
                found.step_s(plan.shape, prefill(batch, prompt), machine)
                if batch * prompt <= PREFILL_TOKENS
                else None
            )
            whole = found.step_s(plan.shape, step, machine)
            rows.append((tp, pp, tp * pp, prompt, batch, out, whole, sent, None, first))
    frame = pl.DataFrame(rows, schema=_PREDICTED, orient="row")
    single = frame.filter(devices=1).select(*WORKLOAD, single_s="decode_s")
    measured = points.select(
        *("tp", "pp", *WORKLOAD), measured_decode_s="decode_step_s", measured_prefill_s="prefill_s"
    )
    smaller = pl.col("decode_s") - pl.col("single_s") / pl.col("tp") - pl.col("communication_s")
    return (
        frame.filter(pl.col("devices") > 1)
        .join(single, on=WORKLOAD, how="left")
        .join(measured, on=["tp", "pp", *WORKLOAD], how="left")
        .with_columns(
            smaller_s=pl.when(pl.col("pp") == 1).then(smaller),
            decode_error=pl.col("decode_s") / pl.col("measured_decode_s") - 1,
            prefill_error=pl.col("prefill_s") / pl.col("measured_prefill_s") - 1,
        )
        .sort("devices", "pp", "batch", "prompt", "out")
    )


def _calibration(one: pl.DataFrame, model: Any, device: Any) -> theory.Calibration:
    """Constants from the points on one device, or those of the package."""
    if one["decode_step_s"].drop_nulls().len() >= _FEWEST_POINTS:
        return fitted(one, model, device)
    return theory.calibrated(device)


def _layouts(devices: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Layouts of some numbers of devices."""
    for number in devices:
        yield from ((tp, number // tp) for tp in range(number, 0, -1) if number % tp == 0)
