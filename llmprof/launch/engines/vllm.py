"""Records of the engine vLLM: offline through ``LLM``, or as a server under load."""

from __future__ import annotations

from llmprof.launch.engines.engine import Engine

OFFLINE = Engine(
    name="vllm",
    modules=("_vllm", "vllm_offline"),
    run="run_vllm",
    worker="vllm_worker",
    timer=("ops_parts", "ops_timer", "vllm_ops"),
    packages=("vllm", "torch"),
    labels_steps=True,
)
SERVED = Engine(
    name="vllm",
    served=True,
    modules=("_vllm", "_server", "vllm_served"),
    run="run_served",
    worker="vllm_worker",
    packages=("vllm", "torch"),
    labels_steps=True,
)
