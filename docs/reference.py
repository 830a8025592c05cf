"""The pages of the reference: which public names of llmprof stand on which page."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType


@dataclass(frozen=True)
class Page:
    """Names of a package on one page; no names: all that it exports and that no other page has."""

    name: str
    title: str
    package: str
    names: tuple[str, ...] = ()
    words: str = ""


_ANALYZE = "llmprof.analyze"
PAGES = (
    Page(
        "reading",
        "Reading traces",
        "llmprof",
        ("read", "read_metrics", "read_source", "sample", "sample_metrics", "samples", "Trace", "Metrics"),
        "Files in, frames out. The tables of a trace are described in the [schema](../schema.md).",
    ),
    Page(
        "steps_and_layers",
        "Steps and layers",
        _ANALYZE,
        ("steps", "steady_state", "step_time", "attribute", "layers", "layer_gaps", "name_layers", "coverage"),
    ),
    Page(
        "communication",
        "Communication and overlap",
        _ANALYZE,
        (
            "collectives",
            "collective_arrivals",
            "collective_sizes",
            "overlap",
            "overlap_within",
            "expert_exchange",
            "rank_balance",
            "rank_groups",
            "rank_steps",
            "late_groups",
        ),
    ),
    Page("idle", "Idle time and the host", _ANALYZE, ("idle", "stream_gaps", "launch_delay")),
    Page(
        "kernels",
        "Kernels",
        _ANALYZE,
        (
            "activity",
            "kernel_categories",
            "kernel_summary",
            "kernels_within",
            "events_within",
            "ops_to_kernels",
            "ncu_command",
            "ncu_join",
            "hot_lines",
            "speed_of_light",
            "stalls",
        ),
        "Kernels of a timeline, and what Nsight Compute measured of them.",
    ),
    Page(
        "gain",
        "What would be gained",
        _ANALYZE,
        ("critical_path", "slack", "path_share", "what_if"),
        "From a replay of the recording: [what would I gain?](../what_if.md)",
    ),
    Page("findings", "Findings and differences", _ANALYZE, ("findings", "diff")),
    Page("stacks", "Call stacks, and sums of a profiler", _ANALYZE, ("stacks", "hotspots", "totals")),
    Page("memory", "Memory", _ANALYZE, ("memory",)),
    Page("bound", "Measured time and its bound", _ANALYZE, ("roofline_join", "stage_observations")),
    Page("more", "Further analyses", _ANALYZE),
    Page(
        "npu",
        "Questions of an NPU",
        _ANALYZE,
        (
            "core_time",
            "event_waits",
            "host_synchronisation",
            "launch_path",
            "links",
            "memory_by_component",
            "operator_shapes",
        ),
    ),
    Page(
        "nsys",
        "Summaries with the names of Nsight Systems",
        "llmprof.analyze.nsys",
        words="They take any trace, and equal those of `nsys stats` on its exports.",
    ),
    Page("theory", "Theory", "llmprof.theory"),
    Page("charts", "Charts", "llmprof.charts", words="A frame of an analysis goes in, an Altair chart comes out."),
    Page("explore", "Explorers", "llmprof.explore"),
    Page("launch", "Profiled runs", "llmprof.launch"),
    Page("report", "Reports", "llmprof.report"),
    Page("batch", "Sweeps, and notebooks over many runs", "llmprof.batch"),
    Page("names", "Names of kernels and operators", "llmprof.names"),
    Page("metrics", "The glossary of hardware metrics", "llmprof.metrics"),
    Page("hardware", "Devices", "llmprof.hardware"),
    Page("units", "Units", "llmprof.units"),
    Page("errors", "Errors", "llmprof.errors"),
)


def names_on(page: Page) -> list[str]:
    """Public names of a page; packages within the package have pages of their own."""
    package = import_module(page.package)
    exported = getattr(package, "__all__", None) or [
        name
        for name, value in vars(package).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == page.package
    ]
    elsewhere = {name for other in PAGES if other.package == page.package for name in other.names}
    names = page.names or [name for name in exported if name not in elsewhere]
    return [name for name in names if not isinstance(getattr(package, name), ModuleType)]


def write(folder: Path) -> None:
    """Write the pages into a folder, with an index."""
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.md"):
        old.unlink()
    pages = [page for page in PAGES if names_on(page)]
    for page in pages:
        package = import_module(page.package)
        lines = [f"# {page.title}", "", *([page.words, ""] if page.words else [])]
        lines += ["```{eval-rst}", f".. currentmodule:: {page.package}", ""]
        for name in names_on(page):
            value = getattr(package, name)
            kind = "autoclass" if isinstance(value, type) else "autofunction" if callable(value) else "py:data"
            lines += [f".. {kind}:: {name}", *(["   :members:"] if kind == "autoclass" else []), ""]
        (folder / f"{page.name}.md").write_text("\n".join([*lines, "```", ""]))
    listed = "\n".join(page.name for page in pages)
    (folder / "index.md").write_text(
        '# Reference\n\nIn the examples `trace` is `llmprof.sample("torch_tp1_cudagraph")`: one H200, vLLM with CUDA '
        f"graphs.\n\n```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n"
    )
