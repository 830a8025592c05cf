"""What the timer of operators costs the host a step:

``PYTHONPATH=. .venv-vllm/bin/python benchmarks/timer.py``.

A stack of modules as those of Qwen2 whose leaves do nothing runs with and without the timer, whose
events are stand-ins: what is left is the timer's own Python. The events of a step are counted; what
one costs only a GPU shows.
"""

from __future__ import annotations

import operator
import sys
import time
from types import SimpleNamespace
from typing import Any

import torch

from llmprof.run.workers.ops_timer import OpsTimer

LAYERS, STEPS = 28, 1500


class Leaf(torch.nn.Module):
    """Does nothing, for about as long as a launch takes."""

    busy_ns = 0

    def forward(self, x: Any) -> Any:
        until = time.perf_counter_ns() + Leaf.busy_ns
        while Leaf.busy_ns and time.perf_counter_ns() < until:
            pass
        return x


class Chain(torch.nn.Module):
    """Calls its children in their order."""

    def __init__(self, **children: torch.nn.Module) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, x: Any) -> Any:
        for child in self._modules.values():
            x = child(x)
        return x


class StackModuleList(torch.nn.ModuleList):
    """The layers, called one after the other."""

    def forward(self, x: Any) -> Any:
        for layer in self:
            x = layer(x)
        return x


class Event:
    """In the place of CUDA's: a call into C that does nothing."""

    record = operator.is_

    def synchronize(self) -> None:
        """Nothing is behind."""


class TimedEvent(Event):
    """As ``torch.cuda.Event`` is made from its C base."""

    def __init__(self, *, enable_timing: bool) -> None:
        self.enable_timing = enable_timing

    record = lambda self: None  # noqa: E731


def model() -> torch.nn.Module:
    """A model of the shape of Qwen2."""
    shared = Leaf()

    def layer() -> torch.nn.Module:
        attention = Chain(qkv_proj=Leaf(), rotary_emb=shared, attn=Leaf(), o_proj=Leaf())
        mlp = Chain(gate_up_proj=Leaf(), act_fn=Leaf(), down_proj=Leaf())
        return Chain(
            input_layernorm=Leaf(), self_attn=attention, post_attention_layernorm=Leaf(), mlp=mlp
        )

    inner = Chain(
        embed_tokens=Leaf(), layers=StackModuleList(layer() for _ in range(LAYERS)), norm=Leaf()
    )
    return Chain(model=inner)


def stand_in() -> Any:
    """What the timer asks of PyTorch's CUDA."""
    cuda = SimpleNamespace(
        Event=TimedEvent,
        current_stream=lambda: None,
        synchronize=lambda: None,
        current_device=lambda: 0,
    )
    memory = SimpleNamespace(
        _cuda_memoryStats=lambda _: {"allocated_bytes": {"all": {"current": 0}}}
    )
    return SimpleNamespace(
        __version__="", cuda=cuda, _C=memory, zeros=lambda *_, **__: torch.zeros(1)
    )


def measure(
    root: torch.nn.Module, every: int, layers: int, nothing_ns: int
) -> tuple[float, float, int, float, float]:
    """Best us of an untimed and a timed step, calls and fewest marks of a timed step, us of its
    begin and end.
    """
    cycle = [["none", 1], ["events", 1]]
    timer = OpsTimer(
        stand_in(),
        root,
        {
            "layers": every,
            "operator_layers": layers,
            "cycle": cycle,
            "steps": STEPS,
            "memory": "off",
        },
        cuda=True,
    )
    timer.prepare()
    timer.live.nothing_ns = nothing_ns
    x, took, ends, clock = torch.zeros(1), {"none": [], "events": []}, [], time.perf_counter_ns
    for _ in range(STEPS):
        began = clock()
        timer.begin_step("decode", "decode")
        ready = clock()
        root(x)
        over = clock()
        timer.end_step()
        ended = clock()
        took[timer.entries[-1][2]].append(ended - began)
        if timer.entries[-1][2] == "events":
            ends.append(ready - began + ended - over)
    marks: dict[int, set[int]] = {}
    for row in timer.calls:
        marks.setdefault(row[0], set()).update(map(id, row[2:4]))
    calls = len(timer.calls) // len(marks)
    fewest = min(map(len, marks.values())) + 2
    return min(took["none"]) / 1e3, min(took["events"]) / 1e3, calls, fewest, min(ends) / 1e3


def main() -> None:
    root = model()
    print(
        f"{LAYERS} layers, {STEPS} steps; best step, Python {sys.version.split()[0]}, torch {torch.__version__}"
    )
    print("| timed | leaves | untimed | timed | us a call | begin and end | calls | marks |")
    print("| --- | --: | --: | --: | --: | --: | --: | --: |")
    for every, layers in ((8, 1), (8, 2), (0, -1), (0, 1), (0, 2), (0, 0)):
        for busy_ns in (0, 5_000):
            Leaf.busy_ns = busy_ns
            bare, timed, calls, marks, ends = measure(root, every, layers, 4_000)
            where = f"{every or LAYERS} layers, {LAYERS if layers == 0 else max(0, layers)} with operators"
            print(
                f"| {where} | {busy_ns / 1e3:.0f} us | {bare:.0f} us | {timed - bare:+.0f} us | "
                f"{(timed - bare) / calls:.2f} | {ends:.0f} us | {calls} | {marks} |"
            )


if __name__ == "__main__":
    main()
