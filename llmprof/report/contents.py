"""Everything a report says of a trace, computed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import polars as pl

from llmprof.progress import Progress
from llmprof.report import about
from llmprof.report.figures import FIGURES, figure
from llmprof.report.parts import ANALYSES, Absent, Column, Contents, Figure, Section, Table, run
from llmprof.trace import Trace
from llmprof.units import format_ns

MOST_KERNELS = 25

_QUESTIONS: tuple[tuple[str, str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    (
        "steps",
        "Where does a step go?",
        "A step is one forward pass over one batch. Its device time is summed over kernels and copies, so work on two "
        "streams at once counts twice.",
        ("breakdown", "categories"),
        ("steps", "coverage"),
    ),
    (
        "layers",
        "Which layers take the time?",
        "A layer reaches from its first kernel to its last. Even rows are the normal case; a dark row is a layer that "
        "differs, a dark column a step that was held up.",
        ("layers",),
        ("layers",),
    ),
    (
        "communication",
        "How much of the communication is waiting?",
        "A collective ends when its last rank has arrived: on all the others its kernel mostly waits. Communication is "
        "hidden while compute runs beside it.",
        ("overlap", "all_reduce"),
        ("overlap", "collectives"),
    ),
    (
        "idle",
        "When is the device idle, and why?",
        "A gap counts only when no stream of the device runs anything; a gap on one stream is not an idle device.",
        ("idle", "launch_delay"),
        ("idle", "launch_delay"),
    ),
    (
        "kernels",
        "Which kernels are hot?",
        "Sums over all ranks and steps. A collective's time holds its waiting.",
        (),
        ("kernel_summary", "ops_to_kernels"),
    ),
    (
        "timeline",
        "What does one step look like?",
        "One lane a stream, grey where nothing runs on it. Hold the pointer over a bar for its kernel and its length.",
        ("step_timeline", "layer_timeline"),
        (),
    ),
)


def sections(
    figures: Mapping[str, Figure], frames: Mapping[str, pl.DataFrame | Absent], what: str = "kernels and copies"
) -> list[Section]:
    """Sections of the page.

    Parameters
    ----------
    figures : mapping of str to Figure
        All figures by name.
    frames : mapping of str to polars.DataFrame or Absent
        Results of the analyses, or why there is none.
    what : str
        What device time is made of.

    Returns
    -------
    list of Section
        In the order of the page.
    """
    found = []
    for anchor, question, words, names, evidence in _QUESTIONS:
        blocks: list[Figure | Table | Absent] = [figures[name] for name in names]
        steps, kernels = frames["steps"], frames["kernel_summary"]
        if anchor == "steps" and isinstance(steps, pl.DataFrame) and steps.height:
            blocks.insert(0, steps_table(steps))
        if anchor == "kernels":
            if isinstance(kernels, Absent):
                blocks.append(replace(kernels, part="time of each kernel"))
            else:
                blocks.append(kernels_table(kernels, what))
        found.append(Section(anchor, question, words, blocks, evidence))
    return found


def steps_table(steps: pl.DataFrame) -> Table:
    """Steps by phase: how many, how large, how long."""
    span = pl.col("dur_ns")
    phases = {name: i for i, name in enumerate(("prefill", "mixed", "decode", "empty", "other"))}
    rows = (
        steps.group_by("phase")
        .agg(
            steps=pl.col("step").n_unique(),
            context_tokens=pl.col("context_tokens").median(),
            generation_requests=pl.col("generation_requests").median(),
            median=span.median(),
            least=span.min(),
            most=span.max(),
            host=pl.col("host_dur_ns").median(),
        )
        .sort(pl.col("phase").replace_strict(phases, default=len(phases), return_dtype=pl.Int32), "phase")
    )
    columns = (
        Column("phase", "phase"),
        Column("steps", "steps", "number"),
        Column("context_tokens", "prompt tokens", "number"),
        Column("generation_requests", "decode requests", "number"),
        Column("median", "device time", "time"),
        Column("least", "least", "time"),
        Column("most", "most", "time"),
        Column("host", "host time", "time"),
    )
    sources = steps["source"].unique().sort()
    known = "Known from " + ", ".join(_SOURCES.get(source, source) for source in sources) + "."
    caption = (
        "Steps by phase: medians over steps and ranks; device time is from the first kernel to the end of the last"
    )
    return Table("steps", caption, columns, rows, note=known)


_SOURCES = {
    "vllm": "vLLM's labels",
    "sglang": "SGLang's labels",
    "capture": "labels of graph captures",
    "profiler_step": "the profiler's ProfilerStep labels",
    "inferred": "the repetition of kernels, because the capture has no labels",
}


def kernels_table(kernels: pl.DataFrame, what: str = "kernels and copies") -> Table:
    """The kernels with the largest sums."""
    top = kernels.head(MOST_KERNELS)
    columns = (
        Column("name", "kernel", "name"),
        Column("category", "category", "chip"),
        Column("count", "runs", "number"),
        Column("total_ns", "total", "time"),
        Column("share", "share", "share"),
        Column("median_ns", "median", "time"),
        Column("min_ns", "least", "time"),
        Column("max_ns", "most", "time"),
    )
    rest = kernels.height - top.height
    covered, whole = (format_ns(frame.select(pl.col("total_ns").sum()).item()) for frame in (top, kernels))
    caption = f"{top.height} of {kernels.height} {what}, {covered} of {whole} in all"
    note = f"{rest:,} more are in kernel_summary.csv." if rest else ""
    return Table("kernels", caption, columns, top, sortable=True, note=note)


def contents(
    trace: Trace,
    *,
    title: str | None = None,
    progress: Progress | None = None,
    drawn: Callable[[Figure], object] | None = None,
    first: Sequence[Section] = (),
    more: Sequence[tuple[str, str]] = (),
) -> Contents:
    """Run the analyses and draw the figures.

    Parameters
    ----------
    trace : Trace
        Any trace.
    title : str, optional
        Heading of the page instead of the one that names ranks and device.
    progress : callable, optional
        Told of every analysis and every figure before it is made.
    drawn : callable, optional
        Given each figure as soon as it is made.
    first : sequence of Section
        Sections before those of the trace.
    more : sequence of (str, str)
        Facts before those of the trace.

    Returns
    -------
    Contents
        What the page, the files and the summary are written from.
    """
    tell = progress or _silent
    results: dict[str, pl.DataFrame | Absent] = {}
    for done, name in enumerate(ANALYSES):
        tell(f"analysing: {name}", done, len(ANALYSES))
        results[name] = run(name, trace)
    found = {name: result for name, result in results.items() if isinstance(result, pl.DataFrame)}
    absent = [result for result in results.values() if isinstance(result, Absent)]
    figures = {}
    if drawn is not None:
        for given in [one for section in first for one in section.figures]:
            drawn(given)
    for done, (name, (shows, _)) in enumerate(FIGURES.items()):
        tell(f"drawing: {shows}", done, len(FIGURES))
        figures[name] = figure(trace, name)
        if drawn is not None:
            drawn(figures[name])
    absent += [part.absent for part in figures.values() if part.absent is not None]
    return Contents(
        title=title or about.headline(trace),
        facts=[*more, *about.facts(trace)],
        files=about.files(trace),
        warnings=about.warnings(trace),
        shares=about.shares(found.get("coverage")),
        reading=about.reading(trace),
        findings=found.get("findings", pl.DataFrame()),
        sections=[*first, *sections(figures, results, about.work(trace))],
        frames=found,
        absent=absent,
    )


def _silent(what: str, done: int, total: int) -> None:
    """Say nothing."""
