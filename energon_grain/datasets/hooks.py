"""Which of a task encoder's hooks do something, and whose they are.

A hook that only hands on what it got is not worth a call for each sample. `idle` marks such defaults, `forwarding`
marks methods that do nothing but call the hook of another encoder.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

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
