"""A stand-in server for each test, and locks of the tests' own."""

import pytest

from tests.live.stand_in import StandIn


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server that is not started yet."""
    monkeypatch.setenv("LLMPROF_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    made = StandIn(tmp_path / "server")
    yield made
    made.stop()
