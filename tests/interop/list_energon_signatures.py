"""Print the signatures of Megatron-Energon's public names, `name(parameters)` a line, sorted. Imports none of it.

    pip download --no-deps megatron-energon==7.4.1 && unzip megatron_energon-7.4.1-*.whl
    python tests/interop/list_energon_signatures.py megatron > tests/fixtures/energon_signatures.txt

The names are those of `energon_names.txt`. A class has the signature of its constructor, and `Class.method(…)` lines
for the public methods that it defines or inherits. Annotations are left out; a default that is no literal is `…`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

NAMES = Path(__file__).parents[1] / "fixtures" / "energon_names.txt"
ROOT = Path(sys.argv[1]) if __name__ == "__main__" else Path()
Found = tuple[str, ast.AST]
"""A module, and what it defines."""


@cache
def tree_of(module: str) -> ast.Module | None:
    base = ROOT.joinpath(*module.split(".")[1:])
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if module.startswith("megatron.") and path.is_file():
            return ast.parse(path.read_text(encoding="utf-8"))
    return None


def find(module: str, name: str) -> Found | None:
    """Where a name of a module is defined, through imports."""
    tree = tree_of(module)
    for node in tree.body if tree is not None else ():
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return find(node.module, alias.name)
    return None


def bases(module: str, node: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
    """The classes that a class is derived from, nearest first, as far as they are Energon's."""
    for base in node.bases:
        plain = base.value if isinstance(base, ast.Subscript) else base
        found = find(module, plain.id) if isinstance(plain, ast.Name) else None
        if found is not None and isinstance(found[1], ast.ClassDef):
            yield found[0], found[1]
            yield from bases(found[0], found[1])


def method(node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == name), None)


def default(value: ast.expr | None) -> str:
    if value is None:
        return ""
    try:
        return f"={ast.literal_eval(value)!r}"
    except ValueError:
        return "=…"


def parameters(function: ast.FunctionDef, *, bound: bool) -> str:
    arguments = function.args
    before = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(before) - len(arguments.defaults)) + list(arguments.defaults)
    parts = [each.arg + default(value) for each, value in zip(before, defaults, strict=True)]
    if bound:
        parts = parts[1:]
    if arguments.vararg is not None:
        parts.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += [
        each.arg + default(value) for each, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg is not None:
        parts.append(f"**{arguments.kwarg.arg}")
    return ", ".join(parts)


def decorators(node: ast.ClassDef | ast.FunctionDef) -> dict[str, ast.expr]:
    calls = {each: each.func if isinstance(each, ast.Call) else each for each in node.decorator_list}
    return {name.id: each for each, name in calls.items() if isinstance(name, ast.Name)}


def fields(module: str, node: ast.ClassDef) -> dict[str, tuple[str, bool]]:
    """Default, and whether it is keyword-only, of the fields of a dataclass, with those of its bases."""
    found: dict[str, tuple[str, bool]] = {}
    for base in reversed(list(bases(module, node))):
        found.update(fields(*base))
    named = decorators(node)
    if not {"dataclass", "edataclass"} & named.keys():
        return found
    keyword_only = "edataclass" in named or "kw_only=True" in ast.unparse(named["dataclass"])
    for each in node.body:
        if not isinstance(each, ast.AnnAssign) or not isinstance(each.target, ast.Name):
            continue
        if "ClassVar" in ast.unparse(each.annotation):
            continue
        value = each.value
        text = default(value)
        if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("field"):
            options = {option.arg: option.value for option in value.keywords}
            if "init" in options and not ast.literal_eval(options["init"]):
                continue
            text = default(options.get("default")) or ("=…" if "default_factory" in options else "")
        found[each.target.id] = (text, keyword_only)
    return found


def constructor(module: str, node: ast.ClassDef) -> str | None:
    """The parameters of a class's constructor; None where it has none of its own."""
    for where, each in ((module, node), *bases(module, node)):
        own = method(each, "__init__")
        if own is not None:
            return parameters(own, bound=True)
        if {"dataclass", "edataclass"} & decorators(each).keys():
            known = fields(where, each)
            plain = [name + text for name, (text, keyword_only) in known.items() if not keyword_only]
            named = [name + text for name, (text, keyword_only) in known.items() if keyword_only]
            return ", ".join([*plain, *(["*"] if named else []), *named])
    return None


def methods(module: str, node: ast.ClassDef) -> dict[str, str]:
    """The parameters of the public methods of a class; properties have none."""
    found: dict[str, str] = {}
    for _, each in reversed(((module, node), *bases(module, node))):
        for own in each.body:
            if isinstance(own, ast.FunctionDef) and not own.name.startswith("_"):
                marks = decorators(own)
                if any(ast.unparse(mark).endswith((".setter", ".deleter")) for mark in own.decorator_list):
                    continue
                is_property = bool({"property", "cached_property"} & marks.keys())
                text = f"({parameters(own, bound='staticmethod' not in marks)})"
                found[own.name] = "" if is_property else text
    return found


def lines() -> Iterator[str]:
    for line in NAMES.read_text().splitlines():
        module, name = line.split()
        found = find(module, name)
        if found is None:
            continue
        where, node = found
        if isinstance(node, ast.FunctionDef):
            yield f"{name}({parameters(node, bound=False)})"
        elif isinstance(node, ast.ClassDef):
            made = constructor(where, node)
            if made is not None:
                yield f"{name}({made})"
            for called, text in methods(where, node).items():
                yield f"{name}.{called}{text}"


if __name__ == "__main__":
    print("\n".join(sorted(set(lines()))))
