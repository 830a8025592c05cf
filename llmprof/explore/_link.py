"""Explorers that follow each other."""

from __future__ import annotations

from typing import Any

import traitlets

LINKED = ("window", "rank", "step", "layer", "stage")


class Link:
    """Link between explorers; :meth:`unlink` ends it."""

    def __init__(self, links: list[traitlets.link]) -> None:
        self._links = links

    def unlink(self) -> None:
        """Let the explorers go their own ways again."""
        for one in self._links:
            one.unlink()
        self._links = []


def link(*widgets: Any) -> Link:
    """Link the window, rank, step, layer and stage of explorers: what is chosen in one holds for all.

    Parameters
    ----------
    *widgets : Explorer
        Two or more. Where they differ at first, the first one that has a value decides.

    Returns
    -------
    Link
        Ends the link with ``unlink()``.
    """
    links = []
    for trait in LINKED:
        members = [widget for widget in widgets if widget.has_trait(trait)]
        leader = next((widget for widget in members if getattr(widget, trait) is not None), None)
        members.sort(key=lambda widget: widget is not leader)
        links += [traitlets.link((members[0], trait), (other, trait)) for other in members[1:]]
    return Link(links)
