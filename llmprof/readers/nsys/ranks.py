"""Assigns ranks to several reports of Nsight Systems of one run, which has one report for each process or node.

``mpirun … nsys profile -o r%q{RANK} python train.py`` writes one report per rank, ``nsys profile torchrun …`` one per
node with several ranks. Ranks come from the best evidence that all reports have: first the names of their processes
(vLLM's workers, MPI's marks), then the recorded environment or arguments, then the numbers in the names of the files.
The order of the names is the last resort, and gives a warning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from llmprof.readers.common.reader import MOST_RANKS, Part
from llmprof.readers.nsys.export import Capture

PROCESSES: Final = "names of the processes"
DEVICES: Final = "order of the devices"

_NUMBERS: Final = re.compile(r"(\d+)")
_OF_RANK: Final = re.compile(
    r"(?:^|[^a-z])(?:local_?|global_?|world_?|mpi_?)?(?:rank|procid|proc|node|worker|task|r)[-_.=]?$", re.IGNORECASE
)


class _File(NamedTuple):
    """A report and its parts."""

    path: Path
    capture: Capture
    workers: list[Part]


class _Order(NamedTuple):
    """An order of the reports: their numbers, the evidence for them, and whether it is certain."""

    numbers: list[int]
    source: str
    sure: bool


def settle(parts: Sequence[Part]) -> None:
    """Give the processes of several reports different ranks, and state how they were found."""
    files = _files(parts)
    if len(files) < 2:
        return
    _only_main_processes(files)
    files = [file for file in files if file.workers]
    workers = [part for file in files for part in file.workers]
    notes = _clocks(files)
    stated = [part.head["rank"] if part.head.get("rank_from") == PROCESSES else None for part in workers]
    if None not in stated and len(set(stated)) == len(stated):
        order = None
    elif all(len(file.workers) == 1 for file in files):
        order = _of_processes(files)
        for file, number in zip(files, order.numbers, strict=True):
            file.workers[0].head |= {"rank": number, "rank_from": order.source}
    else:
        order = _of_nodes(files)
        ordered = [file for _, file in sorted(zip(order.numbers, files, strict=True), key=lambda pair: pair[0])]
        firsts = accumulate((len(file.workers) for file in ordered), initial=0)
        for first, file in zip(firsts, ordered, strict=False):
            for place, part in enumerate(sorted(file.workers, key=lambda p: p.head["rank"])):
                part.head |= {"rank": first + place, "rank_from": f"{order.source}, then {DEVICES}"}
    if order is not None and not order.sure:
        notes.append(
            f"no report states its rank: the ranks of {len(files)} reports, {files[0].path.name} and others, are "
            f"assigned by {order.source}"
        )
    worlds = {file.capture.world for file in files} - {None}
    least = 1 + max((part.head["rank"] for part in workers), default=0)
    world = worlds.pop() if len(worlds) == 1 else None
    for part in parts:
        part.head["world_size"] = max(least, world or 0)
    _number_nodes(files)
    if parts and notes:
        parts[0].coverage["notes"] = [*parts[0].coverage.get("notes", []), *notes]


def _number_nodes(files: Sequence[_File]) -> None:
    """Number the nodes of the ranks: in the order of the ranks if all hosts are known, else as they were recorded.

    Names of hosts are only compared with each other, and are not kept.
    """
    by_rank = sorted(files, key=lambda file: min(part.head["rank"] for part in file.workers))
    hosts = list(dict.fromkeys(file.capture.host for file in by_rank))
    for file in files:
        node = file.capture.node if "" in hosts else hosts.index(file.capture.host)
        for part in file.workers:
            part.head["node"] = node


def _files(parts: Sequence[Part]) -> list[_File]:
    by_path: dict[Path, _File] = {}
    for part in parts:
        file = by_path.setdefault(part.path, _File(part.path, _capture(part), []))
        if not part.head.get("front_end"):
            file.workers.append(part)
    return list(by_path.values())


def _capture(part: Part) -> Capture:
    """Facts about the capture of a part; if the part was saved to a file, they are a mapping."""
    capture = part.head.get("capture", Capture())
    return msgspec.convert(capture, Capture) if isinstance(capture, dict) else capture


def _only_main_processes(files: Sequence[_File]) -> None:
    """If no report has device work, take only the process with the most events of each report as a rank."""
    if any(part.on_device for file in files for part in file.workers):
        return
    for file in files:
        if any(part.head.get("rank_from") == PROCESSES for part in file.workers):
            continue
        for part in sorted(file.workers, key=lambda p: -p.coverage["events"])[1:]:
            part.head |= {"rank": None, "front_end": True}
            file.workers.remove(part)


def _of_processes(files: Sequence[_File]) -> _Order:
    """Ranks of reports that each have one process."""
    stated = [file.capture.rank for file in files]
    ranks = [rank for rank in stated if rank is not None]
    if len({number for number, _ in ranks}) == len(files):
        return _Order([number for number, _ in ranks], f"recorded environment ({ranks[0][1]})", sure=True)
    return _by_names(files)


def _of_nodes(files: Sequence[_File]) -> _Order:
    """Order of reports that each have several processes."""
    evidence: tuple[tuple[str, Callable[[Capture], int | None]], ...] = (
        ("number of the node in the recorded environment or command", lambda capture: capture.node),
        ("recorded environment", lambda capture: None if capture.rank is None else capture.rank[0]),
    )
    for source, number in evidence:
        numbers = [n for file in files if (n := number(file.capture)) is not None]
        if len(set(numbers)) == len(files):
            return _Order(numbers, source, sure=True)
    return _by_names(files)


def _by_names(files: Sequence[_File]) -> _Order:
    """Order by the names of the files, of their folders, or of the reports that they were exported from."""
    own = [re.sub(r"(?:\.sqlite|\.arrows|_pqtdir|_arwdir)$", "", file.path.name) for file in files]
    in_folders = [f"{file.path.parent.name}/{name}" for file, name in zip(files, own, strict=True)]
    reports = [file.capture.report for file in files]
    alike = ((own, "file name"), (in_folders, "folder"), (reports, "name of the report"))
    orders = [(*order, words) for names, words in alike if (order := numbered(names)) is not None]
    for numbers, sure, words in sorted(orders, key=lambda entry: not entry[1]):
        if sure:
            return _Order(numbers, words, sure=True)
        ordered = sorted(numbers)
        by_number = [ordered.index(number) for number in numbers]
        return _Order(by_number, f"the order of their numbers ({words})", sure=False)
    places = sorted(in_folders)
    if len(set(places)) < len(places):
        return _Order(list(range(len(files))), "the order in which they were given", sure=False)
    return _Order([places.index(name) for name in in_folders], "the order of their names", sure=False)


def numbered(names: Sequence[str]) -> tuple[list[int], bool] | None:
    """The number in which otherwise equal names differ."""
    split = [_NUMBERS.split(name) for name in names]
    if len({tuple(pieces[::2]) for pieces in split}) != 1:
        return None
    fields = [i for i in range(1, len(split[0]), 2) if len({int(pieces[i]) for pieces in split}) == len(names)]
    rank_fields = [i for i in fields if _OF_RANK.search(split[0][i - 1])]
    varying = [i for i in range(1, len(split[0]), 2) if len({int(pieces[i]) for pieces in split}) > 1]
    if not fields or (not rank_fields and len(varying) > 1):
        return None
    numbers = [int(pieces[(rank_fields or fields)[0]]) for pieces in split]
    whole = sorted(numbers) == list(range(len(numbers)))
    return numbers, (whole or bool(rank_fields)) and max(numbers) < MOST_RANKS


def _clocks(files: Sequence[_File]) -> list[str]:
    """Notes on the clocks: the start time of each session is that of the clock of its host."""
    hosts = {file.capture.host for file in files}
    if len(hosts) == 1 and "" not in hosts:
        return []
    where = "hosts without a name" if "" in hosts else f"{len(hosts)} hosts"
    return [
        f"the reports come from {where}: times of different ranks agree only as well as the clocks of the hosts did "
        "when the sessions began"
    ]
