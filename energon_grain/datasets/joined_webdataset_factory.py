"""A join by class, as programs that were written for Energon name it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from energon_grain.datasets.joined_leaf import JoinedLeafDataset, Joiner, JoinMember
from energon_grain.datasets.webdataset_factories import BaseWebdatasetFactory
from energon_grain.errors import ConfigError
from energon_grain.forms import Place
from energon_grain.prepare.join_members import Nonmatch
from energon_grain.samplers.subset import Subset
from energon_grain.stream.worker_config import WorkerConfig

T_sample = TypeVar("T_sample")
Inner = BaseWebdatasetFactory[Any]


class JoinedWebdatasetFactory(Generic[T_sample]):
    """Datasets joined by the keys of their samples, as `join:` in a metadataset joins them.

    The join is made when it is used, which is refused for more than a million samples: write a metadataset for those.

    Args:
        inner_datasets: The primary, and the others; a mapping gives the joiner its samples by name.
        training: As in `BaseWebdatasetFactory`, and so are the others that are not listed here.
        worker_config: See there.
        shuffle_over_epochs: See there; of the joined samples.
        parallel_shard_iters: See there.
        max_samples_per_sequence: See there.
        subset: Range of the joined samples.
        join_index: Accepted for compatibility.
        joiner: A sample type, whose `from_joined` makes the samples, or a function that does.
        nonmatch: What becomes of keys of the primary that another dataset lacks: an "error", "skip" the sample, or
            "none" in its place.

    Raises:
        ConfigError: There are not two datasets.
    """

    def __init__(
        self,
        inner_datasets: Sequence[Inner] | Mapping[str, Inner],
        *,
        training: bool,
        worker_config: WorkerConfig,
        shuffle_over_epochs: int | None = 1,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
        subset: Subset | Any = None,
        join_index: str | os.PathLike[str] | None = None,
        joiner: type[T_sample] | Callable[..., T_sample],
        nonmatch: Nonmatch = "error",
    ) -> None:
        del join_index
        if len(inner_datasets) < 2:
            raise ConfigError(f"JoinedWebdatasetFactory: at least two datasets are joined, not {len(inner_datasets)}")
        if isinstance(inner_datasets, Mapping):
            self.inner_dataset_keys: list[str] | None = list(inner_datasets)
            self.inner_datasets = list(inner_datasets.values())
        else:
            self.inner_dataset_keys = None
            self.inner_datasets = list(inner_datasets)
        self.training = training
        self.worker_config = worker_config
        self.shuffle_over_epochs = shuffle_over_epochs
        self.parallel_shard_iters = parallel_shard_iters
        self.max_samples_per_sequence = max_samples_per_sequence
        self.subset = None if subset is None else Subset.parse(subset)
        self.joiner = joiner
        self.nonmatch: Nonmatch = nonmatch

    @property
    def paths(self) -> list[str]:
        """The folders of the datasets."""
        return [inner.path for inner in self.inner_datasets]

    def build(self, worker_rotation_offset: int = 0) -> JoinedLeafDataset:
        """The dataset node.

        Args:
            worker_rotation_offset: Accepted for compatibility: workers do not own samples.
        """
        del worker_rotation_offset
        names = self.inner_dataset_keys or [None] * len(self.inner_datasets)
        # Rows are ordered and cut, not the datasets that they are made of; how, the primary says.
        leaves = [
            dataclasses.replace(inner.build(), written=Path(inner.path).name, subset=None)
            for inner in self.inner_datasets
        ]
        leaves[0] = dataclasses.replace(
            leaves[0],
            training=self.training,
            shuffle_over_epochs_multiplier=self.shuffle_over_epochs,
            max_samples_per_sequence=self.max_samples_per_sequence,
            parallel_shard_iters=self.parallel_shard_iters,
        )
        return JoinedLeafDataset(
            worker_config=self.worker_config,
            members=tuple(
                JoinMember(leaf=leaf, nonmatch=self.nonmatch if number else "error", argument=name)
                for number, (leaf, name) in enumerate(zip(leaves, names, strict=True))
            ),
            joiner=Joiner(target=self.joiner, is_function=not isinstance(self.joiner, type)),
            subset=self.subset,
            place=Place("JoinedWebdatasetFactory"),
        )

    def __len__(self) -> int:
        """Joined samples of one pass. Makes the join."""
        return len(self.build().resolve().source)

    def __bool__(self) -> bool:
        return True

    def config(self) -> dict[str, Any]:
        """What describes it in logs; JSON-native."""
        return {
            "type": type(self).__qualname__,
            "joined_datasets": [inner.config() for inner in self.inner_datasets],
            "training": self.training,
            "shuffle_over_epochs": self.shuffle_over_epochs,
            "parallel_shard_iters": self.parallel_shard_iters,
            "max_samples_per_sequence": self.max_samples_per_sequence,
            "subset": None if self.subset is None else str(self.subset),
        }

    def __str__(self) -> str:
        return f"JoinedWebdatasetFactory(paths={self.paths})"
