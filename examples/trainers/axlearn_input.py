"""axlearn: a `BuildDatasetFn` for `axlearn.common.input_grain.Input`.

    input_grain.Input.default_config().set(
        source=config_for_function(energon_source).set(path="/data/images", global_batch_size=256, task_encoder=Encoder)
    )

Checkpoints store the state like that of any Grain iterator. A restore needs the same number of feeds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grain

from energon_grain import TaskEncoder, WorkerConfig, get_train_dataset
from energon_grain.loader import BatchIterDataset


def energon_source(
    *, path: str, global_batch_size: int, task_encoder: Callable[[], TaskEncoder], num_workers: int = 2, seed: int = 0
) -> Callable[[Any], grain.IterDataset[Any]]:
    """Return a function that makes the dataset of one feed.

    Args:
        path: Prepared dataset or metadataset.
        global_batch_size: Number of samples in a step, summed over all feeds.
        task_encoder: Class (or function) that makes the encoder: axlearn's configurations hold no objects. Batches
            must be dictionaries of arrays: axlearn handles only arrays.
        num_workers: Number of threads in each feed.
        seed: Seed of the order.
    """

    def build(dispatch_config: Any) -> grain.IterDataset[Any]:
        (feed,), (feeds,) = dispatch_config.shard_index, dispatch_config.num_shards
        if global_batch_size % feeds:
            raise ValueError(f"expected a global_batch_size divisible by the {feeds} feeds, got {global_batch_size}")
        dataset = get_train_dataset(
            path,
            worker_config=WorkerConfig(rank=feed, world_size=feeds, num_workers=num_workers),
            batch_size=global_batch_size // feeds,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
            task_encoder=task_encoder(),
            seed=seed,
        )
        return BatchIterDataset(dataset)

    return build
