"""From a user's function to how it is to be called."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from energon_grain.datasets.hooks import is_generator
from energon_grain.datasets.stateless import failure_tolerance_of, restores_seeds
from energon_grain.datasets.task_encoder import TaskEncoder
from energon_grain.errors import ConfigError
from energon_grain.stream.spec import HookSpec


def hook_spec(
    name: str, function: Callable[..., Any], owner: TaskEncoder | None, failure_tolerance: int | None = None
) -> HookSpec:
    """The spec of a hook.

    Args:
        name: In random keys, failure budgets and statistics.
        function: The user's.
        owner: Whose hook it is.
        failure_tolerance: In place of what the function or the owner says.
    """
    default = TaskEncoder.__default_failure_tolerance__ if owner is None else owner.__default_failure_tolerance__
    restore_seeds = restores_seeds(function)
    return HookSpec(
        name=name,
        function=function,
        failure_tolerance=failure_tolerance_of(function, default) if failure_tolerance is None else failure_tolerance,
        restore_seeds=restore_seeds,
        concurrent=bool(owner is not None and owner.thread_safe) and not restore_seeds,
    )


def require_one_value(name: str, function: Callable[..., Any]) -> None:
    """Check that a hook returns one value.

    Raises:
        ConfigError: It is a generator function.
    """
    if is_generator(function):
        raise ConfigError(
            f"{name}: {getattr(function, '__qualname__', function)} is a generator function, and here one value is "
            f"needed for each call; return it, or generate in `encode_sample`, `batch` or `pack_selected_samples`"
        )


def with_own_name(hook: HookSpec, others: Iterable[HookSpec]) -> HookSpec:
    """The hook, renamed where another one of the same leaf has its name: they must not share random numbers."""
    taken = {other.name for other in others}
    name, number = hook.name, 2
    while name in taken:
        name = f"{hook.name} {number}"
        number += 1
    return hook if name == hook.name else replace(hook, name=name)


@dataclass(frozen=True, slots=True)
class OneByOne:
    """A batcher as a function of one sample: batches of one.

    Attributes:
        batcher: Takes a list of samples.
    """

    batcher: Callable[[list[Any]], Any]

    def __call__(self, sample: Any) -> Any:
        """The batch of one sample."""
        return self.batcher([sample])
