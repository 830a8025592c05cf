"""No module of llmprof needs itself to be imported: at module level there is no cycle anywhere
in the package.
"""

from __future__ import annotations

import ast
import graphlib


def module_level(tree):
    """Imports that run when the module is imported: not those in functions or for type checkers
    only.
    """
    waiting = list(tree.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse if not ast.unparse(node.test).startswith("not ") else node.body
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def graph_of(package):
    """Modules that each module of a package imports."""
    sources = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        sources[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text(
            "utf-8"
        )
    graph = {}
    for name, source in sources.items():
        imported = set()
        for node in module_level(ast.parse(source)):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif node.module:
                whole = {f"{node.module}.{alias.name}" for alias in node.names}
                imported |= {one if one in sources else node.module for one in whole}
        # a package that re-exports what lies in it is loaded before its modules, which is no cycle
        graph[name] = {
            one
            for one in imported
            if one in sources and one != name and not name.startswith(f"{one}.")
        }
    return graph


def test_no_module_imports_itself_by_way_of_others(root):
    graph = graph_of(root / "llmprof")
    assert len(graph) > 150
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle
