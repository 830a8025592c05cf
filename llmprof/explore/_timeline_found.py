"""Rows of the timeline that analyses find: steps, layers with their stages, collectives and idle time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import polars as pl

from llmprof.analyze.attribution import attribute
from llmprof.analyze.collectives import collectives
from llmprof.analyze.idle import idle
from llmprof.analyze.layers import layers
from llmprof.analyze.steps import steps
from llmprof.explore._lanes import Lane
from llmprof.explore._timeline_keys import Keys, Names
from llmprof.explore._timeline_rows import Row, spans
from llmprof.trace import Trace

KINDS = {"steps": "Steps", "layers": "Layers", "collectives": "Collectives", "idle": "Idle"}
"""Rows by kind, from the top, and their labels."""

_NONE = {
    "steps": "no steps were found",
    "layers": "no layers were found: no kernel is known as attention",
    "collectives": "no communication was recorded",
    "idle": "no device was idle",
}


def found_rows(
    trace: Trace, keys: Keys, texts: Names, say: Callable[[str], None] = lambda _: None
) -> Iterator[tuple[str, dict[int, list[Lane]]]]:
    """Lanes of each kind by rank; ``say`` is told what is computed.

    Raises
    ------
    NotCapturedError
        The trace has no device activity and no operators.
    """
    for kind, make in (("steps", _steps), ("layers", _layers), ("collectives", _collectives), ("idle", _idle)):
        say(f"finding {KINDS[kind].lower()}")
        yield kind, make(trace, keys, texts)


def empty_note(kind: str, *, unfinished: bool) -> str:
    """What stands in a row without spans."""
    return "…" if unfinished else _NONE[kind]


def stage_codes(trace: Trace, keys: Keys) -> np.ndarray:
    """Colour of the stage of each device event, by event."""
    events = attribute(trace)
    return keys.codes("stage", events["stage"]).to_numpy()


def _steps(trace: Trace, keys: Keys, texts: Names) -> dict[int, list[Lane]]:
    """Steps where they ran on the device; on ranks where none did, where the host says."""
    frame = steps(trace).with_row_index("id")
    on_device = pl.col("device_start_ns").is_not_null()
    frame = frame.filter(on_device | ~on_device.any().over("rank"))
    made = frame.select(
        "rank",
        "id",
        start_ns=pl.coalesce("device_start_ns", "start_ns"),
        dur_ns=pl.when(pl.col("device_start_ns").is_null()).then("dur_ns").otherwise("device_dur_ns").fill_null(0),
        name=pl.format("step {} · {}", "step", pl.col("phase").fill_null("other")),
        code=keys.codes("phase", frame["phase"]),
    ).drop_nulls("start_ns")
    # copies on another stream outlast the beginning of the next step: on the line each step ends where that begins
    until = pl.col("start_ns").shift(-1).over("rank", order_by="start_ns") - pl.col("start_ns")
    return _by_rank(made.with_columns(dur_ns=pl.min_horizontal("dur_ns", until)), texts, flat=True)


def _layers(trace: Trace, keys: Keys, texts: Names) -> dict[int, list[Lane]]:
    """Layers on one line, their stages on the next."""
    whole = layers(trace, by="layer").with_row_index("id")
    parity = pl.when(pl.col("layer") % 2 == 0).then(pl.lit("even")).otherwise(pl.lit("odd"))
    of_layer = whole.select(parity).to_series()
    upper = whole.select(
        "rank", "id", "start_ns", "dur_ns", name=pl.format("layer {}", "layer"), code=keys.codes("layer", of_layer)
    )
    stages = layers(trace).with_row_index("id")
    lower = stages.select("rank", "id", "start_ns", "dur_ns", name="stage", code=keys.codes("stage", stages["stage"]))
    found = _by_rank(upper, texts, flat=True)
    for rank, lanes in _by_rank(lower, texts, flat=True).items():
        found.setdefault(rank, []).extend(lanes)
    return found


def _collectives(trace: Trace, keys: Keys, texts: Names) -> dict[int, list[Lane]]:
    """Collectives, each parted into waiting for the last rank and transfer where that is known."""
    frame = collectives(trace).with_row_index("id")
    name = pl.col("kind").fill_null("collective")
    wait = frame.filter(pl.col("wait_ns") > 0).select(
        "rank", "id", "start_ns", dur_ns="wait_ns", name=pl.format("{}: waits for rank {}", name, "last_rank"),
        part=pl.lit("waiting for the last rank"),
    )  # fmt: skip
    known = pl.col("wait_ns").is_not_null()
    rest = frame.filter(~known | (pl.col("transfer_ns") > 0)).select(
        "rank", "id",
        start_ns=pl.col("start_ns") + pl.col("wait_ns").fill_null(0),
        dur_ns=pl.coalesce("transfer_ns", "dur_ns"),
        name=name,
        part=pl.when(known).then(pl.lit("transfer")).otherwise(pl.lit("transfer and waiting")),
    )  # fmt: skip
    both = pl.concat([wait, rest]).sort("rank", "start_ns", maintain_order=True)
    return _by_rank(both.with_columns(keys.codes("collective", both["part"])), texts)


def _idle(trace: Trace, keys: Keys, texts: Names) -> dict[int, list[Lane]]:
    """Gaps of each device, by cause; a host without a device has none."""
    frame = idle(trace).with_row_index("id").filter(pl.col("device").is_not_null())
    made = frame.select(
        "rank", "id", "start_ns", "dur_ns",
        name=pl.format("idle: {}", pl.col("cause").str.replace("_", " ")),
        code=keys.codes("cause", frame["cause"]),
    )  # fmt: skip
    return _by_rank(made, texts)


def _by_rank(made: pl.DataFrame, texts: Names, *, flat: bool = False) -> dict[int, list[Lane]]:
    made = made.sort("rank", "start_ns", -pl.col("dur_ns"))
    made = made.with_columns(texts.numbers(made["name"]))
    slack = 1 << 62 if flat else 0
    return {rank: spans(part, slack=slack) for (rank,), part in made.partition_by("rank", as_dict=True).items()}


def pending(rank: int) -> list[Row]:
    """The rows of a rank before they are found."""
    return [Row(kind, rank, label, note="…") for kind, label in KINDS.items()]
