"""The loader: batches of one rank, with state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from energon_grain.errors import StateError
from energon_grain.samples.subscripts import Item
from energon_grain.stream.stream import Stream
from energon_grain.stream.stream_loader import StreamLoader
from energon_grain_torch.group_processes import GroupProcesses, group_processes

_KEY = "energon_grain"


class SavableDataLoader(StreamLoader[Item]):
    """Batches of one rank, with state.

    A loop that was left by `break` continues where it stopped; after the end of a pass the next `iter` begins the next
    one (for validation: the same one). `next` in between raises StopIteration.

    The state is one small JSON object that any number of ranks restores, with any number of workers and any batch size,
    in this backend or in the Grain loader. `state_dict` and `load_state_dict` follow the `Stateful` protocol of
    `torch.distributed.checkpoint` and torchdata.

    Args:
        stream: What to iterate over; closed together with the loader.
    """

    _framework: ClassVar[str] = "`torch.distributed` process group"

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def _processes(self) -> GroupProcesses | None:
        return group_processes(self._stream.config.data_parallel_group)

    @property
    def dataset(self) -> Any:
        """The compiled dataset."""
        return self._stream.spec

    @property
    def num_workers(self) -> int:
        """Workers of this rank."""
        return self._stream.config.num_workers

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch of one rank; None: single samples are delivered."""
        batch = self._stream.spec.batch
        return None if batch is None else batch.size

    def state_dict(self) -> dict[str, Any]:
        """The state of all ranks, under one key, the same on every rank.

        With several ranks it is a collective operation, as saving a distributed checkpoint is: every rank calls it at
        the same step. (`save_state_rank` is not.)

        Raises:
            StateError: The ranks cannot be gathered, or are at different steps.
        """
        # One text: checkpoints flatten nested dictionaries, and on loading ask for the keys of the state at that time.
        return {_KEY: json.dumps(self._gathered())}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to the place of a `state_dict`, saved on any number of ranks.

        Raises:
            StateError: It is not such a state, or cannot be continued here.
        """
        try:
            state = json.loads(state_dict[_KEY])
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise StateError(
                f"not a state of this loader ({type(error).__name__}: {error}); `state_dict()` returns {{{_KEY!r}: …}}"
            ) from error
        self.restore_state_global(state)

    def close(self) -> None:
        """End threads and processes, and release files. Further `next` calls raise ValueError."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
