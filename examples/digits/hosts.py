"""Continue a saved run on any number of hosts, without training: what would every global batch hold?"""

from __future__ import annotations

from pathlib import Path

import orbax.checkpoint as ocp
from train import BATCH_SIZE, digest, train_dataset

from energon_grain import WorkerConfig, get_savable_loader
from energon_grain.loader import EnergonCheckpointRestore

GlobalBatch = dict[str, str]
"""Key of each sample to a hash of its image (augmented, so the random numbers count too) and label."""


def resumed_on_hosts(dataset: Path, checkpoints: Path, hosts: int, steps: int) -> list[GlobalBatch]:
    """The global batches of the next `steps` steps, put together from the batches of `hosts` hosts.

    Each host is a loader of its own with its own rank; in earnest each would live in a process of its own.
    """
    batches: list[GlobalBatch] = [{} for _ in range(steps)]
    for rank in range(hosts):
        loader = get_savable_loader(
            train_dataset(dataset, WorkerConfig(rank=rank, world_size=hosts), batch_size=BATCH_SIZE // hosts)
        )
        with ocp.CheckpointManager(checkpoints.resolve()) as manager:
            manager.restore(manager.latest_step(), args=ocp.args.Composite(loader=EnergonCheckpointRestore(loader)))
        for batch, local in zip(batches, loader, strict=False):
            for key, image, label in zip(local.__key__, local.image, local.label, strict=True):
                batch[key] = digest([image, label])
        loader.close()
    return batches
