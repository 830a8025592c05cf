"""Records vLLM on a GPU with causes that are planted for real, for ``truth.py --gpu``.

``python truth_gpu.py --model FOLDER --out FOLDER`` starts one engine (random weights; of the model
only its ``config.json`` is read), records generations under the PyTorch profiler, and writes
``CAUSE.SIZE.json.gz`` and ``planted.json``: what each recording has, and how long a token took
without the profiler with and without it. It needs vLLM alone. ``--tp 2`` plants what takes two GPUs.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

SAFE: Final = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # functions are sent to the workers
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_USE_NCCL_SYMM_MEM": "0",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}
Work = Callable[[int, int, Any], None]
"""What happens before a step on a worker: (number of the step, rank, its own data)."""


def before_each_step(worker: Any, cause: str, size: float) -> None:
    """Let a worker do something before each step; nothing without a cause."""
    runner = getattr(worker, "worker", worker).model_runner
    if not hasattr(runner, "_plain"):
        runner._plain = runner.execute_model
    runner.execute_model = runner._plain
    if not cause:
        return
    works = [WORKS[name](size) for name in cause.split("+")]
    work = works[0] if len(works) == 1 else both(*works)
    own: dict[str, Any] = {"steps": 0}
    rank = getattr(getattr(worker, "worker", worker), "rank", 0)

    def planted(*args: Any, **options: Any) -> Any:
        if args and getattr(args[0], "total_num_scheduled_tokens", 1):
            work(own["steps"], rank, own)
            own["steps"] += 1
        return runner._plain(*args, **options)

    runner.execute_model = planted


def busy_wait(seconds: float) -> None:
    """Spend time in Python."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def host_works(size: float) -> Work:
    """The host spends time before each step."""
    return lambda step, rank, own: busy_wait(0.003 * size)


def host_pauses(size: float) -> Work:
    """The host spends a long time before every eighth step."""
    return lambda step, rank, own: busy_wait(0.024 * size) if step % 8 == 5 else None


def copies_back(size: float) -> Work:
    """A copy from the device to pageable memory before each step."""

    def work(step: int, rank: int, own: dict[str, Any]) -> None:
        import torch

        if "data" not in own:
            own["data"] = torch.zeros(int(16e6 * size), dtype=torch.uint8, device="cuda")
            own["host"] = torch.zeros(int(16e6 * size), dtype=torch.uint8)
        own["host"].copy_(own["data"])

    return work


def copies_there(size: float) -> Work:
    """A copy of pageable memory to the device before each step."""

    def work(step: int, rank: int, own: dict[str, Any]) -> None:
        import torch

        if "data" not in own:
            own["data"] = torch.zeros(int(16e6 * size), dtype=torch.uint8)
        own["there"] = own["data"].to("cuda")

    return work


def copies_on_device(size: float) -> Work:
    """A copy within the memory of the device before each step."""

    def work(step: int, rank: int, own: dict[str, Any]) -> None:
        import torch

        if "data" not in own:
            own["data"] = torch.zeros(int(4e9 * size), dtype=torch.uint8, device="cuda")
            own["to"] = torch.empty_like(own["data"])
        own["to"].copy_(own["data"])

    return work


def waits_for_device(size: float) -> Work:
    """The host waits for the device and then works, before each step."""

    def work(step: int, rank: int, own: dict[str, Any]) -> None:
        import torch

        torch.cuda.synchronize()
        busy_wait(0.001 * size)

    return work


def small_kernels(size: float) -> Work:
    """Many short kernels in each step."""

    def work(step: int, rank: int, own: dict[str, Any]) -> None:
        import torch

        if "graph" not in own:
            own["data"] = torch.zeros(1024, device="cuda")
            own["data"].add_(1)
            torch.cuda.synchronize()
            own["graph"] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(own["graph"]):
                for _ in range(int(800 * size)):
                    own["data"].add_(1)
        own["graph"].replay()

    return work


def extra_product(size: float) -> Work:
    """A large product in each step."""

    def work(step: int, rank: int, own: dict[str, Any]) -> None:
        import torch

        if "data" not in own:
            own["data"] = torch.zeros(8192, 8192, dtype=torch.bfloat16, device="cuda")
        for _ in range(max(1, round(3 * size))):
            torch.mm(own["data"], own["data"])

    return work


def unsteady_product(size: float) -> Work:
    """A large product in every fourth step."""
    plain = extra_product(4 * size)
    return lambda step, rank, own: plain(step, rank, own) if step % 4 == 1 else None


def allocates(size: float) -> Work:
    """Memory is taken from the driver and given back in each step."""

    def work(step: int, rank: int, own: dict[str, Any]) -> None:
        import torch

        own["data"] = [
            torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
            for _ in range(max(1, round(8 * size)))
        ]
        own["data"] = None
        torch.cuda.empty_cache()

    return work


def compiles(size: float) -> Work:
    """Kernels are compiled in one step."""

    def work(step: int, rank: int, own: dict[str, Any]) -> None:
        import torch

        if step % 24 != 6:  # once in each generation
            return
        for number in range(max(1, round(2 * size))):
            scale = time.time() + number
            torch._dynamo.reset()

            def function(x: Any, scale: float = scale) -> Any:
                return (x * scale).sin().sum(-1)

            torch.compile(function)(torch.zeros(64 + number, 4096, device="cuda"))

    return work


def late_rank(size: float) -> Work:
    """The last rank of two launches late."""
    return lambda step, rank, own: busy_wait(0.003 * size) if rank == 1 else None


def slow_rank(size: float) -> Work:
    """The device of the last rank of two has more to compute."""
    plain = extra_product(size)
    return lambda step, rank, own: plain(step, rank, own) if rank == 1 else None


ON_WORKERS: Final = {
    work.__name__: work
    for work in (
        host_works,
        host_pauses,
        copies_back,
        copies_there,
        copies_on_device,
        waits_for_device,
        small_kernels,
        extra_product,
        unsteady_product,
        allocates,
        compiles,
    )
}
PAIRS: Final = (
    ("copies_back", "small_kernels"),
    ("host_works", "copies_on_device"),
    ("extra_product", "waits_for_device"),
    ("allocates", "unsteady_product"),
)


def both(first: Work, second: Work) -> Work:
    """Two causes before each step, with data of their own."""

    def work(step: int, rank: int, own: dict[str, Any]) -> None:
        first(step, rank, own.setdefault("first", {}))
        second(step, rank, own.setdefault("second", {}))

    return work


OF_TWO: Final = {work.__name__: work for work in (late_rank, slow_rank, host_works, compiles)}
WORKS: Final = ON_WORKERS | OF_TWO
NEIGHBOUR: Final = """
import sys, time, torch
data = torch.zeros(4096, 4096, dtype=torch.bfloat16, device="cuda")
print("ready", flush=True)
while True:
    for _ in range(20):
        torch.mm(data, data)
    torch.cuda.synchronize()
    time.sleep(float(sys.argv[1]))
"""
SIZES: Final = (0.3, 1.0, 3.0)


class Recorder:
    """An engine and its recordings."""

    def __init__(self, args: argparse.Namespace) -> None:
        from vllm import LLM, SamplingParams

        self.out, self.tp = Path(args.out), args.tp
        self.traces = self.out / "traces"
        self.planted: list[dict[str, Any]] = []
        self.sampling = lambda tokens: SamplingParams(
            temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        engine: dict[str, Any] = {
            "model": args.model,
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "dtype": "bfloat16",
            "max_model_len": 4096,
            "max_num_seqs": 32,
            "gpu_memory_utilization": 0.4,
            "tensor_parallel_size": args.tp,
            "disable_log_stats": False,
            "enable_prefix_caching": False,
            "seed": 0,
            "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4, 8]},
            "profiler_config": {
                "profiler": "torch",
                "torch_profiler_dir": str(self.traces.absolute()),
                "torch_profiler_with_stack": False,
                "torch_profiler_record_shapes": True,
            },
        }
        self.llm = LLM(**(engine | args.engine))

    def prompts(self, batch: int, tokens: int = 64) -> list[dict[str, Any]]:
        """Prompts of token numbers."""
        return [
            {"prompt_token_ids": [(7 * i + 13 * j) % 30000 + 5 for j in range(tokens)]}
            for i in range(batch)
        ]

    def generate(self, batch: int = 8, output: int = 24) -> None:
        """Generate with a batch of short prompts."""
        self.llm.generate(self.prompts(batch), self.sampling(output), use_tqdm=False)

    def plant(self, cause: str = "", size: float = 1.0) -> None:
        """What happens before each step from now on."""
        self.llm.collective_rpc(before_each_step, args=(cause, size))

    def record(self, cause: str, size: float, generate: Callable[[], None] | None = None) -> None:
        """Record a generation, and time another one without the profiler."""
        generate = generate or self.generate
        generate()
        begun = time.perf_counter()
        generate()
        plain_s = time.perf_counter() - begun
        before = set(self.traces.rglob("*.json*"))
        self.llm.start_profile()
        generate()
        self.llm.stop_profile()
        time.sleep(0.5)
        new = sorted(path for path in set(self.traces.rglob("*.json*")) - before)
        for number, path in enumerate(new):
            suffix = f".rank{number}" if len(new) > 1 else ""
            shutil.move(path, self.out / f"{cause}.{size}{suffix}.json.gz")
        self.planted.append({"cause": cause, "size": size, "plain_s": plain_s, "files": len(new)})
        (self.out / "planted.json").write_text(json.dumps(self.planted))
        print(cause, size, f"{plain_s:.3f} s", len(new), "files", flush=True)


def record_all(recorder: Recorder, only: list[str]) -> None:
    """Record each cause at each size, and the control."""

    def attempt(cause: str, size: float, call: Callable[[], None]) -> None:
        if only and cause not in only:
            return
        try:
            call()
        except Exception:  # noqa: BLE001 - the other causes are recorded all the same
            print("FAILED", cause, size, traceback.format_exc()[-1500:], flush=True)
        finally:
            recorder.plant()

    for number in range(3):
        attempt("control", number, lambda n=number: recorder.record("control", n))
    for cause in ON_WORKERS if recorder.tp == 1 else OF_TWO:
        for size in SIZES:

            def planted(cause: str = cause, size: float = size) -> None:
                recorder.plant(cause, size)
                recorder.record(cause, size)

            attempt(cause, size, planted)
    if recorder.tp > 1:
        return
    for names in PAIRS:

        def planted_pair(names: tuple[str, str] = names) -> None:
            recorder.plant("+".join(names))
            recorder.record("+".join(names), 1.0)

        attempt("pairs", 1.0, planted_pair)
    for size in SIZES:
        attempt(
            "graphs_off",
            size,
            lambda s=size: recorder.record(
                "graphs_off", s, lambda: recorder.generate(int(9 + 2 * s))
            ),
        )
        attempt(
            "long_prompts",
            size,
            lambda s=size: recorder.record("long_prompts", s, lambda: long_prompts(recorder, s)),
        )
        attempt(
            "slow_tokenizer",
            size,
            lambda s=size: recorder.record("slow_tokenizer", s, lambda: tokenized(recorder, s)),
        )
        attempt("neighbour", size, lambda s=size: neighbour(recorder, s))


def long_prompts(recorder: Recorder, size: float) -> None:
    """Requests with long prompts come while others decode."""
    engine = recorder.llm.llm_engine
    for number, prompt in enumerate(recorder.prompts(4)):
        engine.add_request(f"short{number}", prompt, recorder.sampling(24))
    for step in range(200):
        if step % 5 == 4 and step < 20:
            for prompt in recorder.prompts(1, round(1024 * size)):
                engine.add_request(f"long{step}", prompt, recorder.sampling(2))
        if not engine.has_unfinished_requests():
            return
        engine.step()


def tokenized(recorder: Recorder, size: float) -> None:
    """Requests come one after the other, each after its text was made into tokens."""
    import torch

    for _ in range(4):
        with torch.profiler.record_function("tokenizer.encode"):
            busy_wait(0.03 * size)
        recorder.generate(1, 8)


def neighbour(recorder: Recorder, size: float) -> None:
    """Another process computes on the device."""
    pause = str(0.01 / size)
    with subprocess.Popen(
        [sys.executable, "-c", NEIGHBOUR, pause], stdout=subprocess.PIPE
    ) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            recorder.record("neighbour", size)
        finally:
            other.kill()


def main() -> None:
    """Start the engine and record."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument(
        "--engine", type=json.loads, default={}, help="more LLM() arguments, as JSON"
    )
    args = parser.parse_args()
    os.environ.update(SAFE)
    if args.tp == 1:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    Path(args.out).mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    recorder = Recorder(args)
    print(f"started in {time.perf_counter() - begun:.0f} s", flush=True)
    gc.freeze()
    record_all(recorder, args.only)


if __name__ == "__main__":
    main()
