# SPDX-License-Identifier: Apache-2.0
"""Resolve documents into dataset nodes: read nested files, and merge settings of outer levels into the leaves.

The rules are Energon's: the innermost split part applies; outermost tags win; passes multiply; inner subsets apply
first; weights and repetitions never mix along a path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from energon_grain.cooking.aux_stores import AuxReference
from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.leaf import LeafDataset
from energon_grain.datasets.mixtures import BlendDataset, BlendEpochizedDataset, ConcatDataset
from energon_grain.errors import ConfigError, DatasetNotFoundError, ReadError
from energon_grain.formats.data_files import BETWEEN
from energon_grain.formats.nv_meta import not_prepared
from energon_grain.forms import Place, errors_at, wrong
from energon_grain.kinds.joins.leaf import ArrayDataset, JoinedLeafDataset, JoinMember
from energon_grain.kinds.joins.members import Keys
from energon_grain.kinds.prepared.kind import FILESYSTEM, of_plain_folder
from energon_grain.metadataset.forms import (
    DatasetReference,
    JoinArrayReference,
    JoinDatasetReference,
    MetadatasetBlend,
    MetadatasetBlendEpochized,
    MetadatasetConcat,
    MetadatasetJoin,
    Node,
    read_node,
)
from energon_grain.samplers.expression import Expression, combine_expressions
from energon_grain.samplers.subset import Subset
from energon_grain.sources.kinds import METADATASET, NOTHING, Kind, kind_at, kind_by_name
from energon_grain.storage.location import METADATASET_ENDINGS, absolute, folder_of, is_file_of, is_url

Leaf: TypeAlias = LeafDataset | JoinedLeafDataset
Conditional: TypeAlias = (
    DatasetReference | MetadatasetBlend | MetadatasetBlendEpochized | MetadatasetConcat | MetadatasetJoin
)


class Document(Protocol):
    """Returns the node to load for a split part; see `DatasetLoaderInterface`."""

    @property
    def file(self) -> str | None: ...

    def node(self, split_part: str) -> Node | Mapping[str, Any]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Inherited:
    """Settings that a node inherits from outer levels.

    Attributes:
        split_part: The part to read if the node names none.
        subflavors: Tags that override the node's.
        passes: Passes shuffled together, combined over all outer levels.
        subset: Range of the node's samples; in shares, except from the program to a single dataset.
        where: Condition on the samples.
        mode: The kind of blend that contains the node, and its position.
        chain: (absolute path, split) of the enclosing files.
        through: Their paths as written, without the first.
        folder: Folder for relative paths.
    """

    split_part: str
    subflavors: Mapping[str, Any] = field(default_factory=dict[str, Any])
    passes: int | None = 1
    subset: Subset | None = None
    where: Expression | None = None
    mode: tuple[str, Place] | None = None
    chain: tuple[tuple[str, str], ...] = ()
    through: tuple[str, ...] = ()
    folder: str = ""

    def with_tagged(self, node: DatasetReference | MetadatasetJoin) -> Inherited:
        """Merge a dataset or join: its own split part applies, but outer tags override its own."""
        return replace(
            self,
            split_part=node.split_part or self.split_part,
            subflavors={**node.tags, **self.subflavors},
            passes=combine_passes(self.passes, node.shuffle_over_epochs_multiplier),
        )


def combine_passes(outer: int | None, inner: int | None) -> int | None:
    """Combine `shuffle_over_epochs_multiplier` of two levels: None wins, then -1, otherwise they multiply."""
    if outer is None or inner is None:
        return None
    return -1 if -1 in (outer, inner) else outer * inner


class Resolver:
    """Resolves documents; reads each nested file once.

    Args:
        leaf: Makes a leaf from the settings of documents, and adds the program's settings for all leaves.
        read: Reads a nested file.
        require_data: Whether a dataset missing on this machine is an error.

    Attributes:
        mixed_at: Position of the last resolved blend; at the end, the outermost one.
        endless_at: Position of a concat that contains a blend by weights, which training never finishes.
    """

    def __init__(
        self, leaf: Callable[..., LeafDataset], read: Callable[[str], Document], *, require_data: bool
    ) -> None:
        self._leaf = leaf
        self._read = read
        self._require_data = require_data
        self._documents: dict[str, Document] = {}
        self.mixed_at: Place | None = None
        self.endless_at: Place | None = None

    def document(self, document: Document, inherited: Inherited) -> SavableDataset:
        """Resolve one split of a document. Raises ConfigError and DatasetNotFoundError."""
        node = read_node(document.node(inherited.split_part), Place(document.file or type(document).__name__))
        if document.file is None:
            return self.node(node, replace(inherited, folder=os.getcwd()))
        here = (absolute(os.fspath(document.file), os.getcwd()), inherited.split_part)
        return self.node(node, replace(inherited, chain=(*inherited.chain, here), folder=folder_of(here[0])))

    def node(self, node: Node, inherited: Inherited) -> SavableDataset:
        """Resolve a node."""
        if isinstance(node, DatasetReference):
            return self._reference(node, inherited)
        if isinstance(node, MetadatasetJoin):
            return self._join(node, inherited)
        assert isinstance(node, MetadatasetBlend | MetadatasetBlendEpochized | MetadatasetConcat)
        subset = _subset(node.subset, inherited.subset, node.at, leaf=False)
        inner = replace(inherited, subset=subset, where=_where(node, inherited))
        if isinstance(node, MetadatasetConcat):
            return self._concat(node, inner)
        return self._blend(node, replace(inner, mode=_mode(node, inherited)))

    def _concat(self, node: MetadatasetConcat, inner: Inherited) -> ConcatDataset:
        parts = [self.node(child, inner) for child in node.concat]
        if any(isinstance(part, BlendDataset) for part in parts):
            self.endless_at = self.endless_at or node.at
        return ConcatDataset(*parts)

    def _blend(self, node: MetadatasetBlend | MetadatasetBlendEpochized, inner: Inherited) -> SavableDataset:
        children = node.blend if isinstance(node, MetadatasetBlend) else node.blend_epochized
        datasets = [self.node(child.node, inner) for child in children]
        numbers = tuple(Fraction(1) if child.number is None else child.number for child in children)
        self.mixed_at = node.at
        if isinstance(node, MetadatasetBlendEpochized):
            return BlendEpochizedDataset(*zip(datasets, numbers, strict=True))
        schedule = ((0, numbers),)
        if node.schedule is not None:
            schedule = tuple((step.from_position, tuple(step.weights)) for step in node.schedule)
        return BlendDataset(*datasets, schedule=schedule, weight_unit=node.weight_unit)

    def _reference(self, node: DatasetReference, inherited: Inherited) -> SavableDataset:
        path = _absolute(node.path, inherited.folder, node.at.at("path"))
        inner = inherited.with_tagged(node)
        if is_file_of(path, METADATASET_ENDINGS):
            return self._nested(node, inner, path)
        subset = _subset(node.subset, inherited.subset, node.at, leaf=True)
        kind = self._kind(path, node.at)
        if kind is not None and not kind.is_configured:
            for name in ("dataset_config", "split_config"):
                if getattr(node, name) is not None:
                    raise wrong(node.at.at(name), f"{kind.described} has no `{name}`")
        stores = (node.aux or {}).items()
        aux = {name: self._aux(aux, inherited.folder) for name, aux in stores}
        more: dict[str, Any] = {"where": _where(node, inherited)}
        if node.split_ratio is not None:
            more["split_ratio"] = node.split_ratio
        return self._made(node, inner, path, kind, subset=subset, aux=aux, name=node.name, **more)

    def _made(
        self,
        node: DatasetReference | JoinDatasetReference,
        inner: Inherited,
        path: str,
        kind: Kind | None,
        **more: Any,
    ) -> LeafDataset:
        named = {"dataset_config": node.dataset_config, "split_config": node.split_config}
        return self._leaf(
            path=path,
            kind=kind,
            written=str(node.path),
            through=inner.through,
            split_part=inner.split_part,
            tags=inner.subflavors,
            shuffle_over_epochs_multiplier=inner.passes,
            place=node.at,
            **{name: value for name, value in named.items() if value is not None},
            **more,
        )

    def _nested(self, node: DatasetReference, inner: Inherited, path: str) -> SavableDataset:
        place = node.at
        for name in ("aux", "dataset_config", "split_config", "name"):
            if getattr(node, name) is not None:
                raise wrong(place.at(name), f"{path} is a metadataset: write `{name}` at the datasets in it")
        subset = _subset(node.subset, inner.subset, place, leaf=False)
        _check_chain(inner.chain, (path, inner.split_part), place)
        if path not in self._documents:
            try:
                self._documents[path] = self._read(path)
            except (DatasetNotFoundError, ReadError) as error:
                raise type(error)(f"{place.at('path')}: {error}") from error
        through = (*inner.through, str(node.path))
        inner = replace(inner, subset=subset, where=_where(node, inner), through=through)
        return self.document(self._documents[path], inner)

    def _join(self, node: MetadatasetJoin, inherited: Inherited) -> JoinedLeafDataset:
        inner = inherited.with_tagged(node)
        members: list[JoinMember] = []
        for argument, member in node.join:
            if isinstance(member, JoinArrayReference):
                leaf = self._array(member, argument, inner)
            else:
                leaf = self._joined(member, node, inner)
            found = (
                None if isinstance(member, JoinArrayReference) else Keys(by_row=member.by == "row", column=member.keys)
            )
            members.append(JoinMember(leaf=leaf, nonmatch=member.nonmatch, argument=argument, keys=found))
        assert isinstance(members[0].leaf, LeafDataset)
        return JoinedLeafDataset(
            worker_config=members[0].leaf.worker_config,
            members=tuple(members),
            joiner=node.joiner,
            subset=_subset(node.subset, inherited.subset, node.at, leaf=True),
            where=_where(node, inherited),
            name=node.name,
            metadataset=inherited.chain[-1][0] if inherited.chain else None,
            place=node.at,
        )

    def _joined(self, member: JoinDatasetReference, join: MetadatasetJoin, outer: Inherited) -> LeafDataset:
        place = member.at.at("path")
        path = _absolute(member.path, outer.folder, place)
        kind = METADATASET if is_file_of(path, METADATASET_ENDINGS) else self._kind(path, member.at)
        if kind is METADATASET:
            raise wrong(place, f"{path}: is a metadataset: join the datasets in it, and mix the joins")
        if kind is not None and kind.joined_by is not None:
            advice = f"{kind.described}, which is joined by `{kind.joined_by}:` in place of `path:`"
            raise wrong(place, f"{path}: is {advice}")
        inner = replace(
            outer, split_part=member.split_part or outer.split_part, subflavors={**member.tags, **outer.subflavors}
        )
        # The joiner decides on the content of joined datasets, so it is not compared with the requested type.
        configs = {name: getattr(join, name) for name in ("dataset_config", "split_config")}
        given = {name: value for name, value in configs.items() if value is not None and getattr(member, name) is None}
        return self._made(member, inner, path, kind, sample_type=None, **given)

    def _array(self, member: JoinArrayReference, argument: str | None, inner: Inherited) -> ArrayDataset:
        paths: dict[str, str] = {}
        for name, written in (("array", member.array), ("keys", member.keys)):
            if written is None:
                continue
            paths[name] = path = _absolute(written, inner.folder, member.at.at(name))
            if self._require_data and not is_url(path) and not os.path.exists(path):
                raise DatasetNotFoundError(f"{member.at.at(name)}: {path}: no such file or folder")
        return ArrayDataset(
            path=paths["array"],
            keys=paths.get("keys"),
            field=member.field or argument or Path(paths["array"]).stem,
            written=str(member.array),
            through=inner.through,
        )

    def _kind(self, path: str, place: Place) -> Kind | None:
        """Return the kind of the data at the path of a leaf; None: a store that is opened on first use."""
        if is_url(path) and not self._require_data:
            return kind_by_name(path)
        kind = _kind_at(path, place.at("path"))
        if kind is FILESYSTEM:
            message = of_plain_folder(path)
            raise wrong(place.at("path"), message) if place.steps else ConfigError(message)
        if kind is NOTHING and self._require_data:
            raise DatasetNotFoundError(f"{place.at('path')}: {not_prepared(path)}")
        return kind

    def _aux(self, aux: AuxReference, folder: str) -> AuxReference:
        place = aux.place
        path = _absolute(aux.path, folder, place)
        if self._require_data:
            if aux.kind == "filesystem" and not is_url(path) and not os.path.isdir(path):
                raise DatasetNotFoundError(f"{place}: {path}: no such folder")
            if aux.kind == "webdataset" and _kind_at(path, place).store is None:
                may_be_plain = is_url(path) or os.path.isdir(path)
                plain = f", or write filesystem://{aux.path} for a folder of plain files" if may_be_plain else ""
                raise DatasetNotFoundError(f"{place}: {not_prepared(path)}{plain}")
        return replace(aux, path=path)


def _absolute(written: str, folder: str, place: Place) -> str:
    with errors_at(place):  # for example a path that leaves its bucket
        return BETWEEN.join(piece and absolute(piece, folder) for piece in str(written).split(BETWEEN))


def _kind_at(path: str, place: Place) -> Kind:
    with errors_at(place):  # for example a store that cannot be read
        return kind_at(path)


def _subset(own: Subset | None, outer: Subset | None, place: Place, *, leaf: bool) -> Subset | None:
    if own is not None and own.absolute is not None and not leaf:
        raise wrong(
            place.at("subset"),
            f"{own} counts samples, which is only allowed for a single dataset: use percentages here, or move it to a "
            f"dataset",
        )
    try:
        return own if outer is None else (own or Subset()).within(outer)
    except ConfigError as error:
        raise wrong(place, str(error)) from None


def _where(node: Conditional, inherited: Inherited) -> Expression | None:
    with errors_at(node.at):
        return combine_expressions(node.where, inherited.where)


def _mode(node: MetadatasetBlend | MetadatasetBlendEpochized, inherited: Inherited) -> tuple[str, Place]:
    mode = "blend" if isinstance(node, MetadatasetBlend) else "blend_epochized"
    if inherited.mode is not None and inherited.mode[0] != mode:
        raise wrong(
            node.at,
            f"a `{mode}` cannot be inside the `{inherited.mode[0]}` at {inherited.mode[1]}: weights define an endless "
            "stream, repetitions an epoch. Use only one of them along a path",
        )
    return inherited.mode or (mode, node.at)


def _check_chain(chain: tuple[tuple[str, str], ...], here: tuple[str, str], place: Place) -> None:
    """Check that a file and split does not contain itself."""
    real = [(file if is_url(file) else os.path.realpath(file), split) for file, split in (*chain, here)]
    if real[-1] in real[:-1]:
        shown = " -> ".join(f"{file} [{split}]" for file, split in (*chain, here))
        raise wrong(place.at("path"), f"the metadataset refers to itself: {shown}")
