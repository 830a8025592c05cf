"""Notebooks that are looked at where no kernel runs show pictures of the explorers."""

import base64
import re

import pytest

nbformat = pytest.importorskip("nbformat")
nbconvert = pytest.importorskip("nbconvert")

CELLS = [
    "name = 'torch_tp1_eager'",
    "import llmprof\nfrom llmprof import explore\ntrace = llmprof.sample(name)",
]
SHOWN = [
    "explore.kernels(trace)",
    "explore.open(trace)",
    "explore.compare(trace, llmprof.sample('torch_tp1_cudagraph'))",
]


@pytest.mark.slow
def test_a_run_notebook_is_exported_with_pictures_and_without_the_network(tmp_path):
    from llmprof.run.notebook.tutorials import run_notebook

    cells = [nbformat.v4.new_code_cell(source) for source in [*CELLS, *SHOWN]]
    cells[0].metadata.tags = ["parameters"]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "shown.ipynb")
    executed = nbformat.read(
        run_notebook(str(tmp_path / "shown.ipynb"), tmp_path / "out"), as_version=4
    )
    assert "widgets" not in executed.metadata
    outputs = [output.data for cell in executed.cells[2:] for output in cell.outputs]
    pictures = [data["image/png"] for data in outputs if "image/png" in data]
    assert len(pictures) == len(SHOWN)
    assert all(base64.b64decode(picture).startswith(b"\x89PNG") for picture in pictures)
    page, _ = nbconvert.HTMLExporter(template_name="basic").from_notebook_node(executed)
    assert len(re.findall(r'<img[^>]*src="data:image/png;base64,', page)) == len(SHOWN)
    assert "widget-view+json" not in page
