"""The size of the house, package by package: lines, modules with a single importer, and late imports of our own.

`python tests/house.py` writes what is there to house.json, the most that a test lets there be from then on, and prints
the size of the tests. A module with one importer is a paragraph of that importer; an import inside a function, where it
is of our own and no command's, hides a circle.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
RECORDED = Path(__file__).with_name("house.json")
TOPS = {
    "energon_grain": REPOSITORY / "energon_grain",
    "energon_grain_torch": REPOSITORY / "adapters/energon_grain_torch",
}
Counts = dict[str, dict[str, int]]


@dataclass
class Module:
    """A file: its tree, and the modules of ours that it imports.

    Attributes:
        path: Where it lies.
        tree: What it says.
        early: Imported outside of functions, for annotations alone (`if TYPE_CHECKING`) among them.
        late: Imported inside functions.
        functions: Those that import one of ours, by their places; one inside another counts twice.
    """

    path: Path
    tree: ast.Module
    early: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)
    functions: set[int] = field(default_factory=set)


@functools.cache
def modules() -> dict[str, Module]:
    """By dotted name; a package stands for its `__init__.py`."""
    found: dict[str, Module] = {}
    for top, folder in TOPS.items():
        for path in folder.rglob("*.py"):
            parts = [top, *path.relative_to(folder).with_suffix("").parts]
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = Module(path, ast.parse(path.read_text(encoding="utf-8")))
    for module in found.values():
        _look(module, module.tree, (), found)
    return found


def _look(module: Module, node: ast.AST, inside: tuple[int, ...], known: Iterable[str]) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            _look(module, child, (*inside, child.lineno), known)
            continue
        named = set(imported(child)) & set(known)
        (module.late if inside else module.early).update(named)
        module.functions.update(inside if named else ())
        _look(module, child, inside, known)


def imported(node: ast.AST) -> Iterable[str]:
    """What a statement may import: of `from a import b`, both `a.b` and, if that is no module, `a`."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        whole = [f"{node.module}.{alias.name}" for alias in node.names]
        return [name if _is_module(name) else node.module for name in whole]
    return []


def _is_module(name: str) -> bool:
    top, _, rest = name.partition(".")
    place = TOPS.get(top, REPOSITORY / "nowhere").joinpath(*rest.split("."))
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


def circle() -> list[str]:
    """Modules that import each other in a circle by what they import outside of functions; empty: none do."""
    try:
        graphlib.TopologicalSorter({name: each.early - {name} for name, each in modules().items()}).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def measure() -> Counts:
    """What is there, by package."""
    importers: dict[str, set[str]] = defaultdict(set)
    counts: Counts = defaultdict(lambda: {"lines": 0, "single importers": 0, "late imports": 0})
    for name, module in modules().items():
        package = counts[_package(name)]
        package["lines"] += len(module.path.read_text(encoding="utf-8").splitlines())
        if _package(name) != "energon_grain.cli":  # commands import what they need when they are called
            package["late imports"] += len(module.functions)
        if name not in TOPS:  # these name everything
            for each in (module.early | module.late) - {name}:
                importers[each].add(name)
    for name, by in importers.items():
        if len(by) == 1 and modules()[name].path.stem != "__init__" and _package(name) == _package(*by):
            counts[_package(name)]["single importers"] += 1
    return {name: counts[name] for name in sorted(counts)}


def _package(module: str) -> str:
    return ".".join(module.split(".")[:2]) if module.startswith("energon_grain.") else module.split(".")[0]


def of_tests() -> dict[str, int]:
    """Lines of the tests, their files, and those of them that import what is behind the public doors."""
    packages = ("cli", "conversion", "errors", "loader", "prepare", "testing")
    doors = {*TOPS, *(f"energon_grain.{name}" for name in packages)}
    doors |= {f"energon_grain_torch.{name}" for name in ("as_megatron_energon", "transforms")}
    doors.add("energon_grain.testing.check_hooks")  # a function, in the file of its name
    files = sorted(Path(__file__).parent.rglob("*.py"))
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    inside = [
        {name for node in ast.walk(tree) for name in imported(node) if name in modules()} - doors for tree in trees
    ]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    return {"lines": lines, "files": len(files), "that import internals": sum(map(bool, inside))}


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(measure(), indent=1) + "\n")
    print(f"tests: {of_tests()}")
