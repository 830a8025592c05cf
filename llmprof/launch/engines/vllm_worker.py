"""Methods that a run adds to vLLM's workers: names of layers in the trace, CUDA's profiler, and facts of the device."""

from __future__ import annotations

import importlib
import resource
from typing import Any

_DEPTH = 5


def _torch() -> Any:
    """PyTorch: imported late, since this module is read and checked where there is none."""
    return importlib.import_module("torch")


class LlmprofWorker:
    """Mixed into the class of the workers; the names of its methods must not be theirs."""

    model_runner: Any
    rank: int

    def llmprof_annotate(self, nvtx: bool = False) -> int:
        """Put a range around each call of each module: ``layer::`` and its name. How many modules that are."""
        torch = _torch()
        open_ranges: list[Any] = []
        count = 0

        def before(name: str) -> Any:
            def hook(_module: Any, _args: Any, _kwargs: Any) -> None:
                if nvtx:
                    torch.cuda.nvtx.range_push(name)
                else:
                    open_ranges.append(torch.profiler.record_function(name))
                    open_ranges[-1].__enter__()

            return hook

        def after(_module: Any, _args: Any, _kwargs: Any, _output: Any) -> None:
            if nvtx:
                torch.cuda.nvtx.range_pop()
            else:
                open_ranges.pop().__exit__(None, None, None)

        for name, module in self.model_runner.get_model().named_modules():
            if name and name.count(".") <= _DEPTH:
                module.register_forward_pre_hook(before(f"layer::{name}"), with_kwargs=True)
                module.register_forward_hook(after, with_kwargs=True)
                count += 1
        return count

    def llmprof_cuda_profiler(self, on: bool) -> None:
        """Start or stop CUDA's profiler, in versions that cannot do it themselves."""
        torch = _torch()
        torch.cuda.synchronize()
        (torch.cuda.profiler.start if on else torch.cuda.profiler.stop)()

    def llmprof_facts(self) -> dict[str, Any]:
        """Rank, name of the device, peak memory and size of the cache of keys and values, in bytes."""
        torch = _torch()
        cuda = torch.cuda.is_available()
        caches: dict[int, int] = {}
        for one in _tensors(getattr(self.model_runner, "kv_caches", None)):
            storage = one.untyped_storage()
            caches[storage.data_ptr()] = storage.nbytes()
        return {
            "rank": int(self.rank),
            "device": torch.cuda.get_device_name() if cuda else None,
            "peak": torch.cuda.max_memory_allocated()
            if cuda
            else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "kv_bytes": sum(caches.values()) or None,
        }


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, _torch().Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [found for one in value for found in _tensors(one)] if isinstance(value, list | tuple) else []
