"""Hardware metrics of Nsight Compute: the command that records them, the join with a timeline,
bounds and stalls.
"""

from llmprof.analyze.ncu.findings import findings
from llmprof.analyze.ncu.hardware import hot_lines, speed_of_light, stalls
from llmprof.analyze.ncu.launches import command, join
from llmprof.analyze.ncu.layers import layers
from llmprof.arguments import check_exports

__all__ = check_exports(globals())  # noqa: PLE0605


def __dir__() -> list[str]:
    return __all__
