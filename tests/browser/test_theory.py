"""The explorer of theory in a real JupyterLab: sliders redraw the open chart."""

import pytest
from playwright.sync_api import expect

SETUP = """import llmprof
from llmprof import explore
w = explore.theory("Qwen2.5-1.5B", trace=llmprof.sample("torch_tp1_cudagraph"))"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_sliders_redraw_the_chart_that_is_open(notebook, theme):
    opened = notebook([SETUP, "w"], height=1300, theme=theme)
    output = opened.output()
    output.get_by_role("tab", name="Batch").click()
    opened.wait("len(w.tabs.children[3].children) == 1")
    output.locator("img:visible").first.wait_for()
    opened.shot(f"theory_{theme}", output)
    before = opened.python("w.tabs.children[3].children[0].value[:4000].hex()")
    handle = output.locator(".jupyter-widgets .noUi-handle").first
    handle.focus()
    handle.press("ArrowRight")
    opened.wait("w.batch_size.value == 16")
    opened.wait("len(w.tabs.children[3].children) == 1")
    assert opened.python("w.profile.batch_size") == 16
    assert opened.python("w.tabs.children[3].children[0].value[:4000].hex()") == before, (
        "the chart is over all batches"
    )
    expect(output).to_contain_text("decode step at least")
    output.get_by_role("tab", name="Measured").click()
    opened.wait("len(w.tabs.children[-1].children) == 1")
