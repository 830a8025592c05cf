from llmprof import explore
from llmprof.trace import Trace
from tests.analyze.test_ranks import on_hosts, run_of
from tests.browser import drawn

SETUP = """
import llmprof
from llmprof import explore
from tests.analyze.test_ranks import on_hosts, run_of
trace = run_of(**on_hosts())
"""
LEFT, TOP, ROW = 38, 46 + 16, 15
"""Where the cells of sixteen ranks and one phase begin, and how tall they are (px)."""


def settled(shown, **shows) -> None:
    """Wait until the widget has drawn, and drawn this."""
    drawn.settled(shown, ".lp-ranks", **shows)


def heat(shown):
    return shown.output().locator("canvas[aria-label^='Heat map of ranks']")


def cell(shown, step: int, rank: int, *, steps: int = 10) -> dict[str, float]:
    """Middle of a cell."""
    across = min(heat(shown).bounding_box()["width"] - LEFT - 12, steps * 92)
    return {"x": LEFT + (step + 0.5) * across / steps, "y": TOP + (rank + 0.5) * ROW}


def test_gestures_end_in_frames(notebook):
    shown = notebook([SETUP, "w = explore.ranks(trace)\nw"], width=1250, height=1300)
    settled(shown, measure="step", ranks=None)
    shown.output().get_by_text("arrive last in 90.0 % of 10 collectives").wait_for()

    # what the colour shows; hover: a card; click: the cell's rank, step and window
    shown.output().get_by_label("Show").select_option("wait")
    settled(shown, measure="wait")
    heat(shown).hover(position=cell(shown, 3, 9))
    shown.output().get_by_text("rank 9, step 3", exact=True).wait_for()
    heat(shown).click(position=cell(shown, 3, 9))
    assert shown.wait("w.picked == [9] and w.step == 3 and [w.rank, w.step]") == [9, 3]
    assert shown.python("w.selected.select('rank', 'step').rows()") == [[9, 3]]
    assert shown.python("w.timeline().trace.ranks") == [9]
    settled(shown, picked=[[9], 3])
    shown.output().get_by_text("Rank 9 in step 3", exact=False).wait_for()
    shown.shot("ranks-light", shown.output())

    # these ranks alone, and all again
    shown.output().get_by_role("button", name="Only the picked ranks").click()
    settled(shown, ranks=[9, 9])
    shown.output().get_by_role("button", name="All ranks and steps").click()
    settled(shown, ranks=None)


def test_without_steps_it_says_so(host):
    trace = run_of(**on_hosts())
    shown = host(explore.ranks(Trace({"kernels": trace.kernels.clear()})))
    shown.page.get_by_text("No steps were found", exact=False).wait_for()
