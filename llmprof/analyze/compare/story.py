"""Summary of a comparison of two runs: a waterfall from one step time to the other, and
sentences.
"""

from __future__ import annotations

import re
from typing import Any, Final

import polars as pl

from llmprof.analyze.step_times import mean_windows, steady_steps
from llmprof.analyze.tensor_cores import MATRIX_WORK
from llmprof.errors import AnalysisError, NotCapturedError, listed
from llmprof.label.steps.labels import ENGINES, KERNELS
from llmprof.label.steps.steps import steps_of
from llmprof.names import readable
from llmprof.names.dtypes import PRECISIONS
from llmprof.names.matching import by_unique_name
from llmprof.text import PART_WORDS, joined
from llmprof.trace import Trace
from llmprof.units import format_ns, format_share

GROUPS: Final = ("compute", "waiting", "transfer", "communication", "copies", "idle", "unexplained")
"""Groups of the parts of a step, in the order of a waterfall."""

WORDS: Final = {
    **{
        ("communication", part): (group, PART_WORDS[part])
        for part, group in zip(("wait", "transfer", "wait or transfer"), GROUPS[1:4], strict=True)
    },
    **{
        ("idle", part): (group, f"idle ({PART_WORDS[part]})")
        for group, parts in (
            ("idle", ("host_bound", "launch", "sync", "queued")),
            ("unexplained", ("unknown", "outside")),
        )
        for part in parts
    },
    ("compute", "other"): ("unexplained", "compute without a known stage"),
}
"""Group and words of kinds and parts of :func:`llmprof.analyze.step_times.time_parts`."""

REST: Final = "not explained by any part"
_LEAST: Final = 0.01
"""Share of the longer step below which changes of compute are merged."""
_ALWAYS: Final = 3
"""Number of stages of compute with separate bars, however small their changes are."""
_SAID: Final = 0.05
"""Share of the changes below which a part is not named in a sentence."""
_MOST_SAID: Final = 3
_TOTALS: Final = ("step", "recording")

WATERFALL: Final = {
    **dict.fromkeys(("group", "label", "part"), pl.String),
    **dict.fromkeys(("a_ns", "b_ns", "delta_ns", "from_ns", "to_ns"), pl.Float64),
    "beyond_noise": pl.Boolean,
}


def run_names(*traces: Trace) -> tuple[str, ...]:
    """Different names for runs; ``run 1`` and so on if nothing is known, and a number behind
    equal names.
    """
    names = [trace.name or f"run {n}" for n, trace in enumerate(traces, start=1)]
    return tuple(
        f"{name} ({n})" if names.count(name) > 1 else name for n, name in enumerate(names, start=1)
    )


def names_in(frame: pl.DataFrame) -> tuple[str, str]:
    """Names of the two runs of a comparison: those of the frame, or else ``a`` and ``b``."""
    if {"a_run", "b_run"} <= set(frame.columns) and frame.height:
        first, second = frame[["a_run", "b_run"]].row(0)
        return str(first), str(second)
    return "a", "b"


def compared_phases(frame: pl.DataFrame) -> list[str | None]:
    """Phases that both runs have, the one with the most time first; ``[None]`` for whole
    recordings.
    """
    totals = _totals(frame).filter(pl.col("a_ns").is_not_null() & pl.col("b_ns").is_not_null())
    time = pl.col("a_ns") * pl.col("a_steps") + pl.col("b_ns") * pl.col("b_steps")
    return totals.sort(time, descending=True, maintain_order=True)["phase"].to_list()


def waterfall_rows(frame: pl.DataFrame, *, phase: str | None = None) -> pl.DataFrame:
    """Waterfall from the step time of one run to that of the other: bars that add up."""
    own, total = _phase_of(frame, phase)
    named = [part_words(kind, part) for kind, part in own[["kind", "part"]].iter_rows()]
    rows = own.with_columns(
        pl.Series("group", [group for group, _ in named], dtype=pl.String),
        pl.Series("label", [label for _, label in named], dtype=pl.String),
    )
    longer = max(total["a_ns"], total["b_ns"])
    size = pl.col("delta_ns").abs()
    largest = size.rank("ordinal", descending=True).over("group") <= _ALWAYS
    alone = (pl.col("group") != "copies") & (
        (size >= _LEAST * longer) | largest | (pl.col("group") != "compute")
    )
    large = rows.filter(alone)
    gathered = rows.filter(~alone).with_columns(
        label=pl.when(pl.col("group") == "copies")
        .then(pl.lit("copies"))
        .when(pl.len().over("group") == 1)
        .then("label")
        .otherwise(pl.format("{}, {} smaller changes", "group", pl.len().over("group"))),
        part=pl.when(pl.len().over("group") == 1).then("part"),
    )
    gathered = gathered.group_by("group", "label", "part", maintain_order=True).agg(
        pl.sum("a_ns", "b_ns", "delta_ns"), beyond_noise=pl.lit(None, pl.Boolean)
    )
    columns = ["group", "label", "part", "a_ns", "b_ns", "delta_ns", "beyond_noise"]
    place = pl.col("group").replace_strict(
        {g: n for n, g in enumerate(GROUPS)}, return_dtype=pl.Int64
    )
    many = pl.col("label").str.contains("smaller changes")
    bars = pl.concat(
        [large.select(columns), gathered.select(columns)], how="vertical_relaxed"
    ).sort(
        place, many, pl.col("delta_ns").abs(), descending=[False, False, True], maintain_order=True
    )
    left = [total[side] - float(own[side].sum()) for side in ("a_ns", "b_ns")]
    left = [0.0 if abs(ns) <= 1e-6 * longer else ns for ns in left]  # only the rounding of sums
    names = names_in(frame)
    table: list[tuple[object, ...]] = [
        ("total", names[0], None, total["a_ns"], None, total["a_ns"], None)
    ]
    table += bars.iter_rows()
    table.append(("unexplained", REST, None, left[0], left[1], left[1] - left[0], None))
    done, out = 0.0, []
    for group, label, part, before, after, delta, noise in table:
        change = float(str(delta))
        if group != "total" and abs(change) < 0.5:  # it would be a row of 0 ns
            continue
        out.append((group, label, part, before, after, change, done, done + change, noise))
        done += change
    out.append(
        ("total", names[1], None, None, total["b_ns"], total["b_ns"], 0.0, total["b_ns"], None)
    )
    return pl.DataFrame(out, schema=WATERFALL, orient="row")


def part_words(kind: str | None, part: str | None) -> tuple[str, str]:
    """Group and words of a part."""
    if (str(kind), str(part)) in WORDS:
        return WORDS[str(kind), str(part)]
    if kind == "copy":
        return "copies", f"copies: {part}" if part else "copies"
    label = str(part or "other")
    return (
        str(kind) if kind in GROUPS else "unexplained",
        f"idle ({label})" if kind == "idle" else label,
    )


def _totals(frame: pl.DataFrame) -> pl.DataFrame:
    needed = {
        "level",
        "phase",
        "kind",
        "part",
        "a_ns",
        "b_ns",
        "delta_ns",
        "a_steps",
        "b_steps",
        "beyond_noise",
    }
    if missing := sorted(needed - set(frame.columns)):
        raise AnalysisError(
            f"the frame has no columns {listed(missing)}",
            expected="the frame of llmprof.analyze.diff",
        )
    return frame.filter(pl.col("level").is_in(_TOTALS))


def _phase_of(frame: pl.DataFrame, phase: str | None) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Parts of a phase, and the row of its step."""
    phases = compared_phases(frame)
    chosen = phase if phase is not None else next(iter(phases), None)
    if chosen not in phases:
        found = f"the runs share no steps of {chosen}" if chosen else "the runs share no phase"
        raise AnalysisError(
            found,
            expected=f"one of {phases}" if phases else "two runs that have steps of one phase",
        )
    own = frame.filter(pl.col("phase").eq_missing(pl.lit(chosen, dtype=pl.String)))
    total = own.filter(pl.col("level").is_in(_TOTALS)).row(0, named=True)
    parts = own.filter(level="part").with_columns(pl.col("a_ns", "b_ns", "delta_ns").fill_null(0.0))
    return parts, total


def diff_words(frame: pl.DataFrame) -> list[str]:
    """Changes from one run to the other as sentences; parts of less than 5 % of all changes are
    not named.
    """
    first, second = names_in(frame)
    said = [
        _change_words(changes_of(frame, phase), first, second) for phase in compared_phases(frame)
    ]
    for side, other, name in (("a", "b", first), ("b", "a", second)):
        alone = _totals(frame).filter(
            (pl.col(f"{side}_steps") > 0) & (pl.col(f"{other}_steps") == 0)
        )["phase"]
        phases = alone.drop_nulls().to_list()
        if phases:
            kinds = (
                [f"steps of {joined(named)}"]
                if (named := [p for p in phases if p != "other"])
                else []
            )
            kinds += ["steps whose phase is unknown"] if "other" in phases else []
            said.append(f"Only {name} has {joined(kinds)}: they are not compared.")
        if alone.null_count():
            said.append(f"Only {name} holds work on a device: there is nothing to compare it with.")
    return said or ["Neither run holds work on a device: there is nothing to compare."]


def _change_words(change: dict[str, Any], first: str, second: str) -> str:
    """The change of a step from one run to another, and of its parts."""
    before, after, phase = change["a_ns"], change["b_ns"], change["phase"]
    times = f"{format_ns(before)} in {first}, {format_ns(after)} in {second}"
    if change["level"] == "recording":
        text = (
            f"At least one run has no known steps, so whole recordings are compared: {times}. These"
            " times depend on how long was recorded and say nothing of speed."
        )
    else:
        step = "A step whose phase is unknown" if phase == "other" else f"A step of {phase}"
        text = (
            f"{step} takes {format_ns(after)} in {second} against {format_ns(before)} in {first}"
            f" (mean): {_difference(change)}."
        )
        if plain := change["plain"]:
            text = (
                f"Without the profiler a step of {phase} takes {format_ns(plain['b_ns'])} in"
                f" {second} against {format_ns(plain['a_ns'])} in {first}: {_difference(plain)}."
                f" As recorded, {text[:1].lower()}{text[1:]}"
            )
    where = f" in {second}" if phase is None else ""
    for word in ("less", "more"):
        if rows := change[word]:
            text += f" {word.capitalize()}{where}: {', '.join(map(_part_words, rows))}."
    return text


def _difference(change: dict[str, Any]) -> str:
    before, after = change["a_ns"], change["b_ns"]
    if before == after:
        return "the same"
    text = "more" if after > before else "less"
    if before:
        delta = abs(after - before)
        text = f"{format_ns(delta)} {text} ({format_share(delta / before)})"
    unit = "repeat" if change["level"] == "plain" else "step"
    if change["beyond_noise"] is None:
        few = min(change["a_steps"], change["b_steps"]) <= 1
        one = f"one {unit} says nothing of"
        return f"{text}; {one if few else f'too few {unit}s to know'} the noise"
    return text if change["beyond_noise"] else f"{text}, which is within the noise of the {unit}s"


def _part_words(row: tuple[float, str, tuple[float, float] | None]) -> str:
    delta, part, counts = row
    text = f"{part} {format_ns(abs(delta))}"
    if counts is None:
        return text
    before, after = (f"{count:,.10g}" for count in counts)
    return f"{text} ({after} events a rank in place of {before})"


def changes_of(frame: pl.DataFrame, phase: str | None) -> dict[str, Any]:
    """The step of a phase in both runs, and the parts that became shorter and longer most, each
    the largest first.
    """
    parts, total = _phase_of(frame, phase)
    copies = parts.filter(kind="copy")
    if copies.height > 1:
        gathered = copies.select(
            pl.lit("copy").alias("kind"),
            pl.lit(None, pl.String).alias("part"),
            pl.sum("delta_ns"),
            beyond_noise=pl.col("beyond_noise").any(ignore_nulls=False),
        )
        parts = pl.concat(
            [parts.filter(pl.col("kind") != "copy").select(gathered.columns), gathered]
        )
    whole = float(parts["delta_ns"].abs().sum())
    sure = parts.filter(
        (pl.col("beyond_noise").fill_null(True))
        & (pl.col("delta_ns").abs() >= max(1.0, _SAID * whole))
    ).sort(pl.col("delta_ns").abs(), descending=True, maintain_order=True)
    counts = _counts(frame) if phase is None else {}
    named = [
        (delta, part_words(kind, part)[1], counts.get(part) if kind == "compute" else None)
        for kind, part, delta in sure[["kind", "part", "delta_ns"]].iter_rows()
    ]
    less, more = (
        [row for row in named if (row[0] > 0) is longer][:_MOST_SAID] for longer in (False, True)
    )
    plain = frame.filter(pl.col("phase").eq_missing(pl.lit(phase)), level="plain").to_dicts()
    return total | {"less": less, "more": more, "plain": plain[0] if plain else None}


def _counts(frame: pl.DataFrame) -> dict[str, tuple[float, float]]:
    """Part of a whole recording -> its events on each side, if they differ: a sum is less where
    fewer events ran.
    """
    if not {"stage", "category", "a_count", "b_count"} <= set(frame.columns):
        return {}
    events = (
        frame.filter(level="kernels")
        .group_by(pl.coalesce("stage", "category"))
        .agg(pl.sum("a_count", "b_count"))
    )
    return {
        part: (a, b)
        for part, a, b in events.iter_rows()
        if a is not None and b is not None and a != b
    }


CONTEXT: Final = {
    "what": pl.String,
    "a": pl.String,
    "b": pl.String,
    "same": pl.Boolean,
    "words": pl.String,
}

_MEANT: Final = {
    "engine": "they may differ in where a step begins",
    "model": "another model does other work",
    "layers": "those with the same number are laid side by side, the others stand alone",
    "ranks": (
        "a step is the mean of the ranks on each side, and a rank may hold another share of the"
        " model"
    ),
    "device": "times of kernels compare the devices, too",
    "precision": "products move and compute other numbers",
    "profiler": "each costs the run something else",
    "steady": "a mean of unsteady steps says little",
    "phases": "those of one run alone are not compared",
    "decode batch": "a decode step does other work",
    "prefill tokens": "a prefill step does other work",
    "mixed tokens": "a mixed step does other work",
    "context lengths": "attention does other work",
}
"""Properties of runs, and what it means if they differ."""
_OF_ENGINES: Final = ("model", "layers", "ranks", "device", "precision", "steady")
"""Properties that two engines must share: else a difference says nothing of the engines."""
_OF_PHASE: Final = {"decode": "decode batch", "prefill": "prefill tokens", "mixed": "mixed tokens"}
"""The work of a step of each phase."""


def diff_context(a: Trace, b: Trace, *, names: tuple[str, str] | None = None) -> pl.DataFrame:
    """Properties that two runs share, and differences that limit the comparison."""
    first, second = names or run_names(a, b)
    sides = [_facts(trace) for trace in (a, b)]
    rows = []
    for what, meaning in _MEANT.items():
        before, after = (side.get(what) for side in sides)
        same = None if before is None or after is None else before == after != UNSTEADY
        called = "layers of a rank" if what == "layers" else what
        words = (
            None
            if same is not False
            else f"{called}: {before} in {first}, {after} in {second}; {meaning}"
        )
        rows.append((what, before, after, same, words))
    return pl.DataFrame(rows, schema=CONTEXT, orient="row")


def phases_apart(context: pl.DataFrame) -> list[str]:
    """Phases in which two engines did other work, which are not compared; refuses engines that
    share no comparable phase.
    """
    rows = {row["what"]: row for row in context.iter_rows(named=True)}
    if rows["engine"]["same"] is not False:
        return []
    unlike = [what for what in _OF_ENGINES if rows[what]["same"] is False]
    apart = [phase for phase, work in _OF_PHASE.items() if rows[work]["same"] is False]
    shared = set.intersection(*(set((rows["phases"][side] or "").split(", ")) for side in "ab"))
    if not shared - {*apart, ""}:
        unlike += [_OF_PHASE[phase] for phase in apart if phase in shared] or ["phases"]
    if unlike:
        raise AnalysisError(
            f"{rows['engine']['a']} and {rows['engine']['b']} cannot be compared from these"
            f" recordings: {'; '.join(str(rows[what]['words']) for what in unlike)}",
            expected=f"the same {joined([*_OF_ENGINES[:-1], *_OF_PHASE.values()])}",
            hint="llmprof explore A --compare B shows both all the same",
        )
    return apart


STEADY, UNSTEADY = "steady", "unsteady"
_FEWEST_STEADY: Final = 4


def _facts(trace: Trace) -> dict[str, str | None]:
    meta = trace.meta
    facts: dict[str, str | None] = {
        "device": str(meta["device"]) if meta.get("device") else None,
        "profiler": str(meta["format"]) if meta.get("format") else None,
        "model": ", ".join(models_of(trace)) or None,
    }
    try:
        events, step_rows = trace.events, steps_of(trace)
    except NotCapturedError:
        return facts
    if events.height and (events["source"] == "op").all():
        facts["device"] = "the CPU"
    facts["ranks"] = str(events["rank"].n_unique())
    facts["precision"] = _precision(events)
    layers = events.drop_nulls("layer").group_by("rank").agg(pl.n_unique("layer"))["layer"]
    facts["layers"] = str(layers.max()) if layers.len() else None
    own = step_rows.filter((pl.col("phase") != "empty") & (pl.col("source") != "capture"))
    facts["phases"] = ", ".join(sorted(own["phase"].drop_nulls().unique())) or None
    facts["engine"] = engine_of(trace)
    decode = mean_windows(trace).filter(phase="decode")
    if decode.height >= _FEWEST_STEADY:
        steady = decode.join(steady_steps(trace), on=["rank", "step"], how="semi")
        facts["steady"] = STEADY if steady.height == decode.height else UNSTEADY
    for what, phase, column in (
        ("decode batch", "decode", "decode_requests"),
        ("prefill tokens", "prefill", "prefill_tokens"),
    ):
        value = own.filter(phase=phase)[column].drop_nulls().mode()
        facts[what] = str(value.min()) if value.len() else None
    tokens = pl.format("{} of prefill and {} of decode", "prefill_tokens", "decode_tokens")
    mixed = own.filter(phase="mixed").select(tokens).to_series().drop_nulls().mode()
    facts["mixed tokens"] = str(mixed.min()) if mixed.len() else None
    return facts


_MODEL: Final = r"\b([A-Z]\w*(?:For(?:CausalLM|ConditionalGeneration|SequenceClassification)|LMHeadModel))(?:_\d+)?\b"  # noqa: E501


def models_of(trace: Trace) -> list[str]:
    """Models that the modules of a trace name, without what they are for."""
    found: set[str] = set()
    for table in ("ops", "markers"):
        if trace.has(table):
            found |= set(trace.table(table)["name"].unique().str.extract(_MODEL).drop_nulls())
    return sorted(re.sub(r"(For\w{1,64}|LMHeadModel)$", "", name) for name in found)


def _precision(events: pl.DataFrame) -> str | None:
    """Number format of most of the time of products that state one; of other work, if none does."""
    told = events.with_columns(
        format=by_unique_name(
            # libraries code the format in a name that is read with it
            events.select(
                pl.concat_str("name", readable(events["name"]), "dtypes", ignore_nulls=True)
            ).to_series(),
            PRECISIONS,
            None,
        )
    ).drop_nulls("format")
    products = told.filter(
        pl.col("category").is_in(MATRIX_WORK) & (pl.col("category") != "attention")
    )
    times = (products if products.height else told).group_by("format").agg(pl.sum("dur_ns"))
    return str(times.sort("dur_ns", "format")["format"][-1]) if times.height else None


def engine_of(trace: Trace) -> str | None:
    """Engine that wrote the labels of steps, or has kernels of its own; None if nothing says it."""
    sources = steps_of(trace)["source"].drop_nulls().unique()
    labelled = {ENGINES[source] for source in sources if source in ENGINES}
    if not labelled:
        labelled = set(by_unique_name(trace.events["name"].unique(), KERNELS, None).drop_nulls())
    return ", ".join(sorted(labelled)) or None


def parts_of_step(frame: pl.DataFrame, *, side: str, phase: str | None) -> dict[str, Any]:
    """A step of one of two runs, in parts."""
    own = frame.filter(pl.col("phase").eq_missing(pl.lit(phase, dtype=pl.String)))
    column = f"{side}_ns"
    total = own.filter(pl.col("level").is_in(_TOTALS))
    parts: list[dict[str, Any]] = []
    copies = 0.0
    for kind, part, ns in own.filter(level="part").select("kind", "part", column).iter_rows():
        group, label = part_words(kind, part)
        if group == "copies":
            copies += ns or 0.0
        elif ns:
            parts.append({"group": group, "label": label, "part": part, "ns": float(ns)})
    if copies:
        parts.append({"group": "copies", "label": "copies", "part": None, "ns": copies})
    parts.sort(key=lambda row: (GROUPS.index(row["group"]), -row["ns"]))
    return {
        "steps": int(total[f"{side}_steps"][0]) if total.height else 0,
        "step_ns": total[column][0] if total.height else None,
        "parts": parts,
    }
