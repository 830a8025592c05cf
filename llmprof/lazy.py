"""Imports that wait until something is used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import MethodType, ModuleType

__all__ = ["Carded", "Later", "Method", "put_off", "put_off_formats"]


class Method:
    """A function that a package exports, as a method of its first argument; imported at its
    first use.
    """

    def __init__(self, package: str, name: str) -> None:
        self._package, self._name = package, name

    def __get__(self, instance: object, owner: type) -> object:
        function = getattr(import_module(self._package), self._name)
        return function if instance is None else MethodType(function, instance)


class Carded:
    """What a notebook shows as a card, made by a function of the report, which lower layers do
    not import.
    """

    _card = ""

    def _repr_html_(self) -> str:
        shown: str = getattr(import_module("llmprof.report.cards"), self._card)(self)
        return shown

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}


class Later:
    """A module that is imported at the first use of one of its attributes."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        return getattr(import_module(self._name), attribute)


def put_off_formats() -> None:
    """Make the import of ``jsonschema``, and so of Altair, nbformat and mcp, fast where Jupyter is
    installed.

    Jupyter's servers install libraries that jsonschema imports for formats that these schemas do
    not use: ``rfc3987_syntax`` builds 38 parsers, which takes three times as long as the rest of
    Altair (https://github.com/python-jsonschema/jsonschema/issues/1428), and ``arrow`` a sixth of
    the rest.
    """
    put_off("rfc3987_syntax", "is_valid_syntax")
    put_off("rfc3986_validator", "validate_rfc3986")
    put_off("arrow")


def put_off(name: str, *functions: str) -> None:
    """Put off the import of a library until one of its functions is called or another attribute is
    used.

    Until then another module with the same name takes its place, so ``from library import
    function`` does not import the library. Nothing happens for a library that is not installed or
    is already imported.
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
    stand_in.__file__ = spec.origin  # hypothesis and inspect ask it of every module
    if spec.submodule_search_locations is not None:
        stand_in.__path__ = spec.submodule_search_locations
    for function in functions:
        setattr(stand_in, function, calling(function))
    sys.modules[name] = stand_in
