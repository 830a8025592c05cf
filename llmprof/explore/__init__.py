"""Explorers: widgets for JupyterLab, Notebook and VS Code that show a trace and return selections
as Polars frames.

Each function returns a widget; show it as the last line of a cell. Explorers need
``llmprof[notebook]``, and no network.
"""

from llmprof.errors import door
from llmprof.explore.base.widget import link
from llmprof.explore.collectives.explorer import collectives
from llmprof.explore.compare.explorer import compare
from llmprof.explore.kernels.explorer import kernels
from llmprof.explore.layers.explorer import layers
from llmprof.explore.overlap.explorer import overlap
from llmprof.explore.ranks.explorer import ranks
from llmprof.explore.requests.explorer import requests
from llmprof.explore.study import study
from llmprof.explore.tabs import open
from llmprof.explore.theory import theory
from llmprof.explore.timeline.explorer import timeline
from llmprof.explore.what_if.explorer import what_if

door(globals())
