"""Names that a redacted copy keeps, as ``kept.toml`` lists them."""

from __future__ import annotations

import tomllib
from pathlib import Path


def kept_names(names: str) -> frozenset[str]:
    """One of the lists."""
    lists = tomllib.loads(Path(__file__).with_name("kept.toml").read_text("utf-8"))
    return frozenset(lists[names])
