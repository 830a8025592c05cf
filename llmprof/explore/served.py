"""Page that ``llmprof explore`` serves: the command passes the files to the server's process,
which opens them.
"""

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any, Final, Self

import ipywidgets  # type: ignore[import-untyped]

from llmprof import analyze
from llmprof.analyze.requests.requests import AnyRun
from llmprof.errors import LlmprofError
from llmprof.explore.tabs import Given, Open, open, wrapped_text  # noqa: A004
from llmprof.readers import read
from llmprof.readers.ncu.reader import read_metrics
from llmprof.run.launch import Run, open_run

ENVIRONMENT_VARIABLE: Final = "LLMPROF_EXPLORE"


@dataclass(frozen=True)
class ServedFiles:
    """Files to show, as the command passes them to the server's process."""

    files: list[str]
    other: list[str]
    metrics: list[str]
    names: list[str]
    format: str | None = None
    cache: bool | None = None
    finding: int | None = None

    def environment(self) -> dict[str, str]:
        """The variable that :func:`tabs_page` reads."""
        return {ENVIRONMENT_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> Self:
        """Files from the environment variable."""
        if ENVIRONMENT_VARIABLE not in environment:
            raise LlmprofError(
                "no trace was named", hint="open this page with: llmprof explore PATH"
            )
        return cls(**json.loads(environment[ENVIRONMENT_VARIABLE]))


def _run_of(files: Sequence[str]) -> Run | None:
    """The run in a folder, if there is one."""
    from llmprof.readers.saved import is_run

    return open_run(files[0]) if len(files) == 1 and is_run(Path(files[0])) else None


def _has_requests(run: AnyRun) -> bool:
    """Whether the requests of a run can be joined to its trace."""
    try:
        analyze.requests(run)
    except (
        LlmprofError
    ):  # no served run, an engine without notes of its steps, clocks that disagree
        return False
    return True


def tabs_page(environment: Mapping[str, str] = os.environ) -> Any:
    """The tabs, or the reason why there are none; above them what the files lack, in words."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", UserWarning)
        made = _tabs(environment)
    notes = [str(one.message) for one in heard if issubclass(one.category, UserWarning)]
    for one in heard:
        if not issubclass(one.category, UserWarning):  # of libraries: for the terminal
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    if not notes:
        return made
    paragraphs = "".join(f"<p>{escape(note.rstrip('.'))}.</p>" for note in notes)
    section = (
        f'<section class="llmprof-front" aria-label="Notes on the files">{paragraphs}</section>'
    )
    return ipywidgets.VBox([ipywidgets.HTML(section), made])


def _tabs(environment: Mapping[str, str]) -> Any:
    try:
        wanted = ServedFiles.of_environment(environment)
        options: dict[str, Any] = {"format": wanted.format, "cache": wanted.cache}
        if not wanted.files and wanted.metrics:
            return _at(open(read_metrics(wanted.metrics)), wanted.finding)
        trace = read(wanted.files, **options)
        other = read(wanted.other, **options) if wanted.other else None
        metrics = read_metrics(wanted.metrics) if wanted.metrics else None
        first, second = wanted.names
        run = _run_of(wanted.files)
        joined = run if run is not None and _has_requests(run) else None
        return _at(
            Open(Given(trace, metrics, other, (first, second), joined, tried=run)), wanted.finding
        )
    except LlmprofError as error:
        return wrapped_text(f"{error}")


def _at(opened: Open, finding: int | None) -> Open:
    """The tabs at the place of a finding, if one is named; the page is never looked at without
    its kernel.
    """
    if isinstance(opened, Open):
        opened.keeps_picture = False
    return opened if finding is None else opened.show_finding(finding)
