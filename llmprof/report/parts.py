"""Parts of a report: sections that ask a question, their figures and tables, and Vega once for the whole page."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import platformdirs
import polars as pl
import vl_convert as vlc

from llmprof.analyze.catalog import Analysis
from llmprof.charts.base.save import spec_json, vega_lite_version
from llmprof.errors import AnalysisError, NotCapturedError, OutputError
from llmprof.trace import Trace

if TYPE_CHECKING:
    import altair as alt


@dataclass(frozen=True, slots=True)
class Absent:
    """Something that the report cannot show, why, and what would make it possible.

    Attributes
    ----------
    part : str
        What is missing: name of a figure or of an analysis.
    captured : bool
        False where the capture does not hold what is needed; True where it does and there is nothing to show.
    found, hint : str
        What was found, and what to do about it.
    """

    part: str
    captured: bool
    found: str
    hint: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One chart, or the reason why there is none.

    Attributes
    ----------
    name : str
        Stem of its file, and its id in the page.
    shows : str
        What it would show, as a noun.
    spec : str
        Vega-Lite specification as JSON that can stand in a page; empty if there is none.
    note : str
        What was left out to keep the chart small.
    """

    name: str
    shows: str
    spec: str = ""
    note: str = ""
    absent: Absent | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its heading, how its values are written, and what else is drawn in its cells."""

    key: str
    head: str
    kind: Literal["text", "name", "chip", "number", "time", "share"] = "text"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows for people; ``frame`` has the columns that ``columns`` name."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    frame: pl.DataFrame
    sortable: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A question, how to read the answer, and what shows it."""

    anchor: str
    question: str
    words: str
    blocks: list[Figure | Table | Absent] = field(default_factory=list)
    evidence: tuple[str, ...] = ()

    @property
    def figures(self) -> list[Figure]:
        """The figures among the blocks."""
        return [block for block in self.blocks if isinstance(block, Figure)]


@dataclass(frozen=True, slots=True)
class Contents:
    """All that a report says, before it is written anywhere."""

    title: str
    facts: list[tuple[str, str]]
    files: list[tuple[str, str]]
    warnings: list[str]
    shares: pl.DataFrame
    reading: list[tuple[str, str]]
    findings: pl.DataFrame
    sections: list[Section]
    frames: dict[str, pl.DataFrame]
    absent: list[Absent]
    of_trace: bool = True
    """Whether it is of one trace, which has findings and a coverage."""

    @property
    def figures(self) -> list[Figure]:
        """All figures in the order of the page."""
        return [figure for section in self.sections for figure in section.figures]


def run(analysis: Analysis, trace: Trace) -> pl.DataFrame | Absent:
    """Frame of an analysis, or why there is none."""
    return attempt(analysis.name, lambda: analysis.function(trace, **analysis.options))


def attempt(part: str, make: Callable[[], pl.DataFrame]) -> pl.DataFrame | Absent:
    """What a function returns, or why it cannot: only errors that say so on purpose are taken for an answer."""
    try:
        return make()
    except NotCapturedError as error:
        return Absent(part, captured=False, found=error.found, hint=error.hint)
    except AnalysisError as error:
        return Absent(part, captured=True, found=error.found, hint=error.hint)


@functools.cache
def library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script (0.9 MB), from the packages that are installed.

    Bundling takes seconds, so the script is kept in the user's cache folder under the versions it was made from.

    Raises
    ------
    OutputError
        The script could end the element that holds it.
    """
    kept = _cache_folder() / f"vega-embed-{vega_lite_version()}-vl-convert-{version('vl-convert-python')}.js"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return _checked(kept.read_bytes().decode())
    script = vlc.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=vega_lite_version())
    script = _checked(script.replace("\r\n", "\n").replace("\r", "\n"))
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time, nothing else
        kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile("wb", dir=kept.parent, delete=False) as file:
            file.write(script.encode())
        Path(file.name).replace(kept)
    return script


def _checked(script: str) -> str:
    if "</script" in script.lower() or "<!--" in script or "vegaEmbed" not in script:
        raise OutputError(
            "the Vega bundle of vl-convert cannot stand in a page", hint="install another vl-convert-python"
        )
    return script


def _cache_folder() -> Path:
    chosen = os.environ.get("LLMPROF_CACHE")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("llmprof")) / "vega"


def specification(chart: alt.TopLevelMixin) -> str:
    """Vega-Lite specification as JSON in which no character can end a script element."""
    return spec_json(chart)


def png(spec: str) -> bytes:
    """PNG image of a specification, two pixels for each of the chart."""
    return vlc.vegalite_to_png(spec, vl_version=vega_lite_version(), scale=2)


def source_hash(script: str) -> str:
    """A script's name in a Content-Security-Policy: only a script with this content runs."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
