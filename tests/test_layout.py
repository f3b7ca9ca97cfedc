"""Rules of the code that a linter does not know. Sizes, cycles and complexity are bounded by `tests/shape.py`."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from types import ModuleType

import pytest
import shape

import energon_grain
import energon_grain_torch
from energon_grain import errors, testing

FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "base"}


def test_modules_are_named_by_their_concept_and_say_what_they_are() -> None:
    for name, module in shape.modules().items():
        assert not FORBIDDEN_NAMES & set(name.split(".")), name
        assert ast.get_docstring(module.tree), f"{name}: a module docstring is missing"
        if "__all__" in {
            target.id for node in module.tree.body for target in ast.walk(node) if isinstance(target, ast.Name)
        }:
            names = importlib.import_module(name).__all__
            assert len(names) == len(set(names)), name
            assert [each for each in names if not hasattr(importlib.import_module(name), each)] == [], name


def test_public_names_are_sorted_and_can_be_imported() -> None:
    assert energon_grain.__all__ == sorted(set(energon_grain.__all__))
    assert set(energon_grain.__all__) <= set(dir(energon_grain))
    for name in energon_grain.__all__:
        assert name.startswith("__") or (getattr(energon_grain, name).__doc__ or "").strip(), f"{name}: no docstring"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = energon_grain.nothing


def test_public_names_live_where_the_stub_says() -> None:
    stub = ast.parse((shape.TOPS["energon_grain"] / "__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    homes = [(alias.asname, f".{node.module}") for node in imports for alias in node.names]
    assert sorted(name or "" for name, _ in homes) == energon_grain.__all__
    for name, module in homes:
        home = importlib.import_module(module, "energon_grain")
        value = getattr(home, name or "")
        assert value is getattr(energon_grain, name or "")
        assert getattr(value, "__module__", home.__name__) == home.__name__


@pytest.mark.parametrize("package", [energon_grain, testing, energon_grain_torch])
def test_no_module_takes_the_place_of_a_public_name(package: ModuleType) -> None:
    """As it would, were a module named as what it holds, and imported before that is asked for."""
    for info in pkgutil.iter_modules(package.__path__):
        assert info.name not in package.__all__


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
