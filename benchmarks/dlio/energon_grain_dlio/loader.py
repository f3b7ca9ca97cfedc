"""The data loader that DLIO calls, named by `workload.reader.data_loader_classname`.

It follows https://dlio-benchmark.readthedocs.io/en/latest/custom_data_loader.html. The batches have the contents of
the files; DLIO's own loaders read the files, and return a constant sample of the same size instead.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader

from energon_grain_torch import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset


class Decode(DefaultTaskEncoder):
    """Decodes arrays and images by the ending of their files."""


class EnergonGrainDataLoader(BaseDataLoader):
    """Reads the files of DLIO in a random order, each rank its share, with `reader.read_threads` threads.

    The loader lives as long as the run: it goes on with the next epoch while DLIO closes one.
    """

    def __init__(self, format_type: Any, dataset_type: Any, epoch_number: int) -> None:
        super().__init__(format_type, dataset_type, epoch_number, DataLoaderType.PYTORCH)
        self._loader: Any = None
        self._folder: Any = None

    @property
    def _steps(self) -> int:
        train = self.dataset_type is DatasetType.TRAIN
        return self._args.training_steps if train else self._args.eval_steps

    def read(self) -> None:
        """Open the files of the run. Called once, before the first epoch."""
        train = self.dataset_type is DatasetType.TRAIN
        files = self._args.file_list_train if train else self._args.file_list_eval
        self._folder = tempfile.TemporaryDirectory(prefix="energon-grain-dlio-")
        listed = Path(self._folder.name, "files.dlio")
        listed.write_text("".join(f"{os.path.abspath(file)}\n" for file in files))
        dataset = get_train_dataset(
            listed,
            worker_config=WorkerConfig(
                rank=self._args.my_rank,
                world_size=self._args.comm_size,
                num_workers=self._args.read_threads,
                worker_type="thread",
            ),
            batch_size=self.batch_size,
            shuffle_buffer_size=len(files),
            max_samples_per_sequence=None,
            task_encoder=Decode(),
            seed=self._args.seed,
        )
        self._loader = get_savable_loader(dataset)

    def next(self) -> Iterator[Any]:
        """Yield the batches of one epoch."""
        super().next()
        batches = iter(self._loader)
        for _ in range(self._steps):
            yield next(batches)
        self.epoch_number += 1

    def finalize(self) -> None:
        """Called after each epoch; the loader goes on in the next."""
