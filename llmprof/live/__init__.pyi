from .changes import changed as changed
from .past import history as history
from .recording import record as record
from .watching import watch as watch
