"""A notebook that is opened again where no kernel knows its widgets: their pictures stand in
their places.
"""

import pytest
from ipywidgets.embed import embed_data
from playwright.sync_api import expect

from llmprof import explore
from tests.browser.conftest import CELL_S, SHUT_DOWN

SETUP = "import llmprof\nfrom llmprof import explore\ntrace = llmprof.sample('torch_tp1_eager')"
CELLS = [
    SETUP,
    "timeline = explore.timeline(trace)\ntimeline",
    "layers = explore.layers(trace)\nlayers",
]


def test_pictures_are_seen_until_the_cells_run_again(desk, notebook):
    desk.leave()  # a page whose address is that of the notebook: it is loaded again
    shown = notebook(CELLS, height=2400)
    page = shown.page
    for nth, root in ((1, ".lpt"), (2, ".lp-layers")):
        cell = page.locator(".jp-Notebook .jp-CodeCell").nth(nth)
        cell.locator(f"{root} canvas").first.wait_for()
        expect(cell.locator(".jp-OutputArea-output img")).to_be_hidden()  # the widget alone is seen
    page.evaluate("jupyterapp.commands.execute('docmanager:save')")
    page.evaluate(SHUT_DOWN)
    page.reload()
    cells = page.locator(".jp-Notebook .jp-CodeCell")
    for nth in (1, 2):
        cells.nth(nth).scroll_into_view_if_needed()
        picture = cells.nth(nth).locator(".jp-OutputArea-output img")
        expect(picture).to_be_visible()
        assert (
            picture.evaluate("async (img) => { await img.decode(); return img.naturalWidth; }")
            >= 1000
        )
        expect(cells.nth(nth).get_by_text("not found")).to_be_hidden()
    shown.shot("reopened")
    page.wait_for_function(
        "jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
    )
    page.evaluate("jupyterapp.commands.execute('notebook:run-all-cells')")
    cells.nth(1).locator(".lpt-main canvas").wait_for(timeout=CELL_S * 1000)
    expect(cells.nth(1).locator(".jp-OutputArea-output img")).to_be_hidden()
    # what JupyterLab says of widgets that no kernel knows
    shown.problems[:] = [one for one in shown.problems if "widget model not found" not in one]


RENDER = """async ([state, source]) => {
  const model = { get: (name) => state[name], on: () => {}, off: () => {}, set: () => {}, send: () => {} };
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  (await import(url)).default.render({ model, el: document.body });
}"""


@pytest.mark.parametrize("name", ["timeline", "kernels"])
def test_an_exported_page_shows_the_picture_of_a_widget(browser, sample_trace, name):
    """A page of html-manager: it has the state of the widget, and nobody answers."""
    widget = getattr(explore, name)(sample_trace("torch_tp1_eager"))
    states = embed_data(views=[widget])["manager_state"]["state"]
    page = browser.new_page(viewport={"width": 900, "height": 700})
    page.evaluate(RENDER, [states[widget.model_id]["state"], str(widget._esm)])
    picture = page.get_by_role("img")
    assert (
        picture.evaluate("async (img) => { await img.decode(); return img.naturalWidth; }") >= 1000
    )
    assert picture.bounding_box()["width"] <= 900
    assert page.locator("canvas").count() == 0
    page.close()
