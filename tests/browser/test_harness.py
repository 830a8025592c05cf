"""The harness itself: a notebook runs in JupyterLab, and its kernel answers."""

from __future__ import annotations


def test_a_notebook_runs_and_its_kernel_answers(notebook):
    opened = notebook(["import llmprof\nanswer = 6 * 7", "import ipywidgets\nslider = ipywidgets.IntSlider(3)\nslider"])
    assert opened.python("answer") == 42
    slider = opened.page.get_by_role("slider").first
    slider.wait_for()
    slider.press("ArrowRight")
    assert opened.wait("slider.value == 4 and slider.value") == 4
    assert opened.problems == []
    assert opened.asked == set()
