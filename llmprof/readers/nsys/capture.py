"""What an export of Nsight Systems says of its capture: what was asked for, where it ran, and as which rank."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from llmprof.readers.common.reader import MOST_RANKS

_RANKS: Final = {
    "RANK": "WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMIX_RANK": "",
    "PMI_RANK": "PMI_SIZE",
    "MV2_COMM_WORLD_RANK": "MV2_COMM_WORLD_SIZE",
    "JSM_NAMESPACE_RANK": "JSM_NAMESPACE_SIZE",
    "PALS_RANKID": "",
    "FLUX_TASK_RANK": "FLUX_JOB_SIZE",
    "SLURM_PROCID": "SLURM_NTASKS",
}
"""Variables in which launchers (torchrun, Open MPI, PMI, MVAPICH, jsrun, PALS, Flux, Slurm) give a process its rank,
and those with the number of ranks; the first that is set is taken."""

_NODES: Final = ("NODE_RANK", "GROUP_RANK", "SLURM_NODEID", "MACHINE_RANK")
"""Variables with the number of the node."""

_VARIABLE: Final = re.compile(
    rf'^({"|".join([*_RANKS, *(w for w in _RANKS.values() if w), *_NODES])})="?(\d{{1,7}})"?$'
)
_NODE_ARGUMENT: Final = re.compile(r"^--(?:node|machine)[-_]rank(?:=(\d{1,5}))?$")

EVENTS: Final = {
    "cuda": "cuda", "nvtxevents": "nvtx", "osruntime": "osrt", "openacc": "openacc", "openmp": "openmp",
}  # fmt: skip
"""What ``CAPTURE_EVENT_TYPE`` says -> the word after ``nsys profile --trace``."""


@dataclass(frozen=True, slots=True)
class Capture:
    """What is known of a capture; nothing of it in an export that says nothing."""

    traced: frozenset[str] | None = None
    """What was traced, in the words of ``nsys profile --trace``; None where the export does not say."""
    memory: bool = False
    """Whether memory usage was recorded."""
    host: str = ""
    numbers: dict[str, int] = field(default_factory=dict)
    """Variables of the recorded environment that say a rank, a number of ranks or a node."""
    node_argument: int | None = None
    """Number of the node in the command that was profiled."""
    report: str = ""
    """Name of the report that was exported."""

    def asked(self, what: str) -> bool | None:
        """Whether something was traced; None where that is unknown."""
        return None if self.traced is None else what in self.traced

    @property
    def rank(self) -> tuple[int, str] | None:
        """Rank of the process that was launched, and the variable that says it."""
        first = next(((self.numbers[name], name) for name in _RANKS if name in self.numbers), None)
        return first if first is not None and first[0] < MOST_RANKS else None

    @property
    def world(self) -> int | None:
        """Number of ranks by the variable beside that of the rank."""
        rank = self.rank
        world = None if rank is None else self.numbers.get(_RANKS[rank[1]])
        return world if world is not None and rank is not None and rank[0] < world < MOST_RANKS else None

    @property
    def node(self) -> int | None:
        """Number of the node."""
        first = next((self.numbers[name] for name in _NODES if name in self.numbers), None)
        return self.node_argument if self.node_argument is not None else first

    @property
    def options(self) -> dict[str, str]:
        """What was asked for, as the metadata of a trace show it."""
        return {} if self.traced is None else {"trace": ",".join(sorted(self.traced))}


Pairs = Callable[[str], pl.DataFrame | None]
"""Takes a table; gives its columns ``name`` and ``value``, None where there is no such table."""


def read_capture(pairs: Pairs, report: str) -> Capture:
    """What the tables ``META_DATA_CAPTURE`` and ``TARGET_INFO_SYSTEM_ENV`` say.

    Of the environment only the variables that number a process are looked at: the others hold secrets.

    Parameters
    ----------
    pairs : callable
        Gives the names and values of a table.
    report : str
        Name of the report that was exported, as far as known.

    Returns
    -------
    Capture
        What is known.
    """
    facts = list(_rows(pairs("META_DATA_CAPTURE")))
    system = dict(_rows(pairs("TARGET_INFO_SYSTEM_ENV")))
    values: dict[str, list[str]] = {}
    for name, value in facts:
        values.setdefault(re.sub(r"^PROCESS_\d+:", "", name), []).append(value)
    traced = {EVENTS.get(value.lower(), value.lower()) for value in values.get("CAPTURE_EVENT_TYPE", [])}
    for key, what in (("COLLECT_CUDA_TRACE", "cuda"), ("COLLECT_NVTX_TRACE", "nvtx")):
        traced |= {what} if "true" in values.get(key, []) else set()
    if "true" in values.get("MPI_TRACE_OPTIONS:COLLECT_MPI_TRACE", []):
        traced.add("mpi")
    variables = [*values.get("ENVIRONMENT_VARIABLE", []), *system.get("DeviceEnvironment", "").split(";")]
    matching = [match for variable in variables if (match := _VARIABLE.match(variable))]
    hosts = [*values.get("DEVICE_DISPLAY_NAME", []), system.get("Hostname", "")]
    return Capture(
        traced=frozenset(traced) if traced else None,
        memory="true" in values.get("COLLECT_GPU_MEMORY_USAGE", []),
        host=next((host for host in hosts if host), ""),
        numbers={match[1]: int(match[2]) for match in reversed(matching)},
        node_argument=_node([value for name, value in facts if ":ARGUMENT_" in name]),
        report=report,
    )


def _rows(frame: pl.DataFrame | None) -> Iterable[tuple[str, str]]:
    return [] if frame is None else frame.drop_nulls().iter_rows()


def _node(arguments: list[str]) -> int | None:
    for i, argument in enumerate(arguments):
        if match := _NODE_ARGUMENT.match(argument):
            number = match[1] or (arguments[i + 1] if i + 1 < len(arguments) else "")
            return int(number) if re.fullmatch(r"\d{1,5}", number) else None
    return None
