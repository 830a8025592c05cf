"""Of the program of an engine, and of its workers: names of a model's modules as ranges in the
trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_DEPTH = 5


def annotate(torch: Any, model: Any, *, nvtx: bool) -> int:
    """Put a range ``layer::`` and its name around each call of each module.

    Returns the number of modules.
    """
    open_ranges: list[Any] = []

    def before(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if nvtx:
                torch.cuda.nvtx.range_push(name)
            else:
                open_ranges.append(torch.profiler.record_function(name))
                open_ranges[-1].__enter__()

        return hook

    def after(*_: Any) -> None:
        if nvtx:
            torch.cuda.nvtx.range_pop()
        else:
            open_ranges.pop().__exit__(None, None, None)

    modules = [
        (name, module)
        for name, module in model.named_modules()
        if name and name.count(".") <= _DEPTH
    ]
    for name, module in modules:
        module.register_forward_pre_hook(before(f"layer::{name}"))
        module.register_forward_hook(after)
    return len(modules)
