"""Models with random weights: shapes of published models as data, so that a run needs no
download.
"""

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any, Final

from llmprof.errors import ConfigError, LlmprofError, OutputError
from llmprof.theory import catalog
from llmprof.trace.storage import files

PREFIX: Final = "random:"
"""Before the name of a model in the catalogue (:mod:`llmprof.theory.catalog`): it runs with
random weights.
"""


def _known(name: str) -> str:
    short = name.removeprefix(PREFIX)
    try:
        return catalog.catalogue_name(short)
    except LlmprofError as error:
        near, names = error.facts["near"], catalog.names()
        hint = (
            f"did you mean {PREFIX}{near[0]}?"
            if isinstance(near, list) and near
            else "or give a folder with a config.json"
        )
        found, expected = f"there is no model {PREFIX}{short}", f"one of {', '.join(names)}"
        raise ConfigError(found, expected=expected, hint=hint, known=names) from error


def catalog_config(name: str) -> dict[str, Any]:
    """Read the ``config.json`` of a model in the catalogue."""
    return catalog.model_config(_known(name))


def resolve(name: str, folder: str | Path) -> Path:
    """Path or name by which an engine finds a model; a run keeps the config of random weights."""
    if name.startswith(PREFIX):
        known, content = _known(name), catalog_config(name)
        own = files.made(Path(folder) / known)
        files.write_json(own / "config.json", content)
        # vLLM hashes the path: with one for all runs, what it compiled for the last one is used
        number = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
        shared = files.cache_folder("models") / number / known
        with contextlib.suppress(OutputError):
            files.write_json(files.made(shared) / "config.json", content)
            return shared.absolute()
        return own.absolute()
    path = Path(name).expanduser()
    if path.is_dir() or (name.startswith(("/", ".", "~")) or name.count("/") != 1):
        if not (path / "config.json").is_file():
            found = (
                f"the model's folder {name}"
                f" {'has no config.json' if path.is_dir() else 'is missing'}"
            )
            hint = (
                "check the path (a name on a hub is OWNER/NAME), or run one with random weights:"
                f" {PREFIX}tiny"
            )
            raise ConfigError(found, expected="a folder with the config.json of a model", hint=hint)
        return path.absolute()
    return Path(name)
