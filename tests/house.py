"""The size of the house, package by package: lines, modules with a single importer, and late imports of our own.

`python tests/house.py` writes what is there to house.json, the most that a test lets there be from then on. A module
with one importer is a paragraph of that importer; an import inside a function, where it is of our own and no command's,
hides a circle.
"""

from __future__ import annotations

import ast
import graphlib
import json
from collections import defaultdict
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
RECORDED = Path(__file__).with_name("house.json")
TOPS = {
    "energon_grain": REPOSITORY / "energon_grain",
    "energon_grain_torch": REPOSITORY / "adapters/energon_grain_torch",
}
Counts = dict[str, dict[str, int]]


def modules() -> dict[str, Path]:
    """Dotted name to file; a package stands for its `__init__.py`."""
    found: dict[str, Path] = {}
    for top, folder in TOPS.items():
        for path in folder.rglob("*.py"):
            parts = [top, *path.relative_to(folder).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(tree: ast.AST, known: dict[str, Path]) -> set[str]:
    """Our modules that anything below a node imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in known else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & set(known)


def circle() -> list[str]:
    """Modules that import each other in a circle; empty: none do.

    What counts is every import outside of functions, those for annotations alone (`if TYPE_CHECKING`) among them. A
    package that hands on names lazily imports nothing by that.
    """
    known = modules()
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in [*ast.walk(tree)]:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                node.body = []
        graph[name] = imported(tree, known) - {name}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def measure() -> Counts:
    """What is there, by package."""
    known = modules()
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in known.items()}
    importers: dict[str, set[str]] = defaultdict(set)
    counts: Counts = defaultdict(lambda: {"lines": 0, "single importers": 0, "late imports": 0})
    for name, tree in trees.items():
        for each in imported(tree, known) - {name}:
            if name not in TOPS:  # these name everything
                importers[each].add(name)
        package = counts[_package(name)]
        package["lines"] += len(known[name].read_text(encoding="utf-8").splitlines())
        if _package(name) != "energon_grain.cli":  # commands import what they need when they are called
            functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
            package["late imports"] += sum(bool(imported(function, known)) for function in functions)
    for name, by in importers.items():
        if len(by) == 1 and known[name].name != "__init__.py" and _package(name) == _package(next(iter(by))):
            counts[_package(name)]["single importers"] += 1
    return {name: counts[name] for name in sorted(counts)}


def _package(module: str) -> str:
    return ".".join(module.split(".")[:2]) if module.startswith("energon_grain.") else module.split(".")[0]


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(measure(), indent=1) + "\n")
