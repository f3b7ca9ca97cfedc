from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

from hypothesis import given, strategies as st

from energon_grain import (
    BlendDataset,
    BlendEpochizedDataset,
    ConcatDataset,
    EPath,
    SavableDataset,
    traverse_metadataset,
)
from energon_grain.metadataset.documents import TraversedDatasetReference, leaf_maker, load_metadataset
from energon_grain.metadataset.flat import FlatLeaf, flatten, flatten_blend, flatten_epochized, leaves_of

MAKE = leaf_maker()


def leaf(name: str) -> SavableDataset:
    return MAKE(written=name, path=f"/{name}", split_part="train")


def blend(*children: tuple[SavableDataset, Any]) -> BlendDataset:
    return BlendDataset(*((child, Fraction(weight)) for child, weight in children))


def weight(flat: FlatLeaf) -> Fraction:
    assert flat.shares is not None
    ((_, share),) = flat.shares
    return share


A, B, C, D = map(leaf, "ABCD")


def test_weights_multiply_normalised() -> None:
    tree = blend((A, 3), (blend((B, 1), (C, "0.5")), 1))
    children, schedule = flatten_blend(tree)
    assert children == (A, B, C)
    assert schedule == ((0, (Fraction(3, 4), Fraction(1, 6), Fraction(1, 12))),)
    assert [(each.leaf, weight(each)) for each in flatten(tree)] == list(zip(children, schedule[0][1], strict=True))


def test_schedules_merge_over_nested_blends() -> None:
    inner = BlendDataset(B, C, schedule=((0, (Fraction(1), Fraction(0))), (100, (Fraction(1), Fraction(1)))))
    tree = BlendDataset(A, inner, schedule=((0, (Fraction(1), Fraction(1))), (50, (Fraction(1), Fraction(3)))))
    children, schedule = flatten_blend(tree)
    assert children == (A, B, C)
    half, quarter = Fraction(1, 2), Fraction(1, 4)
    assert schedule == (
        (0, (half, half, 0)),
        (50, (quarter, 3 * quarter, 0)),
        (100, (quarter, Fraction(3, 8), Fraction(3, 8))),
    )
    flat = [*flatten(tree)]
    assert flat[0].shares == ((0, half), (50, quarter))
    assert flat[2].shares == ((0, 0), (100, Fraction(3, 8)))


def test_repetitions_multiply() -> None:
    inner = BlendEpochizedDataset((B, Fraction(1, 2)), (C, 3))
    tree = BlendEpochizedDataset((A, 1), (inner, 0.7))
    assert flatten_epochized(tree) == [(A, 1), (B, Fraction(7, 20)), (C, Fraction(21, 10))]
    assert [each.repetitions for each in flatten(tree)] == [1, Fraction(7, 20), Fraction(21, 10)]
    assert all(each.shares is None for each in flatten(tree))


def test_a_concat_stays_whole_in_a_blend() -> None:
    concat = ConcatDataset(B, ConcatDataset(C, D))
    tree = blend((A, 1), (concat, 3))
    assert flatten_blend(tree)[0] == (A, concat)
    flat = [*flatten(tree)]
    assert [weight(each) for each in flat] == [Fraction(1, 4)] + [Fraction(3, 4)] * 3
    assert flat[0].concat is None
    assert all(each.concat is concat for each in flat[1:])
    assert leaves_of(tree) == (A, B, C, D)


def test_leaves_outside_of_blends_have_neither() -> None:
    flat = [*flatten(ConcatDataset(A, blend((B, 2))))]
    assert (flat[0].shares, flat[0].repetitions, flat[0].concat) == (None, None, None)
    assert (weight(flat[1]), flat[1].concat) == (1, None)
    assert next(flatten(A)).shares is None


@st.composite
def trees(draw: st.DrawFn, depth: int = 3) -> SavableDataset:
    if depth == 0 or draw(st.booleans()):
        return leaf(draw(st.sampled_from("ABCD")))
    children = draw(st.lists(st.tuples(trees(depth - 1), st.integers(1, 9)), min_size=1, max_size=3))
    return blend(*children)


@given(trees())
def test_shares_add_up_to_one(tree: SavableDataset) -> None:
    flat = [*flatten(tree)]
    assert tuple(each.leaf for each in flat) == leaves_of(tree)
    if isinstance(tree, BlendDataset):
        assert sum((weight(each) for each in flat), Fraction(0)) == 1

        def naive(node: SavableDataset, share: Fraction) -> list[Fraction]:
            if not isinstance(node, BlendDataset):
                return [share]
            weights = node.schedule[0][1]
            pairs = zip(node.datasets, weights, strict=True)
            return [each for child, weight in pairs for each in naive(child, share * weight / sum(weights))]

        assert [weight(each) for each in flat] == naive(tree, Fraction(1))


def test_traversing_lists_datasets_that_need_not_exist(tmp_path: Path) -> None:
    (tmp_path / "inner.yaml").write_text("splits: {train: {datasets: [{path: ./a}, {path: msc://store/b}]}}")
    file = tmp_path / "meta.yaml"
    file.write_text("""
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {path: inner.yaml, subflavors: {k: 1}}
      - {path: c, split_part: x, aux: {media: filesystem://files, remote: msc://store/x}}
      - {join: [{path: d}, {path: e}], joiner: {__module__: m, __class__: C}}
""")
    assert traverse_metadataset(file, split_part="train") == [
        TraversedDatasetReference(path=EPath(tmp_path) / "a", split_part="train", aux={}, subflavors={"k": 1}),
        TraversedDatasetReference(path=EPath("msc://store/b"), split_part="train", aux={}, subflavors={"k": 1}),
        TraversedDatasetReference(
            path=EPath(tmp_path) / "c",
            split_part="x",
            aux={"media": EPath(tmp_path / "files"), "remote": EPath("msc://store/x")},
            subflavors={},
        ),
        TraversedDatasetReference(path=EPath(tmp_path) / "d", split_part="train", aux={}, subflavors={}),
        TraversedDatasetReference(path=EPath(tmp_path) / "e", split_part="train", aux={}, subflavors={}),
    ]


def test_the_weights_of_a_file_are_exact(tmp_path: Path) -> None:
    file = tmp_path / "meta.yaml"
    file.write_text(
        "splits: {train: {datasets: [{path: a, weight: 0.7}, {path: b, weight: 0.2}, {path: c, weight: 0.1}]}}"
    )
    flat = [*flatten(load_metadataset(file, split_part="train", require_data=False))]
    assert [weight(each) for each in flat] == [Fraction(7, 10), Fraction(1, 5), Fraction(1, 10)]
