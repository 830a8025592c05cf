from .folder import Report as Report, html as html, write as write
from .run import Visualizer as Visualizer
from .sweep import write_sweep as write_sweep
