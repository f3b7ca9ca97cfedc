"""The shape of the product: size, complexity, import cycles, and how far the kinds of data reach.

    python tests/shape.py            print the figures beside their bounds; exit 1 where one is exceeded (`make check`)
    python tests/shape.py --worst    also list what counts: functions, cycles, imports out of the kernel, files
    python tests/shape.py --record   lower the bounds in shape.json to today's figures; a bound never rises

Definitions:

* *Complexity* is McCabe's: one, plus one for each branch, loop, handler, comprehension, comprehension condition and
  further operand of `and` and `or`. Nested functions count by themselves.
* *Cycles* are strongly connected modules; imports inside functions count, imports for type checkers do not.
* The *kernel* is the packages in `KERNEL`. It imports nothing else of the product.
* A file *names a kind* of data where its code (identifiers, imports and strings without spaces; no docstrings, messages
  or comments) holds one of the words in `KINDS` outside the kind's own package. Two files may: `kinds/__init__.py` is
  the list of our kinds, by which everything else finds them, and `extras.py` repeats the extras of `pyproject.toml`
  by the packages that they bring, some of which several kinds import (pyarrow also decompresses `.jsonl.zst`).
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
RECORDED = Path(__file__).with_name("shape.json")
TOPS = {
    "energon_grain": REPOSITORY / "energon_grain",
    "energon_grain_torch": REPOSITORY / "adapters/energon_grain_torch",
}
KERNEL = (
    *("errors", "forms", "lazy_names", "extras", "_version"),
    *("samplers", "samples", "storage", "transforms", "sources", "stream", "datasets"),
)
MAY_NAME_KINDS = ("energon_grain.kinds.own", "energon_grain.extras")
# Package below `energon_grain.kinds` to the words that are its own. Words that only look like these are left out:
# `narrow`, `TarRows`, the library `pyarrow`, Energon's `mds_path` (of a metadataset) and `CrudeJsonlDatasetFactory` (a
# public name, of a class that asks the kind), and `web_identity_token_file` (of AWS).
KINDS = {
    "jsonl": r"jsonl(?!datasetfactory)",
    "array_record": r"array_?record",
    "tables": r"parquet|(?<![nt])(?<!py)arrow|\bmds\b|mds_(?!path)",
    "arrays": r"zarr|array_?source|is_array",
    "tokens": r"token_?source|(?<!identity_)token_?file",
    "tar": r"bare_?tars?|tar_?list|web_?dataset_?source",
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    """A file of the product.

    Attributes:
        path: Its path.
        tree: Its syntax tree.
        early: Modules of the product that it imports outside functions.
        late: Those that it imports inside functions.
        late_imports: Number of names that are imported inside functions.
        for_types: Those that it imports for type checkers alone.
    """

    path: Path
    tree: ast.Module
    early: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)
    late_imports: int = 0
    for_types: set[str] = field(default_factory=set)


@functools.cache
def modules() -> dict[str, Module]:
    """By dotted name; a package stands for its `__init__.py`."""
    found: dict[str, Module] = {}
    for top, folder in TOPS.items():
        for path in folder.rglob("*.py"):
            parts = [top, *path.relative_to(folder).with_suffix("").parts]
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = Module(path, ast.parse(path.read_text(encoding="utf-8")))
    for name, module in found.items():
        for target, how in _imports(module.tree, "early"):
            known = _module_of(target, found)
            if known is None or known == name:
                continue
            getattr(module, how).add(known)
            module.late_imports += how == "late"
    return found


def _imports(node: ast.AST, how: str) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield from _imports(child, "late")
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            for each in child.body:
                yield from ((target, "for_types") for target in imported(each))
            for each in child.orelse:
                yield from _imports(ast.Module([each], []), how)
        else:
            yield from ((target, how) for target in imported(child))
            yield from _imports(child, how)


def imported(node: ast.AST) -> Iterable[str]:
    """The dotted names that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def _module_of(target: str, known: dict[str, Module]) -> str | None:
    while target and target not in known:
        target = target.rpartition(".")[0]
    return target or None


def package(module: str) -> str:
    """The package of a module: `stream` of `energon_grain.stream.steps`, "" of the top."""
    top, _, rest = module.partition(".")
    return rest.partition(".")[0] if top == "energon_grain" else top


def complexity(function: Function) -> int:
    """McCabe's number of a function, nested functions and classes left out."""
    count, left = 1, list(ast.iter_child_nodes(function))
    while left:
        node = left.pop()
        if isinstance(node, Function | ast.ClassDef):
            continue
        if isinstance(
            node, ast.If | ast.For | ast.AsyncFor | ast.While | ast.IfExp | ast.ExceptHandler | ast.match_case
        ):
            count += 1
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
        left.extend(ast.iter_child_nodes(node))
    return count


def functions() -> dict[str, int]:
    """Complexity by `path:line name`."""
    return {
        f"{module.path.relative_to(REPOSITORY)}:{node.lineno} {node.name}": complexity(node)
        for module in modules().values()
        for node in ast.walk(module.tree)
        if isinstance(node, Function)
    }


def cycles(late: bool = True) -> list[list[str]]:
    """Groups of modules that import each other, directly or through others (Tarjan's algorithm)."""
    edges = {name: sorted((each.early | each.late) if late else each.early) for name, each in modules().items()}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in edges[name]:
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[-len(group) :]
            if len(group) > 1:
                found.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for name in edges:
        if name not in index:
            visit(name)
    return found


def out_of_the_kernel() -> list[str]:
    """`a -> b` for each import of a module of the kernel from outside it."""
    return sorted(
        f"{name} -> {target}"
        for name, module in modules().items()
        if package(name) in KERNEL
        for target in module.early | module.late
        if package(target) not in (*KERNEL, "")
    )


def kinds_named() -> list[str]:
    """`path: kind, kind` for each file that names kinds outside their packages."""
    found: list[str] = []
    for name, module in modules().items():
        words = " ".join(_words(module.tree)).lower()
        kinds = [
            kind
            for kind, pattern in KINDS.items()
            if not name.startswith(f"energon_grain.kinds.{kind}")
            and name not in MAY_NAME_KINDS
            and re.search(pattern, words)
        ]
        if kinds:
            found.append(f"{module.path.relative_to(REPOSITORY)}: {', '.join(kinds)}")
    return sorted(found)


def _words(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        yield from imported(node)
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.keyword(arg=str(word)) | ast.arg(arg=word):
                yield word
            case ast.FunctionDef(name=word) | ast.ClassDef(name=word):
                yield word
            case ast.Constant(value=str(word)) if word and not re.search(r"\s", word):
                yield word
            case _:
                pass


def lines(name: str) -> int:
    """Lines of a module, docstrings and blank ones too; not the line that names the licence."""
    text = modules()[name].path.read_text(encoding="utf-8")
    return text.count("\n") - text.startswith("# SPDX-License-Identifier")


def figures() -> dict[str, float]:
    """What the bounds hold, by name."""
    numbers = list(functions().values())
    return {
        "functions with a complexity above 20": sum(each > 20 for each in numbers),
        "functions with a complexity above 10, in %": round(100 * sum(each > 10 for each in numbers) / len(numbers), 2),
        "cycles of imports": len(cycles()),
        "imports out of the kernel": len(out_of_the_kernel()),
        "imports of the product inside functions": sum(module.late_imports for module in modules().values()),
        "files that name a kind outside its package": len(kinds_named()),
        "lines of the kernel": sum(lines(name) for name in modules() if package(name) in KERNEL),
    }


def main() -> int:
    """Print, compare or record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--record", action="store_true", help="lower the bounds to today's figures")
    parser.add_argument("--worst", action="store_true", help="list what counts")
    asked = parser.parse_args()
    bounds: dict[str, float] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    now = figures()
    if asked.record:
        bounds = {name: min(figure, bounds.get(name, figure)) for name, figure in now.items()}
        RECORDED.write_text(json.dumps(bounds, indent=1) + "\n")
    for name, figure in now.items():
        print(f"{figure:>10,} of at most {bounds.get(name, 0):>10,}  {name}")
    print(f"{sum(map(lines, modules())):>10,} without a bound       lines of the product")
    if asked.worst:
        complex_ = sorted(((number, where) for where, number in functions().items() if number > 10), reverse=True)
        print(*(f"{number:>4}  {where}" for number, where in complex_), sep="\n")
        print(*(" <-> ".join(cycle) for cycle in cycles()), *out_of_the_kernel(), *kinds_named(), sep="\n")
    exceeded = [name for name, figure in now.items() if figure > bounds.get(name, 0)]
    for name in exceeded:
        print(f"{name}: {now[name]:,}, at most {bounds.get(name, 0):,} allowed; --worst lists them", file=sys.stderr)
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
