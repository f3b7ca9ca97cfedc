"""Datasets that are joined by the keys of their samples, as they stand in a configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.joining import JoinRow, bind_joiner
from energon_grain.datasets.leaf import LeafDataset, Ordering, ResolvedLeaf
from energon_grain.metadataset.open_join import open_join
from energon_grain.metadataset.place import asked_at
from energon_grain.metadataset.tree import AuxReference, Join
from energon_grain.sources.arrays import ArraySource
from energon_grain.sources.joined import JoinedSource
from energon_grain.sources.prepared import PreparedSource
from energon_grain.transforms.decode import SampleDecoder

if TYPE_CHECKING:
    from energon_grain.datasets.lowering import Lowering, Part
    from energon_grain.datasets.task_encoder import TaskEncoder


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrayDataset:
    """An array whose rows belong to the samples of a join.

    Attributes:
        path: Its folder.
        written: The path as the configuration has it.
        field: What the default merge calls it.
    """

    path: str
    written: str
    field: str

    def resolve(self) -> ResolvedArray:
        """Read what it is. Raises as `ArraySource`."""
        return ResolvedArray(source=ArraySource(self.path), field=self.field)


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedArray:
    """An array that is there. Picklable.

    Attributes:
        source: Its rows.
        field: What the default merge calls it.
    """

    source: ArraySource
    field: str


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinedLeafDataset(SavableDataset):
    """A leaf whose samples are rows of a join: one for each key of the first dataset, the primary.

    Attributes:
        join: What is joined, as the metadataset says.
        members: How each dataset's own samples are made, whose order and subsets have no meaning; and the arrays.
        ordering: How rows are ordered.
        task_encoder: Its cookers make samples of rows of crude samples.
        split_config: Name of the split files of datasets for which the metadataset names none.
        dataset_config: Name of their `dataset.yaml`, likewise.
        trusted_modules: Modules that may be named as joiner.
    """

    join: Join
    members: tuple[LeafDataset | ArrayDataset, ...]
    ordering: Ordering
    task_encoder: TaskEncoder
    split_config: str | None = None
    dataset_config: str | None = None
    trusted_modules: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[str, ...]:
        """What distinguishes this leaf from others in a configuration, before occurrences are counted."""
        if self.join.name is not None:
            return ("name", self.join.name)
        written = [
            f"array {member.written}"
            if isinstance(member, ArrayDataset)
            else f"{member.written or member.path} {member.split_part}"
            for member in self.members
        ]
        return ("join", *written, "" if self.join.subset is None else str(self.join.subset))

    @property
    def path(self) -> str:
        """The primary's folder, for messages."""
        return self.members[0].path

    @property
    def aux(self) -> Mapping[str, AuxReference]:
        """None: joined samples have no auxiliary stores."""
        return {}

    def lower(self, to: Lowering) -> Part:
        """See `SavableDataset.lower`."""
        return to.leaf(self)

    def resolve(self) -> ResolvedJoin:
        """Read the datasets' configurations and open the join index.

        Raises:
            DatasetNotFoundError: A dataset or array is missing, or the join is large and was not prepared.
            StaleIndexError: The join index does not fit the datasets.
            UntrustedCodeError: The joiner is of a module that the program did not declare.
            ConfigError: The configuration is wrong in another way, or the joiner does not fit.
            EmptyDatasetError: No row is left.
        """
        subset = self.join.subset
        with asked_at(self.join.place):
            index = open_join(self.join, split_config=self.split_config, dataset_config=self.dataset_config)
            start, stop = (0, len(index)) if subset is None else subset.resolve(len(index), of="the join")
        members = tuple(
            member.resolve() if isinstance(member, ArrayDataset) else member.resolve(whole=True)
            for member in self.members
        )
        row = bind_joiner(
            self.join.joiner,
            types=[member.sample_type for member in members if not isinstance(member, ResolvedArray)],
            fields=[member.field for member in members if isinstance(member, ResolvedArray)],
            names=[member.argument for member in self.join.members],
            trusted_modules=self.trusted_modules,
            where=str(self.join.place),
        )
        return ResolvedJoin(
            source=JoinedSource(index, [_joinable(member) for member in members], start=start, stop=stop),
            members=members,
            row=row,
            ordering=self.ordering,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedJoin:
    """A joined leaf whose configuration was read and whose indices are open. Picklable.

    Attributes:
        source: The rows.
        members: How samples of each dataset are made, the primary first; and the arrays.
        row: Makes one sample of a row's.
        ordering: How rows are ordered.
    """

    source: JoinedSource
    members: tuple[ResolvedLeaf | ResolvedArray, ...]
    row: JoinRow
    ordering: Ordering

    @property
    def primary(self) -> ResolvedLeaf:
        """The first dataset."""
        primary = self.members[0]
        assert isinstance(primary, ResolvedLeaf)
        return primary

    @property
    def sample_type(self) -> type[Any] | None:
        """What rows are made into; None for crude samples, which are cooked."""
        return self.row.sample_type

    @property
    def subflavors(self) -> dict[str, Any]:
        """Tags of the primary's samples."""
        return self.primary.subflavors

    @property
    def decoder(self) -> SampleDecoder | None:
        """The primary's."""
        return self.primary.decoder

    @property
    def path(self) -> str:
        """The primary's folder, for provenance."""
        return os.fspath(self.source.path)


def _joinable(member: ResolvedLeaf | ResolvedArray) -> PreparedSource | ArraySource:
    source = member.source
    assert isinstance(source, PreparedSource | ArraySource)  # metadatasets refuse to join others
    return source
