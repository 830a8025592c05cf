"""Profiling from a notebook:

``llmprof.profile(...)`` runs an engine, ``%%profile`` records the code of a cell.

>>> run = llmprof.profile(model="random:tiny", mode="torch", batch_size=4, tensor_parallel_size=2)  # doctest: +SKIP
>>> run.trace  # doctest: +SKIP

After ``%load_ext llmprof``::

    %%profile mine
    model(batch)

puts the :class:`~llmprof.Trace` of the cell into ``mine``. Errors of llmprof are shown as words
there, without a traceback.
"""  # noqa: E501

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from llmprof.errors import ConfigError, LaunchError
from llmprof.run.launch import ExperimentConfig
from llmprof.text import Progress

if TYPE_CHECKING:
    from llmprof.run.launch import Run
    from llmprof.trace import Trace

EVERY_S = 0.2
"""Least time between two displays of the same text."""


@contextlib.contextmanager
def told(name: str) -> Iterator[Progress | None]:
    """Show progress as one changing output of the cell; outside a notebook there is none."""
    if not in_notebook():
        yield None
        return
    from IPython.display import HTML, DisplayHandle

    handle: Any = DisplayHandle()  # type: ignore[no-untyped-call]
    begun = time.monotonic()
    shown, shown_at = "", 0.0

    def show(words: str, bar: str = "", *, first: bool = False) -> None:
        text = f"{name}: {words} ({time.monotonic() - begun:.0f} s)"
        bundle = HTML(f'<span role="status">{bar}{escape(text)}</span>')  # type: ignore[no-untyped-call]
        (handle.display if first else handle.update)(bundle)

    def tell(what: str, done: int, total: int) -> None:
        nonlocal shown, shown_at
        now = time.monotonic()
        if what != shown or now - shown_at >= EVERY_S:
            shown, shown_at = what, now
            bar = (
                f'<progress max="{total}" value="{done}" aria-hidden="true"></progress> '
                if total > 1
                else ""
            )
            show(f"{what}{f', {done:,} of {total:,}' if total > 1 else ''}", bar)

    show("starting", first=True)
    try:
        yield tell
    except BaseException as error:
        show("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        raise
    show("finished")


def in_notebook() -> bool:
    """Whether this is a Jupyter kernel, whose output can be replaced."""
    shell = sys.modules.get("IPython")
    active = shell.get_ipython() if shell is not None else None
    return active is not None and hasattr(active, "kernel")


DEFAULT_NAME = "trace"
_USAGE = "%%profile [NAME] [--stack] [--memory] [--no-shapes]"


def profile(
    model: str | None = None,
    *,
    config: str | os.PathLike[str] | ExperimentConfig | None = None,
    **options: Any,
) -> Run:
    """Run a model under a profiler in a separate process, and read the results.

    Parameters
    ----------
    model : str, optional
        Folder, hub name, or ``random:NAME`` for random weights; may come from ``config`` instead.
    config : path or ExperimentConfig, optional
        Default values, which the options override.
    **options
        Fields of :class:`~llmprof.run.launch.ExperimentConfig`; ``mode`` is short for ``profile_mode``.

    Returns
    -------
    Run
        The finished run: ``.folder``, ``.requests``, ``.trace``, ``.summary``. In a notebook one
        line shows the progress; elsewhere nothing is written.

    Raises
    ------
    ConfigError
        An option is unknown, has a wrong type, or does not go with another one.
    LaunchError
        The machine cannot run it, or the engine or profiler failed, with advice.
    CaptureError
        The capture is empty or incomplete.
    """  # noqa: E501
    from llmprof.run.launch import ConfigManager, ExperimentRunner

    if model is not None:
        options["model"] = model
    if "mode" in options:
        if "profile_mode" in options:
            raise ConfigError("mode and profile_mode are given together", expected="one of them")
        options["profile_mode"] = options.pop("mode")
    if config is None:
        chosen = ExperimentConfig.from_dict(options)
    else:
        base = (
            config
            if isinstance(config, ExperimentConfig)
            else ConfigManager.load_config(Path(config))
        )
        chosen = base.replace(**options)
    with told(chosen.name) as progress:
        return ExperimentRunner(chosen, progress=progress).run()


def magic(shell: Any, line: str, cell: str) -> Any:
    """``%%profile [NAME]``: run a cell under the torch profiler and put its trace into a
    variable.
    """
    name, flags = _options(line)
    profiler, wait = _profiler(flags)
    code, last = _compiled(shell, cell)
    wait()
    try:
        with profiler:
            try:
                exec(code, shell.user_ns)  # noqa: S102 (the user's own cell)
                return eval(last, shell.user_ns) if last is not None else None  # noqa: S307
            finally:
                wait()
    finally:
        shell.push({name: _read(profiler, stacks="--stack" in flags)})


def _compiled(shell: Any, cell: str) -> tuple[CodeType, CodeType | None]:
    """The cell as IPython would run it, and its last expression."""
    source = shell.transform_cell(cell)
    tree = shell.transform_ast(ast.parse(source))
    file = shell.compile.cache(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    code = compile(tree, file, "exec")
    return code, compile(ast.Expression(last.value), file, "eval") if last is not None else None


def _read(profiler: Any, *, stacks: bool) -> Trace:
    from llmprof.readers import read

    with tempfile.TemporaryDirectory(prefix="llmprof-") as folder:
        file = Path(folder) / "cell.pt.trace.json"
        profiler.export_chrome_trace(str(file))
        return read(file, cache=False, python_functions=stacks)


def _options(line: str) -> tuple[str, set[str]]:
    words = line.split()
    flags = {word for word in words if word.startswith("-")}
    names = [word for word in words if not word.startswith("-")]
    if unknown := flags - {"--stack", "--memory", "--no-shapes"}:
        raise ConfigError(f"%%profile got {min(unknown)}", expected=_USAGE)
    if len(names) > 1 or (names and not re.fullmatch(r"[^\W\d]\w*", names[0])):
        raise ConfigError(
            f"%%profile got {line.strip()!r}", expected=_USAGE, hint="give the name of one variable"
        )
    return (names[0] if names else DEFAULT_NAME), flags


def _profiler(flags: set[str]) -> tuple[Any, Callable[[], None]]:
    """The profiler of a cell, and a function that waits until the device has finished its work."""
    try:
        import torch.profiler  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise LaunchError(
            "%%profile needs torch in the kernel of this notebook, and it is not installed there",
            hint=(
                "pip install 'llmprof[torch]', or profile an engine in its own process with"
                " llmprof.profile(...)"
            ),
        ) from error
    kinds, make = torch.profiler.ProfilerActivity, torch.profiler.profile
    options: dict[str, Any] = {
        "activities": [kinds.CPU],
        "record_shapes": "--no-shapes" not in flags,
        "with_stack": "--stack" in flags,
        "profile_memory": "--memory" in flags,
    }
    if "acc_events" in inspect.signature(make).parameters:  # without it, newer versions warn
        options["acc_events"] = True
    if not torch.cuda.is_available():
        return make(**options), lambda: None
    options["activities"].append(kinds.CUDA)
    return make(**options), torch.cuda.synchronize


def register_magic(shell: Any) -> None:
    """Add ``%%profile`` to a shell, and show there what people read; ``%load_ext llmprof`` calls
    it.
    """
    from llmprof.run.notebook.display import extend_display

    shell.register_magic_function(
        functools.partial(magic, shell), magic_kind="cell", magic_name="profile"
    )
    extend_display(shell)
