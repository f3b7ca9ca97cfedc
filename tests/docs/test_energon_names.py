"""The generated page "Names of Energon" is current, complete and true.

`tests/energon_signatures.py` explains the tokens in its table of signatures.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import write_energon_names
from energon_peer import needs_energon, run_there
from energon_signatures import ADAPTER, BACKENDS, NAMES, all_differences, compared, energon_names

import energon_grain

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "reference" / "energon-names.md"
SUITE = REPOSITORY / "tests" / "interop" / "energon_suite.json"  # what `tests/interop/test_energon_suite.py` expects
TESTS_OF_ENERGON = 138
LISTER = REPOSITORY / "tests" / "interop" / "list_energon_names.py"
SAME, NOTHING = "the same", "—"


def section(title: str) -> list[list[str]]:
    """The rows of the table in a section of the page."""
    text = PAGE.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    return [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| `")]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def ours() -> list[tuple[str, str]]:
    """Energon's names, each with its cell in the column of ours."""
    return [(name, cells[1].strip()) for cells in section("Every name") for name in quoted(cells[0])]


def same_names() -> list[str]:
    return [name for name, said in ours() if said == SAME]


def backends() -> list[ModuleType]:
    return [importlib.import_module(name) for name in BACKENDS]


@pytest.mark.skipif(not ADAPTER, reason="the PyTorch adapter cannot be imported")
def test_the_page_is_current() -> None:
    assert PAGE.read_text() == write_energon_names.page(), "run: python tests/write_energon_names.py"


def test_every_name_is_listed_once() -> None:
    names = [name for name, _ in ours()]
    assert sorted(names) == sorted(energon_names())


@pytest.mark.parametrize(("name", "said"), ours())
def test_what_is_said_of_ours_is_true(name: str, said: str) -> None:
    if said == SAME:
        for module in backends():
            assert name in module.__all__
            assert getattr(module, name) is not None
    elif said == NOTHING:
        assert name not in energon_grain.__all__, "the name exists by now"
    else:
        (path,) = re.fullmatch(r"`([\w.]+)`", said).groups()  # type: ignore[union-attr]
        module, _, attribute = path.rpartition(".")
        if module == "energon_grain_torch" and not ADAPTER:
            pytest.skip("the PyTorch adapter cannot be imported")
        if module == "energon_grain_torch.transforms" and importlib.util.find_spec("torchvision") is None:
            source = Path(str(importlib.util.find_spec(module).origin))  # type: ignore[union-attr]
            assert re.search(rf"^class {attribute}\b", source.read_text(), re.MULTILINE)
        else:
            assert hasattr(importlib.import_module(module or "energon_grain"), attribute)


@needs_energon[0]
@needs_energon[1]
def test_the_list_is_energons() -> None:
    assert run_there(LISTER) == NAMES.read_text()


def test_every_failing_test_of_energon_is_listed_with_its_reason() -> None:
    expected = [each for tests in json.loads(SUITE.read_text()).values() for each in tests.items()]
    said = {(name, why.strip(" |")) for names, why in section("Energon's own tests") for name in quoted(names)}
    assert said == set(expected)
    opening = PAGE.read_text().partition("## Energon's own tests\n")[2]
    assert f"Of the {TESTS_OF_ENERGON} tests of Energon" in opening
    assert f" {TESTS_OF_ENERGON - len(expected)} pass." in opening


def signature_table() -> dict[str, set[str]]:
    said: dict[str, set[str]] = defaultdict(set)
    for names, tokens, reason in section("Every signature"):
        assert reason.strip(" |"), names
        for name in quoted(names):
            for token in quoted(tokens):
                assert token not in said[name], f"{name}: {token} is listed twice"
                said[name].add(token)
    return said


@pytest.mark.skipif(not ADAPTER, reason="the PyTorch adapter cannot be imported")
def test_every_difference_is_in_the_table() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for backend in BACKENDS:
        for name, tokens in all_differences(backend, same_names()).items():
            found[name] |= tokens
    said = signature_table()
    missing = {name: " ".join(sorted(tokens - said[name])) for name, tokens in found.items() if tokens - said[name]}
    past = {name: " ".join(sorted(tokens - found[name])) for name, tokens in said.items() if tokens - found[name]}
    assert (missing, past) == ({}, {}), "(differences without a row, rows without a difference)"


def test_tokens_say_what_differs() -> None:
    def ours(a: int, c: int = 2, *, b: int, e: int = 5, f: Any = print) -> None: ...

    assert list(compared("(a, b, c=1, *, d, e, f=…, g=None)", ours)) == ["b@", "c=2", "c@", "-d", "e?", "-g"]
    assert list(compared("(a, *, b=1)", ours)) == ["b!", "+c", "+e", "+f"]
