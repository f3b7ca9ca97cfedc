"""Batches on devices."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Mapping
from typing import Any

import grain
import numpy as np

from energon_grain.errors import ConfigError
from energon_grain.loader.checkpoint_io import load_cursor, save_cursor
from energon_grain.loader.iterator import SavableDataLoader
from energon_grain.stream.cursor import Cursor
from energon_grain.stream.which import SampleRecord


def to_device(loader: SavableDataLoader, sharding: Any = None, *, buffer_size: int = 2) -> DeviceLoader:
    """Batches whose arrays are global `jax.Array`s, made of each process's rows and copied ahead of use.

    Args:
        loader: Gives this process's rows. With several processes, each must own its share of the batch dimension as the
            sharding says; `WorkerConfig.default_worker_config()` has the rank and world that fit.
        sharding: A `jax.sharding.Sharding` for every array, whose first dimension is the batch; or a function from an
            array to its sharding. Default: the default device (one process only).
        buffer_size: Batches on the device at once: the one that was delivered last, and those that follow it.
            2 overlaps the copy of the next batch with the work on this one; 1 copies nothing ahead.

    Raises:
        ConfigError: There are several processes and no sharding; or several hosts, whose batches may differ in shape.
    """
    return DeviceLoader(loader, sharding, buffer_size=buffer_size)


class DeviceLoader(grain.DatasetIterator[Any]):
    """What `to_device` returns. State, passes and `which` are those of the loader, at the last delivered batch."""

    def __init__(self, loader: SavableDataLoader, sharding: Any, *, buffer_size: int) -> None:
        self._closed = True
        import jax

        if not hasattr(loader, "stream"):
            raise ConfigError(
                f"to_device: a loader is meant, what get_savable_loader gave, not a {type(loader).__name__}"
            )
        if buffer_size < 1:
            raise ConfigError(f"buffer_size={buffer_size}: at least 1 is meant")
        if sharding is None and jax.process_count() > 1:
            raise ConfigError(
                f"to_device without a sharding, but there are {jax.process_count()} processes: pass "
                f"NamedSharding(mesh, PartitionSpec('data')) or whatever the model's batch dimension has"
            )
        if loader.stream.spec.ragged and loader.stream.config.world_size > 1:
            raise ConfigError(
                "to_device joins the hosts' batches into global arrays, so in each step all of them need one shape, "
                "but this dataset chooses for each batch by itself which dataset (or group) it is of: blend with "
                "BlendDataset(…, per_step=True), or mix inside the batch (MixBatchDataset)"
            )
        super().__init__()
        self._loader = loader
        self._sharding = sharding
        self._buffer_size = buffer_size
        self._buffer: deque[tuple[Any, Cursor]] = deque()
        # Behind the last delivered batch; None while nothing is read ahead, so that the loader's own state tells.
        self._delivered: Cursor | None = None
        self._failed: Exception | None = None

    def __iter__(self) -> DeviceLoader:
        if not self._buffer and self._failed is None:
            self._delivered = None
            iter(self._loader)
        return self

    def __next__(self) -> Any:
        self._assert_not_closed()
        # The copy of the batches behind the first one runs while the caller works on that.
        self._fill()
        if self._buffer:
            batch, self._delivered = self._buffer.popleft()
            return batch
        if self._failed is not None:
            error, self._failed = self._failed, None
            raise error
        raise StopIteration

    def _fill(self) -> None:
        """Read ahead. What fails is raised when the batches before it are delivered, and tried again after that."""
        if self._delivered is None:
            self._delivered = self._loader.get_state()
        while len(self._buffer) < self._buffer_size and self._failed is None:
            before = self._loader.get_state()
            try:
                batch = next(self._loader)
                self._buffer.append((self._place(batch), self._loader.get_state()))
            except StopIteration:
                return
            except Exception as error:
                self._failed = error
                if self._loader.get_state() != before:
                    self._loader.set_state(before)

    def _place(self, batch: Any) -> Any:
        import jax

        def place(path: Any, leaf: Any) -> Any:
            if not isinstance(leaf, np.ndarray) or leaf.dtype.kind in "OUSVMm":
                return leaf
            try:
                sharding = self._sharding(leaf) if callable(self._sharding) else self._sharding
                if sharding is None:
                    return jax.device_put(leaf)
                return jax.make_array_from_process_local_data(sharding, leaf)
            except Exception as error:
                error.add_note(f"while placing {jax.tree_util.keystr(path)}, {leaf.dtype} of shape {leaf.shape}")
                raise

        return jax.tree_util.tree_map_with_path(place, batch)

    def __len__(self) -> int:
        return len(self._loader)

    def __bool__(self) -> bool:
        return True

    def get_state(self) -> Cursor:
        """The state behind the last delivered batch."""
        return self._loader.get_state() if self._delivered is None else self._delivered

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to a saved place."""
        self.restore_state_rank(state)

    def save_state_rank(self) -> Cursor:
        """This host's state, with the manifest. See `SavableDataLoader`."""
        return {**self.get_state(), "manifest": self._loader.config()}

    def restore_state_rank(self, state: Mapping[str, Any] | None, *, allow_changes: bool = False) -> None:
        """Restore what any loader of the dataset saved. See `SavableDataLoader`."""
        self._loader.restore_state_rank(state, allow_changes=allow_changes)
        if state is not None:
            self._buffer.clear()
            self._delivered = self._failed = None

    async def save(self, directory: Any) -> Awaitable[None]:
        """Write the state of the last delivered batch into a checkpoint (`orbax.checkpoint.v1`)."""
        return await save_cursor(self.save_state_rank(), directory)

    async def load(self, directory: Any) -> Awaitable[None]:
        """Read the state from a checkpoint that any number of hosts wrote."""
        return await load_cursor(self, directory)

    def which(self, step: int) -> list[SampleRecord]:
        """The samples of the global batch of a step. See `Stream.which`."""
        return self._loader.which(step)

    def stats(self) -> dict[str, Any]:
        """What was read so far, and what was dropped and why. See `Stream.stats`."""
        return self._loader.stats()

    def start_prefetch(self) -> None:
        """Begin to read ahead now."""
        self._loader.start_prefetch()

    def close(self) -> None:
        """Close the loader and let go of the batches on the device."""
        if not self._closed:
            self._buffer.clear()
            self._loader.close()
        super().close()

    def __enter__(self) -> DeviceLoader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
