# SPDX-License-Identifier: Apache-2.0
"""A memory budget for a process tree: all loaders, threads, processes, caches and look-ahead together.

`use_memory` (`budget.py`) sets it. `budget.py` measures and divides, `ledger.py` is what the processes of a tree know
of each other, `measure.py` reads PSS, `ahead.py` limits the look-ahead, and `allocator.py` tunes the C library.
Anything else that holds memory registers in `stream.memory.holders`.
"""
