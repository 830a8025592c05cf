"""Charts of several parts are those of Altair, and a change of one leaves the others as they
were.
"""

import altair as alt
import pytest

from llmprof.charts.base import compose

pytestmark = pytest.mark.filterwarnings(
    "ignore:Automatically deduplicated"
)  # what Altair does with equal parameters


def bars(name):
    return (
        alt.Chart({"values": ({"a": 1, "b": name},)}, width=100)
        .mark_bar()
        .encode(x=alt.X("a:Q"), y=alt.Y("b:N"))
    )


def of(rows, columns, layers):
    """Rows of columns of layers, one of which can be zoomed."""
    zoom = alt.selection_interval(bind="scales", encodings=["x"], name="zoom")
    marked = layers(bars("one").properties(name="first").add_params(zoom), bars("two").mark_text())
    return rows(
        columns(marked, layers(bars("three"), bars("four")), spacing=3), bars("five"), spacing=20
    )


def of_altair():
    return of(alt.vconcat, alt.hconcat, alt.layer)


@pytest.fixture
def chart():
    return of(compose.vconcat, compose.hconcat, compose.overlay)


def test_the_specification_is_that_of_altair(chart):
    assert chart.to_dict() == of_altair().to_dict()
    assert isinstance(chart, alt.VConcatChart)
    assert repr(chart) == repr(of_altair())
    assert [repr(part) for part in chart.vconcat] == [repr(part) for part in of_altair().vconcat]


@pytest.mark.parametrize(
    "change",
    [
        lambda chart: chart & bars("six"),
        lambda chart: chart | bars("six"),
        lambda chart: chart.vconcat[0].hconcat[0] + bars("six"),
        lambda chart: chart.add_params(alt.selection_point(name="point")),
        lambda chart: chart.vconcat[0].hconcat[1].interactive(name="pan"),
        lambda chart: chart.properties(title="other", background="red").configure(font="x"),
        lambda chart: chart.resolve_scale(color="independent"),
    ],
    ids=["&", "|", "+", "add_params", "interactive", "properties", "resolve_scale"],
)
def test_a_change_makes_what_altair_makes_and_leaves_the_original_as_it_was(chart, change):
    before = chart.to_dict()
    assert change(chart).to_dict() == change(of_altair()).to_dict()
    chart.copy().vconcat.append(bars("six"))
    compose.vconcat(compose.overlay(chart.vconcat[1], bars("six")), chart)
    assert chart.to_dict() == before
