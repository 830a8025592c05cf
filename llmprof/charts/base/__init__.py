"""Parts that all charts share: theme, data, bars, placement of labels, and saving."""

import sys
from importlib.abc import MetaPathFinder


class _WithoutGrammars(MetaPathFinder):
    def find_spec(self, name: str, *_: object) -> None:
        if name == "rfc3987_syntax":
            raise ModuleNotFoundError(name)


# Altair imports jsonschema, which where Jupyter is installed builds 38 parsers for one format,
# `iri`: twice the time of all the rest (python-jsonschema/jsonschema issue 1428). So it is to find
# no grammars at its first import. The price: jsonschema takes any `iri` in this process; no schema
# of Altair or Jupyter has one.
sys.meta_path.insert(0, finder := _WithoutGrammars())
try:
    import altair
finally:
    sys.meta_path.remove(finder)
