"""Explorers: widgets for JupyterLab, Notebook and VS Code that show a trace and hand back Polars frames.

Each function returns a widget; show it as the last line of a cell. They need ``llmprof[notebook]``, and no network.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmprof.explore._all_reduce import all_reduce
    from llmprof.explore._compare import compare
    from llmprof.explore._kernels import kernels
    from llmprof.explore._layers import layers
    from llmprof.explore._link import link
    from llmprof.explore._open import open  # noqa: A004
    from llmprof.explore._overlap import overlap
    from llmprof.explore._timeline import timeline

__all__ = ["all_reduce", "compare", "kernels", "layers", "link", "open", "overlap", "timeline"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}._{name}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
