"""Commands on hardware metrics without a timeline: info, analyze, findings and report of files of Nsight Compute."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl

from llmprof import text
from llmprof.analyze.findings.document import hardware_findings_document
from llmprof.analyze.ncu import profile
from llmprof.analyze.ncu.hardware import VIEWS
from llmprof.analyze.ncu.profile import Profile
from llmprof.cli.output import Terminal, places, to_json, wrapped
from llmprof.errors import AnalysisError, LlmprofError, NotCapturedError
from llmprof.names.kernels import displayed
from llmprof.readers.ncu import reader as ncu
from llmprof.readers.reading import hardware_metrics_only
from llmprof.storage import files

_SHOWN: Final = {
    "kernel_name": "kernel",
    "count": "launches",
    "total_ns": "total_ns",
    "share": "share",
    "bound": "limited by",
    "compute_pct": "compute %",
    "memory_pct": "memory %",
    "stall": "warps wait for",
}
_MOST_KERNELS: Final = 10


def is_profile(paths: Sequence[str]) -> bool:
    """Return whether all paths hold hardware metrics and no timeline."""
    named = places(paths)
    return bool(named) and all(hardware_metrics_only(path) for path in named)


def open_profile(paths: Sequence[str]) -> Profile:
    """Read the metrics at the paths, and find the report that may have samples of instructions."""
    named = places(paths)
    return Profile(ncu.read_metrics(named), _report(named), " ".join(paths))


def _report(named: Sequence[Path]) -> Path | None:
    inside = [file for path in named for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    reports = [file for file in inside if file.is_file() and ncu.kind(ncu.head(file)) == "report"]
    return reports[0] if len(reports) == 1 else None


def info_of_profile(args: Namespace, terminal: Terminal) -> str:
    """Summarise hardware metrics: facts, kernels by time, and what is not recorded."""
    measured = open_profile(args.paths)
    metrics = measured.metrics
    try:
        kernels = profile.limits(metrics)
        why = ""
    except NotCapturedError as error:
        kernels, why = pl.DataFrame(), str(error)
    if args.json:
        about = {name.lower(): value for name, value in profile.facts(metrics)}
        names = metrics.metrics["metric"].unique(maintain_order=True).to_list()
        return to_json(
            {"facts": about, "kernels": kernels.to_dicts(), "metrics": names, "reading": metrics.coverage}
            | {"not_recorded": profile.NEEDS_TIMELINE[0]}
        )
    width = terminal.width
    parts = [profile.headline(metrics), text.pairs(profile.facts(metrics)), "Kernels"]
    if kernels.height:
        top = kernels.head(_MOST_KERNELS).select(pl.col(column).alias(head) for column, head in _SHOWN.items())
        top = top.with_columns(displayed(top["kernel"]).alias("kernel"), pl.col("compute %", "memory %").round(1))
        table = text.table(top, width=None if width is None else width - 2)
        parts.append("\n".join(f"  {line}" for line in table.splitlines()))
        if kernels.height > _MOST_KERNELS:
            parts.append(
                f"  {_MOST_KERNELS} of {kernels.height:,} kernels; llmprof analyze PATH speed-of-light has all"
            )
    else:
        parts.append(wrapped(f"no times: {why}", width, "  ", "  "))
    parts += ["Reading", text.pairs(profile.reading(metrics))]
    missing, how = profile.NEEDS_TIMELINE
    parts.append(wrapped(f"Not recorded: {missing}; {how}.", width, "", ""))
    return "\n".join(parts)


def view_of_profile(args: Namespace) -> pl.DataFrame:
    """Compute a view of hardware metrics; the findings if no view is named."""
    if args.by or args.rank:
        raise AnalysisError(f"{args.what} takes no --by and no --rank", expected="a view of a trace with them")
    if args.what == "findings":
        return open_profile(args.paths).findings
    view = VIEWS.get(args.what)
    if view is None:
        raise AnalysisError(
            f"{args.what} needs a timeline, and these are hardware metrics of single launches",
            expected=f"one of findings, {', '.join(VIEWS)}",
            hint=profile.NEEDS_TIMELINE[1],
        )
    if view.of_metrics is not None:
        return view.of_metrics(open_profile(args.paths).metrics)
    assert view.of_source is not None  # noqa: S101 - a view has one of the two
    return view.of_source(profile.samples_of(_report(places(args.paths))))


def findings_of_profile(args: Namespace, terminal: Terminal) -> str:
    """Print the findings of hardware metrics as sentences or JSON."""
    from llmprof.cli.analyze import findings_text

    measured = open_profile(args.paths)
    findings = measured.findings
    if args.json:
        return to_json(hardware_findings_document(measured.metrics, findings))
    return findings_text(findings, terminal.width, args.paths) if findings.height else nothing_found(measured, terminal)


def nothing_found(measured: Profile, terminal: Terminal) -> str:
    """Say why hardware metrics have no findings."""
    if measured.metrics.kernels["duration_ns"].count():
        return "No rule found anything worth saying in these metrics."
    words = "No findings: the metrics hold no duration of any launch. Record them with ncu --section SpeedOfLight."
    return wrapped(words, terminal.width, "", "")


def report_of_profile(args: Namespace, terminal: Terminal) -> str:
    """Write the report of hardware metrics."""
    from llmprof.cli.analyze import findings_text
    from llmprof.cli.make import MOST_FINDINGS, is_page, paths_of
    from llmprof.report.folder import write_contents
    from llmprof.report.hardware import profile_contents
    from llmprof.report.page import page

    measured = open_profile(args.paths)
    if args.model:
        raise LlmprofError("--model needs a timeline, and these are hardware metrics", hint="leave it out")
    content = profile_contents(measured, title=args.title)
    if is_page(args.output):
        file = files.write_output(args.output, page(content), overwrite=args.force)
        return to_json({"index": file}) if args.json else text.pairs([("Report", str(file))], indent="")
    written = write_contents(content, args.output, progress=terminal.progress, overwrite=args.force)
    if args.json:
        return to_json({"index": written.index, "summary": written.summary, "pngs": written.pngs, "csvs": written.csvs})
    findings = written.findings
    top = (
        findings_text(findings.head(MOST_FINDINGS), terminal.width, args.paths)
        if findings.height
        else nothing_found(measured, terminal)
    )
    return f"{top}\n\n{paths_of(written)}"
