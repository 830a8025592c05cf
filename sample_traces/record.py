#!/usr/bin/env python3
"""Record what the bundled samples of vLLM hold: one profiled offline generation with random weights.

On a machine with GPUs, vLLM and, for the last lines, Nsight Systems; ``--model`` is a folder with a ``config.json``:

    python record.py --model Qwen2.5-7B --tp 4 --out traces                     # torch_tp4_eager_custom_allreduce
    python record.py --model Qwen2.5-7B --tp 4 --out traces --engine '{"disable_custom_all_reduce": true}'
    python record.py --model Qwen2.5-7B --tp 4 --out traces --eager 0 --output-tokens 50      # torch_tp4_cudagraph
    python record.py --model Qwen2.5-7B --pp 2 --out traces                     # torch_pp2_eager
    nsys profile -t cuda,nvtx --sample=none --cpuctxsw=none --cuda-graph-trace=node --trace-fork-before-exec=true \\
        --capture-range=cudaProfilerApi --capture-range-end=stop -o report \\
        python record.py --mode cuda --model Qwen2.5-7B --tp 2 --eager 0 --output-tokens 20   # nsys_tp2_cudagraph

``llmprof run`` records the like, checks it and measures more; this script is what ran for the samples.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    # NVLink multicast must stay off on shared hosts
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_USE_NCCL_SYMM_MEM": "0",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}


def arguments() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", default="traces", help="folder for torch traces")
    parser.add_argument("--mode", choices=["torch", "cuda", "none"], default="torch")
    parser.add_argument(
        "--engine", type=json.loads, default={}, help="more arguments of LLM(), as JSON"
    )
    for name, value in {
        "tp": 1,
        "pp": 1,
        "eager": 1,
        "batch": 4,
        "prompt-tokens": 64,
        "output-tokens": 10,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


def main() -> None:
    """Warm up, measure without the profiler, measure and record."""
    args = arguments()
    os.environ.update(ENVIRONMENT)
    from vllm import LLM, SamplingParams

    engine = {
        "model": args.model, "load_format": "dummy", "skip_tokenizer_init": True, "dtype": "bfloat16", "seed": 0,
        "max_model_len": 4096, "max_num_seqs": 32, "gpu_memory_utilization": 0.4, "tensor_parallel_size": args.tp,
        "pipeline_parallel_size": args.pp, "enforce_eager": bool(args.eager), "disable_log_stats": False,
        "enable_prefix_caching": False,
    }  # fmt: skip
    if args.mode == "torch":
        options = {"torch_profiler_with_stack": False, "torch_profiler_record_shapes": True}
        folder = str(Path(args.out).absolute())
        engine["profiler_config"] = {"profiler": "torch", "torch_profiler_dir": folder, **options}
    elif args.mode == "cuda":
        engine["profiler_config"] = {"profiler": "cuda"}
    llm = LLM(**(engine | args.engine))
    requests, length = range(args.batch), range(args.prompt_tokens)
    prompts = [
        {"prompt_token_ids": [(7 * i + 13 * j) % 30000 + 5 for j in length]} for i in requests
    ]
    sampling = SamplingParams(
        temperature=0.0, max_tokens=args.output_tokens, ignore_eos=True, detokenize=False
    )
    seconds = {}

    def generate(name: str, given: list[dict[str, list[int]]]) -> None:
        start = time.perf_counter()
        llm.generate(given, sampling, use_tqdm=False)
        seconds[name] = round(time.perf_counter() - start, 3)

    generate("warm", prompts[:1])
    generate("plain", prompts)
    if args.mode != "none":
        llm.start_profile()
        generate("profiled", prompts)
        llm.stop_profile()
    print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main()
