"""`info --plot`: the figures' data are what the stream and the dataset hold."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from cli_runs import run
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from metadatasets import write_v2
from PIL import Image

from energon_grain import ConfigError
from energon_grain.cli import plot
from energon_grain.cli.plot import WINDOWS, count_leaves
from energon_grain.formats.nv_meta import read_info
from energon_grain.samplers.blend import Blend
from energon_grain.samplers.leaf_order import LeafOrder, LeafTable
from energon_grain.samplers.routing import Concat, Router, RouteTree
from energon_grain.stream.index_map import IndexMap
from energon_grain.testing import make_captioning_dataset, make_text_dataset

LANES = 48


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets a (55 samples) and b (31), of one split part."""
    root = tmp_path_factory.mktemp("plot")
    for name, n in (("a", 55), ("b", 31)):
        make_text_dataset(root / name, n=n, shards=2, seed=n)
        shards = list(read_info(root / name).shard_counts)
        (root / name / ".nv-meta" / "split.yaml").write_text(
            yaml.safe_dump({"split_parts": {"train": shards}, "exclude": []})
        )
    return root


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `info --plot` and gives the figure that it saved."""
    figures: list[Figure] = []
    save = plot.save
    monkeypatch.setattr(plot, "save", lambda figure, file: (figures.append(figure), save(figure, file)))

    def draw(path: str | Path, *arguments: str) -> Figure:
        done = run("info", path, "--plot", tmp_path / "plot.png", *arguments)
        assert done.exit_code == 0, done.output
        assert done.output.endswith(f"Wrote {tmp_path / 'plot.png'}.\n")
        with Image.open(tmp_path / "plot.png") as image:
            assert np.unique(np.asarray(image)).size > 1
        return figures[-1]

    return draw


def areas(panel: Axes) -> dict[str, tuple[list[float], list[float], list[float]]]:
    """By label: edges of the windows, where the area begins in each, and how high it is."""
    found: dict[str, tuple[list[float], list[float], list[float]]] = {}
    for patch in panel.patches:
        assert isinstance(patch, StepPatch)
        top, edges, base = patch.get_data()
        base = np.broadcast_to(np.zeros(1) if base is None else base, np.shape(top))
        found[str(patch.get_label()).strip()] = (list(edges), list(base), list(np.subtract(top, base)))
    return found


SCHEDULED = {
    "blend": [{"path": "a", "name": "<pictures & more>"}, {"path": "b"}],
    "schedule": [{"from_position": 0, "weights": [1, 0]}, {"from_position": 4800, "weights": [1, 3]}],
}


def test_exact_shares_look_exact(folder: Path, drawn: Any) -> None:
    """No window is off by what one could see: a pixel of 500."""
    inner = {"weight": 0.37, "blend": [{"path": "b", "weight": 0.123}, *({"path": "a"} for _ in range(5))]}
    figure = drawn(write_v2(folder, train={"blend": [{"path": "a", "weight": 0.63}, inner]}))
    shown = list(areas(figure.axes[0]).values())
    leaf = 0.37 / 5.123
    for (edges, _, height), share in zip(shown, [0.63, 0.123 * leaf, *[leaf] * 5], strict=True):
        assert len(edges) == WINDOWS + 1
        assert np.ptp(np.diff(edges)) == 0
        assert np.abs(np.subtract(height, share)).max() < 0.002


def test_a_schedule_changes_where_it_says(folder: Path, drawn: Any) -> None:
    figure = drawn(write_v2(folder, train=SCHEDULED), "--batch-size", "48")
    above, below = figure.axes
    (edges, base, first), (_, _, second) = areas(above).values()
    assert next(iter(areas(above))).endswith("<pictures & more>")
    change = edges.index(100.0)  # 4,800 positions are 100 steps of 48
    assert set(first[:change]) == {1.0}
    assert first[change:] == pytest.approx([0.25] * (len(first) - change), abs=0.001)
    assert np.add(first, second) == pytest.approx(1)
    assert set(base) == {0.0}
    assert [line.get_xdata()[0] for line in above.lines] == [100.0]
    epochs = {line.get_label(): line.get_ydata()[-1] for line in below.lines}
    positions = edges[-1] * 48
    assert epochs["b"] == pytest.approx(0.75 * (positions - 4800) / 31, rel=1e-3)
    assert "steps of 48 samples" in above.get_title()


def test_epochs_are_shown(folder: Path, drawn: Any) -> None:
    train = {"blend_epochized": [{"path": "a", "repetitions": 0.8}, {"path": "b", "repetitions": 3}]}
    above, below = drawn(write_v2(folder, train=train)).axes
    ((edges, _, height), _) = areas(above).values()
    assert edges == [0, 137, 274, 411]  # each is shorter than a window
    assert height == [44 / 137] * 3
    (a, b), starts = below.lines[:2], below.lines[2:]
    assert list(a.get_ydata()) == pytest.approx([0, 0.8, 1.6, 2.4])
    assert list(b.get_ydata()) == [0, 3, 6, 9]
    assert [line.get_xdata()[0] for line in starts] == [137, 274]


def test_what_is_concatenated_is_cut_as_finely_as_can_be(folder: Path, drawn: Any) -> None:
    figure = drawn(write_v2(folder, train={"concat": [{"path": "a"}, {"path": "b"}]}), "--steps", "86")
    ((edges, _, height), _) = areas(figure.axes[0]).values()
    assert edges == list(range(87))
    assert height == [1.0] * 55 + [0.0] * 31


def test_steps_choose_the_stretch(folder: Path, drawn: Any) -> None:
    figure = drawn(write_v2(folder, train=SCHEDULED), "--batch-size", "48", "--steps", "100")
    assert [height for _, _, height in areas(figure.axes[0]).values()] == [[1.0], [0.0]]
    assert "the first 100 steps of 48 samples" in figure.axes[0].get_title()


def test_many_datasets_have_one_color_for_the_rest(folder: Path, drawn: Any) -> None:
    blend = [{"path": "ab"[number % 2], "weight": 1 + number} for number in range(30)]
    labels = list(areas(drawn(write_v2(folder, train={"blend": blend})).axes[0]))
    assert len(labels) == 11
    assert labels[-1] == "45.2%  20 others"


def test_sizes_of_samples_and_parts(tmp_path: Path, drawn: Any) -> None:
    root = make_captioning_dataset(tmp_path / "captions", n=24, shards=4)
    samples, parts = drawn(root).axes
    ((edges, _, height),) = areas(samples).values()
    assert sum(height) == 24
    assert all(below == 2 * above for above, below in pairwise(edges))
    by_part = areas(parts)
    assert {name: sum(height) for name, (_, _, height) in by_part.items()} == {"jpg": 24, "txt": 24}
    files = sorted(path.stat().st_size for path in root.glob("*.tar"))
    for edges, _, height in by_part.values():
        assert sum(edge * count for edge, count in zip(edges, height, strict=False)) < sum(files)
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"a": 1}\n' * 5)
    (only,) = drawn(lines).axes
    assert [(edges, height) for edges, _, height in areas(only).values()] == [([8, 16], [5])]


def test_the_same_picture_is_the_same_file(folder: Path, tmp_path: Path) -> None:
    path = write_v2(folder, train=SCHEDULED)
    for name in ("x.svg", "y.svg"):
        assert run("info", path, "--plot", tmp_path / name).exit_code == 0
    svg = (tmp_path / "x.svg").read_text()
    assert svg == (tmp_path / "y.svg").read_text()
    assert "&lt;pictures &amp; more&gt;" in svg
    assert run("info", path, "--plot", tmp_path / "x.pdf").exit_code == 0


def test_what_cannot_be_drawn_is_refused_first(folder: Path, tmp_path: Path) -> None:
    path = write_v2(folder, train={"path": "a"})
    for file, message in (("plot.txt", ".svg, .png or .pdf"), ("nowhere/plot.svg", "cannot be written")):
        done = run("info", path, "--plot", tmp_path / file)
        assert isinstance(done.exception, ConfigError)
        assert message in str(done.exception)
        assert done.output == ""


def order(router: Router | None, leaves: int) -> IndexMap:
    routes = None if router is None else RouteTree(router, [None] * leaves)
    table = LeafTable([LeafOrder(n=10, key=number) for number in range(leaves)], LANES)
    return IndexMap(routes=routes, table=table, passes=None, same_pass=False, samples=1)


@pytest.mark.parametrize("edges", [[0, 1], [0, 3, 7], list(range(0, 1001, 100)), [0, 700, 704, 5000]])
def test_counts_are_those_of_the_draws(edges: list[int]) -> None:
    routed = order(Blend(schedule=[(0, [1, 0, 3]), (700, [2, 5, 1])], lanes=LANES, key=3), 3)
    leaf = routed.draw(np.arange(edges[-1]), 0).leaf
    expected = [np.bincount(leaf[start:stop], minlength=3).tolist() for start, stop in pairwise(edges)]
    assert count_leaves(routed, 3, np.array(edges), unit=4 * LANES).tolist() == expected
    assert count_leaves(order(None, 1), 1, np.array(edges), unit=1).sum() == edges[-1]


def test_of_long_windows_spread_pieces_are_counted() -> None:
    """In 10 windows of 1,000 positions 16 pieces of 10; the first child is all of the first 2,500."""
    counts = count_leaves(order(Concat([2500, 7500]), 2), 2, np.arange(0, 10_001, 1000), unit=10, most=1600)
    assert counts.sum() == 1600
    assert (counts[:, 0] / counts.sum(axis=1)).tolist() == pytest.approx([1, 1, 0.5, 0, 0, 0, 0, 0, 0, 0], abs=0.07)
