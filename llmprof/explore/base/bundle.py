"""The browser's side of a widget as one ES module and one style sheet, put together without a build step."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from llmprof.errors import LlmprofError

JS = Path(__file__).parents[1] / "js"
CSS = Path(__file__).parents[1] / "css"

_IMPORT = re.compile(r'^import \{[^}\n]*\} from "\./([\w-]+)\.mjs";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?!default\b)", re.MULTILINE)
_TOP = re.compile(r"^(?:export )?(?:async )?(?:const|let|var|class|function\*?) (\w+)", re.MULTILINE)


@cache
def bundle(name: str) -> str:
    """One module of a widget: its file after all that it imports, each once, with the imports taken out.

    Parameters
    ----------
    name : str
        ``js/NAME.mjs``, which ends in ``export default { render };``.

    Returns
    -------
    str
        JavaScript that imports nothing.

    Raises
    ------
    LlmprofError
        A file is missing, or two define one name at their top level.
    """
    order: list[str] = []
    _collect(name, order, ())
    owners: dict[str, str] = {}
    parts = []
    for part in order:
        source = _read(part)
        for defined in _TOP.findall(source):
            if owners.setdefault(defined, part) != part:
                raise LlmprofError(
                    f"{part}.mjs and {owners[defined]}.mjs both define {defined}",
                    expected="names that are unique over the files of a widget",
                    name=defined,
                )
        parts.append(_EXPORT.sub("", _IMPORT.sub("", source)))
    return "\n".join(parts)


@cache
def style(*names: str) -> str:
    """Style sheet of a widget: what all share, then ``css/NAME.css`` of each name that has one."""
    sheets = [CSS / "base.css", *(CSS / f"{name}.css" for name in names)]
    return "\n".join(sheet.read_text("utf-8") for sheet in sheets if sheet.is_file())


def _collect(name: str, order: list[str], within: tuple[str, ...]) -> None:
    """Append a file after the files that it imports."""
    if name in order:
        return
    if name in within:
        raise LlmprofError(f"{' -> '.join((*within, name))}: files of a widget import each other in a circle")
    for needed in _IMPORT.findall(_read(name)):
        _collect(needed, order, (*within, name))
    order.append(name)


def _read(name: str) -> str:
    path = JS / f"{name}.mjs"
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        there = sorted(p.stem for p in JS.glob("*.mjs"))
        raise LlmprofError(f"there is no {name}.mjs", expected=f"one of {there}", name=name) from None
