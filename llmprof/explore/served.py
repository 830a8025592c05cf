"""Page that ``llmprof explore`` serves: the command passes the files to the server's process, which opens them."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

import ipywidgets  # type: ignore[import-untyped]

from llmprof import analyze
from llmprof.analyze.requests.requests import AnyRun
from llmprof.errors import LlmprofError
from llmprof.explore.tabs import Open, open  # noqa: A004
from llmprof.readers import read
from llmprof.readers.ncu.reader import read_metrics

ENVIRONMENT_VARIABLE: Final = "LLMPROF_EXPLORE"


@dataclass(frozen=True)
class Wanted:
    """Files to show, as the command passes them to the server's process."""

    files: list[str]
    other: list[str]
    metrics: list[str]
    names: list[str]
    format: str | None = None
    cache: bool | None = None
    finding: int | None = None

    def environment(self) -> dict[str, str]:
        """The variable that :func:`page` reads."""
        return {ENVIRONMENT_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> Self:
        """Files from the environment variable."""
        if ENVIRONMENT_VARIABLE not in environment:
            raise LlmprofError("no trace was named", hint="open this page with: llmprof explore PATH")
        return cls(**json.loads(environment[ENVIRONMENT_VARIABLE]))


def _run_of(files: Sequence[str]) -> AnyRun | None:
    """The run in a folder, if its requests can be joined to its trace; otherwise None."""
    from llmprof.launch import open_run
    from llmprof.readers.saved import is_run

    if len(files) != 1 or not is_run(Path(files[0])):
        return None
    try:
        run = open_run(files[0])
        analyze.requests(run)
    except LlmprofError:  # no served run, an engine without notes of its steps, clocks that disagree
        return None
    return run


def page(environment: Mapping[str, str] = os.environ) -> Any:
    """The tabs, or the reason why there are none."""
    try:
        wanted = Wanted.of_environment(environment)
        options: dict[str, Any] = {"format": wanted.format, "cache": wanted.cache}
        if not wanted.files and wanted.metrics:
            return _at(open(read_metrics(wanted.metrics)), wanted.finding)
        trace = read(wanted.files, **options)
        other = read(wanted.other, **options) if wanted.other else None
        metrics = read_metrics(wanted.metrics) if wanted.metrics else None
        first, second = wanted.names
        given: dict[str, Any] = {"metrics": metrics, "other": other, "run": _run_of(wanted.files)}
        return _at(open(trace, names=(first, second), **given), wanted.finding)
    except LlmprofError as error:
        return ipywidgets.Label(f"{error}")


def _at(opened: Open, finding: int | None) -> Open:
    """The tabs at the place of a finding, if one is named; the page is never looked at without its kernel."""
    if isinstance(opened, Open):
        opened.keeps_picture = False
    return opened if finding is None else opened.show_finding(finding)
