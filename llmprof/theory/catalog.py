"""Catalogue of published models: the ``config.json`` of each, with its source."""

from __future__ import annotations

import copy
import difflib
import functools
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any, Final

from llmprof.errors import AnalysisError, LlmprofError, one_of
from llmprof.trace.storage import typed

_OTHER_NAMES: Final = {
    "llama7b": "Llama-2-7b-hf",
    "llama13b": "Llama-2-13b-hf",
    "llama38b": "Meta-Llama-3-8B",
    "llama370b": "Meta-Llama-3-70B",
    "mistral7b": "Mistral-7B-v0.1",
    "mixtral8x7b": "Mixtral-8x7B-v0.1",
    "mixtral8x22b": "Mixtral-8x22B-v0.1",
    "deepseekr1": "DeepSeek-V3",
    "deepseekv3.1": "DeepSeek-V3",
    "deepseekv3.2exp": "DeepSeek-V3.2",
    "glm4.6": "GLM-4.7",
    "phi4minireasoning": "Phi-4-mini-instruct",
    "phi4reasoning": "phi-4",
    "tinyllama": "TinyLlama_v1.1",
    "olmoe": "OLMoE-1B-7B-0924",
    "olmoe1b7b": "OLMoE-1B-7B-0924",
    "olmo27b": "OLMo-2-1124-7B",
    "phi3mini": "Phi-3-mini-4k-instruct",
    "phi3medium": "Phi-3-medium-4k-instruct",
}
"""Other names of models in the catalogue (the first Llamas have the shapes of the second)."""


@functools.cache
def _entries() -> dict[str, dict[str, Any]]:
    text = resources.files("llmprof.theory").joinpath("models.json").read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = json.loads(text)
    return entries


@functools.cache
def names() -> tuple[str, ...]:
    """Names of the models in the catalogue: those of their hub pages, without the owner.

    Examples
    --------
    >>> "Qwen3-30B-A3B" in names()
    True
    """
    return tuple(_entries())


def _source(name: str) -> str:
    """Source of the shape of a model in the catalogue."""
    return str(_entries()[catalogue_name(name)]["source"])


def catalogue_name(name: str) -> str:
    """Catalogue name of a model in any spelling: ``meta-llama/Llama-2-70b-hf``, ``llama2-70b``."""
    if not name.strip():
        raise AnalysisError("no model was named", hint="name one, or the path of a config.json")
    plain = {_plain(entry): entry for entry in names()} | _OTHER_NAMES
    match = plain.get(_plain(name))
    if match is None:
        near = difflib.get_close_matches(_plain(name), plain, n=4, cutoff=0.6)
        close = list(dict.fromkeys(plain[entry] for entry in near))
        found = f"the model {name!r} is not in the catalogue"
        raise LlmprofError(
            found,
            expected=one_of(names(), close),
            hint="llmprof theory --list names all; the path of a config.json works, too",
            near=close,
        )
    return match


def model_config(name: str) -> dict[str, Any]:
    """Copy of the ``config.json`` of a model of :func:`names`, in any case, with or without an
    owner.

    Raises
    ------
    LlmprofError
        The catalogue has no such model.

    Examples
    --------
    >>> model_config("Qwen/Qwen3-8B")["num_hidden_layers"]
    36
    """
    config: dict[str, Any] = copy.deepcopy(_entries()[catalogue_name(name)]["config"])
    return config


def read_config(path: str | Path) -> dict[str, Any]:
    """Read a ``config.json`` file."""
    path = Path(path).expanduser()
    file = path / "config.json" if path.is_dir() else path
    hint = "give the config.json of a model, or its folder"
    config: dict[str, Any] = typed.read(
        file, dict[str, typed.OptionValue], error=LlmprofError, hint=hint
    )
    return config


def _plain(name: str) -> str:
    """Name without owner, case, punctuation, and words for the training or the storage format of
    the weights.
    """
    name = name.removeprefix("random:").rsplit("/", 1)[-1].lower()
    name = re.sub(r"^meta[-_]", "", name)
    name = re.sub(r"[-_](?:hf|instruct|chat|base|it|pt)(?=$|[-_])", "", name)
    return re.sub(r"[^a-z0-9.]", "", name)
