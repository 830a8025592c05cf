"""What is run: one typed description, the same for a notebook, a file and the command line."""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from llmprof.errors import ConfigError
from llmprof.launch.config import files
from llmprof.launch.config.rules import check_together
from llmprof.launch.config.types import checked, refuse_unknown

__all__ = ["ConfigManager", "ExperimentConfig", "ProfileMode"]

# ruff: noqa: RUF009 (_option makes a field)


ProfileMode = Literal["inference_only", "torch", "nsys", "nsys_ncu", "ncu"]
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


def _option(default: Any, help: str, *, least: float | None = None) -> Any:  # noqa: A002
    """Field with what it means and its smallest value."""
    metadata = {"help": help, "least": least}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """Description of one profiled run; every field has a default but the model.

    Wrong types, unknown keys and options that do not go together are refused when it is made. Each field's meaning is
    in ``dataclasses.fields(ExperimentConfig)[i].metadata["help"]``, and in ``llmprof run --help``.

    Raises
    ------
    ConfigError
        A value has a wrong type or does not go with another one.
    """

    model: str = field(metadata={"help": "folder of a model, name on the hub, or random:NAME for random weights"})
    prompt: str | list[str] | None = _option(None, "text, or a list of texts")
    prompt_file: str | None = _option(None, "UTF-8 file: a prompt a line (.txt), or JSON (.json, .jsonl)")
    input_tokens: int | tuple[int, int] | None = _option(None, "synthetic prompts of so many tokens, or [low, high]")
    max_tokens: int = _option(16, "output tokens of a request", least=1)
    temperature: float = _option(0.0, "sampling temperature; 0 is greedy", least=0)
    batch_size: int = _option(0, "requests at a time; 0: as many as there are prompts", least=0)
    tensor_parallel_size: int = _option(1, "GPUs that share each layer", least=1)
    pipeline_parallel_size: int = _option(1, "groups of GPUs that share the layers", least=1)
    profile_mode: ProfileMode = _option("torch", "what is recorded")
    engine: str = _option("vllm", "what runs the model: one of llmprof.launch.engines.engines()")
    served: bool = _option(default=False, help="start a server and profile a window of its load")
    server: dict[str, Any] = _option({}, "port, num_prompts, request_rate, max_concurrency, profile_after_s, …")
    engine_args: dict[str, Any] = _option({}, "more arguments of the engine, passed through")
    nsys_options: dict[str, Any] = _option({}, "options of nsys profile by long name; null takes one away")
    ncu_options: dict[str, Any] = _option(
        {}, "kernel_name (a regular expression), launch_skip, launch_count, set, top, options"
    )
    warmup: int = _option(1, "runs before the first one that counts", least=0)
    repeat: int = _option(3, "measured runs without profiler", least=1)
    seed: int = _option(0, "seed of weights, sampling and synthetic prompts")
    eager: bool | None = _option(None, "no CUDA graphs and no compilation; null: as the engine does")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = _option("bfloat16", "type of weights and activations")
    max_model_len: int | None = _option(None, "longest prompt and output together, in tokens", least=1)
    ignore_eos: bool = _option(default=True, help="go on to max_tokens whatever is generated")
    all_reduce: Literal["auto", "nccl", "custom"] = _option("auto", "plain NCCL, or the engine's own kernels")
    layer_annotations: bool = _option(default=False, help="names of layers in the trace; slower, eager only")
    with_stack: bool = _option(default=False, help="Python stacks (torch): traces 3 to 10 times as large")
    record_shapes: bool = _option(default=True, help="shapes of operators' inputs (torch)")
    max_iterations: int = _option(256, "most engine steps in the profiled window; 0: no limit", least=0)
    plain: bool = _option(default=True, help="also measure without profiler, for its overhead")
    results_dir: str = _option("results", "folder for run folders")
    experiment_name: str | None = _option(None, "name of the run; MODEL_MODE if not given")
    python: str = _option(sys.executable, "Python that has the engine")
    timeout_s: float = _option(3600.0, "longest time of the engine, in seconds; 0: no limit", least=0)
    monitor_hz: float = _option(2.0, "samples of the monitors a second; 0: none", least=0)
    environment: dict[str, str] = _option({}, "more environment variables of the engine")

    def __post_init__(self) -> None:
        for one in dataclasses.fields(self):
            given = getattr(self, one.name)
            if one.name == "environment" and isinstance(given, Mapping):
                given = {k: str(v) if fits_number(v) else v for k, v in given.items()}
            value = checked(given, _hints()[one.name], one.name)
            least = one.metadata.get("least")
            if least is not None and value is not None and value < least:
                raise ConfigError(f"{one.name} is {value}", expected=f"at least {least:g}", key=one.name)
            object.__setattr__(self, one.name, value)
        if "/" in self.python:
            object.__setattr__(self, "python", str(Path(self.python).expanduser().absolute()))
        if not self.batch_size and self.prompt_file is None:
            prompts = len(self.prompt) if isinstance(self.prompt, list) else 1
            object.__setattr__(self, "batch_size", max(1, prompts))
        check_together(self)

    @property
    def name(self) -> str:
        """Name of the experiment: as given, or the model's short name and the mode."""
        if self.experiment_name:
            return self.experiment_name
        return f"{self.model_name}_{self.profile_mode}"

    @property
    def model_name(self) -> str:
        """Last part of the model's path or name, as it can stand in a file name."""
        last = self.model.removeprefix("random:").rstrip("/").split("/")[-1]
        return _UNSAFE.sub("-", last).strip("-.") or "model"

    @property
    def world_size(self) -> int:
        """Ranks of the run."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    def replace(self, **changes: Any) -> ExperimentConfig:
        """The same run with other values.

        Raises
        ------
        ConfigError
            A key is unknown, or the values do not go together.
        """
        refuse_unknown(changes, _hints(), "the configuration")
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON and YAML can hold them."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ExperimentConfig:
        """Configuration from a mapping.

        Raises
        ------
        ConfigError
            A key is unknown (the nearest known one is named), the model is missing, or a value is wrong.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(f"the configuration is {type(values).__name__}", expected="a mapping of keys to values")
        refuse_unknown(values, _hints(), "the configuration")
        if "model" not in values:
            raise ConfigError("the configuration names no model", expected="model: a folder, a name or random:tiny")
        return cls(**dict(values))


def fits_number(value: object) -> bool:
    """Whether a value of the environment was written as a number, which YAML takes from ``NAME: 1``."""
    return isinstance(value, int | float) and not isinstance(value, bool)


@functools.cache
def _hints() -> dict[str, Any]:
    return typing.get_type_hints(ExperimentConfig)


class ConfigManager:
    """Configurations as files: YAML or JSON, by the suffix."""

    @staticmethod
    def load_config(path: str | Path) -> ExperimentConfig:
        """Read a configuration.

        Parameters
        ----------
        path : path
            A ``.yaml``, ``.yml`` or ``.json`` file. Only plain data are read: Python tags are refused.

        Returns
        -------
        ExperimentConfig
            Checked.

        Raises
        ------
        ConfigError
            The file is missing, is not UTF-8, is not valid, or its values are wrong.
        """
        values = files.load(Path(path))
        try:
            return ExperimentConfig.from_dict(values)
        except ConfigError as error:
            raise ConfigError(
                f"{Path(path).name}: {error.found}", expected=error.expected, hint=error.hint, **error.facts
            ) from error

    @staticmethod
    def save_config(config: ExperimentConfig, path: str | Path) -> Path:
        """Write a configuration, whole or not at all; loading it gives an equal one.

        Raises
        ------
        OutputError
            The file cannot be written.
        """
        return files.save(config.to_dict(), Path(path))
