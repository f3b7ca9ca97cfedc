"""What a metadataset comes to, as text and as figures, compared with what its stream really delivers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from beside_data import shard_counts
from cli_runs import run
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from metadatasets import write_v2
from patience import PATIENCE_S
from PIL import Image

from energon_grain import ConfigError, SplitError
from energon_grain.cli import plot
from energon_grain.cli.mixture import MixtureSummary, summarize_mixture
from energon_grain.cli.plot import WINDOWS, count_leaves
from energon_grain.cli.terminal import significant
from energon_grain.formats.nv_meta import read_info
from energon_grain.samplers.blend import Blend
from energon_grain.samplers.leaf_order import LeafOrder, LeafTable
from energon_grain.samplers.routing import Concat, Router, RouteTree
from energon_grain.stream.index_map import IndexMap
from energon_grain.stream.spec import StreamSpec
from energon_grain.testing import make_captioning_dataset, make_text_dataset
from energon_grain.words import format_bytes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets a (55 samples), b (31) and c (20)."""
    root = tmp_path_factory.mktemp("summary")
    for name, n in (("a", 55), ("b", 31), ("c", 20)):
        make_text_dataset(root / name, n=n, shards=2, seed=n)
        shards = sorted(path.name for path in (root / name).glob("*.tar"))
        (root / name / ".nv-meta" / "split.yaml").write_text(
            yaml.safe_dump({"split_parts": {"train": shards}, "exclude": []})
        )
    return root


def summarize(folder: Path, train: Any) -> tuple[MixtureSummary, StreamSpec]:
    return summarize_mixture(write_v2(folder, "summarized.yaml", train=train))


def exact(summary: MixtureSummary) -> list[list[tuple[int, Fraction]]]:
    return [[(each.from_position, Fraction(each.exact)) for each in leaf.shares] for leaf in summary.leaves]


def test_weights_multiply_down_the_tree(folder: Path) -> None:
    summary, _ = summarize(
        folder,
        {"blend": [{"path": "a", "weight": 3}, {"weight": 1, "blend": [{"path": "b", "weight": 0.7}, {"path": "c"}]}]},
    )
    assert exact(summary) == [[(0, Fraction(3, 4))], [(0, Fraction(7, 68))], [(0, Fraction(10, 68))]]
    assert (summary.endless, summary.epoch_positions, summary.samples) == (True, None, 106)
    inner = summary.tree.children[1]
    assert (inner.kind, inner.weights, inner.samples) == ("blend", (1.0,), 51)
    assert [share.exact for share in inner.shares] == ["1/4"]
    assert [child.weights for child in inner.children] == [(0.7,), (1.0,)]
    assert summary.leaves[0].seen_per_epoch is None
    assert summary.leaves[0].seen_per_million == pytest.approx((750_000 / 55,))


def test_a_concat_divides_its_share_by_lengths(folder: Path) -> None:
    concat = {"concat": [{"path": "a"}, {"path": "b"}]}
    summary, _ = summarize(folder, {"blend": [{"path": "c"}, {**concat, "weight": 3}]})
    assert exact(summary)[1:] == [[(0, Fraction(3, 4) * Fraction(n, 86))] for n in (55, 31)]
    alone, _ = summarize(folder, concat)
    assert exact(alone) == [[(0, Fraction(55, 86))], [(0, Fraction(31, 86))]]
    assert (alone.epoch_positions, [leaf.seen_per_epoch for leaf in alone.leaves]) == (86, [1, 1])


def test_repetitions_count_times_lengths(folder: Path) -> None:
    summary, spec = summarize(
        folder,
        {"blend_epochized": [{"path": "a", "repetitions": 0.7}, {"path": "b", "repetitions": 2}]},
    )
    assert exact(summary) == [[(0, Fraction(385, 1005))], [(0, Fraction(620, 1005))]]
    assert [leaf.seen_per_epoch for leaf in summary.leaves] == [0.7, 2]
    assert summary.epoch_positions == spec.order.length(0) == 100
    assert [child.repetitions for child in summary.tree.children] == [0.7, 2.0]


def test_schedules_are_seen(folder: Path) -> None:
    steps = [{"from_position": 0, "weights": [1, 0]}, {"from_position": 96, "weights": [1, 3]}]
    summary, _ = summarize(folder, {"blend": [{"path": "a"}, {"path": "b"}], "schedule": steps})
    assert exact(summary) == [[(0, 1), (96, Fraction(1, 4))], [(0, 0), (96, Fraction(3, 4))]]
    assert summary.changes == (96,)
    assert [share.exact for share in summary.tree.shares] == ["1"]


@pytest.mark.parametrize(
    "train",
    [
        {"path": "a"},
        {"concat": [{"path": "a"}, {"path": "b"}, {"concat": [{"path": "c"}, {"path": "a"}]}]},
        {"blend": [{"path": "a", "weight": 0.9}, {"concat": [{"path": "b"}, {"path": "c"}], "weight": 0.1}]},
        {"blend_epochized": [{"path": "a", "repetitions": 1.5}, {"concat": [{"path": "b"}, {"path": "c"}]}]},
        {"blend": [{"path": "a"}, {"blend": [{"path": "b", "weight": 7}, {"path": "a", "subset": ["0%", "50%"]}]}]},
    ],
)
def test_shares_are_those_of_the_stream(folder: Path, train: Any) -> None:
    summary, spec = summarize(folder, train)
    shares = np.array([leaf.shares[0].share for leaf in summary.leaves])
    assert sum(leaf[0][1] for leaf in exact(summary)) == 1
    positions = 100 * (summary.epoch_positions or 8600)
    counts = count_leaves(spec.order, len(shares), np.array([0, positions]), unit=1)[0]
    assert np.abs(counts - shares * positions).max() <= 90
    draws = spec.order.draw(np.arange(positions), 0)
    visits = Counter(zip(draws.leaf.tolist(), draws.index.tolist(), strict=True))
    for number, leaf in enumerate(summary.leaves):
        mean = sum(times for (each, _), times in visits.items() if each == number) / leaf.samples
        assert mean / positions * 1_000_000 == pytest.approx(leaf.seen_per_million[0], rel=0.02)


def test_labels_tell_siblings_apart(folder: Path) -> None:
    leaves = [
        {"path": "a"},
        {"path": "./a"},
        {"path": "a"},
        {"path": "a", "name": "again"},
        {"path": "b", "subset": ["0%", "50%"], "subflavors": {"x": 1}},
    ]
    summary, _ = summarize(folder, {"blend": leaves})
    assert [leaf.label for leaf in summary.leaves] == ["a #1", "./a", "a #2", "again", "b [0%, 50%]"]
    last = summary.leaves[-1]
    assert (last.samples, last.subset, last.subflavors, last.split_part) == (15, "[0%, 50%]", {"x": 1}, "train")
    assert last.place.endswith("summarized.yaml: $.splits.train.blend[4]")


def test_a_join_is_one_leaf(folder: Path) -> None:
    join = {"join": [{"path": "a"}, {"path": "b", "nonmatch": "skip"}]}
    summary, _ = summarize(folder, {"blend": [join, {"path": "a"}]})
    assert [(leaf.label, leaf.samples) for leaf in summary.leaves] == [("a + b", 31), ("a", 55)]


LANES = 48


@pytest.fixture(scope="module")
def plotted(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    monkeypatch.setattr(
        "energon_grain.cli.info.save", lambda figure, file: (figures.append(figure), save(figure, file))
    )

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


def test_exact_shares_look_exact(plotted: Path, drawn: Any) -> None:
    """No window is off by what one could see: a pixel of 500."""
    inner = {"weight": 0.37, "blend": [{"path": "b", "weight": 0.123}, *({"path": "a"} for _ in range(5))]}
    figure = drawn(write_v2(plotted, train={"blend": [{"path": "a", "weight": 0.63}, inner]}))
    shown = list(areas(figure.axes[0]).values())
    leaf = 0.37 / 5.123
    for (edges, _, height), share in zip(shown, [0.63, 0.123 * leaf, *[leaf] * 5], strict=True):
        assert len(edges) == WINDOWS + 1
        assert np.ptp(np.diff(edges)) == 0
        assert np.abs(np.subtract(height, share)).max() < 0.002


def test_a_schedule_changes_where_it_says(plotted: Path, drawn: Any) -> None:
    figure = drawn(write_v2(plotted, train=SCHEDULED), "--batch-size", "48")
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


def test_epochs_are_shown(plotted: Path, drawn: Any) -> None:
    train = {"blend_epochized": [{"path": "a", "repetitions": 0.8}, {"path": "b", "repetitions": 3}]}
    above, below = drawn(write_v2(plotted, train=train)).axes
    ((edges, _, height), _) = areas(above).values()
    assert edges == [0, 137, 274, 411]  # each is shorter than a window
    assert height == [44 / 137] * 3
    (a, b), starts = below.lines[:2], below.lines[2:]
    assert list(a.get_ydata()) == pytest.approx([0, 0.8, 1.6, 2.4])
    assert list(b.get_ydata()) == [0, 3, 6, 9]
    assert [line.get_xdata()[0] for line in starts] == [137, 274]


def test_what_is_concatenated_is_cut_as_finely_as_can_be(plotted: Path, drawn: Any) -> None:
    figure = drawn(write_v2(plotted, train={"concat": [{"path": "a"}, {"path": "b"}]}), "--steps", "86")
    ((edges, _, height), _) = areas(figure.axes[0]).values()
    assert edges == list(range(87))
    assert height == [1.0] * 55 + [0.0] * 31


def test_steps_choose_the_stretch(plotted: Path, drawn: Any) -> None:
    figure = drawn(write_v2(plotted, train=SCHEDULED), "--batch-size", "48", "--steps", "100")
    assert [height for _, _, height in areas(figure.axes[0]).values()] == [[1.0], [0.0]]
    assert "the first 100 steps of 48 samples" in figure.axes[0].get_title()


def test_many_datasets_have_one_color_for_the_rest(plotted: Path, drawn: Any) -> None:
    blend = [{"path": "ab"[number % 2], "weight": 1 + number} for number in range(30)]
    labels = list(areas(drawn(write_v2(plotted, train={"blend": blend})).axes[0]))
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


def test_the_same_picture_is_the_same_file(plotted: Path, tmp_path: Path) -> None:
    path = write_v2(plotted, train=SCHEDULED)
    for name in ("x.svg", "y.svg"):
        assert run("info", path, "--plot", tmp_path / name).exit_code == 0
    svg = (tmp_path / "x.svg").read_text()
    assert svg == (tmp_path / "y.svg").read_text()
    assert "&lt;pictures &amp; more&gt;" in svg
    assert run("info", path, "--plot", tmp_path / "x.pdf").exit_code == 0


def test_what_cannot_be_drawn_is_refused_first(plotted: Path, tmp_path: Path) -> None:
    path = write_v2(plotted, train={"path": "a"})
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
    routed = order(Blend([(0, [1, 0, 3]), (700, [2, 5, 1])], lanes=LANES, key=3), 3)
    leaf = routed.draw(np.arange(edges[-1]), 0).leaf
    expected = [np.bincount(leaf[start:stop], minlength=3).tolist() for start, stop in pairwise(edges)]
    assert count_leaves(routed, 3, np.array(edges), unit=4 * LANES).tolist() == expected
    assert count_leaves(order(None, 1), 1, np.array(edges), unit=1).sum() == edges[-1]


def test_of_long_windows_spread_pieces_are_counted() -> None:
    """In 10 windows of 1,000 positions 16 pieces of 10; the first child is all of the first 2,500."""
    counts = count_leaves(order(Concat([2500, 7500]), 2), 2, np.arange(0, 10_001, 1000), unit=10, most=1600)
    assert counts.sum() == 1600
    assert (counts[:, 0] / counts.sum(axis=1)).tolist() == pytest.approx([1, 1, 0.5, 0, 0, 0, 0, 0, 0, 0], abs=0.07)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1234, "1.23 kB"),
        (99_900, "100 kB"),
        (999_900, "1 MB"),
        (5e15, "5000 TB"),
    ],
)
def test_sizes(size: float, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(0, 3, "0"), (150.2, 2, "150"), (9.96, 2, "10"), (0.0312, 2, "0.031"), (12_345.6, 3, "12,346")],
)
def test_numbers_have_no_exponent(value: float, digits: int, text: str) -> None:
    assert significant(value, digits) == text


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Datasets a (55 samples) and b (31)."""
    root = tmp_path_factory.mktemp("info")
    for name, n in (("a", 55), ("b", 31)):
        make_text_dataset(root / name, n=n, shards=2, seed=n)
        shards = list(shard_counts(root / name))
        (root / name / ".nv-meta" / "split.yaml").write_text(
            yaml.safe_dump({"split_parts": {"train": shards}, "exclude": []})
        )
    return root


def test_the_tree_is_shown(texts: Path) -> None:
    inner = {"weight": 1, "concat": [{"path": "a"}, {"path": "b"}]}
    path = write_v2(texts, train={"blend": [{"path": "b", "weight": 3, "subflavors": {"kind": "text"}}, inner]})
    shown = run("info", path)
    assert shown.exit_code == 0, shown.output
    assert [re.sub(r" {2,}", "|", line.strip()) for line in shown.output.splitlines()] == [
        f"{path}, split train: 3 datasets, 117 samples, endless",
        "",
        "samples|weight|share|seen in 1,000,000",
        "blend|117|100%",
        "├─ b #1|31|3|75%|24,194",
        "└─ concat|86|1|25%",
        "├─ a|55|15.99%|2,907",
        "└─ b #2|31|9.012%|2,907",
        "",
        "Subflavors",
        "b #1: kind=text",
    ]


def test_epochs_and_schedules_are_shown(texts: Path) -> None:
    shown = run(
        "info", write_v2(texts, train={"blend_epochized": [{"path": "a", "repetitions": 0.7}, {"path": "b"}]})
    ).output
    assert "69 positions per epoch" in shown
    assert re.search(r"├─ a +55 +0\.7 +55\.4% +0\.7\n", shown)
    shown = run("info", write_v2(texts, train=SCHEDULED)).output
    assert re.search(r"└─ b +31 +0 → 3 +0% → 75% +0 → 24,194\n", shown)
    assert shown.endswith("Shares change at position 4,800.\n")


def test_shares_in_both_units_are_shown_of_a_blend_inside(texts: Path) -> None:
    inner = {"blend": [{"path": "a"}, {"path": "b"}], "weight_unit": "bytes.txt", "weight": 1}
    path = write_v2(texts, train={"blend": [inner, {"path": "b", "weight": 3}]})
    lines = [re.sub(r" {2,}", "|", line.strip()) for line in run("info", path).output.splitlines()][2:7]
    assert lines[:3] == [
        "samples|weight|of bytes.txt|of samples|seen in 1,000,000",
        "blend|117|100%",
        "├─ blend|86|1|100%|25%",
    ]
    halves = [float(line.split("|")[4].rstrip("%")) for line in lines[3:5]]
    assert halves == pytest.approx([50, 50], abs=0.1)
    shown = json.loads(run("info", path, "--json").output)
    assert shown["weight_unit"] == "bytes.txt"
    assert [len(leaf["cost_shares"]) for leaf in shown["leaves"]] == [1, 1, 0]


def test_another_split(texts: Path) -> None:
    path = write_v2(texts, train={"path": "a"}, heldout={"path": "b", "split_part": "train"})
    assert "split heldout: 1 dataset, 31 samples" in run("info", path, "--split", "heldout").output


def test_json(texts: Path) -> None:
    summary = json.loads(run("info", write_v2(texts, train=SCHEDULED), "--json").output)
    assert summary["endless"] is True
    assert summary["leaves"][1]["shares"][1] == {"from_position": 4800, "share": 0.75, "exact": "3/4"}
    assert [child["leaf"] for child in summary["tree"]["children"]] == [0, 1]
    assert summary["leaves"][0]["name"] == "<pictures & more>"


def test_options_that_do_not_fit_are_refused(texts: Path) -> None:
    path = write_v2(texts, train={"path": "a"})
    for arguments, message in (
        ((path, "--dataset-config", "x.yaml"), "is a metadataset"),
        ((texts / "a", "--split", "tran"), "there is no split part 'tran'. Did you mean 'train'?"),
        ((texts / "a", "--split-ratio", "1,1"), "remove --split-ratio"),
    ):
        outcome = run("info", *arguments)
        assert isinstance(outcome.exception, ConfigError | SplitError)
        assert message in str(outcome.exception)


def test_mistakes_are_one_red_line(texts: Path) -> None:
    path = write_v2(texts, train={"blend": [{"path": "a", "wieght": 2}]})
    done = subprocess.run(
        [sys.executable, "-m", "energon_grain.cli", "info", path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert "meta.yaml: $.splits.train.blend[0].wieght: there is no such key. Did you mean `weight`?" in line


def test_which_names_the_dataset_of_each_sample(texts: Path) -> None:
    path = write_v2(texts, train={"blend": [{"path": "a"}, {"path": "b"}]})
    first, _, *rows = run("which", path, "--step", "0", "--batch-size", "8").output.splitlines()
    assert first == f"Below {texts}/"
    assert {row.split()[-1].partition("/")[0] for row in rows} == {"a", "b"}
