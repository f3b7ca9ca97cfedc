"""The rules of the house that a linter does not know."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import house
import pytest
from patience import PATIENCE_S

import energon_grain
import energon_grain_torch
from energon_grain import errors

PACKAGE = Path(energon_grain.__file__).parent
PACKAGES = PACKAGE, Path(energon_grain_torch.__file__).parent
MODULES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "base"}


def name_of(path: Path) -> str:
    (package,) = (package for package in PACKAGES if path.is_relative_to(package))
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_files_are_named_by_their_concept() -> None:
    assert [name_of(path) for path in MODULES if FORBIDDEN_NAMES & {path.stem, path.parent.name}] == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_say_what_they_are(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), "a module docstring is missing"
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            module = importlib.import_module(name_of(path))
            assert len(module.__all__) == len(set(module.__all__))
            assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_public_names_are_sorted() -> None:
    assert energon_grain.__all__ == sorted(set(energon_grain.__all__))


@pytest.mark.parametrize("name", energon_grain.__all__)
def test_public_names_can_be_imported(name: str) -> None:
    value = getattr(energon_grain, name)
    assert name.startswith("__") or (value.__doc__ or "").strip(), "a docstring is missing"
    assert name in dir(energon_grain)


def test_public_names_live_where_the_stub_says() -> None:
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    homes = [(alias.asname, f".{node.module}") for node in imports for alias in node.names]
    assert sorted(name or "" for name, _ in homes) == energon_grain.__all__
    for name, module in homes:
        home = importlib.import_module(module, "energon_grain")
        value = getattr(home, name or "")
        assert value is getattr(energon_grain, name or "")
        assert getattr(value, "__module__", home.__name__) == home.__name__


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert house.circle() == []


def test_the_house_does_not_grow() -> None:
    recorded = json.loads(house.RECORDED.read_text())
    counts = {
        f"{package}: {what}": (count, recorded.get(package, {}).get(what, 0))
        for package, found in house.measure().items()
        for what, count in found.items()
    }
    grown = {place: (now, most) for place, (now, most) in counts.items() if now > most}
    assert not grown, f"(now, at most): {grown}. What a new ability needs is recorded by `python tests/house.py`"
    shrunk = {place: (now, most) for place, (now, most) in counts.items() if now < 0.97 * most - 20}
    assert not shrunk, f"(now, at most): {shrunk}. There is less: `python tests/house.py` records it"


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = energon_grain.nothing


def drawn() -> dict[str, tuple[str | None, tuple[str, ...], str]]:
    """Class to (parent, builtins, meaning), from the drawing on top of `errors`."""
    found: dict[str, tuple[str | None, tuple[str, ...], str]] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^    ([│ ├└─]*)([A-Z]\w+)(?: \((\w+)\))?\s*(.*)$", line)
        if match is None:
            continue
        depth = len(match[1]) // 4
        del above[depth:]
        found[match[2]] = (above[-1] if above else None, (match[3],) if match[3] else (), match[4])
        above.append(match[2])
    return found


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    real = {
        name: (
            next((base.__name__ for base in error.__bases__ if issubclass(base, errors.EnergonGrainError)), None),
            tuple(b.__name__ for b in error.__bases__ if b.__module__ == "builtins" and b is not Exception),
        )
        for name, error in vars(errors).items()
        if isinstance(error, type) and issubclass(error, errors.EnergonGrainError)
    }
    assert {name: (parent, builtins) for name, (parent, builtins, _) in drawn().items()} == real
    assert all(meaning for name, (parent, _, meaning) in drawn().items() if parent)
    assert set(real) <= set(energon_grain.__all__)


def test_importing_the_package_imports_nothing_heavy() -> None:
    program = (
        "import sys, energon_grain\n"
        "print(sorted({'numpy', 'grain', 'jax', 'torch', 'tensorstore', 'orbax', 'PIL', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert done.stdout.strip() == "[]"
