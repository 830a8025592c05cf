"""The pages of the reference: which public names of llmprof stand on which page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

import made

from llmprof.analyze import catalog


@dataclass(frozen=True)
class Page:
    """Names of a package on one page; no names: all that it exports and that no other page has."""

    name: str
    title: str
    package: str
    names: tuple[str, ...] = ()
    words: str = ""


_WORDS = {
    "What would be gained": "From a replay of the recording: [predict](../predict.md#what-would-a-change-gain)"
}
PAGES = (
    Page(
        "reading",
        "Reading traces",
        "llmprof",
        (
            "read",
            "read_metrics",
            "read_source",
            "sample",
            "sample_metrics",
            "samples",
            "Trace",
            "Metrics",
        ),
        "Files in, frames out. The tables of a trace are described in the [schema](../reference.md#tables-of-a-trace).",
    ),
    *(
        Page(
            re.sub(r"\W+", "_", heading.lower()),
            heading,
            "llmprof.analyze",
            tuple(names.split()),
            _WORDS.get(heading, ""),
        )
        for heading, names in catalog.SUBJECTS.items()
    ),
    Page("ncu", "Kernels measured by Nsight Compute", "llmprof.analyze.ncu"),
    Page("npu", "Questions of an NPU", "llmprof.analyze.npu"),
    Page(
        "nsys",
        "Summaries with the names of Nsight Systems",
        "llmprof.analyze.nsys",
        words="They take any trace, and equal those of `nsys stats` on its exports.",
    ),
    Page("theory", "Theory", "llmprof.theory"),
    Page(
        "charts",
        "Charts",
        "llmprof.charts",
        words="A frame of an analysis goes in, an Altair chart comes out.",
    ),
    Page("explore", "Explorers", "llmprof.explore"),
    Page("launch", "Profiled runs", "llmprof.run.launch"),
    Page("report", "Reports", "llmprof.report"),
    Page("batch", "Sweeps, and notebooks over many runs", "llmprof.run.batch"),
    Page("operator_timing", "Times of operators", "llmprof.run.operator_timing"),
    Page(
        "experiments", "Bandwidth, and scaling with length and devices", "llmprof.run.experiments"
    ),
    Page("trials", "Trials of a change", "llmprof.run.trials"),
    Page("live", "Servers that run already", "llmprof.run.live"),
    Page("names", "Names of kernels and operators", "llmprof.names"),
    Page("metrics", "The glossary of hardware metrics", "llmprof.trace.metrics"),
    Page("hardware", "Devices", "llmprof.theory.hardware"),
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
            kind = (
                "autoclass"
                if isinstance(value, type)
                else "autofunction"
                if callable(value)
                else "py:data"
            )
            lines += [f".. {kind}:: {name}", *(["   :members:"] if kind == "autoclass" else []), ""]
        (folder / f"{page.name}.md").write_text("\n".join([*lines, "```", ""]))
    work = "# Work of operators\n\nHow FLOPs and bytes follow from the arguments, for [bounds](../predict.md#operators-against-their-bounds)"
    (folder / "operators.md").write_text(
        f"{work}\nand [operators of your own](../my_own.md#work-of-an-operator).\n\n{made.operators()}"
    )
    listed = "\n".join([*(page.name for page in pages), "operators"])
    (folder / "index.md").write_text(
        '# Python\n\nIn the examples `trace` is `llmprof.sample("torch_tp1_cudagraph")`: one H200, vLLM with CUDA '
        f"graphs.\n\n```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n"
    )
