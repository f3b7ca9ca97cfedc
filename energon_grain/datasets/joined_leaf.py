"""Datasets that are joined by the keys of their samples, as they stand in a configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.joining import JoinRow, bind_joiner
from energon_grain.datasets.leaf import LeafDataset, Ordering, ResolvedLeaf
from energon_grain.datasets.task_encoder import TaskEncoder
from energon_grain.metadataset.open_join import open_join
from energon_grain.metadataset.tree import AuxReference, Join
from energon_grain.sources.joined import JoinedSource
from energon_grain.transforms.decode import SampleDecoder


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinedLeafDataset(SavableDataset):
    """A leaf whose samples are rows of a join: one for each key of the first dataset, the primary.

    Attributes:
        join: What is joined, as the metadataset says.
        members: How each dataset's own samples are made; their order and subsets have no meaning.
        ordering: How rows are ordered.
        task_encoder: Its cookers make samples of rows of crude samples.
        split_config: Name of the split files of datasets for which the metadataset names none.
        dataset_config: Name of their `dataset.yaml`, likewise.
        trusted_modules: Modules that may be named as joiner.
    """

    join: Join
    members: tuple[LeafDataset, ...]
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
        written = [f"{member.written or member.path} {member.split_part}" for member in self.members]
        return ("join", *written, "" if self.join.subset is None else str(self.join.subset))

    @property
    def path(self) -> str:
        """The primary's folder, for messages."""
        return self.members[0].path

    @property
    def aux(self) -> Mapping[str, AuxReference]:
        """None: joined samples have no auxiliary stores."""
        return {}

    def resolve(self) -> ResolvedJoin:
        """Read the datasets' configurations and open the join index.

        Raises:
            StaleIndexError: The join index is missing, or does not fit the datasets.
            UntrustedCodeError: The joiner is of a module that the program did not declare.
            ConfigError: The configuration is wrong in another way, or the joiner does not fit.
            EmptyDatasetError: No row is left.
        """
        index = open_join(self.join, split_config=self.split_config, dataset_config=self.dataset_config)
        members = tuple(member.resolve(whole=True) for member in self.members)
        row = bind_joiner(
            self.join.joiner,
            types=[member.sample_type for member in members],
            names=[member.argument for member in self.join.members],
            trusted_modules=self.trusted_modules,
            where=str(self.join.place),
        )
        start, stop = (0, len(index)) if self.join.subset is None else self.join.subset.resolve(len(index))
        return ResolvedJoin(
            source=JoinedSource(index, [member.source for member in members], start=start, stop=stop),
            members=members,
            row=row,
            ordering=self.ordering,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedJoin:
    """A joined leaf whose configuration was read and whose indices are open. Picklable.

    Attributes:
        source: The rows.
        members: How samples of each dataset are made.
        row: Makes one sample of a row's.
        ordering: How rows are ordered.
    """

    source: JoinedSource
    members: tuple[ResolvedLeaf, ...]
    row: JoinRow
    ordering: Ordering

    @property
    def sample_type(self) -> type[Any] | None:
        """What rows are made into; None for crude samples, which are cooked."""
        return self.row.sample_type

    @property
    def subflavors(self) -> Mapping[str, Any] | None:
        """Tags of the primary's samples."""
        return self.members[0].subflavors

    @property
    def decoder(self) -> SampleDecoder | None:
        """The primary's."""
        return self.members[0].decoder

    @property
    def path(self) -> str:
        """The primary's folder, for provenance."""
        return os.fspath(self.source.path)
