"""Parameters of a sweep: parsed from text or taken from a preset, and expanded to the points of
the grid.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from llmprof.errors import ConfigError, listed, one_of
from llmprof.run.launch import ExperimentConfig
from llmprof.run.launch.config.options import plain_value
from llmprof.trace.storage import typed

PRESETS: dict[str, dict[str, list[Any]]] = {
    "quick": {"batch_size": [1, 2], "max_tokens": [50, 100]},
    "comprehensive": {
        "batch_size": [1, 2, 4, 8],
        "max_tokens": [50, 100, 200],
        "input_tokens": [64, 512],
        "temperature": [0.0, 0.7],
    },
    "scaling": {"tensor_parallel_size": [1, 2, 4, 8]},
}
"""Parameters by the name of the preset; ``scaling`` stops at the number of devices of the
machine.
"""

MAPPINGS = ("engine_args", "server", "environment")
"""Fields of the configuration whose keys can be varied by a sweep: ``engine_args.block_size``."""

MOST_POINTS = 10_000
"""Most points of a sweep: each takes at least seconds, and the state of a sweep lists them all."""

_NOT_SWEPT = ("results_dir", "experiment_name", *MAPPINGS)


def parse(text: str) -> dict[str, list[Any]]:
    """Values by parameter from text: ``"batch_size:1,2,4;max_tokens:100,200"``.

    A value that is valid JSON is decoded, any other is text. A value with a comma needs brackets or
    quotation marks, as in JSON.

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
            raise ConfigError(
                f"the parameter {part!r} has no values",
                expected='"batch_size:1,2,4;max_tokens:16,64"',
            )
        if name in parameters:
            raise ConfigError(
                f"the parameter {name} comes twice", hint="give all its values in one list"
            )
        parameters[name] = _values(value)
    if not parameters:
        raise ConfigError(
            "there is no parameter to sweep", expected='"batch_size:1,2,4;max_tokens:16,64"'
        )
    return parameters


def _values(text: str) -> list[Any]:
    try:
        return list(typed.bounded_value(json.loads(f"[{text}]"), len(text)))
    except (ValueError, RecursionError):
        return [plain_value(item.strip()) for item in text.split(",") if item.strip()]


def preset(name: str, *, devices: int = 0) -> dict[str, list[Any]]:
    """Parameters of a preset.

    Parameters
    ----------
    name : str
        One of :data:`PRESETS`.
    devices : int
        Number of devices of the machine (0: unknown); ``scaling`` stops there, but not below 2.

    Raises
    ------
    ConfigError
        There is no such preset.
    """
    if name not in PRESETS:
        raise ConfigError(f"there is no preset {name!r}", expected=f"one of {', '.join(PRESETS)}")
    parameters = {parameter: list(values) for parameter, values in PRESETS[name].items()}
    if name == "scaling":
        largest = max(2, devices) if devices else 2
        parameters["tensor_parallel_size"] = [
            size for size in parameters["tensor_parallel_size"] if size <= largest
        ]
    return parameters


def points(parameters: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Points of the grid, at most :data:`MOST_POINTS`: every combination of the values; the last
    changes fastest.
    """
    fields = [
        field.name for field in dataclasses.fields(ExperimentConfig) if field.name not in _NOT_SWEPT
    ]
    for name, values in parameters.items():
        head, dot, key = name.partition(".")
        if not (dot and key and head in MAPPINGS) and name not in fields:
            near = difflib.get_close_matches(name, fields, n=3, cutoff=0.5)
            found = f"the configuration has no {name!r} to sweep"
            raise ConfigError(found, expected=one_of(fields, near))
        if isinstance(values, str) or not values:
            raise ConfigError(
                f"the parameter {name} has no list of values", expected="a list such as [1, 2, 4]"
            )
    if (count := math.prod(len(values) for values in parameters.values())) > MOST_POINTS:
        found = f"the sweep has {count:,} points"
        raise ConfigError(found, expected=f"at most {MOST_POINTS:,}", hint="give fewer values")
    for name, values in parameters.items():
        if any(value in values[:i] for i, value in enumerate(values)):
            raise ConfigError(
                f"the parameter {name} has a value twice: {listed(values)}",
                expected="each value once",
            )
    if not parameters:
        raise ConfigError(
            "there is no parameter to sweep", expected='a mapping such as {"batch_size": [1, 2, 4]}'
        )
    return [
        dict(zip(parameters, values, strict=True))
        for values in itertools.product(*parameters.values())
    ]


def apply(config: ExperimentConfig, values: Mapping[str, Any]) -> ExperimentConfig:
    """Configuration with the values of a point."""
    options: dict[str, Any] = {}
    for name, value in values.items():
        head, dot, key = name.partition(".")
        if dot:
            options[head] = {**options.get(head, dict(getattr(config, head))), key: value}
        else:
            options[name] = value
    if "input_tokens" in options:
        options = {"prompt": None, "prompt_file": None} | options
    return config.replace(**options)


def label(values: Mapping[str, Any]) -> str:
    """Text of a point: ``batch_size=2, max_tokens=16``."""
    return ", ".join(f"{name}={value}" for name, value in values.items())


def point_name(name: str, values: Mapping[str, Any]) -> str:
    """Name of a point's run, made of the experiment's name and the values, which is a valid file
    name.

    >>> point_name("tiny_torch", {"batch_size": 2, "engine_args.block_size": 16})
    'tiny_torch_batch_size-2_block_size-16'
    """
    parts = [f"{key.rpartition('.')[2]}-{value}" for key, value in values.items()]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "_".join([name, *parts]))[:100]


def configs(
    config: ExperimentConfig, parameters: Mapping[str, Sequence[Any]]
) -> list[ExperimentConfig]:
    """Configuration of each point."""
    return [apply(config, values) for values in points(parameters)]
