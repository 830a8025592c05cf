from .convert import convert as convert, open as open
from .mapping import map as map, several as several
