"""The loader as the source of a Grain iteration pipeline."""

from __future__ import annotations

from typing import Any

from energon_grain.datasets.dataset import SavableDataset
from energon_grain.errors import ConfigError
from energon_grain.extras import needed_for
from energon_grain.loader.element_spec import spec_of_batches
from energon_grain.loader.iterator import PipelineLoader
from energon_grain.loader.jax_processes import jax_processes
from energon_grain.samples.subscripts import EncodedBatch
from energon_grain.stream.cursor import with_agreement
from energon_grain.stream.stream import Stream, config_to_run

with needed_for("BatchIterDataset"):
    import grain


class BatchIterDataset(grain.IterDataset[EncodedBatch]):
    """A `grain.IterDataset` of this host's batches: Grain's transformations and checkpoints work on top.

    Each `iter` makes a loader of its own, which begins at the start. Elements, state and exactness are those of
    `get_savable_loader`. Below `mp_prefetch` and `multithread_prefetch` each process or thread makes its own steps and
    reads nothing else; where a dataset filters, groups, packs or generates there is no such thing.

    Args:
        dataset: What `get_train_dataset` or `get_val_dataset` returned.
    """

    def __init__(self, dataset: SavableDataset[EncodedBatch]) -> None:
        super().__init__()
        config_to_run(dataset, None)  # which refuses what is no dataset
        self._dataset = dataset
        self._steps = slice(0, None, 1)

    def __iter__(self) -> PipelineLoader[EncodedBatch]:
        config = with_agreement(config_to_run(self._dataset, None), jax_processes())
        first, readers = self._steps.start, self._steps.step
        if readers == 1:
            stream = Stream.of(self._dataset, worker_config=config)
        else:
            spec = self._dataset.compiled(hosts=config.world_size)
            stream = Stream.of_steps(spec, config, first=first, readers=readers)
        return PipelineLoader(stream, str(self))

    def __str__(self) -> str:
        return f"BatchIterDataset({self._dataset!r})"

    __repr__ = __str__

    @property
    def _element_spec(self) -> Any:
        with iter(self) as batches:
            return spec_of_batches(batches)

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Make every so manieth step alone: what `mp_prefetch` and `multithread_prefetch` ask of each reader.

        Raises:
            ConfigError: What a step is made of depends on the data of those before; or the steps would not be taken in
                turns.
        """
        first, readers = sl.start or 0, sl.step or 1
        if sl.stop is not None or sequential_slice:
            raise ConfigError("BatchIterDataset: readers beside each other take steps in turns; sequential_slice=False")
        if readers > 1 and self._dataset.compiled().program is not None:
            raise ConfigError(
                "mp_prefetch above a BatchIterDataset that filters, groups, packs or generates: what a step is made of "
                "depends on the data of those before, so each process would read everything; use "
                "WorkerConfig(worker_type='process') below"
            )
        self._steps = slice(self._steps.start + first * self._steps.step, None, self._steps.step * readers)
