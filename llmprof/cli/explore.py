"""``llmprof explore``: the explorers of a trace in a browser tab, served by voila on this machine only."""

from __future__ import annotations

import importlib.util
import os
import secrets
import socket
import sys
import tempfile
import threading
import time
import webbrowser
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from llmprof import bundled
from llmprof.cli.output import SAMPLE, Terminal, open_trace, to_json
from llmprof.errors import LaunchError, LlmprofError
from llmprof.launch.run import process
from llmprof.readers.ncu.reader import read_metrics
from llmprof.readers.saved import capture

HOST: Final = "127.0.0.1"
NEEDED: Final = ("voila", "ipywidgets", "anywidget", "ipykernel", "psutil")
_START_S: Final = 60.0
_SAID: Final = 2_000
"""Characters of the server's log that an error shows."""


def explore(args: Namespace, terminal: Terminal) -> str:
    """Serve the explorers until the server is ended with Ctrl-C."""
    check_installed()
    from llmprof.explore.tabs import Wanted

    for paths in (args.paths, [args.compare] if args.compare else []):
        if paths:
            open_trace(paths, args, terminal)  # an error is better here than in the browser; the cache keeps it
    metrics = _files(args.metrics or [])
    if metrics:
        read_metrics(metrics)
    wanted = Wanted(
        _files(args.paths),
        _files([args.compare] if args.compare else []),
        metrics,
        [_name(args.paths[0]), _name(args.compare or "b")],
        args.format,
        False if args.no_cache else None,
    )
    port = _port(args.port)
    token = secrets.token_urlsafe(24)
    address = f"http://{HOST}:{port}/?token={token}"
    environment = os.environ | wanted.environment() | {"JUPYTER_TOKEN": token, "JUPYTER_PATH": _templates()}
    with tempfile.TemporaryDirectory(prefix="llmprof-explore-") as folder:
        log = Path(folder) / "voila.log"
        greeter = threading.Thread(target=_greet, args=(address, port, args, terminal), daemon=True)
        try:
            process.run(command(port), log=log, env=environment, started=lambda _pid: greeter.start())
        except KeyboardInterrupt:
            return "" if args.json else "The server has ended."
        said = log.read_text("utf-8", "replace")[-_SAID:]
    raise LaunchError("voila ended by itself", expected="a server that runs until Ctrl-C", hint=f"it said: {said}")


def command(port: int) -> list[str]:
    """Arguments of the server: bound to this machine, behind the token of ``JUPYTER_TOKEN``."""
    from llmprof import explore as package

    notebook = Path(str(package.__file__)).with_name("explore.ipynb")
    return [
        *(sys.executable, "-m", "voila", str(notebook), "--no-browser"),
        *(f"--Voila.ip={HOST}", f"--port={port}", "--Voila.port_retries=0", "--Voila.auto_token=True"),
        *("--template=llmprof", "--VoilaConfiguration.show_tracebacks=True"),
    ]


def _templates() -> str:
    """``JUPYTER_PATH`` with the folder of our template, which asks nothing of the network."""
    from llmprof import explore as package

    ours = Path(str(package.__file__)).with_name("jupyter")
    return os.pathsep.join([str(ours), *filter(None, [os.environ.get("JUPYTER_PATH")])])


def check_installed() -> None:
    """Check that what serves the page is installed.

    Raises
    ------
    LlmprofError
        It is not; the message says how to install it.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise LlmprofError(
            f"explorers cannot be served: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed",
            hint="pip install 'llmprof[notebook]'",
            missing=missing,
        )


def _files(paths: Sequence[str]) -> list[str]:
    files: list[Path] = []
    for path in paths:
        files += bundled.files(path.removeprefix(SAMPLE)) if path.startswith(SAMPLE) else [capture(Path(path))]
    return [str(file.resolve()) for file in files]


def _name(path: str) -> str:
    return path.removeprefix(SAMPLE) if path.startswith(SAMPLE) else Path(path).name.split(".")[0] or path


def _port(wished: int) -> int:
    """The port that was wished for, or a free one.

    Raises
    ------
    LlmprofError
        It is in use, or no port.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wished))
        except (OSError, OverflowError) as error:
            raise LlmprofError(
                f"port {wished} cannot be used: {getattr(error, 'strerror', None) or error}",
                hint="choose another one with --port, or none",
            ) from error
        port: int = probe.getsockname()[1]
    return port


def _greet(address: str, port: int, args: Namespace, terminal: Terminal) -> None:
    """Say the address once the server answers, and open it."""
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            break
    terminal.tell(to_json({"address": address}) if args.json else f"Explorers at {address}\nCtrl-C ends the server.")
    if args.browser:
        webbrowser.open(address)
