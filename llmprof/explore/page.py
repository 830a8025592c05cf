"""What the notebook behind ``llmprof explore`` shows: the tabs of the traces that the command line named."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from llmprof.errors import LlmprofError
from llmprof.readers import read
from llmprof.readers.ncu.reader import read_metrics

ENVIRONMENT_VARIABLE: Final = "LLMPROF_EXPLORE"


@dataclass(frozen=True)
class Wanted:
    """Files to show, as the process that serves the page passes them on.

    Attributes
    ----------
    files, other, metrics : list of str
        Files of the trace, of the one it is compared with, and of hardware metrics.
    names : list of str
        What the two traces are called.
    format : str or None
        Format of the files; found from their content if None.
    cache : bool or None
        Whether to use the cache of parsed files.
    """

    files: list[str]
    other: list[str]
    metrics: list[str]
    names: list[str]
    format: str | None = None
    cache: bool | None = None

    def environment(self) -> dict[str, str]:
        """The variable that :func:`page` reads."""
        return {ENVIRONMENT_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def found(cls, environment: Mapping[str, str]) -> Wanted:
        """What the environment says.

        Raises
        ------
        LlmprofError
            It says nothing.
        """
        if ENVIRONMENT_VARIABLE not in environment:
            raise LlmprofError("no trace was named", hint="open this page with: llmprof explore PATH")
        return cls(**json.loads(environment[ENVIRONMENT_VARIABLE]))


def page(environment: Mapping[str, str] = os.environ) -> Any:
    """The tabs, or why there are none."""
    import ipywidgets  # type: ignore[import-untyped]

    from llmprof.explore.tabs import open as tabs

    try:
        wanted = Wanted.found(environment)
        options: dict[str, Any] = {"format": wanted.format, "cache": wanted.cache}
        trace = read(wanted.files, **options)
        other = read(wanted.other, **options) if wanted.other else None
        metrics = read_metrics(wanted.metrics) if wanted.metrics else None
        first, second = wanted.names
        return tabs(trace, metrics=metrics, other=other, names=(first, second))
    except LlmprofError as error:
        return ipywidgets.Label(f"{error}")
