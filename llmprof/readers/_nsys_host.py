"""Tables of the host in an export of Nsight Systems: API calls and NVTX ranges."""

from __future__ import annotations

import polars as pl

from llmprof.readers._nsys_export import DOMAIN, MARK, RANGES, RUNTIME, STYLES, Export, rename, threads, with_columns_of

_API_VERSION = r"_v\d{4}$"
"""What nsys takes off the names of API calls; ``_v11060`` and ``_v2`` stay in its summaries, and here."""


class HostTables(Export):
    """Frames of host work."""

    def runtime(self) -> pl.DataFrame | None:
        """CUDA runtime and driver calls, and calls of the operating system where they were traced."""
        calls = self._read(RUNTIME, "start", "end", "eventClass", "globalTid", "correlationId", "nameId")
        system = self._read("OSRT_API", "start", "end", "globalTid", "correlationId", "nameId")
        parts = []
        if calls is not None:
            calls = self._named(calls, "nameId", default="unnamed call", cut=_API_VERSION)
            driver = pl.col("name").str.contains(r"^cu[A-Z]")
            calls = calls.with_columns(api=pl.when(driver).then(pl.lit("driver")).otherwise(pl.lit("runtime")))
            parts.append(calls)
        if system is not None:
            parts.append(
                self._named(system.drop("correlationId", strict=False), "nameId", default="unnamed call").with_columns(
                    api=pl.lit("os")
                )
            )
        if not parts:
            return None
        whole = threads(self._times(pl.concat(parts, how="diagonal_relaxed")))
        # an event class of its own marks calls that a wrapper library reported beside CUPTI: the same call twice
        columns = {"correlationId": "correlation", "eventClass": "nsys_event_class"}
        columns |= {c: c for c in ("pid", "process", "thread", "start_ns", "dur_ns", "name", "api")}
        return rename(whole, columns)

    def markers(self) -> pl.DataFrame | None:
        """NVTX ranges and marks, and the profiler's own overhead."""
        events = self._read(
            "NVTX_EVENTS",
            "start",
            "end",
            "eventType",
            "globalTid",
            "endGlobalTid",
            "textId",
            "domainId",
            text=("text",),
        )
        if events is None:
            return None
        events = self._named(with_columns_of(events, ("textId", "domainId", "endGlobalTid")), "textId", default="")
        events = threads(events.with_columns(name=pl.coalesce("text", "name")))
        domains = (
            events.filter(pl.col("eventType") == DOMAIN)
            .select("pid", "domainId", domain="name")
            .unique(["pid", "domainId"], keep="first", maintain_order=True)
        )
        ranges = events.filter(pl.col("eventType").is_in(RANGES)).join(
            domains, on=["pid", "domainId"], how="left", maintain_order="left"
        )
        # a range that was open when the capture stopped has no end: it reaches to the last one known
        last = pl.max_horizontal(pl.col("end").max(), pl.col("start").max())
        is_mark = pl.col("eventType") == MARK
        ranges = ranges.with_columns(end=pl.when(is_mark).then("start").otherwise(pl.coalesce("end", last)))
        ranges = self._times(ranges).with_columns(
            domain=pl.coalesce(
                "domain", pl.when(pl.col("domainId").fill_null(0) == 0).then(pl.lit("nvtx")), pl.lit("unnamed domain")
            )
        )
        ranges = ranges.with_columns(
            nsys_style=pl.col("eventType").replace_strict(STYLES, return_dtype=pl.String),
            nsys_end_thread=pl.col("endGlobalTid") % (1 << 24),
        )
        columns = ("pid", "process", "thread", "start_ns", "dur_ns", "name", "domain", "nsys_style", "nsys_end_thread")
        found = [ranges.select(columns)]
        overhead = self._read("PROFILER_OVERHEAD", "start", "end", "globalTid", "nameId")
        if overhead is not None:
            overhead = threads(self._times(self._named(overhead, "nameId", default="profiler overhead")))
            found.append(
                overhead.with_columns(domain=pl.lit("overhead")).select(
                    "pid", "process", "thread", "start_ns", "dur_ns", "name", "domain"
                )
            )
        return pl.concat(found, how="diagonal_relaxed").with_columns(on_device=pl.lit(value=False))
