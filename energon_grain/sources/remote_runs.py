"""How many consecutive samples are read together where nothing says so and samples lie in an object store."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

REMOTE_RUN_BYTES = 4 << 20
"""A request of 4 MiB moves about as much in its time as it takes to be answered: 50 ms at 80 MB/s a connection."""


@runtime_checkable
class ReadInRuns(Protocol):
    """A source of which single samples may be dear."""

    @property
    def run_samples(self) -> int | None:
        """Consecutive samples to read together in a shuffle; None: each may be read by itself."""
        ...


def remote_run(total_bytes: int, samples: int) -> int | None:
    """Samples in 4 MiB, or None where that is one or less.

    Args:
        total_bytes: Of all samples of a dataset.
        samples: How many these are.
    """
    found = REMOTE_RUN_BYTES * samples // max(total_bytes, 1)
    return found if found > 1 else None
