"""``llmprof info``: what a recording holds. It imports less than the analyses do."""

import contextlib
import textwrap
from argparse import Namespace
from typing import Any

import polars as pl

from llmprof import analyze, text
from llmprof.analyze.coverage import recorded_shares
from llmprof.analyze.transfer import apart
from llmprof.cli.output import Terminal, input_paths, is_profile, open_trace, to_json
from llmprof.errors import NotCapturedError
from llmprof.readers.reading import left_aside
from llmprof.report import cards
from llmprof.trace import Trace
from llmprof.trace.schema import TABLES
from llmprof.units import format_share


def do_info(args: Namespace, terminal: Terminal) -> str:
    """Summary of the content of a trace."""
    if is_profile(args.paths):
        from llmprof.cli.analyze import info_of_profile

        return info_of_profile(args, terminal)
    trace = open_trace(args.paths, args, terminal)
    steps, recorded, sides = _phases(trace), [], pl.DataFrame()
    with contextlib.suppress(NotCapturedError):
        sides = analyze.transfer(trace, by="instance") if len(trace.ranks) > 1 else sides
    with contextlib.suppress(NotCapturedError):
        recorded = recorded_shares(trace).to_dicts()
    aside = [words for place in input_paths(args.paths) for words in left_aside(place)]
    if args.json:
        tables = {name: trace.rows.get(name) for name in TABLES}
        low, high = trace.span_ns
        summary = {
            "meta": trace.meta,
            "ranks": trace.ranks,
            "span_ns": high - low,
            "tables": tables,
        }
        summary["steps"] = steps if isinstance(steps, str) else steps.to_dicts()
        summary["recorded"] = recorded
        summary["instances"] = sides.to_dicts()
        return to_json(summary | {"reading": trace.coverage, "left_aside": aside})
    parts = [cards.headline(trace).partition(": ")[2], text.pairs(cards.trace_facts(trace))]
    rows, counts = [], trace.rows
    for name, table in TABLES.items():
        if name in counts:
            rows.append((name, f"{counts[name]:>12,}  {table.row}"))
        else:
            rows.append((name, f"{'-':>12}  not captured: {trace.capture.how_to_record(name)}"))
    width = terminal.width or 10_000
    parts += [
        "Tables",
        "\n".join(text.shorten(line, width) for line in text.pairs(rows).splitlines()),
    ]
    inner = None if terminal.width is None else terminal.width - 2
    phases = (
        steps
        if isinstance(steps, str)
        else textwrap.indent(text.format_table(steps, width=inner), "  ")
    )
    parts += ["Steps on all ranks, each until the next one begins", phases]
    if sides.height and apart(sides):
        shown = text.format_table(sides.drop("connector"), width=inner)
        parts += ["Instances that prefill and that decode", textwrap.indent(shown, "  ")]
    missing = [
        (f"Rank {lost['rank']} lacks", _lost_in_words(lost))
        for lost in recorded
        if lost["missing_count"]
    ]
    parts += ["Reading", text.pairs([*cards.trace_reading(trace), *missing])]
    aside = [
        words.replace("with llmprof.read_metrics", "alone, with llmprof info or findings")
        for words in aside
    ]
    parts += [f"Left aside: {text.plain(words)}" for words in aside]
    parts += [f"Note: {text.plain(warning)}" for warning in cards.warnings(trace)]
    return "\n".join(parts)


def _lost_in_words(lost: dict[str, Any]) -> str:
    """What a rank launched, but has no events of."""
    share = format_share(lost["missing_count"] / lost["count"])
    return (
        f"{lost['missing_count']:,} of {lost['count']:,} launched events on the device ({share}):"
        " steps without them get no cause"
    )


def _phases(trace: Trace) -> pl.DataFrame | str:
    try:
        steps = analyze.steps(trace)
    except NotCapturedError as error:
        return f"  not captured: {text.plain(error)}"
    if not steps.height:
        return "  none found"
    spans = pl.col("dur_ns")
    return steps.group_by("phase", maintain_order=True).agg(
        steps=pl.n_unique("step"),
        mean_ns=spans.mean(),
        least_ns=spans.min(),
        most_ns=spans.max(),
    )
