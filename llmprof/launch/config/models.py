"""Models with random weights: shapes of published models as data, so that a run needs no download."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any, Final

from llmprof.errors import ConfigError
from llmprof.launch.run.files import refused

__all__ = ["NAMES", "SOURCES", "config_of", "resolve"]

PREFIX: Final = "random:"

_COMMON: Final[dict[str, Any]] = {
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "use_cache": True,
    "attention_dropout": 0.0,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
_QWEN: Final[dict[str, Any]] = _COMMON | {
    "vocab_size": 151936,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
}
_QWEN2: Final = _QWEN | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
_QWEN3: Final = _QWEN | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 128,
    "attention_bias": False,
    "max_position_embeddings": 40960,
}
_QWEN3_MOE: Final = _QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "router_aux_loss_coef": 0.001,
    "output_router_logits": False,
}
_LLAMA: Final = _COMMON | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5e5,
    "max_position_embeddings": 131072,
    "attention_bias": False,
    "mlp_bias": False,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}


def _shape(layers: int, hidden: int, inner: int, heads: int, kv_heads: int, **more: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        **more,
    }


_TINY: Final = {"vocab_size": 10240, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 2048}
_MODELS: Final[dict[str, dict[str, Any]]] = {
    "tiny": _QWEN3 | _TINY | _shape(4, 256, 512, 4, 2, head_dim=64),
    "tiny-moe": _QWEN3_MOE
    | _TINY
    | _shape(4, 256, 512, 4, 2, head_dim=64, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=128),
    "Qwen2.5-0.5B": _QWEN2 | _shape(24, 896, 4864, 14, 2, tie_word_embeddings=True),
    "Qwen2.5-1.5B": _QWEN2 | _shape(28, 1536, 8960, 12, 2, tie_word_embeddings=True),
    "Qwen2.5-7B": _QWEN2 | _shape(28, 3584, 18944, 28, 4, vocab_size=152064),
    "Qwen2.5-14B": _QWEN2 | _shape(48, 5120, 13824, 40, 8, vocab_size=152064),
    "Qwen2.5-32B": _QWEN2 | _shape(64, 5120, 27648, 40, 8, vocab_size=152064),
    "Qwen2.5-72B": _QWEN2 | _shape(80, 8192, 29568, 64, 8, vocab_size=152064),
    "Qwen3-0.6B": _QWEN3 | _shape(28, 1024, 3072, 16, 8, tie_word_embeddings=True),
    "Qwen3-8B": _QWEN3 | _shape(36, 4096, 12288, 32, 8),
    "Qwen3-14B": _QWEN3 | _shape(40, 5120, 17408, 40, 8),
    "Qwen3-32B": _QWEN3 | _shape(64, 5120, 25600, 64, 8),
    "Qwen3-30B-A3B": _QWEN3_MOE
    | _shape(48, 2048, 6144, 32, 4, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768),
    "Llama-3.1-8B": _LLAMA | _shape(32, 4096, 14336, 32, 8),
    "Llama-3.1-70B": _LLAMA | _shape(80, 8192, 28672, 64, 8),
}

NAMES: Final = tuple(_MODELS)
"""Models of the catalogue; ``random:`` in front of one asks for random weights."""

SOURCES: Final[dict[str, str]] = {
    name: "llmprof: small shapes in the form of Qwen3"
    if name.startswith("tiny")
    else f"config.json of {'meta-llama' if name.startswith('Llama') else 'Qwen'}/{name} on the Hugging Face hub"
    for name in NAMES
}
"""Where the shapes of each model come from."""


def config_of(name: str) -> dict[str, Any]:
    """The ``config.json`` of a model of the catalogue.

    Parameters
    ----------
    name : str
        One of :data:`NAMES`, with or without ``random:`` in front.

    Raises
    ------
    ConfigError
        The catalogue has no such model.
    """
    short = name.removeprefix(PREFIX)
    known = {one.lower(): one for one in NAMES}
    found = known.get(short.lower())
    if found is None:
        near = difflib.get_close_matches(short.lower(), known, n=1, cutoff=0.5)
        raise ConfigError(
            f"there is no model {PREFIX}{short}",
            expected=f"one of {', '.join(NAMES)}",
            hint=f"did you mean {PREFIX}{known[near[0]]}?" if near else "or give a folder with a config.json",
            known=NAMES,
        )
    copied: dict[str, Any] = json.loads(json.dumps(_MODELS[found]))
    return copied


def resolve(name: str, folder: str | Path) -> Path:
    """Where an engine finds a model.

    Parameters
    ----------
    name : str
        ``random:NAME`` of the catalogue; a folder; or a name on a hub, which is passed on as it is.
    folder : path
        For a model of the catalogue: its ``config.json`` is written to a folder of its name in here.

    Returns
    -------
    pathlib.Path
        A folder with a ``config.json``; or the name on the hub.

    Raises
    ------
    ConfigError
        The catalogue has no such model, or the folder is missing or has no ``config.json``.
    OutputError
        ``config.json`` cannot be written.
    """
    if name.startswith(PREFIX):
        config = config_of(name)
        target = Path(folder) / next(one for one in NAMES if one.lower() == name.removeprefix(PREFIX).lower())
        try:
            target.mkdir(parents=True, exist_ok=True)
            (target / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise refused(target, error) from error
        return target.absolute()
    path = Path(name).expanduser()
    if path.is_dir() or _looks_like_a_path(name):
        if not (path / "config.json").is_file():
            raise ConfigError(
                f"the model's folder {name} {'has no config.json' if path.is_dir() else 'is missing'}",
                expected="a folder with the config.json of a model",
                hint=f"check the path (a name on a hub is OWNER/NAME), or run one with random weights: {PREFIX}tiny",
            )
        return path.absolute()
    return Path(name)


def _looks_like_a_path(name: str) -> bool:
    """A name on a hub is ``NAME`` or ``OWNER/NAME``; anything with more to it is a path."""
    return name.startswith(("/", ".", "~")) or name.count("/") != 1
