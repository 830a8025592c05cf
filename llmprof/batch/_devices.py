"""How many GPUs a sweep can use."""

from __future__ import annotations

import os

from llmprof.launch._machine import machine


def devices() -> int:
    """GPUs of this machine that ``CUDA_VISIBLE_DEVICES`` leaves; 0 where there is none, or none can be asked."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return len(machine()["gpus"])
    return len([one for one in visible.split(",") if one.strip() not in {"", "-1"}])
