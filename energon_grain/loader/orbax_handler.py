# SPDX-License-Identifier: Apache-2.0
"""Save a loader with Orbax's `CheckpointManager`, for any number of hosts.

    manager.save(step, args=ocp.args.Composite(state=..., data=EnergonCheckpointSave(loader)))
    manager.restore(step, args=ocp.args.Composite(state=..., data=EnergonCheckpointRestore(loader)))

Grain's own handler writes one file per process and requires the same number of processes to restore. This one writes
one file, and also reads Grain's files.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from energon_grain.errors import public
from energon_grain.extras import needed_for
from energon_grain.loader.checkpoint_file import read_state, write_state
from energon_grain.loader.iterator import SavableDataLoader, check_loader, gather_over_jax, is_primary
from energon_grain.stream.stream import Held, OnChange

with needed_for("saving with Orbax"):
    import orbax.checkpoint as ocp


@public
class EnergonCheckpointHandler(ocp.CheckpointHandler):
    """Orbax checkpoint handler for loaders. Orbax finds it through the argument classes below."""

    def save(self, directory: Any, args: EnergonCheckpointSave) -> None:
        """Write the state of all hosts. Every process calls it at the same step.

        Raises:
                StateError: The states cannot be gathered, or the hosts are at different steps.
        """
        cursor = gather_over_jax(args.item.save_state_rank())
        if is_primary():
            write_state(directory, cursor)

    def restore(self, directory: Any, args: EnergonCheckpointRestore) -> SavableDataLoader:
        """Restore the loader in place and start prefetching.

        Raises:
            StateError: The state cannot be continued.
        """
        args.item.restore_state_rank(
            read_state(directory),
            allow_changes=args.allow_changes,
            on_change=args.on_change,
            note=args.note,
            held=args.held,
        )
        args.item.start_prefetch()
        return args.item

    def metadata(self, directory: Any) -> None:
        """A loader's state has no array metadata."""
        del directory


@ocp.args.register_with_handler(EnergonCheckpointHandler, for_save=True)
@dataclasses.dataclass
class EnergonCheckpointSave(ocp.args.CheckpointArgs):
    """Argument of `CheckpointManager.save`.

    Attributes:
        item: The loader, or the one from `to_device`: both have one state, after the last batch delivered.
    """

    item: SavableDataLoader

    def __post_init__(self) -> None:
        check_loader(type(self).__name__, self.item)


@ocp.args.register_with_handler(EnergonCheckpointHandler, for_restore=True)
@dataclasses.dataclass
class EnergonCheckpointRestore(ocp.args.CheckpointArgs):
    """Argument of `CheckpointManager.restore`.

    Attributes:
        item: A loader of the same dataset; it is restored in place.
        allow_changes: The older spelling of `on_change="position"`.
        on_change: As in `SavableDataLoader.restore_state_rank`.
        note: Reason for the change.
        held: As in `SavableDataLoader.restore_state_rank`.
    """

    item: SavableDataLoader
    allow_changes: bool = False
    on_change: OnChange | None = None
    note: str = ""
    held: Held = "deliver"

    def __post_init__(self) -> None:
        check_loader(type(self).__name__, self.item)
