from .convert import convert as convert, open as open
from .large import large_run as large_run, read_truth as read_truth
from .mapping import map as map, several as several
