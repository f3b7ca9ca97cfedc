"""The tables of names and of failing tests in "Coming from Energon" are complete and true."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest
from energon_peer import needs_energon, run_there

import energon_grain

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "coming-from-energon.md"
NAMES = REPOSITORY / "tests" / "fixtures" / "energon_names.txt"  # `module name` a line, of Energon 7.4.1
SUITE = REPOSITORY / "tests" / "interop" / "energon_suite.json"  # what `tests/interop/test_energon_suite.py` expects
TESTS_OF_ENERGON = 138
LISTER = REPOSITORY / "tests" / "interop" / "list_energon_names.py"
ADAPTER = importlib.util.find_spec("energon_grain_torch") and importlib.util.find_spec("torch")
SAME, NOTHING = "the same", "—"


def table() -> list[tuple[list[str], str]]:
    """Energon's names and what stands in the column of ours, row by row."""
    section = PAGE.read_text().partition("## Every name\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return [(re.findall(r"`([^`]+)`", cells[0]), cells[1].strip()) for cells in rows]


def energon_names() -> set[str]:
    return {line.split()[1] for line in NAMES.read_text().splitlines()}


def ours() -> list[tuple[str, str]]:
    return [(name, said) for names, said in table() for name in names]


def backends() -> list[ModuleType]:
    return [energon_grain, *([importlib.import_module("energon_grain_torch")] if ADAPTER else [])]


def test_every_name_stands_there_once() -> None:
    names = [name for name, _ in ours()]
    assert sorted(names) == sorted(energon_names())


@pytest.mark.parametrize(("name", "said"), ours())
def test_what_is_said_of_ours_is_true(name: str, said: str) -> None:
    if said == SAME:
        for module in backends():
            assert name in module.__all__
            assert getattr(module, name) is not None
    elif said == NOTHING:
        assert name not in energon_grain.__all__, "it is there by now"
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


def test_every_failing_test_of_energon_stands_there_with_its_reason() -> None:
    expected = [each for tests in json.loads(SUITE.read_text()).values() for each in tests.items()]
    section = PAGE.read_text().partition("## Energon's own tests\n")[2]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    said = {(name, why) for names, why in rows for name in re.findall(r"`([^`]+)`", names)}
    assert said == set(expected)
    assert f"Of the {TESTS_OF_ENERGON} tests of Energon" in section
    assert f" {TESTS_OF_ENERGON - len(expected)} pass." in section
