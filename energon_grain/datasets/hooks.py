"""Hooks: which of a task encoder's do something, whose they are, and how each is to be called.

A hook that only hands on what it got is not worth a call for each sample. `idle` marks such defaults, `forwarding`
marks methods that do nothing but call the hook of another encoder.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from energon_grain.datasets.stateless import failure_tolerance_of, restores_seeds
from energon_grain.errors import ConfigError
from energon_grain.stream.hooks import (
    DEFAULT_FAILURE_TOLERANCE,
    HookSpec,
)

if TYPE_CHECKING:
    from energon_grain.datasets.task_encoder import TaskEncoder

Function = TypeVar("Function", bound=Callable[..., Any])

_IDLE: dict[Callable[..., Any], str | None] = {}
_FORWARDING: set[Callable[..., Any]] = set()
# Functions, not marks on them: a user's override made with `functools.wraps` would inherit the marks.


def idle(unless: str | None = None) -> Callable[[Function], Function]:
    """Mark a default that does nothing, unless an attribute of its encoder is set.

    Args:
        unless: Name of the attribute; None: the default never does anything.
    """

    def mark(function: Function) -> Function:
        _IDLE[function] = unless
        return function

    return mark


def forwarding(function: Function) -> Function:
    """Mark a method that calls the method of the same name of `self.inner`."""
    _FORWARDING.add(function)
    return function


def owner_of_hook(task_encoder: TaskEncoder, name: str) -> TaskEncoder:
    """The encoder whose code the hook is: the encoder itself, or one that it forwards to."""
    while _function(getattr(task_encoder, name)) in _FORWARDING:
        task_encoder = task_encoder.inner  # type: ignore[attr-defined]
    return task_encoder


def overridden_hook(task_encoder: TaskEncoder, name: str) -> Any:
    """The encoder's hook when it does something of its own, else None.

    `DefaultTaskEncoder`'s conversions count only when a type was given. A hook that is merely forwarded is the inner
    encoder's own.
    """
    owner = owner_of_hook(task_encoder, name)
    hook = getattr(owner, name)
    function = _function(hook)
    if function in _IDLE:
        unless = _IDLE[function]
        if unless is None or getattr(owner, unless, None) is None:
            return None
    return hook


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether calling the function gives a generator: any number of values in place of one."""
    function = inspect.unwrap(function)
    if inspect.isgeneratorfunction(function):
        return True
    return not inspect.isroutine(function) and inspect.isgeneratorfunction(type(function).__call__)


def _function(hook: Any) -> Any:
    return getattr(hook, "__func__", hook)


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
    default = DEFAULT_FAILURE_TOLERANCE if owner is None else owner.__default_failure_tolerance__
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
