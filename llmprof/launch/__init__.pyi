from .config.options import ConfigManager as ConfigManager, ExperimentConfig as ExperimentConfig
from .run.folder import RunFolder as RunFolder, clean as clean, runs as runs
from .run.passes import plan as plan
from .run.runner import (
    ExperimentRunner as ExperimentRunner,
    Run as Run,
    open_run as open_run,
    resume as resume,
)
