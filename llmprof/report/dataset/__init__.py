"""Traces of many ranks: a dataset on disk, and workers that make and analyse it."""

from llmprof.errors import door
from llmprof.report.dataset.convert import convert, open
from llmprof.report.dataset.mapping import map, map_several

door(globals())
