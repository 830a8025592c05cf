"""Experiments: measure the bandwidth of the hardware, and the scaling of a model with length and
devices.
"""

from typing import TYPE_CHECKING

from llmprof.errors import door

if TYPE_CHECKING:
    from llmprof.run.experiments.report import Evidence, saved, suggestions
    from llmprof.run.experiments.scaling import parallelism, sequence_length

# at their first use, since reports need Altair
door(
    globals(),
    {
        "run.experiments.report": "Evidence saved suggestions",
        "run.experiments.scaling": "parallelism sequence_length",
    },
)
