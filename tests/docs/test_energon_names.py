"""The tables of names, signatures and failing tests in "Coming from Energon" are complete and true.

A row of the table of signatures is `names | difference | reason`, the difference in these tokens:

* `-name`: an argument, method or attribute that Energon has and we lack; `+name`: a further argument;
* `name=…`: another default (`…` is one that is no literal);
* `name?`: required there, not here; `name!`: the other way round; `name@`: not at the same place, so give it by name.

Names of classes stand for their constructors; a method that both have and that differs is `Class.method`. What a class
inherits from another of the table is said there. `list_energon_signatures.py` made the fixture.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

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


FIXTURE = REPOSITORY / "tests" / "fixtures" / "energon_signatures.txt"
BACKENDS = ["energon_grain"]
if importlib.util.find_spec("energon_grain_torch") and importlib.util.find_spec("torch"):
    BACKENDS.append("energon_grain_torch")
OTHER = "…"
Tokens = dict[str, list[str]]


def section(title: str) -> list[list[str]]:
    """The rows of the signature_table in a section of the page."""
    text = PAGE.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    return [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| `")]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def same_names() -> list[str]:
    return [name for cells in section("Every name") if cells[1].strip() == "the same" for name in quoted(cells[0])]


def energon_signatures() -> dict[str, str]:
    """The parameters of functions, constructors and methods, in their brackets; "" for a property."""
    lines = FIXTURE.read_text().splitlines()
    return {name: bracket + rest for name, bracket, rest in (line.partition("(") for line in lines)}


def parsed(parameters: str) -> list[tuple[str, str, str | None]]:
    """(name, kind, default) of each parameter in the fixture that is no private one."""
    function = ast.parse(f"def function{parameters.replace('=…', '=OTHER')}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + list(arguments.defaults)
    listed = [(each.arg, "positional", value) for each, value in zip(arguments.args, defaults, strict=True)]
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    listed += [(each.arg, "keyword", value) for each, value in named]
    return [
        (name, kind, None if value is None else OTHER if isinstance(value, ast.Name) else repr(ast.literal_eval(value)))
        for name, kind, value in listed
        if not name.startswith("_")
    ]


def literal(value: Any) -> str:
    try:
        ast.literal_eval(repr(value))
    except (ValueError, SyntaxError):
        return OTHER
    return repr(value)


def compared(parameters: str, ours: Any) -> Iterator[str]:
    """The tokens of one signature."""
    own = [each for each in inspect.signature(ours).parameters.values() if not each.name.startswith("_")]
    own = [each for each in own if each.name != "self"]
    known = {each.name: each for each in own}
    positional = [each.name for each in own if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    takes_all = any(each.kind is each.VAR_KEYWORD for each in own)
    theirs = parsed(parameters)
    for place, (name, kind, default) in enumerate(theirs):
        if name not in known:
            if not takes_all:
                yield f"-{name}"
            continue
        has = None if known[name].default is inspect.Parameter.empty else literal(known[name].default)
        if default is None and has is not None:
            yield f"{name}?"
        elif has is None and default is not None:
            yield f"{name}!"
        elif has != default:
            yield f"{name}={has}"
        if kind == "positional" and name not in positional[place : place + 1]:
            yield f"{name}@"
    names = {name for name, _, _ in theirs}
    for each in own:
        if each.name not in names and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL):
            yield f"+{each.name}"


def differences(name: str, ours: Any, signatures: dict[str, str]) -> Tokens:
    """The tokens of a name, and of those of its methods that both have and that differ."""
    found: Tokens = defaultdict(list)
    if name in signatures and not (inspect.isclass(ours) and issubclass(ours, BaseException)):
        found[name] += compared(signatures[name], ours)
    for key, parameters in signatures.items():
        owner, _, method = key.partition(".")
        if not method or owner != name:
            continue
        if not hasattr(ours, method) and method not in inspect.get_annotations(ours):
            found[name].append(f"-{method}")
        elif parameters and callable(getattr(ours, method, None)):
            found[key] += compared(parameters, getattr(ours, method))
    return found


def all_differences(backend: str) -> dict[str, set[str]]:
    """The tokens of all names that are the same, without what a class inherits from another of them."""
    module, signatures, names = importlib.import_module(backend), energon_signatures(), set(same_names())
    of_each = {name: differences(name, getattr(module, name), signatures) for name in names}
    found: dict[str, set[str]] = {}
    for name, tokens in of_each.items():
        ours = getattr(module, name)
        above = [base.__name__ for base in getattr(ours, "__mro__", ())[1:] if base.__name__ in names - {name}]
        for key, own in tokens.items():
            method = key.partition(".")[2]
            inherited = {token for base in above for token in of_each[base][f"{base}.{method}" if method else base]}
            constructor = set(compared(signatures[name], ours)) if key == name and name in signatures else set[str]()
            left = {token for token in own if token not in inherited or token in constructor}
            if left:
                found[key] = left
    return found


def signature_table() -> dict[str, set[str]]:
    said: dict[str, set[str]] = defaultdict(set)
    for names, tokens, reason in section("Every signature"):
        assert reason.strip(" |"), names
        for name in quoted(names):
            for token in quoted(tokens):
                assert token not in said[name], f"{name}: {token} stands there twice"
                said[name].add(token)
    return said


@pytest.mark.skipif(len(BACKENDS) < 2, reason="the PyTorch adapter cannot be imported")
def test_every_difference_stands_in_the_table() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for backend in BACKENDS:
        for name, tokens in all_differences(backend).items():
            found[name] |= tokens
    said = signature_table()
    missing = {name: " ".join(sorted(tokens - said[name])) for name, tokens in found.items() if tokens - said[name]}
    past = {name: " ".join(sorted(tokens - found[name])) for name, tokens in said.items() if tokens - found[name]}
    assert (missing, past) == ({}, {}), "(differences without a row, rows without a difference)"


def test_tokens_say_what_differs() -> None:
    def ours(a: int, c: int = 2, *, b: int, e: int = 5, f: Any = print) -> None: ...

    assert list(compared("(a, b, c=1, *, d, e, f=…, g=None)", ours)) == ["b@", "c=2", "c@", "-d", "e?", "-g"]
    assert list(compared("(a, *, b=1)", ours)) == ["b!", "+c", "+e", "+f"]
