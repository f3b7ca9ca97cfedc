"""Marking hooks as pure functions of their sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

Function = TypeVar("Function", bound=Callable[..., Any])


@overload
def stateless(fn: Function) -> Function: ...
@overload
def stateless(
    fn: None = None, *, restore_seeds: bool = False, failure_tolerance: int | None = None
) -> Callable[[Function], Function]: ...
def stateless(
    fn: Function | None = None, *, restore_seeds: bool = False, failure_tolerance: int | None = None
) -> Function | Callable[[Function], Function]:
    """Declare that a hook depends on its sample alone, so that replaying the sample replays the hook.

    Every hook is expected to be pure here; the decorator is accepted for compatibility and carries two options.

    Args:
        fn: The hook, when used without arguments.
        restore_seeds: Around each call, seed `random` and `numpy.random` from the sample's own generator and put
            their states back afterwards. Such hooks never run concurrently.
        failure_tolerance: Failures in a row after which the iteration ends with `FatalSampleError`; 0: never.
            Default: `TaskEncoder.__default_failure_tolerance__`.
    """

    def mark(function: Function) -> Function:
        function.__stateless__ = True  # type: ignore[attr-defined]
        function.__restore_seeds__ = restore_seeds  # type: ignore[attr-defined]
        function.__failure_tolerance__ = failure_tolerance  # type: ignore[attr-defined]
        return function

    return mark if fn is None else mark(fn)


def restores_seeds(function: Callable[..., Any]) -> bool:
    """Whether the hook asked for seeded global generators."""
    return bool(getattr(function, "__restore_seeds__", False))


def failure_tolerance_of(function: Callable[..., Any], default: int) -> int:
    """Failures in a row that the hook tolerates; 0: any number."""
    value = getattr(function, "__failure_tolerance__", None)
    return default if value is None else int(value)
