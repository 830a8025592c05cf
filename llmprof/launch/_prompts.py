"""Prompts of a run: given, from a file, or synthetic tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llmprof.errors import ConfigError
from llmprof.launch._config_files import read_text

if TYPE_CHECKING:
    from llmprof.launch.config import ExperimentConfig

DEFAULT_INPUT_TOKENS: Final = 64
_FIRST_ID, _LAST_ID = 5, 30_000
"""Tokens of synthetic prompts: neither the special ones at the start of a vocabulary nor the rare ones at its end."""

_KEYS: Final = ("prompt", "text", "instruction", "question", "content")


def texts(config: ExperimentConfig) -> list[str] | None:
    """Texts of a configuration, repeated or cut to its batch size; None for synthetic prompts.

    Raises
    ------
    ConfigError
        The file is missing, not UTF-8, or has no prompts.
    """
    if config.prompt is not None:
        found = [config.prompt] if isinstance(config.prompt, str) else config.prompt
    elif config.prompt_file is not None:
        found = from_file(Path(config.prompt_file))
    else:
        return None
    wanted = config.batch_size or len(found)
    return [found[i % len(found)] for i in range(wanted)]


def from_file(path: Path) -> list[str]:
    """Prompts of a file: lines of text, or JSON with texts or objects that have a prompt.

    Parameters
    ----------
    path : pathlib.Path
        ``.json`` (a list), ``.jsonl`` (a value a line), anything else is text with a prompt a line. Objects are
        asked for ``prompt``, ``text``, ``instruction``, ``question`` or ``content``, and for the first turn of
        ``conversations`` or ``messages``.

    Raises
    ------
    ConfigError
        The file is missing, not UTF-8, not valid JSON, or has no prompts.
    """
    content = read_text(path, "prompts as UTF-8 text or JSON")
    try:
        if path.suffix == ".json":
            document = json.loads(content)
            items = document if isinstance(document, list) else [document]
        elif path.suffix in {".jsonl", ".ndjson"}:
            items = [json.loads(line) for line in content.splitlines() if line.strip()]
        else:
            items = [line for line in content.splitlines() if line.strip()]
    except ValueError as error:
        raise ConfigError(f"{path.name} is not valid JSON: {error}", hint="correct it, or name it .txt") from error
    found = [text for item in items if (text := _text(item))]
    if not found:
        raise ConfigError(
            f"{path.name} has no prompts", expected=f"texts, or objects with one of the keys {', '.join(_KEYS)}"
        )
    return found


def synthetic(config: ExperimentConfig, vocabulary: int | None) -> list[list[int]]:
    """Token numbers of synthetic prompts; the same for the same seed.

    Parameters
    ----------
    config : ExperimentConfig
        Says how many and how long.
    vocabulary : int or None
        Size of the model's vocabulary, if it is known.
    """
    lengths = config.input_tokens or DEFAULT_INPUT_TOKENS
    low, high = lengths if isinstance(lengths, tuple) else (lengths, lengths)
    chance = random.Random(config.seed)  # noqa: S311 (no secret)
    last = max(_FIRST_ID + 1, min(vocabulary or _LAST_ID, _LAST_ID))
    return [
        [chance.randrange(_FIRST_ID, last) for _ in range(chance.randint(low, high))]
        for _ in range(config.batch_size or 1)
    ]


def as_tokens(prompts: list[str], vocabulary: int | None) -> list[list[int]]:
    """A token a byte of the text, for models without a tokenizer."""
    room = max(1, (vocabulary or _LAST_ID) - _FIRST_ID)
    return [[_FIRST_ID + byte % room for byte in prompt.encode()] for prompt in prompts]


def _text(item: Any) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, dict):
        for key in _KEYS:
            if isinstance(item.get(key), str):
                return str(item[key])
        for key in ("conversations", "messages"):
            turns = item.get(key)
            if isinstance(turns, list) and turns and isinstance(turns[0], dict):
                first = turns[0].get("value", turns[0].get("content"))
                return first if isinstance(first, str) else ""
    return ""
