"""Of the workers of vLLM: times the operators of the engine's steps, on every rank."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .ops_timer import OpsTimer, result_of, tensors, write
from .vllm_worker import LlmprofWorker

_GROUPS = ("TP", "PP", "EP", "DP", "DCP", "PCP", "CP")
_KINDS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "all_gatherv": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatterv": "reduce_scatter",
    "gather": "gather",
    "broadcast": "broadcast",
    "dispatch": "all_to_all",
    "combine": "all_to_all",
    "send": "send_recv",
    "recv": "send_recv",
}
"""Kinds of collectives by the method of a group's communicator that is timed."""


class LlmprofOps(LlmprofWorker):
    """Methods mixed into vLLM's worker class; their names must differ from those of vLLM's own."""

    vllm_config: Any

    def llmprof_ops_start(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Open the window: from the next step on, steps are timed according to the options."""
        torch: Any = importlib.import_module("torch")
        cuda = (
            bool(torch.cuda.is_available())
            and getattr(self, "device", torch.device("cpu")).type == "cuda"
        )
        check_eager(self.vllm_config, cuda=cuda)
        timer = OpsTimer(
            torch, self.model_runner.get_model(), options, cuda=cuda, rank=int(self.rank)
        )
        timer.prepare()
        state: dict[str, Any] = {
            "timer": timer,
            "back": [],
            "sampled": False,
            "folder": options["folder"],
        }
        self.__dict__["llmprof_ops_state"] = state
        _watch_steps(self, state)
        groups = _groups()
        back = state["back"]
        for name, group in groups.items():
            communicator, world = getattr(group, "device_communicator", None), int(group.world_size)
            for method, kind in _KINDS.items():
                original = getattr(communicator, method, None)
                if original is not None:
                    _put(communicator, method, timer.communicate(kind, name, world, original), back)
            for method in (
                "send_tensor_dict",
                "isend_tensor_dict",
                "recv_tensor_dict",
                "irecv_tensor_dict",
            ):
                if hasattr(group, method):
                    _put(
                        group,
                        method,
                        _between_stages(timer, name, world, method, getattr(group, method)),
                        back,
                    )
        return {"rank": int(self.rank), "layers": sorted(timer.layers), "groups": sorted(groups)}

    def llmprof_ops_stop(self) -> dict[str, Any]:
        """Close the window and write ``ops_rankN.json.gz``."""
        state = self.__dict__.pop("llmprof_ops_state", None)
        if state is None:
            raise RuntimeError("the timing of operators was not started in this worker")
        timer: OpsTimer = state["timer"]
        timer.end_step()
        while state["back"]:
            state["back"].pop()()
        parallel = self.vllm_config.parallel_config
        result = {
            **result_of(timer),
            "world_size": int(parallel.world_size),
            "tensor_parallel_size": int(parallel.tensor_parallel_size),
            "pipeline_parallel_size": int(parallel.pipeline_parallel_size),
            "pid": os.getpid(),
        }
        path = write(Path(state["folder"]), result)
        return {
            "rank": int(self.rank),
            "file": path.name,
            "steps": len(timer.steps),
            "calls": len(timer.calls),
            "collectives": len(timer.collectives),
            "notes": timer.notes,
        }


def check_eager(config: Any, *, cuda: bool) -> None:
    """Raise RuntimeError if modules do not run as Python code: their times would be missing or
    wrong.
    """
    compilation = getattr(config, "compilation_config", None)
    graphs, mode = getattr(compilation, "cudagraph_mode", None), getattr(compilation, "mode", None)
    if cuda and graphs is not None and getattr(graphs, "name", str(graphs)) != "NONE":
        raise RuntimeError(
            "operators cannot be timed under CUDA graphs (cudagraph_mode"
            f" {getattr(graphs, 'name', graphs)}): the replay of a graph calls no module; start the"
            " engine with enforce_eager=True"
        )
    if mode is not None and int(mode) > 0 and os.environ.get("TORCHDYNAMO_DISABLE") != "1":
        raise RuntimeError(
            f"operators cannot be timed in compiled code (compilation mode {int(mode)}): it calls"
            " no module; start the engine with enforce_eager=True"
        )


def _watch_steps(worker: Any, state: dict[str, Any]) -> None:
    """Wrap the two methods of this worker that make up a step."""
    timer: OpsTimer = state["timer"]
    run, sample = worker.execute_model, getattr(worker, "sample_tokens", None)

    def execute_model(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
        if timer.done or not getattr(scheduled, "total_num_scheduled_tokens", 1):
            timer.end_step()
            if timer.done:
                timer.entries.append((time.perf_counter_ns(), scheduled_step(scheduled)[1], "none"))
            return run(scheduled, *args, **kwargs)
        timer.begin_step(*scheduled_step(scheduled))
        out = run(scheduled, *args, **kwargs)
        if sample is None or out is not None:
            timer.end_step()
        return out

    def sample_tokens(*args: Any, **kwargs: Any) -> Any:
        out = sample(*args, **kwargs)  # type: ignore[misc]
        timer.end_step()
        return out

    for name, function in (("execute_model", execute_model), ("sample_tokens", sample_tokens)):
        if hasattr(worker, name):
            _put(worker, name, function, state["back"])


def _between_stages(timer: OpsTimer, name: str, world: int, method: str, original: Any) -> Any:
    """Wrap sends and receives between pipeline stages; an asynchronous one ends when the wait
    for it ends.
    """
    sends = "send" in method

    def call(values: Any = None, *args: Any, **kwargs: Any) -> Any:
        given = args if values is None else (values, *args)
        if not timer.timing:
            return original(*given, **kwargs)
        kind = "send" if sends else "recv"
        timer.seen[kind] = timer.seen.get(kind, 0) + 1
        host, begin = timer.begin()
        out = original(*given, **kwargs)
        moved = tensors(values if sends else (out[0] if isinstance(out, tuple) else out))
        both = (moved, []) if sends else ([], moved)
        handles = (
            out
            if sends and isinstance(out, list)
            else out[1]
            if isinstance(out, tuple) and not sends
            else None
        )
        if not handles:
            timer.communicated(kind, (name, world), (begin, host), both)
            return out
        last = len(handles) - 1
        handles[last] = _Waited(handles[last], timer, (kind, (name, world), (begin, host), both))
        return out

    return call


class _Waited:
    """A handle of an asynchronous call that records the collective when the wait for it ends."""

    def __init__(self, handle: Any, timer: OpsTimer, facts: tuple[Any, ...]) -> None:
        self._handle, self._timer, self._facts = handle, timer, facts

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """Wait, and record the end of the collective."""
        out = self._handle.wait(*args, **kwargs)
        facts, self._facts = self._facts, ()
        if facts and self._timer.timing:
            self._timer.communicated(*facts, waits=True)
        return out

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)


def _put(holder: Any, name: str, function: Any, back: list[Any]) -> None:
    """Set an attribute of one object; ``back`` gets a function that undoes it."""
    own = holder.__dict__
    was = own.get(name)
    own[name] = function
    back.append(lambda: own.pop(name, None) if was is None else own.__setitem__(name, was))


def _groups() -> dict[str, Any]:
    """Groups of this process that have more than one rank."""
    state = importlib.import_module("vllm.distributed.parallel_state")
    groups = {}
    for name in _GROUPS:
        group = getattr(state, f"_{name}", None)
        if group is not None and int(getattr(group, "world_size", 1)) > 1:
            groups[name.lower()] = group
    return groups


def scheduled_step(scheduled: Any) -> tuple[str, str]:
    """Label of a step as vLLM's profiler writes it, and its phase:

    ``prefill``, ``decode`` or ``mixed``.
    """
    cached, count = scheduled.scheduled_cached_reqs, len(scheduled.num_scheduled_tokens)
    tokens_of = getattr(cached, "num_output_tokens", None)
    if (
        not scheduled.scheduled_new_reqs
        and tokens_of
        and len(tokens_of) == count
        and all(tokens_of)
    ):
        # This runs in every step, and in most steps all requests decode: avoid a loop over them.
        return (
            f"execute_context_0(0)_generation_{count}({scheduled.total_num_scheduled_tokens})",
            "decode",
        )
    new = {one.req_id for one in scheduled.scheduled_new_reqs}
    is_context = getattr(cached, "is_context_phase", None)
    requests, tokens = [0, 0], [0, 0]
    for request, count in scheduled.num_scheduled_tokens.items():
        context = request in new or (is_context(request) if is_context else count > 1)
        part = 0 if context else 1
        requests[part] += 1
        tokens[part] += int(count)
    label = f"execute_context_{requests[0]}({tokens[0]})_generation_{requests[1]}({tokens[1]})"
    return label, "decode" if not requests[0] else "mixed" if requests[1] else "prefill"
