"""A mixture as text and as a picture: its tree with shares, and its composition over steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Literal
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt

from energon_grain.cli.mixture_summary import MILLION, Composition, MixtureSummary, NodeSummary, Share, composition
from energon_grain.cli.sizes import counted
from energon_grain.errors import ConfigError
from energon_grain.samplers.share_tree import RUN
from energon_grain.stream.spec import StreamSpec

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Area:
    """A filled polygon."""

    points: tuple[Point, ...]
    color: str
    title: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A thin line, dashed or not."""

    start: Point
    end: Point
    color: str
    dashed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """A line of text; `at` is the left, middle or right end of its baseline."""

    at: Point
    text: str
    color: str
    size: int = 12
    anchor: Literal["start", "middle", "end"] = "start"


@dataclass(kw_only=True, slots=True)
class Picture:
    """Shapes on a white ground, in pixels from the top left corner, later ones over earlier ones."""

    width: int
    height: int
    title: str
    shapes: list[Area | Line | Label] = field(default_factory=list[Area | Line | Label])

    def svg(self) -> str:
        """The picture as SVG, the same text for the same shapes."""
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
            f'viewBox="0 0 {self.width} {self.height}" role="img" font-family="sans-serif">',
            f"<title>{escape(self.title)}</title>",
            f'<rect width="{self.width}" height="{self.height}" fill="#ffffff"/>',
            *map(_element, self.shapes),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"

    def png(self) -> bytes:
        """The picture as PNG, with two dots for each pixel."""
        from PIL import Image, ImageDraw, ImageFont

        scale = 2
        image = Image.new("RGB", (self.width * scale, self.height * scale), "#ffffff")
        draw = ImageDraw.Draw(image)
        for shape in self.shapes:
            match shape:
                case Area():
                    draw.polygon([(x * scale, y * scale) for x, y in shape.points], fill=shape.color)
                case Line():
                    for start, end in _dashes(shape):
                        draw.line([(x * scale, y * scale) for x, y in (start, end)], fill=shape.color, width=scale)
                case Label():
                    font = ImageFont.load_default(shape.size * scale)
                    anchor = {"start": "ls", "middle": "ms", "end": "rs"}[shape.anchor]
                    place = (shape.at[0] * scale, shape.at[1] * scale)
                    draw.text(place, shape.text, fill=shape.color, font=font, anchor=anchor)
        target = BytesIO()
        image.save(target, "PNG")
        return target.getvalue()


def _element(shape: Area | Line | Label) -> str:
    match shape:
        case Area():
            points = " ".join(f"{x:.2f},{y:.2f}" for x, y in shape.points)
            return f'<polygon points="{points}" fill="{shape.color}"><title>{escape(shape.title)}</title></polygon>'
        case Line():
            (x1, y1), (x2, y2) = shape.start, shape.end
            dashes = ' stroke-dasharray="4 3"' if shape.dashed else ""
            return f'<line x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}" stroke="{shape.color}"{dashes}/>'
        case Label():
            x, y = shape.at
            return (
                f'<text x="{x:.2f}" y="{y:.2f}" font-size="{shape.size}" fill="{shape.color}" '
                f'text-anchor="{shape.anchor}">{escape(shape.text)}</text>'
            )


def _dashes(line: Line) -> list[tuple[Point, Point]]:
    """The line, or its dashes of 4 pixels with 3 between them."""
    if not line.dashed:
        return [(line.start, line.end)]
    (x1, y1), (x2, y2) = line.start, line.end
    length = max(abs(x2 - x1), abs(y2 - y1), 1.0)

    def at(distance: float) -> Point:
        part = min(distance / length, 1.0)
        return x1 + (x2 - x1) * part, y1 + (y2 - y1) * part

    return [(at(7.0 * number), at(7.0 * number + 4)) for number in range(int(length // 7) + 1)]


ENDINGS = (".svg", ".png")
WINDOWS = 200
LEAST = 40_000
"""Positions of an endless blend that are shown at least."""
_COLORS = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#44bb99", "#882255", "#999933",
)  # fmt: skip
_OTHERS = "#bbbbbb"
_INK, _MUTED = "#222222", "#555555"
_LEFT, _TOP, _PLOT_WIDTH, _PLOT_HEIGHT = 56, 56, 640, 300
_LEGEND = _LEFT + _PLOT_WIDTH + 24
_LABEL_LETTERS = 34


def check_ending(file: Path) -> None:
    """Check that a plot can be written to a file of this name.

    Raises:
        ConfigError: It ends neither in .svg nor in .png.
    """
    if file.suffix.lower() not in ENDINGS:
        raise ConfigError(f"--plot {file}: a file that ends in {' or '.join(ENDINGS)} is meant")


def write_plot(
    file: Path, summary: MixtureSummary, spec: StreamSpec, *, batch_size: int = 1, steps: int | None = None
) -> None:
    """Count the order of a mixture and draw it.

    Args:
        file: Where to; its ending says as what.
        summary: The mixture.
        spec: Its order.
        batch_size: Positions of a step.
        steps: How many to show; default: an epoch, or enough to see the last step of a schedule.

    Raises:
        ConfigError: The file cannot be written.
    """
    check_ending(file)
    positions = steps * batch_size if steps is not None else default_positions(summary)
    windows = max(min(positions, 40), min(positions // (RUN * spec.lanes), WINDOWS))
    counted = composition(spec.order, leaves=len(summary.leaves), positions=positions, windows=windows)
    picture = draw(summary, counted, batch_size=batch_size)
    content = picture.svg().encode() if file.suffix.lower() == ".svg" else picture.png()
    try:
        file.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"--plot {file}: cannot be written: {error.strerror}") from error


def default_positions(summary: MixtureSummary) -> int:
    """An epoch; of an endless blend as much as shows all of a schedule, and two turns of what is concatenated."""
    if summary.epoch_positions is not None:
        return summary.epoch_positions
    turns = [
        2 * math.ceil(node.samples / node.shares[-1].share)
        for node in _nodes(summary)
        if node.kind == "concat" and node.shares[-1].share
    ]
    return max(LEAST, 2 * max(summary.changes, default=0), *turns)


def draw(summary: MixtureSummary, counted: Composition, *, batch_size: int) -> Picture:
    """Draw the shares as a stack of areas, one for each dataset, the first one on top as in the legend."""
    groups = _groups(counted.counts.sum(axis=0))
    steps = int(counted.edges[-1]) / batch_size
    unit = "positions" if batch_size == 1 else f"steps of {batch_size:,} samples"
    title = f"{Path(summary.path).name}, {summary.split}: the first {steps:,.0f} {unit}"
    picture = Picture(width=_LEGEND + 260, height=_TOP + _PLOT_HEIGHT + 64, title=title)
    bottom = _TOP + _PLOT_HEIGHT
    x = _LEFT + _PLOT_WIDTH * counted.edges / counted.edges[-1]
    above = np.zeros(len(counted.counts))
    total = counted.counts.sum()
    for number, group in enumerate(groups):
        color = _COLORS[number] if len(group) == 1 else _OTHERS
        label = summary.leaves[group[0]].label if len(group) == 1 else f"{len(group)} others"
        below = above + counted.shares[:, group].sum(axis=1)
        if number == len(groups) - 1:
            below = np.ones_like(below)  # whatever was rounded on the way
        share = counted.counts[:, group].sum() / total
        for first, last in _present(counted.counts[:, group].sum(axis=1)):
            upper = _steps(x[first : last + 1], _TOP + _PLOT_HEIGHT * above[first:last])
            lower = _steps(x[first : last + 1], _TOP + _PLOT_HEIGHT * below[first:last])
            picture.shapes.append(Area(points=upper + lower[::-1], color=color, title=f"{label}: {share:.1%}"))
        y = _TOP + 20 * number
        square = ((_LEGEND, y), (_LEGEND + 12, y), (_LEGEND + 12, y + 12), (_LEGEND, y + 12))
        picture.shapes.append(Area(points=square, color=color, title=label))
        picture.shapes.append(Label(at=(_LEGEND + 68, y + 10), text=f"{share:.1%}", color=_MUTED, anchor="end"))
        picture.shapes.append(Label(at=(_LEGEND + 76, y + 10), text=_cut(label), color=_INK))
        above = below
    picture.shapes.append(Line(start=(_LEFT, bottom), end=(_LEFT + _PLOT_WIDTH, bottom), color=_MUTED))
    for number in range(5):
        y = bottom - _PLOT_HEIGHT * number / 4
        picture.shapes.append(Line(start=(_LEFT - 4, y), end=(_LEFT, y), color=_MUTED))
        picture.shapes.append(Label(at=(_LEFT - 8, y + 4), text=f"{number * 25}%", color=_MUTED, anchor="end"))
    for tick in _ticks(steps):
        across = _LEFT + _PLOT_WIDTH * tick / steps
        picture.shapes.append(Line(start=(across, bottom), end=(across, bottom + 4), color=_MUTED))
        picture.shapes.append(Label(at=(across, bottom + 18), text=f"{tick:,}", color=_MUTED, anchor="middle"))
    for change in summary.changes:
        if change < counted.edges[-1]:
            across = _LEFT + _PLOT_WIDTH * change / int(counted.edges[-1])
            picture.shapes.append(Line(start=(across, _TOP - 6), end=(across, bottom), color=_INK, dashed=True))
    window = counted.edges[-1] / len(counted.counts)
    how = f"counted in windows of {window:,.0f}"
    if counted.counted < counted.edges[-1]:
        how += f", {counted.counted / counted.edges[-1]:.2g} of them looked at"
    middle = _LEFT + _PLOT_WIDTH / 2
    picture.shapes += [
        Label(at=(middle, bottom + 38), text=unit, color=_INK, anchor="middle"),
        Label(at=(_LEFT, 24), text=title, color=_INK, size=15),
        Label(at=(_LEFT, 42), text=f"share of positions, {how}", color=_MUTED),
    ]
    return picture


def _nodes(summary: MixtureSummary) -> list[NodeSummary]:
    found = [summary.tree]
    for node in found:
        found.extend(node.children)
    return found


def _groups(totals: npt.NDArray[np.int64]) -> list[list[int]]:
    """Each leaf by itself; of many, the largest, and one group of the others. In document order."""
    if len(totals) <= len(_COLORS):
        return [[number] for number in range(len(totals))]
    alone = sorted(np.argsort(-totals, kind="stable")[: len(_COLORS)].tolist())
    return [*([number] for number in alone), sorted(set(range(len(totals))) - set(alone))]


def _present(counts: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Runs of windows, (first, one past the last), that are not 0."""
    here = np.concatenate([[False], counts > 0, [False]])
    edges = np.flatnonzero(here[1:] != here[:-1]).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def _steps(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> tuple[tuple[float, float], ...]:
    """A line of level pieces: `y` (n,) between the edges `x` (n + 1,)."""
    across = np.repeat(x, 2)[1:-1]
    return tuple(zip(across.tolist(), np.repeat(y, 2).tolist(), strict=True))


def _ticks(steps: float) -> Sequence[int]:
    """Up to seven round numbers from 0 on."""
    rough = max(steps / 6, 1)
    power = 10 ** math.floor(math.log10(rough))
    apart = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return range(0, math.floor(steps) + 1, apart)


def _cut(label: str) -> str:
    return label if len(label) <= _LABEL_LETTERS else "…" + label[1 - _LABEL_LETTERS :]


def mixture_lines(summary: MixtureSummary) -> list[str]:
    """Lay out a summary as a table with the tree in its first column."""
    said = "repetitions" if summary.tree.kind == "blend_epochized" else "weight"
    seen = f"seen in {MILLION:,}" if summary.endless else "seen per epoch"
    rows: list[tuple[str, ...]] = [("", "samples", said, "share", seen), *_rows(summary, summary.tree, "", "")]
    if not any(row[2] for row in rows[1:]):
        rows = [(*row[:2], *row[3:]) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"{summary.path}, split {summary.split}: {_length(summary)}", ""]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))]
        lines.append(("  " + "  ".join(cells)).rstrip())
    if summary.changes:
        lines += ["", f"Shares change at position {', '.join(f'{start:,}' for start in summary.changes)}."]
    if any(leaf.subflavors for leaf in summary.leaves):
        lines += ["", "Subflavors"]
        for leaf in summary.leaves:
            tags = ", ".join(f"{name}={value}" for name, value in leaf.subflavors.items())
            lines += [f"  {leaf.label}: {tags}"] if tags else []
    return lines


def _length(summary: MixtureSummary) -> str:
    datasets = f"{counted(len(summary.leaves), 'dataset')}, {counted(summary.samples, 'sample')}"
    if summary.epoch_positions is None:
        return f"{datasets}, endless"
    return f"{datasets}, {summary.epoch_positions:,} positions an epoch"


def _rows(summary: MixtureSummary, node: NodeSummary, first: str, further: str) -> Iterator[tuple[str, ...]]:
    """Rows of a node and all below it; `first` and `further` are the tree's lines before its label and its children."""
    leaf = None if node.leaf is None else summary.leaves[node.leaf]
    said = _chain([f"{weight:.6g}" for weight in node.weights])
    if node.repetitions is not None:
        said = f"{node.repetitions:.6g}"
    seen = ""
    if leaf is not None and leaf.seen_per_epoch is not None:
        seen = f"{leaf.seen_per_epoch:.6g}"
    elif leaf is not None:
        seen = _chain([f"{times:,.4g}" if times < 1000 else f"{times:,.0f}" for times in leaf.seen_per_million])
    label = node.kind if leaf is None else leaf.label
    yield first + label, f"{node.samples:,}", said, _chain(_percentages(node.shares)), seen
    for number, child in enumerate(node.children):
        last = number == len(node.children) - 1
        yield from _rows(summary, child, further + ("└─ " if last else "├─ "), further + ("   " if last else "│  "))


def _percentages(shares: Sequence[Share]) -> list[str]:
    return [f"{100 * share.share:.4g}%" for share in shares]


def _chain(texts: Sequence[str]) -> str:
    """What changes along the stream: the first, and the last after `…` where there are many."""
    shown = [*texts[:2], "…", texts[-1]] if len(texts) > 4 else texts
    return " → ".join(shown)
