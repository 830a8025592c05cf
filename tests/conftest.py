"""What all tests share: the bundled samples, read once, and a cache folder of the tests' own."""

import asyncio
import functools
import gc
import os
import shlex
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import hypothesis
import pytest

import llmprof.charts  # noqa: F401 (before tests import Altair and nbformat: it keeps that short)
from llmprof.readers import bundled
from tests.samples import sample

ROOT = Path(__file__).resolve().parents[1]

# A property test that fails now and then says nothing: the same examples every time, unless others
# are asked for. 50 that are always the same: more of them find no more; new ones are looked for in
# larger numbers.
RANDOM = "LLMPROF_RANDOM" in os.environ
hypothesis.settings.register_profile(
    "llmprof", deadline=None, derandomize=not RANDOM, max_examples=200 if RANDOM else 50
)
hypothesis.settings.load_profile("llmprof")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Thousands of tests are made here, and none is garbage: they are not looked through again
    and again.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


LONG = (
    "test_docs.py",
    "test_experiments.py",
    "test_notebooks.py",
    "test_ops_runs.py",
    "test_real_runs.py",
)
"""Tests of a minute: they start before the other slow ones, so that no process waits at the end
for another's.
"""


def pytest_collection_modifyitems(items):
    """Fast tests first: a mistake shows early; before them those of the browser, of which one
    process has all.
    """
    long = {
        item: item.path.name in LONG or item.get_closest_marker("smoke") is not None
        for item in items
    }
    items.sort(key=lambda item: (item.get_closest_marker("slow") is not None, not long[item]))


def _without_the_browsers_loop(item):
    """A browser that is open for other tests runs an event loop in this thread; code would take
    it for Jupyter's.
    """
    loop = None if "browser" in getattr(item, "fixturenames", ()) else asyncio._get_running_loop()
    if loop is None:
        return (yield)
    asyncio._set_running_loop(None)
    try:
        return (yield)
    finally:
        asyncio._set_running_loop(loop)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    """Fixtures of other tests do not see the browser's event loop."""
    return (yield from _without_the_browsers_loop(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Other tests do not see the browser's event loop."""
    return (yield from _without_the_browsers_loop(item))


@pytest.fixture(scope="session")
def root():
    """Root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def engine_python():
    """The interpreter of ``make engine``, or the one that the environment names."""
    found = os.environ.get("LLMPROF_ENGINE_PYTHON") or str(ROOT / ".venv-vllm" / "bin" / "python")
    if not Path(found).exists():
        pytest.fail("there is no engine to run: make engine")
    return found


@pytest.fixture
def run(capsys):
    """Run a command, as it is typed or word by word; return its exit code, what it printed, and
    what it said on stderr.
    """
    from llmprof.cli import main

    def run(*argv):
        code = main.main(shlex.split(argv[0]) if len(argv) == 1 else list(argv))
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def vllm(tmp_path, monkeypatch):
    """A stand-in for vLLM that the runs of this process find; ``how`` says how it behaves."""
    from tests.launch.vllm_stand_in import StandInVllm

    made = StandInVllm(tmp_path)
    made.how = lambda **values: [
        monkeypatch.setenv(*pair) for pair in made.environment(values).items()
    ]
    made.how()
    return made


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Keep the tests out of the user's cache of parsed traces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLMPROF_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("LLMPROF_WORKERS", "1")  # several test processes use the cores already
        yield


@pytest.fixture(autouse=True)
def _no_terminal():
    """Lines are as long as they are: some libraries set the width of a terminal for all that
    comes after them.
    """
    os.environ.pop("COLUMNS", None)


@pytest.fixture(autouse=True)
def _interrupts_arrive():
    """An interrupt that comes during Hypothesis' callback of garbage collection is swallowed: it
    cannot raise there.
    """
    gc.callbacks.clear()


@pytest.fixture(scope="session")
def sample_trace():
    """A bundled sample by name, read once in a session."""
    return sample


@pytest.fixture(scope="session")
def small_export(tmp_path_factory):
    """The bundled export of nsys with all its tables and columns, and a sixteenth of its events:
    to be copied.
    """
    path = tmp_path_factory.mktemp("small") / "report.sqlite"
    shutil.copyfile(ROOT / "sample_traces/nsys_tp2_cudagraph/report.sqlite", path)
    whole_launches = [
        f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "RUNTIME", "SYNCHRONIZATION")
    ]
    kept = dict.fromkeys(whole_launches, "correlationId % 16 = 0") | {
        "CUDA_GRAPH_NODE_EVENTS": "rowid % 16 = 0"
    }
    with closing(sqlite3.connect(path)) as connection:
        for table, condition in kept.items():
            connection.execute(f"DELETE FROM {table} WHERE NOT {condition}")
        connection.commit()
        connection.execute("VACUUM")
    return path


@pytest.fixture(scope="session")
def shared():
    """The folder of recordings beside a developer's checkout; the test is skipped where there is
    none.
    """
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("there is no folder of recordings beside this checkout")
    return folder


@pytest.fixture(scope="session")
def synthetic_npu(tmp_path_factory):
    """Folder of a variant of the synthetic recording of two NPUs, made once in a session."""
    return functools.cache(
        lambda variant: bundled.synthetic_npu(variant, tmp_path_factory.mktemp("npu") / variant)
    )
