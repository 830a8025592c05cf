"""Parts of the reference that are made from the package: ``python docs/made.py`` writes them again,
``python docs/made.py operators`` prints what is known of the work of operators.
"""

from __future__ import annotations

import sys
from pathlib import Path

from llmprof.analyze import catalog, results
from llmprof.findings.cause import Cause
from llmprof.findings.causes import CAUSES
from llmprof.text import PART_MEANINGS, PART_WORDS
from llmprof.theory import calls
from llmprof.theory.calls.work import Cost
from llmprof.trace import schema

ROOT = Path(__file__).resolve().parent.parent
_MOST_NAMES = 16

RECIPES = {
    "compute of a rank in no step": 'trace.events.filter(pl.col("step").is_null(), pl.col("category") != "collective").group_by("rank").agg(pl.col("dur_ns").sum())',
    "time that has a step, a stage …": 'analyze.coverage(trace).with_columns(covered_ns=pl.col("share") * pl.col("total_ns"))',
    "matrix work without tensor cores": 'analyze.tensor_cores(trace).with_columns(without_ns=pl.col("total_ns") * pl.col("known_share") * (1 - pl.col("tensor_share")))',
    "how many times as fast a step is with a change": 'analyze.what_if(trace, "no-host-delay").with_columns(speedup=pl.col("recorded_ns") / pl.col("predicted_ns"))',
    "rows that a rank gets, over their mean": 'analyze.expert_exchange(trace).with_columns(load=pl.col("received_rows") / pl.col("received_rows").mean().over("call"))',
    "memory that an operator allocates and does not release": 'analyze.memory(trace, by="operator").with_columns(net_bytes=pl.col("allocated_bytes") - pl.col("released_bytes"))',
    "from an operator to its kernel on an NPU": 'analyze.npu.launch_path(trace).with_columns(delay_ns=pl.sum_horizontal("to_queue_ns", "queue_ns", "to_launch_ns", "to_device_ns", ignore_nulls=False))',
    "time of the ranges inside of a range": 'analyze.nsys.nvtx_pushpop_trace(trace).with_columns(child_ns=pl.col("dur_ns") - pl.col("own_ns"))',
}
"""What a line of Polars makes of the columns of results, and the line."""


def words() -> str:
    """What the parts of a step are called."""
    rows = [f"| {word} | `{part}` | {PART_MEANINGS[part]} |" for part, word in PART_WORDS.items()]
    head = ["| in sentences, legends and pages | in frames | means |", "|---|---|---|"]
    return "\n".join([*head, *rows]) + "\n"


def findings() -> str:
    """The rules of findings, a line for each file of causes."""
    files: dict[str, list[Cause]] = {}
    for cause in CAUSES:
        files.setdefault(cause.measure.__module__, []).append(cause)
    rows = [
        f"| `{'`, `'.join(one.name for one in causes)}` | {_first_sentence(sys.modules[file])} "
        f"| `{'`, `'.join(dict.fromkeys(one.evidence for one in causes))}` |"
        for file, causes in files.items()
    ]
    return (
        "\n".join(["| rule | what it finds | analysis that shows it |", "|---|---|---|", *rows])
        + "\n"
    )


def _first_sentence(of: object) -> str:
    """The first paragraph of a docstring in one line, without its full stop."""
    return " ".join((of.__doc__ or "").split("\n\n")[0].split()).rstrip(".")


def tables() -> str:
    """A section and a table for each table of the schema."""
    parts = [
        "Times are int64 nanoseconds from the earliest event of any rank. A table that was not recorded raises "
        "`NotCapturedError`; one that was recorded but has no rows is an empty frame.",
    ]
    for table in (*schema.TABLES.values(), *schema.PROFILES.values()):
        if table is schema.PROFILES["metrics"]:
            parts.append(
                "## Tables of hardware metrics\n\nThe result of `read_metrics`. They are not part of a trace; numbers "
                "are in base units, rates per second."
            )
        parts.append(
            f"### {table.name}\n\n{table.row.capitalize()}. Recorded by {table.recorded_by}."
        )
        rows = [
            f"| `{c.name}` | {c.dtype} | {c.unit} | {'yes' if c.nullable else 'no'} | {c.meaning.replace('|', '/')} |"
            for c in table.columns
        ]
        parts.append(
            "\n".join(["| column | type | unit | null | meaning |", "|---|---|---|---|---|", *rows])
        )
    return "\n\n".join(parts) + "\n"


def analyses() -> str:
    """The catalogue of analyses."""
    rows = [
        f"| {entry.question} | `analyze.{entry.room}{entry.name}` | `{' --'.join([entry.view, *entry.needs])}` | {entry.recorded} | {entry.help} |"
        for entry in catalog.analyses()
        if not entry.package
    ]
    head = [
        "Each takes a trace and returns a frame; `llmprof analyze PATH NAME` prints it.",
        "",
        "| question | function | on the command line | of a trace with | a row is |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n"


def result_columns() -> str:
    """The columns of results by subject."""
    parts = [
        "A name means the same in all analyses; docstrings say which analysis has which columns. Columns that a table of "
        "a trace has stand in [its schema](#tables-of-a-trace), and here "
        "only where results say more. Further names are made of these, with `_share` for the part of the whole "
        "(`idle_share`, and of each `cause` of an operator: `padding_share`) and with one of these words:",
    ]
    for words, where in (
        (results.STATISTICS, "before the unit or in front, as in `late_p90_ns`"),
        (results.SIDES, "in front, as in `b_count`"),
    ):
        parts.append(
            "\n".join(
                [
                    f"| {where} | |",
                    "|---|---|",
                    *(f"| `{word}` | {meaning} |" for word, meaning in words.items()),
                ]
            )
        )
    for subject, rows in results.subjects().items():
        lines = [f"| `{row.name}` | {row.type} | {row.unit} | {row.meaning} |" for row in rows]
        head = ["| column | type | unit | meaning |", "|---|---|---|---|"]
        parts += [f"### {subject}", "\n".join([*head, *lines])]
    lines = [f"| {what} | `{line}` |" for what, line in RECIPES.items()]
    parts += ["### In one line of Polars", "\n".join(["| what | line |", "|---|---|", *lines])]
    return "\n\n".join(parts) + "\n"


def operators() -> str:
    """The rules of work, and the operators that they cover."""
    rows, formulas = [], {}
    for operator in calls.OPERATORS:
        cost = operator.work
        if not isinstance(cost, Cost):
            continue
        names = operator.names.split()
        some = (
            names
            if len(names) <= _MOST_NAMES
            else [*names[:_MOST_NAMES:2], f"… {len(names)} in all"]
        )
        given = [*map(_said, cost.places), *(f"{k}={_said(v)}" for k, v in cost.named.items())]
        rule = cost.rule.__name__
        formulas[rule] = f"| `{rule}` | {_first_sentence(cost.rule)} |"
        rows.append(
            f"| {operator.kind} | `{'`, `'.join(some)}` | `{rule}({', '.join(given)})` | {operator.signatures} |"
        )
    rules = ["| rule | FLOPs; bytes |", "|---|---|", *formulas.values(), ""]
    head = ["| kind | operators | rule and places of arguments | signature |", "|---|---|---|---|"]
    return "\n".join([*rules, *head, *rows]) + "\n"


def _said(value: object) -> str:
    """An argument of a rule."""
    return (
        getattr(value, "__qualname__", repr(value)).split(".")[0]
        if callable(value)
        else repr(value)
    )


PAGE = ROOT / "docs" / "reference.md"
MADE = {
    "words": words,
    "findings": findings,
    "analyses": analyses,
    "tables": tables,
    "columns": result_columns,
}


def renewed(page: str) -> str:
    """The reference with its parts made again."""
    for name, made in MADE.items():
        head, mark, rest = page.partition(f"<!-- made: {name} -->\n")
        _, end, rest = rest.partition("<!-- end -->")
        page = f"{head}{mark}\n{made()}\n{end}{rest}"
    return page


if __name__ == "__main__":
    if sys.argv[1:] == ["operators"]:
        sys.stdout.write(operators())
    else:
        PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")
