from .notebooks import Walkthroughs as Walkthroughs, notebooks_over as notebooks_over
from .parameters import PRESETS as PRESETS, configs as configs, parse as parse, preset as preset
from .runner import BatchRunner as BatchRunner, devices as devices
from .sweep import Sweep as Sweep, open_sweep as open_sweep, write_report as write_report
