# SPDX-License-Identifier: Apache-2.0
"""Batches on devices."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from energon_grain.errors import ConfigError, EnergonGrainError, public, shorten
from energon_grain.extras import needed_for
from energon_grain.loader.iterator import SavableDataLoader, check_loader
from energon_grain.samples.registration import register_value
from energon_grain.samples.subscripts import Item


@public
def to_device(loader: SavableDataLoader[Item], sharding: Any = None, *, buffer_size: int = 2) -> DeviceLoader[Item]:
    """Return a loader of batches with global `jax.Array`s, made of each process's rows and copied ahead of use.

    It is a second way to take batches from the same loader, which remains the caller's: both share one position and one
    state, after the last batch that either of them delivered. Batches that were copied ahead but not delivered are the
    next ones of `next(loader)`, or of the next `to_device`.

    Args:
        loader: Delivers this process's rows. With several processes, each must hold its share of the batch dimension as
            set by the sharding; `WorkerConfig.default_worker_config()` has the matching rank and world size.
        sharding: A `jax.sharding.Sharding` for every array, whose first dimension is the batch; or a function from an
            array to its sharding. Default: the default device (one process only).
        buffer_size: Number of batches on the device: the last one delivered and those that follow. 2 overlaps the copy
            of the next batch with the work on this one; 1 copies nothing ahead.

    Raises:
        ConfigError: There are several processes without a sharding, or several hosts whose batches may differ in shape.
    """
    return DeviceLoader(loader, sharding, buffer_size=buffer_size)


@public
class DeviceLoader(SavableDataLoader[Item]):
    """The loader returned by `to_device`: all methods of a loader, with batches on devices.

    It keeps the original loader alive and does not close it.
    """

    def __init__(self, loader: Any, sharding: Any, *, buffer_size: int) -> None:
        with needed_for("to_device"):
            import jax

        check_loader("to_device", loader)
        if buffer_size < 1:
            raise ConfigError(f"buffer_size={buffer_size}: expected at least 1")
        if sharding is None and jax.process_count() > 1:
            raise ConfigError(
                f"to_device: no sharding, but {jax.process_count()} processes: pass a sharding such as "
                f"NamedSharding(mesh, PartitionSpec('data')) over the batch dimension of the model"
            )
        if loader.stream.spec.ragged and loader.stream.config.world_size > 1:
            raise ConfigError(
                "to_device joins the hosts' batches into global arrays, which need one shape per step, but in this "
                "mixture the hosts can draw from different datasets (or groups) in a step: blend with BlendDataset(…, "
                "per_step=True), or mix inside the batch (MixBatchDataset)"
            )
        super().__init__(loader.stream)
        self._loader: SavableDataLoader | None = loader
        self._sharding = sharding
        self._buffer_size = buffer_size
        # The next batches, each with its copy on the device.
        self._placed: deque[tuple[Any, Any]] = deque()

    def __next__(self) -> Any:
        if self._closed:
            raise ValueError("the device loader is closed; call to_device again to continue with the same loader")
        try:
            with self._stream.turn:
                # The copy of the following batches runs while the caller works on the first.
                self._place_ahead()
                next(self._stream)
                return self._placed.popleft()[1]
        except EnergonGrainError as error:
            shorten(error)
            raise

    def _place_ahead(self) -> None:
        """Place the next batches. The failure of a later batch is raised when it is the first."""
        upcoming = self._stream.peek(self._buffer_size)
        while self._placed and (not upcoming or self._placed[0][0] is not upcoming[0]):
            self._placed.popleft()  # delivered by the loader itself, or from another position in the stream
        for batch in upcoming[len(self._placed) :]:
            register_value(batch)
            try:
                self._placed.append((batch, self._place(batch)))
            except Exception:
                if not self._placed:
                    raise
                return

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

    def _release(self) -> None:
        # The loader stays open for its other users.
        self._placed.clear()
        self._loader = None
