"""Workers for many ranks: processes of this machine, or a Dask cluster."""

from __future__ import annotations

import logging
import os
import queue
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any, Final, Generic, TypeVar

from llmprof.errors import ArgumentError, ClusterError
from llmprof.readers.common.helpers import cores
from llmprof.text import Progress

REACHED_WITHIN: Final = "10s"
"""A scheduler that does not answer for this time is unreachable."""

WITHOUT_WORKERS_S: Final = 30.0
"""If there is no worker for this time, the work is given up."""

_LOOK_EVERY_S: Final = 2.0

T = TypeVar("T")
R = TypeVar("R")


class Lost(Exception):  # noqa: N818 - it is a result, not raised
    """Result in place of that of a thing whose workers died repeatedly."""


class Workers(Generic[T]):
    """Workers that call one function with many things."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @property
    def count(self) -> int:
        """Number of workers."""
        return 1 if self._client is None else max(1, sum(self._client.nthreads().values()))

    def each(
        self,
        function: Callable[..., R],
        things: Sequence[T],
        *shared: object,
        what: str,
        progress: Progress | None = None,
    ) -> Iterator[tuple[T, R | Lost]]:
        """Results of a function for many things, in the order in which they finish."""
        if progress is not None:
            progress(what, 0, len(things))
        here = ((thing, function(thing, *shared)) for thing in things)
        done = here if self._client is None else self._there(function, things, shared)
        for number, (thing, result) in enumerate(done, 1):
            if progress is not None:
                progress(what, number, len(things))
            yield thing, result

    def _there(
        self, function: Callable[..., R], things: Sequence[T], shared: tuple[object, ...]
    ) -> Iterator[tuple[T, R | Lost]]:
        finished: queue.SimpleQueue[Any] = queue.SimpleQueue()
        left: dict[str, tuple[T, Any]] = {}
        waiting = iter(things)
        silent = 0.0
        try:
            while True:
                # few at a time: results are fetched before more begins, so they do not collect on
                # workers
                while len(left) < 2 * self.count + 2 and (thing := next(waiting, None)) is not None:
                    # Dask moves a task whose worker died to another worker three times
                    # (allowed-failures)
                    future = self._client.submit(function, thing, *shared, pure=False)
                    left[future.key] = thing, future
                    future.add_done_callback(finished.put)
                    del future
                if not left:
                    return
                try:
                    key = finished.get(timeout=_LOOK_EVERY_S).key
                except queue.Empty:
                    silent = 0.0 if self._alive() else silent + _LOOK_EVERY_S
                    if silent >= WITHOUT_WORKERS_S:
                        raise ClusterError(
                            f"the cluster has had no worker for {WITHOUT_WORKERS_S:.0f} s;"
                            f" {len(left)} are not done",
                            hint="start workers and call again: what was converted stays",
                        ) from None
                    continue
                silent = 0.0
                thing, done = left.pop(key)
                yield thing, self._result(done)
                done.release()
        except OSError as error:  # also of the questions to the scheduler in between
            raise _gone(error) from error
        finally:
            if left:  # interrupted, or the caller stopped
                with suppress(
                    OSError, RuntimeError
                ):  # without a scheduler there is nothing to cancel
                    self._client.cancel([future for _, future in left.values()], force=True)

    @staticmethod
    def _result(future: Any) -> Any:
        from dask.distributed import CancelledError, KilledWorker

        try:
            return future.result()
        except KilledWorker:
            return Lost(
                "the workers that had it died, one after the other: was there enough memory?"
            )
        except (CancelledError, OSError) as error:
            raise _gone(error) from error

    def _alive(self) -> bool:
        try:
            return bool(self._client.nthreads())
        except (OSError, RuntimeError):
            return False


def _gone(error: BaseException) -> ClusterError:
    return ClusterError(
        f"the cluster went away: {error}", hint="start it and call again: what was converted stays"
    )


@contextmanager
def workers(client: Any, tasks: int) -> Iterator[Workers[Any]]:
    """Workers for a number of tasks; those that this function starts are stopped at the end."""
    if client is False or (client is None and (tasks < 2 or cores() < 2)):
        yield Workers(None)
        return
    distributed = _distributed()
    if isinstance(client, distributed.Client):
        yield Workers(client)
        return
    if isinstance(client, str):
        try:
            made = distributed.Client(client, timeout=REACHED_WITHIN, set_as_default=False)
        except (OSError, ValueError) as error:  # a time-out is an OSError
            hint = (
                "check the address (tcp://host:8786) and that its scheduler runs, or leave"
                " client= out"
            )
            raise ClusterError(
                f"the cluster at {client} cannot be reached: {error}", hint=hint
            ) from error
        with made:
            yield Workers(made)
        return
    if client is not None:
        found = f"client= is {type(client).__name__!r}"
        raise ArgumentError(
            found, expected="a dask.distributed.Client, the address of a scheduler, None or False"
        )
    with local(min(tasks, cores())) as made:
        yield Workers(made)


def _distributed() -> Any:
    try:
        return import_module("dask.distributed")
    except ModuleNotFoundError as error:
        raise ClusterError(
            f"work in several processes needs the package {error.name}, which is not installed",
            hint="pip install 'llmprof[scale]', or pass client=False for this process alone",
        ) from error


@contextmanager
def local(count: int, *, processes: bool = True) -> Iterator[Any]:
    """A Dask client with local processes of one thread each, at most one for each core."""
    distributed = _distributed()
    threads = os.environ.get("POLARS_MAX_THREADS") or str(max(1, cores() // max(1, count)))
    with ExitStack() as stack:
        scratch = stack.enter_context(
            TemporaryDirectory(prefix="llmprof-workers-", ignore_cleanup_errors=True)
        )
        with import_module("dask").config.set({"temporary-directory": scratch}):
            cluster = stack.enter_context(
                distributed.LocalCluster(
                    n_workers=count,
                    threads_per_worker=1,
                    processes=processes,
                    dashboard_address=None,
                    scheduler_kwargs={
                        "dashboard_address": "127.0.0.1:0"
                    },  # its HTTP server takes any port
                    silence_logs=logging.CRITICAL,
                    **(
                        {"env": {"POLARS_MAX_THREADS": threads}, "preload": [__name__]}
                        if processes
                        else {}
                    ),
                )
            )
        yield stack.enter_context(distributed.Client(cluster, set_as_default=False))


def dask_setup(worker: object) -> None:
    """Dask calls it in each process of :func:`local`:

    Ctrl-C is for the process that started them, which ends them.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
