"""From documents to a tree: nested files are read, and what outer levels say is merged into the leaves.

The rules are Energon's: the split part nearest to a leaf counts; of tags, the outermost; passes multiply; of subsets,
the inner one is taken first; weights and repetitions never mix along a path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, TypeAlias

from energon_grain.errors import ConfigError, DatasetNotFoundError, ReadError
from energon_grain.formats.commit_journal import finish_interrupted_prepare
from energon_grain.formats.data_folder import kind_at
from energon_grain.formats.file_ending import METADATASET_ENDINGS, is_file_of
from energon_grain.formats.nv_meta import DatasetKind, not_prepared
from energon_grain.metadataset.blends import MetadatasetBlend, MetadatasetBlendEpochized, MetadatasetConcat, Node
from energon_grain.metadataset.documents import DatasetLoaderInterface, Metadataset, MetadatasetV2, read_document
from energon_grain.metadataset.joins import JoinArrayReference, JoinDatasetReference, MetadatasetJoin
from energon_grain.metadataset.keys import place_of
from energon_grain.metadataset.place import Place, asked_at, wrong
from energon_grain.metadataset.references import AuxReference, DatasetReference
from energon_grain.metadataset.subset import Subset, combine_subsets
from energon_grain.metadataset.tree import (
    ArrayReference,
    Blend,
    BlendEpochized,
    Concat,
    Join,
    JoinMember,
    LeafReference,
    TreeNode,
)
from energon_grain.storage.location import absolute, folder_of, is_url

_ONE = Fraction(1)
_UNCONFIGURED = {DatasetKind.JSONL: "a JSONL file", DatasetKind.ARRAY: "an array"}
"""Kinds that are read as they are, without a configuration beside them."""
_PERHAPS_UNFINISHED = (DatasetKind.INVALID, DatasetKind.FILESYSTEM)
"""What a prepared dataset looks like whose `prepare` was killed while it put its files in place."""
Mode: TypeAlias = tuple[Literal["blend", "blend_epochized"], Place]


@dataclass(frozen=True, kw_only=True, slots=True)
class Inherited:
    """What outer levels say to a node.

    Attributes:
        split_part: The part to read where the node names none.
        subflavors: Tags that override the node's.
        passes: Passes shuffled as one, of all outer levels together.
        subset: What to take of the node; always by shares, except from the program to a single dataset.
        mode: Which kind of blend the node is in, and where that stands.
        chain: (absolute path, split) of the files that lead here.
        through: Their paths as written, without the first.
    """

    split_part: str
    subflavors: Mapping[str, Any] = field(default_factory=dict[str, Any])
    passes: int | None = 1
    subset: Subset | None = None
    mode: Mode | None = None
    chain: tuple[tuple[str, str], ...] = ()
    through: tuple[str, ...] = ()


def combine_passes(outer: int | None, inner: int | None) -> int | None:
    """Combine `shuffle_over_epochs_multiplier` of two levels: None wins, then -1, else they multiply."""
    if outer is None or inner is None:
        return None
    return -1 if -1 in (outer, inner) else outer * inner


def merge_subflavors(outer: Mapping[str, Any] | None, inner: Mapping[str, Any] | None) -> dict[str, Any]:
    """Merge the tags of two levels, key by key (values are not merged): what the outer one says wins."""
    return {**(inner or {}), **(outer or {})}


class Resolver:
    """Resolves documents; reads each nested file once.

    Attributes:
        require_data: Whether a dataset that is missing on this machine is an error.
    """

    def __init__(self, *, require_data: bool) -> None:
        self.require_data = require_data
        self._documents: dict[str, MetadatasetV2 | Metadataset] = {}

    def document(self, document: DatasetLoaderInterface, inherited: Inherited) -> TreeNode:
        """Resolve one split of a document.

        Raises:
            ConfigError: There is no such split, the document refers to itself, or a rule is broken further down.
            DatasetNotFoundError: A file is missing, or a dataset while `require_data`.
        """
        node = document.node(inherited.split_part)
        file = document.file
        if file is None:
            return self.node(node, inherited, os.getcwd())
        here = (absolute(os.fspath(file), os.getcwd()), inherited.split_part)
        return self.node(node, replace(inherited, chain=(*inherited.chain, here)), folder_of(here[0]))

    def node(self, node: Node, inherited: Inherited, folder: str) -> TreeNode:
        """Resolve a node whose paths are relative to `folder`."""
        if isinstance(node, DatasetReference):
            return self._reference(node, inherited, folder)
        if isinstance(node, MetadatasetJoin):
            return self._join(node, inherited, folder)
        place = place_of(node)
        inner = replace(inherited, subset=_subset(node.subset, inherited.subset, place, leaf=False))
        if isinstance(node, MetadatasetConcat):
            return Concat(children=tuple(self.node(child, inner, folder) for child in node.concat), place=place)
        inner = replace(inner, mode=_mode(node, inherited, place))
        if isinstance(node, MetadatasetBlendEpochized):
            return BlendEpochized(
                children=tuple(self.node(entry.node, inner, folder) for entry in node.blend_epochized),
                repetitions=tuple(entry.repetitions for entry in node.blend_epochized),
                place=place,
            )
        if node.schedule is None:
            weights = tuple(_ONE if entry.weight is None else entry.weight for entry in node.blend)
            schedule = ((0, weights),)
        else:
            schedule = tuple((step.from_position, step.weights) for step in node.schedule)
        children = tuple(self.node(entry.node, inner, folder) for entry in node.blend)
        return Blend(children=children, schedule=schedule, place=place)

    def _reference(self, node: DatasetReference, inherited: Inherited, folder: str) -> TreeNode:
        place = place_of(node)
        path = _absolute(node.path, folder, place.at("path"))
        inner = replace(
            inherited,
            split_part=node.split_part or inherited.split_part,
            subflavors=merge_subflavors(inherited.subflavors, node.subflavors),
            passes=combine_passes(inherited.passes, node.shuffle_over_epochs_multiplier),
        )
        if is_file_of(path, METADATASET_ENDINGS):
            return self._nested(node, inner, path, place)
        subset = _subset(node.subset, inherited.subset, place, leaf=True)
        kind = self._kind(path, place)
        if kind in _UNCONFIGURED:
            for name in ("dataset_config", "split_config"):
                if getattr(node, name) is not None:
                    raise wrong(place.at(name), f"{_UNCONFIGURED[kind]} has no `{name}`")
        return LeafReference(
            written=node.path,
            through=inherited.through,
            path=path,
            kind=kind,
            split_part=inner.split_part,
            subflavors=inner.subflavors,
            shuffle_over_epochs_multiplier=inner.passes,
            dataset_config=node.dataset_config,
            split_config=node.split_config,
            subset=subset,
            aux={name: self._aux(aux, folder, place.at("aux", name)) for name, aux in (node.aux or {}).items()},
            name=node.name,
            place=place,
        )

    def _nested(self, node: DatasetReference, inner: Inherited, path: str, place: Place) -> TreeNode:
        for name in ("aux", "dataset_config", "split_config", "name"):
            if getattr(node, name) is not None:
                raise wrong(place.at(name), f"{path} is a metadataset; `{name}` belongs to the datasets in it")
        subset = _subset(node.subset, inner.subset, place, leaf=False)
        _check_chain(inner.chain, (path, inner.split_part), place)
        if path not in self._documents:
            try:
                self._documents[path] = read_document(path)
            except (DatasetNotFoundError, ReadError) as error:
                raise type(error)(f"{place.at('path')}: {error}") from error
        document = self._documents[path]
        return self.document(document, replace(inner, subset=subset, through=(*inner.through, node.path)))

    def _join(self, node: MetadatasetJoin, inherited: Inherited, folder: str) -> Join:
        place = place_of(node)
        split_part = node.split_part or inherited.split_part
        subflavors = merge_subflavors(inherited.subflavors, node.subflavors)
        passes = combine_passes(inherited.passes, node.shuffle_over_epochs_multiplier)
        named = node.join if isinstance(node.join, Mapping) else dict.fromkeys(range(len(node.join)))
        members: list[JoinMember] = []
        for name, member in zip(
            named, node.join.values() if isinstance(node.join, Mapping) else node.join, strict=True
        ):
            argument = name if isinstance(name, str) else None
            at = member.place or place.at("join", name)
            if isinstance(member, JoinArrayReference):
                leaf = self._array(member, argument, inherited.through, folder, at)
            else:
                leaf = self._joined(
                    replace(
                        member,
                        dataset_config=member.dataset_config or node.dataset_config,
                        split_config=member.split_config or node.split_config,
                    ),
                    replace(inherited, split_part=split_part, subflavors=subflavors, passes=passes),
                    folder,
                    at,
                )
            members.append(JoinMember(leaf=leaf, nonmatch=member.nonmatch, argument=argument))
        return Join(
            members=tuple(members),
            joiner=node.joiner,
            split_part=split_part,
            shuffle_over_epochs_multiplier=passes,
            subset=_subset(node.subset, inherited.subset, place, leaf=True),
            name=node.name,
            metadataset=inherited.chain[-1][0] if inherited.chain else None,
            through=inherited.through,
            place=place,
        )

    def _joined(self, member: JoinDatasetReference, outer: Inherited, folder: str, place: Place) -> LeafReference:
        path = _absolute(member.path, folder, place.at("path"))
        kind = DatasetKind.METADATASET if is_file_of(path, METADATASET_ENDINGS) else self._kind(path, place)
        if kind is DatasetKind.METADATASET or kind in _UNCONFIGURED:
            found = "write `array:` for an array" if kind is DatasetKind.ARRAY else f"not a {kind.value} file"
            raise wrong(place.at("path"), f"{path}: only prepared WebDataset folders can be joined by `path`; {found}")
        return LeafReference(
            written=member.path,
            through=outer.through,
            path=path,
            kind=kind,
            split_part=member.split_part or outer.split_part,
            subflavors=merge_subflavors(outer.subflavors, member.subflavors),
            shuffle_over_epochs_multiplier=outer.passes,
            dataset_config=member.dataset_config,
            split_config=member.split_config,
            place=place,
        )

    def _array(
        self, member: JoinArrayReference, argument: str | None, through: tuple[str, ...], folder: str, place: Place
    ) -> ArrayReference:
        paths = {"array": _absolute(member.array, folder, place.at("array"))}
        if member.keys is not None:
            paths["keys"] = _absolute(member.keys, folder, place.at("keys"))
        for name, path in paths.items():
            if self.require_data and not is_url(path) and not os.path.exists(path):
                raise DatasetNotFoundError(f"{place.at(name)}: {path}: there is nothing there")
        return ArrayReference(
            written=member.array,
            through=through,
            path=paths["array"],
            keys=paths.get("keys"),
            field=member.field or argument or Path(paths["array"]).stem,
            place=place,
        )

    def _kind(self, path: str, place: Place) -> DatasetKind:
        """What lies at the path of a leaf."""
        if is_url(path) and not self.require_data:
            return DatasetKind.JSONL if path.endswith(".jsonl") else DatasetKind.WEBDATASET
        kind = _kind_at(path, place.at("path"))
        if kind in _PERHAPS_UNFINISHED and not is_url(path) and finish_interrupted_prepare(Path(path)):
            kind = _kind_at(path, place.at("path"))
        if kind is DatasetKind.FILESYSTEM:
            raise wrong(place.at("path"), f"{path}: a plain folder of files can only be an auxiliary store (`aux`)")
        if kind is DatasetKind.INVALID and self.require_data:
            raise DatasetNotFoundError(f"{place.at('path')}: {not_prepared(path)}")
        return kind

    def _aux(self, aux: AuxReference, folder: str, place: Place) -> AuxReference:
        path = _absolute(aux.path, folder, place)
        if self.require_data:
            if aux.kind == "filesystem" and not is_url(path) and not os.path.isdir(path):
                raise DatasetNotFoundError(f"{place}: {path}: there is no such folder")
            if aux.kind == "webdataset" and not _kind_at(path, place).has_shards:
                may_be_plain = is_url(path) or os.path.isdir(path)
                plain = f", or write filesystem://{aux.path} for a folder of plain files" if may_be_plain else ""
                raise DatasetNotFoundError(f"{place}: {not_prepared(path)}{plain}")
        return AuxReference(kind=aux.kind, path=path, place=place)


def _absolute(written: str, folder: str, place: Place) -> str:
    with asked_at(place):  # of a path that leads out of a bucket
        return absolute(written, folder)


def _kind_at(path: str, place: Place) -> DatasetKind:
    with asked_at(place):  # of a store that cannot be read
        return kind_at(path)


def _subset(own: Subset | None, outer: Subset | None, place: Place, *, leaf: bool) -> Subset | None:
    if own is not None and own.absolute is not None and not leaf:
        raise wrong(
            place.at("subset"),
            f"{own} counts samples, which only a single dataset can; use percentages here, or numbers at a dataset",
        )
    try:
        return combine_subsets(own, outer)
    except ConfigError as error:
        raise wrong(place, str(error)) from None


def _mode(node: MetadatasetBlend | MetadatasetBlendEpochized, inherited: Inherited, place: Place) -> Mode:
    mode = "blend" if isinstance(node, MetadatasetBlend) else "blend_epochized"
    if inherited.mode is not None and inherited.mode[0] != mode:
        raise wrong(
            place,
            f"a `{mode}` cannot be inside the `{inherited.mode[0]}` at {inherited.mode[1]}: weights make an endless "
            "stream, repetitions an epoch; use one of them along a path",
        )
    return (mode, place) if inherited.mode is None else inherited.mode


def _check_chain(chain: tuple[tuple[str, str], ...], here: tuple[str, str], place: Place) -> None:
    """Check that a file and split is not one of those that lead to it."""
    real = [(file if is_url(file) else os.path.realpath(file), split) for file, split in (*chain, here)]
    if real[-1] in real[:-1]:
        shown = " -> ".join(f"{file} [{split}]" for file, split in (*chain, here))
        raise wrong(place.at("path"), f"the metadataset refers to itself: {shown}")
