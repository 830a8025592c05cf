"""``llmprof explore`` without a browser: what it checks, what it starts, and how it ends."""

import importlib.util
import json
import socket
import time
from pathlib import Path

import pytest

from llmprof.cli import main, make
from llmprof.explore.served import ServedFiles
from llmprof.readers.bundled import notebook_data
from llmprof.run.launch.run import process

SAMPLE = "sample:torch_tp1_cudagraph"


@pytest.fixture
def started(monkeypatch):
    """What would have been started; the program is ended with Ctrl-C at once."""
    seen = {}

    def run(argv, *, log, env, **_options):
        seen.update(argv=argv, env=env, log=log)
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "run", run)
    return seen


def test_server_is_bound_to_this_machine_and_behind_a_token(started, capsys):
    assert (
        main.main(["explore", SAMPLE, "--compare", "sample:torch_tp1_eager", "--no-browser"]) == 0
    )
    assert capsys.readouterr().out == "The server has ended.\n"
    argv, env = started["argv"], started["env"]
    assert argv[1:3] == ["-m", "voila"]
    assert Path(argv[3]).is_file()
    assert "--Voila.ip=127.0.0.1" in argv
    assert "--Voila.auto_token=True" in argv
    assert len(env["JUPYTER_TOKEN"]) >= 32
    assert not [word for word in argv if env["JUPYTER_TOKEN"] in word], "other users see arguments"
    wanted = ServedFiles.of_environment(env)
    assert wanted.names == ["torch_tp1_cudagraph", "torch_tp1_eager"]
    assert all(
        Path(file).is_absolute() and Path(file).exists() for file in wanted.files + wanted.other
    )
    template = Path(env["JUPYTER_PATH"].split(":")[0]) / "voila/templates/llmprof/index.html.j2"
    assert "http" not in template.read_text("utf-8")


def test_the_page_gets_the_folder_of_a_run_and_so_its_requests(started):
    folder = notebook_data("h200") / "served_queue"
    assert main.main(["explore", str(folder), "--no-browser"]) == 0
    assert ServedFiles.of_environment(started["env"]).files == [str(folder.resolve())]


def test_missing_voila_is_explained(monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "voila" else found(name)
    )
    assert main.main(["explore", SAMPLE]) == 2
    said = capsys.readouterr().err
    assert "voila is not installed" in said
    assert "pip install 'llmprof[notebook]'" in said


def test_port_in_use_and_missing_file_are_explained(started, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main.main(["explore", SAMPLE, "--port", str(port)]) == 2
    assert f"port {port} cannot be used" in capsys.readouterr().err
    assert main.main(["explore", SAMPLE, "--port", "70000"]) == 2
    assert "port 70000 cannot be used" in capsys.readouterr().err
    assert main.main(["explore", "no/such/trace.json"]) == 2
    assert "no/such/trace.json" in capsys.readouterr().err
    assert started == {}


def test_a_server_that_ends_by_itself_says_why(monkeypatch, capsys):
    def run(_argv, *, log, **_options):
        log.write_text("Address family not supported\n", "utf-8")

    monkeypatch.setattr(process, "run", run)
    assert main.main(["explore", SAMPLE]) == 2
    said = capsys.readouterr().err
    assert "voila ended by itself" in said
    assert "Address family not supported" in said


def test_address_is_said_and_opened(monkeypatch, capsys):
    opened = []
    monkeypatch.setattr(make.webbrowser, "open", opened.append)

    def run(argv, *, started, **_options):
        port = int(
            next(word for word in argv if word.startswith("--port=")).removeprefix("--port=")
        )
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", port))
            server.listen()
            started(1)
            server.accept()[0].close()
            until = time.monotonic() + 180
            while not opened and time.monotonic() < until:
                time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "run", run)
    assert main.main(["explore", SAMPLE, "--json"]) == 0
    address = json.loads(capsys.readouterr().out)["address"]
    assert opened == [address]
    assert address.startswith("http://127.0.0.1:")
