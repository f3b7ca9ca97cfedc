"""Print the public names of Megatron-Energon, `module name` a line. Runs in its environment; imports none of it."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "megatron.energon"
WITHOUT_ALL = ("errors",)  # what its public classes are called stands in no `__all__`


def names_of(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return ast.literal_eval(node.value)
    if path.stem in WITHOUT_ALL:
        return [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return []


def lines() -> Iterator[str]:
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    for folder in map(Path, spec.submodule_search_locations or ()):
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            module = ".".join((PACKAGE, *(part for part in parts if part != "__init__")))
            for name in sorted(set(names_of(path))):
                yield f"{module} {name}"


if __name__ == "__main__":
    for line in sorted(lines()):
        print(line)
