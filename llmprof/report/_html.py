"""Text and small parts of the page."""

from __future__ import annotations

import html
import re


def text(value: object) -> str:
    """A value as text in HTML, attributes included; control characters become visible."""
    out = "".join("\N{REPLACEMENT CHARACTER}" if ord(c) < 32 and c not in "\t\n" else c for c in str(value))
    return html.escape(out.encode("utf-8", "replace").decode(), quote=True)


def prose(value: object) -> str:
    """A sentence as text in HTML, each figure on one line with its unit."""
    return _UNIT.sub("\\1&nbsp;\\2", text(value))


_UNIT = re.compile(r"(\d) (%|[num]?s\b|[KMG]?i?B\b)")


def meter(share: float | None) -> str:
    """A bar as long as a share of one."""
    width = 0.0 if share is None else 100 * min(1.0, max(0.0, share))
    return f'<span class="meter"><i style="width:{width:.1f}%"></i></span>'


def sentence(words: str) -> str:
    """Words with a capital and a full stop."""
    return words[:1].upper() + words[1:].rstrip(".") + "." if words else ""
