"""Results of mode ``ops`` as files: a table of all calls, summaries, suggestions, charts, and a
README.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import altair as alt
import polars as pl

from llmprof import analyze, charts, read, text
from llmprof.analyze.operator_times import (
    communication_times,
    layer_times,
    on_device,
    operator_times,
    timed_calls,
    timed_steps,
    timers,
    timing_overhead,
    timing_suggestions,
)
from llmprof.charts.base import compose, draw, theme
from llmprof.charts.base.draw import inline
from llmprof.charts.base.save import save
from llmprof.charts.base.theme import finish_chart, inner
from llmprof.charts.subjects.memory import memory
from llmprof.errors import AnalysisError, CaptureError, LlmprofError, NotCapturedError
from llmprof.report.figures import Drawing, Drawn, config_in, make_figure, reason_in_words
from llmprof.report.page import Absent, ReportColumn, ReportTable, Section, columns_of_kind
from llmprof.run.launch import Run
from llmprof.text import Progress
from llmprof.trace import Trace
from llmprof.trace.schema import END
from llmprof.trace.storage import files
from llmprof.units import NS_PER_S, format_bytes, format_ns, format_share

_PARTS: Final = {
    "compute, host and gaps": theme.COMPUTE,
    "communication": theme.COMMUNICATION,
    "unknown": theme.MISSING,
}
_MOST_OPERATORS: Final = 12
_NO_COMMUNICATION: Final = "one device: there is no communication"
_SOURCE: Final = "llmprof.analyze.operator_times"


def layer_performance_heatmap(trace: Trace) -> Any:
    """Time of each layer in each timed step, from the calls without timed operators where there
    are such.
    """
    calls = timed_calls(trace).filter(kind="layer")
    least = pl.min("nested").over("rank", "phase", "method", "layer")
    return charts.layers(calls.filter(nested=least))


def operation_time_distribution(trace: Trace) -> Any:
    """Quartiles and extremes of the times of each operator in decode steps (in all steps if
    there are none).
    """
    calls = timed_calls(trace).filter(pl.col("kind") != "layer", ~pl.col("nested"))
    decode = calls.filter(phase="decode")
    calls = decode if decode.height else calls
    if calls.is_empty():
        raise draw.nothing("operation_time_distribution", "no operator was timed", _SOURCE)
    longest = (
        calls.group_by("operator").agg(pl.median("dur_ns")).sort("dur_ns", descending=True).head(20)
    )
    shown = calls.join(longest.select("operator"), on="operator")
    unit = theme.time_unit(draw.float_of(shown["dur_ns"].max()))
    rows = shown.select("operator", time=pl.col("dur_ns") / unit.ns)
    chart = (
        alt.Chart(inline(rows))
        .mark_boxplot(extent="min-max")
        .encode(
            x=alt.X("time:Q", title=unit.symbol, axis=alt.Axis(tickCount=8)),
            y=alt.Y("operator:N", sort=longest["operator"].to_list(), title=None),
        )
    )
    return finish_chart(
        chart.properties(width=inner() - 300),
        "Times of operators",
        "Quartiles, least and most of the calls",
    )


def compute_vs_communication(trace: Trace) -> Any:
    """Time of a step in communication and in everything else; unknown if the timed calls waited
    longer than others.
    """
    steps = timed_steps(trace).group_by("rank", "phase").agg(step=pl.median("dur_ns"))
    moved = (
        communication_times(trace)
        .group_by("rank", "phase")
        .agg(part=pl.sum("step_ns"), known=pl.col("share").is_not_null().all())
    )
    rows = steps.join(moved, on=["rank", "phase"], how="left").with_columns(
        pl.col("part").fill_null(0.0), pl.col("known").fill_null(True)
    )
    parts = {
        "compute, host and gaps": pl.when("known").then(pl.col("step") - pl.col("part")),
        "communication": pl.when("known").then("part"),
        "unknown": pl.when(~pl.col("known")).then("step"),
    }
    names = pl.format("{}, rank {}", "phase", "rank")
    long = rows.sort("phase", "rank").select(row=names, **parts)
    long = long.unpivot(list(parts), index="row", variable_name="part", value_name="ns")
    long = long.drop_nulls("ns")
    if not draw.float_of(long["ns"].sum()) > 0:
        raise draw.nothing("compute_vs_communication", "no step was timed", _SOURCE)
    wide, known = theme.inner() - 160, set(long["part"])
    table = {name: colour for name, colour in _PARTS.items() if name in known}
    drawn = theme.layered(*draw.stacked_bars(long, table, width=wide, title="time of one step"))
    drawn = drawn.properties(width=wide, height=28 * rows.height)
    return finish_chart(drawn, "Compute and communication of a step", "Medians over the steps")


def performance_bottlenecks(trace: Trace) -> Any:
    """Operators by their time in a step, over all layers; operators that contain others are left
    out.
    """
    rows = operators_of_a_step(trace)
    if rows.is_empty():
        raise draw.nothing("performance_bottlenecks", "no operator was timed", _SOURCE)
    panels = []
    for (phase,), of in rows.group_by("phase", maintain_order=True):
        first = of.head(_MOST_OPERATORS).select(
            row="operator", ns="step_ns", part=pl.lit("compute"), label=_in_words()
        )
        table = {"compute": theme.COMPUTE}
        bars = draw.ranked_bars(first, width=inner(), title="time of one step", table=table)
        panels.append(bars.properties(title=theme.panel_heading(f"{phase} step")))
    return finish_chart(
        compose.vconcat(*panels, spacing=20).resolve_scale(color="independent"),
        "Where a step's time goes",
        f"Operators without others inside, mean over the ranks; at most {_MOST_OPERATORS}",
    )


def _in_words() -> pl.Expr:
    """Time and share of an operator as text."""
    return pl.struct("step_ns", "share").map_elements(
        lambda row: f"{format_ns(row['step_ns'])}, {format_share(row['share'])}",
        return_dtype=pl.String,
    )


def operators_of_a_step(trace: Trace) -> pl.DataFrame:
    """Time and share of each operator in a step, mean over the ranks: ``phase, operator, step_ns,
    share``; without those that contain others.
    """
    rows = operator_times(trace).filter(~pl.col("nested"))
    means = rows.group_by("phase", "operator").agg(pl.mean("step_ns", "share"))
    return means.sort("phase", "step_ns", descending=[False, True])


def bandwidth_analysis(trace: Trace) -> Any:
    """GB/s of the collectives and messages, by kind and size: median and most of the calls."""
    speed = pl.col("bytes") / pl.col("dur_ns")
    calls = trace.collectives.filter(pl.col("bytes") > 0, pl.col("dur_ns") > 0)
    if calls.is_empty():
        raise draw.nothing("bandwidth_analysis", "there is no communication on one device", _SOURCE)
    sizes = calls.group_by("recorded_as", "bytes").agg(
        calls=pl.len(), median=speed.median(), most=speed.max()
    )
    sizes = sizes.sort("recorded_as", "bytes").with_columns(
        what=pl.concat_str(
            "recorded_as",
            pl.lit(", "),
            pl.col("bytes").map_elements(format_bytes, return_dtype=pl.String),
        )
    )
    y = alt.Y("what:N", sort=sizes["what"].to_list(), title=None)
    shown = draw.tips("what:N", "calls:Q", ("median:Q", "GB/s"), ("most:Q", "most, GB/s"))
    base = alt.Chart(inline(sizes)).properties(width=inner() - 240, height=26 * sizes.height)
    bars = base.mark_bar(color=theme.COMMUNICATION).encode(
        x=alt.X("median:Q", title="GB/s"), y=y, tooltip=shown
    )
    most = base.mark_tick(color=theme.INK, thickness=2, height=18).encode(x="most:Q", y=y)
    return finish_chart(
        bars + most,
        "Bandwidth of collectives and messages",
        "Bytes of a message over its time with waiting; bars: median of the calls, ticks: the most",
    )


CHARTS: Final[dict[str, Callable[[Trace], Any]]] = {
    "layer_performance_heatmap": layer_performance_heatmap,
    "operation_time_distribution": operation_time_distribution,
    "compute_vs_communication": compute_vs_communication,
    "memory_usage_analysis": lambda trace: memory(analyze.memory(trace, by="time")),
    "performance_bottlenecks": performance_bottlenecks,
    "bandwidth_analysis": bandwidth_analysis,
}
"""Charts of the results of mode ``ops``, by file name.

Add your chart here, or pass it to one call.
"""


def read_run(path: str | Path) -> Trace:
    """Trace of a run in mode ``ops``: of its folder, of a folder of its files, or of one file."""
    inside = Path(path) / "traces"
    trace = read(inside if inside.is_dir() else path)
    timers(trace)
    return trace


def write_operators(
    path: str | Path,
    folder: str | Path | None = None,
    *,
    model: Any = None,
    extra_charts: Mapping[str, Callable[[Trace], Any]] | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Write the results of a run in mode ``ops``; the model, for its bounds, is by default that
    of the run's folder.
    """
    trace, place = read_run(path), Path(path) if Path(path).is_dir() else Path(path).parent
    where = Path(folder) if folder is not None else place / "ops"
    files.made(where)
    layers, comm = layer_report(trace), communication_report(trace)
    bounds = _bounds(trace, model if model is not None else config_in(place / "model"))
    advice = advised(trace, bounds)
    steps = timed_steps(trace).group_by("rank", "phase", "method")
    whole = {
        "run": _about(trace),
        "steps": (
            steps.agg(count=pl.len(), mean_ns=pl.mean("dur_ns"), median_ns=pl.median("dur_ns"))
            .sort("rank", "phase")
            .to_dicts()
        ),
        "overhead": timing_overhead(trace).to_dicts(),
        "layers": layers,
        "operators": operator_times(trace).to_dicts(),
        "bounds": None if bounds is None else bounds.to_dicts(),
        "communication": comm,
        "suggestions": advice.to_dicts(),
    }
    written = [
        files.write(where / "detailed_timings.csv", text.csv(timed_calls(trace))),
        files.write_json(where / "analysis_report.json", layers),
        files.write_json(where / "comm_analysis.json", comm),
        files.write_json(where / "comprehensive_report.json", whole),
    ]
    missing: dict[str, str] = {}
    functions = {**CHARTS, **(extra_charts or {})}
    for done, (name, drawn) in enumerate(functions.items()):
        if progress is not None:
            progress(f"drawing {name}", done, len(functions))
        try:
            written.append(save(drawn(trace), where / f"{name}.png", overwrite=True))
        except AnalysisError as error:
            missing[name] = reason_in_words(error)
    return [*written, files.write(where / "README.md", _readme(trace, advice, written, missing))]


def _bounds(trace: Trace, model: Any) -> pl.DataFrame | None:
    """Measured time and bound of each stage of the timed layers, over ranks and steps; None
    without a known model.
    """
    if model is None:
        return None
    first = next(iter(timers(trace).values()))
    sizes = {
        f"{axis}_size": first[f"{name}_parallel_size"]
        for axis, name in (("tp", "tensor"), ("pp", "pipeline"))
    }
    try:
        joined = analyze.roofline(trace, model, **sizes)
    except LlmprofError:
        return None
    calls = timed_calls(trace).filter(~pl.col("nested"))
    moved = trace.collectives.select("rank", step="timer_step", layer="timer_layer", at="start_ns")
    within = calls.join(moved, on=["rank", "step", "layer"], nulls_equal=True).filter(
        (pl.col("at") >= pl.col("start_ns")) & (pl.col("at") < END)
    )
    events = trace.events
    communicates = events.filter(pl.col("name").is_in(within["operator"].unique().implode()))[
        "stage"
    ].unique()
    return (
        joined.filter("explained")
        .group_by("phase", "stage")
        .agg(
            calls=pl.sum("kernels"),
            total_ns=pl.sum("total_ns"),
            bound_ns=pl.sum("bound_ns"),
            bound_by=pl.col("bound_by").drop_nulls().mode().sort().first(),
        )
        .with_columns(
            times_bound=pl.when(pl.col("bound_ns") > 0).then(
                pl.col("total_ns") / pl.col("bound_ns")
            ),
            communicates=pl.col("stage").is_in(communicates.implode()),
        )
        .sort("phase", "total_ns", descending=[False, True])
    )


def _advice(row: Mapping[str, Any], *, waiting: bool) -> str:
    operator, phase, share = row["operator"], row["phase"], format_share(row["figure"])
    if row["rule"] == "dominates":
        return f"`{operator}` takes {share} of a {phase} step: begin there."
    if row["rule"] == "launch_bound":
        return (
            f"In {share} of the timed {phase} calls the device had caught up with the host: use"
            " CUDA graphs (no eager), or fewer and larger kernels."
        )
    then = "try another kernel, layout or type, or a larger batch."
    if waiting:
        then = "part of it is waiting for the host, so first see what remains with `hold: true`."
    return f"`{operator}` takes {row['figure']:.1f} times its bound in {phase}: {then}"


def advised(trace: Trace, bounds: pl.DataFrame | None = None) -> pl.DataFrame:
    """Suggestions with their sentences."""
    rows = timing_suggestions(trace, bounds)
    held = set(rows.filter(rule="launch_bound")["phase"])
    words = [_advice(row, waiting=row["phase"] in held) for row in rows.iter_rows(named=True)]
    return rows.with_columns(pl.Series("suggestion", words, dtype=pl.String))


def layer_report(trace: Trace) -> dict[str, Any]:
    """``layer_breakdown``:

    ``total_ns, average_ns, count`` and ``operations`` of each layer by its number, over ranks and
    phases; of each module of a layer by its name (``model.layers.0.self_attn``) ``total_time,
    avg_time`` (s), ``count``, and the times (s) of the ``operations`` inside.
    """
    layers = layer_times(trace)
    calls = timed_calls(trace).filter(pl.col("layer").is_not_null() & (pl.col("kind") != "layer"))
    breakdown: dict[str, Any] = {}
    for (number,), rows in layers.group_by("layer", maintain_order=True):
        inside = calls.filter(layer=number).group_by("operator", maintain_order=True)
        operations = inside.agg(
            total_ns=pl.sum("dur_ns"),
            average_ns=pl.mean("dur_ns"),
            count=pl.len(),
            shapes=pl.first("shapes"),
        )
        breakdown[str(number)] = {
            "total_ns": int(rows["total_ns"].sum()),
            "average_ns": int(rows["total_ns"].sum()) / int(rows["count"].sum()),
            "count": int(rows["count"].sum()),
            "by_phase": rows.drop("layer").to_dicts(),
            "operations": {row.pop("operator"): row for row in operations.to_dicts()},
        }
    for (number, name), of in calls.filter(kind="module").group_by(
        "layer", "operator", maintain_order=True
    ):
        own = calls.filter(layer=number).filter(pl.col("operator").str.starts_with(f"{name}."))
        if "." not in str(name):
            parts = own.group_by("operator", maintain_order=True).agg(pl.sum("dur_ns"))
            breakdown[f"model.layers.{number}.{name}"] = {
                "total_time": of["dur_ns"].sum() / NS_PER_S,
                "avg_time": of["dur_ns"].sum() / NS_PER_S / of.height,
                "count": of.height,
                "operations": {
                    part.removeprefix(f"{name}."): ns / NS_PER_S for part, ns in parts.iter_rows()
                },
            }
    return {
        "layer_breakdown": breakdown,
        "layers": layers["layer"].n_unique(),
        "clock": next(iter(timers(trace).values()))["clock"],
    }


def communication_report(trace: Trace) -> dict[str, Any]:
    """Communication in all and by kind: count, time, bandwidth and share of the timed steps.

    ``communication_analysis`` has the same with the names of other tools: ``total_comm_time`` and
    ``total_time`` in seconds, ``comm_percentage``, ``avg_bandwidth_gbps`` in GB/s.
    """
    rows = communication_times(trace)
    if rows.is_empty():
        named = {"total_comm_time": 0.0, "comm_percentage": 0.0, "by_operation_type": {}}
        head = {"total_ns": 0, "share": 0.0, "by_type": {}, "note": _NO_COMMUNICATION}
        return head | {"communication_analysis": named, "by_operation_type": {}}
    kinds = (
        rows.group_by("kind")
        .agg(
            count=pl.sum("count"),
            total_ns=pl.sum("total_ns"),
            algorithm_gbps=pl.median("algorithm_gbps"),
            bus_gbps=pl.median("bus_gbps"),
        )
        .sort("kind")
    )
    shares_known = pl.col("share").is_not_null().all()
    shares = rows.group_by("rank", "phase").agg(pl.when(shares_known).then(pl.sum("share")))
    moved = (pl.col("bytes") * pl.col("count")).sum()
    of_types = rows.group_by("kind", maintain_order=True).agg(
        count=pl.sum("count"),
        total_time=pl.sum("total_ns") / NS_PER_S,
        avg_bandwidth_gbps=moved / pl.sum("total_ns"),
    )
    by_type = {row.pop("kind"): row for row in of_types.to_dicts()}
    share: Any = shares["share"].mean()
    named = {
        "total_comm_time": rows["total_ns"].sum() / NS_PER_S,
        "comm_percentage": None if share is None else 100 * share,
        "by_operation_type": by_type,
    }
    return {
        "communication_analysis": named,
        "by_operation_type": by_type,
        "total_ns": int(rows["total_ns"].sum()),
        "share": share,
        "share_is": (
            "of the median step, mean over the ranks and phases where it is known; from the timed"
            " calls and a count of all: it is too large where the timed ones wait for another rank"
            " longer than the rest, and null where it would be above 1"
        ),
        "share_by_phase": shares.sort("rank", "phase").to_dicts(),
        "seen": {str(rank): facts["collectives_seen"] for rank, facts in timers(trace).items()},
        "by_type": {row.pop("kind"): row for row in kinds.to_dicts()},
        "by_size": rows.to_dicts(),
    }


def _about(trace: Trace) -> dict[str, Any]:
    ranks = list(timers(trace).values())
    shared = {
        key: ranks[0][key] for key in ranks[0] if key not in ("layers", "collectives_seen", "notes")
    }
    return shared | {
        "ranks": len(ranks),
        "notes": [note for facts in ranks for note in facts["notes"] or ()],
    }


def _readme(
    trace: Trace, advice: pl.DataFrame, written: list[Path], missing: Mapping[str, str]
) -> str:
    about, steps, calls = _about(trace), timed_steps(trace), timed_calls(trace)
    clock = (
        "CUDA events on the model's stream"
        if on_device(trace)
        else "the clock of the host: this was a CPU"
    )
    lines = [
        f"# Timings of operators: {about['model']}",
        "",
        (
            f"{text.counted(steps.height, 'step')} on {text.counted(about['ranks'], 'rank')}, timed"
            f" by {clock}; {text.counted(calls.height, 'call')} and"
            f" {text.counted(trace.collectives.height, 'collective')}."
        ),
        (
            "Times on a GPU are those of the device from one event to the next: waiting for the"
            " host is part of them, unless the steps were held (`hold`)."
        ),
        "",
        "| phase | rank | steps | median step |",
        "|---|---|---|---|",
    ]
    steps = (
        steps.group_by("phase", "rank").agg(n=pl.len(), m=pl.median("dur_ns")).sort("phase", "rank")
    )
    lines += [
        f"| {phase} | {rank} | {n} | {format_ns(m)} |" for phase, rank, n, m in steps.iter_rows()
    ]
    cost = timing_overhead(trace).filter(
        pl.col("overhead").is_not_null() & (pl.col("method") != "none")
    )
    lines += [f"\n{_cost(row)}" for row in cost.iter_rows(named=True)]
    top = operators_of_a_step(trace).group_by("phase", maintain_order=True).head(5)
    mean = " (mean over the ranks)" if about["ranks"] > 1 else ""
    lines += ["", f"| operator | phase | a step{mean} | share |", "|---|---|---|---|"]
    lines += [
        f"| `{row['operator']}` | {row['phase']} | {format_ns(row['step_ns'])} |"
        f" {format_share(row['share'])} |"
        for row in top.iter_rows(named=True)
    ]
    if trace.collectives.is_empty():
        lines += ["", f"{_NO_COMMUNICATION.capitalize()}."]
    if advice.height:
        lines += ["", "## What to try", "", *(f"- {words}" for words in advice["suggestion"])]
    lines += ["", "## Files", ""]
    lines += [f"- `{path.name}`" for path in written]
    lines += [f"- no `{name}.png`: {why}" for name, why in missing.items()]
    return "\n".join(lines) + "\n"


def _cost(row: Mapping[str, Any]) -> str:
    """Sentence on the cost of timing for a decode step; an interval that includes zero shows no
    cost.
    """
    low, high, steps = row["overhead_low"], row["overhead_high"], text.counted(row["steps"], "step")
    method, more = row["method"], format_share(row["overhead"])
    what = f"A decode step that is timed by {method} takes {more} more than one that is not"
    if low is None:
        return (
            f"{what} (rank {row['rank']}, {steps} against their neighbours: too few for an"
            " interval)."
        )
    if low <= 0 <= high:
        what = (
            f"Decode steps that are timed by {method} and those that are not differ by no more than"
            " chance does"
        )
    return (
        f"{what} (rank {row['rank']}, {steps} against their neighbours, 95 % interval "
        f"{format_share(low)} to {format_share(high)})."
    )


def _of_run(name: str) -> Callable[[Run], Drawn]:
    return lambda run: CHARTS[name](run.trace)


OPS_LAYERS = Drawing("ops_layers", "times of the layers", _of_run("layer_performance_heatmap"))
OPS_OPERATORS = Drawing(
    "ops_operators", "operators by their time", _of_run("performance_bottlenecks")
)
OPS_COMMUNICATION = Drawing(
    "ops_communication", "communication of a step", _of_run("compute_vs_communication")
)
OPS_MEMORY = Drawing("ops_memory", "memory of the steps", _of_run("memory_usage_analysis"))

_TOP_OPERATORS: Final = 25


def operators_section(run: Run) -> Section:
    """Section on the times of layers and operators, if the run timed them."""
    question = "Where does the time of a step go, layer by layer?"
    try:
        trace = run.trace
        timers(trace)
    except (CaptureError, NotCapturedError) as error:
        absent = Absent("timings of operators", captured=False, found=error.found, hint=error.hint)
        return Section("operators", question, "", [absent])
    words = (
        "Timed inside the engine, in the sampled steps and layers, by CUDA events on the model's"
        " stream: waiting for the host is part of a time. llmprof.report.write_operators(folder)"
        " writes all calls."
        if on_device(trace)
        else (
            "Timed inside the engine, in the sampled steps and layers, by the clock of the host:"
            " this was a CPU."
        )
    )
    shown = (
        *columns_of_kind("text", operator="operator", phase="phase"),
        *columns_of_kind("number", rank="rank", count="calls timed"),
        *columns_of_kind("time", median_ns="median", step_ns="a step, all layers"),
        ReportColumn("share", "share of a step", "share"),
    )
    rows = (
        operator_times(trace)
        .filter(~pl.col("nested"))
        .sort("step_ns", descending=True)
        .head(_TOP_OPERATORS)
    )
    caption = f"The {rows.height} operators that take the most time of a step"
    table = ReportTable(
        "operators", caption, shown, rows.select(column.key for column in shown), sortable=True
    )
    drawn = (
        make_figure(run, drawing)
        for drawing in (OPS_LAYERS, OPS_OPERATORS, OPS_COMMUNICATION, OPS_MEMORY)
    )
    return Section("operators", question, words, [*(one for one in drawn if one.spec), table])
