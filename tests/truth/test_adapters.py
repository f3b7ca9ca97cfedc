"""Adapters keep the rules of `benchmarks/truth/loaders/README.md`. Only their text is read: no loader is installed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks.truth.adapter import CLAIMS
from benchmarks.truth.run import LOADERS, loaders

MOST_LINES = 150


def attributes(loader: str) -> dict[str, ast.expr]:
    """Return the expressions of the class attributes of `Loader`."""
    module = ast.parse((LOADERS / f"{loader}.py").read_text())
    (found,) = [node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "Loader"]
    assigned = [node for node in found.body if isinstance(node, ast.Assign)]
    return {target.id: node.value for node in assigned for target in node.targets if isinstance(target, ast.Name)}


@pytest.mark.parametrize("loader", loaders())
def test_an_adapter_keeps_the_rules(loader: str) -> None:
    text = Path(LOADERS, f"{loader}.py").read_text()
    assert len(text.splitlines()) <= MOST_LINES
    found = attributes(loader)
    assert "name" in found
    assert len(ast.unparse(found["settings"])) > 10
    claims = found.get("claims", ast.Set(elts=[]))
    words = {node.value for node in ast.walk(claims) if isinstance(node, ast.Constant)}
    assert words <= set(CLAIMS)
    assert Path(LOADERS, "requirements", f"{loader}.txt").exists()


@pytest.mark.parametrize("loader", [name for name in loaders() if not name.startswith("energon_grain")])
def test_a_peer_has_a_link_to_the_page_it_follows(loader: str) -> None:
    text = Path(LOADERS, f"{loader}.py").read_text()
    base = "hf_datasets" if loader.startswith("hf_datasets") else loader
    assert ast.literal_eval(attributes(base)["page"]).startswith("https://")
    assert "https://" in (ast.get_docstring(ast.parse(text)) or "") or base != loader
