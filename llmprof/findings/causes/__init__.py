"""The causes, a file each; the order of these lines decides between findings of equal weight."""

from typing import Final

from llmprof.plugins import records_in
from llmprof.findings.cause import Cause
from llmprof.findings.causes.waiting_ranks import ARRIVAL_SKEW, PIPELINE_WAIT
from llmprof.findings.causes.host_bound import HOST_BOUND
from llmprof.findings.causes.host_work import HOST_WORK
from llmprof.findings.causes.device_held import DEVICE_HELD
from llmprof.findings.causes.synchronisation import SYNCHRONISATION
from llmprof.findings.causes.exposed_communication import EXPOSED_COMMUNICATION
from llmprof.findings.causes.copies import COPIES
from llmprof.findings.causes.unexplained_idle import UNEXPLAINED_IDLE, LEFT_OUT
from llmprof.findings.causes.recording_ends import IDLE_AT_THE_ENDS, WORK_FROM_BEFORE
from llmprof.findings.causes.unsteady_kernels import UNSTEADY_KERNELS
from llmprof.findings.causes.between_operators import BETWEEN_OPERATORS
from llmprof.findings.causes.small_messages import SMALL_MESSAGES
from llmprof.findings.causes.between_queued import BETWEEN_QUEUED_EVENTS
from llmprof.findings.causes.short_kernels import SHORT_KERNELS
from llmprof.findings.causes.split_k import SPLIT_K
from llmprof.findings.causes.drafting import DRAFTING
from llmprof.findings.causes.npu import AI_CPU_OPERATORS, FORMAT_CHANGE
from llmprof.findings.causes.uneven_ranks import UNEVEN_RANKS
from llmprof.findings.causes.bounds import BELOW_BOUND
from llmprof.findings.causes.heaviest_stage import HEAVIEST_STAGE
from llmprof.findings.causes.npu import AI_CORE_UNITS
from llmprof.findings.causes.sampled_units import SAMPLED_UNITS
from llmprof.findings.causes.bounds import ABOVE_BOUND
from llmprof.findings.causes.unnamed_time import UNNAMED_TIME

CAUSES: Final = records_in(globals(), Cause)
