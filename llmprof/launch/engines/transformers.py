"""Record of the engine transformers: ``generate`` of Hugging Face's library, on any device that torch knows."""

from __future__ import annotations

from llmprof.launch.engines.engine import Engine

OFFLINE = Engine(
    name="transformers",
    modules=("transformers_offline",),
    run="run_transformers",
    packages=("transformers", "torch"),
    most_ranks=1,
)
