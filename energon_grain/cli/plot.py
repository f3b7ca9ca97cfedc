# SPDX-License-Identifier: Apache-2.0
"""Plots of `energon-grain info --plot`: a mixture over its steps, and the sizes of samples and parts of a dataset.

**Windows.** The share of a dataset is counted in windows of positions. A blend follows its shares exactly, but in whole
samples: in every run of `RUN` rounds of all lanes, a dataset has its share up to one or two samples per level of the
tree; between the ends of such runs, the count can differ by as many samples as there are lanes. Windows therefore begin
and end with such runs, and hold at least `_UNITS` of them: 4,608 positions with 48 lanes. There a sample is 0.02 %,
less than the plot shows. A window also ends where a schedule changes the shares and where an epoch ends. A mixture that
is shorter than a window is one window. Concatenations need no rounding and are cut as finely as the plot.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from energon_grain.cli.mixture import MixtureSummary, NodeSummary
from energon_grain.errors import ConfigError
from energon_grain.extras import needed_for
from energon_grain.prepare.summary import DatasetSummary, SizeBin
from energon_grain.samplers.share_tree import RUN
from energon_grain.stream.index_map import IndexMap
from energon_grain.stream.spec import StreamSpec
from energon_grain.words import binary_bytes, counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENDINGS = (".svg", ".png", ".pdf")
WINDOWS = 200
_UNITS = 24
_EPOCHS = 3
MAX_DRAWN = 4_000_000
"""Most positions to count, about one second of work; longer ranges are sampled."""
_PIECES = 16
_COLORS = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#44bb99", "#882255", "#999933",
)  # fmt: skip
_OTHERS = "#bbbbbb"
_LABEL_LETTERS = 34
Int64Array = npt.NDArray[np.int64]


def check_file(file: Path) -> None:
    """Check that a plot can be drawn and written to this file.

    Raises ConfigError if the ending is not supported or the folder does not exist, MissingPackageError without
    matplotlib.
    """
    if file.suffix.lower() not in ENDINGS:
        raise ConfigError(f"--plot {file}: expected a file that ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    if not file.absolute().parent.is_dir():
        raise ConfigError(f"--plot {file}: cannot be written: there is no folder {file.absolute().parent}")
    with needed_for("--plot"):
        import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = "energon-grain"  # equal plots have equal bytes
    matplotlib.rcParams["svg.fonttype"] = "none"  # searchable text


def save(figure: Figure, file: Path) -> None:
    """Write a plot in the format of the file's ending. Raises ConfigError if it cannot be written."""
    dated = {".svg": "Date", ".pdf": "CreationDate"}.get(file.suffix.lower())
    try:
        figure.savefig(file, dpi=150, metadata={dated: None} if dated else None)
    except OSError as error:
        raise ConfigError(f"--plot {file}: cannot be written: {error.strerror}") from error


def draw_mixture(summary: MixtureSummary, spec: StreamSpec, *, batch_size: int = 1, steps: int | None = None) -> Figure:
    """Draw the share of every dataset in each window, and the epochs of it that have passed.

    Args:
        summary: The mixture.
        spec: Its order, which is counted.
        batch_size: Positions of a step.
        steps: Steps to show; default: three epochs, or enough to show the last step of a schedule.
    """
    order = spec.order
    positions = steps * batch_size if steps is not None else _default_positions(summary, order, spec.lanes)
    edges = window_edges(summary, order, lanes=spec.lanes, positions=positions)
    counts = count_leaves(order, len(summary.leaves), edges, unit=RUN * spec.lanes)
    shares = counts / counts.sum(axis=1, keepdims=True)
    seen = shares * np.diff(edges)[:, None]
    figure, (above, below) = _axes(2)
    x = edges / batch_size
    base = np.zeros(len(counts))
    for number, group in enumerate(_groups(seen.sum(axis=0))):
        alone = len(group) == 1
        color = _COLORS[number] if alone else _OTHERS
        label = _cut(summary.leaves[group[0]].label) if alone else f"{len(group)} others"
        top = base + shares[:, group].sum(axis=1)
        share = seen[:, group].sum() / positions
        above.stairs(top, x, baseline=base, fill=True, color=color, label=f"{share:6.1%}  {label}", linewidth=0)
        epochs = np.cumsum(seen[:, group].sum(axis=1)) / sum(summary.leaves[leaf].samples for leaf in group)
        below.plot(x, [0.0, *epochs], color=color, label=label)
        base = top
    _mark([above], summary.changes, positions, batch_size, "--")
    _mark([above, below], _starts(order, positions)[1:], positions, batch_size, ":")
    unit = "positions" if batch_size == 1 else f"steps of {batch_size:,} samples"
    above.set(ylim=(0, 1), ylabel="share of the stream", xlim=(0, positions / batch_size))
    above.set_title(f"{Path(summary.path).name}, {summary.split}: the first {positions / batch_size:,.0f} {unit}")
    above.yaxis.set_major_formatter("{x:.0%}")
    longest = int(np.diff(edges).max())
    below.set(xlabel=f"{unit}; shares are counted in windows of up to {longest:,} positions", ylim=(0, None))
    below.set_ylabel("epochs of each dataset")
    below.xaxis.set_major_formatter("{x:,.0f}")
    # The first dataset is at the bottom of the stack, so the legend is reversed.
    above.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, reverse=True)
    return figure


def _mark(panels: Sequence[Axes], places: Iterable[int], positions: int, batch_size: int, style: str) -> None:
    """Draw vertical lines at the places within the plot."""
    for place in places:
        for panel in panels if place < positions else ():
            panel.axvline(place / batch_size, color="#222222", linestyle=style, linewidth=1)


def draw_sizes(path: str, summary: object) -> Figure:
    """Draw histograms of the sizes of samples, and of the parts of each name. Raises ConfigError without sizes."""
    sizes: tuple[SizeBin, ...] | None = getattr(summary, "sizes", None)
    if sizes is None:
        raise ConfigError(f"{path}: the size of a row is not known before it is read, so there is nothing to plot")
    figure, panels = _axes(2 if isinstance(summary, DatasetSummary) else 1)
    _stairs(panels[0], sizes, fill=True, color=_COLORS[0], label="samples")
    samples = counted(sum(size.samples for size in sizes), "sample")
    panels[0].set(ylabel="samples", title=f"{Path(path).name}: sizes of {samples}")
    if isinstance(summary, DatasetSummary):
        for number, (name, part) in enumerate(summary.parts.items()):
            _stairs(panels[1], part.sizes, color=_COLORS[number % len(_COLORS)], label=_cut(name), linewidth=1.5)
        panels[1].set_ylabel("parts")
        if summary.parts:
            panels[1].legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    for panel in panels:
        panel.set_xscale("symlog", base=2, linthresh=1)
        panel.xaxis.set_major_formatter(lambda size, _: binary_bytes(int(size)))
        panel.yaxis.set_major_formatter("{x:,.0f}")
        panel.set_ylim(0, None)
    panels[-1].set_xlabel("bytes")
    return figure


def _stairs(panel: Axes, sizes: Sequence[SizeBin], **style: Any) -> None:
    """A histogram of sizes."""
    edges = [size.from_bytes for size in sizes[:1]] + [size.below_bytes for size in sizes]
    panel.stairs([size.samples for size in sizes], edges, **style)


def window_edges(summary: MixtureSummary, order: IndexMap, *, lanes: int, positions: int) -> Int64Array:
    """(windows + 1,) first positions of the windows, and the end of the last window; see the module docstring."""
    blends = any(node.kind in ("blend", "blend_epochized") for node in _nodes(summary))
    unit = RUN * lanes if blends else 1
    least = _UNITS * unit if blends else 1
    window = max(least, -(-positions // (WINDOWS * unit)) * unit)
    cuts = sorted({*_starts(order, positions), *(change for change in summary.changes if change < positions)})
    edges = [0]
    for start, stop in pairwise([*cuts, positions]):
        edges += range(start + window, stop - window + 1, window)
        edges.append(stop)
    return np.array(edges, np.int64)


def count_leaves(order: IndexMap, leaves: int, edges: Int64Array, *, unit: int, most: int = MAX_DRAWN) -> Int64Array:
    """(windows, leaves) samples of each leaf in the windows of a stream. A finite stream continues with its next pass.

    Args:
        order: The order of the stream.
        leaves: Number of leaves.
        edges: Edges of the windows.
        unit: Positions that belong together; see the module docstring.
        most: About how many positions to count. If there are more, evenly spread pieces of each window are counted.
    """
    counts = np.zeros((len(edges) - 1, leaves), np.int64)
    for window, (start, stop) in enumerate(pairwise(edges.tolist())):
        positions = np.arange(start, stop) if stop - start <= most // len(counts) else None
        if positions is None:
            length = max(1, most // len(counts) // _PIECES // unit) * unit
            firsts = (start + (stop - start - length) * piece // (_PIECES - 1) for piece in range(_PIECES))
            aligned = (start + (first - start) // unit * unit for first in firsts)
            positions = np.concatenate([np.arange(first, min(first + length, stop)) for first in aligned])
        leaf = np.zeros(positions.size, np.int32) if order.routes is None else order.routes.route(positions)[0]
        counts[window] = np.bincount(leaf, minlength=leaves)
    return counts


def _default_positions(summary: MixtureSummary, order: IndexMap, lanes: int) -> int:
    """Three epochs; for an endless blend, a whole schedule and two passes over each concatenation."""
    if order.passes is not None:
        return order.start(_EPOCHS) or _EPOCHS * summary.samples
    turns = [
        2 * -(-node.samples // node.shares[-1].share)
        for node in _nodes(summary)
        if node.kind == "concat" and node.shares[-1].share
    ]
    return int(max(WINDOWS * _UNITS * RUN * lanes, 2 * max(summary.changes, default=0), *turns))


def _starts(order: IndexMap, positions: int) -> list[int]:
    """First positions of the epochs that begin before a position; if there are many, only the first."""
    if order.passes is None:
        return [0]
    starts = [order.start(epoch) for epoch in range(WINDOWS)]
    return [start for start in starts if start < positions] if starts[-1] >= positions else [0]


def _nodes(summary: MixtureSummary) -> list[NodeSummary]:
    found = [summary.tree]
    for node in found:
        found.extend(node.children)
    return found


def _groups(totals: npt.NDArray[np.float64]) -> list[list[int]]:
    """Each leaf alone; if there are many, the largest ones, and one group of the others. In document order."""
    if len(totals) <= len(_COLORS):
        return [[number] for number in range(len(totals))]
    alone = sorted(np.argsort(-totals, kind="stable")[: len(_COLORS)].tolist())
    return [*([number] for number in alone), sorted(set(range(len(totals))) - set(alone))]


def _axes(panels: int) -> tuple[Figure, Sequence[Axes]]:
    """A figure without a window, with its panels in one column."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6 * panels), layout="constrained")
    return figure, figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0].tolist()


def _cut(label: str) -> str:
    return label if len(label) <= _LABEL_LETTERS else "…" + label[1 - _LABEL_LETTERS :]
