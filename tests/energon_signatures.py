"""Compares our signatures with those of Megatron-Energon, in tokens.

* `-name`: an argument, method or attribute that Energon has and we lack; `+name`: an extra argument;
* `name=…`: another default (`…` is a default that is not a literal);
* `name?`: required in Energon only; `name!`: required in ours only; `name@`: at another place, so pass it by name.

Names of classes are their constructors; a method that both have and that differs is `Class.method`. A difference that a
class inherits from another class of the list is listed there. `interop/list_energon_signatures.py` made the fixture.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = FIXTURES / "energon_names.txt"  # `module name` a line, of Energon 7.4.1
SIGNATURES = FIXTURES / "energon_signatures.txt"
ADAPTER = bool(importlib.util.find_spec("energon_grain_torch") and importlib.util.find_spec("torch"))
BACKENDS = ("energon_grain", "energon_grain_torch") if ADAPTER else ("energon_grain",)
OTHER = "…"
Tokens = dict[str, list[str]]


def energon_names() -> set[str]:
    return {line.split()[1] for line in NAMES.read_text().splitlines()}


def energon_signatures() -> dict[str, str]:
    """The parameters of functions, constructors and methods, in their brackets; "" for a property."""
    lines = SIGNATURES.read_text().splitlines()
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


def all_differences(backend: str, same_names: Iterable[str]) -> dict[str, set[str]]:
    """The tokens of the names that both have, without those that a class inherits from another of these names."""
    module, signatures, names = importlib.import_module(backend), energon_signatures(), set(same_names)
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
