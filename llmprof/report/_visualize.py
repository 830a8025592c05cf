"""Charts and report of a run folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from llmprof import analyze, charts
from llmprof.charts._save import to_png_bytes
from llmprof.errors import CaptureError, LlmprofError, NotCapturedError, OutputError
from llmprof.launch import open_run
from llmprof.launch.metrics import summarize
from llmprof.report import _run
from llmprof.report._parts import Absent, Contents
from llmprof.report._write import write, write_contents

if TYPE_CHECKING:
    import altair as alt

Progress = Callable[[str, int, int], None]
REPORT = "report"


class Visualizer:
    """Draws what a run left in its folder.

    Parameters
    ----------
    folder : path
        Folder of a run.
    progress : callable, optional
        Called with what is being done, how many parts are done, and how many there are.

    Attributes
    ----------
    missing : dict of str to str
        Why a picture was not drawn, by its name (``kernel_time`` …), after they were asked for.

    Raises
    ------
    ReadError
        The folder is no run folder.
    """

    def __init__(self, folder: str | os.PathLike[str], *, progress: Progress | None = None) -> None:
        self._run = open_run(folder)
        self._progress = progress
        self.missing: dict[str, str] = {}

    def create_all_visualizations(self) -> list[Path]:
        """Draw the pictures of the run.

        Returns
        -------
        list of pathlib.Path
            ``{experiment}_kernel_time.png, _cuda_api.png, _requests.png, _counters.png, _dashboard.png`` in the run's
            folder. What the run did not record has no picture; :attr:`missing` says why.

        Raises
        ------
        OutputError
            The folder cannot be written.
        """
        run = self._run
        makers: dict[str, Callable[[], alt.TopLevelMixin]] = {
            "kernel_time": lambda: charts.kernel_time(analyze.kernel_summary(run.trace)),
            "cuda_api": lambda: charts.cuda_api(analyze.cuda_api_sum(run.trace)),
            "requests": lambda: charts.requests(summarize(run.metrics)),
            "counters": lambda: charts.counters(_run.counters(run)),
            "dashboard": self._dashboard,
        }
        written, self.missing = [], {}
        for done, (name, make) in enumerate(makers.items()):
            if self._progress:
                self._progress(f"drawing: {name}", done, len(makers))
            try:
                picture = to_png_bytes(make())
            except LlmprofError as error:
                self.missing[name] = str(error)
                continue
            written.append(_store(run.folder.path / f"{run.config.name}_{name}.png", picture))
        return written

    def generate_report_html(self) -> Path:
        """Write the report of the run.

        Returns
        -------
        pathlib.Path
            ``report/index.html`` in the run's folder; the charts and frames of the report are beside it. A run without
            a timeline has a report of its requests.

        Raises
        ------
        OutputError
            The folder cannot be written.
        """
        run, target = self._run, self._run.folder.path / REPORT
        first, facts, title = _run.sections(run), _run.facts(run), self._title()
        try:
            trace = run.trace
        except (CaptureError, NotCapturedError) as error:
            absent = [Absent("findings", captured=False, found=error.found, hint=error.hint)]
            empty = pl.DataFrame()
            frames = {"requests": run.metrics.drop("itl_ns"), "metrics": summarize(run.metrics)}
            said = Contents(title, facts, [], self._warnings(), empty, [], empty, first, frames, absent)
            return write_contents(said, target, progress=self._progress).index
        return write(trace, target, title=title, progress=self._progress, first=first, facts=facts).index

    def _dashboard(self) -> alt.TopLevelMixin:
        run = self._run
        frames: dict[str, pl.DataFrame | None] = {
            "where": self._frame(lambda: analyze.step_time(run.trace)),
            "kernels": self._frame(lambda: analyze.kernel_summary(run.trace)),
            "counters": self._frame(lambda: _run.counters(run)),
        }
        says = [f"{name}: {value}" for name, value in _run.facts(run) if name in {"Engine", "Parallel", "Requests"}]
        return charts.dashboard(
            figures=_run.tiles(run),
            requests=summarize(run.metrics),
            title=self._title(),
            subtitle="; ".join(says),
            **frames,
        )

    def _frame(self, make: Callable[[], pl.DataFrame]) -> pl.DataFrame | None:
        """A frame for the dashboard; None where the run does not have it."""
        try:
            return make()
        except LlmprofError:
            return None

    def _title(self) -> str:
        config = self._run.config
        ranks = f", {config.world_size} ranks" if config.world_size > 1 else ""
        return f"{config.name}: {config.model}, {config.profile_mode}{ranks}"

    def _warnings(self) -> list[str]:
        return [str(words) for words in self._run.summary.get("warnings") or ()]


def _store(path: Path, content: bytes) -> Path:
    """Write a file whole or not at all."""
    work = path.with_name(f".{path.name}")
    try:
        work.write_bytes(content)
        work.replace(path)
    except OSError as error:
        work.unlink(missing_ok=True)
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}", hint="choose a folder with room that can be written"
        ) from error
    return path
