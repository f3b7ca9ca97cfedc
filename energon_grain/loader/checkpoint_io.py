"""What `orbax.checkpoint.v1` calls: a blocking part at once, then a coroutine for the background."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from energon_grain.loader.checkpoint_file import read_state, write_state
from energon_grain.loader.jax_processes import gather_over_jax, is_primary
from energon_grain.stream.cursor import Cursor


class Restorable(Protocol):
    """A loader, as far as restoring needs it."""

    def restore_state_rank(self, state: Mapping[str, Any] | None) -> None:
        """Go to a saved place."""
        ...

    def start_prefetch(self) -> None:
        """Begin to read ahead."""
        ...


async def save_cursor(cursor: Cursor, directory: Any) -> Awaitable[None]:
    """Gather the states of all hosts now; the file is written by the coroutine that this returns."""
    merged = gather_over_jax(cursor)

    async def write() -> None:
        folder = await directory.await_creation()
        if is_primary():
            await asyncio.to_thread(write_state, folder, merged)

    return write()


async def load_cursor(loader: Restorable, directory: Any) -> Awaitable[None]:
    """Restore the loader and let it read ahead; nothing is left to the coroutine that this returns.

    Orbax reports any error of that coroutine as an "incompatible handler"; one that is raised here arrives as it is.
    """
    loader.restore_state_rank(read_state(directory))
    loader.start_prefetch()

    async def done() -> None:
        return None

    return done()
