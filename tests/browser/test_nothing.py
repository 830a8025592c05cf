"""Names are text in every explorer, and one that has nothing to show says so."""

import pytest

from llmprof import explore
from llmprof.trace import Trace
from tests.analyze.builders import ATTENTION, forward, kernels, labels, launches
from tests.analyze.test_ranks import on_hosts, run_of
from tests.explore.test_collectives import two_ranks

EVIL = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"
EMPTY = Trace({"kernels": kernels(["gemm"]).clear()})


def nothing_selected():
    widget = explore.timeline(Trace({"kernels": kernels(["gemm"])}))
    widget.span = [-20.0, -10.0]
    return widget


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _: explore.overlap(EMPTY), "Nothing ran on a device"),
        (lambda _: explore.overlap(Trace({})), "no kernels, copies or operators"),
        (
            lambda _: explore.overlap(Trace({"kernels": kernels(["gemm"])})),
            "Whole recording, which has no steps",
        ),
        (lambda _: explore.collectives(EMPTY), "No collective was found"),
        (
            lambda of: explore.collectives(of("torch_tp4_eager_nccl").select(rank=[2])),
            "Wait and transfer are unknown",
        ),
        (
            lambda _: explore.collectives(Trace(two_ranks().tables, {"device": "GPU"})),
            "No peak of a link is known for GPU",
        ),
        (lambda _: explore.layers(EMPTY), "No layers were found"),
        (lambda _: explore.kernels(Trace({})), "holds no kernels"),
        (lambda _: explore.kernels(EMPTY), "No kernel fits."),
        (lambda of: explore.compare(of("torch_tp1_eager"), Trace({})), "holds no kernels"),
        (
            lambda _: explore.ranks(Trace({"kernels": run_of(**on_hosts()).kernels.clear()})),
            "No steps were found",
        ),
        (lambda _: explore.what_if(Trace({})), "no kernels, copies or operators"),
        (lambda _: explore.timeline(Trace({})), "This trace has no events to draw."),
        (lambda _: nothing_selected(), "Nothing is in this selection"),
    ],
)
def test_an_explorer_without_anything_to_show_says_so(host, sample_trace, make, words):
    host(make(sample_trace)).page.get_by_text(words).first.wait_for()


def test_a_flame_graph_of_nothing_says_so(host):
    page = host(nothing_selected()).page
    page.locator(".lpt-main canvas").press("t")
    page.get_by_text("No kernel or copy in the selection").wait_for()


@pytest.mark.parametrize(
    "room", ["overlap", "collectives", "layers", "kernels", "compare", "timeline"]
)
def test_markup_in_names_is_shown_as_text_and_nothing_runs(host, room):
    evil = EVIL + ("ncclDevKernel_AllReduce" if room == "collectives" else ATTENTION)
    run = kernels([evil if name == ATTENTION else name for name in forward(4)])
    markers = labels([("execute_new_0_cached_4", -50, 10)])
    hostile = Trace(
        {"kernels": run, "runtime": launches(run), "markers": markers}, {"device": EVIL}
    )
    extra = (hostile,) if room == "compare" else ()
    widget = getattr(explore, room)(hostile, *extra, **({"by": ["name"]} if extra else {}))
    shown = host(widget, height=1600)
    shown.page.locator("canvas, tr[data-row]").first.wait_for()
    shown.quiet()
    if room in ("kernels", "compare"):
        shown.page.locator("[aria-busy=false] tr[data-row]").first.click()
        shown.wait(lambda: widget.selected.height > 0)
        shown.quiet()
    assert shown.page.evaluate("window.hacked === undefined")
    assert shown.page.locator("#host img, #host script").count() == 0
