"""What the tests of the report share."""

import pytest

from llmprof.report import folder, page
from llmprof.report.page import Absent, ReportFigure
from tests.report.builders import HOSTILE, build

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="session")
def small():
    """Two ranks, three decode steps of one layer."""
    return build()


@pytest.fixture(scope="session")
def hostile():
    """The same with names that try to run scripts."""
    names = dict(
        zip(("up", "qkv", "attention", "o", "reduce", "other", "op"), HOSTILE, strict=True)
    )
    names["attention"] = "flash_fwd_kernel" + HOSTILE[2]
    names["reduce"] = "ncclDevKernel_AllReduce" + HOSTILE[4]
    names |= {part: "gemm" + names[part] for part in ("up", "qkv", "o")}
    return build(names | {"label": HOSTILE[0], "file": HOSTILE[3]}, device=HOSTILE[1])


@pytest.fixture
def quick(monkeypatch):
    """Reports without what takes long: Altair, V8 and Vega."""

    def figure(trace, name):
        if name == "launch_delay" and not trace.has("runtime"):
            return ReportFigure(
                name,
                name,
                absent=Absent(name, captured=False, found="no calls", hint="record them"),
            )
        return ReportFigure(name, name, spec="{}")

    monkeypatch.setattr(folder, "make_figure", figure)
    monkeypatch.setattr(folder, "png", lambda spec: PNG)
    monkeypatch.setattr(page, "vega_bundle", lambda: "window.vegaEmbed = null;")
