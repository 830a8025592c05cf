"""Calibration of a machine by measured steps: efficiencies and fixed costs, to predict the steps of other models.

The bound (:mod:`llmprof.theory.bound`) is the time that cannot be beaten; a calibration predicts the time that an
engine on a device reaches. A calibrated figure is a prediction with an error, never a bound.

Time of an operator on the device, for the group of its stage (linear, experts, attention of prefill and of decode,
elementwise, collective)::

    t = fixed + tile x tiles + (compute^p + memory^p)^(1/p)
    compute = FLOPs / (peak x flops efficiency)     memory = bytes / (bandwidth x memory efficiency)

The fixed cost is that of starting and ending its kernels, and the gap between them under CUDA graphs; the p-norm is the
soft corner of a measured roofline. Activations of elementwise operators cross caches, so their bytes count whole, at an
efficiency of their own. ``tiles`` are requests times heads of keys and values of an attention that decodes, each with a
cost of its own. A step is then::

    device = sum over operators + gap x kernels + step_fixed
    decode = max(device, host_step + host_batch x (1 - 1 / requests) + host_request x requests^host_power)
    prefill = max(device, host) + first_token
    host = host_layer x layers x (1 + host_again x (1 - 1 / requests)) + host_experts_layer x layers with experts

``host_*`` is the engine's own time on the CPU, which small models do not hide: per step and request in decode (growing
faster than the requests); per layer in a prefill (with graphs up to :data:`GRAPH_TOKENS` tokens, without beyond),
again as far as the requests of a batch arrive one after another and take further steps; and ``first_token`` is what
scheduling and giving out the first token take. Both maxima are soft (:data:`CORNER`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl

from llmprof.errors import LlmprofError
from llmprof.hardware import Device
from llmprof.theory.bound import Machine, find_device
from llmprof.theory.plan import Batch, Plan
from llmprof.theory.profiler import machine_for
from llmprof.theory.shapes import Shape
from llmprof.theory.work import Operator, operators

GRAPH_TOKENS: Final = 512
"""Tokens of a step up to which vLLM replays captured graphs by default."""

CORNER: Final = 8.0
"""Exponent of the soft maximum of device and host."""

PRIORS: Final[dict[str, tuple[float, float]]] = {
    # value to start from, and how far (as a factor's logarithm) it may move before the fit has to earn it
    "linear_fixed_us": (3.2, 0.3),
    "linear_memory": (0.88, 0.1),
    "linear_flops": (0.72, 0.15),
    "experts_fixed_us": (8.0, 0.4),
    "experts_memory": (0.85, 0.15),
    "experts_flops": (0.45, 0.3),
    "decode_attention_fixed_us": (9.0, 0.3),
    "decode_attention_memory": (0.85, 0.1),
    "decode_attention_tile_ns": (28.0, 0.4),
    "prefill_attention_fixed_us": (12.0, 0.3),
    "prefill_attention_flops": (0.5, 0.3),
    "elementwise_fixed_us": (2.2, 0.3),
    "elementwise_memory": (0.7, 0.3),
    "collective_fixed_us": (4.5, 0.3),
    "collective_link": (0.5, 0.5),
    "sampling_memory": (0.7, 0.5),
    "corner": (4.0, 0.3),
    "gap_us": (0.5, 0.3),
    "step_fixed_us": (60.0, 0.5),
    "host_step_us": (1500.0, 0.3),
    "host_batch_us": (200.0, 0.15),
    "host_request_us": (2.0, 0.5),
    "host_power": (1.4, 0.05),
    "host_graph_layer_us": (130.0, 0.5),
    "host_layer_us": (410.0, 0.1),
    "host_experts_layer_us": (900.0, 0.1),
    "host_again": (0.7, 0.1),
    "first_token_us": (2700.0, 0.4),
}
"""Starting values and their freedom, as seen in recordings of vLLM 0.26 on an H200."""

_GROUPS: Final = {
    "qkv_proj": "linear", "o_proj": "linear", "gate_up_proj": "linear", "down_proj": "linear", "router": "linear",
    "lm_head": "linear", "experts": "experts", "attention": "attention", "all_reduce": "collective",
    "all_gather": "collective", "reduce_scatter": "collective", "all_to_all": "collective",
    "send_recv": "collective", "broadcast": "collective", "sampling": "sampling",
}  # fmt: skip
Kind = Literal["decode", "prefill", "stage"]


@dataclass(frozen=True)
class Observation:
    """One measured time.

    Parameters
    ----------
    shape, plan, batch
        What ran.
    kind : {"decode", "prefill", "stage"}
        Whether the time is of a whole decode step, from scheduling to the first token, or of one stage's kernels.
    seconds : float
        The time.
    stage : str
        Of ``stage``.
    weight : float
        How much it counts.
    graphs : bool
        Whether kernels ran from CUDA graphs.
    """

    shape: Shape
    plan: Plan
    batch: Batch
    kind: Kind
    seconds: float
    stage: str = ""
    weight: float = 1.0
    graphs: bool = True

    @property
    def requests(self) -> float:
        """Requests of the batch."""
        return sum(part.count for part in self.batch)

    @property
    def tokens(self) -> float:
        """New tokens of the batch."""
        return sum(part.tokens for part in self.batch)


@dataclass(frozen=True)
class Calibration:
    """Fitted constants of an engine on a device.

    Parameters
    ----------
    device : str
        Name of the device.
    values : mapping of str to float
        The constants (:data:`PRIORS`): microseconds where the name says so, else shares of a peak.
    source : str
        What it was fitted on.
    errors : tuple of mapping
        Residuals of the fit: ``model, kind, stage, requests, tokens, context, measured_s, predicted_s``.
    """

    device: str
    values: Mapping[str, float]
    source: str = ""
    errors: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)

    def operator_s(self, machine: Machine, operator: Operator, *, prefill: bool) -> float:
        """Predicted device time of an operator in one layer, in seconds."""
        v = self.values
        group = _GROUPS.get(operator.stage, "elementwise")
        rate, bandwidth = machine.rate(operator.math) if operator.flops else 1.0, machine.bandwidth
        moved = operator.input_bytes + operator.output_bytes + operator.kv_write_bytes
        if group == "collective":
            sent = machine.time(operator).communication_s / v["collective_link"]
            return v["collective_fixed_us"] * 1e-6 + sent
        if group == "sampling":
            # the logits are widened to fp32 and read again
            return v["elementwise_fixed_us"] * 1e-6 * operator.kernels + 5 * moved / bandwidth / v["sampling_memory"]
        if group == "elementwise":
            kernels = operator.kernels * v["elementwise_fixed_us"] * 1e-6
            return kernels + moved / bandwidth / v["elementwise_memory"]
        crossing = machine.crossing(operator) / bandwidth
        if group == "attention":
            group = "prefill_attention" if prefill and operator.component == "attention" else "decode_attention"
            memory = crossing / v["decode_attention_memory"]
            if group == "decode_attention":
                memory += operator.tiles * v["decode_attention_tile_ns"] * 1e-9
            compute = operator.flops / rate / v["prefill_attention_flops"]
        else:
            memory, compute = crossing / v[f"{group}_memory"], operator.flops / rate / v[f"{group}_flops"]
        launches = operator.kernels if operator.stage == "router" else 1
        return launches * v[f"{group}_fixed_us"] * 1e-6 + _soft_max(compute, memory, v["corner"])

    def stage_s(self, machine: Machine, step_operators: Iterable[Operator], *, prefill: bool) -> dict[str, float]:
        """Predicted device time of each stage over all layers, in seconds."""
        times: dict[str, float] = {}
        for one in step_operators:
            times[one.stage] = times.get(one.stage, 0.0) + one.layers * self.operator_s(machine, one, prefill=prefill)
        return times

    def step_s(self, shape: Shape, batch: Batch, machine: Machine) -> float:
        """Predicted time of a decode step, or from scheduling to the first token of a prefill, in seconds.

        Examples
        --------
        >>> from llmprof.hardware import device
        >>> from llmprof.theory import Plan, shape
        >>> from llmprof.theory.plan import decode
        >>> read = shape("Qwen2.5-7B")
        >>> predicted = calibrated("H200").step_s(read, decode(1, 152), machine_for(read, device("H200"), Plan()))
        >>> 0.004 < predicted < 0.006
        True
        """
        prefill = any(part.phase == "prefill" for part in batch)
        work = operators(shape, batch, machine.plan)
        return self._step(work, machine, len(shape.layers), batch, prefill=prefill)

    def _step(self, work: Sequence[Operator], machine: Machine, layers: int, batch: Batch, *, prefill: bool) -> float:
        v = self.values
        device = sum(one.layers * self.operator_s(machine, one, prefill=prefill) for one in work)
        device += (v["step_fixed_us"] + v["gap_us"] * sum(one.kernels * one.layers for one in work)) * 1e-6
        requests = sum(part.count for part in batch)
        several = 1 - 1 / max(requests, 1)
        if not prefill:
            host = v["host_step_us"] + v["host_batch_us"] * several
            host += v["host_request_us"] * math.pow(requests, v["host_power"])
            return _soft_max(device, host * 1e-6, CORNER)
        tokens = sum(part.tokens for part in batch)
        experts = max((one.layers for one in work if one.component == "experts"), default=0)
        again = 1 + v["host_again"] * several
        host = v["host_graph_layer_us"] * layers * again
        if tokens > GRAPH_TOKENS:
            host = v["host_layer_us"] * layers * again + v["host_experts_layer_us"] * experts
        return _soft_max(device, host * 1e-6, CORNER) + v["first_token_us"] * 1e-6

    def predict(self, observations: Sequence[Observation], device: Device | str | None = None) -> pl.DataFrame:
        """Predictions beside measurements.

        Returns
        -------
        polars.DataFrame
            ``model, tp, kind, stage, requests, tokens, context, measured_s, predicted_s, bound_s, error`` (predicted
            over measured, minus 1).
        """
        target = find_device(device or self.device)
        rows = []
        for one in observations:
            machine = machine_for(one.shape, target, one.plan)
            parts = operators(one.shape, one.batch, one.plan)
            prefill = any(part.phase == "prefill" for part in one.batch)
            if one.kind == "stage":
                parts = [part for part in parts if part.stage == one.stage]
                predicted = sum(self.stage_s(machine, parts, prefill=prefill).values())
            else:
                predicted = self._step(parts, machine, len(one.shape.layers), one.batch, prefill=prefill)
            rows.append((*_described(one), one.seconds, predicted, machine.total(parts), predicted / one.seconds - 1))
        schema = dict.fromkeys(("model", "kind", "stage"), pl.String) | dict.fromkeys(
            ("tp", "requests", "tokens", "context", "measured_s", "predicted_s", "bound_s", "error"), pl.Float64
        )
        order = ["model", "tp", "kind", "stage", "requests", "tokens", "context", "measured_s", "predicted_s"]
        order += ["bound_s", "error"]
        return pl.DataFrame(rows, schema={name: schema[name] for name in order}, orient="row")

    def to_json(self) -> str:
        """As JSON, to be read again by :func:`read_calibration`."""
        summary = {
            "device": self.device,
            "source": self.source,
            "values": dict(self.values),
            "errors": list(self.errors),
        }
        return json.dumps(summary, indent=1)


def calibrate(
    observations: Sequence[Observation],
    device: str | Device,
    *,
    source: str = "",
    start: Calibration | None = None,
) -> Calibration:
    """Fit efficiencies and fixed costs to measured times.

    Residuals are logarithms of predicted over measured time, so that a step of 1 ms counts as one of 100 ms; large
    ones are damped (soft L1). A constant that the measurements do not determine stays at its prior (:data:`PRIORS`).

    Parameters
    ----------
    observations : sequence of Observation
        Measured times of one engine on one device.
    device : str or Device
        The device.
    source : str
        Kept with the result.
    start : Calibration, optional
        Values to start from and to stay near, in place of the priors.

    Returns
    -------
    Calibration
        The fitted constants, with the residual of each observation.

    Raises
    ------
    LlmprofError
        There are no observations, a time is not positive, or scipy is not installed.
    """
    try:
        import numpy as np
        from scipy.optimize import least_squares
    except ImportError as error:
        raise LlmprofError("fitting needs scipy", hint="pip install 'llmprof[theory]'") from error
    if not observations:
        raise LlmprofError("there is nothing to calibrate on", expected="measured steps or stages")
    bad = [one for one in observations if not (math.isfinite(one.seconds) and one.seconds > 0)]
    if bad:
        raise LlmprofError(f"a measured time is {bad[0].seconds!r} s", expected="a time above 0")
    machine = find_device(device)
    names = list(PRIORS)
    begin = dict(start.values) if start is not None else {name: value for name, (value, _) in PRIORS.items()}
    prior = np.array([math.log(begin[name]) for name in names])
    freedom = np.array([PRIORS[name][1] for name in names])
    cases = [_Case(one, machine) for one in observations]
    weights = np.sqrt(np.array([one.weight for one in observations]))

    def residuals(point: Any) -> Any:
        tried = Calibration(machine.name, dict(zip(names, np.exp(point), strict=True)))
        errors = np.array([math.log(case.predicted(tried) / case.seconds) for case in cases])
        return np.concatenate([weights * errors / 0.05, (point - prior) / freedom])

    fitted = least_squares(residuals, prior, loss="soft_l1", method="trf", max_nfev=60)
    values = {name: float(f"{value:.5g}") for name, value in zip(names, np.exp(fitted.x), strict=True)}
    result = Calibration(machine.name, values, source)
    frame = result.predict(observations, machine).drop("bound_s", "error")
    return Calibration(machine.name, values, source, tuple(frame.to_dicts()))


class _Case:
    """An observation with its operators worked out once."""

    def __init__(self, one: Observation, device: Device) -> None:
        self.one, self.seconds = one, one.seconds
        self.machine = machine_for(one.shape, device, one.plan)
        self.prefill = any(part.phase == "prefill" for part in one.batch)
        self.found = operators(one.shape, one.batch, one.plan)
        if one.kind == "stage":
            self.found = [part for part in self.found if part.stage == one.stage]
            if not self.found:
                raise LlmprofError(f"{one.shape.name} has no stage {one.stage!r}")

    def predicted(self, tried: Calibration) -> float:
        if self.one.kind == "stage":
            return sum(tried.stage_s(self.machine, self.found, prefill=self.prefill).values())
        layers = len(self.one.shape.layers)
        return tried._step(self.found, self.machine, layers, self.one.batch, prefill=self.prefill)


def calibrated(device: str | Device) -> Calibration:
    """The calibration of a device that comes with the package.

    Raises
    ------
    LlmprofError
        There is none for this device.
    """
    name = find_device(device).name
    file = resources.files("llmprof.theory").joinpath("calibrations", f"{name.lower().replace(' ', '_')}.json")
    if not file.is_file():
        raise LlmprofError(
            f"there is no calibration of {name}",
            expected="H200",
            hint="fit one: theory.calibrate(observations, device)",
        )
    return _parsed(json.loads(file.read_text(encoding="utf-8")), file.name)


def read_calibration(path: str | Path) -> Calibration:
    """A calibration from a file that :meth:`Calibration.to_json` made.

    Raises
    ------
    LlmprofError
        The file cannot be read or lacks values.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LlmprofError(f"{Path(path).name} cannot be read as a calibration: {error}") from error
    return _parsed(document, Path(path).name)


def _parsed(content: Any, name: str) -> Calibration:
    values = content.get("values") if isinstance(content, dict) else None
    if not isinstance(values, dict) or set(PRIORS) - set(values):
        raise LlmprofError(f"{name} is no calibration", expected=f"values of {', '.join(PRIORS)}")
    return Calibration(str(content["device"]), values, str(content.get("source", "")), tuple(content.get("errors", ())))


def _described(one: Observation) -> tuple[str, float, str, str, float, float, float]:
    context = max(part.context for part in one.batch)
    return one.shape.name, float(one.plan.tp), one.kind, one.stage, one.requests, one.tokens, context


def _soft_max(a: float, b: float, corner: float) -> float:
    if not a or not b:
        return max(a, b)
    large, small = (a, b) if a > b else (b, a)
    return large * math.pow(1 + math.pow(small / large, corner), 1 / corner)
