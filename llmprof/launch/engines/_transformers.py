"""Part of an engine script: the model and the prompts of a run of transformers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from llmprof.launch.engines._place import has_tokenizer
from llmprof.launch.engines._record import Record


def build_model(job: Mapping[str, Any], record: Record, torch: Any, transformers: Any, device: str) -> Any:
    """A model with its weights, or with random ones; options that transformers does not know get a note."""
    dtype = "auto" if job["dtype"] == "auto" else getattr(torch, job["dtype"])
    known = set(inspect.signature(transformers.PreTrainedModel.from_pretrained).parameters) | {"attn_implementation"}
    dropped = sorted(set(job["engine_args"]) - known)
    for name in dropped:
        record.note(f"engine option {name} ignored: transformers does not know it")
    record.document["dropped_engine_args"] = dropped
    options = {name: value for name, value in job["engine_args"].items() if name in known}
    auto = transformers.AutoModelForCausalLM
    if job["random_weights"]:
        config = transformers.AutoConfig.from_pretrained(job["model"])
        wanted = (getattr(config, "dtype", None) or torch.float32) if dtype == "auto" else dtype
        attention = {k: v for k, v in options.items() if k == "attn_implementation"}
        usual = torch.get_default_dtype()
        torch.set_default_dtype(wanted)
        try:
            with torch.device(device):
                model = auto.from_config(config, **attention).to(wanted)
        finally:
            torch.set_default_dtype(usual)
    else:
        name = "dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype"
        model = auto.from_pretrained(job["model"], **{name: dtype}, **options).to(device)
    if job["eager"] is False:
        model.forward = torch.compile(model.forward)
    return model.eval()


def padded_batch(job: Mapping[str, Any], torch: Any, transformers: Any, device: str) -> dict[str, Any]:
    """Prompts as one batch, padded on the left."""
    tokenizer: Any = None
    if has_tokenizer(job["model"]):
        tokenizer = transformers.AutoTokenizer.from_pretrained(job["model"])
    prompts = job["prompt_token_ids"] or [tokenizer(text)["input_ids"] for text in job["prompts"]]
    longest = max(map(len, prompts))
    ids = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return {
        "tokenizer": tokenizer,
        "tokens": [len(prompt) for prompt in prompts],
        "longest": longest,
        "input_ids": torch.tensor(ids, device=device),
        "attention_mask": torch.tensor(mask, device=device),
    }
