"""Tools for agents: questions about traces, and a server of the Model Context Protocol (MCP)
that answers them.
"""

from __future__ import annotations

import functools
import json
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl

from llmprof import __version__, analyze, charts
from llmprof.analyze.catalog import views
from llmprof.analyze.compare.diff import gate, markdown
from llmprof.errors import AnalysisError, LlmprofError, listed, needs
from llmprof.findings.document import findings_document
from llmprof.readers import bundled, read
from llmprof.readers.registry import detect
from llmprof.report import cards
from llmprof.trace import Trace
from llmprof.trace.storage.files import finite

__all__ = ["Tools", "server"]

SAMPLE: Final = "sample:"
MOST_ROWS: Final = 1_000
"""Largest number of rows in an answer, even if a caller gives a higher limit."""

MOST_BYTES: Final = 16 << 20
"""Largest rows of an answer, as Arrow with each text in full."""

_MOST_LISTED, _MOST_ENTRIES, _MOST_DEPTH, _KEPT_TRACES = 200, 20_000, 3, 2


class RefusedError(LlmprofError):
    """Error for a path outside the folders of the server."""


class Tools:
    """Tools of an agent for the traces in the folders that the server may read."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self.folders = [Path(folder).expanduser().resolve() for folder in folders]
        for folder in self.folders:
            if not folder.is_dir():
                raise LlmprofError(f"there is no folder {folder}", expected="folders with traces")
        self._traces: OrderedDict[tuple[Any, ...], Trace] = OrderedDict()
        self._lock = threading.Lock()

    def traces(self) -> list[dict[str, Any]]:
        """Traces in the folders of this server, and bundled samples: ``path, format, bytes``."""
        files: list[dict[str, Any]] = []
        for folder in self.folders:
            self._look(folder, 0, files)
        samples = bundled.samples()
        return files[:_MOST_LISTED] + [
            {"path": SAMPLE + row["name"], "title": row["title"]} for row in samples.to_dicts()
        ]

    def _look(self, folder: Path, depth: int, files: list[dict[str, Any]]) -> None:
        if len(files) >= _MOST_LISTED or depth > _MOST_DEPTH:
            return
        for entry in sorted(folder.iterdir()):
            if entry.name.startswith(".") or entry.is_symlink():
                continue
            try:
                form = detect(entry)
            except (LlmprofError, OSError):
                form = None
            if form is not None:
                size = entry.stat().st_size if entry.is_file() else None
                files.append({"path": str(entry), "format": form, "bytes": size})
            elif entry.is_dir():
                self._look(entry, depth + 1, files)

    def inside(self, path: str) -> Path:
        """Path of a file or folder in the folders of the server; a relative path is looked up in
        each of them.
        """
        requested = Path(path)
        places = (
            [requested]
            if requested.is_absolute()
            else [folder / requested for folder in self.folders]
        )
        try:
            allowed = [real for place in places if self._holds(real := place.resolve())]
        except (
            OSError,
            ValueError,
            RuntimeError,
        ) as error:  # too long, a NUL in it, links in a circle
            found = f"{path[:100]!r} cannot be a path: {error}"
            raise LlmprofError(found, hint="traces() lists the traces that can be read") from error
        if not allowed:
            found = f"{path!r} is outside the folders of this server"
            expected = "a path in one of them, or sample:NAME"
            raise RefusedError(
                found, expected=expected, hint="traces() lists the traces that can be read"
            )
        existing = [real for real in allowed if os.path.exists(real)]  # noqa: PTH110 (False, not an error, for any path)
        if not existing:
            raise LlmprofError(
                f"there is no {path!r}", hint="traces() lists the traces that can be read"
            )
        if existing[0].is_dir():
            for count, entry in enumerate(existing[0].rglob("*")):
                if count >= _MOST_ENTRIES:
                    raise RefusedError(
                        f"{path!r} has more than {_MOST_ENTRIES:,} files",
                        hint="name a folder in it",
                    )
                if entry.is_symlink() and not self._holds(entry.resolve()):
                    raise RefusedError(
                        f"{path!r} has a link that leads outside the folders of this server"
                    )
        return existing[0]

    def _holds(self, path: Path) -> bool:
        return any(path == folder or folder in path.parents for folder in self.folders)

    def trace(self, path: str) -> Trace:
        """Read a trace; the last few stay in memory, and no file is written."""
        if path.startswith(SAMPLE):
            return bundled.sample(path.removeprefix(SAMPLE))
        real = self.inside(path)
        files = (
            [real]
            if real.is_file()
            else [entry for entry in sorted(real.rglob("*")) if entry.is_file()]
        )
        key = (real, *((file, file.stat().st_mtime_ns, file.stat().st_size) for file in files))
        with self._lock:
            if key not in self._traces:
                self._traces[key] = read(real, cache=False)
                while len(self._traces) > _KEPT_TRACES:
                    self._traces.popitem(last=False)
            self._traces.move_to_end(key)
            return self._traces[key]

    def info(self, path: str) -> dict[str, Any]:
        """Facts about a trace: device, ranks, tables with their columns, the analyses that it
        allows, what was lost.
        """
        trace = self.trace(path)
        meta = trace.meta
        low, high = trace.span_ns
        return _plain(
            {
                "what": cards.headline(trace),
                "device": meta.get("device"),
                "platform": trace.capture.platform.name,
                "format": meta.get("format"),
                "ranks": trace.ranks,
                "world_size": meta.get("world_size"),
                "versions": meta.get("versions"),
                "span_ns": high - low,
                "tables": {
                    name: {
                        "rows": rows,
                        "columns": trace.capture.scan(name).collect_schema().names(),
                    }
                    for name, rows in trace.rows.items()
                },
                "analyses": {name: view.help for name, view in views().items() if not view.needs},
                "warnings": cards.warnings(trace),
            }
        )

    def findings(self, path: str) -> dict[str, Any]:
        """What takes the time of a run, ranked, with figures, shares of a stated time, and what
        to try.
        """
        return _plain(findings_document(self.trace(path)))

    def analyze(
        self,
        path: str,
        what: str,
        *,
        ranks: list[int] | None = None,
        sort: str | None = None,
        limit: int = 50,
    ) -> dict[str, Any]:
        """Rows of one analysis (see info); sort names a column whose largest come first."""
        allowed = {name: view for name, view in views().items() if not view.needs}
        if what not in allowed:
            raise AnalysisError(
                f"there is no analysis {what!r}", expected=f"one of {', '.join(allowed)}"
            )
        trace = self.trace(path)
        frame = pl.DataFrame(allowed[what].function(trace.select(rank=ranks) if ranks else trace))
        if sort is not None:
            if sort not in frame.columns:
                raise AnalysisError(
                    f"{what} has no column {sort!r}", expected=f"one of {listed(frame.columns)}"
                )
            frame = frame.sort(sort, descending=True, nulls_last=True, maintain_order=True)
        return _rows(frame, limit)

    def sql(self, path: str, query: str, *, limit: int = 200) -> dict[str, Any]:
        """One SELECT over the tables of a trace (kernels, copies, runtime, ops, markers,
        collectives ...).
        """
        return _rows(self.trace(path).sql(query), limit)

    def diff(self, a: str, b: str, *, over: float = 0.03) -> dict[str, Any]:
        """Compare two runs: a verdict for each phase that respects the noise, and what the
        difference is made of.
        """
        first, second = self.trace(a), self.trace(b)
        names = (Path(a).name, Path(b).name)
        frame = analyze.diff(first, second)
        apart = (
            analyze.diff(first, second, names=names, part="context")["words"].drop_nulls().to_list()
        )
        parts = frame.filter(level="part").sort(
            pl.col("delta_ns").abs(), descending=True, nulls_last=True
        )
        return _plain(
            {
                "phases": gate(frame, over=over).to_dicts(),
                "parts": parts.head(20).drop_nulls("delta_ns").to_dicts(),
                "kernels": analyze.diff(first, second, names=names, part="kernels").to_dicts(),
                "markdown": markdown(frame, names=names, over=over, apart=apart),
            }
        )

    def picture(
        self, path: str, start_ms: float, end_ms: float, *, ranks: list[int] | None = None
    ) -> bytes:
        """Timeline of a window as PNG: streams of the ranks with stages, steps and layers."""
        if not (math.isfinite(start_ms) and math.isfinite(end_ms)) or end_ms <= start_ms:
            raise AnalysisError(
                f"the window {start_ms} to {end_ms} ms is empty", expected="start before end, in ms"
            )
        trace = self.trace(path)
        events = trace.events  # labels come from the whole trace
        if ranks:
            events = events.filter(pl.col("rank").is_in(ranks))
        window = (round(start_ms * 1e6), round(end_ms * 1e6))
        return charts.to_png_bytes(charts.timeline(events, window=window), scale=1.5)


def _rows(frame: pl.DataFrame, limit: int) -> dict[str, Any]:
    kept = frame.head(max(0, min(limit, MOST_ROWS)))
    size = kept.write_ipc(None, compat_level=pl.CompatLevel.oldest()).getbuffer().nbytes
    if size > MOST_BYTES:
        hint = "name fewer columns, shorten texts, or give a lower limit"
        raise AnalysisError(
            f"the answer has {size:,} bytes", expected=f"at most {MOST_BYTES:,}", hint=hint
        )
    return _plain({"rows": kept.to_dicts(), "rows_in_all": frame.height, "columns": frame.columns})


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a value for JSON: infinities to null, paths to text."""
    plain: dict[str, Any] = json.loads(json.dumps(finite(value), default=str))
    return plain


_ABOUT = (
    "Traces of LLM inference runs (torch profiler, Nsight Systems, Ascend and others). Begin with"
    " traces(), then info(path) and findings(path): the findings are ranked, and each names the"
    " analysis that shows its rows. Times are ns from the start of the trace unless a name says ms."
    " Nothing is written."
)


def server(folders: Iterable[Path]) -> Any:
    """A server over folders, not yet running."""
    with needs("mcp", "the server needs", "mcp"):
        from mcp.server import MCPServer
        from mcp.server.mcpserver import Image
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import ToolAnnotations
    tools = Tools(folders)
    mcp_server = MCPServer("llmprof", instructions=_ABOUT, version=__version__, log_level="WARNING")
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)

    def explained(ask: Callable[..., Any]) -> Callable[..., Any]:
        """Turn errors of llmprof into answers that say what is wrong and what to do."""

        @functools.wraps(ask)
        def answer(*args: Any, **given: Any) -> Any:
            try:
                return ask(*args, **given)
            except LlmprofError as error:
                raise ToolError(str(error)) from error

        return answer

    def picture(path: str, start_ms: float, end_ms: float, ranks: list[int] | None = None) -> Any:
        """Picture of a window of the timeline: streams of the ranks with stages, steps and
        layers.
        """
        return Image(data=tools.picture(path, start_ms, end_ms, ranks=ranks), format="png")

    for tool in (tools.traces, tools.info, tools.findings, tools.analyze, tools.sql, tools.diff):
        mcp_server.tool(annotations=reads)(explained(tool))
    mcp_server.tool(annotations=reads, structured_output=False)(explained(picture))
    return mcp_server
