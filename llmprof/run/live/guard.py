"""Guard of a recording: a second process that switches the profiler off if the first one cannot."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import llmprof
from llmprof.errors import LaunchError, LlmprofError
from llmprof.run.live.server import Address, LostError, ServerClient

IDLE: Final = "idle"
"""State in the file of a lock while no profiler is on."""
_READY: Final = b"ready\n"
_STOPPED: Final = b"stopped\n"
_BEGIN_S: Final = 60.0
_TRY_AGAIN_S: Final = 1.0
_TRIES_S: Final = 120.0
_STOP_S: Final = 60.0


class Guard:
    """Process that switches a server's profiler off when this one has ended, or has not done so in
    time.

    It runs in a session of its own, so that neither Ctrl-C nor the end of a terminal reaches it. It
    gets credentials through a pipe, so that no list of processes shows them.
    """

    def __init__(self, address: Address, *, within_s: float, lock: int) -> None:
        job = {
            "url": address.url,
            "user": address.user,
            "password": address.password,
            "token": address.token,
        }
        path = os.pathsep.join(
            filter(None, [str(Path(llmprof.__file__).parents[1]), os.environ.get("PYTHONPATH")])
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "llmprof.run.live.guard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,
            pass_fds=(lock,),
        )
        self._write(json.dumps(job | {"within_s": within_s, "lock": lock}).encode() + b"\n")
        said = self._process.stdout
        if (
            said is None
            or not select.select([said], [], [], _BEGIN_S)[0]
            or said.readline() != _READY
        ):
            self._process.kill()
            self._process.wait()
            raise LaunchError(
                "the process that guards the recording did not start", hint="nothing was recorded"
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def release(self, *, stopped: bool) -> None:
        """End the guard; unless the profiler is known to be off, it first switches it off."""
        if stopped:
            self._write(_STOPPED)
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        if stopped:
            self._process.wait()
        else:  # it goes on without this process, which only takes note of its end
            threading.Thread(target=self._process.wait, daemon=True).start()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.write(data)
                self._process.stdin.flush()


def stop(server: ServerClient, *, within_s: float = _TRIES_S) -> bool:
    """Switch a profiler off, again until it answers; False if the server is gone or does not answer
    in time.

    Any answer counts: a profiler that is already off answers with an error in some versions.
    """
    until = time.monotonic() + within_s
    while True:
        try:
            server.stop(timeout_s=_STOP_S)
        except LostError:
            if time.monotonic() > until:
                return False
            time.sleep(_TRY_AGAIN_S)
        else:
            return True


def _guard() -> None:
    job: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    until, lock = time.monotonic() + job.pop("within_s"), job.pop("lock")
    server = ServerClient(Address(**job))
    sys.stdout.buffer.write(_READY)
    sys.stdout.buffer.flush()
    ready, _, _ = select.select([0], [], [], max(0.0, until - time.monotonic()))
    if ready and os.read(0, len(_STOPPED)) == _STOPPED:
        return
    with contextlib.suppress(LlmprofError, OSError):
        if stop(server):
            os.ftruncate(lock, 0)
            os.write(lock, json.dumps({"state": IDLE}).encode())


if __name__ == "__main__":
    _guard()
