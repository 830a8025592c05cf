"""Methods that a run adds to vLLM's workers: annotation of layers, CUDA's profiler, and facts
about the device.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

from .annotate import annotate


def _torch() -> Any:
    """Import PyTorch late, since this module is also read and checked without it."""
    return importlib.import_module("torch")


class LlmprofWorker:
    """Methods mixed into vLLM's worker class; their names must differ from those of vLLM's own."""

    model_runner: Any
    rank: int
    execute_model: Any

    def llmprof_annotate(self, nvtx: bool = False) -> int:
        """Put a range ``layer::`` and its name around each call of each module.

        Returns the number of modules.
        """
        return annotate(_torch(), self.model_runner.get_model(), nvtx=nvtx)

    def llmprof_cuda_profiler(self, on: bool) -> None:
        """Start or stop CUDA's profiler, in versions that cannot do it themselves."""
        torch = _torch()
        torch.cuda.synchronize()
        (torch.cuda.profiler.start if on else torch.cuda.profiler.stop)()

    def llmprof_watch_steps(self) -> None:
        """From now on, note for every step of the engine its begin, its end and the tokens of
        each request.
        """
        if not hasattr(self, "_llmprof_steps"):
            execute = self.execute_model

            def noted(scheduled: Any, *args: Any, **options: Any) -> Any:
                began = time.time_ns()
                try:
                    return execute(scheduled, *args, **options)
                finally:
                    self._llmprof_steps.append([began, time.time_ns(), *_scheduled(scheduled)])

            self.execute_model = noted
        self._llmprof_steps: list[list[Any]] = []

    def llmprof_steps(self, folder: str = "") -> list[list[Any]]:
        """The noted steps, each as a list; with a folder, the first worker of each engine writes
        them there, too: of several engines a server hands on the answer of one.

        Begin and end (ns since the epoch), the tokens of each request in the step, the tokens that
        were computed before, and the preempted requests.
        """
        steps = [step for step in self._llmprof_steps if step[2]]
        if folder and self.rank == 0:
            Path(folder, f"{os.getpid()}.json").write_text(json.dumps(steps), encoding="utf-8")
        return steps

    def llmprof_memory(self, path: str = "") -> str:
        """Record the history of the allocator from now on; with a path, write its snapshot there
        and stop.
        """
        torch = _torch()
        if not torch.cuda.is_available():
            return ""
        memory = torch.cuda.memory
        if not path:
            memory._record_memory_history(max_entries=100_000)
            return ""
        written = path.replace("RANK", str(self.rank))
        memory._dump_snapshot(written)
        memory._record_memory_history(enabled=None)
        return written

    def llmprof_begin(self) -> None:
        """Reset the peak of the memory, so that it does not include earlier points of this
        engine.
        """
        torch = _torch()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def llmprof_facts(self) -> dict[str, Any]:
        """Rank, name of the device, peak memory and size of the KV cache, in bytes."""
        torch = _torch()
        cuda = torch.cuda.is_available()
        caches: dict[int, int] = {}
        for tensor in _tensors(getattr(self.model_runner, "kv_caches", None)):
            storage = tensor.untyped_storage()
            caches[storage.data_ptr()] = storage.nbytes()
        return {
            "rank": int(self.rank),
            "device": torch.cuda.get_device_name() if cuda else None,
            "peak": torch.cuda.max_memory_allocated()
            if cuda
            else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "kv_bytes": sum(caches.values()) or None,
        }


def _scheduled(scheduled: Any) -> tuple[dict[str, int], dict[str, int], list[str]]:
    """Tokens of each request in a step, its earlier tokens, and the requests that were preempted
    in the step.
    """
    tokens = dict(getattr(scheduled, "num_scheduled_tokens", None) or {})
    done = {
        request.req_id: request.num_computed_tokens
        for request in getattr(scheduled, "scheduled_new_reqs", None) or ()
    }
    cached = getattr(scheduled, "scheduled_cached_reqs", None)
    if cached is not None and hasattr(cached, "req_ids"):
        done.update(zip(cached.req_ids, cached.num_computed_tokens))  # noqa: B905 (the engine's Python may be old)
    return tokens, done, sorted(getattr(scheduled, "preempted_req_ids", None) or ())


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, _torch().Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return (
        [tensor for item in value for tensor in _tensors(item)]
        if isinstance(value, list | tuple)
        else []
    )
