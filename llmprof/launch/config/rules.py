"""Which options of a run do not go together."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from llmprof.errors import ConfigError
from llmprof.launch.config.types import checked, refuse_unknown
from llmprof.launch.engines import engine, engines

if TYPE_CHECKING:
    from llmprof.launch.config.options import ExperimentConfig

SERVER: Final[dict[str, tuple[Any, Any]]] = {
    "port": (int, 0),
    "num_prompts": (int, 16),
    "request_rate": (float, 0.0),
    "max_concurrency": (int, 4),
    "profile_after_s": (float, 0.0),
    "health_timeout_s": (float, 300.0),
}
"""Keys of ``server`` with their types and defaults; port 0 is a free one, rate 0 is all at once."""

NCU: Final[dict[str, tuple[Any, Any]]] = {
    "kernel_name": (str | None, None),
    "launch_skip": (int | None, None),
    "launch_count": (int | None, None),
    "set": (str, "full"),
    "top": (int, 5),
    "options": (dict[str, Any], {}),
}
"""Keys of ``ncu_options``; ``options`` are more options of ncu by long name."""

_NAME: Final = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,120}$")
_OPTION: Final = re.compile(r"^(?:--)?[a-z][a-z0-9-]*$")
_OURS: Final = {"output", "export", "command-file", "session", "session-new", "import", "log-file"}
_VARIABLE: Final = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_LARGEST_PORT: Final = 65535


def check_together(config: ExperimentConfig) -> None:
    """Raise where options do not go together.

    Parameters
    ----------
    config : ExperimentConfig
        Each of its values has the right type.

    Raises
    ------
    ConfigError
        With the two options and what to do.
    """
    _check_prompts(config)
    _check_engine(config)
    for name, known in (("server", SERVER), ("ncu_options", NCU)):
        given = getattr(config, name)
        refuse_unknown(given, known, name)
        for key, value in given.items():
            number = checked(value, known[key][0], f"{name}.{key}")
            if isinstance(number, int | float) and number < 0:
                raise ConfigError(f"{name}.{key} is {number}", expected="at least 0", key=f"{name}.{key}")
    if config.server.get("port", 0) > _LARGEST_PORT:
        raise ConfigError(f"server.port is {config.server['port']}", expected=f"0 to {_LARGEST_PORT}")
    for name, options in (("nsys_options", config.nsys_options), ("ncu_options.options", ncu_options(config))):
        _check_options(options, name)
    if config.experiment_name is not None and not _NAME.match(config.experiment_name):
        raise ConfigError(
            f"experiment_name is {config.experiment_name!r}", expected="letters, digits, dots, dashes and underscores"
        )
    for key, value in config.environment.items():
        if not _VARIABLE.match(key) or "\0" in value:
            raise ConfigError(f"environment has the name {key!r}", expected="letters, digits and underscores")


def ncu_options(config: ExperimentConfig) -> dict[str, Any]:
    """The further options of ncu that a configuration asks for."""
    found: dict[str, Any] = config.ncu_options.get("options", {})
    return found


def setting(config: ExperimentConfig, of: str, key: str) -> Any:
    """A value of ``server`` or ``ncu_options``, or its default."""
    known = {"server": SERVER, "ncu_options": NCU}[of]
    return getattr(config, of).get(key, known[key][1])


def _check_prompts(config: ExperimentConfig) -> None:
    given = [name for name in ("prompt", "prompt_file", "input_tokens") if getattr(config, name) is not None]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} are given together", expected="one of them")
    if config.prompt is not None and not config.prompt:
        raise ConfigError("prompt is empty", expected="text, or at least one text")
    lengths = config.input_tokens if isinstance(config.input_tokens, tuple) else (config.input_tokens or 1,)
    if config.input_tokens == 0 or min(lengths) < 1 or lengths[0] > lengths[-1]:
        raise ConfigError(f"input_tokens is {config.input_tokens}", expected="at least 1, or [low, high] in order")
    if config.max_model_len is not None and max(lengths) + config.max_tokens > config.max_model_len:
        raise ConfigError(
            f"input_tokens and max_tokens are {max(lengths) + config.max_tokens} together, "
            f"and max_model_len is {config.max_model_len}",
            hint="raise max_model_len, or ask for less",
        )


def _check_engine(config: ExperimentConfig) -> None:
    if not config.model.strip() or "\0" in config.model:
        raise ConfigError(f"model is {config.model!r}", expected="a folder, a name on the hub, or random:tiny")
    chosen = engine(config.engine, served=config.served)
    if chosen.most_ranks is not None and config.world_size > chosen.most_ranks:
        others = ", ".join(sorted({one.name for one in engines() if one.most_ranks is None}))
        raise ConfigError(
            f"the engine {chosen.name} was asked for {config.world_size} ranks",
            expected="one" if chosen.most_ranks == 1 else f"at most {chosen.most_ranks}",
            hint=f"choose engine {others} for tensor or pipeline parallel runs",
        )
    if config.served and config.profile_mode in {"ncu", "nsys_ncu"}:
        raise ConfigError(
            f"a served run was asked for with profile_mode {config.profile_mode}",
            expected="inference_only, torch or nsys",
            hint="ncu replays kernels, so requests of a server time out; run ncu on an offline run",
        )
    if config.server and not config.served:
        raise ConfigError("server has options, but served is false", hint="set served: true, or leave them out")
    if config.layer_annotations and config.eager is False:
        raise ConfigError(
            "layer_annotations was asked for with eager false",
            hint="names of layers are lost inside CUDA graphs and compiled code: set eager: true",
        )


def _check_options(options: dict[str, Any], name: str) -> None:
    for key, value in options.items():
        if not _OPTION.match(key):
            raise ConfigError(f"{name} has the key {key!r}", expected="the long name of an option, such as trace")
        if key.removeprefix("--") in _OURS:
            raise ConfigError(f"{name} has {key}, which the run folder decides", hint="leave it out")
        if isinstance(value, dict | list) or "\0" in str(value):
            raise ConfigError(f"{name}.{key} is {value!r}", expected="text, a number, true, false or null")
