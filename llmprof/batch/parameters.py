"""Parameters of a sweep: parsed from text or taken from a preset, and expanded to the points of the grid."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from llmprof.errors import ConfigError, listed
from llmprof.launch import ExperimentConfig

PRESETS: dict[str, dict[str, list[Any]]] = {
    "quick": {"batch_size": [1, 2, 4, 8], "max_tokens": [50, 100]},
    "comprehensive": {
        "batch_size": [1, 2, 4, 8],
        "max_tokens": [50, 100, 200],
        "input_tokens": [64, 512],
        "temperature": [0.0, 0.7],
    },
    "scaling": {"tensor_parallel_size": [1, 2, 4, 8]},
}
"""Parameters by the name of the preset; ``scaling`` stops at the number of devices of the machine."""

MAPPINGS = ("engine_args", "server", "environment")
"""Fields of which a sweep can vary one key: ``engine_args.block_size``."""

_NOT_SWEPT = ("results_dir", "experiment_name", *MAPPINGS)


def parse(text: str) -> dict[str, list[Any]]:
    """Parameters from text: ``"batch_size:1,2,4;max_tokens:100,200"``.

    Parameters
    ----------
    text : str
        Names and values; a value is JSON where it can be, else text. Values that hold a comma stand in brackets or
        quotation marks, as in JSON.

    Returns
    -------
    dict of str to list
        In the order of the text.

    Raises
    ------
    ConfigError
        A part has no name or no value, or a name comes twice.

    Examples
    --------
    >>> batch.parse("batch_size:1,2,4;max_tokens:16,64")
    {'batch_size': [1, 2, 4], 'max_tokens': [16, 64]}
    """
    parameters: dict[str, list[Any]] = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        name, colon, value = part.partition(":")
        name = name.strip().replace("-", "_")
        if not colon or not name or not value.strip():
            raise ConfigError(f"the parameter {part!r} has no values", expected='"batch_size:1,2,4;max_tokens:16,64"')
        if name in parameters:
            raise ConfigError(f"the parameter {name} comes twice", hint="give all its values in one list")
        parameters[name] = _values(value)
    if not parameters:
        raise ConfigError("there is no parameter to sweep", expected='"batch_size:1,2,4;max_tokens:16,64"')
    return parameters


def _values(text: str) -> list[Any]:
    try:
        return list(json.loads(f"[{text}]"))
    except ValueError:
        return [_value(item.strip()) for item in text.split(",") if item.strip()]


def _value(item: str) -> Any:
    constants = {"True": True, "False": False, "None": None}
    if item in constants:
        return constants[item]
    try:
        return json.loads(item)
    except ValueError:
        return item


def preset(name: str, *, devices: int = 0) -> dict[str, list[Any]]:
    """Parameters of a preset.

    Parameters
    ----------
    name : str
        One of :data:`PRESETS`.
    devices : int
        Devices of the machine; ``scaling`` goes no further, but to 2 at least. 0: unknown.

    Raises
    ------
    ConfigError
        There is no such preset.
    """
    if name not in PRESETS:
        raise ConfigError(f"there is no preset {name!r}", expected=f"one of {', '.join(PRESETS)}")
    parameters = {parameter: list(values) for parameter, values in PRESETS[name].items()}
    if name == "scaling":
        most = max(2, devices) if devices else 2
        parameters["tensor_parallel_size"] = [size for size in parameters["tensor_parallel_size"] if size <= most]
    return parameters


def points(parameters: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination, the last parameter changing fastest.

    Raises
    ------
    ConfigError
        A name is no field of the configuration, or has no values, or one value twice.
    """
    known = [field.name for field in dataclasses.fields(ExperimentConfig) if field.name not in _NOT_SWEPT]
    for name, values in parameters.items():
        head, dot, key = name.partition(".")
        if not (dot and key and head in MAPPINGS) and name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            raise ConfigError(
                f"the configuration has no {name!r} to sweep", expected=f"one of {', '.join(near or known)}"
            )
        if isinstance(values, str) or not values:
            raise ConfigError(f"the parameter {name} has no list of values", expected="a list such as [1, 2, 4]")
        if any(value in values[:i] for i, value in enumerate(values)):
            raise ConfigError(f"the parameter {name} has a value twice: {listed(values)}", expected="each value once")
    if not parameters:
        raise ConfigError("there is no parameter to sweep", expected='a mapping such as {"batch_size": [1, 2, 4]}')
    return [dict(zip(parameters, values, strict=True)) for values in itertools.product(*parameters.values())]


def apply(config: ExperimentConfig, values: Mapping[str, Any]) -> ExperimentConfig:
    """The configuration with the values of a point."""
    given: dict[str, Any] = {}
    for name, value in values.items():
        head, dot, key = name.partition(".")
        if dot:
            given[head] = {**given.get(head, dict(getattr(config, head))), key: value}
        else:
            given[name] = value
    if "input_tokens" in given:
        given = {"prompt": None, "prompt_file": None} | given
    return config.replace(**given)


def label(values: Mapping[str, Any]) -> str:
    """A point in words: ``batch_size=2, max_tokens=16``."""
    return ", ".join(f"{name}={value}" for name, value in values.items())


def point_name(name: str, values: Mapping[str, Any]) -> str:
    """Name of a point's run: that of the experiment and the values, as it can stand in a file name.

    >>> point_name("tiny_torch", {"batch_size": 2, "engine_args.block_size": 16})
    'tiny_torch_batch_size-2_block_size-16'
    """
    parts = [f"{key.rpartition('.')[2]}-{value}" for key, value in values.items()]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "_".join([name, *parts]))[:100]


def configs(config: ExperimentConfig, parameters: Mapping[str, Sequence[Any]]) -> list[ExperimentConfig]:
    """The configuration of each point.

    Raises
    ------
    ConfigError
        A parameter is not known, or a value does not go with the configuration.
    """
    return [apply(config, values) for values in points(parameters)]
