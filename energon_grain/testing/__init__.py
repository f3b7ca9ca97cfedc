# SPDX-License-Identifier: Apache-2.0
"""Small datasets of every kind, each in one call: for first steps, for our tests and for yours.

All functions write the same bytes for the same arguments (given the same versions of Pillow and numpy), shards as tars
with `.nv-meta` beside them, and return the folder. They share these options:

* `root`: a new or empty folder, or one that such a call wrote before, which is replaced.
* `n`: samples; `shards`: tar files that they are spread over, in order. The keys are `000000`, `000001`, …
* `seed`: other contents.
* `prepared`: run `prepare` too, with the last shard as split part `val` and the others as `train`; a single shard is
  both. False leaves bare tars.
* `broken`: numbers of samples that are made undecodable.

`write_tars` writes samples of your own. `check_hooks` checks that what a task encoder's hooks make of a sample does not
depend on the samples beside it; `check_kind`, `check_source`, `check_store`, `check_object_store`, `check_pool` and
`check_node` check a kind of data, a source, a store of files, an object store, a pool of workers and a dataset node of
your own.
"""

from __future__ import annotations

from energon_grain.lazy_names import from_stub

__getattr__, __dir__ = from_stub(globals())
