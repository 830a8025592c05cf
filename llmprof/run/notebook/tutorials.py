"""Execution of the tutorials in ``notebooks/`` on other traces, with papermill."""

import ast
import contextlib
import importlib.util
import logging
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from llmprof.errors import LlmprofError, ReadError, one_of
from llmprof.readers.bundled import folder_of
from llmprof.text import Progress
from llmprof.trace.storage import files, typed

ENVIRONMENT_VARIABLE = "LLMPROF_NOTEBOOKS"
KERNEL = "python3"
_ENGINE = "llmprof"
_LONGEST_SOCKET_FOLDER = 50
"""A socket's path has at most 103 characters on macOS; the name of a kernel takes some 50 of
them.
"""


def find_notebook(name: str) -> Path:
    """Notebook of a name (with or without ``.ipynb``) or of the beginning of one name, or at a
    path.
    """
    path = Path(name)
    if path.suffix == ".ipynb" and path.is_file():
        return path
    if path.name == name:
        folder = folder_of("notebooks", ENVIRONMENT_VARIABLE)
        notebooks = sorted(p.stem for p in folder.glob("*.ipynb"))
        if (stem := name.removesuffix(".ipynb")) in notebooks:
            return folder / f"{stem}.ipynb"
        # a number is that of a notebook, so that 1 is 01 and not 10
        begin = f"{int(stem):02}_" if stem.isdecimal() else stem or "/"
        starting = [notebook for notebook in notebooks if notebook.startswith(begin)]
        if len(starting) == 1:
            return folder / f"{starting[0]}.ipynb"
        raise LlmprofError(f"there is no notebook {name!r}", expected=one_of(notebooks))
    raise ReadError(
        f"there is no notebook at {path}", hint="give the name of a notebook or the path of one"
    )


def check_installed() -> None:
    """Check that the packages that run notebooks are installed."""
    missing = [
        name
        for name in ("papermill", "ipykernel", "nbformat")
        if importlib.util.find_spec(name) is None
    ]
    if missing:
        found = (
            f"notebooks cannot run: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not"
            " installed"
        )
        raise LlmprofError(found, hint="pip install 'llmprof[notebook]'", missing=missing)


def run_notebook(
    name: str,
    folder: str | os.PathLike[str],
    *,
    parameters: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    overwrite: bool = False,
) -> Path:
    """Execute a notebook and keep the executed one, in a folder or as a file ``.ipynb``.

    It runs in the current folder, so that relative paths in the parameters are correct.
    """
    check_installed()
    source = find_notebook(name)
    given = dict(parameters or {})
    check_parameters(source, given)
    target = Path(folder)
    if target.suffix != ".ipynb" or target.is_dir():
        target /= source.name
    files.note_input(source)
    files.check_output(target, overwrite=overwrite)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=target.parent):
            pass  # a notebook takes minutes: whether it can be written is found before
    except OSError as error:
        raise files.refused(target, error) from error
    return _execute(source, target, given, progress)


def parameters_of(notebook: Path) -> list[str]:
    """Names that the cell tagged ``parameters`` of a notebook assigns."""
    try:
        cells = typed.read(notebook, typed.NotebookJson)["cells"]
        tagged = [
            cell for cell in cells if "parameters" in (cell.get("metadata", {}).get("tags") or ())
        ]
        lines = ["".join(cell["source"]) for cell in tagged]
        statements = [statement for text in lines for statement in ast.parse(text).body]
    except (ReadError, ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise ReadError(
            f"{notebook} is not a notebook: {error}", expected="a Jupyter notebook (.ipynb)"
        ) from error
    targets = [target for s in statements if isinstance(s, ast.Assign) for target in s.targets]
    targets += [s.target for s in statements if isinstance(s, ast.AnnAssign)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def check_parameters(source: Path, given: Iterable[str]) -> None:
    """Refuse a parameter that a notebook does not have."""
    parameter_names = parameters_of(source)
    for name in given:
        if name not in parameter_names:
            found = f"{source.stem} has no parameter {name!r}"
            raise LlmprofError(found, expected=one_of(parameter_names))


def _execute(source: Path, target: Path, given: dict[str, Any], progress: Progress | None) -> Path:
    import nbformat
    import papermill  # type: ignore[import-untyped]
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError  # type: ignore[import-untyped]

    _register_engine()
    for log in (
        "papermill",
        "traitlets",
        "asyncio",
    ):  # failures are raised below as errors of llmprof
        logging.getLogger(log).setLevel(logging.CRITICAL)
    work = target.with_name(f".{target.stem}.part.ipynb")
    try:
        executed = papermill.execute_notebook(
            str(source),
            str(work),
            parameters=given,
            engine_name=_ENGINE,
            kernel_name=KERNEL,
            language="python",
            progress_bar=False,
            request_save_on_cell_execute=False,
            # without it viewers show the pictures of widgets, which need no kernel
            store_widget_state=False,
            told=progress,
            **_transport(),
        )
    except PapermillExecutionError as error:
        _without_paths(nbformat.read(work, as_version=4), target)  # type: ignore[no-untyped-call]
        found = (
            f"{source.stem} stopped at cell [{error.exec_count}] with {error.ename}: {error.evalue}"
        )
        raise LlmprofError(found, hint=f"{target} shows how far it came", path=target) from error
    except DeadKernelError as error:
        found = f"the kernel that ran {source.stem} died"
        raise LlmprofError(
            found, hint="it may have run out of memory: see the kernel's messages"
        ) from error
    except OSError as error:
        raise files.refused(target, error) from error
    finally:
        with contextlib.suppress(OSError):
            work.unlink(missing_ok=True)
    _without_paths(executed, target)
    return target


def _transport() -> dict[str, Any]:
    """Connect to the kernel over Unix sockets of this user, if the system has them and their
    path is short enough.
    """
    from jupyter_core.paths import jupyter_runtime_dir
    from traitlets.config import Config

    quiet = {"NotebookClient": {"extra_arguments": [f"--log-level={logging.CRITICAL}"]}}
    if os.name != "posix" or len(jupyter_runtime_dir()) > _LONGEST_SOCKET_FOLDER:
        return {"config": Config(quiet)}
    return {"config": Config(quiet | {"KernelManager": {"transport": "ipc"}})}


def _without_paths(notebook: Any, target: Path) -> None:
    """Write a notebook whose metadata hold file names without the folders of this machine."""
    import nbformat

    about = notebook.metadata.get("papermill", {})
    if about.get("input_path"):
        about["input_path"] = Path(about["input_path"]).name
    if about.get("output_path"):
        about["output_path"] = target.name
    files.write(target, nbformat.writes(notebook) + "\n")  # type: ignore[no-untyped-call]


def _register_engine() -> None:
    """Register papermill's engine with a report of each executed cell."""
    from papermill.engines import NBClientEngine, papermill_engines  # type: ignore[import-untyped]

    class Engine(NBClientEngine):  # type: ignore[misc]
        @classmethod
        def execute_managed_notebook(
            cls, nb_man: Any, kernel_name: str, told: Any = None, **options: Any
        ) -> Any:
            cells = len(nb_man.nb.cells)
            complete, name = (
                nb_man.cell_complete,
                Path(options.get("input_path") or "notebook").stem,
            )

            def completed(cell: Any, cell_index: int | None = None, **more: Any) -> None:
                complete(cell, cell_index, **more)
                if told is not None and cell_index is not None:
                    told(name, cell_index + 1, cells)

            nb_man.cell_complete = completed
            if told is not None:
                told(name, 0, cells)
            return super().execute_managed_notebook(nb_man, kernel_name, **options)

    papermill_engines.register(_ENGINE, Engine)
