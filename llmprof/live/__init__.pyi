from .changes import changed as changed
from .dashboard import dashboard as dashboard
from .past import history as history
from .recording import record as record
from .watching import watch as watch
