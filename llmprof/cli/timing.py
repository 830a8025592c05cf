"""``llmprof time-operators``: operators of a recording alone."""

from argparse import Namespace

import polars as pl

from llmprof import text
from llmprof.cli.output import (
    Terminal,
    for_programs,
    open_trace,
)
from llmprof.run.operator_timing import time_operators as timing_of
from llmprof.units import format_ns

_TIMES_ALONE = ("recorded_ns", "warm_ns", "in_turn_ns", "weights_cold_ns", "cold_ns")


def do_time_operators(args: Namespace, terminal: Terminal) -> str:
    """Write a script that runs operators of a recording alone, or compare its times with the
    recorded ones.
    """
    trace = open_trace(args.paths, args, terminal)
    top = 200 if args.results and args.top == 1 else args.top
    made = timing_of(
        trace,
        operator=args.operator,
        kernel=args.kernel,
        layer=args.layer,
        phase=args.phase,
        top=top,
    )
    if args.output:
        made.write(args.output, overwrite=args.force)
    if not (args.run or args.results):
        return _written(args.output, made.operators) if args.output else made.script.rstrip()
    if args.results:
        frame = made.compare(args.results)
    else:
        frame = made.run(python=args.python, device=args.device, seconds=args.seconds)
    return for_programs(frame, args) if args.csv or args.json else _compared(frame, terminal.width)


def _written(file: str, operators: pl.DataFrame) -> str:
    """Say which operators the script runs, and which commands come next."""
    lines = [f"{text.counted(operators.height, 'operator')} in {file}:"]
    for row in operators.iter_rows(named=True):
        lines.append(
            f"  {row['operator']} {text.shorten(row['shapes'], 80)},"
            f" {text.counted(row['count'], 'call')}"
        )
        lines += [f"    {words}" for words in (row["assumed"] or "").split("; ") if words]
    return "\n".join(
        [*lines, f"Run it where the hardware is: python {file} --json results.json", _THEN]
    )


_THEN = "then compare: llmprof time-operators PATH --results results.json"


def _compared(frame: pl.DataFrame, width: int | None) -> str:
    """The comparison as a table, and the reasons of its verdicts."""
    shown = frame.select(
        "operator",
        "count",
        *(pl.col(name).map_elements(format_ns, pl.String).fill_null("-") for name in _TIMES_ALONE),
        pl.col("ratio").round(2),
        "verdict",
    )
    device = frame["device"][0]
    lines = [f"Run alone on {text.plain(device)}"] if device else []
    lines.append(
        text.format_table(
            shown.rename({name: name.removesuffix("_ns") for name in _TIMES_ALONE}), width=width
        )
    )
    lines += [
        f"{row['operator']} {text.shorten(row['shapes'] or '', 60)}: {row['verdict']};"
        f" {row['words']}"
        for row in frame.iter_rows(named=True)
    ]
    return "\n".join(lines)
