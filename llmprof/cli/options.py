"""Commands and their options, as ``commands.json`` lists them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

_TABLES: Final[dict[str, Any]] = msgspec.json.decode(
    Path(__file__).with_name("commands.json").read_bytes()
)
COMMANDS: Final[dict[str, dict[str, dict[str, Any]]]] = _TABLES["commands"]
"""Words, module and shared options of each command, by what it is for."""


def add_options(
    sub: argparse.ArgumentParser, name: str, **kinds: Callable[[str], Any]
) -> dict[str, argparse.Action]:
    """Add the options of a command, or those that several share, and return them by name;
    ``kinds`` are types of its own.
    """
    added: dict[str, argparse.Action] = {}
    exclusive = None
    for given in _TABLES["options"].get(name, ()):
        if "use" in given:
            added |= add_options(sub, given["use"])
            continue
        rest = {"help": argparse.SUPPRESS, **given}  # without words, an option is not shown
        if "type" in rest:
            rest["type"] = {"int": int, "float": float, "path": Path, **kinds}[rest["type"]]
        if rest.get("action") == "yes_or_no":
            rest["action"] = argparse.BooleanOptionalAction
        to: Any = sub
        if rest.pop("exclusive", False):
            to = exclusive = exclusive or sub.add_mutually_exclusive_group()
        action = to.add_argument(*rest.pop("flags").split(), **rest)
        added[action.dest] = action
    return added
