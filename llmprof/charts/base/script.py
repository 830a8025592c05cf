"""HTML of charts in which no text of a recording can end a script.

Altair writes a specification into ``<script>`` as ``json.dumps`` gives it, where ``</script>`` in a
name ends the element. The names themselves stay as they are: what is written for them is JSON, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import altair as alt
from altair.utils.display import HTMLRenderer


def unending(text: str) -> str:
    """JSON in which no character can end a script element."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


class ScriptJSON(json.JSONEncoder):
    """Writes JSON in which no character can end a script element."""

    def encode(self, o: object) -> str:
        """JSON of a value."""
        return unending(super().encode(o))


def _escaping(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options for what Altair writes, with which it writes JSON of this kind."""
    return {**options, "json_kwds": {**(options.get("json_kwds") or {}), "cls": ScriptJSON}}


class ScriptSafe:
    """A chart that Altair writes into HTML with :class:`ScriptJSON`, through whichever door."""

    def to_html(self, *args: Any, **options: Any) -> str:
        """HTML of the chart, as :meth:`altair.Chart.to_html`."""
        return super().to_html(*args, **_escaping(options))  # type: ignore[misc, no-any-return]

    def save(self, *args: Any, **options: Any) -> None:
        """Write the chart to a file, as :meth:`altair.Chart.save`."""
        super().save(*args, **_escaping(options))  # type: ignore[misc]

    def _repr_mimebundle_(self, *args: Any, **options: Any) -> Any:
        renderers = alt.renderers
        active = renderers.get()
        of_html = (
            isinstance(getattr(active, "func", active), HTMLRenderer)
            or renderers.active == "browser"
        )
        with renderers.enable(**_escaping(renderers.options)) if of_html else nullcontext():
            return super()._repr_mimebundle_(*args, **options)  # type: ignore[misc]
