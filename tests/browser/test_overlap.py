import pytest

from llmprof import explore
from llmprof.trace import Trace
from tests.analyze.builders import kernels
from tests.browser import drawn

SETUP = (
    "import llmprof\nfrom llmprof import explore\ntrace = llmprof.sample('torch_tp4_eager_nccl')\n"
    "other = llmprof.sample('torch_tp4_eager_custom_allreduce')"
)
EVIL = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"


def settled(shown, **shows) -> None:
    """Wait until the widget has drawn, and drawn this."""
    drawn.settled(shown, ".lp-overlap", "bars", **shows)


def steps(shown):
    return shown.page.locator("canvas[aria-label^='Parts of the time']")


def lanes(shown):
    return shown.output().locator("canvas[aria-label^='Lanes of the window']")


def bar(shown, step: int, *, count: int = 12) -> dict[str, float]:
    """Middle of the bar of a step of the upper side."""
    slot = min(92, (steps(shown).bounding_box()["width"] - 66) / count)
    return {"x": 52 + (step + 0.5) * slot, "y": 125}


def drag(canvas, a: tuple[float, float], b: tuple[float, float]) -> None:
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    drawn.drag(canvas.page, (box["x"] + a[0], box["y"] + a[1]), (box["x"] + b[0], box["y"] + b[1]))


def test_a_recording_without_steps_shows_its_whole_overlap(notebook):
    setup = (
        "import llmprof\nimport polars as pl\nfrom llmprof import explore\n"
        "kernels = llmprof.sample('torch_tp1_eager').kernels\n"
        "trace = llmprof.Trace({'kernels': kernels.with_columns(name=pl.lit('gemm'))})"
    )
    shown = notebook([setup, "w = explore.overlap(trace)\nw"], width=1250, height=1500)
    settled(shown)
    shown.output().get_by_text("Whole recording, which has no steps").wait_for()
    steps(shown).hover(position=bar(shown, 0, count=1))
    shown.output().get_by_text("the whole recording, which has no steps, rank 0", exact=True).wait_for()
    shown.shot("overlap-no-steps", shown.output())


def test_gestures_end_in_frames(notebook):
    shown = notebook([SETUP, "w = explore.overlap(trace, other=other)\nw"], width=1250, height=1500)
    settled(shown)
    assert shown.python("w.selected.height") == shown.python("w.selected.filter(rank=0).height") > 5000

    # a bar: the window is its step on the device, and so is the frame
    steps(shown).hover(position=bar(shown, 5))
    shown.output().get_by_text("step 5, rank 0", exact=True).wait_for()
    steps(shown).click(position=bar(shown, 5))
    shown.wait("w.step == 5 and w.window is not None")
    span = "llmprof.analyze.steps(trace).filter(rank=0, step=5).select('start_ns', 'dur_ns').row(0)"
    first, length = shown.python(span)
    assert shown.python("w.window") == [first, first + length]
    assert shown.python("w.summary['a_ns'][-1]") == length
    settled(shown, window=shown.python("w.window"))
    waiting = shown.python("w.summary.filter(part='exposed waiting')['a_ns'][0]")
    assert waiting > 0.5 * length  # of rank 0: rank 3 is late in every step
    row = shown.output().get_by_role("row").filter(has_text="exposed waiting")
    row.get_by_text(shown.python(f"llmprof.units.format_ns({waiting})"), exact=True).wait_for()
    shown.output().get_by_text("waiting is for the last rank of a collective").wait_for()
    shown.shot("overlap-step", shown.output())

    # dragging over the lanes, a click on an interval, buttons and keys move the window
    width = lanes(shown).bounding_box()["width"]
    drag(lanes(shown), (168 + 0.25 * (width - 182), 40), (168 + 0.5 * (width - 182), 40))
    a, b = shown.wait(f"w.window[0] > {first + 0.2 * length} and w.window")
    assert a == pytest.approx(first + 0.25 * length, abs=0.01 * length)
    assert b == pytest.approx(first + 0.5 * length, abs=0.01 * length)
    assert shown.python("w.selected['step'].drop_nulls().unique().to_list()") == [5]
    settled(shown, window=[a, b])
    shown.shot("overlap-zoomed", shown.output())
    shown.output().get_by_role("button", name="Zoom in (+)").click()
    shown.wait(f"w.window[1] - w.window[0] < {0.6 * (b - a)}")
    settled(shown, window=shown.python("w.window"))
    lanes(shown).focus()
    lanes(shown).press("-")
    shown.wait(f"w.window[1] - w.window[0] > {0.9 * (b - a)}")
    settled(shown, window=shown.python("w.window"))
    lanes(shown).press("d")
    shown.wait(f"w.window[0] > {a + 0.2 * (b - a)}")
    settled(shown, window=shown.python("w.window"))
    lanes(shown).press("a")  # in JupyterLab's command mode: a new cell
    shown.wait(f"w.window[0] < {a + 0.1 * (b - a)}")
    assert shown.page.locator(".jp-Notebook .jp-CodeCell").count() == 2
    settled(shown, window=shown.python("w.window"))
    lanes(shown).press("0")
    shown.wait("w.window is None")

    # several steps at once, and the bars as shares
    settled(shown, window=None)
    shown.output().get_by_label("Bars").select_option("share")
    drag(steps(shown), tuple(bar(shown, 2).values()), tuple(bar(shown, 4).values()))
    shown.wait("w.window is not None and w.step == 2")
    assert shown.python("set(range(2, 5)) <= set(w.selected['step'].drop_nulls())")
    assert shown.faults(".lp-overlap") == []


@pytest.mark.parametrize(("theme", "width"), [("light", 1100), ("dark", 1100), ("light", 480)])
def test_two_sides(host, sample_trace, theme, width):
    trace, other = sample_trace("torch_tp4_eager_nccl"), sample_trace("torch_tp4_eager_custom_allreduce")
    widget = explore.overlap(trace, other=other)
    shown = host(widget, width=width, theme=theme, height=1700)
    settled(shown)
    shown.page.get_by_label("Compare with").select_option("rank:3")
    shown.wait(lambda: widget.against == "rank:3")
    settled(shown, against="rank:3")
    assert widget.summary.filter(part="idle").select("b_ns").item() > 4e8  # the rank that all wait for
    shown.page.get_by_label("Compare with").select_option("other:0")
    settled(shown, against="other:0", bars={"rank": 0, "phase": None, "against": "other:0"})
    steps(shown).click(position=bar(shown, 5))
    shown.wait(lambda: widget.step == 5 and widget.against == "other:0" and widget.window is not None)
    settled(shown, window=widget.window)
    shown.page.get_by_role("columnheader", name="B − A").wait_for()
    shown.shot(f"overlap-{theme}-{width}")
    root = shown.page.locator(".lp-overlap")
    assert root.evaluate("el => el.scrollWidth <= el.clientWidth + 1")


def test_names_are_text_and_nothing_is_said_so(host):
    for trace, words in (
        (Trace({"kernels": kernels([EVIL]).clear()}), "Nothing ran on a device"),
        (Trace({}), "no kernels, copies or operators"),
    ):
        host(explore.overlap(trace)).page.get_by_text(words).wait_for()
    shown = host(explore.overlap(Trace({"kernels": kernels([(EVIL, 1000), (EVIL, 500)])})), width=1100)
    settled(shown)
    lanes = shown.page.locator("canvas[aria-label^='Lanes of the window']")
    lanes.scroll_into_view_if_needed()
    lanes.hover(position={"x": 300, "y": 30 + 4 * 24 + 8 + 12})
    shown.page.get_by_text("<img src=x").first.wait_for()
    assert shown.page.evaluate("window.hacked === undefined")
