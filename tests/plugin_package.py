"""A package with plug-ins, installed as pip leaves it: its module and a ``.dist-info`` with
entry points.
"""

import sys
import textwrap
from contextlib import contextmanager

import pytest

from llmprof import names, plugins
from llmprof.analyze import catalog
from llmprof.cli import listings
from llmprof.readers import registry
from llmprof.report.dataset import plans
from llmprof.theory import calls


def write(
    folder,
    module,
    code,
    points,
    *,
    version="1.2",
):
    """Put a package named as its module into a folder, with entry points by group and name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{module}.py").write_text(textwrap.dedent(code), encoding="utf-8")
    info = folder / f"{module}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n", encoding="utf-8"
    )
    lines = [
        line
        for group, names in points.items()
        for line in (f"[{group}]", *(f"{k} = {v}" for k, v in names.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def forget():
    """Look for plug-ins again."""
    plugins._entry_points.cache_clear()
    plugins.load.cache_clear()
    plugins.own.cache_clear()
    registry.added.cache_clear()
    catalog.analyses.cache_clear()
    listings.listings.cache_clear()
    plans.plans.cache_clear()
    names._add_plugins.cache_clear()
    calls.forget_operators()


@contextmanager
def installed(folder):
    """The packages of a folder can be imported and are found, until the end of the block."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patterns = list(names.KERNEL_PATTERNS)
        forget()
        yield
        names.KERNEL_PATTERNS[:] = patterns
    for name in set(sys.modules) - before:
        if (folder / f"{name}.py").exists():
            del sys.modules[name]
    forget()
