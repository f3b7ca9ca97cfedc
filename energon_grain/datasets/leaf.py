"""A dataset as it stands in a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energon_grain.datasets.aux_stores import AuxReference, check_aux_has_a_cooker
from energon_grain.datasets.containers import Chosen, Container, SampleDefinition, container_at, container_of
from energon_grain.datasets.dataset import SavableDataset
from energon_grain.formats.dataset_config import DEFAULT_DATASET_CONFIG, DatasetConfig
from energon_grain.formats.nv_meta import DatasetKind
from energon_grain.forms import Place, asked_at
from energon_grain.samplers.subset import Subset
from energon_grain.sources.source import PartFilter
from energon_grain.storage.location import is_url
from energon_grain.stream.leaves import Ordering, ResolvedLeaf

if TYPE_CHECKING:
    from energon_grain.datasets.lowering import Lowering, Part
    from energon_grain.datasets.task_encoder import TaskEncoder


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafDataset(SavableDataset):
    """One split part of a dataset, with how it is ordered.

    Attributes:
        path: The dataset's folder, or a JSONL file.
        kind: What lies there; None: that is looked at when it is opened.
        split_part: Name of the split part, as in the split configuration; a JSONL file has but one, whatever its name.
        training: Whether samples are shuffled; otherwise they come in the order of the shards.
        max_samples_per_sequence: Consecutive samples that are read together (the block of the block shuffle); None:
            every sample is placed by itself (full shuffle), but for object stores, where about 4 MiB are read together.
        shuffle_buffer_size: At least how many samples mix, where blocks are read; None or less than a block: a block
            in each lane.
        parallel_shard_iters: Blocks that mix in each lane, where batches are formed inside a lane.
        shuffle_over_epochs_multiplier: Passes that are shuffled as one; -1: draw with replacement; None: keep order.
        written: The path as the configuration writes it (the folder's name, for a dataset given by itself).
        through: Paths of the nested metadatasets that lead here, as written, outermost first.
        name: The leaf's identity in random keys; default: `through` and `written`, the split part, the subset and the
            occurrence number among equals. So a moved folder keeps its order.
        task_encoder: Its decoder and cookers make samples of the parts.
        trusted_modules: Modules that the dataset's own configuration may name.
        aux: Stores that its cookers read from by key, by the name of the parameter.
        definition: How samples are made; then the dataset's own configuration is not read. Default: as that says.
        place: Where a metadataset names it, for messages.
        chosen: What `check` read, for `resolve`.
    """

    path: str
    kind: DatasetKind | None = None
    split_part: str
    split_config: str | None = None
    dataset_config: str = DEFAULT_DATASET_CONFIG
    subset: Subset | None = None
    subflavors: Mapping[str, Any] = field(default_factory=dict[str, Any])
    training: bool = True
    max_samples_per_sequence: int | None = None
    shuffle_buffer_size: int | None = None
    parallel_shard_iters: int | None = None
    shuffle_over_epochs_multiplier: int | None = 1
    written: str | None = None
    through: tuple[str, ...] = ()
    name: str | None = None
    task_encoder: TaskEncoder
    part_filter: PartFilter = None
    sample_type: type[Any] | None = None
    trusted_modules: tuple[str, ...] = ()
    aux: Mapping[str, AuxReference] = field(default_factory=dict[str, AuxReference])
    definition: SampleDefinition | None = None
    place: Place = field(default=Place("LeafDataset"), compare=False, repr=False)
    chosen: Chosen = field(default_factory=Chosen, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self.ordering()

    @property
    def identity(self) -> tuple[str, ...]:
        """What distinguishes this leaf from others in a configuration, before occurrences are counted."""
        if self.name is not None:
            return ("name", self.name)
        subset = "" if self.subset is None else str(self.subset)
        return ("path", self.label, self.split_part, subset)

    @property
    def label(self) -> str:
        """The path as it is written, through all nested metadatasets."""
        return "/".join((*self.through, Path(self.path).name if self.written is None else self.written))

    def lower(self, to: Lowering) -> Part:
        """See `SavableDataset.lower`."""
        return to.leaf(self)

    def resolve(self, *, whole: bool = False) -> ResolvedLeaf:
        """Read the dataset's configuration and open its index.

        Args:
            whole: The source serves all samples of the dataset, whatever its split says, so that indices are sample
                numbers of the dataset.

        Raises:
            DatasetNotFoundError: `path` is not there, or not prepared.
            SplitError: There is no such split part.
            FieldMapError: The field map does not fit the sample type.
            UntrustedCodeError: The configuration names a class of a module that the program did not declare.
            ConfigError: The configuration is wrong in another way.
            EmptyDatasetError: No sample is left.
        """
        with asked_at(self.place):
            content = self._container().open(self, whole)
            definition = content.definition
            check_aux_has_a_cooker(self.aux, self.path, definition.sample_type)
        return ResolvedLeaf(
            source=content.source,
            sample_type=definition.sample_type,
            field_map=definition.field_map,
            load=definition.load,
            decoder=None if definition.load is not None else definition.decoder,
            subflavors={**content.config.subflavors, **self.subflavors},
            ordering=self.ordering(content.config),
        )

    def check(self, *, whole: bool = False) -> None:
        """Raise what `resolve` would, as far as it can be told without an index, and without asking a store."""
        if not is_url(self.path):
            with asked_at(self.place):
                self._container().check(self, whole)

    def _container(self) -> Container:
        return container_at(self.path) if self.kind is None else container_of(self.kind)

    def ordering(self, config: DatasetConfig | None = None, said_by: str = "") -> Ordering:
        """How samples are ordered: as the program asks, or as the dataset's own configuration insists.

        Raises:
            ConfigError: A number is not valid.
        """
        asked = {
            "training": self.training,
            "shuffle_over_epochs": self.shuffle_over_epochs_multiplier if self.training else None,
            "max_samples_per_sequence": self.max_samples_per_sequence,
            "parallel_shard_iters": self.parallel_shard_iters,
        }
        if config is not None and config.overrides:
            said_by = f"{self.path}: "
            asked |= {name: getattr(config, name) for name in asked if name in config.overrides}
        return Ordering(
            said_by=said_by,
            training=bool(asked["training"]),
            passes=asked["shuffle_over_epochs"],
            block=asked["max_samples_per_sequence"],
            mixing=self.shuffle_buffer_size,
            blocks_in_lane=asked["parallel_shard_iters"],
        )
