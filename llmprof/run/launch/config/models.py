"""Models with random weights: shapes of published models as data, so that a run needs no
download.
"""

from pathlib import Path
from typing import Any, Final

from llmprof.errors import ConfigError, LlmprofError
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
    """Path or name by which an engine finds a model."""
    if name.startswith(PREFIX):
        target = files.made(Path(folder) / _known(name))
        files.write_json(target / "config.json", catalog_config(name))
        return target.absolute()
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
