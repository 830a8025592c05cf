"""Recordings that lack what a page, an explorer or a comparison is made of: shown as far as they
go, and said why.
"""

import contextlib

import polars as pl
import pytest

from llmprof.errors import LlmprofError
from llmprof.explore.served import tabs_page
from llmprof.explore.tabs import Open
from llmprof.run.launch.run import process
from llmprof.trace import Trace
from llmprof.trace.schema import conform
from tests.samples import sample

OTHER = "sample:torch_tp1_cudagraph"


def one_event():
    row = {
        "rank": [0],
        "device": [0],
        "stream": [7],
        "start_ns": [0],
        "dur_ns": [1000],
        "name": ["my_kernel"],
    }
    return Trace(
        {"kernels": conform(pl.DataFrame(row, schema_overrides={"rank": pl.Int32}), "kernels")}, {}
    )


def part(*tables, rows=None):
    whole = sample("torch_tp1_cudagraph")
    kept = {
        name: whole.tables[name] if rows is None else whole.tables[name].head(rows)
        for name in tables
    }
    return Trace(kept, whole.meta)


BAD = {
    "one": one_event,
    "device": lambda: part("kernels", "copies", rows=200),
    "host": lambda: part("ops", rows=200),
    "empty": lambda: part("kernels", rows=0),
    "nothing": lambda: Trace({}),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    return {name: str(make().save(folder / f"{name}_trace")) for name, make in BAD.items()}


@pytest.fixture
def served(monkeypatch):
    seen = {}

    def start(argv, *, log, env, **_options):
        seen["page"] = tabs_page(env)
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "run", start)
    return seen


@pytest.mark.parametrize("name", BAD)
def test_info_and_findings(run, saved, name):
    code, out, err = run("info", saved[name])
    assert (code, err) == (0, "")
    assert ("not captured" in out) or name == "empty"
    code, out, err = run("findings", saved[name])
    if name == "nothing":
        assert code == 2
        assert "holds no kernels, copies or operators; record" in err
    else:
        assert (code, err) == (0, "")
        assert out.strip()


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_report(run, saved, name, tmp_path):
    code, out, err = run("report", saved[name], "-o", str(tmp_path / "r"))
    assert (code, err) == (0, "")
    text = (tmp_path / "r" / "index.html").read_text("utf-8")
    assert "what this report covers" in text
    if name == "nothing":
        assert out.startswith("No findings: this capture holds no kernels, copies or operators")


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("beside", [(), ("--compare", OTHER)], ids=["alone", "compared"])
def test_explorers_open_or_say_why_not(run, saved, served, name, beside):
    assert run("explore", saved[name], *beside, "--no-browser")[0] == 0
    opened = served["page"]
    assert isinstance(opened, Open)
    for panel in opened._panels:
        with contextlib.suppress(LlmprofError):  # its tab says the same
            opened[panel.name]


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("form", ["pftrace", "json", "xlsx"])
def test_exports(run, saved, name, form, tmp_path):
    code, out, _ = run("export", saved[name], "-o", str(tmp_path / f"x.{form}"))
    assert code == 0
    assert f"x.{form}" in out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "one",
            "At least one run has no known steps, so whole recordings are compared: 1.00 us in one_trace",
        ),
        (
            "empty",
            "Only torch_tp1_cudagraph holds work on a device: there is nothing to compare it with.",
        ),
        ("nothing", "holds no kernels, copies or operators"),
    ],
)
def test_comparisons_name_what_cannot_be_compared(run, saved, name, words):
    _, out, err = run("diff", saved[name], OTHER)
    assert words in out + err


def test_nothing_compared_with_nothing(run, saved):
    assert (
        "Neither run holds work on a device: there is nothing to compare."
        in run("diff", *[saved["empty"]] * 2)[1]
    )


@pytest.mark.slow
def test_runs_of_other_models_and_numbers_of_ranks_are_compared_as_far_as_they_go(run):
    code, out, _ = run("diff sample:torch_tp1_eager sample:torch_pp2_eager")
    assert code == 0
    assert (
        "Not alike: ranks: 1 in torch_tp1_eager, 2 in torch_pp2_eager; a step is the mean of the ranks"
        in out
    )
    assert "A step of decode takes" in out
