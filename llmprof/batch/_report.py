"""The report of a sweep in its folder."""

from __future__ import annotations

from collections.abc import Callable

from llmprof import report
from llmprof.batch._sweep import Sweep

Progress = Callable[[str, int, int], None]
_SHARED = ("model", "engine", "profile_mode", "batch_size", "max_tokens", "input_tokens", "tensor_parallel_size")


def write_report(sweep: Sweep, *, progress: Progress | None = None) -> report.Report:
    """Write ``index.html``, the charts and the tables of a sweep into its folder.

    Raises
    ------
    OutputError
        The folder cannot be written.
    """
    config = sweep.state["config"]
    facts = [(name.replace("_", " "), f"{config[name]}") for name in _SHARED if name not in sweep.parameters]
    facts = [("sweep", "; ".join(f"{name}: {_listed(values)}" for name, values in sweep.parameters.items())), *facts]
    return report.write_sweep(
        sweep.comparison,
        sweep.where,
        sweep.folder,
        parameters=list(sweep.parameters),
        title=f"Sweep of {config['model']}: {' × '.join(name.replace('_', ' ') for name in sweep.parameters)}",
        facts=[(name[:1].upper() + name[1:], value) for name, value in facts],
        failed=sweep.failed,
        progress=progress,
    )


def _listed(values: list[object]) -> str:
    return ", ".join(str(value) for value in values)
