"""Draws the packages of the product from their imports: the kernel by layers, and which extensions use which others.

    python tests/draw_packages.py      writes docs/images/packages.svg, which docs/architecture.md shows

A box has the name of a package, what it is (the first line of its docstring, to the first comma, colon or full stop)
and, for extensions, which others it imports. Boxes of the kernel import only what is further down. `tests/docs`
compares the picture with the imports, so it cannot become stale.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from html import escape
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import shape

PICTURE = shape.REPOSITORY / "docs" / "images" / "packages.svg"
WIDTH, MARGIN, GAP, HEIGHT, PER_ROW = 800, 20, 10, 48, 3
KINDS = "kinds"


@functools.cache
def packages() -> dict[str, set[str]]:
    """Package to the others that it imports, single modules left out; each kind of data stands for itself."""
    found: dict[str, set[str]] = {}
    for name, module in shape.modules().items():
        if (own := _package(name)) is not None:
            used = found.setdefault(own, set())
            used |= {other for target in module.early | module.late if (other := _package(target)) not in (None, own)}
    return found


def _package(module: str) -> str | None:
    name = shape.package(module)
    if name == KINDS:
        name = "/".join(module.split(".")[1:3])
    folder = shape.TOPS.get(name, shape.TOPS["energon_grain"] / name)
    return name if (folder / "__init__.py").exists() and name not in ("", KINDS) else None


def layers() -> list[list[str]]:
    """The packages of the kernel; each layer imports only those behind it. Two that use each other are in one."""
    kernel = {name: used & set(shape.KERNEL) for name, used in packages().items() if name in shape.KERNEL}
    for name in kernel:  # also what is used through others
        while (more := set[str]().union(*(kernel.get(other, set()) for other in kernel[name]))) - kernel[name]:
            kernel[name] |= more
    found: list[list[str]] = []
    while kernel:
        layer = sorted(name for name in kernel if all(name in kernel[used] for used in kernel[name] & set(kernel)))
        found.insert(0, layer)
        kernel = {name: used for name, used in kernel.items() if name not in layer}
    return found


def what_it_is(name: str) -> str:
    """The beginning of the docstring of a package, fit for a box."""
    folder = shape.TOPS.get(name, shape.TOPS["energon_grain"] / name)
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    return re.split(r"[,:;.](?:\s|$)", text.partition("\n")[0])[0]


def draw() -> str:
    """The picture, as SVG."""
    extensions = sorted(set(packages()) - set(shape.KERNEL))
    rows = [extensions[at : at + PER_ROW] for at in range(0, len(extensions), PER_ROW)]
    boxes, y = [_text(MARGIN, 30, "Extensions: each knows the kernel, and the others that its box names", "title")], 42
    for row in rows:
        boxes += _row(row, y, PER_ROW, "#e8eaf6")
        y += HEIGHT + GAP
    boxes.append(_text(MARGIN, y + 24, "The kernel: what is higher imports what is lower, and no extension", "title"))
    y += 36
    for layer in layers():
        boxes += _row(layer, y, len(layer), "#e0f2f1")
        y += HEIGHT + GAP
    style = ".title { font-weight: 600 } .note { fill: #607d8b } .small { font-size: 10px }"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + GAP}" '
    return "\n".join(
        [
            f'{head}font-family="system-ui, sans-serif" font-size="13" fill="#263238" role="img">',
            "<title>The packages of energon_grain: extensions above, the kernel below</title>",
            f"<style>{style}</style>",
            f'<rect width="{WIDTH}" height="{y + GAP}" rx="10" fill="#fff" stroke="#cfd8dc"/>',
            *boxes,
            "</svg>\n",
        ]
    )


def _row(names: list[str], y: int, columns: int, color: str) -> list[str]:
    width = (WIDTH - 2 * MARGIN - (columns - 1) * GAP) / columns
    found: list[str] = []
    for number, name in enumerate(names):
        x = MARGIN + number * (width + GAP)
        others = sorted(other for other in packages()[name] if other not in shape.KERNEL)
        note = f"uses {', '.join(others)}" if others else ""
        found += [
            f'<rect x="{x:g}" y="{y}" width="{width:g}" height="{HEIGHT}" fill="{color}" rx="6" stroke="#cfd8dc"/>',
            _text(x + 8, y + 16, name, "title"),
            _text(x + 8, y + 29, _fitting(what_it_is(name), width), "small"),
            _text(x + 8, y + 41, _fitting(note, width), "note small"),
        ]
    return found


def _fitting(text: str, width: float) -> str:
    most = int((width - 14) / 5.1)
    return text if len(text) <= most else f"{text[: most - 1].rstrip(', ')}…"


def _text(x: float, y: int, text: str, kind: str) -> str:
    return f'<text x="{x:g}" y="{y}" class="{kind}">{escape(text)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
