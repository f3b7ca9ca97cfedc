"""What a task encoder's builders get: the datasets of a metadataset, and how it says to combine them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.mixtures import Weight

Schedule = Sequence[tuple[int, Sequence[Weight]]]


class DatasetBlendMode(Enum):
    """How the numbers of `LoadedDataset`s are meant."""

    NONE = "none"
    """There are none: a single dataset."""
    DATASET_WEIGHT = "dataset_weight"
    """Weights of an endless blend."""
    SAMPLE_REPETITIONS = "sample_repetitions"
    """How often an epoch has each sample."""


class LoadedDataset(tuple[SavableDataset, Weight]):
    """A (dataset, number) pair, as `BlendDataset` and `BlendEpochizedDataset` take it, with what it comes from.

    Attributes:
        dataset: A leaf; or a mixture, where a metadataset nests other nodes than blends (`concat`).
        weight: Its weight in a blend as a float, as in Energon; the pair has it exactly. None in other modes.
        repetitions: Its repetitions in an epochized blend; None in other modes.
        subflavors: Tags of a leaf's samples, without those of its own `dataset.yaml`; empty for a mixture.
        path: Folder of a leaf; None for a mixture. So are:
        split_part: The part that is read.
        name: The leaf's identity in the random order, where the metadataset gives one.
        combined_at: Place of the blend in its file, for messages; empty where there is none.
    """

    weight: float | None
    repetitions: Weight | None
    subflavors: Mapping[str, Any]
    path: str | None
    split_part: str | None
    name: str | None
    combined_at: str

    def __new__(
        cls,
        dataset: SavableDataset,
        weight: Weight | None = None,
        *,
        repetitions: Weight | None = None,
        subflavors: Mapping[str, Any] | None = None,
        path: str | None = None,
        split_part: str | None = None,
        name: str | None = None,
        combined_at: str = "",
    ) -> LoadedDataset:
        """Make a pair of the dataset and its weight, or its repetitions, or 1."""
        number = weight if weight is not None else repetitions if repetitions is not None else 1
        made = super().__new__(cls, (dataset, number))
        made.weight = None if weight is None else float(weight)
        made.repetitions = repetitions
        made.subflavors = subflavors or {}
        made.path = path
        made.split_part = split_part
        made.name = name
        made.combined_at = combined_at
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)

    @property
    def dataset(self) -> SavableDataset:
        """The first of the pair."""
        return self[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedDatasets:
    """The datasets at the top of a metadataset.

    Attributes:
        datasets: At least one.
        blend_mode: How they are combined.
        schedule: (from_position, a weight for each dataset) of each segment, where weights change on the way.
    """

    datasets: list[LoadedDataset]
    blend_mode: DatasetBlendMode
    schedule: Schedule | None = None
