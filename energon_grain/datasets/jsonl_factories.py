"""JSONL files by class, as programs name them that were written for Energon."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from energon_grain.datasets.leaf import SampleDefinition
from energon_grain.datasets.webdataset_factories import BaseWebdatasetFactory, Parts
from energon_grain.prepare.preparation import prepare_jsonl
from energon_grain.samples.types import CrudeSample
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.transforms.decode import SampleDecoder

_DECODER = SampleDecoder()


class CrudeJsonlDatasetFactory(BaseWebdatasetFactory[CrudeSample]):
    """The samples of a JSONL file, crude, with the line as bytes in `json`.

    Args:
        path: The file, whose name ends in `.jsonl`.
        training: As in `BaseWebdatasetFactory`, and so are the others.
        worker_config: See there.
        shuffle_over_epochs: See there.
        parallel_shard_iters: See there.
        max_samples_per_sequence: See there.
        subset: See there.
        part_filter: See there; the one part is `json`.
    """

    __sample_type__ = CrudeSample

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        training: bool,
        worker_config: WorkerConfig,
        shuffle_over_epochs: int | None = 1,
        parallel_shard_iters: int | None = None,
        max_samples_per_sequence: int | None = None,
        subset: Any = None,
        part_filter: Parts | None = None,
    ) -> None:
        super().__init__(
            path,
            split_part="train",  # a JSONL file has no splits, but orders are keyed by one
            training=training,
            worker_config=worker_config,
            shuffle_over_epochs=shuffle_over_epochs,
            parallel_shard_iters=parallel_shard_iters,
            max_samples_per_sequence=max_samples_per_sequence,
            subset=subset,
            part_filter=part_filter,
        )

    def load_sample(self, sample: Any) -> CrudeSample:
        """Make a sample of a crude one: it stays as it is, unless a subclass changes it."""
        return sample

    def definition(self) -> SampleDefinition:
        """How samples are made: not at all, unless a subclass does it."""
        load = None if type(self).load_sample is CrudeJsonlDatasetFactory.load_sample else self.load_sample
        return SampleDefinition(load=load, part_filter=self.part_filter)

    @staticmethod
    def prepare_dataset(path: str | os.PathLike[str]) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Write the index of a JSONL file, and return how many samples it has. Raises as `prepare_jsonl`."""
        return prepare_jsonl(path).samples


class DefaultCrudeJsonlDatasetFactory(CrudeJsonlDatasetFactory):
    """The samples of a JSONL file, crude, with what the line says in `json`.

    Args:
        path: As in `CrudeJsonlDatasetFactory`, and so are `kwargs`.
        subflavors: Tags of every sample.
        **kwargs: See there. A `decoder` is accepted and not asked: JSON is decoded in one way only.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, subflavors: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        kwargs.pop("decoder", None)
        super().__init__(path, **kwargs)
        self.subflavors = dict(subflavors or {})

    def definition(self) -> SampleDefinition:
        """How samples are made: the line is decoded."""
        load = None if type(self).load_sample is CrudeJsonlDatasetFactory.load_sample else self._decode_and_load
        return SampleDefinition(load=load, decoder=None if load else _DECODER, part_filter=self.part_filter)

    def _decode_and_load(self, sample: Any) -> CrudeSample:
        return self.load_sample(CrudeSample(_DECODER(sample)))
