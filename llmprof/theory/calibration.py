"""Calibration of a machine by measured steps: efficiencies and fixed costs that predict the steps
of other models.

The lower bound (:mod:`llmprof.theory.bound`) is the time that cannot be beaten. A calibration
predicts the time that an engine reaches on a device; it is a prediction with an error, not a bound.

The device time of an operator has constants for each group of stages (linear, experts, attention of
prefill and of decode, elementwise, collective)::

    t = fixed + tile x tiles + (compute^p + memory^p)^(1/p)
    compute = FLOPs / (peak x flops efficiency)     memory = bytes / (bandwidth x memory efficiency)

The fixed cost is the time to start and end the kernels, and under CUDA graphs the gap between them.
The p-norm gives the soft corner that measured rooflines have. Activations of elementwise operators
pass through caches, so all their bytes count, at a separate efficiency. ``tiles`` is the number of
requests times the heads of keys and values in decode attention; each tile has a cost. The kernel
that updates Mamba states while decoding takes as long for each element in 16 bits as in 32, so such
a scan takes at least its elements times a cost. The time of a step is then::

    device = sum over operators + gap x kernels + step_fixed
    decode = max(device, host_step + host_batch x (1 - 1 / requests) + host_request x
    requests^host_power) prefill = max(device, host) + first_token host = host_layer x layers x (1 +
    host_again x (1 - 1 / requests)) + host_experts_layer x layers with experts
           + host_scan_layer x layers with a scan

``host_*`` is the time of the engine on the CPU, which the device time of small models does not
hide. In decode it is counted per step and per request, and grows faster than the number of
requests. In prefill it is counted per layer (with graphs up to :data:`GRAPH_TOKENS` tokens, without
graphs above), and partly a second time if the requests of a batch arrive one after another and so
need further steps. ``first_token`` is the time for scheduling and for returning the first token.
Both maxima are soft (:data:`CORNER`).
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl

from llmprof.errors import LlmprofError, listed, needs
from llmprof.theory.bound import Machine, find_device
from llmprof.theory.hardware import Device
from llmprof.theory.memory import total_parameters
from llmprof.theory.plan import Batch, Plan
from llmprof.theory.profiler import machine_for
from llmprof.theory.shapes import Shape
from llmprof.theory.work import OperatorWork, step_operators
from llmprof.trace.storage import typed

GRAPH_TOKENS: Final = 512
"""Tokens of a step up to which vLLM replays captured graphs by default."""

CORNER: Final = 8.0

_START: Final = json.loads(
    resources.files("llmprof.theory").joinpath("priors.json").read_text("utf-8")
)
PRIORS: Final[dict[str, tuple[float, float]]] = {
    name: (value, deviation) for name, (value, deviation) in _START["priors"].items()
}
"""Starting values and prior standard deviations (of the logarithm of a factor), chosen from
recordings of vLLM 0.26 on an H200.
"""

_GROUPS: Final[dict[str, str]] = _START["groups"]
CalibrationKind = Literal["decode", "prefill", "stage"]


@dataclass(frozen=True)
class Observation:
    """One measured time.

    Parameters
    ----------
    shape : Shape
        Model that ran.
    plan : Plan
        Layout of the model on the devices.
    batch : tuple of Requests
        Requests of the step.
    kind : {"decode", "prefill", "stage"}
        What was measured: a whole decode step, the time from scheduling to the first token, or one
        stage's kernels.
    seconds : float
        Measured time (s).
    stage : str
        Name of the stage, for the kind ``stage``.
    weight : float
        Weight in the fit.
    graphs : bool
        Whether kernels ran from CUDA graphs.
    """

    shape: Shape
    plan: Plan
    batch: Batch
    kind: CalibrationKind
    seconds: float
    stage: str = ""
    weight: float = 1.0
    graphs: bool = True

    @property
    def requests(self) -> float:
        """Number of requests in the batch."""
        return sum(part.count for part in self.batch)

    @property
    def tokens(self) -> float:
        """Number of new tokens in the batch."""
        return sum(part.tokens for part in self.batch)


@dataclass(frozen=True)
class Calibration:
    """Fitted constants of an engine on a device.

    Parameters
    ----------
    device : str
        Name of the device.
    values : mapping of str to float
        The constants (:data:`PRIORS`): microseconds if the name ends in ``_us``, otherwise shares
        of a peak.
    source : str
        Description of the measurements that it was fitted to.
    errors : tuple of mapping
        Residuals of the fit: ``model, kind, stage, requests, tokens, context, measured_s,
        predicted_s``.
    covers : mapping of str to list
        Whole steps that it was fitted to: names of ``layers, weights, kv_cache, layout`` and least
        and largest ``parameters, requests, tokens`` (new ones of a step), ``context`` (tokens of a
        request).
    """

    device: str
    values: Mapping[str, float]
    source: str = ""
    errors: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    covers: Mapping[str, list[Any]] = field(default_factory=dict, repr=False)

    def outside(self, shape: Shape, plan: Plan, *batches: Batch) -> tuple[str, ...]:
        """What of a model, its layout and its steps the fit has not seen; empty if it has seen
        the like of all.
        """
        if not self.covers:
            return ("the calibration does not state what it was fitted to",)
        found = []
        for name, values in _facts([(shape, plan, batch) for batch in batches]).items():
            known = self.covers[name]
            if name not in _RANGES:
                unseen = sorted(values - set(known))
                fitted = listed(known)
            else:
                low, high = known
                unseen = [f"{value:,.0f}" for value in sorted(values) if not low <= value <= high]
                fitted = f"{low:,.0f} to {high:,.0f}"
            if unseen:
                found.append(f"{_FACTS[name]} {listed(unseen)} (fitted to {fitted})")
        return tuple(found)

    def operator_s(self, machine: Machine, operator: OperatorWork, *, prefill: bool) -> float:
        """Predicted device time of an operator in one layer (s)."""
        v = self.values
        gate = operator.component == "attention_gate"  # of the stage of attention, and no attention
        group = "elementwise" if gate else _GROUPS.get(operator.stage, "elementwise")
        rate, bandwidth = machine.rate(operator.math) if operator.flops else 1.0, machine.bandwidth
        moved = operator.input_bytes + operator.output_bytes + operator.kv_write_bytes
        if group == "collective":
            sent = machine.time(operator).communication_s / v["collective_link"]
            return v["collective_fixed_us"] * 1e-6 + sent
        if group == "sampling":
            # the logits are widened to fp32 and read again
            return (
                v["elementwise_fixed_us"] * 1e-6 * operator.kernels
                + 5 * moved / bandwidth / v["sampling_memory"]
            )
        if group == "elementwise":
            moved += operator.kv_read_bytes  # states; keys and values belong to attention
            kernels = operator.kernels * v["elementwise_fixed_us"] * 1e-6
            updated = operator.updates * v["state_update_ps"] * 1e-12
            return kernels + max(moved / bandwidth / v["elementwise_memory"], updated)
        crossing = machine.crossing(operator) / bandwidth
        if group == "attention":
            group = (
                "prefill_attention"
                if prefill and operator.component == "attention"
                else "decode_attention"
            )
            memory = crossing / v["decode_attention_memory"]
            if group == "decode_attention":
                memory += operator.tiles * v["decode_attention_tile_ns"] * 1e-9
            compute = operator.flops / rate / v["prefill_attention_flops"]
        else:
            memory, compute = (
                crossing / v[f"{group}_memory"],
                operator.flops / rate / v[f"{group}_flops"],
            )
        launches = operator.kernels if operator.stage in {"router", "in_proj"} else 1
        return launches * v[f"{group}_fixed_us"] * 1e-6 + _soft_max(compute, memory, v["corner"])

    def stage_s(
        self, machine: Machine, operators: Iterable[OperatorWork], *, prefill: bool
    ) -> dict[str, float]:
        """Predicted device time of each stage over all layers (s)."""
        times: defaultdict[str, float] = defaultdict(float)
        for operator in operators:
            times[operator.stage] += operator.layers * self.operator_s(
                machine, operator, prefill=prefill
            )
        return times

    def step_s(self, shape: Shape, batch: Batch, machine: Machine) -> float:
        """Predicted time of a decode step, or from scheduling to the first token of a prefill,
        in seconds.
        """
        prefill = any(part.phase == "prefill" for part in batch)
        work = step_operators(shape, batch, machine.plan)
        return self._step(work, machine, _mixers(shape), batch, prefill=prefill)

    def _step(
        self,
        work: Sequence[OperatorWork],
        machine: Machine,
        layers: int,
        batch: Batch,
        *,
        prefill: bool,
    ) -> float:
        v = self.values
        device = sum(
            operator.layers * self.operator_s(machine, operator, prefill=prefill)
            for operator in work
        )
        gaps = v["gap_us"] * sum(operator.kernels * operator.layers for operator in work)
        device += (v["step_fixed_us"] + gaps) * 1e-6
        requests = sum(part.count for part in batch)
        several = 1 - 1 / max(requests, 1)
        if not prefill:
            host = v["host_step_us"] + v["host_batch_us"] * several
            host += v["host_request_us"] * math.pow(requests, v["host_power"])
            return _soft_max(device, host * 1e-6, CORNER)
        tokens = sum(part.tokens for part in batch)
        experts = max(
            (operator.layers for operator in work if operator.component == "experts"), default=0
        )
        again = 1 + v["host_again"] * several
        scans = sum(operator.layers for operator in work if operator.component == "scan")
        graphs = tokens <= GRAPH_TOKENS
        host = v["host_graph_layer_us" if graphs else "host_layer_us"] * layers * again
        host += v["host_scan_layer_us"] * scans + (
            0.0 if graphs else v["host_experts_layer_us"] * experts
        )
        return _soft_max(device, host * 1e-6, CORNER) + v["first_token_us"] * 1e-6

    def predict(
        self, observations: Sequence[Observation], device: Device | str | None = None
    ) -> pl.DataFrame:
        """Predicted and measured times side by side, on the device of the calibration if none is
        given.

        ``model, tp, kind, stage, requests, tokens, context, measured_s, predicted_s, bound_s,
        error`` (predicted over measured, minus 1).
        """
        target = find_device(device or self.device)
        rows = []
        for one in observations:
            case = _Case(one, target)
            predicted = case.predicted(self)
            context = max(part.context for part in one.batch)
            labels = (
                one.shape.name,
                float(one.plan.tp),
                one.kind,
                one.stage,
                one.requests,
                one.tokens,
                context,
            )
            rows.append(
                (
                    *labels,
                    one.seconds,
                    predicted,
                    case.machine.total(case.found),
                    predicted / one.seconds - 1,
                )
            )
        return pl.DataFrame(rows, schema=_PREDICTED, orient="row")

    def to_json(self) -> str:
        """JSON text of the calibration, which :func:`read_calibration` reads."""
        names = ("device", "source", "values", "covers", "errors")
        return json.dumps({name: getattr(self, name) for name in names}, indent=1)


_RANGES: Final = ("parameters", "requests", "tokens", "context")
_FACTS: Final = {
    "layers": "layers",
    "weights": "weights in",
    "kv_cache": "KV cache in",
    "layout": "layout",
    "parameters": "parameters",
    "requests": "requests",
    "tokens": "new tokens of a step",
    "context": "tokens of a request",
}


def _facts(steps: Iterable[tuple[Shape, Plan, Batch]]) -> dict[str, set[Any]]:
    """What the validity of a calibration depends on."""
    found: dict[str, set[Any]] = {}
    for shape, plan, batch in steps:
        sizes = [
            f"{name} {getattr(plan, name)}" for name in ("pp", "sp") if getattr(plan, name) > 1
        ]
        experts = ["expert parallel"] if plan.expert_parallel else []
        facts: dict[str, Iterable[Any]] = {
            "layers": {
                layer.kind
                + (" with experts" if layer.feed_forward and layer.feed_forward.experts else "")
                for layer, _ in shape.kinds
            },
            "weights": {plan.weights},
            "kv_cache": {plan.kv_cache},
            "layout": {", ".join([f"tp {plan.tp}", *sizes, *experts])},
            "parameters": {total_parameters(shape)},
            "requests": {sum(part.count for part in batch)},
            "tokens": {sum(part.tokens for part in batch)},
            "context": {part.context for part in batch},
        }
        for name, values in facts.items():
            found.setdefault(name, set()).update(values)
    return found


_PREDICTED: Final = dict.fromkeys(
    (
        "model",
        "tp",
        "kind",
        "stage",
        "requests",
        "tokens",
        "context",
        "measured_s",
        "predicted_s",
        "bound_s",
        "error",
    ),
    pl.Float64,
) | dict.fromkeys(("model", "kind", "stage"), pl.String)


def calibrate(
    observations: Sequence[Observation],
    device: str | Device,
    *,
    source: str = "",
    start: Calibration | None = None,
) -> Calibration:
    """Fit efficiencies and fixed costs to measured times.

    Residuals are logarithms of predicted over measured time, so a step of 1 ms counts as much as
    one of 100 ms. Large residuals are damped (soft L1). A constant that the measurements do not
    determine stays at its prior (:data:`PRIORS`).

    Parameters
    ----------
    observations : sequence of Observation
        Measured times of one engine on one device.
    device : str or Device
        The device.
    source : str
        Description of the measurements, kept with the result.
    start : Calibration, optional
        Starting values and prior means instead of :data:`PRIORS`.

    Returns
    -------
    Calibration
        The fitted constants, with the residual of each observation.

    Raises
    ------
    LlmprofError
        There are no observations, a time is not positive, or scipy is not installed.
    """
    with needs("scipy", "a fit needs", "theory"):
        import numpy as np
        from scipy.optimize import least_squares
    if not observations:
        raise LlmprofError("there is nothing to calibrate on", expected="measured steps or stages")
    for observation in observations:
        if not (math.isfinite(observation.seconds) and observation.seconds > 0):
            raise LlmprofError(
                f"a measured time is {observation.seconds!r} s", expected="a time above 0"
            )
    machine = find_device(device)
    names = list(PRIORS)
    begin = (
        dict(start.values)
        if start is not None
        else {name: value for name, (value, _) in PRIORS.items()}
    )
    prior = np.array([math.log(begin[name]) for name in names])
    freedom = np.array([PRIORS[name][1] for name in names])
    cases = [_Case(observation, machine) for observation in observations]
    for case in cases:
        if not case.found:
            raise LlmprofError(f"{case.one.shape.name} has no stage {case.one.stage!r}")
    weights = np.sqrt(np.array([observation.weight for observation in observations]))

    def residuals(point: Any) -> Any:
        tried = Calibration(machine.name, dict(zip(names, np.exp(point), strict=True)))
        errors = np.array([math.log(case.predicted(tried) / case.one.seconds) for case in cases])
        return np.concatenate([weights * errors / 0.05, (point - prior) / freedom])

    fitted = least_squares(residuals, prior, loss="soft_l1", method="trf", max_nfev=60)
    values = {
        name: float(f"{value:.5g}") for name, value in zip(names, np.exp(fitted.x), strict=True)
    }
    result = Calibration(machine.name, values, source)
    frame = result.predict(observations, machine).drop("bound_s", "error")
    return Calibration(machine.name, values, source, tuple(frame.to_dicts()), covered(observations))


def covered(observations: Iterable[Observation]) -> dict[str, list[Any]]:
    """What the whole steps among observations are, as :attr:`Calibration.covers`."""
    facts = _facts((one.shape, one.plan, one.batch) for one in observations if one.kind != "stage")
    return {
        name: [min(seen), max(seen)] if name in _RANGES else sorted(seen)
        for name, seen in facts.items()
    }


def _mixers(shape: Shape) -> int:
    """Layers that mix tokens: a model may count a feed-forward block as a layer of its own."""
    return sum(layer.attention is not None or layer.recurrent is not None for layer in shape.layers)


class _Case:
    """An observation with its operators, which are computed once."""

    def __init__(self, observation: Observation, device: Device) -> None:
        self.one = observation
        self.machine = machine_for(observation.shape, device, observation.plan)
        self.prefill = any(part.phase == "prefill" for part in observation.batch)
        self.found = step_operators(observation.shape, observation.batch, observation.plan)
        if observation.kind == "stage":
            self.found = [part for part in self.found if part.stage == observation.stage]

    def predicted(self, tried: Calibration) -> float:
        if self.one.kind == "stage":
            return sum(tried.stage_s(self.machine, self.found, prefill=self.prefill).values())
        return tried._step(
            self.found, self.machine, _mixers(self.one.shape), self.one.batch, prefill=self.prefill
        )


def calibrated(device: str | Device) -> Calibration:
    """Calibration of a device that comes with the package.

    Raises
    ------
    LlmprofError
        The package has no calibration of this device.

    Examples
    --------
    >>> calibrated("H200").device
    'H200'
    """
    name = find_device(device).name
    file = resources.files("llmprof.theory").joinpath(
        "calibrations", f"{name.lower().replace(' ', '_')}.json"
    )
    if not file.is_file():
        hint = "fit one: llmprof experiment calibrate, or theory.calibrate(observations, device)"
        raise LlmprofError(
            f"there is no calibration of {name}", expected="H100 SXM or H200", hint=hint
        )
    return _parsed(typed.decoded(file.read_bytes(), typed.CalibrationJson, file.name), file.name)


def read_calibration(path: str | Path) -> Calibration:
    """Read a calibration from a file with the text of :meth:`Calibration.to_json`.

    Raises
    ------
    LlmprofError
        The file cannot be read or lacks values.
    """
    hint = "give the text of Calibration.to_json"
    return _parsed(
        typed.read(Path(path), typed.CalibrationJson, error=LlmprofError, hint=hint),
        Path(path).name,
    )


def _parsed(content: dict[str, Any], name: str) -> Calibration:
    values, covers = content["values"], content.get("covers", {})
    if set(PRIORS) - set(values):
        raise LlmprofError(
            f"{name} is not a calibration", expected=f"values of {', '.join(PRIORS)}"
        )
    if covers and set(covers) != set(_FACTS):
        raise LlmprofError(
            f"{name} is not a calibration", expected="covers as Calibration.to_json writes them"
        )
    return Calibration(
        content["device"],
        values,
        content.get("source", ""),
        tuple(content.get("errors", ())),
        covers,
    )


def _soft_max(a: float, b: float, corner: float) -> float:
    if not a or not b:
        return max(a, b)
    large, small = (a, b) if a > b else (b, a)
    return large * math.pow(1 + math.pow(small / large, corner), 1 / corner)
