# SPDX-License-Identifier: Apache-2.0
"""The Grain exposure: data sources, datasets, checkpointable iterators, device placement.

* `get_loader`, `get_savable_loader`: whole batches, with threads and state; a `grain.DatasetIterator`, where Grain is
  installed. Of what stands here they alone and `EnergonDataSource` do without the extra `jax`.
* `BatchMapDataset`, `BatchIterDataset`: the same batches as elements of a Grain pipeline.
* `EnergonDataSource`: single samples by index, for pipelines of your own.
* `to_device`: batches as global `jax.Array`s, copied ahead of use.
* `EnergonCheckpointSave`, `EnergonCheckpointRestore`: arguments for Orbax's `CheckpointManager`.
"""

from __future__ import annotations

from energon_grain.lazy_names import from_stub

__getattr__, __dir__ = from_stub(globals())
