# SPDX-License-Identifier: Apache-2.0
"""Small datasets of every kind, each in one call: for first steps and for tests.

All functions write the same bytes for the same arguments (given the same versions of Pillow and numpy), as tar shards
with `.nv-meta` next to them, and return the folder. They share these options:

* `root`: a new or empty folder, or one written by such a call, which is replaced.
* `n`: samples; `shards`: number of tar files, filled in order. The keys are `000000`, `000001`, …
* `seed`: selects other contents.
* `prepared`: also run `prepare`, with the last shard as split part `val` and the others as `train`; a single shard is
  both. False leaves bare tars.
* `broken`: numbers of samples that cannot be decoded.

`write_tars` writes custom samples. `check_hooks` checks that the hooks of a task encoder process each sample
independently of others. `check_kind`, `check_source`, `check_store`, `check_object_store`, `check_pool` and
`check_node` check custom implementations of a kind of data, a source, a file store, an object store, a worker pool and
a dataset node.
"""

from __future__ import annotations

from energon_grain.lazy_names import from_stub

__getattr__, __dir__ = from_stub(globals())
