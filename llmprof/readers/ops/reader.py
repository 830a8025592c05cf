"""Reader of timings of operators: the tables of a trace, for the analyses that every recording shares.

A call with others inside is a marker of its module, one without is an operator too. On a GPU their times are distances
of CUDA events on the stream of the model, so they are those of the device, waiting for the host included.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from llmprof.readers.common.reader import Part, Probe, Reader, Request
from llmprof.readers.ops.timings import FORMAT, document, together

_KINDS = {"send": "send_recv", "recv": "send_recv", "gather": "other"}


def _sniff(probe: Probe) -> bool:
    return not probe.is_folder and f'"format":"{FORMAT}"'.encode() in probe.start[:200].replace(b": ", b":")


def _read(path: Path, _request: Request) -> list[Part]:
    content = document(path)
    timings = together([(path, content)])
    head = timings.ranks[0]
    epoch = head["start_epoch_ns"]
    cuda = head["platform"] == "cuda"
    place = {"process": pl.lit(head.get("pid"), dtype=pl.Int64), "thread": pl.lit(head.get("pid"), dtype=pl.Int64)}
    start = pl.col("start_ns") + epoch
    calls = timings.calls.filter(pl.col("kind") != "model").with_row_index("op_id")
    ops = calls.filter(~pl.col("nested")).select(
        **place, start_ns=start, dur_ns="dur_ns", name="name", kind=pl.lit("op"), op_id=pl.col("op_id").cast(pl.Int64),
        shapes="shapes",
    )  # fmt: skip
    modules = calls.filter(pl.col("kind").is_in(["layer", "module"])).select(
        **place, start_ns=start, dur_ns="dur_ns", name=pl.lit("layer::") + pl.col("name"), domain=pl.lit(FORMAT),
        on_device=pl.lit(value=False),
    )  # fmt: skip
    steps = timings.steps.select(
        **place, start_ns=start, dur_ns="dur_ns", name="label", domain=pl.lit(FORMAT), on_device=pl.lit(value=False)
    )
    comm = timings.collectives
    collectives = comm.select(
        start_ns=start, dur_ns="dur_ns", name=pl.col("group") + "." + pl.col("kind"), recorded_as="kind",
        kind=pl.col("kind").replace(_KINDS), group="group", world="world", dtype="dtype", in_elements="in_elements",
        out_elements="out_elements", bytes="bytes", bytes_source=pl.lit("shapes"), on_device=pl.lit(cuda),
    )  # fmt: skip
    tables = {"ops": ops, "markers": pl.concat([steps, modules]), "collectives": collectives}
    memory = [
        frame.select(
            time_ns=pl.col("start_ns") + pl.col("dur_ns") * int(late) + epoch, allocated_bytes=column,
            on_device=pl.lit(cuda),
        ).drop_nulls()
        for frame in (timings.steps, calls)
        for late, column in ((False, "bytes_before"), (True, "bytes_after"))
    ]  # fmt: skip
    if any(frame.height for frame in memory):
        tables["memory"] = pl.concat(memory)
    rows = timings.calls.height + timings.steps.height + comm.height
    device = head.get("device")
    about = {
        "rank": head["rank"],
        "world_size": head.get("world_size"),
        "backend": None,
        "devices": [device] if device else [],
        "versions": {"torch": head.get("torch")},
        "options": {"timer": head["options"], "method": head["options"].get("method"), "clock": head["clock"]},
    }
    coverage = {"events": rows, "kept": rows, "bytes": path.stat().st_size, "notes": head.get("notes", [])}
    return [Part(path, tables, about, coverage)]


READER = Reader(
    name="ops",
    version=1,
    what="timings of operators (llmprof run --profile-mode ops)",
    sniff=_sniff,
    read=_read,
    suffixes=(".json.gz", ".json"),
)
