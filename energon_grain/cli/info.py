"""`energon-grain info`: what a dataset or a metadataset holds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt
import typer

from energon_grain.cli.own_modules import own_modules
from energon_grain.cli.print_json import print_json
from energon_grain.cli.sizes import counted, format_bytes
from energon_grain.errors import ConfigError
from energon_grain.formats.file_ending import METADATASET_ENDINGS, is_file_of
from energon_grain.samplers.share_tree import RUN
from energon_grain.storage.location import located
from energon_grain.stream.composition import Composition, composition
from energon_grain.stream.mixture_summary import MILLION, MixtureSummary, NodeSummary, Share
from energon_grain.stream.spec import StreamSpec

if TYPE_CHECKING:
    from energon_grain.prepare.summary import ArraySummary, DatasetSummary, JsonlSummary, SizeBin
    from energon_grain.stream.mixture_summary import MixtureSummary


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


_BAR_WIDTH = 40


def info(
    path: Annotated[
        str, typer.Argument(help="Folder or URL of a dataset or array, a JSONL file, or a metadataset (.yaml).")
    ],
    split_config: Annotated[str | None, typer.Option(help="Name of the split file in .nv-meta.")] = None,
    dataset_config: Annotated[
        str | None, typer.Option(help="Name of the dataset's YAML file in .nv-meta. Default: dataset.yaml.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Of a metadataset: the split. Default: train.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Of a metadataset: draw its composition over steps to this .svg or .png file.")
    ] = None,
    batch_size: Annotated[
        int,
        typer.Option(min=1, help="For --plot: samples in a step of all hosts together. Default: steps are positions."),
    ] = 1,
    steps: Annotated[
        int | None, typer.Option(min=1, help="For --plot: steps to show. Default: an epoch, or all of a schedule.")
    ] = None,
    seed: Annotated[int, typer.Option(help="For --plot: seed of the run.")] = 0,
    lanes: Annotated[int | None, typer.Option(min=1, help="For --plot: lanes of the run, if they were given.")] = None,
    trust_module: Annotated[
        list[str] | None, typer.Option(help="Of a metadataset: module whose sample types may be imported. Repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a dataset or a metadataset holds, without reading tars.

    Of a dataset: shards, samples, parts, splits, sample type and sizes. Of a metadataset: its tree, with each dataset's
    size, its weight or repetitions, the share of the stream that it gets, and how often its samples are seen.
    """
    path = located(path)
    if is_file_of(path, METADATASET_ENDINGS):
        if split_config is not None or dataset_config is not None:
            raise ConfigError(f"{path} is a metadataset, which names its datasets' --split-config and --dataset-config")
        summary, lines = _mixture(
            path, split or "train", seed, lanes, own_modules(trust_module), plot, batch_size, steps
        )
    else:
        if split is not None or plot is not None:
            raise ConfigError(f"{path} is no metadataset (.yaml): --split and --plot are for those")
        summary, lines = _dataset(path, split_config, dataset_config)
    if as_json:
        print_json(summary)
    else:
        for line in lines:
            typer.echo(line)


def _dataset(
    path: str, split_config: str | None, dataset_config: str | None
) -> tuple[DatasetSummary | JsonlSummary | ArraySummary, list[str]]:
    if is_file_of(path, ".jsonl"):
        from energon_grain.prepare.summary import summarize_jsonl

        if split_config is not None or dataset_config is not None:
            raise ConfigError(f"{path}: a JSONL file has neither --split-config nor --dataset-config")
        found = summarize_jsonl(path)
        samples = f"  {counted(found.samples, 'sample')}, {format_bytes(found.size_bytes)}"
        kind = "  samples are plain dicts, to be cooked by the program (crude); their one part is json"
        return found, [found.path, samples, kind, "", *_histogram(found.sizes)]
    from energon_grain.formats.data_folder import kind_at
    from energon_grain.formats.nv_meta import DatasetKind

    if kind_at(path) is DatasetKind.ARRAY:
        from energon_grain.prepare.summary import summarize_arrays

        if split_config is not None or dataset_config is not None:
            raise ConfigError(f"{path}: an array has neither --split-config nor --dataset-config")
        arrays = summarize_arrays(path)
        return arrays, _lines_of_arrays(arrays)
    from energon_grain.prepare.summary import summarize_dataset

    summary = summarize_dataset(path, split_config=split_config, dataset_config=dataset_config or "dataset.yaml")
    return summary, _lines(summary)


def _mixture(
    path: str,
    split: str,
    seed: int,
    lanes: int | None,
    trusted_modules: Sequence[str],
    plot: Path | None,
    batch_size: int,
    steps: int | None,
) -> tuple[MixtureSummary, list[str]]:
    from energon_grain.cli.info import mixture_lines
    from energon_grain.stream.mixture_summary import summarize_mixture

    if plot is not None:
        from energon_grain.cli.info import check_ending

        check_ending(plot)
    summary, spec = summarize_mixture(path, split=split, seed=seed, lanes=lanes, trusted_modules=trusted_modules)
    lines = mixture_lines(summary)
    if plot is not None:
        from energon_grain.cli.info import write_plot

        write_plot(plot, summary, spec, batch_size=batch_size, steps=steps)
        lines += ["", f"Wrote {plot}."]
    return summary, lines


def _lines(summary: DatasetSummary) -> list[str]:
    tags = ", ".join(f"{name}={value}" for name, value in summary.subflavors.items())
    files = "tar files" if summary.records is None else f"ArrayRecord files ({summary.records})"
    lines = [
        f"{summary.path}",
        f"  {counted(summary.samples, 'sample')} in {counted(summary.shards, 'shard')}, "
        f"{format_bytes(summary.shard_bytes)} of {files} "
        f"({format_bytes(summary.payload_bytes)} of payload)",
        f"  format: energon {summary.energon_version or 'unknown'}, uuid {summary.uuid or 'none'}, "
        f"{'with' if summary.has_sqlite else 'no'} index.sqlite",
        f"  samples are {_sample_type(summary)}" + (f", tagged {tags}" if tags else ""),
        *(f"    {field}: {expression}" for field, expression in summary.field_map.items()),
        "",
        "Splits" if summary.splits else "No splits.",
    ]
    for name, split in summary.splits.items():
        share = split.samples / summary.samples if summary.samples else 0.0
        excluded = f", {split.excluded_samples:,} of them excluded" if split.excluded_samples else ""
        lines.append(
            f"  {name:16} {split.samples:>14,} samples {share:7.1%}  in {counted(split.shards, 'shard')}{excluded}"
        )
    lines += ["", "Parts"]
    for name, part in summary.parts.items():
        mean = format_bytes(part.total_bytes / part.count)
        extent = f"{format_bytes(part.smallest_bytes)} to {format_bytes(part.largest_bytes)}"
        lines.append(
            f"  {name:16} {part.count:>14,} files   {format_bytes(part.total_bytes):>8}  mean {mean} ({extent})"
        )
    return [*lines, "", *_histogram(summary.sizes)]


def _lines_of_arrays(summary: ArraySummary) -> list[str]:
    lines = [
        summary.path,
        f"  {counted(summary.samples, 'sample')}, {format_bytes(summary.size_bytes)} of rows, not compressed",
        "  samples are plain dicts, to be cooked by the program (crude); their parts are rows of arrays",
        "",
        "Parts",
    ]
    for name, array in summary.arrays.items():
        form = f"{array.type}{list(array.row_shape)}"
        lines.append(
            f"  {name:16} {form:20} {format_bytes(array.row_bytes):>8}  in chunks of {array.chunk_rows:,} rows"
        )
    return lines


def _histogram(sizes: Sequence[SizeBin]) -> list[str]:
    lines = ["Sample sizes"]
    most = max((size.samples for size in sizes), default=0)
    for size in sizes:
        extent = f"{_power(size.from_bytes)} to {_power(size.below_bytes)}"
        bar = "█" * max(round(size.samples / most * _BAR_WIDTH), int(size.samples > 0))
        lines.append(f"  {extent:20} {size.samples:>10,}  {bar}".rstrip())
    return lines


def _sample_type(summary: DatasetSummary) -> str:
    if summary.kind == "none":
        return "of no type yet (no dataset.yaml)"
    if summary.kind == "crude":
        return "plain dicts, to be cooked by the program (crude)"
    return f"{summary.sample_type}" + (" (custom class)" if summary.kind == "custom" else "")


def _power(size_bytes: int) -> str:
    """Write a power of two in binary units: 1024 is `1 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size_bytes < 1024 or unit == "TiB":
            return f"{size_bytes} {unit}"
        size_bytes //= 1024
    raise AssertionError
