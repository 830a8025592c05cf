"""``llmprof analyze``, ``findings``, ``diff`` and ``what-if``: tables and sentences."""

import difflib
import shlex
import textwrap
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import polars as pl

from llmprof import analyze, charts, text
from llmprof.analyze.catalog import Analysis, analyses, views
from llmprof.analyze.compare.diff import FAILING, OF_STEPS, gate, markdown
from llmprof.analyze.compare.story import diff_words
from llmprof.analyze.ncu import profile
from llmprof.analyze.ncu.hardware import VIEWS
from llmprof.analyze.ncu.profile import HardwareProfile
from llmprof.charts.bars import step_lines
from llmprof.cli.listings import Listing, listings
from llmprof.cli.output import (
    LONGEST_NAME,
    SAMPLE,
    Failing,
    Terminal,
    for_programs,
    input_paths,
    is_profile,
    on_workers,
    open_trace,
    to_json,
    wrap_words,
)
from llmprof.errors import AnalysisError, LlmprofError, NotCapturedError, checked, listed
from llmprof.findings.card import (
    chain_findings,
    denominators,
    first_sentence,
    omit_share,
    so,
    times_in_words,
)
from llmprof.findings.case import case_card
from llmprof.findings.document import (
    findings_document,
    findings_schema,
    hardware_findings_document,
)
from llmprof.findings.facts import where_the_time_went
from llmprof.names.kernels import displayed
from llmprof.readers.ncu import reader as ncu
from llmprof.readers.saved import is_run
from llmprof.replay.what_if import change_of, moved_in_words
from llmprof.trace import Trace
from llmprof.units import format_ns

ROWS_SHOWN = 20


def do_analyze(args: Namespace, terminal: Terminal, trace: Trace | None = None) -> str:
    """One analysis of a trace, or one view of a report of Nsight Compute, as a table, JSON or
    CSV.
    """
    last = str(args.paths[-1])  # ``analyze PATH steps``, unless a file has that name
    if len(args.paths) > 1 and not last.startswith(SAMPLE) and not Path(last).exists():
        args.what, args.paths = last, args.paths[:-1]
    if args.what is not None and args.what not in views() and args.what not in VIEWS:
        near = difflib.get_close_matches(args.what.replace("_", "-"), [*views(), *VIEWS], n=3)
        found = f"{text.plain(args.what)} is no file and no analysis"
        expected = "" if near else "one that llmprof analyze --help lists"
        raise AnalysisError(
            found, expected=expected, hint=f"did you mean {' or '.join(near)}?" if near else ""
        )
    said = ""
    if args.what is None and not args.sql and not is_profile(args.paths):
        trace = trace or open_trace(args.paths, args, terminal)
        args.what, args.sql, said = _usual(trace)
    args.what = args.what or "findings"
    view = None if args.sql else views().get(args.what)
    listing = listings().get(view.name, Listing(view.name)) if view is not None else Listing("")
    of_profile = is_profile(args.paths) or not (view or args.sql)
    if of_profile and args.sql:
        raise LlmprofError(
            "a report of Nsight Compute has no tables to query", hint="leave out --sql"
        )
    if args.sql:
        trace = trace or open_trace(args.paths, args, terminal)
        frame = (trace.select(rank=args.rank) if args.rank else trace).sql(args.sql)
    elif of_profile:
        frame = view_of_profile(args)
    else:
        assert view is not None  # noqa: S101 - a name that is no view of a trace is a view of a profile
        trace = trace or open_trace(args.paths, args, terminal)
        if missing := [rank for rank in args.rank or () if rank not in trace.ranks]:
            raise LlmprofError(
                f"there is no rank {missing[0]}", expected=f"one of {listed(trace.ranks)}"
            )
        frame = _ranked(view, listing, trace, args, terminal)
    if args.sort:
        _chosen(frame, args.sort)
        frame = frame.sort(
            args.sort, descending=not args.ascending, nulls_last=True, maintain_order=True
        )
    elif listing.largest_first and not (args.json or args.csv):
        frame = frame.sort(listing.largest_first, descending=True, maintain_order=True)
    columns = _chosen(frame, args.columns)
    if args.csv or args.json:
        return for_programs(frame.select(columns or frame.columns), args)
    if said:
        terminal.tell(said)
    limit = ROWS_SHOWN if args.limit is None else args.limit
    kept = frame.head(limit) if limit else frame
    if args.what == "findings" and not (columns or args.sql):
        if of_profile and not frame.height:
            return nothing_found(open_profile(args.paths), terminal)
        return findings_text(
            kept, terminal.width, args.paths, () if trace is None else where_the_time_went(trace)
        )
    shown = columns or (_shown(view, listing, frame, args.by) if view is not None else None)
    spare = [[column] for column in listing.spare.split()]
    lines = (
        [_table(kept, terminal, shown, () if columns else spare)] if frame.height else ["no rows"]
    )
    if kept.height < frame.height:
        order = ", the longest" if listing.largest_first and not args.sort else ""
        lines.append(
            f"{kept.height:,} of {frame.height:,} rows{order}; --limit 0 shows all, --csv FILE"
            " writes them"
        )
    return "\n".join(lines)


_WITHOUT_ACTIVITY: Final = {
    "totals": ("totals", None),
    "samples": ("hotspots", None),
    "memory": ("memory", None),
    "markers": (
        None,
        (
            "SELECT domain, count(*) AS count, sum(dur_ns) AS total_ns, avg(dur_ns) AS mean_ns,"
            " min(dur_ns) AS min_ns, max(dur_ns) AS max_ns FROM markers GROUP BY domain ORDER BY"
            " total_ns DESC"
        ),
    ),
    "counters": (
        None,
        (
            "SELECT device, name, unit, count(*) AS samples, min(value) AS least, avg(value) AS"
            " mean, max(value) AS most FROM counters GROUP BY device, name, unit ORDER BY device,"
            " name"
        ),
    ),
}
"""Analysis or query that shows a recording of each table without device activity, the first that
has rows.
"""


def _usual(trace: Trace) -> tuple[str | None, str | None, str]:
    """Analysis or query for a trace if none is named, and what to say of it: findings, if it has
    device activity.
    """
    rows = trace.rows
    if not any(rows.get(name) for name in ("kernels", "copies", "tasks", "ops")):
        for table, (view, query) in _WITHOUT_ACTIVITY.items():
            if rows.get(table):
                return (
                    view,
                    query,
                    f"No kernels, copies or operators were recorded; this is what its {table} say.",
                )
    return "findings", None, ""


def do_look(args: Namespace, terminal: Terminal) -> str:
    """Findings of a path, then commands that answer further questions; with options of
    ``analyze`` that analysis.
    """
    last = args.paths[-1]
    if (
        args.what
        or args.sql
        or (len(args.paths) > 1 and not last.startswith(SAMPLE) and not Path(last).exists())
    ):
        return do_analyze(args, terminal)
    if is_profile(args.paths):
        out, questions = findings_of_profile(args, terminal), _OF_PROFILES
    elif _usual(trace := open_trace(args.paths, args, terminal))[0] != "findings":
        return do_analyze(args, terminal, trace)
    else:
        out = do_findings(args, terminal, trace)
        questions = {
            words: why
            for words, (why, table) in _QUESTIONS.items()
            if not table or trace.rows.get(table)
        }
    if args.json:
        return out
    path = shlex.join(text.plain(path) for path in args.paths)
    rows = [(f"llmprof {words.format(path)}", why) for words, why in questions.items()]
    lines = text.pairs(rows)
    if terminal.width is not None and max(map(len, lines.splitlines())) > terminal.width:
        lines = "\n".join(f"  {why}:\n    {command}" for command, why in rows)
    return f"{out}\n\nNext:\n{lines}"


_QUESTIONS: Final = {
    "explore {}": ("timeline, layers, kernels and what-if in a browser tab", ""),
    "report {}": ("the same as a page, with charts and tables", ""),
    "analyze {} kernels": ("which kernels take the time", "kernels"),
    "analyze {} operators": ("which operators call them", "ops"),
    "analyze {} steps": ("how long each step took", ""),
    "analyze {} collectives": ("who waits for whom", "collectives"),
    "diff {} OTHER": ("what is faster or slower in another recording", ""),
    "info {}": ("what was recorded, and what was not", ""),
}
"""Commands for questions after the findings, with the table that each needs."""
_OF_PROFILES: Final = {
    "analyze {} speed-of-light": "how near each kernel comes to the peaks",
    "analyze {} stalls": "what the warps wait for",
    "report {}": "the same as a page, with charts and tables",
    "info {}": "what was measured",
}


def _table(
    frame: pl.DataFrame,
    terminal: Terminal,
    columns: Sequence[str] | None = None,
    spare: Sequence[Sequence[str]] = (),
) -> str:
    """A table as wide as the terminal; in a pipe it has all columns, with names of at most
    :data:`LONGEST_NAME`.
    """
    longest = LONGEST_NAME if terminal.width is None else None
    return text.format_table(
        frame, width=terminal.width, columns=columns, longest=longest, spare=spare
    )


def _ranked(
    view: Analysis, listing: Listing, trace: Trace, args: Namespace, terminal: Terminal
) -> pl.DataFrame:
    """Compute a view of all ranks, then keep the rows of ``--rank``: waiting for other ranks
    needs their kernels.
    """
    options = dict(view.options) | _options(view, listing, args)
    function = checked(view.function)
    frame = on_workers({view.name: options}, trace, args, terminal).get(view.name)
    frame = function(trace, **options) if frame is None else frame
    if not args.rank:
        return frame
    if "rank" in frame.columns:
        return frame.filter(pl.col("rank").is_in(args.rank))
    return function(trace.select(rank=args.rank), **options)


def _shown(
    view: Analysis, listing: Listing, frame: pl.DataFrame, by: str | None
) -> list[str] | None:
    """Choose the columns of a table: those of the listing, with those of ``--by`` after the rank;
    None shows all.
    """
    names = [name for name in listing.columns.split() if name in frame.columns]
    if names and by and view.grouped:
        place = int(names[0] == "rank")
        groups = [name.strip() for name in by.split(",")]
        names[place:place] = [
            name for name in groups if name in frame.columns and name not in names
        ]
    return names or None


def _options(view: Analysis, listing: Listing, args: Namespace) -> dict[str, Any]:
    """Arguments of an analysis beside the trace, from the options with the same names and
    ``--by``.
    """
    if missing := [name for name in view.needs if getattr(args, name) is None]:
        raise AnalysisError(
            f"{view.view} needs --{missing[0]}",
            hint=f"see llmprof analyze --help for --{missing[0]}",
        )
    given = {
        name: value
        for name in (*view.needs, *listing.takes)
        if (value := getattr(args, name, None)) is not None
    }
    if args.by and not view.grouped:
        grouped = ", ".join(entry.view for entry in analyses() if entry.grouped)
        raise AnalysisError(f"{view.view} takes no --by", expected=f"--by with one of {grouped}")
    if args.by == "request" and is_run(Path(args.paths[0])):
        from llmprof.run.launch import open_run

        given["requests"] = open_run(args.paths[0]).requests
    columns = [name.strip() for name in (args.by or "").split(",")]
    return given | ({"by": columns if len(columns) > 1 else columns[0]} if args.by else {})


def _chosen(frame: pl.DataFrame, columns: str | None) -> list[str]:
    names = [name.strip() for name in columns.split(",")] if columns else []
    if names == ["all"]:
        return frame.columns
    if missing := [name for name in names if name not in frame.columns]:
        raise AnalysisError(
            f"there is no column {missing[0]!r}", expected=f"some of {', '.join(frame.columns)}"
        )
    return names


OF_REQUESTS: Final = "requests"
"""Evidence of findings about requests, which are not about the time of a step."""


def findings_text(
    findings: pl.DataFrame,
    width: int | None,
    paths: Sequence[str | Path] = (),
    went: Sequence[str] = (),
) -> str:
    """Findings as numbered paragraphs, after the lines of where the time went.

    ``paths`` are the arguments of the commands that show the evidence.
    """
    arguments = " ".join(shlex.quote(text.plain(str(path))) for path in paths)
    if not findings.height:
        return "No rule found anything worth saying in this recording."
    causes, effects, facts = chain_findings(findings)
    out = []
    for row in causes:
        number = f"{row['order']}. "
        inside = " " * len(number)
        gain = row["prediction"] if row.get("predicted_ns") is not None else None
        out.append(wrap_words(f"{row['title']} [{row['severity']}]", width, number, inside))
        follow = [f"{effect['order']}. {so(effect)}" for effect in effects.get(row["order"], ())]
        out += [wrap_words(line, width, inside, inside) for line in follow]
        see = f"analyze {arguments} --what {_view_of(row['evidence'])}"
        if row["evidence"] == OF_REQUESTS:
            see = f"explore {arguments}, tab Requests"
        labelled = [
            (gain, ""),
            (row["suggestion"], "Try: "),
            (row["detail"], ""),
            (f"llmprof {see}{_place(row)}", "See: "),
        ]
        out += [
            wrap_words(label + words, width, inside, inside) for words, label in labelled if words
        ]
    if facts:
        out.append("For context:")
        for row in facts:
            number = f"{row['order']}. "
            out.append(wrap_words(row["title"], width, number, " " * len(number)))
    times = denominators(findings.filter(pl.col("evidence") != OF_REQUESTS))
    ends = [
        text.sentence(omit_share(time, went)) for time in times.values() if time and ": " in time
    ]
    out += [wrap_words(line, width, "", "") for line in [*ends, *went]]
    return "\n".join(out)


_FIRST: Final = 3
"""Findings that are shown if nobody asks for more."""


def first_findings_text(
    findings: pl.DataFrame, width: int | None, paths: Sequence[str | Path]
) -> str:
    """The first findings in two lines each, what the shares are of, and how to see more."""
    causes, _, facts = chain_findings(findings)
    rows = (causes or facts)[:_FIRST]
    if not rows:
        return "No rule found anything worth saying in this recording."
    arguments = " ".join(shlex.quote(text.plain(str(path))) for path in paths)
    out = []
    for row in rows:
        number, (try_this, _) = f"{row['order']}. ", first_sentence(row["suggestion"])
        inside = " " * len(number)
        out.append(wrap_words(f"{row['title']} [{row['severity']}]", width, number, inside))
        if try_this:
            out.append(wrap_words(f"Try: {try_this}", width, inside, inside))
    out += [wrap_words(text.sentence(line), width, "", "") for line in times_in_words(findings, ())]
    see = f"llmprof explore {arguments} --finding {rows[0]['order']}"
    if more := findings.height - len(rows):
        see += f"; all {more + len(rows)} with their evidence: llmprof findings {arguments} -v"
    return "\n".join([*out, wrap_words(f"See: {see}", width, "", "")])


def _place(row: Mapping[str, Any]) -> str:
    """Say on which rank and when a finding is worst."""
    if None in (row.get("rank"), row.get("start_ns"), row.get("end_ns")):
        return ""
    return (
        f"; worst on rank {row['rank']} at {row['start_ns'] / 1e6:,.3f} to"
        f" {row['end_ns'] / 1e6:,.3f} ms"
    )


def _view_of(name: str) -> str:
    """Translate the name of an analysis into the name of its view on the command line."""
    of_profile = name.replace("_", "-")
    view = next((entry.view for entry in analyses() if entry.name == name), None)
    return view or (of_profile if of_profile in VIEWS else name)


def do_findings(args: Namespace, terminal: Terminal, trace: Trace | None = None) -> str:
    """Print where the time went and findings as sentences, or as the JSON document of the
    published schema.
    """
    if args.schema:
        return to_json(findings_schema())
    if not args.paths:
        raise LlmprofError("no trace was named", expected="a path, or sample:NAME")
    if is_profile(args.paths):
        return findings_of_profile(args, terminal)
    trace = trace or open_trace(args.paths, args, terminal)
    on_workers({"findings": {}}, trace, args, terminal)
    requests = _requests_of(args.paths, trace)
    if args.json:
        return to_json(findings_document(trace, requests))
    found = trace.findings(requests=requests)
    if args.verbose:
        went = where_the_time_went(trace, requests)
        return findings_text(found.frame, terminal.width, args.paths, went)
    case, width = case_card(trace, found), terminal.width
    head = [
        wrap_words(case.about, width, "", ""),
        *step_lines(found.parts, case.lead, width or 100),
    ]
    return "\n".join([*head, first_findings_text(found.frame, width, args.paths)])


def _requests_of(paths: Sequence[str], trace: Trace) -> pl.DataFrame | None:
    """The requests of a run folder, if they can be joined to its trace."""
    if len(paths) != 1 or not is_run(Path(paths[0])):
        return None
    from llmprof.run.launch import open_run

    try:
        run = open_run(paths[0])
        return analyze.requests(
            SimpleNamespace(trace=trace, requests=run.requests, engine_steps=run.engine_steps)
        )
    except (
        LlmprofError
    ):  # no served run, an engine without notes of its steps, clocks that disagree
        return None


def do_diff(args: Namespace, terminal: Terminal) -> str:
    """Compare two runs: the time of a step, its parts, and the kernels; or two profiles of
    kernels.
    """
    if is_profile([args.a, args.b]):
        return _diff_reports(args, terminal)
    a, b = (open_trace([path], args, terminal) for path in (args.a, args.b))
    names = _names(args.a, args.b)
    frame = analyze.diff(a, b, tolerance=args.tolerance, names=names)
    if args.chart:
        charts.save(charts.diff(frame, names=names), args.chart, overwrite=args.force)
    context = analyze.diff(a, b, names=names, part="context")
    unlike = context["words"].drop_nulls().to_list()
    over = DEFAULT_OVER if args.fail_over is None else args.fail_over
    if args.markdown:
        answer = markdown(frame, names=names, over=over, apart=unlike)
    else:
        answer = _diff_text(frame, names, unlike, args, terminal)
        if context.filter(what="engine", same=False).height and not (args.csv or args.json):
            places = analyze.diff(a, b, tolerance=args.tolerance, names=names, part="kernels")
            unknown = context.filter(pl.col("same").is_null())["what"].to_list()
            answer += f"\n\nNot known whether alike: {', '.join(unknown)}." if unknown else ""
            answer += "\n\nKernels above 1 % of a step, and their place in the other run:\n"
            answer += _table(places.select(_PLACES), terminal, spare=[["category"], ["there"]])
    if args.fail_over is None:
        return answer
    judged = gate(frame, over=over)
    failing = judged.filter(pl.col("verdict").is_in(FAILING)).height > 0
    if not args.markdown and not args.json and not args.csv:
        verdicts = {
            word: f"{word} in {names[1]}" for word in ("slower", "faster", "longer", "shorter")
        }
        verdicts |= {"only in a": f"only in {names[0]}", "only in b": f"only in {names[1]}"}
        words = [
            f"{phase or 'the recording'}: {verdicts.get(verdict, verdict)}"
            for phase, verdict in judged.select("phase", "verdict").iter_rows()
        ]
        answer = (
            f"{answer}\n\nAgainst {over:.1%} allowed: {'; '.join(words) or 'nothing to compare'}"
        )
    return Failing(answer) if failing else answer


def do_what_if(args: Namespace, terminal: Terminal) -> str:
    """Predict the time of a step with changes that were not made in the recording."""
    changes = [change_of(words) for words in args.changes]
    frame = analyze.what_if(open_trace([args.path], args, terminal), *changes)
    if args.csv or args.json:
        return for_programs(frame, args)
    lines = [
        f"With {frame['change'][0] or 'no change'}:" if frame.height else "No step was recorded."
    ]
    for row in frame.iter_rows(named=True):
        recorded, predicted, low, high = (format_ns(row[f"{name}_ns"]) for name in _PREDICTED)
        between = f", {low} to {high}" if low != high else ""
        if row["phase"] is None:
            what, steps = (
                f"the recording, which has no steps: {recorded}",
                text.counted(row["steps"], "rank"),
            )
        else:
            what = f"{row['phase']}: {recorded} a step"
            steps = (
                "one step" if row["steps"] == 1 else f"mean of {row['steps']} steps of all ranks"
            )
        times = row["recorded_ns"] / row["predicted_ns"]
        lines.append(f"  {what} -> {predicted}{between} ({times:.2f} times as fast; {steps})")
        if row["plain_recorded_ns"] is not None:
            recorded, predicted, low, high = (
                format_ns(row[f"plain_{name}_ns"]) for name in _PREDICTED
            )
            lines.append(
                f"    in time without the profiler: {recorded} -> {predicted}, {low} to {high}"
            )
    lines += [f"  {words}" for row in frame.iter_rows(named=True) if (words := moved_in_words(row))]
    unknown = [change.unknown for change in changes]
    more = (
        frame["assumed"][0].removeprefix("; ".join(unknown)).removeprefix("; ")
        if frame.height
        else ""
    )
    return "\n".join([*lines, *(f"Not known: {words}." for words in (*unknown, more) if words)])


_PREDICTED = ("recorded", "predicted", "low", "high")

DEFAULT_OVER = 0.03
"""Largest change that ``--markdown`` allows if ``--fail-over`` is not given, as a share."""


def _diff_text(
    frame: pl.DataFrame,
    names: tuple[str, str],
    unlike: list[str],
    args: Namespace,
    terminal: Terminal,
) -> str:
    if args.csv or args.json:
        return for_programs(frame, args)
    steps = frame.filter(pl.col("level").is_in(["plain", "step", "recording"]))
    lines = [
        *_runs(args, names),
        *(wrap_words(words, terminal.width, "Not alike: ", "  ") for words in unlike),
    ]
    lines += [wrap_words(words, terminal.width, "", "") for words in diff_words(frame)]
    lines += [
        "",
        *(
            []
            if "recording" in steps["level"]
            else [wrap_words(f"{OF_STEPS}:", terminal.width, "", "")]
        ),
    ]
    for row in steps.iter_rows(named=True):
        lines.append(wrap_words(_change(row, names), terminal.width, "  ", "    "))
    limit = ROWS_SHOWN if args.limit is None else args.limit
    parts, kernels = (frame.filter(level=level) for level in ("part", "kernels"))
    total = "the recording" if "recording" in steps["level"] else "the step"
    lines += [
        "",
        f"Parts, which add up to {total}:",
        *_largest(parts, limit, _PARTS, terminal, names),
    ]
    lines += ["", "Events of the device by stage and category, which may overlap:"]
    lines += _largest(kernels, limit, _KERNELS, terminal, names)
    if args.chart:
        lines.append(f"Chart: {args.chart}")
    return "\n".join(lines)


_LONGEST_HEAD = 14
_SPARE = (
    ("low_ns", "high_ns"),
    ("*_count",),
    ("*_memory_bytes",),
    ("*_flops",),
    ("*_bound_by",),
    ("ratio",),
)
"""Groups of columns of comparisons that a narrow terminal does without, in this order; * is the
name of a run.
"""
_PARTS = ("phase", "kind", "part", "a_ns", "b_ns", "delta_ns", "low_ns", "high_ns", "status")
_KERNELS = (
    "phase",
    "stage",
    "category",
    "a_ns",
    "b_ns",
    "delta_ns",
    "ratio",
    "a_count",
    "b_count",
    "status",
)
_PLACES = (
    "phase",
    "stage",
    "category",
    "name",
    "run",
    "ns",
    "share",
    "verdict",
    "there_ns",
    "there",
)
_LAUNCHES = (
    "kernel_name",
    "a_ns",
    "b_ns",
    "delta_ns",
    "ratio",
    "a_memory_bytes",
    "b_memory_bytes",
    "a_flops",
    "b_flops",
    "a_bound_by",
    "b_bound_by",
    "status",
)


def _diff_reports(args: Namespace, terminal: Terminal) -> str:
    profiles = (open_profile([path]).metrics for path in (args.a, args.b))
    frame = analyze.diff(*profiles, tolerance=args.tolerance)
    if args.csv or args.json:
        return for_programs(frame, args)
    names = _names(args.a, args.b)
    limit = ROWS_SHOWN if args.limit is None else args.limit
    both = frame.drop_nulls("delta_ns")
    total = both.select(pl.sum("a_ns"), pl.sum("b_ns")).row(0, named=True)
    lines = _runs(args, names)
    lines.append(f"{text.counted(both.height, 'launch')} of both together: {_times(total, names)}")
    return "\n".join([*lines, "", *_largest(frame, limit, _LAUNCHES, terminal, names)])


def _largest(
    frame: pl.DataFrame,
    limit: int,
    columns: tuple[str, ...],
    terminal: Terminal,
    names: tuple[str, str],
) -> list[str]:
    """A table of the largest changes, and how many rows it leaves out."""
    kept = frame.sort(
        pl.col("delta_ns").abs(), descending=True, nulls_last=True, maintain_order=True
    )
    kept = kept.head(limit) if limit else kept
    if not kept.height:
        return ["no rows"]
    heads = names
    if terminal.width is not None and names[0] != names[1]:
        heads = text.shorten(names[0], _LONGEST_HEAD), text.shorten(names[1], _LONGEST_HEAD)
        heads = heads if heads[0] != heads[1] else ("A", "B")
    spare = [
        sorted({name.replace("*", head) for name in group for head in heads}) for group in _SPARE
    ]
    lines = [_table(_called(kept.select(columns), heads), terminal, spare=spare)]
    lines += [f"(A: {names[0]}, B: {names[1]})"] if heads == ("A", "B") != names else []
    if kept.height < frame.height:
        lines.append(
            f"{kept.height:,} of {frame.height:,} rows, the largest changes; --limit 0 shows all"
        )
    return lines


def _runs(args: Namespace, names: tuple[str, str]) -> list[str]:
    """Say which name stands for which path."""
    return [
        f"{name}: {text.plain(path)}" for name, path in zip(names, (args.a, args.b), strict=True)
    ]


def _called(frame: pl.DataFrame, names: tuple[str, str]) -> pl.DataFrame:
    """Replace a and b by the names of the runs, in the names of columns and in ``status``;
    causes become words.
    """
    if "part" in frame.columns:
        frame = frame.with_columns(pl.col("part").replace(text.PART_WORDS))
    if names[0] == names[1]:
        return frame
    words = {"only_a": f"only in {names[0]}", "only_b": f"only in {names[1]}"}
    words |= {"more_time": "more time", "less_time": "less time"}
    if "low_ns" in frame.columns:  # within the tolerance, but beyond the noise
        clear = (pl.col("status") == "same") & (
            pl.col("low_ns").sign() * pl.col("high_ns").sign() > 0
        )
        slightly = (
            pl.when(pl.col("delta_ns") > 0)
            .then(pl.lit("slightly slower"))
            .otherwise(pl.lit("slightly faster"))
        )
        frame = frame.with_columns(status=pl.when(clear).then(slightly).otherwise("status"))
    heads = {
        column: f"{name}{column[1:]}"
        for side, name in zip("ab", names, strict=True)
        for column in frame.columns
        if column.startswith(f"{side}_")
    }
    return frame.with_columns(pl.col("status").replace(words)).rename(heads)


def _change(row: dict[str, Any], names: tuple[str, str]) -> str:
    what = "the whole recording" if row["level"] == "recording" else f"{row['phase']}: a step"
    what += " without the profiler" * (row["level"] == "plain")
    for side, other in (("a", "b"), ("b", "a")):
        if not row[f"{side}_steps"]:
            count = row[f"{other}_steps"]
            steps = "" if row["phase"] is None else f" ({text.counted(count, 'step')})"
            return f"{row['phase'] or 'the whole recording'}: only in {names[other == 'b']}{steps}"
    noise = ""
    if row["low_ns"] is not None and row["beyond_noise"]:
        low, high = (
            ("+" if ns > 0 else "-") + format_ns(abs(ns)) for ns in (row["low_ns"], row["high_ns"])
        )
        noise = f"; 95 % interval of the change {low} to {high}"
    elif row["low_ns"] is not None:
        noise = "; not beyond the noise"
    return f"{what} takes {_times(row, names)}{noise}"


def _times(row: dict[str, Any], names: tuple[str, str]) -> str:
    ratio = f" (x {row['b_ns'] / row['a_ns']:.2f})" if row["a_ns"] else ""
    return f"{format_ns(row['a_ns'])} in {names[0]}, {format_ns(row['b_ns'])} in {names[1]}{ratio}"


def _names(a: str, b: str) -> tuple[str, str]:
    """Names of two runs: the last parts of their paths that differ."""
    parts = [
        (
            [path.removeprefix(SAMPLE)]
            if path.startswith(SAMPLE)
            else [p for p in Path(path).parts if p != "/"]
        )
        for path in (a, b)
    ]
    for one, other in zip(reversed(parts[0]), reversed(parts[1]), strict=False):
        first, second = (text.plain(name.split(".")[0] or name) for name in (one, other))
        if first != second:
            return first, second
    return "a", "b"


_OF_KERNELS: Final = {
    "kernel_name": "kernel",
    "count": "launches",
    "total_ns": "total_ns",
    "share": "share",
    "bound_by": "limited by",
    "compute_share": "compute",
    "memory_share": "memory",
    "stall": "warps wait for",
}
_MOST_KERNELS: Final = 10


def open_profile(paths: Sequence[str]) -> HardwareProfile:
    """Read the metrics at the paths, and find the report that may have samples of instructions."""
    named = input_paths(paths)
    return HardwareProfile(ncu.read_metrics(named), _report(named), " ".join(paths))


def _report(named: Sequence[Path]) -> Path | None:
    inside = [
        file for path in named for file in (sorted(path.iterdir()) if path.is_dir() else [path])
    ]
    reports = [
        file
        for file in inside
        if file.is_file() and ncu.file_kind(ncu.first_bytes(file)) == "report"
    ]
    return reports[0] if len(reports) == 1 else None


def info_of_profile(args: Namespace, terminal: Terminal) -> str:
    """Summarise hardware metrics: facts, kernels by time, and what is not recorded."""
    metrics = open_profile(args.paths).metrics
    try:
        kernels = profile.kernel_limits(metrics)
        why = ""
    except NotCapturedError as error:
        kernels, why = pl.DataFrame(), str(error)
    if args.json:
        about = {name.lower(): value for name, value in profile.profile_facts(metrics)}
        names = metrics.metrics["metric"].unique(maintain_order=True).to_list()
        return to_json(
            {
                "facts": about,
                "kernels": kernels.to_dicts(),
                "metrics": names,
                "reading": metrics.coverage,
            }
            | {"not_recorded": profile.NEEDS_TIMELINE[0]}
        )
    width = terminal.width
    parts = [
        profile.metrics_headline(metrics),
        text.pairs(profile.profile_facts(metrics)),
        "Kernels",
    ]
    if kernels.height:
        top = kernels.head(_MOST_KERNELS).select(
            pl.col(column).alias(head) for column, head in _OF_KERNELS.items()
        )
        top = top.with_columns(
            displayed(top["kernel"]).alias("kernel"), pl.col("compute %", "memory %").round(1)
        )
        parts.append(
            textwrap.indent(
                text.format_table(top, width=None if width is None else width - 2), "  "
            )
        )
        if kernels.height > _MOST_KERNELS:
            more = f"  {_MOST_KERNELS} of {kernels.height:,} kernels"
            parts.append(f"{more}; llmprof analyze PATH speed-of-light has all")
    else:
        parts.append(wrap_words(f"no times: {why}", width, "  ", "  "))
    parts += ["Reading", text.pairs(profile.metrics_reading(metrics))]
    missing, how = profile.NEEDS_TIMELINE
    parts.append(wrap_words(f"Not recorded: {missing}; {how}.", width, "", ""))
    return "\n".join(parts)


def view_of_profile(args: Namespace) -> pl.DataFrame:
    """Compute a view of hardware metrics; the findings if no view is named."""
    if args.by or args.rank:
        raise AnalysisError(
            f"{args.what} takes no --by and no --rank", expected="a view of a trace with them"
        )
    if args.what == "findings":
        return open_profile(args.paths).findings
    view = VIEWS.get(args.what)
    if view is None:
        found = f"{args.what} needs a timeline, and these are hardware metrics of single launches"
        raise AnalysisError(
            found, expected=f"one of findings, {', '.join(VIEWS)}", hint=profile.NEEDS_TIMELINE[1]
        )
    if view.of_metrics is not None:
        return view.of_metrics(open_profile(args.paths).metrics)
    assert view.of_source is not None  # noqa: S101 - a view has one of the two
    return view.of_source(profile.instruction_samples(_report(input_paths(args.paths))))


def findings_of_profile(args: Namespace, terminal: Terminal) -> str:
    """Print the findings of hardware metrics as sentences or JSON."""
    measured = open_profile(args.paths)
    findings = measured.findings
    if args.json:
        return to_json(hardware_findings_document(measured.metrics, findings))
    return (
        findings_text(findings, terminal.width, args.paths)
        if findings.height
        else nothing_found(measured, terminal)
    )


def nothing_found(measured: HardwareProfile, terminal: Terminal) -> str:
    """Say why hardware metrics have no findings."""
    if measured.metrics.kernels["dur_ns"].count():
        return "No rule found anything worth saying in these metrics."
    words = (
        "No findings: the metrics hold no duration of any launch. Record them with ncu --section"
        " SpeedOfLight."
    )
    return wrap_words(words, terminal.width, "", "")
