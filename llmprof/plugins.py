"""Plug-ins: records that other packages add through entry points.

A package names its additions in its ``pyproject.toml``::

    [project.entry-points."llmprof.readers"]
    acme = "acme_llmprof:READER"

If a plug-in cannot be loaded, a warning names it, and everything else works. The user's own kernels
and operators stand in a TOML file, which ``LLMPROF_OWN`` or ``--own`` names.
"""

from __future__ import annotations

import importlib.metadata
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from llmprof.errors import LlmprofError, PluginWarning, listed

READERS: Final = "llmprof.readers"
ANALYSES: Final = "llmprof.analyses"
SECTIONS: Final = "llmprof.sections"
LISTINGS: Final = "llmprof.listings"
RANK_PLANS: Final = "llmprof.rank_plans"
KERNEL_NAMES: Final = "llmprof.kernel_names"
OPERATORS: Final = "llmprof.operators"

OWN: Final = "LLMPROF_OWN"
"""Variable that names the file of the user's own kernels and operators."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plugin:
    """One object that another package adds."""

    name: str
    """Name of the entry point."""
    package: str
    """Name and version of the package, such as ``acme-llmprof 1.2``."""
    value: Any
    """Object that the entry point refers to."""


class FailedError(Exception):
    """What the code of a plug-in raised, as text."""


@contextmanager
def foreign() -> Iterator[None]:
    """Run the code of a plug-in: an error of llmprof passes, another one is a FailedError."""
    try:
        yield
    except LlmprofError:
        raise
    except Exception as error:
        raise FailedError(f"{type(error).__name__}: {error}") from error


@cache
def own() -> dict[str, dict[str, Any]]:
    """Tables ``kernels``, ``operators`` and ``steps`` of the user's own file; empty without one."""
    tables: dict[str, dict[str, Any]] = {"kernels": {}, "operators": {}, "steps": {}}
    if path := os.environ.get(OWN):
        import tomllib

        try:
            given = tomllib.loads(Path(path).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise LlmprofError(
                f"{path} could not be read: {error}", expected=f"TOML with {listed(tables)}"
            ) from error
        for name, table in given.items():
            if name not in tables or not isinstance(table, dict):
                raise LlmprofError(
                    f"{path} has {name!r}", expected=f"the tables {listed(tables)} alone"
                )
        tables |= given
    return tables


@cache
def _entry_points() -> list[importlib.metadata.EntryPoint]:
    """What installed packages add; of packages with one name the first counts."""
    found: dict[str, importlib.metadata.Distribution] = {}
    for package in importlib.metadata.distributions():
        if "[llmprof." in (package.read_text("entry_points.txt") or ""):
            found.setdefault(package.name, package)
    return [point for package in found.values() for point in package.entry_points]


@cache
def load(group: str) -> tuple[Plugin, ...]:
    """Objects that installed packages add under one group of entry points, by name; loaded once per
    process.

    A warning names a plug-in that cannot be loaded; it is left out.
    """
    plugins = []
    points = [point for point in _entry_points() if point.group == group]
    for point in sorted(points, key=lambda point: (point.name, point.value)):
        package = f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"
        try:
            with foreign():
                plugins.append(Plugin(point.name, package, point.load()))
        except (FailedError, LlmprofError) as error:
            warn_left_out(f"{point.name!r} of {package}", group, f"{point.value} raised {error}")
    return tuple(plugins)


def records_in(names: Mapping[str, Any], kind: type[T]) -> tuple[T, ...]:
    """The records of one type among the names of a module and in their tuples, in the order of its
    imports.
    """
    values = [
        value
        for given in names.values()
        for value in (given if isinstance(given, tuple) else (given,))
    ]
    return tuple(value for value in values if isinstance(value, kind))


def records(group: str, kind: type[T]) -> list[tuple[Plugin, T]]:
    """The records of one type that plug-ins add, each with its plug-in; a warning names other
    objects.

    An entry point refers to one record, or to a list or tuple of records.
    """
    taken: list[tuple[Plugin, T]] = []
    for plugin in load(group):
        several = isinstance(plugin.value, list | tuple)
        for item in plugin.value if several else [plugin.value]:
            record = getattr(item, "__record__", item)
            if isinstance(record, kind):
                taken.append((plugin, record))
            else:
                warn_left_out(
                    f"{plugin.name!r} of {plugin.package}",
                    group,
                    f"it is {record!r}, no {kind.__name__}",
                )
    return taken


def new_records(
    group: str, kind: type[T], known: Iterable[T], name: Callable[[T], str], what: str
) -> list[tuple[Plugin, T]]:
    """The records that plug-ins add; a warning names those whose name (a ``what``) is already
    taken.
    """
    if not load(group):
        return []
    owners = {name(record): "llmprof" for record in known}
    out: list[tuple[Plugin, T]] = []
    for plugin, record in records(group, kind):
        owner = owners.setdefault(name(record), plugin.package)
        if any(name(record) == name(other) for _, other in out) or owner == "llmprof":
            warn_left_out(
                f"{plugin.name!r} of {plugin.package}",
                group,
                f"{owner} has the {what} {name(record)!r} already",
            )
            continue
        out.append((plugin, record))
    return out


def warn_left_out(which: str, group: str, why: str) -> None:
    """Warn that a plug-in is not used."""
    warnings.warn(
        f"the plug-in {which} ({group}) is left out: {why}; update the package or uninstall it",
        PluginWarning,
        stacklevel=4,
    )
