"""Parts that all charts share: theme, data, bars, placement of labels, and saving."""

import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any, Final

_LATE: Final = {"rfc3987_syntax", "rfc3986_validator", "isoduration"}
_FINDERS: Final = [*sys.meta_path]


class _WithoutLate(MetaPathFinder):
    def find_spec(self, name: str, *where: Any) -> ModuleSpec | None:
        found = (finder.find_spec(name, *where) for finder in _FINDERS if name not in _LATE)
        return next((spec for spec in found if spec is not None), None)

    def find_distributions(self, *where: Any) -> Iterator[Any]:
        for finder in _FINDERS:
            if hasattr(finder, "find_distributions"):
                yield from finder.find_distributions(*where)


# Altair imports jsonschema, which where Jupyter is installed builds 38 parsers for one format,
# `iri`: twice the time of all the rest (python-jsonschema/jsonschema issue 1428); and outside of
# Jupyter it imports IPython for a widget that only Jupyter shows. So these are not there at its
# first import. The price: jsonschema takes any `iri`, `uri` and `duration` in this process, which
# no schema of Altair or Jupyter needs, and Altair has no JupyterChart where there is no Jupyter.
if "IPython" not in sys.modules:
    _LATE.add("anywidget")
sys.meta_path[:] = [finder := _WithoutLate()]
try:
    import altair
finally:
    at = sys.meta_path.index(finder)  # beside it may stand what was added meanwhile
    sys.meta_path[at : at + 1] = _FINDERS
