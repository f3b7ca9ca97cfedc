# SPDX-License-Identifier: Apache-2.0
"""Forked children keep no connections of their parent: the end of a connection shows that a process has ended."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Connected(Protocol):
    """Something with sockets."""

    def close_ends(self) -> None:
        """Close the sockets."""
        ...


connected: weakref.WeakSet[Connected] = weakref.WeakSet()
"""Everything whose sockets a forked child closes."""


def _in_child() -> None:
    for each in tuple(connected):
        each.close_ends()


os.register_at_fork(after_in_child=_in_child)
