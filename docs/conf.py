"""How Sphinx builds the documentation: `make docs`, offline; a warning is an error."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import llmprof

HERE = Path(__file__).parent

sys.path.insert(0, str(HERE))
import reference  # noqa: E402 - it lies beside this file

reference.write(HERE / "api")

# Sphinx reads only what lies in its folder; the notebooks are shown as they were executed.
_NOTEBOOKS = HERE / "notebooks"
_NOTEBOOKS.mkdir(exist_ok=True)
for _stale in _NOTEBOOKS.iterdir():
    _stale.unlink()
_names = [
    Path(shutil.copy(_path, _NOTEBOOKS)).stem
    for _path in sorted((HERE.parent / "notebooks").glob("*.ipynb"))
]
(_NOTEBOOKS / "index.md").write_text(
    "# Notebooks\n\nEach runs on your own trace, too: `llmprof notebook NAME -p path=PATH`.\n\n"
    "```{toctree}\n:maxdepth: 1\n\n" + "\n".join(_names) + "\n```\n"
)

project = "llmprof"
author = "The llmprof developers"
release = version = llmprof.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"
nb_mime_priority_overrides = [("html", "image/png", 0), ("html", "text/html", 10)]
# outputs of widgets and JSON that a page cannot show have another form beside them
suppress_warnings = ["mystnb.unknown_mime_type"]

autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_use_rtype = False
add_module_names = False

html_theme = "pydata_sphinx_theme"
html_title = "llmprof"
html_theme_options = {
    "show_prev_next": False,
    # pages stand at the left, not in a row that overflows
    "navbar_center": [],
    "navbar_persistent": ["search-button"],
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_sidebars = {"**": ["menu.html"]}
templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["menu.css"]
html_show_sourcelink = False
copyright = "the llmprof developers, Apache-2.0"  # noqa: A001 - Sphinx asks for this name
