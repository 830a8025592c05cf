"""Plug-ins that do not work are named, and everything else works: analyses, their figures and
tables, kernel names.
"""

import importlib
import json
import re
import subprocess
import sys
import warnings

import polars as pl
import pytest

from llmprof import analyze, names, plugins, report
from llmprof.analyze import catalog
from llmprof.cli.listings import listings
from llmprof.errors import AnalysisError, LlmprofError, PluginWarning
from llmprof.report.dataset.plans import plan_of
from llmprof.theory import calls
from tests import plugin_package
from tests.report.builders import build

ACME = """
import polars as pl
from llmprof.analyze.catalog import Analysis
from llmprof.cli.listings import Listing
from llmprof.report.dataset.plans import RankPlan
from llmprof.report.figures import Drawing, SectionPlan, ShownAnalysis
from llmprof.report.page import ReportColumn, ReportTable

def draw(trace):
    raise ValueError("no chart today")

def table(frame, what):
    return ReportTable("acme", "all of them", (ReportColumn("name", "kernel"), ReportColumn("count", "runs", "number")), frame)

FIGURE = Drawing("acme", "what Acme draws", draw)

SECTION = SectionPlan("acme", (ShownAnalysis("acme", table, (FIGURE,)),), "It should.")
LISTING = Listing("acme", "count name", largest_first="count")
PLAN = RankPlan("acme", apart=("least",))

@Analysis(question="Does Acme work?", help="kernels by count", view="acme", recorded="kernels")
def acme(trace, *, least=1):
    return trace.kernels.group_by("name").len("count").filter(pl.col("count") >= least)
"""


@pytest.fixture
def install(tmp_path):
    """Install a plug-in in a group; its code and what its entry point refers to."""
    with plugin_package.installed(tmp_path / "packages"):

        def add(code=ACME, value="acme_llmprof:acme", group=plugins.ANALYSES, *, shown=False):
            points = {group: {"acme": value}}
            if shown:
                points[plugins.SECTIONS] = {"acme": "acme_llmprof:SECTION"}
                points[plugins.LISTINGS] = {"acme": "acme_llmprof:LISTING"}
                points[plugins.RANK_PLANS] = {"acme": "acme_llmprof:PLAN"}
            plugin_package.write(tmp_path / "packages", "acme_llmprof", code, points)
            importlib.invalidate_caches()
            plugin_package.forget()

        yield add


@pytest.fixture(scope="module")
def small():
    return build()


def test_an_analysis_with_a_table_and_a_figure_that_fails(install, small):
    install(shown=True)
    assert analyze.acme(small, least=1000).is_empty()
    assert catalog.analysis("acme").package == "acme_llmprof 1.2"
    with warnings.catch_warnings(action="error"):
        page = report.html(small)
    assert "Does Acme work?" in page
    assert "all of them" in page
    assert "of acme_llmprof 1.2 failed: ValueError: no chart today" in page
    assert "Which layers take the time?" in page
    assert listings()["acme"].largest_first == "count"
    assert plan_of("acme").apart == ("least",)


def test_a_section_of_an_analysis_that_there_is_not(install, small):
    install(ACME.replace('ShownAnalysis("acme"', 'ShownAnalysis("nothing"'), shown=True)
    with pytest.warns(PluginWarning, match=r"\(llmprof\.sections\) is left out: .*'nothing'"):
        page = report.html(small)
    assert "It should." not in page


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (
            "import polars",
            "import nothing_of_this_name\nimport polars",
            "raised ModuleNotFoundError",
        ),
        ("@Analysis(", "Other = dict(", "no Analysis"),
        ('view="acme"', 'view="kernels"', "the view 'kernels' is taken"),
        ("def acme(", "def overlap(", "llmprof has the analysis 'overlap' already"),
    ],
    ids=["import", "type", "view", "name"],
)
def test_an_analysis_that_cannot_be_used(install, small, old, new, why):
    install(
        ACME.replace(old, new), "acme_llmprof:overlap" if "overlap" in new else "acme_llmprof:acme"
    )
    with pytest.warns(
        PluginWarning, match=r"'acme' of acme_llmprof 1\.2 \(llmprof\.analyses\) is left out"
    ) as said:
        found = catalog.analyses()
    assert why in str(said[0].message)
    assert {one.package for one in found} == {""}
    assert analyze.overlap(small).height


def test_an_analysis_that_fails_says_whose_it_is(install):
    failing = ACME.replace("return trace.kernels", "return 1 / 0 * trace.kernels")
    install(failing, shown=True)
    small = build()  # which keeps no result of another test's function
    with pytest.raises(
        AnalysisError, match=r"'acme' of acme_llmprof 1\.2 failed: ZeroDivisionError"
    ):
        analyze.acme(small)
    assert "ZeroDivisionError" in report.html(small)
    with pytest.raises(LlmprofError, match="there is no analysis"):
        catalog.analysis("other")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ('PATTERNS = [("nothing", "acme"), ("norm", "acme")]', "there is no category 'nothing'"),
        ('PATTERNS = [("norm", "(acme"), ("norm", "acme")]', "is not a regular expression"),
        ("PATTERNS = 5", "no (category, pattern)"),
        ('PATTERNS = [("norm", "acme"), "x"]', "no (category, pattern)"),
    ],
    ids=["category", "pattern", "number", "text"],
)
def test_kernel_names_that_cannot_be_used(install, code, why):
    install(code + "\n", "acme_llmprof:PATTERNS", plugins.KERNEL_NAMES)
    with pytest.warns(
        PluginWarning, match=r"'acme' of acme_llmprof 1\.2 \(llmprof\.kernel_names\)"
    ) as said:
        found = names.categories(pl.Series(["acme", "nvjet_gemm"]))
    assert why in str(said[0].message)
    assert found.to_list() == ["other" if code == "PATTERNS = 5" else "norm", "gemm"]


def test_a_kind_of_operator_of_another_package(install):
    code = """
    from llmprof.theory.calls import Operator, CallWork
    LINES = [Operator("acme", "acme::mix aten::mm", lambda call: CallWork(3, call.tensor(0).bytes, 0)), 7]
    """
    install(code, "acme_llmprof:LINES", plugins.OPERATORS)
    with pytest.warns(PluginWarning, match=r"\(llmprof\.operators\)"):
        found = calls.costed_operator("acme::mix")
    assert found is not None
    assert calls.work_of(calls.parse_call("acme::mix", "[[4]]", '["float"]')).read == 16
    assert calls.costed_operator("aten::mm").kind == "gemm"  # llmprof's own stays


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Use a file of the user's own kernels and operators."""
    with plugin_package.installed(tmp_path / "packages"):

        def use(text):
            (tmp_path / "own.toml").write_text(text)
            monkeypatch.setenv(plugins.OWN, str(tmp_path / "own.toml"))
            plugin_package.forget()

        yield use


def test_the_file_of_the_page_names_kernels_and_the_work_of_operators(own, root):
    page = (root / "docs" / "my_own.md").read_text("utf-8")
    own(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0])
    kernels = pl.Series(
        ["void zeta_mix_kernel<4>(float*)", "acme_fused_1", "acme_rms", "nvjet_gemm"]
    )
    assert names.categories(kernels).to_list() == ["attention", "attention", "norm", "gemm"]
    half = '["c10::Half", "c10::Half", "c10::Half"]'
    product = calls.work_of(calls.parse_call("zeta::mm_out", "[[4, 2], [4, 8], [8, 2]]", half))
    assert (product.flops, product.read, product.written) == (128, 96, 16)
    scaled = calls.work_of(calls.parse_call("zeta::scale", "[[4], [4], [4]]", half))
    assert (scaled.flops, scaled.read, scaled.written) == (12, 16, 8)
    assert calls.operator_categories(pl.Series(["zeta::mm_out"])).item() == "gemm"


def test_a_command_takes_the_file(tmp_path):
    (tmp_path / "own.toml").write_text('[kernels]\nnorm = "nvjet"\n')
    command = [sys.executable, "-m", "llmprof", "analyze", "sample:nsys_tp2_cudagraph", "kernels"]
    done = subprocess.run(
        [*command, "--json", "--own", "own.toml"], cwd=tmp_path, capture_output=True, check=True
    )
    found = {row["category"] for row in json.loads(done.stdout) if "nvjet" in row["name"]}
    assert found == {"norm"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[kernels", "could not be read"),
        ("[kernel]\n", "expected the tables kernels, operators"),
        ('[kernels]\nnothing = "acme"\n', "no category 'nothing'"),
        ('[kernels]\nnorm = "(acme"\n', "not a regular expression"),
        ('[operators]\n"acme::mix" = "product"\n', "'acme::mix' = 'product'"),
        ('[operators]\n"acme::mix" = {kind = "gemm", rule = "sum"}\n', "of a rule, one of"),
        ('[operators]\n"acme::mix" = {kind = "gemm", rule = "product", o = 1}\n', "argument 'o'"),
        ('[operators]\n"acme::mix" = {kind = "acme", rule = "product"}\n', "the kind 'acme'"),
    ],
    ids=["toml", "table", "category", "pattern", "text", "rule", "option", "kind"],
)
def test_a_file_that_cannot_be_used_is_refused(own, text, why):
    own(text)
    kinds = names.categories if "[kernel" in text else calls.operator_categories
    with pytest.raises(LlmprofError, match=re.escape(why)):
        kinds(pl.Series(["acme"]))
