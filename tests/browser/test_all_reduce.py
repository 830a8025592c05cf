import pytest

from llmprof import explore
from llmprof.trace import Trace
from tests.analyze.test_collectives import calls
from tests.browser import drawn
from tests.explore.test_all_reduce import forty_ranks

SETUP = "import llmprof\nfrom llmprof import explore\ntrace = llmprof.sample('torch_tp4_eager_nccl')"
EVIL = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>ncclDevKernel_AllReduce"


def settled(shown, **shows) -> None:
    """Wait until the widget has drawn, and drawn this."""
    drawn.settled(shown, ".lp-collectives", "call", **shows)


def canvas(shown, label: str):
    return shown.output().locator(f"canvas[aria-label^='{label}']")


def test_gestures_end_in_frames(notebook):
    shown = notebook([SETUP, "w = explore.all_reduce(trace)\nw"], width=1250, height=1700)
    settled(shown)
    assert shown.python("[w.kind, w.selected.height]") == ["all_reduce", 2736]

    # a row of the list: the call on its ranks
    shown.output().locator("tbody button").nth(3).click()
    call = shown.wait("w.call is not None and w.call")
    assert shown.python("w.selected['call'].unique().to_list()") == [call]
    assert shown.python("w.selected['rank'].to_list()") == [0, 1, 2, 3]
    span = shown.python("[w.selected['start_ns'].min(), (w.selected['start_ns'] + w.selected['dur_ns']).max()]")
    assert shown.python("w.window") == span
    shown.output().get_by_text(f"Call {call} (all_reduce").wait_for()
    settled(shown, call=call)
    shown.shot("all_reduce-call", shown.output())
    shown.output().get_by_role("button", name="Transfer only").click()
    shown.output().get_by_role("button", name="Next call").click()
    after = shown.wait(f"w.call != {call} and w.call")
    assert shown.python("w.selected['start_ns'].min()") > span[0]
    settled(shown, call=after)
    shown.output().get_by_role("button", name="Call before").click()
    shown.wait(f"w.call == {call}")
    settled(shown, call=call)

    # a bar over time, by pointer and by key; dragging sets the window
    over_time = canvas(shown, "Wait and transfer over time")
    over_time.scroll_into_view_if_needed()
    over_time.click(position={"x": 60, "y": 190})
    early = shown.wait(f"w.call != {call} and w.call")
    assert shown.python("w.selected['start_ns'].min()") < 2e7
    settled(shown, call=early)
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        over_time.press(key)
    shown.wait(f"w.call != {early}")
    box = over_time.bounding_box()
    drawn.drag(shown.page, (box["x"] + 300, box["y"] + 60), (box["x"] + 420, box["y"] + 60))
    shown.wait("w.window[1] - w.window[0] > 5e7")
    shown.output().get_by_label("only calls in the window").check()
    assert 0 < shown.wait("w.in_window and w.selected.height") <= 4
    shown.run("w.call = None")
    first, last = "w.selected['start_ns']", "(w.selected['start_ns'] + w.selected['dur_ns'])"
    assert shown.python(f"[({last} > w.window[0]).all(), ({first} < w.window[1]).all()]") == [True, True]
    assert 0 < shown.python("w.selected.height") < 2736
    settled(shown, window=shown.python("w.window"), call=None)
    shown.shot("all_reduce-window", shown.output())
    shown.output().get_by_label("only calls in the window").uncheck()

    # who is late, and the selectors
    settled(shown, window=None)
    canvas(shown, "How late each rank").click(position={"x": 20, "y": 22 + 3.5 * 26})
    shown.wait("w.rank == 3")
    assert shown.python("w.selected['rank'].unique().to_list()") == [3]
    shown.output().locator("select").nth(2).select_option("")
    shown.output().locator("select").nth(1).select_option("decode")
    shown.output().locator("select").nth(0).select_option("all_gather")
    assert shown.wait("w.kind == 'all_gather' and w.rank is None and w.selected.height") == 40
    settled(shown, kind="all_gather", phase="decode", rank=None)
    shown.output().get_by_text("40 kernels on all ranks.").wait_for()
    assert shown.faults(".lp-collectives") == []


@pytest.mark.parametrize(
    ("sample", "theme", "width"),
    [
        ("torch_tp4_eager_nccl", "dark", 1100),
        ("torch_tp4_eager_nccl", "light", 480),
        ("torch_tp4_cudagraph", "light", 1100),
        ("torch_pp2_eager", "light", 1100),
    ],
)
def test_widths_and_themes(host, sample_trace, sample, theme, width):
    widget = explore.all_reduce(sample_trace(sample))
    shown = host(widget, width=width, theme=theme, height=2300)
    settled(shown)
    shown.page.locator("tbody button").first.click()
    settled(shown, call=shown.wait(lambda: [widget.call] if widget.call is not None else None)[0])
    shown.shot(f"all_reduce-{sample}-{theme}-{width}")
    root = shown.page.locator(".lp-collectives")
    assert root.evaluate("el => el.scrollWidth <= el.clientWidth + 1")


def test_many_ranks_are_a_histogram_whose_bars_pick_them(host):
    widget = explore.all_reduce(forty_ranks())
    shown = host(widget, width=1000, height=2000)
    settled(shown, spread=["late", None, None])
    shown.page.get_by_text("39 of 40 ranks lie between 0 ns and 20.0 us").wait_for()
    bars = shown.page.locator("canvas[aria-label^='How many ranks']")
    # two bars, at the ends: the keys walk over them, and Enter picks and gives back
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        bars.press(key)
    shown.wait(lambda: list(widget.picked) == [39])
    shown.page.get_by_text("1 rank is picked").wait_for()
    shown.shot("all_reduce-many-light")
    bars.press("Enter")
    shown.wait(lambda: list(widget.picked) == [])
    # a drag over the left bar picks its ranks, and only these are shown then
    bars.scroll_into_view_if_needed()
    box = bars.bounding_box()
    drawn.drag(shown.page, (box["x"] + 20, box["y"] + 60), (box["x"] + 80, box["y"] + 60))
    shown.wait(lambda: list(widget.picked) == [*range(39)])
    shown.page.get_by_role("button", name="Only the picked ranks").click()
    settled(shown, spread=["late", None, 39])
    shown.page.get_by_role("combobox", name="Show", exact=True).select_option("wait")
    settled(shown, spread=["wait", None, 39])
    assert widget.spread == "wait"
    assert shown.faults() == []


def test_names_are_text_and_nothing_is_said_so(host, sample_trace):
    rows = [(0, 0, 104_000), (1, 10_000, 104_000), (0, 200_000, 254_000), (1, 250_000, 254_000)]
    hostile = calls(rows, EVIL, world=2, meta={"device": "<b>GPU</b>", "world_size": 2})
    for trace, words in (
        (Trace({"kernels": hostile.kernels.clear()}), "No collective was found"),
        (Trace({}), "no kernels, copies or operators"),
        (sample_trace("torch_tp4_eager_nccl").select(ranks=[2]), "Wait and transfer are unknown"),
    ):
        host(explore.all_reduce(trace)).page.get_by_text(words).wait_for()
    shown = host(explore.all_reduce(hostile, call=1), height=1700)
    settled(shown)
    shown.page.get_by_text("No peak of a link is known for <b>GPU</b>").wait_for()
    ranks = shown.page.locator("canvas[aria-label^='Ranks of the picked call']")
    ranks.scroll_into_view_if_needed()
    ranks.hover(position={"x": 120, "y": 20})
    shown.page.get_by_text("<img src=x").first.wait_for()
    assert shown.page.evaluate("window.hacked === undefined")
