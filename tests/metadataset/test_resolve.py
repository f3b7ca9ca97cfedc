"""Metadatasets become trees: paths, split parts, tags, passes and subsets over the levels of nested files."""

from __future__ import annotations

import json
import os
from fractions import Fraction
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
    MetadatasetV2,
    SavableDataset,
    StorageSettings,
    StoreSettings,
    load_dataset,
)
from energon_grain.datasets.aux_stores import AuxReference
from energon_grain.datasets.joined_leaf import JoinedLeafDataset
from energon_grain.datasets.leaf import LeafDataset
from energon_grain.errors import ConfigError, DatasetNotFoundError
from energon_grain.formats.nv_meta import DatasetKind
from energon_grain.metadataset.documents import load_metadataset
from energon_grain.metadataset.flat import leaves_of
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
    assert only_leaf(load(file)).subflavors == {"a": 1, "b": 2, "c": {"y": 2}, "d": 3}
    assert only_leaf(load(file, subflavors={"a": 4})).subflavors["a"] == 4


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
    assert only_leaf(tree.datasets[0]).subflavors == {"__subflavor__": "s"}
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
    assert a.subflavors == {"__subflavor__": "outer", "k": 1}
    assert b.subflavors == {"__subflavor__": "outer"}
    assert [leaf.subflavors for leaf in join.datasets] == [{"__subflavor__": "all", "k": 2}] * 2
    assert e.subflavors == {"__subflavor__": "new"}
    with pytest.raises(ConfigError, match=r"subflavor: text"):
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
    assert (good.kind, lines.kind) == (DatasetKind.WEBDATASET, DatasetKind.JSONL)
    assert good.aux == {
        "x": AuxReference(path=str(tmp_path / "good")),
        "y": AuxReference(kind="filesystem", path=str(tmp_path / "empty")),
    }


def test_a_dataset_by_itself_is_its_leaf(tmp_path: Path) -> None:
    folder = prepared(tmp_path / "set")
    document = load_dataset(folder)
    assert isinstance(document, DatasetLoader)
    leaf = load_metadataset(document, split_part="val", subflavors={"a": 1})
    assert isinstance(leaf, LeafDataset)
    assert (leaf.path, leaf.written, leaf.split_part, leaf.subflavors) == (str(folder), "set", "val", {"a": 1})
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
    assert leaf.subflavors == expected
    assert leaf.split_part == ([part for _, _, part in levels if part] or ["train"])[-1]
    assert leaf.through == tuple(f"{number + 1}.yaml" for number in range(len(levels) - 1))
