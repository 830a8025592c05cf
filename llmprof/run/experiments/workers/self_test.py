"""Script that times a known kernel with the operators' timer and with PyTorch's profiler, and
prints both as JSON.

A stand-alone program that needs only PyTorch: ``python self_test.py``.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
from typing import Any

_REPEATS = 20


def main() -> int:
    """Time a matrix product with both, and print the result."""
    torch: Any = importlib.import_module("torch")
    profiler: Any = importlib.import_module("torch.profiler")
    cuda = bool(torch.cuda.is_available())
    n = 4096 if cuda else 512
    place = "cuda" if cuda else "cpu"
    a, b = (torch.randn(n, n, device=place) for _ in range(2))
    for _ in range(3):
        a @ b
    activities = [profiler.ProfilerActivity.CPU] + [profiler.ProfilerActivity.CUDA] * cuda
    timed: list[float] = []
    with profiler.profile(activities=activities) as profile:
        for _ in range(_REPEATS):
            if cuda:
                marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                marks[0].record()
                a @ b
                marks[1].record()
                torch.cuda.synchronize()
                timed.append(marks[0].elapsed_time(marks[1]) * 1e3)
            else:
                began = time.perf_counter_ns()
                a @ b
                timed.append((time.perf_counter_ns() - began) / 1e3)
    device_type = "DeviceType.CUDA" if cuda else "DeviceType.CPU"
    name = None if cuda else "aten::matmul"
    seen = [
        float(event.device_time if cuda else event.cpu_time)
        for event in profile.events()
        if str(event.device_type) == device_type
        and (event.name == name if name else "emset" not in event.name)
    ]
    summary = {
        "platform": place,
        "n": n,
        "timed_us": statistics.median(timed),
        "profiler_us": statistics.median(seen or [0.0]),
        "calls": len(timed),
        "seen": len(seen),
        "torch": str(torch.__version__),
    }
    sys.stdout.write("\n" + json.dumps(summary) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
