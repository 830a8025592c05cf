"""Measurements of Nsight Compute: frames of metrics and of rules, and the meaning of the parts
of a metric's name.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from llmprof.errors import LlmprofError, checked, listed
from llmprof.trace import schema

_LAUNCH = ("kernel_id", "kernel_name", "grid", "block", "stream", "device")
_LAUNCH_TYPES: dict[str, pl.DataType] = {
    "run": pl.Int32(),
    "id": pl.Int64(),
    "process": pl.Int64(),
    "process_name": pl.String(),
    "context": pl.Int64(),
    "compute_capability": pl.String(),
}
_DURATION = ("gpu__time_duration.sum", "gpu__time_duration.avg", "Duration")
_DEVICE = "device__attribute_display_name"


class Metrics:
    """Hardware metrics of kernel launches, as :func:`llmprof.read_metrics` returns them.

    The object does not change: frames and ``coverage`` are copies, which the caller may change.

    Parameters
    ----------
    metrics : polars.DataFrame
        Table ``metrics`` of :data:`llmprof.trace.schema.PROFILES`: one row per launch and metric, in base
        units (B, ns, Hz, %, 1, and quotients of them; rates are per second).
    rules : polars.DataFrame, optional
        Table ``rules``: results of the profiler's rules.
    launches : polars.DataFrame, optional
        ``kernel_id`` and further facts about each launch: ``run``, the number of the program's run;
        ``id``, the profiler's own number; ``process, process_name, context, compute_capability``.
        Made from ``metrics`` if not given.
    coverage : mapping, optional
        Counts of what the reader kept and lost.
    """  # noqa: E501

    @checked
    def __init__(
        self,
        metrics: pl.DataFrame,
        rules: pl.DataFrame | None = None,
        launches: pl.DataFrame | None = None,
        coverage: Mapping[str, Any] | None = None,
    ) -> None:
        self._metrics = schema.fit_columns(metrics, schema.METRICS).clone()
        self._rules = (
            schema.RULES.empty()
            if rules is None
            else schema.fit_columns(rules, schema.RULES).clone()
        )
        self._launches = None if launches is None else launches.clone()
        self._coverage = copy.deepcopy(dict(coverage or {}))

    @property
    def metrics(self) -> pl.DataFrame:
        """One row for each launch and metric: the table ``metrics`` of
        :data:`llmprof.trace.schema.PROFILES`.
        """
        return self._metrics.clone()

    @property
    def rules(self) -> pl.DataFrame:
        """Results of the profiler's rules: the table ``rules``."""
        return self._rules.clone()

    @property
    def launches(self) -> pl.DataFrame | None:
        """Further facts about each launch; None if there are none."""
        return None if self._launches is None else self._launches.clone()

    @property
    def coverage(self) -> dict[str, Any]:
        """Counts of what the reader kept and lost."""
        return copy.deepcopy(self._coverage)

    @property
    def kernels(self) -> pl.DataFrame:
        """Launches in order.

        Returns
        -------
        polars.DataFrame
            ``kernel_id, kernel_name, grid, block, stream, device, grid_x … block_z, device_name,
            dur_ns, run, id, process, process_name, context, compute_capability``.
        """
        first = self._metrics.group_by("kernel_id", maintain_order=True).agg(
            pl.col(*_LAUNCH[1:]).first()
        )
        if self._launches is not None:
            first = self._launches.select(*_LAUNCH)
        first = first.sort("kernel_id")
        sides = [
            pl.col(side)
            .str.extract_all(r"\d+")
            .list.get(i, null_on_oob=True)
            .cast(pl.Int32, strict=False)
            .alias(f"{side}_{axis}")
            for side in ("grid", "block")
            for i, axis in enumerate("xyz")
        ]
        facts = [
            self.values(*_DURATION).rename({"value": "dur_ns"}),
            self._metrics.filter(pl.col("metric") == _DEVICE)
            .unique("kernel_id", keep="first")
            .select("kernel_id", device_name="text"),
        ]
        out = first.with_columns(sides)
        for fact in facts:
            out = out.join(fact, on="kernel_id", how="left", maintain_order="left")
        if self._launches is None:
            missing = [pl.lit(None, dtype=t).alias(c) for c, t in _LAUNCH_TYPES.items()]
            return out.with_columns(missing)
        extra = self._launches.select("kernel_id", *_LAUNCH_TYPES)
        return out.join(extra, on="kernel_id", how="left", maintain_order="left")

    @checked
    def values(self, *names: str) -> pl.DataFrame:
        """Value of a metric for each launch that has it; of several names, the first one that a
        launch has counts.

        Returns
        -------
        polars.DataFrame
            ``kernel_id, value``.
        """
        order = pl.DataFrame(
            {"metric": names, "_order": range(len(names))}, schema_overrides={"metric": pl.String}
        )
        return (
            self._metrics.filter(pl.col("value").is_not_null())
            .join(order, on="metric")
            .sort("kernel_id", "_order", maintain_order=True)
            .unique("kernel_id", keep="first", maintain_order=True)
            .select("kernel_id", "value")
        )

    @checked
    def wide(self, *names: str) -> pl.DataFrame:
        """One row per launch, one column per metric.

        Parameters
        ----------
        *names : str
            Metrics to keep, in this order; all if none is given.

        Returns
        -------
        polars.DataFrame
            ``kernel_id, kernel_name, grid, block, stream, device``, then the metrics: numbers in
            base units, or text if no launch has a number. A name that several sections of the
            details page use has the form ``section: name``.

        Raises
        ------
        LlmprofError
            A metric was not measured.
        """
        frame = self._metrics
        sections = frame.group_by("metric").agg(n=pl.col("section").n_unique())
        several = sections.filter(pl.col("n") > 1)["metric"].implode()
        column = pl.when(pl.col("metric").is_in(several)).then(
            pl.concat_str("section", "metric", separator=": ")
        )
        frame = frame.with_columns(column=pl.coalesce(column, "metric"))
        if names:
            if missing := [
                n
                for n in names
                if not frame.filter(pl.col("metric").eq(n) | pl.col("column").eq(n)).height
            ]:
                found = f"the metrics {listed(missing)} were not measured"
                raise LlmprofError(
                    found, hint="Metrics.metrics['metric'].unique() lists the others"
                )
            frame = frame.filter(pl.col("metric").is_in(names) | pl.col("column").is_in(names))
        columns = frame["column"].unique(maintain_order=True).to_list()
        columns = (
            sorted(
                columns, key=lambda c: [c == n or c.endswith(f": {n}") for n in names].index(True)
            )
            if names
            else columns
        )
        numeric = set(frame.filter(pl.col("value").is_not_null())["column"].unique().to_list())
        launches = self.kernels.select(*_LAUNCH)
        place = {number: i for i, number in enumerate(launches["kernel_id"])}
        by_column = frame.group_by("column").agg("kernel_id", "value", "text")
        cells: dict[str, pl.Series] = {}
        for name, ids, values, texts in by_column.iter_rows():
            of_metric = values if name in numeric else texts
            whole: list[Any] = [None] * len(place)
            for number, cell in reversed(
                list(zip(ids, of_metric, strict=True))
            ):  # of repeated measurements the first is kept
                whole[place[number]] = cell
            cells[name] = pl.Series(name, whole, dtype=pl.Float64 if name in numeric else pl.String)
        return launches.hstack([cells[name] for name in columns])

    @checked
    def findings(self, source: pl.DataFrame | None = None) -> Any:
        """Ranked findings, as sentences: the rows of :func:`llmprof.analyze.ncu.findings`."""
        from llmprof.findings.frame import Findings
        from llmprof.findings.hardware import findings

        return Findings(findings(self, source=source))

    def _repr_html_(self) -> str:
        from llmprof.report.cards import of_metrics

        return of_metrics(self)

    def __repr__(self) -> str:
        kernels = self.kernels
        devices = (
            ", ".join(sorted(set(kernels["device_name"].drop_nulls().to_list())))
            or "unknown device"
        )
        return (
            f"<Metrics {kernels.height:,} launches, {self._metrics['metric'].n_unique():,} metrics,"
            f" {self._rules.height:,} rule results, {devices}>"
        )


UNITS: Final = {
    "dram": "device memory (HBM or GDDR) behind the L2 cache",
    "fbpa": "the interface of the L2 cache to the device memory",
    "lts": "a slice of the L2 cache",
    "ltc": "the L2 cache",
    "lrc": "the point where both halves of the L2 cache meet",
    "l1tex": "the L1 and texture cache of an SM, with the shared memory in the same storage",
    "sm": "a streaming multiprocessor",
    "smsp": "one of the (usually four) partitions of an SM, each with a warp scheduler",
    "sass": "the machine instructions of the kernel, counted by instrumenting its code",
    "tpc": "a pair of SMs",
    "gpc": "a cluster of SMs",
    "gpu": "the whole GPU",
    "gr": "the graphics and compute engine",
    "fe": "the front end that receives commands",
    "idc": "the cache for constants in an SM that are addressed with an index",
    "imc": "the cache for constants that are written in instructions",
    "gcc": "the cache for constants and instructions of a GPC",
    "pcie": "the PCIe link",
    "nvlrx": "NVLink, receiving",
    "nvltx": "NVLink, sending",
    "c2clink": "the link between CPU and GPU on one module",
    "launch": "how the kernel was launched",
    "device": "a fixed attribute of the device",
    "profiler": "the profiler itself",
    "derived": "a value that the profiler computes from others",
    "memory": "memory accesses by instruction",
    "numa": "the topology of memory",
    "nvlink": "the topology of NVLink",
}

ROLLUPS: Final = {
    "sum": "added up over all instances of the unit",
    "avg": "the mean over all instances of the unit",
    "min": "the smallest of all instances of the unit",
    "max": "the largest of all instances of the unit",
}

SUBMETRICS: Final = {
    "pct_of_peak_sustained_elapsed": (
        "in percent of the highest sustained rate, over the whole kernel"
    ),
    "pct_of_peak_sustained_active": (
        "in percent of the highest sustained rate, while the unit was active"
    ),
    "pct_of_peak_burst_elapsed": "in percent of the highest momentary rate, over the whole kernel",
    "peak_sustained": "the highest sustained rate per cycle",
    "peak_sustained_elapsed": "the most that could have happened in the time of the kernel",
    "peak_sustained_active": "the most that could have happened while the unit was active",
    "per_second": "per second",
    "per_cycle_elapsed": "per cycle, over the whole kernel",
    "per_cycle_active": "per cycle in which the unit was active",
    "ratio": "as a quotient",
    "pct": "in percent",
    "max_rate": "the highest value that the quotient can have",
}

_PREFIX: Final = re.compile(r"^(?:(?:breakdown|group|pmsampling|smsp):|[A-Z_]+\.Triage\w*\.)")


def base_name(name: str) -> str:
    """Name without prefixes, rollup and submetrics:

    ``dram__bytes_read.sum.per_second`` is ``dram__bytes_read``.
    """
    return _PREFIX.sub("", name.strip()).split(".", 1)[0]


def parts(name: str) -> dict[str, str]:
    """Meaning of the known parts of a metric's name."""
    name = _PREFIX.sub("", name.strip())
    head, *tail = name.split(".")
    unit, joined, quantity = head.partition("__")
    if unit == "derived" and "__" in quantity:
        inner, _, rest = quantity.partition("__")
        unit, quantity = (inner, rest) if inner in UNITS else (unit, quantity)
    if not joined or unit not in UNITS:
        return {}
    meanings = {unit: UNITS[unit]}
    if quantity:
        meanings[quantity] = quantity.replace("_", " ")
    for part in tail:
        if meaning := ROLLUPS.get(part) or SUBMETRICS.get(part):
            meanings[part] = meaning
    return meanings


STALLS: Final[dict[str, tuple[str, str]]] = {
    "long_scoreboard": (
        (
            "waiting for data of the L1 and texture path: global, local, texture or surface memory."
            " Typical where each element is read once: norms, rotary embedding, activations, cache"
            " writes, attention in decode"
        ),
        (
            "load wider (16 bytes per thread) and more at once, unroll so that several loads are"
            " under way, copy asynchronously to shared memory ahead of use (cp.async, TMA), raise"
            " occupancy, keep data in cache; if the DRAM is near its peak, move fewer bytes"
            " instead: fuse kernels, quantize"
        ),
    ),
    "short_scoreboard": (
        (
            "waiting for an answer of the memory input/output queue that is not the L1 path: mostly"
            " shared memory, also special functions (exp, rsqrt) and dynamic branches"
        ),
        (
            "remove bank conflicts, read shared memory wider, keep values in registers, reduce with"
            " warp shuffles"
        ),
    ),
    "barrier": (
        (
            "waiting at a barrier of the block for other warps; in a warp-specialised GEMM also"
            " consumers waiting for producers"
        ),
        (
            "balance the work between barriers, use smaller blocks or barriers of fewer warps, more"
            " pipeline stages"
        ),
    ),
    "warpgroup_arrive": (
        (
            "waiting for a warpgroup instruction of the tensor cores (wgmma) to be ready or done."
            " In a good Hopper GEMM this is the largest state: the tensor cores are the limit"
        ),
        (
            "nothing if the tensor pipe is above some 80 %; else deeper pipelining, larger tiles, a"
            " ping-pong schedule"
        ),
    ),
    "math_pipe_throttle": (
        "waiting for an arithmetic pipe that is busy: the kernel uses it as fast as it goes",
        (
            "use another pipe: tensor cores instead of FMA, packed half precision; fewer"
            " conversions and exponentials"
        ),
    ),
    "mio_throttle": (
        "the queue for shared memory, special functions and dynamic branches is full",
        (
            "fewer and wider shared-memory instructions, fewer special functions; TMA and ldmatrix"
            " instead of plain loads"
        ),
    ),
    "lg_throttle": (
        (
            "the queue for local and global memory instructions is full: too many small ones come"
            " too fast"
        ),
        (
            "combine narrow accesses into wide ones, avoid register spilling (local memory), mix in"
            " arithmetic"
        ),
    ),
    "tex_throttle": (
        "the queue of the texture path is full",
        "fewer texture or surface accesses in a row; plain loads for some of them",
    ),
    "wait": (
        "waiting a fixed number of cycles for an instruction before it, as the compiler ordered",
        (
            "more independent work in a thread (unroll), more warps; a large share alone is typical"
            " of tuned code"
        ),
    ),
    "no_instructions": (
        (
            "waiting for instructions: jumps, code larger than the instruction cache, or a kernel"
            " so short that it hardly started"
        ),
        (
            "less unrolling; for very short kernels fuse them or use CUDA graphs, since what"
            " happens inside matters little"
        ),
    ),
    "imc_miss": (
        (
            "waiting for a constant (kernel parameters among them) that was not in its cache: the"
            " beginning of a kernel"
        ),
        "shows in short kernels; fewer parameters, fuse kernels",
    ),
    "branch_resolving": (
        "waiting for the target of a jump",
        "fewer branches and shorter loops: unroll, predicate, make warps agree",
    ),
    "dispatch_stall": (
        "the dispatcher held the instruction back because of a conflict of resources",
        "rarely large; look at register bank conflicts and at the pipes in use",
    ),
    "drain": (
        "the warp ended and waits for its memory writes",
        "spread writes over the kernel, write full sectors, avoid one big burst at the end",
    ),
    "membar": (
        "waiting at a memory fence",
        (
            "fewer fences, of a narrower scope (block instead of device); common in communication"
            " kernels"
        ),
    ),
    "sleeping": (
        "all threads of the warp sleep or have yielded",
        "poll less, or do not poll at all",
    ),
    "misc": ("a reason that the hardware does not tell apart", "look at the other states"),
    "selected": ("issuing an instruction: no stall", "nothing: this is the work"),
    "not_selected": (
        "ready, but another warp was chosen: there are more ready warps than issue slots",
        "nothing to gain from occupancy; fewer warps with more registers each may help",
    ),
}
"""Meaning and advice, by warp state."""

SAME: Final = {"gmma": "warpgroup_arrive", "no_instruction": "no_instructions"}
