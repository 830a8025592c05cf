from .batch.runner import BatchRunner as BatchRunner, sweep as sweep
from .bundled import sample as sample, sample_metrics as sample_metrics, samples as samples
from .dataset import convert as convert, map as map, open as open
from .launch import (
    ConfigManager as ConfigManager,
    ExperimentConfig as ExperimentConfig,
    ExperimentRunner as ExperimentRunner,
)
from .live.recording import record as record
from .live.watching import watch as watch
from .metrics.data import Metrics as Metrics
from .notebook.cell import profile as profile
from .operator_timing import time_operators as time_operators
from .readers import read as read
from .readers.ncu.reader import read_metrics as read_metrics
from .readers.ncu.source import read_source as read_source
from .readers.otlp import read_requests as read_requests
from .report import Visualizer as Visualizer
from .trace import Trace as Trace
from .trials.measure import trial as trial
from .trials.tuning import tune as tune
from . import analyze as analyze
from . import charts as charts
from . import errors as errors
from . import explore as explore
from . import hardware as hardware
from . import launch as launch
from . import metrics as metrics
from . import names as names
from . import report as report
from . import schema as schema
from . import theory as theory
from . import units as units

__version__: str

def load_ipython_extension(shell: object) -> None: ...
