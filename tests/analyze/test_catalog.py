"""The list of analyses, and what follows from it: views, sections and figures of the report, the
page in docs.
"""

import inspect

import pytest
from polars.testing import assert_frame_equal

from docs.made import MADE, kinds
from llmprof import analyze
from llmprof.analyze import catalog
from llmprof.analyze.catalog import Section
from llmprof.errors import ArgumentError, LlmprofError
from llmprof.report.figures import drawings
from llmprof.report.folder import sections
from llmprof.report.page import Figure
from tests.samples import sample


def test_names_and_views_are_unique_and_public():
    found = catalog.analyses()
    assert len({one.name for one in found}) == len({one.view for one in found}) == len(found)
    for one in found:
        rooms = (analyze, analyze.npu, analyze.nsys)
        doors = [getattr(room, one.name) for room in rooms if one.name in room.__all__]
        assert [inspect.unwrap(door) for door in doors] == [inspect.unwrap(one.function)]
        assert one.question.endswith("?")
        assert one.help
        assert one.package == ""


def test_options_are_those_of_the_function():
    for one in catalog.analyses():
        takes = inspect.signature(inspect.unwrap(one.function)).parameters
        assert set(one.options) | set(one.needs) <= set(takes)
        _, *others = takes.values()
        assert {
            p.name for p in others if p.default is inspect.Parameter.empty and p.kind < 2
        } == set(one.needs)


def test_an_analysis_by_name_or_view():
    assert catalog.analysis("kernels") is catalog.analysis("kernels") is catalog.views()["kernels"]
    with pytest.raises(LlmprofError, match="there is no analysis 'nothing'; expected one of"):
        catalog.analysis("nothing")
    with pytest.raises(AttributeError, match=r"'llmprof\.analyze' has no attribute 'nothing'"):
        _ = analyze.nothing


def test_pages_that_are_made_from_the_package_are_in_step(root):
    assert {name: (root / name).read_text("utf-8") for name in MADE} == {
        name: text() for name, text in MADE.items()
    }
    assert kinds() in (root / "docs" / "bounds.md").read_text("utf-8")


def test_analyses_of_a_trace():
    trace = sample("torch_tp1_eager")
    assert_frame_equal(trace.analyze.layers(stages=True), analyze.layers(trace, stages=True))
    assert dir(trace.analyze) == dir(analyze)
    assert trace.analyze.npu.launch_path().height == trace.kernels.height
    with pytest.raises(ArgumentError, match="layers"):
        trace.analyze.layers(pre="layer")


def test_every_exported_name_has_a_subject():
    named = " ".join(catalog.SUBJECTS.values()).split()
    assert sorted([*named, "changes", "ncu", "npu", "nsys"]) == sorted(analyze.__all__)
    assert len(analyze.__all__) <= 45
    with pytest.raises(AttributeError, match="did you mean kernels"):
        _ = analyze.kernel_sumary


def test_the_sections_of_a_report():
    drawn = {d.name: Figure(d.name, d.shows) for one in catalog.analyses() for d in drawings(one)}
    found = sections(drawn, {})
    assert [(s.anchor, [f.name for f in s.figures], s.evidence) for s in found] == [
        ("steps", ["breakdown", "categories"], ("steps", "coverage")),
        ("layers", ["layers"], ("layers",)),
        ("communication", ["overlap", "collectives"], ("overlap", "collectives")),
        ("ranks", ["rank_steps", "rank_waits", "late_groups"], ()),
        ("idle", ["idle", "launch_delay"], ("idle", "launch_delay")),
        ("critical_path", ["critical_path"], ()),
        ("kernels", [], ("kernels",)),
        ("fusion", [], ("fusion",)),
        ("timeline", ["step_timeline", "layer_timeline"], ()),
    ]
    anchors = {one.anchor for one in catalog.analyses() if isinstance(one.section, Section)}
    assert {one.anchor for one in catalog.analyses()} - {""} == anchors
