"""Arguments of Energon's loaders that have nothing to set here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict


class IdleArguments(TypedDict, total=False):
    """Accepted, and without effect.

    Saving costs microseconds and keeps no internal checkpoints, the garbage collector is paused where it costs time,
    and a worker that dies is noticed by itself.

    Attributes:
        checkpoint_every_sec: Energon's interval between internal checkpoints.
        checkpoint_every_min_n_samples: Likewise.
        n_checkpoints: How many of them it keeps.
        gc_collect_every_n_steps: When it collects garbage.
        watchdog_timeout_seconds: When it warns of a slow step.
        watchdog_initial_timeout_seconds: The same for the first step.
        fail_on_timeout: Whether it ends the process then.
    """

    checkpoint_every_sec: float | None
    checkpoint_every_min_n_samples: int | None
    n_checkpoints: int | None
    gc_collect_every_n_steps: int | None
    watchdog_timeout_seconds: float | None
    watchdog_initial_timeout_seconds: float | None
    fail_on_timeout: bool | None


def check_idle(arguments: Mapping[str, Any]) -> None:
    """Check that they are known.

    Raises:
        TypeError: One is not.
    """
    for name in arguments:
        if name not in IdleArguments.__annotations__:
            raise TypeError(f"get_savable_loader() got an unexpected keyword argument {name!r}")
