"""Joins in trees: what their members get from the levels above them."""

from __future__ import annotations

from pathlib import Path

from metadatasets import Write, load

from energon_grain.datasets.joined_leaf import ArrayDataset, JoinedLeafDataset
from energon_grain.metadataset.flat import leaves_of


def test_joins_merge_their_levels(write: Write, tmp_path: Path) -> None:
    file = write(
        "meta.yaml",
        """\
train:
  blend:
    - weight: 2
      join:
        text: {path: a, split_part: own, subflavors: {a: 1, b: 1, c: 1}}
        image: {path: b, nonmatch: skip, dataset_config: d.yaml}
      joiner: {__module__: megatron.energon, __class__: CaptioningSample}
      split_part: joined
      subflavors: {b: 2, c: 2}
      shuffle_over_epochs_multiplier: 2
      subset: {range: [5, 10]}
      name: pair
""",
    )
    outer = write("outer.yaml", "train: {path: meta.yaml, subflavors: {c: 3}, subset: {range: [0%, 50%]}}")
    (join,) = leaves_of(load(outer, shuffle_over_epochs_multiplier=3))
    assert isinstance(join, JoinedLeafDataset)
    assert join.primary.shuffle_over_epochs_multiplier == 6
    assert join.subset is not None
    assert join.subset.resolve(10) == (5, 7)
    assert join.metadataset == str(file)
    assert join.name == "pair"
    text, image = join.members
    assert (text.argument, text.nonmatch, text.leaf.split_part) == ("text", "error", "own")
    assert (image.argument, image.nonmatch, image.leaf.split_part) == ("image", "skip", "joined")
    assert text.leaf.subflavors == {"a": 1, "b": 2, "c": 3}
    assert image.leaf.subflavors == {"b": 2, "c": 3}
    assert image.leaf.path == str(tmp_path / "b")
    assert image.leaf.dataset_config == "d.yaml"
    assert str(image.leaf.place) == f"{file}: $.splits.train.blend[0].join.image"


def test_files_that_a_join_names_hold_for_datasets_without_their_own(write: Write) -> None:
    both = "{path: a}, {path: b, split_config: own.yaml, dataset_config: o.yaml}"
    meta = write("meta.yaml", f"train: {{join: [{both}], split_config: s.yaml, dataset_config: d.yaml}}")
    (join,) = leaves_of(load(meta))
    assert isinstance(join, JoinedLeafDataset)
    assert join.joiner is None
    assert [(each.leaf.split_config, each.leaf.dataset_config) for each in join.members] == [
        ("s.yaml", "d.yaml"),
        ("own.yaml", "o.yaml"),
    ]


def test_arrays_of_joins(write: Write, tmp_path: Path) -> None:
    array = "{array: e/emb.v2.zarr, keys: ../k.txt, nonmatch: skip}"
    (tmp_path / "inner").mkdir()
    write("inner/meta.yaml", f"train: {{join: [{{path: a}}, {array}, {{array: b, field: f}}]}}")
    (join,) = leaves_of(load(write("meta.yaml", "train: {path: inner/meta.yaml}")))
    assert isinstance(join, JoinedLeafDataset)
    assert [leaf.path for leaf in join.datasets] == [join.primary.path] == [str(tmp_path / "inner" / "a")]
    by_key, by_row = (member.leaf for member in join.members[1:])
    assert by_key == ArrayDataset(
        written="e/emb.v2.zarr",
        through=("inner/meta.yaml",),
        path=str(tmp_path / "inner" / "e" / "emb.v2.zarr"),
        keys=str(tmp_path / "k.txt"),
        field="emb.v2",
    )
    assert (by_row.keys, by_row.field, join.members[1].nonmatch) == (None, "f", "skip")
    named = write("meta.yaml", "train: {join: {x: {path: a}, y: {array: b}, z: {array: b, field: f}}}")
    (join,) = leaves_of(load(named))
    assert [member.leaf.field for member in join.members[1:]] == ["y", "f"]
    (join,) = leaves_of(load(write("meta.yaml", "train: {join: [{path: a}, {array: 's3://b/x.zarr'}]}")))
    assert (join.members[1].leaf.path, join.members[1].leaf.field) == ("s3://b/x.zarr", "x")
