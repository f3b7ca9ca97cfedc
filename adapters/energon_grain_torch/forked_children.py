"""Forked children of the program have copies of `DataLoader` iterators, but not their workers."""

from __future__ import annotations

import os
import weakref
from typing import Any

_iterators: weakref.WeakSet[Any] = weakref.WeakSet()


def belongs_to_this_process(iterator: Any) -> None:
    """Let forked children drop an iterator with workers: else PyTorch would end those, and fail with a message."""
    _iterators.add(iterator)


def _disown() -> None:
    for iterator in _iterators:
        iterator._shutdown = True
    _iterators.clear()


os.register_at_fork(after_in_child=_disown)
