"""Docstrings of public functions, with what their declaration says already: common parameters,
errors, an example.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any

_ORDER = ("Parameters", "Returns", "Raises", "Warns", "Notes", "Examples")
_SECTION = re.compile(rf"\n\n(?=(?:{'|'.join(_ORDER)})\n-{{3,}}\n)")


def completed(
    function: Callable[..., Any],
    parameters: Mapping[str, str],
    errors: Mapping[str, str],
    *,
    returns: str = "",
    example: str = "",
) -> str:
    """The docstring of a function, with the entries of numpydoc sections (by name) that it does
    not write itself.
    """
    head, *written = _SECTION.split(inspect.getdoc(function) or "")
    sections = {text.partition("\n")[0]: text.split("\n", 2)[2] for text in written}
    order = list(inspect.signature(function).parameters)
    own = _entries(sections.get("Parameters", ""))
    named = {name for names in own for name in names.split(", ")}
    own |= {
        name: entry for name, entry in parameters.items() if name in order and name not in named
    }
    sections["Parameters"] = "\n".join(
        own[names] for names in sorted(own, key=lambda n: order.index(n.split(", ")[0]))
    )
    sections["Raises"] = "\n".join((dict(errors) | _entries(sections.get("Raises", ""))).values())
    sections = {"Returns": returns, "Examples": example} | sections
    texts = [
        f"{title}\n{'-' * len(title)}\n{sections[title]}" for title in _ORDER if sections.get(title)
    ]
    return "\n\n".join([head, *texts])


def _entries(text: str) -> dict[str, str]:
    """Entries of a section by name: a line at the margin, and the indented ones after it."""
    number = 0

    def nth(line: str) -> int:
        nonlocal number
        number += not line.startswith(" ")
        return number

    entries = ["\n".join(lines) for _, lines in groupby(text.split("\n"), nth)] if text else []
    return {re.split(" :|\n", entry)[0].replace("*", ""): entry for entry in entries}
