"""Imports that wait until something is used; public functions of packages check their arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import FunctionType, ModuleType

__all__ = ["Later", "attach", "put_off", "put_off_iri_grammars"]


class Later:
    """A module that is imported when something of it is first used.

    Parameters
    ----------
    name : str
        Name of the module.

    Examples
    --------
    >>> Later("math").sqrt(4)
    2.0
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        return getattr(import_module(self._name), attribute)


def attach(
    package: str, homes: Mapping[str, str | None], *, extra: str | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Functions ``__getattr__`` and ``__dir__`` of a package (PEP 562).

    A public name may be the name of a submodule, too (``charts.timeline`` is a function, its code lies in the folder
    ``charts/timeline``): importing the submodule leaves the public name alone. The arguments of public functions are
    checked (:mod:`llmprof.arguments`); the same functions taken from the modules that define them check nothing.

    Parameters
    ----------
    package : str
        Name of the package, its ``__name__``.
    homes : mapping of str to str or None
        For each public name the module that defines it; None where the name is that of a public submodule.
    extra : str, optional
        The extra of llmprof that the modules need; an import that fails for want of a library names it.

    Returns
    -------
    tuple of callable
        To be assigned to ``__getattr__`` and ``__dir__`` of the package.

    Examples
    --------
    >>> find, names = attach("llmprof.charts", {"save": "llmprof.charts.base.save"})
    >>> names()
    ['save']
    """

    class Package(ModuleType):
        def __setattr__(self, name: str, value: object) -> None:
            if isinstance(value, ModuleType) and homes.get(name) is not None:
                return  # the import system binds a submodule to its package
            super().__setattr__(name, value)

        def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
            return import_module, (package,)  # a function that uses it can be sent to a worker

    def find(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        try:
            value = import_module(f"{package}.{name}") if home is None else getattr(import_module(home), name)
        except ModuleNotFoundError as error:
            if extra is None or (error.name or "").partition(".")[0] == "llmprof":
                raise
            raise ModuleNotFoundError(
                f"{package}.{name} needs {error.name}, which is not installed: pip install 'llmprof[{extra}]'",
                name=error.name,
            ) from error
        if isinstance(value, FunctionType):
            from llmprof.arguments import checked

            value = checked(value)
        setattr(sys.modules[package], name, value)  # the next use finds it there
        return value

    def listed() -> list[str]:
        return sorted(homes)

    sys.modules[package].__class__ = Package
    return find, listed


def put_off_iri_grammars() -> None:
    """Make the import of ``jsonschema``, and so of Altair, nbformat and mcp, cheap beside a Jupyter server.

    Jupyter's servers install ``rfc3987_syntax``. jsonschema imports it for formats that none of their schemas has,
    and its import builds 38 parsers, which takes three times as long as the rest of Altair
    (https://github.com/python-jsonschema/jsonschema/issues/1428).

    Examples
    --------
    >>> put_off_iri_grammars()
    """
    put_off("rfc3987_syntax", "is_valid_syntax")


def put_off(name: str, *functions: str) -> None:
    """Put off the import of a library until something of it is used.

    A module of this name stands in for it. ``from library import function`` then imports nothing; a call of the
    function, or any other attribute, does. A library that is not installed, or is imported already, is left alone.

    Parameters
    ----------
    name : str
        Name of the package or module.
    functions : str
        Functions that others take from it when they are imported themselves.

    Examples
    --------
    >>> put_off("rfc3987_syntax", "is_valid_syntax")
    """
    spec = None if name in sys.modules else find_spec(name)
    if spec is None:
        return

    def library() -> ModuleType:
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]
        return import_module(name)

    def calling(function: str) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            return getattr(library(), function)(*arguments, **options)

        return call

    class PutOff(ModuleType):
        def __getattr__(self, attribute: str) -> object:
            return getattr(library(), attribute)

    stand_in = PutOff(name)
    stand_in.__spec__ = spec
    if spec.submodule_search_locations is not None:
        stand_in.__path__ = spec.submodule_search_locations
    for function in functions:
        setattr(stand_in, function, calling(function))
    sys.modules[name] = stand_in
