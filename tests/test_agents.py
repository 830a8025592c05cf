"""What an agent may ask, and what it is refused."""

import asyncio
import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from llmprof.cli.agents import RefusedError, Tools
from llmprof.errors import AnalysisError, LlmprofError
from llmprof.readers import bundled

EAGER, GRAPHS = "sample:torch_tp1_eager", "sample:torch_tp1_cudagraph"


@pytest.fixture
def folder(tmp_path):
    """A folder of runs, with a secret beside it."""
    runs = tmp_path / "runs"
    runs.mkdir()
    for file in bundled.sample_files("torch_tp1_cudagraph"):
        shutil.copy(file, runs / "graphs.json.gz")
    (runs / "notes.txt").write_text("nothing")
    (tmp_path / "secret.json").write_text('{"traceEvents": [{"ph": "X", "name": "x", "ts": 1}]}')
    return runs


def test_traces_of_the_folders_and_samples_are_listed(folder):
    found = Tools([folder]).traces()
    assert (found[0]["path"], found[0]["format"]) == (str(folder / "graphs.json.gz"), "chrome")
    assert EAGER in [row["path"] for row in found]
    assert not [row for row in found if "secret" in row["path"] or "notes" in row["path"]]


def test_questions_are_answered(folder):
    tools = Tools([folder])
    path = "graphs.json.gz"
    about = tools.info(path)
    assert (about["device"], about["platform"], about["ranks"]) == ("NVIDIA H200", "nvidia", [0])
    assert "start_ns" in about["tables"]["kernels"]["columns"]
    assert tools.findings(path)["format"] == "llmprof.findings"
    kernels = tools.analyze(path, "kernels", sort="total_ns", limit=3)
    assert len(kernels["rows"]) == 3
    assert kernels["rows"][0]["total_ns"] >= kernels["rows"][1]["total_ns"]
    assert tools.sql(path, "select count(*) as n from kernels")["rows"] == [
        {"n": about["tables"]["kernels"]["rows"]}
    ]
    compared = tools.diff(EAGER, path)
    assert {"decode": "faster"}.items() <= {
        row["phase"]: row["verdict"] for row in compared["phases"]
    }.items()
    assert compared["markdown"].startswith("**")
    assert tools.picture(path, 0, about["span_ns"] / 1e6)[:8] == b"\x89PNG\r\n\x1a\n"
    json.dumps([about, kernels, compared], allow_nan=False)


@pytest.mark.parametrize(
    "path",
    [
        "../secret.json",
        "/etc/passwd",
        "runs/../../secret.json",
        "~/secret",
        "link.json",
        "linked",
        ".",
    ],
)
def test_paths_outside_are_refused(folder, path):
    (folder / "link.json").symlink_to(folder.parent / "secret.json")
    (folder / "linked").mkdir()
    (folder / "linked" / "rank0.json").symlink_to(folder.parent / "secret.json")
    with pytest.raises(LlmprofError) as caught:
        Tools([folder]).trace(path)
    assert isinstance(caught.value, RefusedError) or "there is no" in str(caught.value)
    assert "traceEvents" not in str(caught.value)


@pytest.mark.parametrize(
    "path",
    [
        "a\0b",
        "a" * 5_000,
        "a/" * 2_500,
        "/" + "a" * 5_000,
        "loop",
        "sample:a\0b",
        "sample:" + "a" * 5_000,
    ],
)
def test_what_cannot_be_a_path_is_refused_in_words(folder, path):
    (folder / "loop").symlink_to(folder / "loop")
    with pytest.raises(LlmprofError):
        Tools([folder]).info(path)
    with pytest.raises(LlmprofError):
        Tools([folder]).info(f"{folder}/{path}")


def test_a_query_reads_tables_and_nothing_else(folder):
    tools = Tools([folder])
    for query in (
        f"select * from read_csv('{folder / 'notes.txt'}')",
        "drop table kernels",
        "select 1; select 2",
        "create table x as select * from kernels",
    ):
        with pytest.raises(AnalysisError):
            tools.sql(GRAPHS, query)


def test_what_makes_no_sense_is_explained():
    tools = Tools([])
    with pytest.raises(AnalysisError, match="there is no analysis"):
        tools.analyze(GRAPHS, "everything")
    with pytest.raises(AnalysisError, match="has no column"):
        tools.analyze(GRAPHS, "kernels", sort="nothing")
    with pytest.raises(AnalysisError, match="is empty"):
        tools.picture(GRAPHS, 5, 5)
    with pytest.raises(LlmprofError, match="there is no folder"):
        Tools([Path("no/such/folder")])
    assert len(tools.analyze(GRAPHS, "events", limit=10**9)["rows"]) == 1000


@pytest.mark.slow
def test_a_client_of_the_protocol_asks_the_command(folder):
    """A session as an agent has it: the command as a process, the official client on its pipes."""
    pytest.importorskip("mcp")
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    async def session():
        given = StdioServerParameters(
            command=sys.executable, args=["-m", "llmprof", "mcp", str(folder)]
        )
        # its default is what stderr was when the module was first imported, which in a test may be
        # no file
        with (folder.parent / "errors.log").open("w") as errors:
            await talk(stdio_client(given, errlog=errors))

    async def talk(connection):
        async with connection as (incoming, outgoing), ClientSession(incoming, outgoing) as client:
            await client.initialize()
            tools = (await client.list_tools()).tools
            assert {tool.name for tool in tools} == {
                "traces",
                "info",
                "findings",
                "analyze",
                "sql",
                "diff",
                "picture",
            }
            assert all(
                tool.annotations is not None and tool.annotations.read_only_hint for tool in tools
            )
            found = await client.call_tool("findings", {"path": "graphs.json.gz"})
            assert not found.is_error
            assert json.loads(found.content[0].text)["format"] == "llmprof.findings"
            image = await client.call_tool(
                "picture", {"path": "graphs.json.gz", "start_ms": 0, "end_ms": 1e5}
            )
            assert (image.content[0].type, image.content[0].mime_type) == ("image", "image/png")
            refused = await client.call_tool("info", {"path": "/etc/passwd"})
            assert refused.is_error
            assert "is outside the folders of this server" in refused.content[0].text

    # a thread of its own: a browser test before this one may have left an event loop running in
    # this one
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(asyncio.wait_for(session(), 600))).result()
