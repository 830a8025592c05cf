"""``llmprof theory``: costs of a model on a machine, and comparison with the measured time of a
trace.
"""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from llmprof import analyze, charts, text
from llmprof import theory as theories
from llmprof.analyze.roofline import coverage_of
from llmprof.cli.output import Terminal, open_trace, options_of, to_csv, to_json, wrap_words
from llmprof.errors import AnalysisError, LlmprofError
from llmprof.theory import Profile, hardware
from llmprof.theory.bound import nearest_device
from llmprof.theory.familiar import format_seconds, quantity
from llmprof.theory.plan import decode, prefill
from llmprof.theory.profiler import machine_for
from llmprof.units import format_ns, format_share

_COMPONENTS = ["phase", "component", "layers", "FLOPs", "bytes", "time", "share", "bound"]
_JOINED = ["phase", "stage", "measured", "least", "efficiency", "mfu", "mbu", "gap", "reason"]


def do_theory(args: Namespace, terminal: Terminal) -> str:
    """Profile a model by theory, or join a trace with it."""
    if args.list:
        return _listed(args)
    if not args.model:
        raise LlmprofError(
            "no model is given",
            expected="llmprof theory MODEL --gpu NAME",
            hint="--list shows models",
        )
    return _joined(args, terminal) if args.trace else _profiled(args, terminal)


def _listed(args: Namespace) -> str:
    devices = [device.name for device in hardware.DEVICES]
    if args.json:
        return to_json({"models": list(theories.names()), "devices": devices})
    return text.pairs(
        [("Models", ", ".join(theories.names())), ("Devices", ", ".join(devices))], indent=""
    )


def _profiled(args: Namespace, terminal: Terminal) -> str:
    if not args.gpu:
        raise LlmprofError(
            "no device is given",
            expected="--gpu NAME, such as --gpu H200",
            hint="--list shows devices",
        )
    profile = theories.profile(args.model, args.gpu, **options_of(args, theories.profile))
    summary, notes = profile.summary(), list(profile.notes)
    if args.predict or args.calibration:
        machine = machine_for(profile.shape, profile.device, profile.plan)
        of_file = args.calibration
        fitted = (
            theories.read_calibration(of_file) if of_file else theories.calibrated(profile.device)
        )
        if fitted.device != profile.device.name:
            notes.append(
                f"the calibration is of {fitted.device}, the prediction for {profile.device.name}"
            )
        middle = decode(profile.batch_size, profile.seq_len + profile.generate_len / 2)
        steps = {"prefill": prefill(profile.batch_size, profile.seq_len), "decode": middle}
        for name, step in steps.items():
            summary[f"predicted_{name}_s"] = fitted.step_s(profile.shape, step, machine)
        summary["predicted_outside"] = outside = fitted.outside(
            profile.shape, profile.plan, *steps.values()
        )
        if outside:
            words = (
                "the calibration was not fitted to such runs, the prediction may be far off:"
                f" {'; '.join(outside)}"
            )
            notes.append(words)
    if args.csv:
        return to_csv(profile.components, args.csv, overwrite=args.force)
    drafted = None
    if args.acceptance is not None:
        drafted = theories.speculate(profile, acceptance=args.acceptance, draft=args.draft)
        summary["speculative"] = drafted.to_dicts()
    drawn = _draw_profile(args.charts, profile, overwrite=args.force) if args.charts else []
    if args.json:
        return to_json(summary | {"components": profile.components.to_dicts(), "charts": drawn})
    m = profile.memory
    kinds = Counter(layer.kind for layer in profile.shape.layers)
    states = " and the states" if m.state_per_request else ""
    head = [
        ("Model", f"{profile.shape.name}, {_parameters(profile)}"),
        ("Layers", ", ".join(f"{count} {kind}" for kind, count in kinds.items())),
        (
            "Device",
            (
                f"{profile.device.name}, tp {profile.plan.tp}, pp {profile.plan.pp}, dp"
                f" {profile.plan.dp}, weights {profile.plan.weights}, KV cache"
                f" {profile.plan.kv_cache}"
            ),
        ),
        (
            "Batch",
            f"{profile.batch_size} requests of {profile.seq_len} + {profile.generate_len} tokens",
        ),
        ("First token", _time(profile.prefill_latency_s, summary.get("predicted_prefill_s"))),
        (
            "Decode step",
            _time(profile.decode_latency_s, summary.get("predicted_decode_s"))
            + f"; {format_seconds(profile.kv_cache_latency_s)} of it reads the KV cache{states}",
        ),
        (
            "All tokens",
            (
                f"at least {format_seconds(profile.total_latency_s)}, at most"
                f" {profile.tokens_per_s:,.0f} tokens/s"
            ),
        ),
        (
            "Memory",
            (
                f"weights {quantity(m.weights, 'B')}, KV cache{states} {quantity(m.kv_cache, 'B')},"
                f" activations {quantity(max(m.prefill_activations, m.decode_activations), 'B')} on"
                " each device"
            ),
        ),
        ("Fits", _fits(profile)),
    ]
    if profile.training is not None:
        t = profile.training
        head.append(
            (
                "Training",
                f"{quantity(t.memory_bytes, 'B')} on each device,"
                f" a step takes {format_seconds(t.step_s)}",
            )
        )
    parts = [
        text.pairs(head, indent=""),
        "",
        text.format_table(_components(profile.components), columns=_COMPONENTS),
    ]
    if drafted is not None:
        shown = [
            {
                "draft tokens": row["draft_tokens"],
                "tokens a step": f"{row['tokens_per_step']:.2f}",
                "drafting": format_seconds(row["draft_s"]),
                "verifying": format_seconds(row["verify_s"]),
                "a token": format_seconds(row["token_s"]),
                "speed-up": f"{row['speedup']:.2f}",
            }
            for row in drafted.iter_rows(named=True)
        ]
        parts += ["", text.format_table(pl.DataFrame(shown))]
    parts += [
        "",
        wrap_words(
            "Times are lower bounds at the given efficiencies; a rank's share.",
            terminal.width,
            "",
            "",
        ),
    ]
    parts += [wrap_words(f"Note: {note}.", terminal.width, "", "") for note in notes]
    parts += [f"Chart  {path}" for path in drawn]
    return "\n".join(parts)


def _parameters(profile: Profile) -> str:
    sentence = f"{quantity(profile.parameters, '')} parameters"
    if profile.active_parameters < profile.parameters:
        sentence += f", {quantity(profile.active_parameters, '')} of them for each token"
    return sentence


def _time(least: float, predicted: float | None) -> str:
    more = (
        ""
        if predicted is None
        else f"; predicted by the calibration (no bound): {format_seconds(predicted)}"
    )
    return f"at least {format_seconds(least)}{more}"


def _fits(profile: Profile) -> str:
    m = profile.memory
    if m.device is None or m.largest_decode_batch is None or m.max_batch_total_tokens is None:
        return "the memory of the device is not known"
    most = (
        f"at most {m.largest_decode_batch:,} such requests, {m.max_batch_total_tokens:,} tokens in"
        " the KV cache"
    )
    return f"{'yes' if m.fits else 'no'}; {most}"


def _components(components: pl.DataFrame) -> pl.DataFrame:
    """The table of components with numbers as text."""
    share = components.select(pl.col("latency_s") / pl.sum("latency_s").over("phase")).to_series()
    return components.with_columns(
        _texts("FLOPs", components["flops"], lambda v: quantity(v, "")),
        _texts("bytes", components["memory_bytes"], lambda v: quantity(v, "B")),
        _texts("time", components["latency_s"], format_seconds),
        pl.Series("share", [f"{100 * v:.1f} %" for v in share], dtype=pl.String),
    )


def _texts(name: str, values: pl.Series, in_words: Callable[[float], str]) -> pl.Series:
    """A column of numbers as text; what is null or 0 stays empty."""
    return pl.Series(name, [in_words(value) if value else "" for value in values], dtype=pl.String)


def _joined(args: Namespace, terminal: Terminal) -> str:
    trace = open_trace(args.trace, args, terminal)
    device, taken = nearest_device(args.gpu) if args.gpu else (None, "")
    given = {name: getattr(args, name) for name in ("dtype", "kv_cache_dtype")}
    given |= {
        name: size if (size := getattr(args, name)) > 1 else None for name in ("tp_size", "pp_size")
    }
    joined = analyze.roofline(trace, args.model, device, **given)
    coverage = coverage_of(joined)
    if args.csv:
        return to_csv(joined, args.csv, overwrite=args.force)
    drawn = []
    if args.charts:
        drawn = [
            str(
                charts.save(
                    charts.roofline(joined), args.charts / "bound_gap.png", overwrite=args.force
                )
            )
        ]
    if args.json:
        notes = [taken] if taken else []
        return to_json(
            {"coverage": coverage, "stages": joined.to_dicts(), "charts": drawn, "notes": notes}
        )
    steps = joined.group_by("phase").agg(steps=pl.struct("rank", "step").n_unique())
    sums = joined.group_by("phase", "stage").agg(
        pl.sum("total_ns", "bound_ns", "flops", "memory_bytes"),
        reason=pl.col("reason").sort_by("total_ns").last(),
        mfu=(pl.col("mfu") * pl.col("total_ns")).sum() / pl.sum("total_ns"),
        mbu=(pl.col("mbu") * pl.col("total_ns")).sum() / pl.sum("total_ns"),
    )
    sums = sums.join(steps, on="phase").sort("phase", "total_ns", descending=[False, True])
    measured, least = (sums[name] / sums["steps"] for name in ("total_ns", "bound_ns"))
    table = sums.with_columns(
        _texts("measured", measured, format_ns),
        _texts("least", least, format_ns),
        _texts("efficiency", sums["bound_ns"] / sums["total_ns"], format_share),
        _texts("mfu", sums["mfu"], format_share),
        _texts("mbu", sums["mbu"], format_share),
        _texts("gap", measured - least, format_ns),
    )
    explained = format_share(coverage["explained_share"])
    known = format_share(coverage["contexts_known_share"])
    words = (
        "Mean of a step (from its first event to the next step's) and rank. Theory knows"
        f" {explained} of the "
    )
    words += (
        f"device time, and the contexts of {known} of the"
        f" steps.{f' Note: {taken}.' if taken else ''}"
    )
    parts = [
        text.format_table(table, columns=_JOINED),
        "",
        wrap_words(words, terminal.width, "", ""),
    ]
    return "\n".join([*parts, *(f"Chart  {path}" for path in drawn)])


def _draw_profile(folder: Path, profile: Profile, *, overwrite: bool) -> list[str]:
    """Charts of a profile as PNG files."""
    over_batch, over_ranks = theories.sweep(profile), theories.sweep(profile, over="tp_size")
    drawings: dict[str, Callable[[], Any]] = {
        "structure": lambda: charts.theory_structure(profile.components),
        "shares": lambda: charts.theory_shares(profile.components),
        "parameters": lambda: charts.theory_parameters(profile.parameter_table),
        "roofline": lambda: charts.theory_roofline(
            profile.components, profile.device, dtype=profile.plan.activations
        ),
        "batch": lambda: charts.theory_curves(over_batch),
        "tensor_parallel": lambda: charts.theory_curves(over_ranks),
        "length": lambda: charts.theory_curves(theories.sweep(profile, over="seq_len")),
        "memory": lambda: charts.theory_memory(over_batch),
    }
    written = []
    for name, draw in drawings.items():
        try:
            written.append(str(charts.save(draw(), folder / f"{name}.png", overwrite=overwrite)))
        except AnalysisError:
            continue  # a model that stays in the cache has no place on a roofline
    return written
