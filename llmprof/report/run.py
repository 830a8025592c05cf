"""Report of a run: sections on requests, the profiler's cost and the monitors, in addition to
those of its trace.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof import analyze, charts
from llmprof.analyze.requests.requests import slowest
from llmprof.charts.base.draw import float_of
from llmprof.charts.base.save import to_png_bytes
from llmprof.charts.subjects.requests import LATENCIES
from llmprof.errors import CaptureError, LlmprofError, NotCapturedError, guarded
from llmprof.report.figures import Drawing, Drawn, bound_section, config_in, draw_chart, make_figure
from llmprof.report.folder import write, write_contents
from llmprof.report.hardware import named_stalls
from llmprof.report.operators import operators_section
from llmprof.report.page import (
    Absent,
    Contents,
    ReportColumn,
    ReportFigure,
    ReportTable,
    Section,
    attempt,
    columns_of_kind,
)
from llmprof.run.launch import ExperimentConfig, Run, monitors, open_run
from llmprof.run.launch.config.options import setting
from llmprof.run.launch.monitors import table
from llmprof.run.launch.run.requests import overhead, summarize
from llmprof.text import Progress
from llmprof.trace import Trace
from llmprof.trace.storage import files
from llmprof.units import format_bytes, format_ns, format_share

_NAMES = {
    "wall_ns": "whole batch",
    **LATENCIES,
    "output_tokens_per_s": "output tokens per s",
    "tokens_per_s": "all tokens per s",
    "requests_per_s": "requests per s",
}


def launch_facts(run: Run) -> list[tuple[str, str]]:
    """Facts about the run, as names and values."""
    config, worker = run.config, run.worker
    tokens = run.requests.select(pl.median("prompt_tokens"), pl.median("output_tokens")).row(0)
    devices = Counter(worker.get("device_names") or [])
    engine = " ".join(str(worker[key]) for key in ("engine", "engine_version") if worker.get(key))
    torch = f"torch {worker['torch_version']}" if worker.get("torch_version") else ""
    prompt = f"{tokens[0]:g} to {tokens[1]:g} tokens" if None not in tokens else "tokens not known"
    execution = (
        "as the engine does (graphs and compilation)"
        if config.eager is None
        else "with graphs and compilation"
    )
    if config.eager or any(note.startswith("eager:") for note in worker.get("notes") or ()):
        execution = "eager"
    out = [
        (
            "Model",
            (
                f"{config.model}{' (random weights)' if worker.get('random_weights') else ''},"
                f" {config.dtype}"
            ),
        ),
        ("Mode", f"{config.profile_mode}{', served' if config.served else ''}, {execution}"),
        ("Engine", ", ".join(filter(None, (engine, torch)))),
        ("Devices", ", ".join(f"{n} x {name}" if n > 1 else name for name, n in devices.items())),
        (
            "Parallel",
            f"tensor {config.tensor_parallel_size}, pipeline {config.pipeline_parallel_size}",
        ),
        ("Requests", f"{_load_of(run)}, {prompt}"),
        ("Sampling", _sampling(config)),
    ]
    if start := worker.get("engine_start"):
        words = (
            f"shared: point {start['point'] + 1} of {start['points']} that one start of it measured"
        )
        out.append(("Start of the engine", words))
    for phase in (run.summary.get("energy") or {}).get("phases") or ():
        if phase["phase"] == "plain":
            interval = (
                ""
                if phase["ci95_low"] is None
                else f" ± {(phase['ci95_high'] - phase['ci95_low']) / 2:.2g}"
            )
            figure = (
                f"{phase['joules_per_output_token']:.3g}{interval} J an output token,"
                f" {phase['watts']:.0f} W"
            )
            out.append(("Energy", figure))
    for phase, counts in (worker.get("prefix_cache") or {}).items():
        if phase != "warmup" and counts.get("hits") is not None:
            share = format_share(counts["hits"] / counts["queries"])
            out.append((f"Prefix cache, {phase}", f"{share} of the tokens hit"))
    if peaks := worker.get("peak_memory_bytes"):
        out.append(("Peak memory", f"{format_bytes(max(peaks.values()))} on the fullest device"))
    if (cache := worker.get("kv_cache") or {}).get("tokens"):
        used = (
            f", {format_share(cache['peak_usage'])} used at most"
            if cache.get("peak_usage") is not None
            else ""
        )
        out.append(("KV cache", f"{cache['tokens']:,} tokens{used}"))
    out.append(("To repeat it", f"llmprof run --config {run.folder.path.name}/config.yaml"))
    return [(name, value) for name, value in out if value]


def _load_of(run: Run) -> str:
    config = run.config
    if not config.served:
        return f"{config.batch_size} at once"
    rate = setting(config, "server", "request_rate")
    most = setting(config, "server", "max_concurrency")
    came = f"{rate:g} a second" if rate else "all at once"
    options = {name: value for name, value in config.load.items() if name != "file"}
    more = "".join(f", {name} {value}" for name, value in options.items())
    return (
        f"{setting(config, 'server', 'num_prompts')}, {came}, at most {most or 'any number'} at a"
        f" time{more}"
    )


def _sampling(config: ExperimentConfig) -> str:
    greedy = (
        "greedy"
        if not config.temperature
        else f"temperature {config.temperature:g}, top_p {config.top_p:g}"
    )
    several = f", {config.n} answers each" if config.n > 1 else ""
    ends = "no end before max_tokens" if config.ignore_eos else "ends by itself"
    return f"{greedy}{several}, seed {config.seed}, {ends}"


def run_sections(run: Run) -> list[Section]:
    """Sections on the requests and on the machine."""
    summary = summarize(run.requests)
    blocks: list[ReportFigure | ReportTable | Absent] = [
        make_figure(run, REQUESTS),
        make_figure(run, REQUEST_LATENCY),
    ]
    if summary.height:
        blocks.append(
            attempt("latencies and rates of the requests", lambda: summary_table(summary))
        )
    blocks.append(attempt("cost of the profiler", lambda: overhead_table(overhead(run.requests))))
    words = (
        "Means, deviations and 95 % intervals are over the repeats, percentiles over all requests."
        " What is measured under the profiler is slower than the run itself."
    )
    parts = [Section("requests", "How fast were the requests?", words, blocks)]
    parts += _made("requests joined to steps", lambda: _slow_requests(run))
    if run.config.profile_mode in {"ncu", "nsys_ncu"}:
        words = "Measured by Nsight Compute, kernel by kernel, outside the timeline."
        blocks = [make_figure(run, ROOFLINE), make_figure(run, STALLS)]
        parts.append(
            Section("hardware", "How well do the kernels use the hardware?", words, blocks)
        )
    if run.config.profile_mode == "ops":
        parts += _made("timings of operators", lambda: [operators_section(run)])
    sampled = make_figure(run, COUNTERS)
    if sampled.spec:
        words = (
            "Samples beside the run; work of others on the machine shows here, and clocks that were"
            " held down."
        )
        parts.append(Section("machine", "What did the machine do meanwhile?", words, [sampled]))
    calls = make_figure(run, CUDA_API)
    if calls.spec:
        words = "Time in calls of the runtime and driver on the host, under the profiler."
        parts.append(
            Section("cuda_api", "Which calls did the host spend its time in?", words, [calls])
        )
    return [*parts, *_made("measured time against its bound", lambda: _bound(run))]


def _made(what: str, make: Callable[[], list[Section]]) -> list[Section]:
    """Sections, or one with the reason why there are none."""
    made = attempt(what, make)
    return [Section("absent", what, "", [made])] if isinstance(made, Absent) else made


def _slow_requests(run: Run) -> list[Section]:
    """Section on requests on the clock of the trace, if the engine noted its steps."""
    if run.engine_steps.is_empty():
        return []
    try:
        joined = analyze.requests(run)
        first = slowest(joined)["title"]
    except LlmprofError as error:
        absent = Absent(
            "requests joined to steps", captured=False, found=error.found, hint=error.hint
        )
        return [Section("slow_requests", "Why were requests slow?", "", [absent])]
    words = (
        f"{first} Each request is cut at the ends of the steps that the scheduler made; the parts"
        " add up to its latency under the profiler. Shares of a step are by tokens."
    )
    return [
        Section(
            "slow_requests",
            "Why were requests slow?",
            words,
            [make_figure(run, REQUEST_WATERFALL), slow_table(joined)],
        )
    ]


_SLOW: Final = 10


def slow_table(joined: pl.DataFrame) -> ReportTable:
    """Table of the requests with the latest first token, and what they waited for."""
    shown = (
        ReportColumn("request", "request", "number"),
        *columns_of_kind(
            "time", ttft_ns="first token", queue_prefill_ns="behind prefill of others"
        ),
        *columns_of_kind(
            "time", queue_decode_ns="behind decode of others", queue_other_ns="no step ran"
        ),
        *columns_of_kind(
            "time",
            prefill_ns="own prefill",
            prefill_other_ns="others beside it",
            e2e_ns="end to end",
        ),
        *columns_of_kind("number", preemptions="preemptions", slowest_step="slowest step"),
        ReportColumn("reason", "mostly"),
    )
    rows = (
        joined.sort("ttft_ns", descending=True).head(_SLOW).select(column.key for column in shown)
    )
    return ReportTable(
        "slow_requests",
        f"The {rows.height} requests with the latest first token",
        shown,
        rows,
        sortable=True,
    )


def _bound(run: Run) -> list[Section]:
    """Section with the theory's bound, if the run has a timeline and its folder the model's
    config.
    """
    config = config_in(run.folder.model)
    if config is None:
        return []
    try:
        trace = run.trace
    except (CaptureError, NotCapturedError):
        return []
    sizes = run.config.tensor_parallel_size, run.config.pipeline_parallel_size
    return [bound_section(trace, config, tp_size=sizes[0], pp_size=sizes[1])]


def monitor_samples(run: Run) -> pl.DataFrame:
    """Samples of the monitors: on the clock of the trace, or, without a trace, from the first
    measured batch on.
    """
    try:
        return run.trace.counters
    except (CaptureError, NotCapturedError):  # the traces may have been deleted to save space
        starts = [
            stage["start_ns"]
            for stage in run.worker.get("stages") or ()
            if stage.get("name") == "plain"
        ]
        if not run.folder.monitors.is_file() or not starts:
            raise
    clock = Trace({}, {"start_epoch_ns": min(starts), "clock": "epoch"})
    return monitors.counters(table.read(run.folder.monitors), clock).counters


def summary_table(summary: pl.DataFrame) -> ReportTable:
    """Every metric of the requests."""
    shown = summary.filter(pl.col("metric").is_in(list(_NAMES)))
    names = pl.col("metric").replace_strict(_NAMES, return_dtype=pl.String)
    shown = shown.with_columns(
        pl.max_horizontal("ci95_low", pl.when(pl.col("ci95_low").is_not_null()).then(0.0))
    )
    figures = ("mean", "std", "ci95_low", "ci95_high", "p50", "p90", "p99")
    rows = shown.select(
        "phase", names, "repeats", "n", *(_written(shown, name) for name in figures)
    )
    heads = {"std": "deviation", "ci95_low": "95 % from", "ci95_high": "to", "p50": "median"}
    columns_shown = (
        *columns_of_kind("text", phase="phase", metric="metric"),
        *(ReportColumn(name, heads.get(name, name)) for name in figures),
        *columns_of_kind("number", repeats="repeats", n="values"),
    )
    apart = shown.filter(~pl.col("agree"))
    most = float_of(apart["spread"].max())
    note = (
        f"The repeats disagree by up to {format_share(most)} of the mean." if apart.height else ""
    )
    caption = "Latencies and rates of the requests, without and under the profiler"
    return ReportTable("request_summary", caption, columns_shown, rows, note=note)


def overhead_table(costs: pl.DataFrame) -> ReportTable:
    """Table of the cost of the profiler."""
    shown = costs.filter(pl.col("metric").is_in(list(_NAMES)))
    names = pl.col("metric").replace_strict(_NAMES, return_dtype=pl.String)
    answers = {True: "yes", False: "no", None: "one repeat only"}
    clear = pl.Series("clear", [answers[verdict] for verdict in shown["clear"]], dtype=pl.String)
    unclear = {False: "within the noise", None: "not known"}
    more = [
        None if share is None else unclear.get(beyond, f"{100 * share:+.1f} %")
        for share, beyond in shown.select("overhead", "clear").iter_rows()
    ]
    change = pl.Series("overhead", more, dtype=pl.String)
    rows = shown.select(names, _written(shown, "plain"), _written(shown, "profiled"), change, clear)
    columns_shown = (
        *columns_of_kind(
            "text", metric="metric", plain="without profiler", profiled="under the profiler"
        ),
        *columns_of_kind("text", overhead="change", clear="beyond the noise of the repeats"),
    )
    return ReportTable("overhead", "What the profiler costs", columns_shown, rows)


def _written(rows: pl.DataFrame, name: str) -> pl.Series:
    """Figures with their units, as text."""
    texts = [
        None if value is None else format_ns(value) if unit == "ns" else f"{value:,.4g}"
        for value, unit in rows.select(name, "unit").iter_rows()
    ]
    return pl.Series(name, texts, dtype=pl.String)


def dashboard_figures(run: Run) -> list[tuple[str, str]]:
    """Figures at the top of a dashboard."""
    summary = summarize(run.requests)
    phase = "plain" if "plain" in summary["phase"].to_list() else "profiled"
    means = {row["metric"]: row for row in summary.filter(phase=phase).iter_rows(named=True)}
    out = []
    if "output_tokens_per_s" in means:
        out.append(("Output tokens/s", f"{means['output_tokens_per_s']['p50']:,.4g}"))
    named = {"ttft_ns": "First token (median)", "tpot_ns": "Each further token", "wall_ns": "Batch"}
    out += [
        (name, format_ns(means[metric]["p50"])) for metric, name in named.items() if metric in means
    ]
    try:
        costs = overhead(run.requests).filter(metric="wall_ns")
    except LlmprofError:
        costs = pl.DataFrame()
    if costs.height and costs["overhead"][0] is not None:
        clear = costs["clear"][0]
        figure = {None: "not known (one repeat)", False: "within the noise"}
        out.append(("Profiler overhead", figure.get(clear, f"{100 * costs['overhead'][0]:+.1f} %")))
    if peaks := run.worker.get("peak_memory_bytes"):
        out.append(("Peak memory", format_bytes(max(peaks.values()))))
    return out


def _title(run: Run) -> str:
    config = run.config
    ranks = f", {config.world_size} ranks" if config.world_size > 1 else ""
    return f"{config.name}: {config.model}, {config.profile_mode}{ranks}"


def _dashboard(run: Run) -> Drawn:
    makers: dict[str, Callable[[], pl.DataFrame]] = {
        "where": lambda: analyze.step_time(run.trace),
        "kernels": lambda: analyze.kernels(run.trace),
        "counters": lambda: monitor_samples(run),
    }
    frames: dict[str, pl.DataFrame] = {}
    for name, make in makers.items():
        with contextlib.suppress(LlmprofError):  # the run does not have it
            frames[name] = make()
    subtitle = "; ".join(
        f"{name}: {value}"
        for name, value in launch_facts(run)
        if name in {"Engine", "Parallel", "Requests"}
    )
    summary = summarize(run.requests)
    return charts.dashboard(
        figures=dashboard_figures(run),
        request_summary=summary,
        title=_title(run),
        subtitle=subtitle,
        **frames,
    )


KERNEL_TIME = Drawing(
    "kernel_time",
    "kernels by their time",
    lambda run: charts.kernels(analyze.kernels(run.trace)),
)
CUDA_API = Drawing(
    "cuda_api",
    "calls of CUDA's API",
    lambda run: charts.cuda_api(analyze.nsys.cuda_api_sum(run.trace)),
)
REQUESTS = Drawing(
    "requests",
    "latencies of the requests",
    lambda run: charts.latencies(summarize(run.requests)),
)
COUNTERS = Drawing(
    "counters", "monitors of the machine", lambda run: charts.counters(monitor_samples(run))
)
DASHBOARD = Drawing("dashboard", "the run on one page", _dashboard)
_PICTURES: Final = (KERNEL_TIME, CUDA_API, REQUESTS, COUNTERS, DASHBOARD)
"""Figures that the folder of a run has as PNG, too."""
REQUEST_LATENCY = Drawing(
    "request_latency",
    "latencies of single requests",
    lambda run: charts.latencies(run.requests),
)
REQUEST_WATERFALL = Drawing(
    "request_waterfall",
    "requests over time",
    lambda run: charts.requests(analyze.requests(run)),
)
ROOFLINE = Drawing(
    "roofline",
    "kernels against the roofs",
    lambda run: charts.roofline(analyze.ncu.speed_of_light(run.metrics)),
)
STALLS = Drawing(
    "stalls", "what the warps wait for", lambda run: charts.stalls(named_stalls(run.metrics))
)

REPORT = "report"
VISUALIZATION = "visualization"


class Visualizer:
    """Charts and report of a run, from its folder.

    Parameters
    ----------
    run : path or Run
        Folder of a run, or the run, whose trace may be read already.
    progress : callable, optional
        Called with the current task, the number of finished parts, and the number of all parts.

    Attributes
    ----------
    missing : dict of str to str
        Reasons why pictures were not drawn, by name (``kernel_time`` …); filled when pictures are
        drawn.

    Raises
    ------
    ReadError
        The folder is not the folder of a run.
    """

    def __init__(
        self, run: str | os.PathLike[str] | Run, *, progress: Progress | None = None
    ) -> None:
        self._run = open_run(run) if isinstance(run, str | os.PathLike) else run
        self._progress = progress
        self.missing: dict[str, str] = {}

    def create_all_visualizations(self) -> list[Path]:
        """Draw the pictures of the run.

        ``{experiment}_kernel_time.png, _cuda_api.png, _requests.png, _counters.png,
        _dashboard.png`` in the run's folder, with links to them in ``visualization``. What the run
        did not record has no picture; :attr:`missing` says why. A folder that cannot be written
        raises ``OutputError``.
        """
        run = self._run
        written, self.missing = [], {}
        for done, drawing in enumerate(_PICTURES):
            if self._progress:
                self._progress(f"drawing: {drawing.name}", done, len(_PICTURES))
            try:
                with guarded(f"the picture {drawing.name!r}"):
                    picture = to_png_bytes(draw_chart(run, drawing)[0])
            except LlmprofError as error:
                self.missing[drawing.name] = str(error)
                continue
            written.append(
                files.write(run.folder.path / f"{run.config.name}_{drawing.name}.png", picture)
            )
        for path in written:
            run.folder.link(f"{VISUALIZATION}/{path.name}", path)
        return written

    def generate_report_html(self, *, pictures: bool = True, tables: bool = True) -> Path:
        """Write the report of the run, ``report/index.html`` in its folder.

        The charts and frames of the report are beside it, and
        ``visualization/{experiment}_report.html`` is a link to it. A run without a timeline has a
        report of its requests. A folder that cannot be written raises ``OutputError``.

        Parameters
        ----------
        pictures : bool
            Whether to paint each chart as a PNG, too, which takes as long again.
        tables : bool
            Whether each frame of the timeline is written as a CSV, too.
        """
        index = self._write_report(pictures=pictures, tables=tables)
        run = self._run
        run.folder.link(f"{VISUALIZATION}/{REPORT}", index.parent)
        run.folder.link(f"{VISUALIZATION}/{run.config.name}_report.html", index)
        return index

    def _write_report(self, *, pictures: bool, tables: bool) -> Path:
        """Write the report; the path of its page."""
        run, target = self._run, self._run.folder.path / REPORT
        first, about, title = run_sections(run), launch_facts(run), _title(run)
        try:
            trace = run.trace
        except (CaptureError, NotCapturedError) as error:
            absent = [Absent("findings", captured=False, found=error.found, hint=error.hint)]
            frames = {
                "requests": run.requests.drop("itl_ns"),
                "request_summary": summarize(run.requests),
            }
            warnings = [str(words) for words in self._run.summary.get("warnings") or ()]
            page_contents = Contents(title, about, first, frames, warnings=warnings, absent=absent)
            options: dict[str, Any] = {"progress": self._progress, "pictures": pictures}
            return write_contents(page_contents, target, **options).index
        try:
            requests = analyze.requests(run)
        except LlmprofError:  # its section says why
            requests = None
        # imported by name, because this layer must not import the trials
        changes = import_module("llmprof.run.trials.settings").commands(run)
        more: dict[str, Any] = {"facts": about, "requests": requests, "changes": changes}
        more |= {"progress": self._progress, "pictures": pictures, "tables": tables}
        return write(trace, target, title=title, first=first, **more).index
