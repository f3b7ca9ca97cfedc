# SPDX-License-Identifier: Apache-2.0
"""The messages from the replica that reads to the others."""

from __future__ import annotations

from typing import NamedTuple


class Message(NamedTuple):
    """The message to a replica for a step.

    Attributes:
        number: Number of the message.
        generation: How often the replicas went to another place, by restoring, seeking, skipping or a new pass.
        step: Number of the step since then.
        places: (offset, size) in bytes of each part of the batch in its file, the pickle first; empty: there is no
            file.
        error: Raised in place of the step; None without a file: the pass has ended.
        dropped: Whether any sample has been dropped.
        begins: Whether this is no step, but the place of the first step that a replica gets which connected later.
    """

    number: int
    generation: int
    step: int
    places: tuple[tuple[int, int], ...] = ()
    error: Exception | None = None
    dropped: bool = False
    begins: bool = False
