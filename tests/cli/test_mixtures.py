"""What a metadataset comes to, compared with what its stream really delivers."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from metadatasets import write_v2

from energon_grain.cli.mixture import MixtureSummary, summarize_mixture
from energon_grain.cli.plot import count_leaves
from energon_grain.stream.spec import StreamSpec
from energon_grain.testing import make_text_dataset


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
