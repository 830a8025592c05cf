"""The questions of :class:`~llmprof.agents.tools.Tools` as a server of the Model Context Protocol."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from llmprof import __version__
from llmprof.agents.tools import Tools
from llmprof.errors import LlmprofError

_ABOUT = (
    "Traces of LLM inference runs (torch profiler, Nsight Systems, Ascend and others). Begin with traces(), then "
    "info(path) and findings(path): the findings are ranked, and each names the analysis that shows its rows. Times "
    "are ns from the start of the trace unless a name says ms. Nothing is written."
)


def server(folders: Iterable[Path]) -> Any:
    """A server over folders, not yet running.

    Parameters
    ----------
    folders : iterable of path
        What may be read.

    Returns
    -------
    mcp.server.MCPServer
        ``run()`` serves it on stdin and stdout.

    Raises
    ------
    LlmprofError
        A folder does not exist, or the package ``mcp`` is not installed.
    """
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver import Image
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import ToolAnnotations
    except ImportError as error:
        raise LlmprofError("the server needs the package mcp", hint="pip install 'llmprof[mcp]'") from error
    tools = Tools(folders)
    made = MCPServer("llmprof", instructions=_ABOUT, version=__version__, log_level="WARNING")
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)

    def explained(ask: Callable[..., Any]) -> Callable[..., Any]:
        """Errors of llmprof as answers: they say what was found and what to do."""

        @functools.wraps(ask)
        def answer(*args: Any, **given: Any) -> Any:
            try:
                return ask(*args, **given)
            except LlmprofError as error:
                raise ToolError(str(error)) from error

        return answer

    def traces() -> list[dict[str, Any]]:
        """Traces in the folders of this server, and bundled samples."""
        return tools.traces()

    def info(path: str) -> dict[str, Any]:
        """What a trace holds: device, ranks, tables with their columns, analyses that can be asked, what was lost."""
        return tools.info(path)

    def findings(path: str) -> dict[str, Any]:
        """What takes the time of a run, ranked, with figures, shares of a stated time, and what to try."""
        return tools.findings(path)

    def analyze(
        path: str, what: str, ranks: list[int] | None = None, sort: str | None = None, limit: int = 50
    ) -> dict[str, Any]:
        """Rows of one analysis (see info); sort names a column whose largest come first."""
        return tools.analyze(path, what, ranks=ranks, sort=sort, limit=limit)

    def sql(path: str, query: str, limit: int = 200) -> dict[str, Any]:
        """One SELECT over the tables of a trace (kernels, copies, runtime, ops, markers, collectives ...)."""
        return tools.sql(path, query, limit=limit)

    def diff(a: str, b: str, over: float = 0.03) -> dict[str, Any]:
        """Compare two runs: a verdict for each phase that respects the noise, and what the difference is made of."""
        return tools.diff(a, b, over=over)

    def picture(path: str, start_ms: float, end_ms: float, ranks: list[int] | None = None) -> Any:
        """Picture of a window of the timeline: streams of the ranks with stages, steps and layers."""
        return Image(data=tools.picture(path, start_ms, end_ms, ranks=ranks), format="png")

    for tool in (traces, info, findings, analyze, sql, diff):
        made.tool(annotations=reads)(explained(tool))
    made.tool(annotations=reads, structured_output=False)(explained(picture))
    return made
