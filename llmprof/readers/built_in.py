"""llmprof's readers, a line each: a file is read by the first that knows it."""

from typing import Final

from llmprof.plugins import records_in
from llmprof.readers.common.reader import Reader
from llmprof.readers.ascend.reader import READER as ASCEND
from llmprof.readers.chrome.reader import READER as CHROME
from llmprof.readers.xplane import READER as XPLANE
from llmprof.readers.nvprof import READERS as NVPROF
from llmprof.readers.rocm.reader import READERS as ROCM
from llmprof.readers.nsys.reader import READER as NSYS
from llmprof.readers.nsys_stats import READER as NSYS_STATS
from llmprof.readers.ops import READER as OPS
from llmprof.readers.saved import READERS as SAVED
from llmprof.readers.monitors.reader import READERS as MONITORS
from llmprof.readers.ncu.reader import READER as NCU
from llmprof.readers.vtune import READER as VTUNE
from llmprof.readers.perf import READERS as PERF
from llmprof.readers.tensorrt import READERS as TENSORRT
from llmprof.readers.proton import READER as PROTON
from llmprof.readers.torch_memory.reader import READERS as TORCH_MEMORY
from llmprof.readers.perfetto import READER as PERFETTO

BUILT_IN: Final = records_in(globals(), Reader)
