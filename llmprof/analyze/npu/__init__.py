"""Questions of an NPU; some also have answers for a GPU whose recording holds the same data."""

from llmprof.analyze.npu.cores import core_time, memory_by_component, operator_shapes
from llmprof.analyze.npu.waits import event_waits, launch_path, links
from llmprof.arguments import check_exports

__all__ = check_exports(globals())  # noqa: PLE0605


def __dir__() -> list[str]:
    return __all__
