# SPDX-License-Identifier: Apache-2.0
"""`prepare`: a loader for a training loop with Hugging Face's accelerate, saved and restored with its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from energon_grain.errors import public
from energon_grain_torch.loader import SavableDataLoader, get_savable_loader
from energon_grain_torch.trainers.checks import checked, data_parallel_size, trainer_packages

with trainer_packages("accelerate", accelerate="accelerate>=1.10"):
    from accelerate import Accelerator
    from accelerate.utils import send_to_device

_ADVICE = (
    "make the dataset after the `Accelerator`, which starts torch.distributed, with "
    "worker_config=WorkerConfig.default_worker_config(…)"
)


@public
class AcceleratedLoader:
    """Batches of one rank on the device of an `Accelerator`. `prepare` makes it.

    Args:
        accelerator: The accelerator of the program.
        loader: The loader of this rank.

    Attributes:
        loader: The loader, for `stats()` and `which(step)`.
    """

    def __init__(self, accelerator: Accelerator, loader: SavableDataLoader[Any]) -> None:
        self.loader = loader
        self._device = accelerator.device

    def __iter__(self) -> Iterator[Any]:
        """One pass; after a `break`, the rest of it."""
        for batch in self.loader:
            yield send_to_device(batch, self._device, non_blocking=True)

    def __len__(self) -> int:
        """Steps of the current pass; of one pass over the data where the stream is endless."""
        return len(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """The state of all ranks. `accelerator.save_state` calls it on every rank."""
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to the position of a `state_dict`, saved on any number of ranks."""
        self.loader.load_state_dict(state_dict)

    def close(self) -> None:
        """End workers and release files."""
        self.loader.close()


@public
def prepare(accelerator: Accelerator, dataset: Any, **options: Any) -> AcceleratedLoader:
    """A loader for this rank, registered for the checkpoints of an accelerator.

    `accelerator.save_state` then saves the loader's state, and `accelerator.load_state` restores it on any number of
    ranks: the loop continues with the next batch, and `skip_first_batches` is not needed. Call it once for each
    dataset, and in the same order before saving and loading. `accelerator.prepare` takes model and optimizer as usual,
    and must not get the dataset: it would split between the ranks batches that are already split.

    With a `ParallelismConfig`, `WorkerConfig.of_mesh(accelerator.torch_device_mesh, data=…)` makes ranks that need the
    same batches read once; `data` names the dimensions `dp_replicate` and `dp_shard` of the mesh.

    Args:
        accelerator: The accelerator of the program.
        dataset: A dataset of `get_train_dataset`, made after the accelerator.
        **options: Arguments of `get_savable_loader`.

    Raises:
        ConfigError: The dataset is made for one rank, and the accelerator has several processes; or it has replicas
            that train with data parallelism.
    """
    loader = get_savable_loader(dataset, **options)
    config, parallelism = loader.stream.config, getattr(accelerator, "parallelism_config", None)
    checked(loader, data_parallel_size(parallelism, accelerator.num_processes, config), _ADVICE)
    prepared = AcceleratedLoader(accelerator, loader)
    accelerator.register_for_checkpointing(prepared)
    return prepared
