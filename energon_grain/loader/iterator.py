"""The loader: a `grain.DatasetIterator` over whole batches."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Mapping
from typing import Any, ClassVar

import grain

from energon_grain.loader.checkpoint_io import load_cursor, save_cursor
from energon_grain.loader.jax_processes import JaxProcesses, jax_processes
from energon_grain.samples.pytree import register_value
from energon_grain.stream.cursor import Cursor
from energon_grain.stream.run import Stream
from energon_grain.stream.stream_loader import StreamLoader


class SavableDataLoader(StreamLoader, grain.DatasetIterator[Any]):
    """Batches of one host, with state.

    A loop that was left by `break` continues where it stopped; after the end of a pass the next `iter` begins the next
    one (for validation: the same one). `next` in between raises StopIteration.

    The state is one small JSON object that any number of hosts restores, with any batch size. It works with
    `grain.checkpoint.CheckpointSave` (the same number of processes), `EnergonCheckpointSave` (any number), and
    `orbax.checkpoint.v1` as a checkpointable (any number).

    Args:
        stream: What to iterate over; closed together with the loader.
    """

    _framework: ClassVar[str] = "`jax.distributed`"

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream

    def _processes(self) -> JaxProcesses | None:
        return jax_processes()

    def __next__(self) -> Any:
        self._assert_not_closed()
        batch = super().__next__()
        if "jax" in sys.modules:
            register_value(batch)
        return batch

    def get_state(self) -> Cursor:
        """The state behind the last delivered batch; cheap enough to ask for after each."""
        return self._stream.cursor()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to a saved place. Raises as `Stream.restore` does."""
        self._stream.restore(state)

    async def save(self, directory: Any) -> Awaitable[None]:
        """Write the state into a checkpoint (`orbax.checkpoint.v1`): one file, whatever the number of hosts."""
        return await save_cursor(self.save_state_rank(), directory)

    async def load(self, directory: Any) -> Awaitable[None]:
        """Read the state from a checkpoint that any number of hosts wrote, and begin to read ahead."""
        return await load_cursor(self, directory)

    def restore_sample(self, restore_key: Any) -> Any:
        """A sample or batch again. See `StreamLoader.restore_sample`."""
        sample = super().restore_sample(restore_key)
        if "jax" in sys.modules:
            register_value(sample)
        return sample

    def close(self) -> None:
        """End threads and processes, and release files. Further `next` calls raise ValueError."""
        self._stream.close()
        super().close()

    def __del__(self) -> None:
        """Nothing, where the base class calls `close`, which waits: the stream ends when nobody has it any more."""

    def __enter__(self) -> SavableDataLoader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
