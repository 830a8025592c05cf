"""Files that a tool merged out of those of several ranks, with the rank written on every event.

SGLang's merger puts it in front of the process (``[TP01-DP00] 1234``), TraceLens' TraceFusion among the arguments
(``rank``, beside ``pid_raw``).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

import msgspec

_LABEL: Final = re.compile(r"\[((?:[A-Z]{2}\d+-?)+)\] (.*)", re.DOTALL)
_DIMENSION: Final = re.compile(r"([A-Z]{2})(\d+)")
_MERGED_ARGS: Final = b'"pid_raw"'
_ORDER: Final = ("DP", "EP", "PP", "TP")


class _Rank(msgspec.Struct, gc=False):
    rank: int | None = None


_RANK: Final = msgspec.json.Decoder(_Rank)


def split(events: list[Any]) -> dict[str, list[Any]]:
    """Events by the label of their rank; all of them under the empty label in a file of one rank.

    Parameters
    ----------
    events : list
        A batch; a label in front of a process is taken off.

    Returns
    -------
    dict of str to list
        Events in their order; those of which nothing was decoded, such as flows, have the empty label.
    """
    first = next((e for e in events if getattr(e, "pid", None) is not None), None)
    if first is None or not (
        (isinstance(first.pid, str) and _LABEL.match(first.pid)) or _MERGED_ARGS in bytes(first.args)
    ):
        return {"": events}
    out: dict[str, list[Any]] = defaultdict(list)
    for event in events:
        out[_label(event)].append(event)
    return out


def _label(event: Any) -> str:
    pid = getattr(event, "pid", None)
    if isinstance(pid, str) and (match := _LABEL.match(pid)):
        event.pid = match[2]
        return match[1]
    if pid is None or _MERGED_ARGS not in bytes(event.args):
        return ""
    try:
        return str(_RANK.decode(event.args).rank)
    except msgspec.DecodeError:
        return ""


def ranks(labels: Iterable[str]) -> dict[str, int]:
    """Rank by label: its number where it is one, else its place by data, expert, pipeline and tensor part."""
    found = sorted(labels, key=_parts)
    numbers = [_parts(label)[-1] for label in found]
    alone = all(label.isdecimal() or re.fullmatch(r"TP\d+", label) for label in found)
    return dict(zip(found, numbers if alone else range(len(found)), strict=True))


def _parts(label: str) -> tuple[int, ...]:
    parts = {name: int(number) for name, number in _DIMENSION.findall(label)}
    return (*(parts.get(name, 0) for name in _ORDER[:-1]), int(label) if label.isdecimal() else parts.get("TP", 0))
