"""Part of an engine script: what a run of transformers learns from the calls of the model and its modules."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

_DEPTH = 5


class Steps:
    """Forward passes of a model, labelled in the trace and timed.

    The labels are those of vLLM (``execute_context_R(T)_generation_R(T)``: requests and tokens in their prefill and in
    their decode part), so that both engines' traces are read alike.

    Parameters
    ----------
    torch : module
        PyTorch.
    cuda : bool
        The model is on a GPU: ranges go to NVTX too, and times are taken when its work is done.
    """

    def __init__(self, torch: Any, *, cuda: bool) -> None:
        self._torch, self._cuda = torch, cuda
        self._range: Any = None
        self.tokens: list[int] = []
        self.ended_ns: list[int] = []
        self._left = -1
        self._stop: Callable[[], None] = _nothing
        self.stopped = False

    def watch(self, model: Any) -> None:
        """Label the forward passes of a model from now on."""
        model.register_forward_pre_hook(self._before, with_kwargs=True)
        model.register_forward_hook(self._after)

    def begin(self, tokens: list[int]) -> None:
        """Start a batch: the number of tokens of each of its prompts."""
        self.tokens, self.ended_ns = tokens, []

    def stop_after(self, steps: int, stop: Callable[[], None]) -> None:
        """Call something once after so many steps; never for 0."""
        self._left, self._stop, self.stopped = steps or -1, stop, False

    def token(self, _ids: Any, _scores: Any, **_more: Any) -> Any:
        """Take the time when each request has its next token (as a criterion for stopping that never stops)."""
        if self._cuda:
            self._torch.cuda.synchronize()
        self.ended_ns.append(time.perf_counter_ns())
        return self._torch.zeros(len(self.tokens), dtype=self._torch.bool, device=_ids.device)

    def _before(self, _model: Any, _args: Any, _kwargs: Any) -> None:
        if self._left == 0:
            self._stop()
            self.stopped = True
        self._left -= 1
        n = len(self.tokens)
        label = (
            f"context_0(0)_generation_{n}({n})" if self.ended_ns else f"context_{n}({sum(self.tokens)})_generation_0(0)"
        )
        if self._cuda:
            self._torch.cuda.nvtx.range_push(f"execute_{label}")
        self._range = self._torch.profiler.record_function(f"execute_{label}")
        self._range.__enter__()

    def _after(self, _model: Any, _args: Any, _output: Any) -> None:
        self._range.__exit__(None, None, None)
        if self._cuda:
            self._torch.cuda.nvtx.range_pop()


def _nothing() -> None:
    """Do nothing."""


def annotate(torch: Any, model: Any, *, nvtx: bool) -> int:
    """Put a range around each call of each module: ``layer::`` and its name. How many modules that are."""
    open_ranges: list[Any] = []
    count = 0

    def before(name: str) -> Callable[[Any, Any], None]:
        def hook(_module: Any, _args: Any) -> None:
            if nvtx:
                torch.cuda.nvtx.range_push(name)
            else:
                open_ranges.append(torch.profiler.record_function(name))
                open_ranges[-1].__enter__()

        return hook

    def after(_module: Any, _args: Any, _output: Any) -> None:
        if nvtx:
            torch.cuda.nvtx.range_pop()
        else:
            open_ranges.pop().__exit__(None, None, None)

    for name, module in model.named_modules():
        if name and name.count(".") <= _DEPTH:
            module.register_forward_pre_hook(before(f"layer::{name}"))
            module.register_forward_hook(after)
            count += 1
    return count
