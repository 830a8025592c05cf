"""Options of a run: a typed description for notebooks, files and the command line, and the rules
between options.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from llmprof.errors import ConfigError, LaunchError, nearest, needs
from llmprof.run.launch.engines import engine, engines, interpreter
from llmprof.text import shorten
from llmprof.trace.storage import files, typed

_FOLDED: Final = re.compile("[\x85\u2028\u2029\ufeff]")


def load(path: Path) -> Any:
    """Content of a YAML or JSON file."""
    text = read_text(path, "a configuration (YAML or JSON)")
    if path.suffix != ".json":
        return typed.from_yaml(text, path.name, error=ConfigError)
    try:
        return typed.bounded_value(
            json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, path)), len(text)
        )
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path.name} is not valid JSON: {error}", hint="correct it at that place"
        ) from error


def _save(values: dict[str, Any], path: Path, *, overwrite: bool = False) -> Path:
    """Write values as YAML or JSON, by the suffix; if that fails, an earlier file stays as it
    was.
    """
    as_json = path.suffix == ".json"
    text = json.dumps(values, indent=1, ensure_ascii=False) + "\n" if as_json else _dumped(values)
    return files.write_output(path, text, overwrite=overwrite)


def read_text(path: Path, what: str) -> str:
    """Text of a UTF-8 file."""
    try:
        data = files.regular(path.expanduser()).read_bytes()
    except OSError as error:
        found = f"{path} cannot be read: {error.strerror or error}"
        raise ConfigError(found, expected=what, hint="check the path") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        guess = "UTF-16" if data[:2] in {b"\xff\xfe", b"\xfe\xff"} else "Latin-1 or Windows-1252"
        problem = f"{path.name} is not UTF-8: byte {data[error.start]:#04x} in line {line}"
        hint = (
            f"it may be {guess}: iconv -f {'UTF-16' if guess == 'UTF-16' else 'WINDOWS-1252'} -t"
            " UTF-8"
        )
        raise ConfigError(problem, expected=what, hint=hint, line=line) from error


def _dumped(values: dict[str, Any]) -> str:
    """YAML of the values; texts with line breaks that YAML folds (NEL, LS, PS) are quoted to
    keep them.
    """
    yaml = _yaml()

    class Dumper(yaml.SafeDumper):  # type: ignore[misc, name-defined]
        """Safe dumper that quotes texts with line breaks that would be folded."""

    def text(dumper: Any, value: str) -> Any:
        style = '"' if _FOLDED.search(value) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return str(yaml.dump(values, Dumper=Dumper, sort_keys=False, allow_unicode=True))


def _once(pairs: list[tuple[str, Any]], path: Path) -> dict[str, Any]:
    typed.refuse_twice([key for key, _ in pairs], path.name, ConfigError)
    return dict(pairs)


def _yaml() -> Any:
    with needs("pyyaml", "YAML needs", "launch", LaunchError):
        import yaml
    return yaml


_WORDS: Final[dict[Any, str]] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a mapping",
    type(None): "null",
}


def checked_option(value: Any, hint: Any, name: str) -> Any:
    """Check that a value has its declared type, and return it.

    Whole numbers pass as numbers and lists as tuples; nothing else is converted, so that ``"4"`` or
    ``yes`` in the wrong place is an error and not a guess.
    """
    plain = str(value) if isinstance(value, Path) else value
    try:
        converted = msgspec.convert(plain, hint, strict=True)
    except ValueError as error:  # also half a surrogate pair
        raise _wrong(*_innermost(plain, hint, name)) from error
    if isinstance(converted, float) and not math.isfinite(converted):
        raise _wrong(value, hint, name)
    return converted


def _innermost(value: Any, hint: Any, name: str) -> tuple[Any, Any, str]:
    """The innermost part of a value that its declared type refuses, with that type and the name
    of the part.
    """
    parts: list[tuple[Any, Any, str]] = []
    for declared in (hint, *typing.get_args(hint)):
        origin, args = typing.get_origin(declared), typing.get_args(declared)
        if isinstance(value, dict) and origin is dict:
            parts += [(key, args[0], f"a key of {name}") for key in value]
            parts += [(item, args[1], f"{name}.{key}") for key, item in value.items()]
        elif isinstance(value, list) and (
            origin is list or (origin is tuple and len(value) == len(args))
        ):
            of_items = args if origin is tuple else args * len(value)
            parts += [(item, of_items[i], f"{name}[{i}]") for i, item in enumerate(value)]
    wrong = next((part for part in parts if not _converts(part[0], part[1])), None)
    return (value, hint, name) if wrong is None else _innermost(*wrong)


def _converts(value: Any, hint: Any) -> bool:
    try:
        msgspec.convert(value, hint, strict=True)
    except ValueError:
        return False
    return True


def refuse_unknown_keys(given: Iterable[object], known: Iterable[str], what: str) -> None:
    """Raise for the first key that is not known."""
    names = list(known)
    for key in given:
        if key not in names:
            found = f"{what} has the unknown key {key!r}"
            hint = nearest(str(key), names)
            expected = "" if hint else f"some of {', '.join(names)}"
            raise ConfigError(found, expected=expected, hint=hint, key=key)


def _wrong(value: Any, hint: Any, name: str) -> ConfigError:
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        return ConfigError(
            f"{name} is {value!r}", expected=_words(hint), hint=nearest(value, choices), key=name
        )
    kind = _WORDS.get(type(value), type(value).__name__)
    text, advice = shorten(repr(value), 60), ""
    if isinstance(value, str) and any(
        _converts(0, member) for member in (hint, *typing.get_args(hint))
    ):
        advice = "write it without quotes; a number such as 1e-3 needs a dot in YAML: 1.0e-3"
    return ConfigError(f"{name} is {kind}: {text}", expected=_words(hint), hint=advice, key=name)


def _words(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in {typing.Union, types.UnionType}:
        return " or ".join(_words(member) for member in args)
    if origin is list:
        return f"a list of {_words(args[0]).removeprefix('a ')}"
    if origin is tuple:
        return f"a list of {len(args)} values"
    if origin is Literal:
        return f"one of {', '.join(map(str, args))}"
    return _WORDS.get(origin or hint, str(hint))


def plain_value(text: str) -> Any:
    """Value of an option as text: JSON or a constant of Python, else the text itself."""
    constants = {"True": True, "False": False, "None": None}
    try:
        return (
            constants[text]
            if text in constants
            else typed.bounded_value(json.loads(text), len(text))
        )
    except (ValueError, RecursionError):
        return text


_ALIASES: Final = {"model_path": "model", "base_prompt": "prompt", "name": "experiment_name"}
"""Names of keys in other tools, with ours."""

PRESETS: Final[dict[str, dict[str, Any]]] = {
    "classic": {
        "profile_mode": "inference_only",
        "prompt": "Hello, how are you?",
        "max_tokens": 100,
        "temperature": 0.7,
        "batch_size": 1,
    }
}
"""Defaults of other tools by the name of the preset; what is given beside a preset goes over it,
and other prompts take the place of its prompt.
"""
_PROMPTS: Final = ("prompt", "prompt_file", "input_tokens")


def with_our_names(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """Values under the keys of a configuration, with those of a preset below them."""
    renamed: dict[Any, Any] = {}
    for key, value in values.items():
        ours = _ALIASES.get(key, key) if isinstance(key, str) else key
        if ours != key and (ours in values or ours in renamed):
            raise ConfigError(
                f"{key} and {ours} are given together", expected="one of them", key=key
            )
        renamed[ours] = value
    if (preset := renamed.pop("preset", None)) is None:
        return renamed
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ConfigError(
            f"there is no preset {preset!r}", expected=f"one of {', '.join(PRESETS)}", key="preset"
        )
    return PRESETS[preset] | ({"prompt": None} if _other_prompts(renamed) else {}) | renamed


def _other_prompts(values: Mapping[str, Any]) -> bool:
    """Whether some values say what the prompts are."""
    sources = {name for name in _PROMPTS if values.get(name) is not None}
    return bool(sources or {"file", "input"} & set(values.get("load") or ()))


def template(fields: Iterable[dataclasses.Field[Any]]) -> str:
    """Text of a commented YAML file with every field of a configuration and its default."""
    lines = [
        (
            "# A run of llmprof: llmprof run --config THIS_FILE. Options in comments have their"
            " default."
        ),
        "",
    ]
    for one in fields:
        lines.append(f"# {one.metadata['help']}")
        if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING:
            lines.append(f"{one.name}: random:tiny")
        else:
            made = one.default_factory() if callable(one.default_factory) else one.default
            lines.append(f"# {one.name}: {json.dumps(made)}")
        lines.append("")
    return "\n".join(lines)


SERVER: Final[dict[str, tuple[Any, Any]]] = {
    "port": (int, 0),
    "num_prompts": (int, 16),
    "request_rate": (float, 0.0),
    "max_concurrency": (int, 4),
    "profile_after_s": (float, 0.0),
    "health_timeout_s": (float, 300.0),
    "profile_from_iteration": (int, 100),
}
"""Keys of ``server`` with their types and defaults.

Port 0 means a free port, rate 0 all requests at once. The last key is for TensorRT-LLM, which
starts and stops its profiler by the number of iterations.
"""

LOAD: Final[dict[str, tuple[Any, Any]]] = {
    "input": (str | int | None, None),
    "output": (str | int | None, None),
    "shared_prefix": (float, 0.0),
    "prefixes": (int, 1),
    "arrival": (Literal["poisson", "constant", "burst"], "poisson"),
    "burst": (int, 8),
    "file": (str | None, None),
    "time_unit": (Literal["s", "ms"], "s"),
    "speed": (float, 1.0),
    "skip_broken": (bool, False),
}
"""Keys of ``load``: lengths in tokens, the share of each prompt that is a common prefix (and the
number of different prefixes), the distribution of arrival times, and a file that states all of this
for each request.
"""

NCU: Final[dict[str, tuple[Any, Any]]] = {
    "kernel_name": (str | None, None),
    "launch_skip": (int | None, None),
    "launch_count": (int | None, None),
    "set": (str, "full"),
    "top": (int, 5),
    "options": (dict[str, Any], {}),
}
"""Keys of ``ncu_options``; ``options`` are further options of ncu by their long names."""

OPS: Final[dict[str, tuple[Any, Any]]] = {
    "steps": (int, 20),
    "every": (int, 2),
    "layers": (int, 8),
    "operator_layers": (int, 1),
    "depth": (int, 3),
    "method": (Literal["events", "synchronize"], "events"),
    "cycle": (list[tuple[str, int]], []),
    "hold": (bool, False),
    "hold_ms": (float, 20.0),
    "functional": (bool, False),
    "memory": (Literal["steps", "operators", "off"], "steps"),
    "functions": (dict[str, str], {}),
    "metrics": (dict[str, str], {}),
}
"""Keys of ``ops_options`` with their types and defaults.

- ``steps``: largest number of engine steps that are timed; ``every``: interval between timed steps
  (2: every second).
- ``layers``: number of layers that are timed in a step, in turn; 0 means all. ``operator_layers``:
  number of layers whose operators are timed, too; 0 means all, -1 none. ``depth``: levels of
  modules below a layer. On an H200 whose eager decode waits for the host, a step timed with the
  defaults took 3.5 % longer (1.8 % with ``operator_layers: -1``, 3.8 % with all layers, 5.5 % with
  the operators of two layers, 30 % with those of all). With every second step timed, the whole
  window took 1.7 % longer.
- ``method``: ``events`` (CUDA events), or ``synchronize``, which waits for the device around each
  operator and distorts the times.
- ``cycle``: pairs of a method (or ``none``) and a number of steps, repeated, to compare methods in
  one engine; ``events+hold`` is ``events`` with ``hold``.
- ``hold``: the device waits ``hold_ms`` (ms) before each timed forward pass, so that the host is
  ahead and no operator waits for it.
- ``functional``: whether each operator that PyTorch dispatches is timed, too, in the layers whose
  operators are timed.
- ``memory``: whether allocated memory is read before and after steps, or before and after every
  operator.
- ``functions``, ``metrics``: your own functions by name, each a ``module:attribute`` that the
  engine can import. A metric is called with the name, the arguments and the result of each
  operator, and returns a number.
"""

SIZES: Final[dict[str, dict[str, Any]]] = {
    "quick": {"steps": 3, "max_tokens": 20, "warmup": 1, "layers": 0, "operator_layers": 4},
    "detailed": {
        "steps": 10,
        "max_tokens": 100,
        "warmup": 3,
        "layers": 0,
        "operator_layers": 0,
        "memory": "operators",
    },
    "production": {"steps": 20, "max_tokens": 200, "warmup": 5, "layers": 0, "operator_layers": 2},
}
"""Ready-made sizes: timed steps, output tokens, warm-up runs, timed layers per step, layers with
timed operators, and what memory is read around.
"""

_GROUPS: Final = {"server": SERVER, "load": LOAD, "ncu_options": NCU, "ops_options": OPS}
_LEAST: Final = {
    **dict.fromkeys((*SERVER, *NCU, "shared_prefix", "speed", "layers"), 0),
    "operator_layers": -1,
}
"""Smallest values of the numbers of groups, where they are not 1."""

_METHODS: Final = ("none", "events", "synchronize", "events+hold")
_WHERE: Final = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")
_OURS_OF_THE_ENGINE: Final = {
    "model": "model",
    "dtype": "dtype",
    "max_model_len": "max_model_len",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "seed": "seed",
    "enforce_eager": "eager",
    "disable_custom_all_reduce": "all_reduce",
    "profiler_config": "profile_mode, max_iterations, with_stack, record_shapes and profile_memory",
    "worker_extension_cls": "",
    "disable_log_stats": "",
}
"""Arguments of vLLM that a run sets itself, with the option of the run that sets each one."""

_NAME: Final = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,120}$")
_OPTION: Final = re.compile(r"^(?:--)?[a-z][a-z0-9-]*$")
_OURS: Final = {"output", "export", "command-file", "session", "session-new", "import", "log-file"}
_VARIABLE: Final = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_INSTANCES: Final = re.compile(r"[1-9]\d?\+[1-9]\d?")
_LARGEST_PORT: Final = 65535


def check_together(config: ExperimentConfig) -> None:
    """Check that the options of a run do not contradict each other."""
    _check_prompts(config)
    _check_engine(config)
    for name, group_options in _GROUPS.items():
        given = getattr(config, name)
        refuse_unknown_keys(given, group_options, name)
        for key, value in given.items():
            number, least = (
                checked_option(value, group_options[key][0], f"{name}.{key}"),
                _LEAST.get(key, 1),
            )
            if isinstance(number, int | float) and not isinstance(number, bool) and number < least:
                raise ConfigError(
                    f"{name}.{key} is {number}", expected=f"at least {least}", key=f"{name}.{key}"
                )
    _check_load(config)
    _check_ops(config)
    for name in config.engine_args if config.engine == "vllm" else ():
        option = _OURS_OF_THE_ENGINE.get(name.replace("-", "_"))
        if option is not None:
            found = f"engine_args has {name}, which a run sets itself"
            wanted = f"the option {option} of the run" if option else "no such argument"
            raise ConfigError(found, expected=wanted, key=f"engine_args.{name}")
    if config.top_p > 1 or not config.top_p:
        raise ConfigError(
            f"top_p is {config.top_p}", expected="more than 0, at most 1", key="top_p"
        )
    if config.until is not None and not 0 < config.until < 1:
        raise ConfigError(
            f"until is {config.until}", expected="a share of the mean, such as 0.03", key="until"
        )
    if config.server.get("port", 0) > _LARGEST_PORT:
        raise ConfigError(
            f"server.port is {config.server['port']}", expected=f"0 to {_LARGEST_PORT}"
        )
    _check_options(config.nsys_options, "nsys_options")
    _check_options(setting(config, "ncu_options", "options"), "ncu_options.options")
    if config.experiment_name is not None and not _NAME.match(config.experiment_name):
        expected = "letters, digits, dots, dashes and underscores"
        raise ConfigError(f"experiment_name is {config.experiment_name!r}", expected=expected)
    for key, value in config.environment.items():
        if not _VARIABLE.match(key) or "\0" in value:
            raise ConfigError(
                f"environment has the name {key!r}", expected="letters, digits and underscores"
            )


def _check_load(config: ExperimentConfig) -> None:
    if (shared := setting(config, "load", "shared_prefix")) > 1:
        raise ConfigError(
            f"load.shared_prefix is {shared}", expected="a share of each prompt, 0 to 1"
        )
    if not setting(config, "load", "speed"):
        raise ConfigError("load.speed is 0", expected="more than 0")
    if not config.load:
        return
    given = [name for name in ("prompt", "prompt_file") if getattr(config, name) is not None]
    if given and {"file", "input"} & set(config.load):
        raise ConfigError(f"{given[0]} and load are given together", expected="one of them")
    if not config.served and ({"arrival", "burst"} & set(config.load)):
        raise ConfigError(
            "load states when requests arrive, but the run is not served", hint="set served: true"
        )
    if setting(config, "load", "arrival") != "poisson" and not setting(
        config, "server", "request_rate"
    ):
        found = f"load.arrival is {config.load['arrival']}, but there is no rate"
        raise ConfigError(found, hint="set server request_rate=N")


def _check_ops(config: ExperimentConfig) -> None:
    if config.profile_mode != "ops":
        if config.ops_options:
            found = f"ops_options are given, but profile_mode is {config.profile_mode}"
            raise ConfigError(found, hint="set profile_mode: ops, or leave them out")
        return
    for method, count in setting(config, "ops_options", "cycle"):
        if method not in _METHODS or count < 1:
            expected = f"one of {', '.join(_METHODS)} and steps above 0"
            raise ConfigError(f"ops_options.cycle has {method!r}, {count}", expected=expected)
    for key in ("functions", "metrics"):
        for name, where in setting(config, "ops_options", key).items():
            if not _WHERE.match(where):
                raise ConfigError(
                    f"ops_options.{key}.{name} is {where!r}", expected="module:attribute"
                )
    if config.eager is False:
        raise ConfigError(
            "profile_mode is ops, but eager is false",
            hint=(
                "CUDA graphs and compiled code call no modules, so there is nothing to time in"
                " them: set eager: true, or choose profile_mode torch or nsys, which see the"
                " kernels of graphs"
            ),
        )
    if not engine(config.engine, served=config.served).times_operators:
        able = sorted(
            {entry.name for entry in engines() if entry.times_operators and not entry.served}
        )
        what = (
            f"a served run of {config.engine}" if config.served else f"the engine {config.engine}"
        )
        raise ConfigError(
            f"{what} cannot time operators", hint=f"run {' or '.join(able)} with served: false"
        )


def setting(config: ExperimentConfig, group: str, key: str) -> Any:
    """Value of a key of ``server``, ``load``, ``ncu_options`` or ``ops_options``, or its
    default.
    """
    return getattr(config, group).get(key, _GROUPS[group][key][1])


def _check_prompts(config: ExperimentConfig) -> None:
    given = [name for name in _PROMPTS if getattr(config, name) is not None]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} are given together", expected="one of them")
    if config.prompt is not None and not config.prompt:
        raise ConfigError("prompt is empty", expected="text, or at least one text")
    lengths = (
        config.input_tokens
        if isinstance(config.input_tokens, tuple)
        else (config.input_tokens or 1,)
    )
    if config.input_tokens == 0 or min(lengths) < 1 or lengths[0] > lengths[-1]:
        raise ConfigError(
            f"input_tokens is {config.input_tokens}", expected="at least 1, or [low, high] in order"
        )
    if config.max_model_len is not None and max(lengths) + config.max_tokens > config.max_model_len:
        both = f"input_tokens and max_tokens are {max(lengths) + config.max_tokens} together"
        found = f"{both}, and max_model_len is {config.max_model_len}"
        raise ConfigError(found, hint="raise max_model_len, or lower the others")


def _check_engine(config: ExperimentConfig) -> None:
    if not config.model.strip() or "\0" in config.model:
        raise ConfigError(
            f"model is {config.model!r}", expected="a folder, a name on the hub, or random:tiny"
        )
    chosen = engine(config.engine, served=config.served)
    if chosen.most_ranks is not None and config.world_size > chosen.most_ranks:
        others = ", ".join(sorted({entry.name for entry in engines() if entry.most_ranks is None}))
        raise ConfigError(
            f"the engine {chosen.name} cannot use {config.world_size} ranks",
            expected="one" if chosen.most_ranks == 1 else f"at most {chosen.most_ranks}",
            hint=f"choose engine {others} for tensor or pipeline parallel runs",
        )
    if chosen.modes and config.profile_mode not in chosen.modes:
        found = f"the engine {chosen.name} does not support profile_mode {config.profile_mode}"
        raise ConfigError(found, expected=f"one of {', '.join(chosen.modes)}", key="profile_mode")
    if config.served and config.profile_mode in {"ncu", "nsys_ncu"}:
        problem = f"a served run does not support profile_mode {config.profile_mode}"
        hint = "ncu replays kernels, so requests of a server time out; run ncu on an offline run"
        raise ConfigError(problem, expected="inference_only, torch or nsys", hint=hint)
    if config.disaggregate is not None:
        _check_instances(config)
    if config.cpu_sampler != "none" and config.profile_mode in {"nsys", "nsys_ncu", "ncu"}:
        problem = (
            f"cpu_sampler {config.cpu_sampler} does not work with profile_mode"
            f" {config.profile_mode}"
        )
        hint = (
            "one profiler at a time: nsys samples the host itself with nsys_options"
            " sample=process-tree"
        )
        raise ConfigError(problem, expected="inference_only or torch", hint=hint)
    if config.server and not config.served:
        raise ConfigError(
            "server has options, but served is false", hint="set served: true, or leave them out"
        )
    if config.layer_annotations and config.eager is False:
        hint = "names of layers are lost inside CUDA graphs and compiled code: set eager: true"
        raise ConfigError("layer_annotations is set, but eager is false", hint=hint)


def _check_instances(config: ExperimentConfig) -> None:
    if not _INSTANCES.fullmatch(config.disaggregate or ""):
        raise ConfigError(
            f"disaggregate is {config.disaggregate!r}",
            expected="instances that prefill and that decode, such as 1+1",
            key="disaggregate",
        )
    for name, usual in {"engine": ("vllm",), "profile_mode": ("torch", "inference_only")}.items():
        if getattr(config, name) not in usual:
            raise ConfigError(
                f"disaggregate is given, and {name} is {getattr(config, name)}",
                expected=" or ".join(usual),
                key=name,
            )
    if config.memory_snapshot:
        raise ConfigError(
            "disaggregate and memory_snapshot are given together", expected="one of them"
        )


def _check_options(options: dict[str, Any], name: str) -> None:
    for key, value in options.items():
        if not _OPTION.match(key):
            raise ConfigError(
                f"{name} has the key {key!r}", expected="the long name of an option, such as trace"
            )
        if key.removeprefix("--") in _OURS:
            raise ConfigError(
                f"{name} has {key}, which the run folder decides", hint="leave it out"
            )
        if isinstance(value, dict | list) or "\0" in str(value):
            raise ConfigError(
                f"{name}.{key} is {value!r}", expected="text, a number, true, false or null"
            )


def sized(
    size: str = "quick",
    *,
    profile_steps: int | None = None,
    num_tokens: int | None = None,
    warmup_steps: int | None = None,
    max_seq_len: int | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Fields of a configuration for a run in mode ``ops``; timed steps are spread over the
    generation.
    """
    if size not in SIZES:
        raise ConfigError(f"there is no size {size!r}", expected=f"one of {', '.join(SIZES)}")
    base = SIZES[size]
    steps = base["steps"] if profile_steps is None else profile_steps
    tokens = base["max_tokens"] if num_tokens is None else num_tokens
    if steps < 1 or tokens < 1:
        raise ConfigError(
            f"profile_steps is {steps} and num_tokens is {tokens}", expected="at least 1 of each"
        )
    of_timer = {name: base[name] for name in base.keys() & {"layers", "operator_layers", "memory"}}
    fields: dict[str, Any] = {
        "profile_mode": "ops",
        "max_tokens": tokens,
        "warmup": base["warmup"] if warmup_steps is None else warmup_steps,
        "ops_options": {"steps": steps, "every": max(1, tokens // steps), **of_timer, **options},
    }
    return fields if max_seq_len is None else fields | {"max_model_len": max_seq_len}


# ruff: noqa: RUF009 (_option makes a field)
ProfileMode = Literal["inference_only", "torch", "nsys", "nsys_ncu", "ncu", "ops"]
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


def _option(default: Any, help: str, *, least: float | None = None) -> Any:  # noqa: A002
    """Field with its help text and its smallest value."""
    metadata = {"help": help, "least": least}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def _by_other_names(made: type) -> type:
    """Let the constructor of a configuration take the names of other tools and a preset, and
    refuse unknown ones.
    """
    of_fields = made.__init__  # type: ignore[misc]

    @functools.wraps(of_fields)
    def init(self: ExperimentConfig, **values: Any) -> None:
        ours = with_our_names(values)
        refuse_unknown_keys(ours, _hints(), "the configuration")
        if "model" not in ours:
            raise ConfigError(
                "the configuration names no model",
                expected="model: a folder, a name or random:tiny",
            )
        of_fields(self, **ours)

    made.__init__ = init  # type: ignore[misc]
    return made


@_by_other_names
@dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """Description of one profiled run; every field except the model has a default.

    The constructor refuses wrong types, unknown keys and options that contradict each other. The
    meaning of each field is in ``dataclasses.fields(ExperimentConfig)[i].metadata["help"]``, and in
    ``llmprof run --help``. ``model_path`` and ``base_prompt`` are other names of ``model`` and
    ``prompt``; ``preset="classic"`` gives the defaults ``profile_mode="inference_only",
    prompt="Hello, how are you?", max_tokens=100, temperature=0.7, batch_size=1``.

    Raises
    ------
    ConfigError
        A key is unknown, the model is missing, or a value has a wrong type or contradicts another
        one.
    """

    model: str = field(
        metadata={"help": "folder of a model, name on the hub, or random:NAME for random weights"}
    )
    prompt: str | list[str] | None = _option(None, "text, or a list of texts")
    prompt_file: str | None = _option(
        None, "UTF-8 file: one prompt in each line (.txt), or JSON (.json, .jsonl)"
    )
    input_tokens: int | tuple[int, int] | None = _option(
        None, "length of synthetic prompts in tokens, or [low, high]"
    )
    max_tokens: int = _option(16, "output tokens of a request", least=1)
    temperature: float = _option(0.0, "sampling temperature; 0 is greedy", least=0)
    top_p: float = _option(
        1.0, "sample from the tokens with this share of the probability; 1: all", least=0
    )
    n: int = _option(1, "number of answers to each prompt", least=1)
    batch_size: int = _option(0, "concurrent requests; 0: as many as there are prompts", least=0)
    tensor_parallel_size: int = _option(1, "GPUs that share each layer", least=1)
    pipeline_parallel_size: int = _option(1, "groups of GPUs that share the layers", least=1)
    profile_mode: ProfileMode = _option("torch", "profiler or kind of recording")
    engine: str = _option(
        "vllm", "engine that runs the model: one of llmprof.run.launch.engines.engines()"
    )
    served: bool = _option(default=False, help="start a server and profile a window of its load")
    disaggregate: str | None = _option(
        None, "serve with instances that prefill and others that decode, as 1+1 (vLLM)"
    )
    server: dict[str, Any] = _option(
        {}, "port, num_prompts, request_rate, max_concurrency, profile_after_s, …"
    )
    load: dict[str, Any] = _option(
        {},
        "input and output (lengths: N, LOW:HIGH, lognormal:MEAN:DEVIATION, …), shared_prefix,"
        " arrival, file, …",
    )
    engine_args: dict[str, Any] = _option({}, "further arguments of the engine, passed through")
    nsys_options: dict[str, Any] = _option(
        {}, "options of nsys profile by long name; null removes one"
    )
    ncu_options: dict[str, Any] = _option(
        {}, "kernel_name (a regular expression), launch_skip, launch_count, set, top, options"
    )
    ops_options: dict[str, Any] = _option(
        {}, "steps, every, layers, operator_layers, method, hold, memory, …"
    )
    warmup: int = _option(1, "runs before the first measured one", least=0)
    repeat: int = _option(3, "measured runs without profiler", least=1)
    until: float | None = _option(
        None, "repeat until the mean is known within this share (0.03: 3 %)", least=0
    )
    most_repeats: int = _option(30, "most repeats with until", least=3)
    seed: int = _option(0, "seed of weights, sampling and synthetic prompts")
    eager: bool | None = _option(
        None, "no CUDA graphs and no compilation; null: the engine's default"
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = _option(
        "bfloat16", "type of weights and activations"
    )
    max_model_len: int | None = _option(None, "longest prompt plus output, in tokens", least=1)
    ignore_eos: bool = _option(
        default=True, help="generate max_tokens tokens even after an end token"
    )
    all_reduce: Literal["auto", "nccl", "custom"] = _option(
        "auto", "plain NCCL, or the engine's own kernels"
    )
    layer_annotations: bool = _option(
        default=False, help="put names of layers into the trace; slower, eager only"
    )
    with_stack: bool = _option(
        default=False, help="record Python stacks (torch): traces are 3 to 10 times as large"
    )
    record_shapes: bool = _option(default=True, help="record shapes of operators' inputs (torch)")
    profile_memory: bool = _option(
        default=False, help="record allocations and releases of memory (torch, nsys)"
    )
    cpu_sampler: Literal["none", "perf", "vtune"] = _option(
        "none", "sample call stacks of the host (not under nsys, ncu)"
    )
    memory_snapshot: bool = _option(
        default=False, help="write a snapshot of PyTorch's allocator for each rank (GPU)"
    )
    max_iterations: int = _option(
        256, "most engine steps in the profiled window; 0: no limit", least=0
    )
    plain: bool = _option(default=True, help="also measure without profiler, to know its overhead")
    results_dir: str = _option("results", "folder for the run folders")
    experiment_name: str | None = _option(None, "name of the run; MODEL_MODE if not given")
    model_name: str | None = _option(
        None, "MODEL in the name of the run; the last part of model if not given"
    )
    python: str = _option(
        "",
        "Python that has the engine (default: LLMPROF_ENGINE_PYTHON, this one if it has it, or that"
        " of make engine)",
    )
    timeout_s: float = _option(
        3600.0, "longest time of the engine in seconds; 0: no limit", least=0
    )
    monitor_hz: float = _option(2.0, "samples of the monitors per second; 0: none", least=0)
    environment: dict[str, str] = _option({}, "further environment variables of the engine")

    def __post_init__(self) -> None:
        for field_ in dataclasses.fields(self):
            given = getattr(self, field_.name)
            if field_.name == "environment" and isinstance(
                given, Mapping
            ):  # YAML reads NAME: 1 as a number
                given = {k: str(v) if type(v) in {int, float} else v for k, v in given.items()}
            value = checked_option(given, _hints()[field_.name], field_.name)
            least = field_.metadata.get("least")
            if least is not None and value is not None and value < least:
                raise ConfigError(
                    f"{field_.name} is {value}", expected=f"at least {least:g}", key=field_.name
                )
            object.__setattr__(self, field_.name, value)
        if self.disaggregate is not None:
            object.__setattr__(self, "served", True)
        python = self.python or interpreter(engine(self.engine, served=self.served).packages)
        python = str(Path(python).expanduser().absolute()) if "/" in python else python
        object.__setattr__(self, "python", python)
        if not self.batch_size and self.prompt_file is None and not self.load.get("file"):
            prompts = len(self.prompt) if isinstance(self.prompt, list) else 1
            object.__setattr__(self, "batch_size", max(1, prompts))
        check_together(self)

    @property
    def name(self) -> str:
        """Name of the experiment: as given, or the model's short name, as a part of a file name,
        and the mode.
        """
        last = (self.model_name or self.model.removeprefix("random:")).rstrip("/").split("/")[-1]
        return (
            self.experiment_name
            or f"{_UNSAFE.sub('-', last).strip('-.') or 'model'}_{self.profile_mode}"
        )

    @property
    def world_size(self) -> int:
        """Number of ranks of the run."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def devices(self) -> int:
        """Number of devices: the ranks of all instances."""
        return self.world_size * sum(map(int, (self.disaggregate or "1").split("+")))

    def replace(self, **changes: Any) -> ExperimentConfig:
        """Copy of the configuration with other values, checked like the first."""
        changes = with_our_names(changes)
        refuse_unknown_keys(changes, _hints(), "the configuration")
        if self.prompt == PRESETS["classic"]["prompt"] and _other_prompts(changes):
            changes.setdefault("prompt", None)
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """All fields, with types of JSON and YAML."""
        return {
            k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ExperimentConfig:
        """Configuration from a mapping; the error for an unknown key names the most similar one."""
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"the configuration is {type(values).__name__}",
                expected="a mapping of keys to values",
            )
        return cls(**{str(key): value for key, value in values.items()})


@functools.cache
def _hints() -> dict[str, Any]:
    return typing.get_type_hints(ExperimentConfig)


class ConfigManager:
    """Configurations as files: YAML or JSON, by the suffix."""

    @staticmethod
    def load_config(path: str | Path, *, preset: str | None = None) -> ExperimentConfig:
        """Read and check a configuration from YAML or JSON of plain data: Python tags are refused.

        Parameters
        ----------
        path : path
            The file.
        preset : str, optional
            Preset for what the file does not state, if it names none itself: ``classic``.

        Raises
        ------
        ConfigError
            The file is missing, is not UTF-8, is not valid, or its values are wrong.
        """
        values = load(Path(path))
        if preset is not None and isinstance(values, dict):
            values = {"preset": preset} | values
        try:
            return ExperimentConfig.from_dict(values)
        except ConfigError as error:
            found = f"{Path(path).name}: {error.found}"
            raise ConfigError(
                found, expected=error.expected, hint=error.hint, **error.facts
            ) from error

    @staticmethod
    def save_config(config: ExperimentConfig, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write a configuration, whole or not at all; an OutputError says why it could not be
        written.
        """
        return _save(config.to_dict(), Path(path), overwrite=overwrite)
