"""Whether a run is slower than another by more than is allowed: a verdict for continuous integration, and its words."""

from __future__ import annotations

import polars as pl

from llmprof.arguments import checked
from llmprof.errors import AnalysisError
from llmprof.units import format_ns, format_share

VERDICTS = ("slower", "within noise", "too few steps", "as fast", "faster", "only in a", "only in b")
"""What :func:`gate` says of a phase; only ``slower`` fails."""

_MOST_PARTS = 8
_ROUNDING = 1e-9


@checked
def gate(frame: pl.DataFrame, *, over: float = 0.03) -> pl.DataFrame:
    """Judge each phase of a comparison.

    Parameters
    ----------
    frame : polars.DataFrame
        As :func:`llmprof.analyze.diff` or ``diff_times`` gives it.
    over : float
        Allowed share by which a step of b may take longer than one of a.

    Returns
    -------
    polars.DataFrame
        One row a phase (one in all where whole recordings are compared): ``phase, a_ns, b_ns, change`` (share of a),
        ``low, high`` (95 % interval of it, null where there are too few steps), ``verdict``. A phase is ``slower`` if
        its change is more than allowed and the interval leaves out 0. A change beyond what is allowed is
        ``within noise`` if the interval holds 0, and ``too few steps`` where there is none; of whole recordings, which
        have no interval, the change alone decides.

    Raises
    ------
    AnalysisError
        The frame is no comparison of traces.

    Examples
    --------
    >>> import polars as pl
    >>> row = {"level": "step", "phase": "decode", "a_ns": 100.0, "b_ns": 110.0, "low_ns": 8.0, "high_ns": 12.0,
    ...        "beyond_noise": True, "a_steps": 9, "b_steps": 9}
    >>> gate(pl.DataFrame([row]), over=0.03)["verdict"].to_list()
    ['slower']
    """
    needed = {"level", "phase", "a_ns", "b_ns", "low_ns", "high_ns", "beyond_noise", "a_steps", "b_steps"}
    if missing := sorted(needed - set(frame.columns)):
        raise AnalysisError(f"the frame has no columns {missing}", expected="the frame of llmprof.analyze.diff")
    change = pl.col("b_ns") / pl.col("a_ns") - 1
    in_a, in_b = (pl.col(f"{side}_steps").fill_null(0) > 0 for side in "ab")
    whole = pl.col("level") == "recording"
    noisy = (pl.col("beyond_noise") == pl.lit(value=False)).fill_null(value=False)
    beyond = pl.col("change").abs() > over + _ROUNDING
    verdict = (
        pl.when(~whole & ~in_b)
        .then(pl.lit("only in a"))
        .when(~whole & ~in_a)
        .then(pl.lit("only in b"))
        .when(~beyond | pl.col("change").is_null())
        .then(pl.lit("as fast"))
        .when(~whole & pl.col("beyond_noise").is_null())
        .then(pl.lit("too few steps"))
        .when(noisy)
        .then(pl.lit("within noise"))
        .when(pl.col("change") > 0)
        .then(pl.lit("slower"))
        .otherwise(pl.lit("faster"))
    )
    return (
        frame.filter(pl.col("level").is_in(["step", "recording"]))
        .with_columns(change=pl.when(pl.col("a_ns") > 0).then(change))
        .select(
            "phase", "a_ns", "b_ns", "change", low=pl.col("low_ns") / pl.col("a_ns"),
            high=pl.col("high_ns") / pl.col("a_ns"), verdict=verdict,
        )
    )  # fmt: skip


@checked
def markdown(frame: pl.DataFrame, *, names: tuple[str, str] = ("a", "b"), over: float = 0.03) -> str:
    """A comparison as Markdown, for the comment of a pull request.

    Parameters
    ----------
    frame : polars.DataFrame
        As :func:`llmprof.analyze.diff` gives it.
    names : (str, str)
        What the two runs are called.
    over : float
        Allowed share, as in :func:`gate`.

    Returns
    -------
    str
        The verdict, a table of the phases, and one of the parts that changed most.

    Raises
    ------
    AnalysisError
        The frame is no comparison of traces.
    """
    judged = gate(frame, over=over)
    slower = judged.filter(verdict="slower")
    first, second = (_cell(name) for name in names)
    if slower.height:
        worst = slower.sort("change", descending=True).row(0, named=True)
        what = "a step" if worst["phase"] is None else f"a step of {worst['phase']}"
        title = f"**Slower**: {what} takes {worst['change']:+.1%}, more than the {over:.1%} allowed."
    else:
        title = f"**Not slower** by more than the {over:.1%} allowed."
    lines = [
        title,
        "",
        f"| phase | {first} | {second} | change | 95 % interval | verdict |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for row in judged.iter_rows(named=True):
        held = "" if row["low"] is None or row["high"] is None else f"{row['low']:+.1%} to {row['high']:+.1%}"
        change = "" if row["change"] is None else f"{row['change']:+.1%}"
        said = row["verdict"].replace("only in a", f"only in {first}").replace("only in b", f"only in {second}")
        lines.append(
            f"| {_cell(row['phase'] or 'whole recording')} | {_time(row['a_ns'])} | {_time(row['b_ns'])} | {change} | "
            f"{held} | {said} |"
        )
    parts = frame.filter((pl.col("level") == "part") & (pl.col("delta_ns").abs() > 0))
    parts = parts.sort(pl.col("delta_ns").abs(), descending=True, maintain_order=True).head(_MOST_PARTS)
    if parts.height:
        lines += ["", f"| phase | part | {first} | {second} | difference | of the step |", "|---|---|--:|--:|--:|--:|"]
        steps = dict(judged.select("phase", "a_ns").iter_rows())
        for row in parts.iter_rows(named=True):
            of = steps.get(row["phase"])
            share = format_share(row["delta_ns"] / of) if of else ""
            label = " ".join(str(row[c]) for c in ("kind", "part") if row[c] is not None)
            sign = "+" if row["delta_ns"] > 0 else "-"
            lines.append(
                f"| {_cell(row['phase'] or '')} | {_cell(label)} | {_time(row['a_ns'])} | {_time(row['b_ns'])} | "
                f"{sign}{format_ns(abs(row['delta_ns']))} | {share} |"
            )
    return "\n".join(lines)


def _time(ns: float | None) -> str:
    return "" if ns is None else format_ns(ns)


def _cell(text: str) -> str:
    """Text that breaks no table and starts no markup."""
    return "".join(f"\\{c}" if c in r"\`*_{}[]<>|#!~" else c for c in " ".join(text.split()))
