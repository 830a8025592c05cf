"""Hardware metrics of Nsight Compute: the command that records them, the join with a timeline,
bounds and stalls.
"""

from typing import TYPE_CHECKING

from llmprof.analyze.ncu.hardware import hot_lines, speed_of_light, stalls
from llmprof.analyze.ncu.launches import command, join
from llmprof.analyze.ncu.layers import layers
from llmprof.errors import door

if TYPE_CHECKING:
    from llmprof.findings.hardware import findings

door(globals(), {"findings.hardware": "findings"})
