"""The critical path as a row of the timeline: its parts, what each one is, and the event that it leads to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import polars as pl

from llmprof.analyze.replay.critical_path import critical_path
from llmprof.analyze.replay.graph import MOST_EVENTS, events_of, graph
from llmprof.errors import LlmprofError
from llmprof.explore.timeline.lanes import Lane
from llmprof.explore.timeline.rows import Keys, Names, Row, spans
from llmprof.names import kernels as names_kernels
from llmprof.trace import Trace
from llmprof.units import format_share

PATH_GROUP: Final = -3
"""Number of the group of the critical path, which runs over all ranks, where ranks have theirs."""

PATH_KIND: Final = "critical_path"

ON_DEVICE: Final = ("compute", "copy", "transfer")
"""Parts in which a device works; they are called as the work is."""

ON_HOST: Final = ("host call", "host")
"""Parts in which the host does; they are called as the call or operator is, and all others as the part."""

_MEANS: Final = {
    "compute": "a kernel",
    "copy": "a copy",
    "transfer": "a collective, after its last rank arrived",
    "device gap": "between two kernels of a stream",
    "stream wait": "for work on another stream",
    "launch": "from the host's call to the start on the device",
    "host call": "a call of the device runtime",
    "host": "between two such calls",
    "synchronise": "from the end of work to the return of the call that waited for it",
    "scheduler": "from the arrival of a result to the first call of a later step",
    "unexplained": "nothing that was recorded leads to it",
}
_KNOWN: Final = {
    "recorded": "recorded",
    "matched": "matched by the order of calls",
    "assumed": "assumed from times alone",
}


def path_row(trace: Trace, keys: Keys, names: Names, say: Callable[[str], None] = lambda _: None) -> Row:
    """The row of the critical path; where several ranks lie on it a second level says which."""
    row = Row(PATH_KIND, PATH_GROUP, "critical path")
    if (events := events_of(trace)) > MOST_EVENTS:
        row.note = (
            f"not computed: {events:,} events, by itself of {MOST_EVENTS:,} at most (analyze.critical_path computes it)"
        )
        return row
    try:
        say("finding what each event waited for")
        graph(trace)
        say("following the critical path")
        path = critical_path(trace)
    except LlmprofError as error:
        row.note = f"no critical path: {error.found}"
        return row
    if not path.height:
        row.note = "no critical path: no step takes any time on a device"
        return row
    row.lanes = _lanes(path, keys, names)
    return row


def _lanes(path: pl.DataFrame, keys: Keys, names: Names) -> list[Lane]:
    """Parts on one line; below, where there are several, the ranks that they are on."""
    part = path["part"].cast(pl.String)
    works = part.is_in(ON_DEVICE)
    of_work = names.numbers(path["name"].filter(works), names_kernels.function)
    called = pl.when(part.is_in(ON_HOST)).then("name")
    of_rest = names.numbers(path.select(pl.coalesce(called, part)).to_series().filter(~works))
    number = np.empty(path.height, np.uint32)
    number[works.to_numpy()], number[~works.to_numpy()] = of_work.to_numpy(), of_rest.to_numpy()
    made = path.select("rank", "start_ns", "dur_ns").with_columns(
        keys.codes("path", part), name=pl.Series(number), id=pl.int_range(path.height, dtype=pl.UInt32)
    )
    made = made.sort("start_ns", maintain_order=True)
    lanes = spans(made, slack=1 << 62, by="path")
    if made["rank"].n_unique() == 1:
        return lanes
    run = pl.col("rank").rle_id()
    of_rank = made.group_by(run.alias("run"), maintain_order=True).agg(
        pl.col("rank", "start_ns", "id").first(), end=(pl.col("start_ns") + pl.col("dur_ns")).max()
    )
    odd = pl.when(pl.col("rank") % 2 == 1).then(pl.lit("odd")).otherwise(pl.lit("even"))
    ranks = of_rank.with_columns(
        keys.codes("layer", of_rank.select(odd).to_series()),
        names.numbers(of_rank.select(pl.format("rank {}", "rank")).to_series()),
        dur_ns=pl.col("end") - pl.col("start_ns"),
    )
    return [*lanes, *spans(ranks, slack=1 << 62, by="path")]


def path_facts(path: pl.DataFrame, number: int) -> list[tuple[str, str]]:
    """What a part of the path is, in words."""
    record = path.row(number, named=True)
    part, step, evidence = record["part"], record["step"], record["evidence"]
    whole = int(path.filter(pl.col("step") == step)["dur_ns"].sum())
    facts = [("part", f"{part}: {_MEANS[part]}")]
    if record["phase"] is not None:
        facts.append(("step", f"{step} · {record['phase']}"))
        facts.append(("of its step", format_share(record["dur_ns"] / whole)))
    else:
        facts.append(("of the path", format_share(record["dur_ns"] / whole)))
    facts.append(("rank", str(record["rank"])))
    if record["name"] is not None and part not in ON_DEVICE:
        label = "before" if record["event"] is not None else "in" if part == "host" else "call"
        facts.append((label, record["name"]))
    facts += [(name, str(record[name])) for name in ("layer", "stage") if record[name] is not None]
    if evidence is not None:
        facts.append(("evidence", _KNOWN[evidence]))
    return facts


def led_to(record: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Where the call or operator stands that a part on the host is, or leads to: kinds of rows and times to look at."""
    start, end = float(record["start_ns"]), float(record["start_ns"] + record["dur_ns"])
    middle = (start + end) / 2
    if record["part"] == "host call":
        return [("runtime", middle)]
    if record["part"] == "host":
        return [("ops", middle), ("python", middle), ("markers", middle), ("runtime", end)]
    return [("runtime", end - 1), ("runtime", end)]
