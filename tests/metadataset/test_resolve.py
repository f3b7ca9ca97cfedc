"""Metadatasets become trees: paths, split parts, tags, passes and subsets over all levels, joins, and flat shares."""

from __future__ import annotations

import json
import os
from fractions import Fraction
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from metadatasets import Write, load

from energon_grain import (
    BlendDataset,
    BlendEpochizedDataset,
    ConcatDataset,
    DatasetLoader,
    EPath,
    MetadatasetV2,
    SavableDataset,
    StorageSettings,
    StoreSettings,
    load_dataset,
    traverse_metadataset,
)
from energon_grain.cooking.aux_stores import AuxReference
from energon_grain.datasets.leaf import LeafDataset
from energon_grain.errors import ConfigError, DatasetNotFoundError
from energon_grain.kinds.joins.leaf import ArrayDataset, JoinedLeafDataset
from energon_grain.metadataset.documents import TraversedDatasetReference, leaf_maker, load_metadataset
from energon_grain.metadataset.flat import FlatLeaf, flatten, flatten_blend, flatten_epochized, leaves_of
from energon_grain.metadataset.resolve import combine_passes
from energon_grain.samplers.subset import Subset
from energon_grain.storage.settings import using_storage


def only_leaf(tree: SavableDataset) -> LeafDataset:
    (leaf,) = leaves_of(tree)
    assert isinstance(leaf, LeafDataset)
    return leaf


def prepared(folder: Path) -> Path:
    (folder / ".nv-meta").mkdir(parents=True)
    (folder / ".nv-meta" / ".info.json").write_text('{"shard_counts": {}}')
    return folder


def test_paths_are_relative_to_the_file_that_has_them(write: Write, tmp_path: Path) -> None:
    write("deep/sub.yaml", "train: {blend: [{path: ./a}, {path: ../b}, {path: /abs/c}, {path: msc://store/d}]}")
    tree = load(write("meta.yaml", "train: {path: deep/sub.yaml}"))
    leaves = [leaf for leaf in leaves_of(tree) if isinstance(leaf, LeafDataset)]
    assert [leaf.path for leaf in leaves] == [f"{tmp_path}/deep/a", f"{tmp_path}/b", "/abs/c", "msc://store/d"]
    assert [leaf.written for leaf in leaves] == ["./a", "../b", "/abs/c", "msc://store/d"]
    assert {leaf.through for leaf in leaves} == {("deep/sub.yaml",)}
    assert str(leaves[1].place) == f"{tmp_path}/deep/sub.yaml: $.splits.train.blend[1]"


def test_paths_of_a_relative_file_are_absolute(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("sets/meta.yaml", "train: {path: a}")
    monkeypatch.chdir(tmp_path)
    assert only_leaf(load(Path("sets/meta.yaml"))).path == str(tmp_path / "sets" / "a")


def test_urls_may_stand_for_folders_of_this_machine(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVDATASET_CACHE_DIR", str(tmp_path))
    prepared(tmp_path / "set" / "1" / "a")
    (tmp_path / "files").mkdir()
    write("set/1/sub.yaml", "train: {path: a}")
    named = StoreSettings(location=f"file://{tmp_path}/set")
    with using_storage(StorageSettings(stores={"data://set": named})):
        for url in ("dss://set@1", f"msc://default{tmp_path}/set/1", "data://set/1", f"file://{tmp_path}/set/1"):
            files = f"{{a: '{url}/a', b: 'filesystem+{url}/../../files', c: {{fs_path: '{url}/../../files'}}}}"
            one = f"{{path: '{url}/a', aux: {files}}}"
            joined = f"{{join: [{{path: '{url}/a'}}, {{path: '{url}/a'}}]}}"
            meta = write("meta.yaml", f"train: {{concat: [{one}, {joined}, {{path: '{url}/sub.yaml'}}]}}")
            one, joined, nested = leaves_of(load_metadataset(meta, split_part="train"))
            assert isinstance(one, LeafDataset)
            assert isinstance(joined, JoinedLeafDataset)
            assert isinstance(nested, LeafDataset)
            paths = {one.path, nested.path, one.aux["a"].path, *(member.leaf.path for member in joined.members)}
            assert paths == {f"{tmp_path}/set/1/a"}
            assert {one.aux["b"].path, one.aux["c"].path} == {f"{tmp_path}/files"}
            assert one.written == f"{url}/a"


def test_a_mapping_is_relative_to_its_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = {"__class__": "MetadatasetV2", "splits": {"train": {"path": "a"}}}
    rooted = load_metadataset(content, split_part="train", root=tmp_path, require_data=False)
    assert only_leaf(rooted).path == str(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    assert only_leaf(load_metadataset(content, split_part="train", require_data=False)).path == str(tmp_path / "a")


def test_the_nearest_split_part_counts(write: Write) -> None:
    write("sub.yaml", "train: {blend: [{path: a}, {path: b, split_part: x}]}\nval: {path: c}")
    tree = load(write("meta.yaml", "train: {concat: [{path: sub.yaml}, {path: sub.yaml, split_part: val}, {path: d}]}"))
    got = [(leaf.written, leaf.split_part) for leaf in leaves_of(tree) if isinstance(leaf, LeafDataset)]
    assert got == [("a", "train"), ("b", "x"), ("c", "val"), ("d", "train")]


def test_the_outermost_subflavors_win(write: Write) -> None:
    write("inner.yaml", "train: {path: a, subflavors: {a: 1, b: 1, c: {x: 1}}}")
    write("middle.yaml", "train: {blend: [{path: inner.yaml, subflavors: {b: 2, c: {y: 2}, d: 2}}]}")
    file = write("outer.yaml", "train: {path: middle.yaml, subflavors: {d: 3}}")
    assert only_leaf(load(file)).tags == {"a": 1, "b": 2, "c": {"y": 2}, "d": 3}
    assert only_leaf(load(file, subflavors={"a": 4})).tags["a"] == 4


def test_passes_combine_over_levels(write: Write) -> None:
    write("inner.yaml", "train: {path: a, shuffle_over_epochs_multiplier: 3}")
    file = write("outer.yaml", "train: {path: inner.yaml, shuffle_over_epochs_multiplier: 2}")
    assert only_leaf(load(file)).shuffle_over_epochs_multiplier == 6
    assert only_leaf(load(file, shuffle_over_epochs_multiplier=-1)).shuffle_over_epochs_multiplier == -1
    assert only_leaf(load(file, shuffle_over_epochs_multiplier=None)).shuffle_over_epochs_multiplier is None
    with pytest.raises(ConfigError, match="shuffle_over_epochs_multiplier"):
        load(file, shuffle_over_epochs_multiplier=0)


def test_subsets_of_all_levels_compose(write: Write) -> None:
    write("inner.yaml", "train: {blend: [{path: a, subset: {range: [10, 30]}}], subset: {range: [20%, 80%]}}")
    file = write("outer.yaml", "train: {concat: [{path: inner.yaml, subset: {range: [25%, 75%]}}]}")
    subset = only_leaf(load(file, subset=["0%", "50%"])).subset
    assert subset is not None
    assert subset.resolve(55) == (17, 20)
    assert only_leaf(load(write("plain.yaml", "train: {path: a}"))).subset is None


def test_the_program_counts_samples_of_a_single_dataset_only(write: Write, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="single dataset"):
        load(write("meta.yaml", "train: {path: a}"), subset=[0, 10])
    leaf = load_metadataset(prepared(tmp_path / "a"), split_part="train", subset=[0, 10])
    assert isinstance(leaf, LeafDataset)
    assert leaf.subset == Subset(absolute=(0, 10))


def test_weights_and_repetitions_do_not_mix_along_a_path(write: Write) -> None:
    write("weights.yaml", "train: {blend: [{path: a}]}\nval: {path: a}")
    message = r"a `blend` cannot be inside the `blend_epochized` at .*meta\.yaml: \$\.splits\.train"
    with pytest.raises(ConfigError, match=message):
        load(write("meta.yaml", "train: {blend_epochized: [{path: weights.yaml}]}"))
    with pytest.raises(ConfigError, match="cannot be inside"):
        load(write("meta.yaml", "train: {blend: [{concat: [{blend_epochized: [{path: a}]}]}]}"))
    load(write("meta.yaml", "train: {blend_epochized: [{path: weights.yaml, split_part: val}]}"))
    load(write("meta.yaml", "train: {concat: [{blend: [{path: a}]}, {blend_epochized: [{path: b}]}]}"))


def test_a_circle_is_told_with_its_files(write: Write, tmp_path: Path) -> None:
    write("b.yaml", "train: {blend: [{path: x}, {path: c.yaml}]}")
    write("c.yaml", "train: {path: ./b.yaml}")
    file = write("a.yaml", "train: {path: b.yaml}")
    with pytest.raises(ConfigError) as caught:
        load(file)
    chain = " -> ".join(f"{tmp_path}/{name}.yaml [train]" for name in "abcb")
    assert str(caught.value) == f"{tmp_path}/c.yaml: $.splits.train.path: the metadataset refers to itself: {chain}"


def test_a_file_may_refer_to_another_of_its_splits(write: Write) -> None:
    assert (
        only_leaf(load(write("a.yaml", "train: {path: a.yaml, split_part: val}\nval: {path: x}"))).split_part == "val"
    )


def test_a_link_to_itself_is_a_circle(write: Write, tmp_path: Path) -> None:
    file = write("a.yaml", "train: {path: link.yaml}")
    os.symlink(file, tmp_path / "link.yaml")
    with pytest.raises(ConfigError, match="refers to itself"):
        load(file)


def test_old_and_new_documents_nest(write: Write, tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text(
        "splits: {train: {datasets: [{path: new.yaml, weight: 3, subflavor: s}, {path: b}]}}"
    )
    write("new.yaml", "train: {blend: [{path: a, weight: 2}]}")
    tree = load(write("meta.yaml", "train: {path: old.yaml}"))
    assert isinstance(tree, BlendDataset)
    assert tree.schedule == ((0, (Fraction(3), Fraction(1))),)
    assert isinstance(tree.datasets[0], BlendDataset)
    assert only_leaf(tree.datasets[0]).tags == {"__subflavor__": "s"}
    # The older form is the default of a nested file, too, and its list is named in errors as it is written.
    assert str(only_leaf(tree.datasets[1]).place) == f"{tmp_path}/old.yaml: $.splits.train.datasets[1]"


def test_the_older_form_of_subflavors(write: Write) -> None:
    write("inner.yaml", "train: {blend: [{path: a, subflavor: in, subflavors: {k: 1}}, {path: b, subflavor: in}]}")
    joined = "{join: [{path: c}, {path: d, subflavor: own}], subflavor: all, subflavors: {k: 2}}"
    plain = "{path: e, subflavor: old, subflavors: {__subflavor__: new}}"
    tree = load(write("meta.yaml", f"train: {{blend: [{{path: inner.yaml, subflavor: outer}}, {joined}, {plain}]}}"))
    a, b, join, e = leaves_of(tree)
    assert isinstance(a, LeafDataset)
    assert isinstance(b, LeafDataset)
    assert isinstance(join, JoinedLeafDataset)
    assert isinstance(e, LeafDataset)
    assert a.tags == {"__subflavor__": "outer", "k": 1}
    assert b.tags == {"__subflavor__": "outer"}
    assert [leaf.tags for leaf in join.datasets] == [{"__subflavor__": "all", "k": 2}] * 2
    assert e.tags == {"__subflavor__": "new"}
    with pytest.raises(ConfigError, match=r"subflavor: expected text"):
        load(write("meta.yaml", "train: {path: a, subflavor: {k: 1}}"))


def test_the_tree_has_the_shape_of_the_files(write: Write) -> None:
    write("inner.yaml", "train: {blend_epochized: [{path: a, repetitions: 0.5}, {path: b}]}")
    tree = load(write("meta.yaml", "train: {concat: [{path: inner.yaml}, {path: c}]}"))
    assert isinstance(tree, ConcatDataset)
    assert isinstance(tree.datasets[0], BlendEpochizedDataset)
    assert tree.datasets[0].repetitions == (Fraction(1, 2), 1)


def test_what_lies_at_paths_is_decided_once(write: Write, tmp_path: Path) -> None:
    prepared(tmp_path / "good")
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.jsonl").write_text("{}\n")
    tree = load_metadataset(
        write("meta.yaml", "train: {concat: [{path: good, aux: {x: good, y: filesystem://empty}}, {path: x.jsonl}]}"),
        split_part="train",
    )
    good, lines = leaves_of(tree)
    assert isinstance(good, LeafDataset)
    assert isinstance(lines, LeafDataset)
    assert [leaf.kind and leaf.kind.name for leaf in (good, lines)] == ["webdataset", "jsonl"]
    assert good.aux == {
        "x": AuxReference(path=str(tmp_path / "good")),
        "y": AuxReference(kind="filesystem", path=str(tmp_path / "empty")),
    }


def test_numbers_are_the_fractions_that_their_text_means(write: Write) -> None:
    tiny = "0.333333333333333333333333333333"
    leaves = [f"{{path: a, weight: {text}}}" for text in ("0.1", "1e-3", "1_000.25", tiny)]
    tree = load(write("meta.yaml", f"train: {{blend: [{', '.join(leaves)}, {{path: b}}]}}"))
    assert isinstance(tree, BlendDataset)
    assert tree.schedule == ((0, (Fraction(1, 10), Fraction(1, 1000), Fraction(4001, 4), Fraction(tiny), 1)),)
    repeated = "{path: a, repetitions: 0.7}, {path: b, repetitions: 3}, {path: c}"
    tree = load(write("meta.yaml", f"train: {{blend_epochized: [{repeated}]}}"))
    assert isinstance(tree, BlendEpochizedDataset)
    assert tree.repetitions == (Fraction(7, 10), 3, 1)


def test_a_dataset_by_itself_is_its_leaf(tmp_path: Path) -> None:
    folder = prepared(tmp_path / "set")
    document = load_dataset(folder)
    assert isinstance(document, DatasetLoader)
    leaf = load_metadataset(document, split_part="val", subflavors={"a": 1})
    assert isinstance(leaf, LeafDataset)
    assert (leaf.path, leaf.written, leaf.split_part, leaf.tags) == (str(folder), "set", "val", {"a": 1})
    with pytest.raises(DatasetNotFoundError, match="no such file or folder"):
        load_metadataset(tmp_path / "nothing", split_part="train")
    own = DatasetLoader(path=str(folder), split_part="x", dataset_config="d.yaml")
    leaf = load_metadataset(own, split_part="val")
    assert isinstance(leaf, LeafDataset)
    assert (leaf.split_part, leaf.dataset_config) == ("x", "d.yaml")


def test_documents_made_in_python_resolve(tmp_path: Path) -> None:
    document = MetadatasetV2(path=tmp_path / "meta.yaml", splits={"train": {"path": "a"}})  # type: ignore[dict-item]
    assert only_leaf(load_metadataset(document, split_part="train", require_data=False)).path == str(tmp_path / "a")


def test_only_the_split_that_is_loaded_is_followed(write: Write) -> None:
    load(write("meta.yaml", "train: {path: a}\nval: {path: nothing.yaml}"))


passes = st.none() | st.just(-1) | st.integers(1, 50)


@given(st.lists(passes, min_size=1, max_size=5))
def test_passes_combine_like_the_rule(levels: list[int | None]) -> None:
    combined: int | None = 1
    for level in levels:
        combined = combine_passes(combined, level)
    if None in levels:
        assert combined is None
    elif -1 in levels:
        assert combined == -1
    else:
        expected = 1
        for level in levels:
            expected *= level or 0
        assert combined == expected


tags = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 9), max_size=4)


@given(st.lists(st.tuples(tags, passes, st.sampled_from([None, "x", "y"])), min_size=1, max_size=4))
def test_files_nest_like_the_rules(
    tmp_path_factory: pytest.TempPathFactory, levels: list[tuple[Any, Any, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("nest")
    for number, (subflavors, multiplier, part) in enumerate(levels):
        path = "leaf" if number == len(levels) - 1 else f"{number + 1}.yaml"
        node = {
            "path": path,
            "subflavors": subflavors,
            "shuffle_over_epochs_multiplier": multiplier,
            "split_part": part,
        }
        content = {"__class__": "MetadatasetV2", "splits": dict.fromkeys(("train", "x", "y"), node)}
        (folder / f"{number}.yaml").write_text(json.dumps(content))
    leaf = only_leaf(load(folder / "0.yaml"))
    expected: dict[str, Any] = {}
    for subflavors, _, _ in reversed(levels):
        expected.update(subflavors)
    assert leaf.tags == expected
    assert leaf.shuffle_over_epochs_multiplier == reduce(combine_passes, [each for _, each, _ in levels], 1)
    assert leaf.split_part == ([part for _, _, part in levels if part] or ["train"])[-1]
    assert leaf.through == tuple(f"{number + 1}.yaml" for number in range(len(levels) - 1))


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
    assert text.leaf.tags == {"a": 1, "b": 2, "c": 3}
    assert image.leaf.tags == {"b": 2, "c": 3}
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
    write("inner/meta.yaml", f"train: {{join: [{{path: a}}, {array}, {{array: b, by: row, field: f}}]}}")
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
