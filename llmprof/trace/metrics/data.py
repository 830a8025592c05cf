"""Measurements of Nsight Compute: frames of metrics and of rules, and the meaning of the parts
of a metric's name.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

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
        self._metrics = schema.fit_columns(metrics, schema.PROFILES["metrics"]).clone()
        self._rules = (
            schema.PROFILES["rules"].empty()
            if rules is None
            else schema.fit_columns(rules, schema.PROFILES["rules"]).clone()
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
            self._metrics.filter(metric=_DEVICE)
            .unique("kernel_id", keep="first")
            .select("kernel_id", device_name="text"),
        ]
        out = first.with_columns(sides)
        for fact in facts:
            out = out.join(fact, on="kernel_id", how="left", maintain_order="left")
        if self._launches is None:
            missing = [pl.lit(None, t).alias(c) for c, t in _LAUNCH_TYPES.items()]
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
            self._metrics.drop_nulls("value")
            .join(order, on="metric")
            .sort("kernel_id", "_order", maintain_order=True)
            .unique("kernel_id", keep="first", maintain_order=True)[["kernel_id", "value"]]
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
        sections = frame.group_by("metric").agg(n=pl.n_unique("section"))
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
        numeric = set(frame.drop_nulls("value")["column"].unique().to_list())
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
