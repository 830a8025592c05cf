"""Models with random weights: shapes of published models as data, so that a run needs no download."""

import difflib
import json
from pathlib import Path
from typing import Any, Final

from llmprof.errors import ConfigError
from llmprof.storage.files import refused
from llmprof.theory import catalog

__all__ = ["NAMES", "SOURCES", "config_of", "resolve"]

PREFIX: Final = "random:"

NAMES: Final = catalog.names()
"""Names of the models in the catalogue (:mod:`llmprof.theory.catalog`); the prefix ``random:`` means random weights."""

SOURCES: Final[dict[str, str]] = {name: catalog.source(name) for name in NAMES}
"""Source of the shape of each model."""


def config_of(name: str) -> dict[str, Any]:
    """Read the ``config.json`` of a model in the catalogue."""
    short = name.removeprefix(PREFIX)
    name_of = {entry.lower(): entry for entry in NAMES}
    known_name = name_of.get(short.lower())
    if known_name is None:
        near = difflib.get_close_matches(short.lower(), name_of, n=1, cutoff=0.5)
        found = f"there is no model {PREFIX}{short}"
        hint = f"did you mean {PREFIX}{name_of[near[0]]}?" if near else "or give a folder with a config.json"
        raise ConfigError(found, expected=f"one of {', '.join(NAMES)}", hint=hint, known=NAMES)
    return catalog.config_of(known_name)


def resolve(name: str, folder: str | Path) -> Path:
    """Path or name by which an engine finds a model."""
    if name.startswith(PREFIX):
        config = config_of(name)
        target = Path(folder) / next(entry for entry in NAMES if entry.lower() == name.removeprefix(PREFIX).lower())
        try:
            target.mkdir(parents=True, exist_ok=True)
            (target / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise refused(target, error) from error
        return target.absolute()
    path = Path(name).expanduser()
    if path.is_dir() or (name.startswith(("/", ".", "~")) or name.count("/") != 1):
        if not (path / "config.json").is_file():
            found = f"the model's folder {name} {'has no config.json' if path.is_dir() else 'is missing'}"
            hint = f"check the path (a name on a hub is OWNER/NAME), or run one with random weights: {PREFIX}tiny"
            raise ConfigError(found, expected="a folder with the config.json of a model", hint=hint)
        return path.absolute()
    return Path(name)
