"""The list of analyses, and what follows from it: views, sections and figures of the report, the
page in docs.
"""

import inspect

import pytest
from polars.testing import assert_frame_equal

from docs.made import MADE, PAGE, renewed
from llmprof import analyze
from llmprof.analyze import catalog
from llmprof.analyze.results import column_of
from llmprof.cli.listings import listings
from llmprof.errors import ArgumentError, LlmprofError
from llmprof.report.dataset.plans import plans
from llmprof.report.sections import report_sections
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


def test_an_analysis_by_name_or_view():
    assert catalog.analysis("kernels") is catalog.analysis("kernels") is catalog.views()["kernels"]
    with pytest.raises(LlmprofError, match="there is no analysis 'nothing'; expected one of"):
        catalog.analysis("nothing")
    with pytest.raises(AttributeError, match=r"'llmprof\.analyze' has no attribute 'nothing'"):
        _ = analyze.nothing


def test_the_reference_is_in_step_with_the_package():
    page = PAGE.read_text("utf-8")
    assert page == renewed(page)
    assert all(f"\n{made()}\n" in page for made in MADE.values())


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


def own():
    return {one.name for one in catalog.analyses()}


def test_each_analysis_has_its_place_in_the_report_or_none():
    """Those without one answer a narrow question, need an argument or bear the names of nsys."""
    shown = [one.analysis for section in report_sections() for one in section.analyses]
    nsys = {name for name in own() if hasattr(analyze.nsys, name)}
    npu = {name for name in own() if hasattr(analyze.npu, name)}
    without = (
        "findings step_time speculation layer_gaps expert_exchange stream_gaps host_pauses"
        " host_synchronisation queue_length slack operators operator_calls concurrency counters"
        " tensor_cores spikes modules copies roofline transfer"
    )
    assert len(set(shown)) == len(shown)
    assert own() - nsys - npu == {*shown, *without.split()}


def test_each_analysis_has_its_listing_or_shows_all_columns():
    shows_all = (
        "findings step_time speculation layer_gaps expert_exchange ranks host_pauses concurrency"
        " tensor_cores core_time memory_by_component operator_shapes launch_path links"
    )
    nsys = {name for name in own() if hasattr(analyze.nsys, name)}
    assert own() - nsys == {*listings(), *shows_all.split()}


def test_columns_and_arguments_of_the_listings():
    for name, listing in listings().items():
        function = inspect.unwrap(catalog.analysis(name).function)
        assert set(listing.takes) <= set(inspect.signature(function).parameters)
        columns = [*listing.columns.split(), *listing.largest_first.split()]
        assert [column for column in columns if column_of(column) is None] == [], name
        assert set(listing.spare.split()) <= set(columns)


def test_each_analysis_has_its_plan_for_many_ranks_or_loads_all():
    loads_all = (
        "speculation critical_path opportunities slack kernels operators operator_calls fusion"
        " counters tensor_cores memory hotspots totals roofline core_time memory_by_component"
        " operator_shapes event_waits links transfer"
    )
    nsys = {name for name in own() if hasattr(analyze.nsys, name)}
    assert own() - nsys == {*plans(), *loads_all.split()}
