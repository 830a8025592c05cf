"""Progress of long work: the type of the functions that readers, runs, sweeps and reports call
while they work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

__all__ = ["Progress"]

Progress: TypeAlias = Callable[[str, int, int], None]
"""Function that is called with the current task, the amount that is done, and the whole amount (in
bytes, points or files; 0 if unknown).

>>> def progress(what: str, done: int, total: int) -> None:
...     print(f"{what}: {done} of {total}")
>>> progress("rank0.json", 512, 1024)
rank0.json: 512 of 1024
"""
