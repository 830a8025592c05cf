"""Section of a report on measured time against the bound, where the model is known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmprof import analyze, charts
from llmprof.analyze.roofline.join import coverage_of
from llmprof.errors import LlmprofError
from llmprof.report import vega
from llmprof.report.parts import Absent, Figure, Section
from llmprof.theory import Shape
from llmprof.trace import Trace
from llmprof.units import format_share

_SHOWS = "measured time against its bound"


def bound_section(
    trace: Trace,
    model: str | Path | Mapping[str, Any] | Shape,
    *,
    tp_size: int | None = None,
    pp_size: int | None = None,
) -> Section:
    """How near the steps of a trace come to the least possible time.

    Parameters
    ----------
    trace : Trace
        Any trace.
    model : str, path, mapping or Shape
        What ran, as for :func:`llmprof.analyze.roofline_join`.
    tp_size, pp_size : int, optional
        Parallel sizes; found from the trace if not given.

    Returns
    -------
    Section
        The chart of the gaps; or why there is none.
    """
    words = (
        "The least time of a stage follows from the model's shape, the tokens of the step and the stated peaks of the "
        "device; the rest of a bar is the gap, in the colour of its reason."
    )
    try:
        joined = analyze.roofline_join(trace, model, tp_size=tp_size, pp_size=pp_size)
        share = format_share(coverage_of(joined)["explained_share"])
        figure = Figure("bound_gap", _SHOWS, spec=vega.specification(charts.bound_gap(joined)))
        words += f" Theory knows {share} of the device time."
    except LlmprofError as error:
        figure = Figure("bound_gap", _SHOWS, absent=Absent(_SHOWS, captured=False, found=error.found, hint=error.hint))
    return Section("bound", "How near does it come to the bound?", words, [figure])


def config_in(folder: Path) -> Path | None:
    """The ``config.json`` of the model that a run wrote into its folder, if there is one."""
    found = sorted(folder.glob("*/config.json"))
    return found[0] if len(found) == 1 else None
