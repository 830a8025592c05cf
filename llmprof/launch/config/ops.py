"""Options of mode ``ops``, which times operators: their types, the rules between them, and ready-made sizes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal

from llmprof.errors import ConfigError
from llmprof.launch.config.files import checked, refuse_unknown
from llmprof.launch.engines import engine, engines

if TYPE_CHECKING:
    from llmprof.launch.config.options import ExperimentConfig

OPTIONS: Final[dict[str, tuple[Any, Any]]] = {
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

- ``steps``: largest number of engine steps that are timed; ``every``: interval between timed steps (2: every second).
- ``layers``: number of layers that are timed in a step, in turn; 0 means all. ``operator_layers``: number of layers
  whose operators are timed, too; 0 means all, -1 none. ``depth``: levels of modules below a layer. On an H200 whose
  eager decode waits for the host, a step timed with the defaults took 3.5 % longer (1.8 % with ``operator_layers: -1``,
  3.8 % with all layers, 5.5 % with the operators of two layers, 30 % with those of all). With every second step timed,
  the whole window took 1.7 % longer.
- ``method``: ``events`` (CUDA events), or ``synchronize``, which waits for the device around each operator and distorts
  the times.
- ``cycle``: pairs of a method (or ``none``) and a number of steps, repeated, to compare methods in one engine;
  ``events+hold`` is ``events`` with ``hold``.
- ``hold``: the device waits ``hold_ms`` (ms) before each timed forward pass, so that the host is ahead and no operator
  waits for it.
- ``functional``: whether each operator that PyTorch dispatches is timed, too, in the layers whose operators are timed.
- ``memory``: whether allocated memory is read before and after steps, or before and after every operator.
- ``functions``, ``metrics``: your own functions by name, each a ``module:attribute`` that the engine can import. A
  metric is called with the name, the arguments and the result of each operator, and returns a number.
"""

SIZES: Final[dict[str, dict[str, int]]] = {
    "quick": {"steps": 3, "max_tokens": 20, "warmup": 1, "layers": 0, "operator_layers": 4},
    "detailed": {"steps": 10, "max_tokens": 100, "warmup": 3, "layers": 0, "operator_layers": 0},
    "production": {"steps": 20, "max_tokens": 200, "warmup": 5, "layers": 0, "operator_layers": 2},
}
"""Ready-made sizes: timed steps, output tokens, warm-up runs, timed layers per step, layers with timed operators."""

_WHERE: Final = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")
_METHODS: Final = ("none", "events", "synchronize", "events+hold")


def sized(
    size: str = "quick",
    *,
    profile_steps: int | None = None,
    num_tokens: int | None = None,
    warmup_steps: int | None = None,
    max_seq_len: int | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Fields of a configuration for a run in mode ``ops``; timed steps are spread over the generation."""
    if size not in SIZES:
        raise ConfigError(f"there is no size {size!r}", expected=f"one of {', '.join(SIZES)}")
    base = SIZES[size]
    steps = base["steps"] if profile_steps is None else profile_steps
    tokens = base["max_tokens"] if num_tokens is None else num_tokens
    if steps < 1 or tokens < 1:
        raise ConfigError(f"profile_steps is {steps} and num_tokens is {tokens}", expected="at least 1 of each")
    fields: dict[str, Any] = {
        "profile_mode": "ops",
        "max_tokens": tokens,
        "warmup": base["warmup"] if warmup_steps is None else warmup_steps,
        "ops_options": {
            "steps": steps,
            "every": max(1, tokens // steps),
            "layers": base["layers"],
            "operator_layers": base["operator_layers"],
            **options,
        },
    }
    return fields if max_seq_len is None else fields | {"max_model_len": max_seq_len}


def options_of(config: ExperimentConfig) -> dict[str, Any]:
    """All options of the timer, with defaults for those that were not given."""
    return {key: config.ops_options.get(key, default) for key, (_, default) in OPTIONS.items()}


def check_ops(config: ExperimentConfig) -> None:
    """Check the options of mode ``ops``, alone and together with other options."""
    if config.profile_mode != "ops":
        if config.ops_options:
            raise ConfigError(
                f"ops_options are given, but profile_mode is {config.profile_mode}",
                hint="set profile_mode: ops, or leave them out",
            )
        return
    refuse_unknown(config.ops_options, OPTIONS, "ops_options")
    for key, value in config.ops_options.items():
        number = checked(value, OPTIONS[key][0], f"ops_options.{key}")
        least = {"operator_layers": -1, "layers": 0}.get(key, 1)
        if isinstance(number, int | float) and not isinstance(number, bool) and number < least:
            raise ConfigError(f"ops_options.{key} is {number}", expected=f"at least {least}", key=f"ops_options.{key}")
    for method, count in options_of(config)["cycle"]:
        if method not in _METHODS or count < 1:
            raise ConfigError(
                f"ops_options.cycle has {method!r}, {count}", expected=f"one of {', '.join(_METHODS)} and steps above 0"
            )
    for key in ("functions", "metrics"):
        for name, where in config.ops_options.get(key, {}).items():
            if not _WHERE.match(where):
                raise ConfigError(f"ops_options.{key}.{name} is {where!r}", expected="module:attribute")
    if config.eager is False:
        raise ConfigError(
            "profile_mode is ops, but eager is false",
            hint="CUDA graphs and compiled code call no modules, so there is nothing to time in them: set eager: true, "
            "or choose profile_mode torch or nsys, which see the kernels of graphs",
        )
    if not engine(config.engine, served=config.served).timer:
        able = sorted({entry.name for entry in engines() if entry.timer and not entry.served})
        what = f"a served run of {config.engine}" if config.served else f"the engine {config.engine}"
        raise ConfigError(f"{what} cannot time operators", hint=f"run {' or '.join(able)} with served: false")
