"""Experiments ``sequence_length``, ``parallelism`` and ``calibrate``: steps over length, batch
and devices.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof import analyze, theory
from llmprof.errors import AnalysisError, ConfigError, LlmprofError, ReadError, TraceWarning
from llmprof.run.batch import BatchRunner
from llmprof.run.launch import ExperimentConfig, open_run
from llmprof.run.launch.config import models
from llmprof.run.launch.config.options import checked_option, load, refuse_unknown_keys
from llmprof.text import Progress
from llmprof.theory import Calibration, Observation, Profile, hardware
from llmprof.theory.plan import decode, prefill
from llmprof.trace import Trace
from llmprof.trace.storage import files, typed

FORMAT: Final = "llmprof-points"
LENGTHS: Final = (128, 256, 512, 1024, 2048, 4096, 8192)
BATCHES: Final = (1, 2, 4, 8)
OUTPUTS: Final = (50, 100, 200)

Grades = Mapping[str, tuple[float, float]]
GRADES: Final[dict[str, tuple[float, float]]] = {
    "tp_efficiency": (0.75, 0.50),
    "pp_efficiency": (0.60, 0.40),
    "p2p_gb_per_s": (200.0, 100.0),
    "link_share": (0.50, 0.30),
}
"""Thresholds of the grades:

``good`` above the first, ``fair`` down to the second, ``poor`` below.
"""

FLAT: Final = 0.5
"""Largest exponent of a prefill over the length of the prompt that counts as no growth."""

WORTH: Final = 1.05
"""Least speed-up that counts: a layout that is no faster than one device is ``poor``."""

MOST_EFFICIENCY: Final = 1.2
"""Largest efficiency of a layout that gets a grade: beyond it, something else than the layout
differed.
"""

_ROW: Final = {
    "tp": pl.Int64,
    "pp": pl.Int64,
    "prompt": pl.Int64,
    "batch": pl.Int64,
    "out": pl.Int64,
    "rep": pl.Int64,
    "prefill_s": pl.Float64,
    "decode_step_s": pl.Float64,
    "tpot_s": pl.Float64,
    "ttft_s": pl.Float64,
    "wall_s": pl.Float64,
    "peak_bytes": pl.Int64,
    "kv_tokens": pl.Int64,
}
PHASES: Final = {"decode": "decode_step_s", "prefill": "prefill_s", "whole": "wall_s"}
"""Column of the time that layouts are compared by: a decode step, the prefill, and from the start
to the last token, which gives the tokens a second.
"""
_SHARE: Final = {
    "tp": pl.Int64,
    "pp": pl.Int64,
    "prompt": pl.Int64,
    "batch": pl.Int64,
    "phase": pl.String,
    "steps": pl.Int64,
    "communication": pl.Float64,
}
WORKLOAD: Final = ["prompt", "batch", "out"]
_KEYS: Final = ["tp", "pp", *WORKLOAD]
_OF_SHARES: Final = ["tp", "pp", "prompt", "batch", "phase"]
_COMPARED: Final = [
    *("tp", "pp", "devices", *WORKLOAD, "phase", "repeats", "single_s", "time_s"),
    *("speedup", "speedup_low", "speedup_high", "efficiency", "grade", "noise"),
    *("lost_s", "communication", "communication_s"),
    *("peak_bytes", "single_peak_bytes", "kv_tokens", "single_kv_tokens"),
]


def content_of(config: ExperimentConfig) -> dict[str, Any] | None:
    """The configuration of a model, if it is at hand."""
    if config.model.startswith(models.PREFIX):
        content: Any = models.catalog_config(config.model)
    else:
        content = typed.found(Path(config.model).expanduser() / "config.json", dict[str, Any])
    return content if isinstance(content, dict) else None


def most_tokens(config: ExperimentConfig) -> int | None:
    """Longest prompt and output together that a model takes, from its configuration; None if
    that does not say it.
    """
    if config.max_model_len is not None:
        return config.max_model_len
    content = content_of(config)
    if content is None:
        return None
    of_text = content.get("text_config") or content
    scaling = of_text.get("rope_scaling") or of_text.get("rope_parameters") or {}
    kind = scaling.get("rope_type") or scaling.get("type")
    if "factor" in scaling and kind not in {"llama3", "longrope", "su"}:
        return None  # an engine may multiply the positions by the factor
    try:
        return theory.shape(content).max_positions or None
    except LlmprofError:  # a model that the theory does not know
        return None


def fitting_lengths(
    config: ExperimentConfig, lengths: Sequence[int], outputs: Sequence[int]
) -> tuple[list[int], str]:
    """Lengths of prompts that fit into the model with each output, and a sentence on those that
    do not.
    """
    most, longest = most_tokens(config), max(outputs)
    kept = [length for length in lengths if most is None or length + longest <= most]
    if not kept:
        found = (
            f"no prompt fits: {min(lengths)} tokens and {longest} of output are more than the model"
            f" takes ({most})"
        )
        raise ConfigError(found, hint="name shorter lengths or outputs with --cases")
    out = [str(length) for length in lengths if length not in kept]
    reason = (
        f"with {longest} tokens of output they need more than the {most} tokens that the model"
        " takes"
    )
    return kept, f"prompts of {', '.join(out)} tokens were left out: {reason}" if out else ""


def run_points(
    config: ExperimentConfig,
    folder: str | Path,
    *,
    lengths: Sequence[int] = LENGTHS,
    batches: Sequence[int] = BATCHES,
    outputs: Sequence[int] = OUTPUTS,
    trace: bool = False,
    progress: Progress | None = None,
    check: bool = True,
) -> pl.DataFrame:
    """Measure one layout of devices over prompt length, batch size and output length, in one
    start of the engine.
    """
    lengths, left_out = fitting_lengths(config, lengths, outputs)
    if left_out:
        warnings.warn(left_out, TraceWarning, stacklevel=2)
    needed = max(lengths) + max(outputs)
    base = config.replace(
        profile_mode="torch" if trace else "inference_only",
        prompt=None,
        prompt_file=None,
        max_model_len=config.max_model_len or min(needed + 16, most_tokens(config) or needed + 16),
    )
    grid = {"input_tokens": list(lengths), "batch_size": list(batches), "max_tokens": list(outputs)}
    sweep = BatchRunner(base, progress=progress, check=check).run_parameter_sweep(
        grid, folder=folder
    )
    rows: list[dict[str, Any]] = []
    shares: list[dict[str, Any]] = []
    devices: list[str] = []
    for run in map(open_run, sweep.runs):
        one, on_cpu = run.config, run.worker.get("platform") == "cpu"
        devices += ["CPU"] if on_cpu else run.worker.get("device_names") or []
        peak = max((run.summary.get("peak_memory_bytes") or {}).values(), default=None)
        held = (run.worker.get("kv_cache") or {}).get("tokens")
        point = {
            "tp": one.tensor_parallel_size,
            "pp": one.pipeline_parallel_size,
            "prompt": one.input_tokens,
            "batch": one.batch_size,
        }
        for (rep,), requests in run.requests.filter(phase="plain").group_by(
            "repeat", maintain_order=True
        ):
            rows.append(
                point
                | {
                    "out": one.max_tokens,
                    "rep": rep,
                    "prefill_s": _s(requests["ttft_ns"].max()),
                    "decode_step_s": _s(decode_step(requests, one.max_tokens)),
                    "tpot_s": _s(requests["tpot_ns"].median()),
                    "ttft_s": _s(requests["ttft_ns"].median()),
                    "wall_s": _s(requests["e2e_ns"].max()),
                    "peak_bytes": peak,
                    "kv_tokens": held,
                }
            )
        if trace and run.state == "finished":
            shares += [point | row for row in communication_share(run.trace).to_dicts()]
    if not rows:
        first, error = next(iter(sweep.failed.items()))
        found = f"no point of the experiment finished; {first}: {error}"
        raise LlmprofError(found, hint=f"see the runs in {Path(folder).name}")
    document = {
        "format": FORMAT,
        "version": 1,
        "model": config.model,
        "rows": rows,
        "communication": shares,
    }
    document |= {"left_out": left_out, "gpu": devices[0] if devices else None}
    files.write_json(Path(folder) / "points.json", document)
    return read_points(Path(folder) / "points.json")


_APART_NS: Final = 100_000
"""Least time between two steps of an engine: requests of one step get their first tokens
together.
"""
_LEAST_STEPS: Final = 8
_SHORTER: Final = 0.9


def decode_step(requests: pl.DataFrame, tokens: int) -> float | None:
    """Time (ns) of a step that decodes all requests of a batch; None if there were too few such
    steps.

    While the prompts of later requests are read, which takes several steps, the first ones decode
    already: their time per token holds these steps. So the time counts from the last first token to
    the first last token. In it are as many steps as a request decodes, less those in which another
    one got its first token. A step shorter than a token of the last request, which decodes beside
    as many or fewer, shows that prompts took steps that gave no first token. Without the times of
    requests it is the median time per token.
    """
    times = requests.select(
        first=pl.col("start_epoch_ns") + pl.col("ttft_ns"),
        last=pl.col("start_epoch_ns") + pl.col("e2e_ns"),
    ).drop_nulls()
    if times.height < requests.height:
        return requests["tpot_ns"].median()  # type: ignore[return-value]
    steps = tokens - 1 - int((times["first"].sort().diff() > _APART_NS).sum())
    if steps < max(min(_LEAST_STEPS, tokens // 2), 1):
        return None
    step = float(times.select(pl.min("last") - pl.max("first")).item()) / steps
    return step if step > _SHORTER * requests.select(pl.min("tpot_ns")).item() else None


def _s(value: Any) -> float | None:
    return None if value is None else float(value) / 1e9


def read_points(*paths: str | Path) -> pl.DataFrame:
    """Read measured points from files; the values of a point are medians of its repeats, beside
    the least (``_low_s``) and the largest one (``_high_s``).
    """
    frames = []
    for path in paths:
        document = _document(path)
        try:
            rows = [{name: row.get(name) for name in _ROW} for row in document["rows"]]
            frames.append(pl.DataFrame(rows, schema=dict(_ROW)))
        except (pl.exceptions.PolarsError, TypeError, AttributeError) as error:
            raise ReadError(
                f"{Path(path).name} is damaged: {str(error)[:200]}", hint="measure again"
            ) from error
    ends = {
        f"{column.removesuffix('_s')}_{end}_s": getattr(pl.col(column), of)()
        for column in (*PHASES.values(), "ttft_s")
        for end, of in (("low", "min"), ("high", "max"))
    }
    sums = (
        pl.concat(frames)
        .group_by(_KEYS)
        .agg(
            pl.len().alias("repeats"),
            pl.col(*PHASES.values(), "ttft_s").median(),
            pl.max("peak_bytes"),
            pl.min("kv_tokens"),
            **ends,
        )
    )
    return sums.with_columns(
        output_tokens_per_s=pl.col("batch") * pl.col("out") / pl.col("wall_s"),
        prefill_tokens_per_s=pl.col("batch") * pl.col("prompt") / pl.col("prefill_s"),
    ).sort(_KEYS)


def measured_device(path: str | Path) -> str:
    """The device that points were measured on, as the engine named it; ``CPU`` for all of these."""
    device = _document(path).get("gpu")
    if not isinstance(device, str):
        raise ReadError(f"{Path(path).name} does not name its device", hint="name it with --gpu")
    return device


def median(frame: pl.DataFrame, column: str) -> float | None:
    """Median of a column of numbers; None if it has no value."""
    middle: Any = frame[column].median()
    return None if middle is None else float(middle)


def communication_share(trace: Trace) -> pl.DataFrame:
    """Share of a step in which the device does nothing but communicate, by phase."""
    exposed = pl.col("exposed_communication_ns") / pl.col("total_ns")
    parts = analyze.overlap(trace).drop_nulls("step").filter(pl.col("total_ns") > 0)
    phases = analyze.steps(trace).select("rank", "step", "phase").unique(["rank", "step"])
    rows = parts.join(phases, on=["rank", "step"]).filter(
        pl.col("phase").is_in(["prefill", "decode"])
    )
    return (
        rows.group_by("phase")
        .agg(steps=pl.len().cast(pl.Int64), communication=exposed.median())
        .sort("phase")
    )


def read_communication(*paths: str | Path) -> pl.DataFrame:
    """Read the shares of communication of traced points from files."""
    rows = []
    for path in paths:
        for row in _document(path).get("communication") or []:
            if not isinstance(row, dict):
                found = f"{Path(path).name} is damaged: a share of communication is {row!r}"
                raise ReadError(found, hint="measure again")
            rows.append({name: row.get(name) for name in _SHARE})
    try:
        frame = pl.DataFrame(rows, schema=dict(_SHARE), orient="row")
    except (pl.exceptions.PolarsError, TypeError) as error:
        raise ReadError(
            f"shares of communication are damaged: {str(error)[:200]}", hint="measure again"
        ) from error
    return (
        frame.group_by(_OF_SHARES).agg(pl.sum("steps"), pl.median("communication")).sort(_OF_SHARES)
    )


def _document(path: str | Path) -> dict[str, Any]:
    document: dict[str, Any] = typed.read(Path(path), typed.PointsJson)
    if document["format"] != FORMAT or not document["rows"]:
        raise ReadError(
            f"{Path(path).name} holds no measured points",
            expected=f'"format": "{FORMAT}" with rows',
        )
    return document


def sequence_length(points: pl.DataFrame, *, model: Any = None, device: Any = None) -> pl.DataFrame:
    """Growth of prefill and decode times with the prompt length, and their theoretical bounds."""
    series = ["tp", "pp", "batch", "out"]
    rise = (pl.col("prefill_s") / pl.col("prefill_s").shift().over(series)).log()
    run = (pl.col("prompt") / pl.col("prompt").shift().over(series)).log()
    rows = points.sort(*series, "prompt").with_columns(prefill_slope=rise / run)
    # it grows clearly, beyond the repeats of all shorter prompts, where it was flat before
    flat_before = (pl.col("prefill_slope") <= FLAT).shift().cum_max().over(series)
    above = pl.col("prefill_low_s") > pl.col("prefill_high_s").shift().cum_max().over(series)
    grows = flat_before & above & (pl.col("prefill_slope") > FLAT)
    bend = pl.col("prompt").filter(grows).min().over(series)
    rows = rows.with_columns(bend=(pl.col("prompt") == bend).fill_null(False))
    bounds = [_bounds(row, model, device) for row in rows.iter_rows(named=True)]
    rows = rows.with_columns(
        prefill_bound_s=pl.Series([pair[0] for pair in bounds], dtype=pl.Float64),
        decode_bound_s=pl.Series([pair[1] for pair in bounds], dtype=pl.Float64),
    )
    decode_share = pl.col("decode_bound_s") / pl.col("decode_step_s")
    return rows.with_columns(
        prefill_share=pl.col("prefill_bound_s") / pl.col("prefill_s"), decode_share=decode_share
    )


def _bounds(row: Mapping[str, Any], model: Any, device: Any) -> tuple[float | None, float | None]:
    if model is None or device is None:
        return None, None
    profile = theory.profile(
        model,
        device,
        batch_size=row["batch"],
        seq_len=row["prompt"],
        generate_len=row["out"],
        tp_size=row["tp"],
        pp_size=row["pp"],
    )
    return profile.prefill_latency_s, profile.decode_latency_s


def parallelism(
    points: pl.DataFrame, *, grades: Grades = GRADES, communication: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Compare each layout of devices with one device: speed-up, efficiency and a grade.

    The efficiency of the phase ``whole`` is the share of the tokens a second that as many replicas
    give, each on one device. ``lost_s`` is the time beyond the single one divided by the devices,
    and ``communication_s`` what of the time is exposed communication, by the share in the trace.
    """
    on_one = points.filter((pl.col("tp") == 1) & (pl.col("pp") == 1))
    several = points.filter(pl.col("tp") * pl.col("pp") > 1)
    if on_one.is_empty() or several.is_empty():
        found = f"all points are of {'one device' if several.is_empty() else 'several devices'}"
        raise AnalysisError(found, expected="the same points on one device and on several")
    parts = []
    for phase, column in PHASES.items():
        stem = column.removesuffix("_s")
        times = {"s": column, "low_s": f"{stem}_low_s", "high_s": f"{stem}_high_s"}
        single = on_one.select(
            *WORKLOAD,
            **{f"single_{name}": pl.col(of) for name, of in times.items()},
            single_peak_bytes="peak_bytes",
            single_kv_tokens="kv_tokens",
        )
        both = several.join(single, on=WORKLOAD)
        parts.append(
            both.with_columns(
                phase=pl.lit(phase), **{f"time_{name}": pl.col(of) for name, of in times.items()}
            )
        )
    devices = pl.col("tp") * pl.col("pp")
    rows = pl.concat(parts).with_columns(
        devices=devices,
        speedup=pl.col("single_s") / pl.col("time_s"),
        speedup_low=pl.col("single_low_s") / pl.col("time_high_s"),
        speedup_high=pl.col("single_high_s") / pl.col("time_low_s"),
        lost_s=pl.col("time_s") - pl.col("single_s") / devices,
    )
    rows = rows.with_columns(
        efficiency=pl.col("speedup") / pl.col("devices"),
        noise=pl.lit(1.0).is_between("speedup_low", "speedup_high"),
    )
    by_layout = [
        "poor"
        if speedup is not None and speedup < WORTH
        else graded(
            efficiency, "tp_efficiency" if tp > 1 else "pp_efficiency", grades, most=MOST_EFFICIENCY
        )
        for tp, speedup, efficiency in rows.select("tp", "speedup", "efficiency").iter_rows()
    ]
    shares = pl.DataFrame(schema=dict(_SHARE)) if communication is None else communication
    return (
        rows.with_columns(pl.Series("grade", by_layout, dtype=pl.String))
        .join(shares.select(*_OF_SHARES, "communication"), on=_OF_SHARES, how="left")
        .with_columns(communication_s=pl.col("communication") * pl.col("time_s"))
        .select(_COMPARED)
        .sort("tp", "pp", "phase", *WORKLOAD)
    )


def grades_of(words: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Thresholds of :data:`GRADES` after changes from texts."""
    grades = dict(GRADES)
    for word in words:
        name, _, figures = word.partition("=")
        good, _, fair = figures.partition(":")
        try:
            thresholds = float(good), float(fair)
        except ValueError:
            thresholds = (0.0, 1.0)
        if name not in GRADES or not thresholds[0] >= thresholds[1] >= 0:
            expected = (
                f"NAME=GOOD:FAIR with NAME one of {', '.join(GRADES)} and GOOD not below FAIR"
            )
            raise ConfigError(f"the threshold {word!r} is invalid", expected=expected)
        grades[name] = thresholds
    return grades


def graded(
    value: float | None, threshold: str, grades: Grades = GRADES, *, most: float = math.inf
) -> str:
    """Grade of a figure; one that is beyond the most that it can be says nothing."""
    if value is None or value > most:
        return "unknown"
    good, fair = grades[threshold]
    return "good" if value > good else "fair" if value >= fair else "poor"


def unsuited(link_peak_gb_per_s: float | None, grades: Grades = GRADES) -> list[str]:
    """Sentences about thresholds that the hardware cannot reach."""
    good = grades["p2p_gb_per_s"][0]
    if link_peak_gb_per_s is None or link_peak_gb_per_s > good:
        return []
    most = (
        f"p2p_gb_per_s asks for more than {good:g} GB/s, and the link carries at most"
        f" {link_peak_gb_per_s:g}"
    )
    return [f"{most}: compare its share of the peak"]


def cases_of(path: str | Path) -> dict[str, list[int]]:
    """Read test cases from YAML:

    ``lengths``, ``batches`` and ``outputs``, each a list of numbers.
    """
    content = load(Path(path))
    if not isinstance(content, Mapping):
        raise ConfigError(
            f"{Path(path).name} does not hold a mapping", expected="lengths, batches, outputs"
        )
    refuse_unknown_keys(content, ["lengths", "batches", "outputs"], Path(path).name)
    cases = {key: checked_option(value, list[int], key) for key, value in content.items()}
    if bad := [key for key, values in cases.items() if not values or min(values) < 1]:
        raise ConfigError(f"{bad[0]} is {cases[bad[0]]}", expected="a list of numbers above 0")
    return cases


CALIBRATION: Final = "calibration.json"
PREFILL_TOKENS: Final = 8192
"""A prefill of more tokens takes several steps of vLLM, unless ``engine_args`` set
``max_num_batched_tokens``.
"""


def observations_of(
    points: pl.DataFrame, profile: Profile, *, prefill_tokens: int = PREFILL_TOKENS
) -> list[Observation]:
    """A decode step of each point, at the middle of its output, and its prefill if that is one
    step.
    """
    found = []
    for row in points.iter_rows(named=True):
        batch, prompt = row["batch"], row["prompt"]
        if row["decode_step_s"]:
            middle = decode(batch, prompt + row["out"] / 2)
            found.append(
                Observation(profile.shape, profile.plan, middle, "decode", row["decode_step_s"])
            )
        if row["prefill_s"] and batch * prompt <= prefill_tokens:
            step = prefill(batch, prompt)
            found.append(
                Observation(profile.shape, profile.plan, step, "prefill", row["prefill_s"])
            )
    return found


def fitted(
    points: pl.DataFrame, content: Mapping[str, Any], device: Any, **options: Any
) -> Calibration:
    """Calibration of a device from measured points of one model and layout."""
    row = points.row(0, named=True)
    profile = theory.profile(content, device, batch_size=1, tp_size=row["tp"], pp_size=row["pp"])
    source = f"llmprof experiment calibrate, {profile.shape.name}, {points.height} points"
    return theory.calibrate(
        observations_of(points, profile, **options), profile.device, source=source
    )


def _same(device: str | None, measured: str) -> hardware.Device:
    """The device that was asked for, if it may be the one that was measured; that one if none
    was asked for.
    """
    if measured == "CPU":
        raise LlmprofError("the points were measured on a CPU", expected="a GPU")
    if device is None:
        return hardware.device(measured)
    asked = hardware.device(device)
    try:
        known = hardware.device(measured).name
    except LlmprofError:  # a device of one's own, from a file with its numbers
        return asked
    if known != asked.name:
        raise LlmprofError(
            f"the points were measured on {known}, not on {asked.name}", hint="leave out --gpu"
        )
    return asked


def run_calibration(
    config: ExperimentConfig,
    folder: str | Path,
    *,
    device: str | None = None,
    lengths: Sequence[int] = (128, 1024, 4096),
    batches: Sequence[int] = (1, 8, 32, 64),
    outputs: Sequence[int] = (32,),
    progress: Progress | None = None,
    check: bool = True,
) -> Calibration:
    """Measure a grid of batches and contexts in one start of the engine, and write the
    calibration fitted to it.
    """
    content = content_of(config)
    if content is None:
        raise LlmprofError(
            f"the configuration of {config.model} is not at hand",
            expected="a folder with config.json",
        )
    if device is not None:
        hardware.device(device)  # an unknown one is refused before the engine starts
    points = run_points(
        config,
        folder,
        lengths=lengths,
        batches=batches,
        outputs=outputs,
        progress=progress,
        check=check,
    )
    most = int(config.engine_args.get("max_num_batched_tokens", PREFILL_TOKENS))
    device_there = _same(device, measured_device(Path(folder) / "points.json"))
    found = fitted(points, content, device_there, prefill_tokens=most)
    files.write(Path(folder) / CALIBRATION, found.to_json())
    return found
