"""Parameters and FLOPs of models as transformers builds them, without weights (meta device): the
checks' other source.

Run in an environment with torch and transformers; writes ``reference.json`` beside this file (or to
the path given):

    python tests/theory/reference.py [OUT] [MODEL ...]

FLOPs are those of ``torch.utils.flop_counter`` with attention written out (``eager``: every query
times every key) and mixtures of experts as batched products of the chosen experts. Of recurrent
mixers only the projections are counted: how transformers computes the scan on a CPU (in chunks,
with more products than needed) is not what the model asks for.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
CATALOG = HERE.parent.parent / "llmprof" / "theory" / "models.json"
BATCH, PROMPT = 2, 96


def build(config):
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM

    kind = {"kimi_k2": "deepseek_v3"}.get(config["model_type"], config["model_type"])
    rest = {
        name: value
        for name, value in config.items()
        if name not in ("model_type", "torch_dtype", "architectures")
    }
    made = AutoConfig.for_model(kind, **rest)
    made._attn_implementation = "eager"
    made._experts_implementation = "batched_mm"
    made_from = AutoModelForCausalLM
    if (
        type(made) not in AutoModelForCausalLM._model_mapping
    ):  # a class that transformers does not choose by itself
        made_from = getattr(transformers, config["architectures"][0])
    build_on = getattr(made_from, "from_config", None) or made_from._from_config
    with torch.device("meta"):
        return build_on(made, dtype=torch.bfloat16, attn_implementation="eager").eval()


RECURRENT = (
    "Mixer",
    "MambaLayer",
    "GatedDeltaNet",
    "ShortConv",
    "LightningAttention",
    "DeltaAttention",
)


def counted(model, counter):
    import torch

    counts = {
        name: sum(by_operator.values()) for name, by_operator in counter.get_flop_counts().items()
    }
    total, root = counter.get_total_flops(), type(model).__name__
    for name, module in model.named_modules():
        if type(module).__name__.endswith(RECURRENT):
            linear = [
                f"{root}.{name}.{inside}"
                for inside, part in module.named_modules()
                if isinstance(part, torch.nn.Linear)
            ]
            total -= counts.get(f"{root}.{name}", 0) - sum(counts.get(one, 0) for one in linear)
    return total


def measure(config):
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model = build(config)
    parameters = sum(p.numel() for p in model.parameters())
    parts = {"embedding": model.get_input_embeddings().weight.numel()}
    parts["lm_head"] = model.get_output_embeddings().weight.numel()
    ids = torch.zeros((BATCH, PROMPT), dtype=torch.long, device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        first = model(ids, use_cache=True)
    prefill = counted(model, counter)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(ids[:, :1], past_key_values=first.past_key_values, use_cache=True)
    return {
        "parameters": parameters,
        **parts,
        "prefill_flops": prefill,
        "decode_flops": counted(model, counter),
    }


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "reference.json"
    catalog = json.loads(CATALOG.read_text(encoding="utf-8"))
    names = sys.argv[2:] or list(catalog)
    models = {}
    for name in names:
        models[name] = measure(catalog[name]["config"])
        sys.stderr.write(f"{name} {models[name]}\n")
    made = {
        "torch": version("torch"),
        "transformers": version("transformers"),
        "batch": BATCH,
        "prompt": PROMPT,
    }
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in models.items())
    out.write_text(
        f'{{"made_with": {json.dumps(made)},\n "models": {{\n{rows}\n}}}}\n', encoding="utf-8"
    )


if __name__ == "__main__":
    main()
