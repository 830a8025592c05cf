"""Explorer of theory: sliders for batch, lengths, ranks and number formats, and their charts."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

import ipywidgets  # type: ignore[import-untyped]
import polars as pl

from llmprof import charts
from llmprof import theory as theories
from llmprof.analyze.roofline import IDLE, roofline
from llmprof.charts.base.save import to_png_bytes
from llmprof.errors import LlmprofError
from llmprof.label.steps.labels import batches
from llmprof.label.steps.steps import steps_of
from llmprof.theory.calibration import Calibration
from llmprof.theory.familiar import format_seconds, quantity
from llmprof.theory.hardware import Device
from llmprof.theory.profiler import Profile
from llmprof.theory.shapes import Shape, shape
from llmprof.trace import Trace

_FORMATS: Final = ("bf16", "fp8", "int8", "int4")
_POWERS: Final = [2**n for n in range(11)]
_LENGTHS: Final = [2**n for n in range(5, 18)]
_TABS: Final = (
    "Structure",
    "Shares",
    "Roofline",
    "Batch",
    "Prompt length",
    "Ranks",
    "Memory",
    "Parameters",
)
_BOUND: Final = "Measured"


class Theory(ipywidgets.VBox):  # type: ignore[misc]
    """Theory of a model on a device, with sliders. Made by :func:`theory`."""

    def __init__(
        self,
        model: Shape,
        device: Device,
        *,
        measured: pl.DataFrame | None = None,
        calibration: Calibration | None = None,
        joined: pl.DataFrame | None = None,
    ) -> None:
        self.model, self.device, self.measured, self.calibration = (
            model,
            device,
            measured,
            calibration,
        )
        self.joined = joined
        self._names = (*_TABS, _BOUND) if joined is not None else _TABS
        self.profile: Profile | None = None
        style = {"description_width": "110px"}

        def slider(options: Sequence[int], value: int, words: str) -> Any:
            return ipywidgets.SelectionSlider(
                options=options,
                value=value,
                description=words,
                style=style,
                continuous_update=False,
            )

        def choice(options: Sequence[str], words: str) -> Any:
            return ipywidgets.Dropdown(
                options=options, value=options[0], description=words, style=style
            )

        self.batch_size = slider(_POWERS, 8, "requests")
        self.seq_len = slider(_LENGTHS, 1024, "prompt tokens")
        self.generate_len = slider([*_POWERS[4:], 2048, 4096], 128, "output tokens")
        self.tp_size = slider(_ranks(model), 1, "ranks (tp)")
        self.dtype, self.kv_cache_dtype = (
            choice(_FORMATS, "weights"),
            choice(("bf16", "fp8"), "KV cache"),
        )
        self.words = ipywidgets.HTML()
        self.tabs = ipywidgets.Tab(
            children=[ipywidgets.VBox() for _ in self._names], titles=list(self._names)
        )
        controls = [
            self.batch_size,
            self.seq_len,
            self.generate_len,
            self.tp_size,
            self.dtype,
            self.kv_cache_dtype,
        ]
        left, right = ipywidgets.VBox(controls[:3]), ipywidgets.VBox(controls[3:])
        for control in controls:
            control.observe(self._changed, "value")
        self.tabs.observe(self._shown, "selected_index")
        super().__init__([ipywidgets.HBox([left, right]), self.words, self.tabs])
        self._changed(None)

    @property
    def selected(self) -> pl.DataFrame:
        """Components of the model at the values of the sliders:

        ``theory.profile(...).components``.
        """
        if self.profile is None:
            raise LlmprofError("the model does not fit at the values of the sliders")
        return self.profile.components

    def options(self) -> dict[str, Any]:
        """Values of the sliders, as arguments of :func:`llmprof.theory.profile`."""
        names = ("batch_size", "seq_len", "generate_len", "tp_size", "dtype", "kv_cache_dtype")
        return {name: getattr(self, name).value for name in names}

    def picture(self, tab: str) -> bytes:
        """PNG image of the chart of a tab at the values of the sliders."""
        profile = self.profile
        if profile is None:
            raise LlmprofError("the model does not fit at the values of the sliders")
        return to_png_bytes(self._charts(profile)[tab](), scale=1.5, theme="any")

    def _charts(self, profile: Profile) -> Mapping[str, Callable[[], Any]]:
        joined = self.joined if self.joined is not None else pl.DataFrame()

        def curves(over: Any, points: pl.DataFrame | None = None) -> Any:
            rows = theories.sweep(profile, over=over, calibration=self.calibration)
            return charts.theory_curves(rows, measured=points)

        return {
            "Structure": lambda: charts.theory_structure(profile.components),
            "Shares": lambda: charts.theory_shares(profile.components),
            "Roofline": lambda: charts.theory_roofline(
                profile.components, profile.device, dtype=profile.plan.activations
            ),
            "Batch": lambda: curves("batch_size", self.measured),
            "Prompt length": lambda: curves("seq_len"),
            "Ranks": lambda: curves("tp_size"),
            "Memory": lambda: charts.theory_memory(theories.sweep(profile)),
            "Parameters": lambda: charts.theory_parameters(profile.parameter_table),
            _BOUND: lambda: charts.roofline(joined),
        }

    def _changed(self, _change: object) -> None:
        try:
            self.profile = theories.profile(self.model, self.device, **self.options())
        except LlmprofError as error:
            self.profile = None
            self.words.value = _html(str(error))
        else:
            self.words.value = _html(_in_words(self.profile))
        for box in self.tabs.children:
            box.children = ()
        self._shown(None)

    def _shown(self, _change: object) -> None:
        """Draw the chart of the open tab, unless it exists."""
        index = self.tabs.selected_index or 0
        box = self.tabs.children[index]
        if self.profile is None or box.children:
            return
        try:
            image = ipywidgets.Image(
                value=self.picture(self._names[index]), format="png", width="900"
            )
        except LlmprofError as error:
            box.children = (ipywidgets.HTML(_html(str(error))),)
            return
        image.alt = f"{self._names[index]} of {self.model.name} on {self.device.name}"
        box.children = (image,)


def theory(
    model: str | Path | Mapping[str, Any] | Shape,
    device: str | Path | Device | None = None,
    *,
    trace: Trace | None = None,
    measured: pl.DataFrame | None = None,
    calibration: Calibration | None = None,
) -> Theory:
    """Explore a model on a device: sliders for batch, lengths, ranks and formats redraw its charts.

    Parameters
    ----------
    model : str, path, mapping or Shape
        A name of the catalogue, a ``config.json``, its folder or its content.
    device : str, path or Device, optional
        Name, YAML file or device; by default the device of the trace.
    trace : Trace, optional
        A trace of the model. Its decode steps are drawn as measured points over the batch, and a
        tab compares its stages with their bound.
    measured : polars.DataFrame, optional
        Measured points instead: ``value`` (requests) and any of ``prefill_s, decode_s,
        tokens_per_s``.
    calibration : Calibration, optional
        Adds predicted times; by default the calibration of the package for this device, if there is
        one.

    Returns
    -------
    Theory
        A widget; ``.profile`` is the profile at the values of the sliders, ``.selected`` its
        components as a frame.

    Raises
    ------
    LlmprofError
        The model or device is unknown, or neither a device nor a trace is given.

    Examples
    --------
    >>> theory("Qwen3-8B", "H200").profile.batch_size
    8
    """
    named = (
        device if device is not None else (trace.meta.get("device") if trace is not None else None)
    )
    if named is None:
        raise LlmprofError("no device is given", expected="explore.theory(model, device)")
    read, target = shape(model), theories.find_device(named)
    if calibration is None:
        with contextlib.suppress(LlmprofError):  # there is none for this device
            calibration = theories.calibrated(target)
    joined = roofline(trace, read, target) if trace is not None else None
    if trace is not None and joined is not None and measured is None:
        measured = _measured_steps(trace, joined)
    return Theory(read, target, measured=measured, calibration=calibration, joined=joined)


def _measured_steps(trace: Trace, joined: pl.DataFrame) -> pl.DataFrame:
    """Measured decode steps of a trace over their number of requests, idle time left out."""
    work = joined.filter(pl.col("stage") != IDLE)
    pure = [
        (rank, step, sum(part.count for part in batch))
        for (rank, step), (batch, _) in batches(steps_of(trace)).items()
        if all(part.phase == "decode" for part in batch)
    ]
    rows = pl.DataFrame(
        pure, schema={"rank": pl.Int32, "step": pl.Int32, "value": pl.Float64}, orient="row"
    )
    sums = (
        work.group_by("rank", "step")
        .agg(seconds=pl.sum("total_ns") / 1e9)
        .join(rows, on=["rank", "step"])
    )
    sums = sums.group_by("value").agg(decode_s=pl.median("seconds")).sort("value")
    return sums.with_columns(
        pl.col("value").cast(pl.Int64), tokens_per_s=pl.col("value") / pl.col("decode_s")
    )


def _ranks(model: Shape) -> list[int]:
    """Tensor-parallel sizes that the model can be split by."""
    sizes = []
    for n in (1, 2, 4, 8, 16):
        with contextlib.suppress(LlmprofError):
            theories.Plan(tp=n).check(model)
            sizes.append(n)
    return sizes


def _in_words(profile: Profile) -> str:
    m = profile.memory
    fits = "" if m.fits is None else (", fits" if m.fits else ", does not fit")
    return (
        f"First token at least {format_seconds(profile.prefill_latency_s)}, decode step at least "
        f"{format_seconds(profile.decode_latency_s)}, at most "
        f"{profile.tokens_per_s:,.0f} tokens/s; {quantity(m.total, 'B')} on each device{fits}."
    )


def _html(words: str) -> str:
    return f"<div style='margin:6px 0'>{escape(words)}</div>"
