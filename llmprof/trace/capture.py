"""How a trace was recorded: the profiler and the platform, and how to record more."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import polars as pl

from llmprof.errors import checked
from llmprof.trace.platforms import (
    DEVICE_TABLES,
    ON_DEVICE,
    ON_HOST,
    Platform,
    of_tool,
    platform_of,
    tool_of,
)
from llmprof.trace.storage.deferred import Deferred

if TYPE_CHECKING:
    from llmprof.trace.trace import Trace


class Capture:
    """How a trace was recorded: ``trace.capture``."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    @checked
    def how_to_record(self, table: str) -> str:
        """Advice on how to record a table: that of the tool that wrote this recording, or of
        several if it is unknown.

        Examples
        --------
        >>> import llmprof
        >>> llmprof.sample("torch_tp1_eager").capture.how_to_record("memory")
        'memory events (torch: profile_memory=True)'
        """
        way = self.platform.how_to_record(table, self.tool)
        return (
            f"{way}, if the run uses a device" if self.on_host and table in DEVICE_TABLES else way
        )

    @property
    def other_process(self) -> str:
        """Advice for a recording of PyTorch that holds nothing, since its process did no work;
        empty for others.
        """
        of_torch = self._trace._meta.get("format") == "chrome" and self.asked is None
        if not of_torch or self._trace.table_names:
            return ""
        return (
            "profile the process that runs the model: the engine of vLLM is another one unless"
            " VLLM_ENABLE_V1_MULTIPROCESSING=0 is set before it is imported; llm.start_profile()"
            " and llmprof.profile reach it there"
        )

    @property
    def platform(self) -> Platform:
        """Platform of the devices (CUDA, ROCm, Ascend), with the words that findings and hints use
        for it.

        Examples
        --------
        >>> import llmprof
        >>> llmprof.sample("torch_tp1_eager").capture.platform.words["graphs"]
        'CUDA graphs'
        """
        return platform_of(self._trace._meta, self._trace._tables)

    @property
    def tool(self) -> str | None:
        """The profiler that wrote it, by the name that advice on recording gives it; None if it is
        not known.

        Examples
        --------
        >>> import llmprof
        >>> llmprof.sample("torch_tp1_eager").capture.tool
        'torch'
        """
        return tool_of(self._trace._meta, self._trace._tables)

    @property
    def on_host(self) -> bool:
        """Whether operators of the host take the place of device events, as in a run on the CPU."""
        device = ("kernels", "copies")
        if (
            any(table in self._trace.table_names for table in device)
            or self._trace.has("runtime")
            or not self._trace.has("ops")
        ):
            return False
        return bool((self._trace.ops["kind"] == "op").any())

    @property
    def words(self) -> dict[str, str]:
        """Words of sentences about the trace: what its events are called, and those of its
        platform.

        Examples
        --------
        >>> import llmprof
        >>> llmprof.sample("torch_tp1_eager").capture.words["event"]
        'kernel'
        """
        words = {**self.platform.words, **(ON_HOST if self.on_host else ON_DEVICE)}
        return words | {"record_host": of_tool(words["record_host"], self.tool)}

    @property
    def asked(self) -> dict[str, list[str] | None] | None:
        """Tables in ``tables=`` of :func:`llmprof.read`, with their columns (None: all); None if
        all were read.
        """
        asked: dict[str, list[str] | None] | None = copy.deepcopy(
            self._trace._coverage.get("asked")
        )
        return asked

    @property
    def recorded(self) -> dict[str, pl.DataFrame]:
        """The recorded tables as in :attr:`tables`, but with only those collectives that the
        profiler recorded.
        """
        return {name: frame.clone() for name, frame in self._trace._tables.items()}

    @property
    def device_ranks(self) -> list[int]:
        """Ranks whose recording has kernels, also outside of this part of the trace."""
        stated = {
            rank["rank"] for rank in self._trace._meta.get("ranks", ()) if rank.get("kernels")
        }
        if isinstance(self._trace._tables, Deferred):
            return sorted(stated | self._trace._tables.ranks_with("kernels"))
        kernels = self._trace._tables.get("kernels")
        return sorted(stated if kernels is None else stated | set(kernels["rank"].unique()))

    @checked
    def scan(self, name: str) -> pl.LazyFrame:
        """A table as a lazy frame; from a dataset only the rows and columns that the query needs
        are read.

        Parameters
        ----------
        name : str
            Name of a table of the schema.

        Returns
        -------
        polars.LazyFrame
            The columns of the table. Collectives are loaded at once, because they are found among
            the kernels.

        Raises
        ------
        NotCapturedError
            The capture does not have this table.
        """
        if (
            isinstance(self._trace._tables, Deferred)
            and name in self._trace._tables
            and name != "collectives"
        ):
            return self._trace._tables.scan(name)
        return self._trace.table(name).lazy()

    @checked
    def height(self, name: str) -> int:
        """Number of rows of a table, 0 if it was not recorded; unlike :attr:`rows` it asks for no
        other table.

        Parameters
        ----------
        name : str
            Name of the table.

        Returns
        -------
        int
            The number of rows.

        Examples
        --------
        >>> import llmprof
        >>> llmprof.sample("torch_tp1_eager").capture.height("copies")
        94
        """
        tables = self._trace._tables
        if not isinstance(tables, Deferred):
            return 0 if (frame := self._trace._frame(name)) is None else frame.height
        if name == "collectives" and name in self._trace.table_names:
            return sum(partition.collectives for partition in tables.partitions)
        return tables.rows(name) if name in self._trace.table_names else 0
