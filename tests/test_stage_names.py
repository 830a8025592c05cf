"""Stages and categories are written one way everywhere: as the frames have them (``gate_up_proj``), in every text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmprof.charts.base.theme import CATEGORIES, STAGES

ROOT = Path(__file__).parents[1]
NOUNS = {"all_reduce", "all_gather", "all_to_all", "reduce_scatter", "send_recv", "kv_cache_write", "prepare_inputs"}
"""Stages whose other spelling is the field's own noun: a sentence speaks of an all-reduce, or of preparing inputs."""
PROJECTIONS = r"(?:qkv|gate[-_ ]?up|o|down)[- ]projections?"
"""What papers call them; here a stage is ``qkv_proj``, ``gate_up_proj``, ``o_proj`` or ``down_proj``."""
PLACES = [
    *(ROOT / "llmprof").rglob("*.py"),
    *(ROOT / "llmprof").rglob("*.mjs"),
    *(ROOT / "llmprof" / "report" / "templates").glob("*.html"),
    *(ROOT / "notebooks").glob("*.ipynb"),
    *(ROOT / "docs").glob("*.md"),
    *ROOT.glob("README*.md"),
]


def other_spellings(names: set[str]) -> re.Pattern[str]:
    joined = [r"[- ]".join(map(re.escape, name.split("_"))) for name in sorted(names)]
    return re.compile(rf"(?<![\w/.-])(?:{'|'.join([*joined, PROJECTIONS])})(?![\w/-])", re.IGNORECASE)


NAMES = {name for name in (*STAGES, *CATEGORIES) if "_" in name} - NOUNS
WRONG = other_spellings(NAMES)


@pytest.mark.parametrize(
    "text", ["the gate up proj", "its qkv-proj", "the QKV projection", "a Final norm", "down projections"]
)
def test_other_spellings_are_known(text):
    assert WRONG.search(text)


def test_stages_are_written_as_the_frames_have_them():
    found = []
    for path in PLACES:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if len(line) < 20_000 and (wrong := WRONG.search(line)):
                found.append(f"{path.relative_to(ROOT)}:{number}: {wrong[0]}")
    assert not found, "\n".join(found)
