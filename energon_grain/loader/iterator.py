"""The loader: a `grain.DatasetIterator` over whole batches."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

import grain

from energon_grain.errors import StateError
from energon_grain.loader.checkpoint_io import load_cursor, save_cursor
from energon_grain.loader.gather import all_gather, gather_cursor
from energon_grain.samples.pytree import register_value
from energon_grain.stream.cursor import Cursor, merge_cursors
from energon_grain.stream.run import Stream
from energon_grain.stream.which import SampleRecord


class SavableDataLoader(grain.DatasetIterator[Any]):
    """Batches of one host, with state.

    A loop that was left by `break` continues where it stopped; after the end of a pass the next `iter` begins the next
    one (for validation: the same one). `next` in between raises StopIteration.

    The state is one small JSON object that any number of hosts restores, with any batch size. It works with
    `grain.checkpoint.CheckpointSave` (the same number of processes), `EnergonCheckpointSave` (any number), and
    `orbax.checkpoint.v1` as a checkpointable (any number).

    Args:
        stream: What to iterate over; closed together with the loader.
    """

    def __init__(self, stream: Stream) -> None:
        self._closed = True  # until all below has worked: the base class closes itself on deletion
        super().__init__()
        self._stream = stream

    def __iter__(self) -> SavableDataLoader:
        iter(self._stream)
        return self

    def __next__(self) -> Any:
        self._assert_not_closed()
        batch = next(self._stream)
        if "jax" in sys.modules:
            register_value(batch)
        return batch

    def __len__(self) -> int:
        """Steps per host of the current pass; of one pass over the data where the stream is endless."""
        return len(self._stream)

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return f"SavableDataLoader({', '.join('/'.join(leaf.key) for leaf in self._stream.spec.leaves)})"

    @property
    def stream(self) -> Stream:
        """What runs underneath."""
        return self._stream

    def get_state(self) -> Cursor:
        """The state behind the last delivered batch; cheap enough to ask for after each."""
        return self._stream.cursor()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to a saved place. Raises as `Stream.restore` does."""
        self._stream.restore(state)

    def save_state_rank(self) -> Cursor:
        """This host's state, with the manifest that explains a later mismatch. JSON-native."""
        return self._stream.cursor(with_manifest=True)

    def restore_state_rank(self, state: Mapping[str, Any] | None, *, allow_changes: bool = False) -> None:
        """Restore what `save_state_rank` or `save_state_global` returned; None leaves a fresh loader as it is.

        Args:
            state: The state, saved by this host or for all hosts.
            allow_changes: Go on at its position although the configuration or the data changed.

        Raises:
            StateError: The state cannot be continued here.
        """
        if state is not None:
            self._stream.restore(state, allow_changes=allow_changes)

    def save_state_global(self, global_dst_rank: int = 0) -> Cursor | None:
        """The state of all hosts, on the process of global rank `global_dst_rank`; None on the others.

        With several hosts, a collective operation: all call it at the same step.

        Raises:
            StateError: The hosts cannot be gathered, or are at different steps.
        """
        merged = gather_cursor(self._stream.cursor(with_manifest=True))
        jax = sys.modules.get("jax")
        rank = jax.process_index() if jax is not None and jax.distributed.is_initialized() else 0
        return merged if self._stream.config.world_size == 1 or rank == global_dst_rank else None

    def restore_state_global(
        self,
        state: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
        *,
        src_rank: int | None = None,
        allow_changes: bool = False,
    ) -> None:
        """Restore the state of all hosts on any number of hosts.

        Args:
            state: What `save_state_global` returned, or a list of each host's `save_state_rank`.
            src_rank: Host that has the state, where the others pass None; default: each host has it.
            allow_changes: As in `restore_state_rank`.

        Raises:
            StateError: The state cannot be continued here.
        """
        if src_rank is not None and self._stream.config.world_size > 1:
            state = _broadcast(state, src_rank)
        if state is None:
            raise StateError(
                "there is no state to restore on this host; pass it, or say which host has it by src_rank="
            )
        if not isinstance(state, Mapping):
            state = merge_cursors(state)
        self._stream.restore(state, allow_changes=allow_changes)

    async def save(self, directory: Any) -> Awaitable[None]:
        """Write the state into a checkpoint (`orbax.checkpoint.v1`): one file, whatever the number of hosts."""
        return await save_cursor(self.save_state_rank(), directory)

    async def load(self, directory: Any) -> Awaitable[None]:
        """Read the state from a checkpoint that any number of hosts wrote, and begin to read ahead."""
        return await load_cursor(self, directory)

    def which(self, step: int) -> list[SampleRecord]:
        """The samples of the global batch of a step, without reading data. See `Stream.which`."""
        return self._stream.which(step)

    def skip(self, steps: int) -> None:
        """Jump over steps of this pass, which count as delivered. See `Stream.skip`."""
        self._stream.skip(steps)

    def can_restore_sample(self) -> bool:
        """Whether `restore_sample` works: always."""
        return True

    def restore_sample(self, restore_key: Any) -> Any:
        """A sample or batch again, from its `__restore_key__`; the loader stays where it is.

        Args:
            restore_key: Of anything that a loader of the same configuration delivered, on any host; JSON's lists in
                place of tuples are fine.

        Raises:
            StateError: It is not a restore key of this dataset, or the sample is dropped now.
        """
        sample = self._stream.restore_sample(restore_key)
        if "jax" in sys.modules:
            register_value(sample)
        return sample

    def stats(self) -> dict[str, Any]:
        """What was delivered, and what was dropped and why. See `Stream.stats`."""
        return self._stream.stats()

    def config(self) -> dict[str, Any]:
        """Every setting that changes the order, and what each leaf holds; JSON-native."""
        return self._stream.spec.manifest()

    def start_prefetch(self) -> None:
        """Begin to read ahead now."""
        self._stream.start_prefetch()

    def close(self) -> None:
        """End threads and processes, and release files. Further `next` calls raise ValueError."""
        if not self._closed:
            self._stream.close()
        super().close()

    def __enter__(self) -> SavableDataLoader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _broadcast(state: Any, src_rank: int) -> Any:
    """The state of process `src_rank`, on all processes of `jax.distributed`."""
    return json.loads(all_gather(json.dumps(state).encode())[src_rank])
