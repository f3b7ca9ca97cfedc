# SPDX-License-Identifier: Apache-2.0
"""Integration with Grain: data sources, datasets, checkpointable iterators, device placement.

* `get_loader`, `get_savable_loader`: whole batches, with threads and state; a `grain.DatasetIterator` if Grain is
  installed. Only these two and `EnergonDataSource` work without the extra `jax`.
* `BatchMapDataset`, `BatchIterDataset`: the same batches as elements of a Grain pipeline.
* `EnergonDataSource`: single samples by index, for custom pipelines.
* `to_device`: batches as global `jax.Array`s, copied ahead of use.
* `EnergonCheckpointSave`, `EnergonCheckpointRestore`: arguments for Orbax's `CheckpointManager`.
"""

from __future__ import annotations

from energon_grain.lazy_names import from_stub

__getattr__, __dir__ = from_stub(globals())
