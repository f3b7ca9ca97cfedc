# SPDX-License-Identifier: Apache-2.0
"""Pictures of `energon-grain info --plot`: a mixture over its steps, and the sizes of what a dataset holds.

**Windows.** The share of a dataset is counted in windows of positions. A blend deals its shares exactly, but in whole
samples: among `RUN` rounds of all lanes together a dataset has its share up to a sample or two for each level of the
tree, wherever one looks; only between such places it can be off by as many samples as there are lanes. So windows begin
and end there, and hold at least `_UNITS` of them: 4,608 positions with 48 lanes, where a sample is 0.02 % and below
what a picture shows. Where a schedule changes the shares, and where an epoch ends, a window ends too. Mixtures that are
shorter than a window are one window; concatenations have nothing to round and are cut as finely as the picture is.
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
"""Positions that are counted at most, about a second's work; of longer stretches some are counted."""
_PIECES = 16
_COLORS = (
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#44bb99", "#882255", "#999933",
)  # fmt: skip
_OTHERS = "#bbbbbb"
_LABEL_LETTERS = 34
Int64Array = npt.NDArray[np.int64]


def check_file(file: Path) -> None:
    """Check that a plot can be drawn and written to a file of this name, before there is one to write.

    Raises ConfigError if it has another ending, or its folder is not there, and MissingPackageError if there is no
    matplotlib.
    """
    if file.suffix.lower() not in ENDINGS:
        raise ConfigError(f"--plot {file}: expected a file that ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    if not file.absolute().parent.is_dir():
        raise ConfigError(f"--plot {file}: cannot be written: there is no folder {file.absolute().parent}")
    with needed_for("--plot"):
        import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = "energon-grain"  # the same bytes for the same picture
    matplotlib.rcParams["svg.fonttype"] = "none"  # text that can be searched


def save(figure: Figure, file: Path) -> None:
    """Write a picture; its ending says as what. Raises ConfigError where it cannot be written."""
    dated = {".svg": "Date", ".pdf": "CreationDate"}.get(file.suffix.lower())
    try:
        figure.savefig(file, dpi=150, metadata={dated: None} if dated else None)
    except OSError as error:
        raise ConfigError(f"--plot {file}: cannot be written: {error.strerror}") from error


def draw_mixture(summary: MixtureSummary, spec: StreamSpec, *, batch_size: int = 1, steps: int | None = None) -> Figure:
    """Draw which share of each window every dataset has, and how many epochs of it have gone by.

    Args:
        summary: The mixture.
        spec: Its order, which is counted.
        batch_size: Positions of a step.
        steps: How many to show; default: three epochs, or enough to see the last step of a schedule.
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
    # The first dataset is at the bottom of the stack: the legend goes up as the areas do.
    above.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, reverse=True)
    return figure


def _mark(panels: Sequence[Axes], places: Iterable[int], positions: int, batch_size: int, style: str) -> None:
    """Draw vertical lines at places that are shown."""
    for place in places:
        for panel in panels if place < positions else ():
            panel.axvline(place / batch_size, color="#222222", linestyle=style, linewidth=1)


def draw_sizes(path: str, summary: object) -> Figure:
    """Draw histograms of the sizes of samples, and of the parts of each name. Raises ConfigError if it has none."""
    sizes: tuple[SizeBin, ...] | None = getattr(summary, "sizes", None)
    if sizes is None:
        raise ConfigError(f"{path}: the size of a row is not known unless it is read, so there is nothing to plot")
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
    """(windows + 1,) positions at which windows begin, and where the last one ends; see the module's beginning."""
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
    """(windows, leaves) how often each leaf is drawn in windows of a stream; a finite one goes on with its next pass.

    Args:
        order: The order of the stream.
        leaves: Number of leaves.
        edges: Of the windows.
        unit: Positions that belong together; see the module's beginning.
        most: Where there are more positions, each window counts evenly spread pieces, so that about so many are.
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
    """Three epochs; of an endless blend as much as shows all of a schedule, and two turns of what is concatenated."""
    if order.passes is not None:
        return order.start(_EPOCHS) or _EPOCHS * summary.samples
    turns = [
        2 * -(-node.samples // node.shares[-1].share)
        for node in _nodes(summary)
        if node.kind == "concat" and node.shares[-1].share
    ]
    return int(max(WINDOWS * _UNITS * RUN * lanes, 2 * max(summary.changes, default=0), *turns))


def _starts(order: IndexMap, positions: int) -> list[int]:
    """First positions of the epochs that begin below a position; of many, none but the first."""
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
    """Each leaf by itself; of many, the largest, and one group of the others. In document order."""
    if len(totals) <= len(_COLORS):
        return [[number] for number in range(len(totals))]
    alone = sorted(np.argsort(-totals, kind="stable")[: len(_COLORS)].tolist())
    return [*([number] for number in alone), sorted(set(range(len(totals))) - set(alone))]


def _axes(panels: int) -> tuple[Figure, Sequence[Axes]]:
    """A figure without a window, and its panels below each other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6 * panels), layout="constrained")
    return figure, figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0].tolist()


def _cut(label: str) -> str:
    return label if len(label) <= _LABEL_LETTERS else "…" + label[1 - _LABEL_LETTERS :]
