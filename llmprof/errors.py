"""Errors of llmprof: one base class, each kind carrying the facts it was raised for.

Every message says what was found, what was expected and what to do about it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar


def listed(items: Iterable[object]) -> str:
    """Items joined by commas for a sentence; ``none`` if there are no items.

    >>> listed(["prefill", "decode"]), listed([]), listed((0, 1))
    ('prefill, decode', 'none', '0, 1')
    """
    return ", ".join(map(str, items)) or "none"


class LlmprofError(Exception):
    """Base of every error that llmprof raises on purpose.

    Parameters
    ----------
    found : str
        What was found.
    expected : str, optional
        What was expected instead.
    hint : str, optional
        What the user can do about it.
    **facts
        Machine-readable details, kept in ``facts``.
    """

    remedy: ClassVar[str] = ""
    """The hint of an error of this class that has none of its own."""

    def __init__(self, found: str, *, expected: str = "", hint: str = "", **facts: object) -> None:
        self.found = found
        self.expected = expected
        self.hint = hint or self.remedy
        self.facts = facts
        super().__init__(found)

    def __str__(self) -> str:
        parts = [self.found, f"expected {self.expected}" if self.expected else "", self.hint]
        message = "; ".join(part.rstrip(".") for part in parts if part)
        return message if message.endswith(("?", "!")) else f"{message}."

    def about(self, what: str) -> None:
        """Name the file or folder that the error is about, unless it names one; keep it in
        ``facts``.
        """
        if "path" in self.facts:
            return
        self.facts["path"] = what
        if what not in self.found:
            self.found = f"{what}: {self.found}"


class ArgumentError(LlmprofError, TypeError):
    """An argument has a kind that the function does not accept; the message names both kinds."""


class ReadError(LlmprofError):
    """A file or folder could not be read as a trace."""

    remedy = (
        "check that it is the whole file that the profiler wrote; if it is, record or export it"
        " again"
    )


class UnknownFormatError(ReadError):
    """No reader recognises the content."""

    remedy = "pass the file that the profiler wrote, as it wrote it"


class MixedRunsError(ReadError):
    """The files do not belong to one run, or two of them have the same rank."""

    remedy = "read each run separately"


class SchemaError(LlmprofError):
    """A frame does not conform to the schema."""

    remedy = "docs/schema.md lists the tables and the types of their columns"


class NotCapturedError(LlmprofError):
    """The capture does not have the requested data; the hint names the profiler option that
    records them.
    """


class IncompleteError(NotCapturedError):
    """Much of what was launched was not recorded, so that a comparison would be of the recordings,
    not of the runs.
    """


class AnalysisError(LlmprofError):
    """The data exist but do not allow the requested analysis."""


class DefectError(AnalysisError):
    """One part of a result could not be made, by a fault of llmprof; the others were.

    Its cause is what was raised.
    """

    remedy = (
        "the same command, or its --resume with the folder of a run, makes it again, and with"
        " --debug shows the traceback: please report this fault of llmprof"
    )


class OutputError(LlmprofError):
    """A result could not be written."""


class ConfigError(LlmprofError):
    """The description of a run is wrong: an unknown key, a wrong type, or options that
    contradict each other.
    """


class LaunchError(LlmprofError):
    """A run could not be started, or its engine or profiler failed."""


class CaptureError(LaunchError):
    """The profiler ran, but its recording is empty or incomplete."""


class ClusterError(LlmprofError):
    """The workers of a cluster cannot be reached, or are lost."""


def no_attribute(owner: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error for an attribute that does not exist, with the names that are nearest to it."""
    import difflib  # here, since few imports of llmprof end in it

    near = difflib.get_close_matches(name, list(known), n=2, cutoff=0.5)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    return AttributeError(f"{owner} has no attribute {name!r}{meant}", name=name)


@contextmanager
def needs(
    package: str, what: str, extra: str, kind: type[LlmprofError] = LlmprofError, more: str = ""
) -> Iterator[None]:
    """Where an import in this block fails, say what needs the package, and how to install it."""
    try:
        yield
    except ImportError as error:
        found = f"{what} the package {package}, which is not installed"
        raise kind(found, hint=f"pip install 'llmprof[{extra}]'{more}") from error


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Make one of several parts: what it raises by a fault of llmprof becomes a warning and a
    :class:`DefectError`.
    """
    try:
        yield
    except (LlmprofError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except (
        BaseException
    ) as error:  # also a panic of Polars, which is no Exception: no part may cost the others
        failed = DefectError(f"{what} failed: {type(error).__name__}: {error}")
        warning = TraceWarning(str(failed))
        warning.__cause__ = error
        warnings.warn(warning, stacklevel=3)
        raise failed from error


class TraceWarning(UserWarning):
    """A part of a trace was lost, was repaired or looks wrong; the rest was read."""


class PluginWarning(UserWarning):
    """A plug-in of another package cannot be used, or reads the same files as another reader;
    the rest works.
    """
