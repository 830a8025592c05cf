"""Progress of long work: one kind of callable, which readers, runs, sweeps and reports call as they go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

__all__ = ["Progress"]

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and of how much (bytes, points, files; 0: unknown).

>>> def progress(what: str, done: int, total: int) -> None:
...     print(f"{what}: {done} of {total}")
>>> progress("rank0.json", 512, 1024)
rank0.json: 512 of 1024
"""
