# SPDX-License-Identifier: Apache-2.0
"""Hooks: user declarations, detection of overrides, ownership, and call specifications.

A hook that only returns its argument is not worth a call per sample. `idle` marks such defaults, `forwarding` marks
methods that only call the hook of another encoder.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeVar, overload

from energon_grain.errors import ConfigError
from energon_grain.sources.cache_pool import CachePool
from energon_grain.stream.hooks import DEFAULT_FAILURE_TOLERANCE, HookSpec
from energon_grain.transforms.decode import SampleDecoder

Function = TypeVar("Function", bound=Callable[..., Any])


class HookOwner(Protocol):
    """The part of a task encoder that nodes use to call its hooks.

    Attributes:
        thread_safe: Whether hooks may run in several threads at once.
    """

    thread_safe: ClassVar[bool]
    __default_failure_tolerance__: ClassVar[int]


Owner = TypeVar("Owner", bound=HookOwner)

_IDLE: dict[Callable[..., Any], str | None] = {}
_FORWARDING: set[Callable[..., Any]] = set()
# Sets of functions instead of attributes: a user's override made with `functools.wraps` would inherit attributes.


class SampleMaker(HookOwner, Protocol):
    """The part of a task encoder that leaves use to make samples."""

    @property
    def cookers(self) -> Sequence[Any]:
        """Turn crude samples into typed samples."""
        ...

    @property
    def decoder(self) -> SampleDecoder | None:
        """Decodes the parts of each sample; None keeps them as bytes."""
        ...

    @property
    def decoder_type(self) -> type[SampleDecoder]:
        """Class of the decoders whose arguments a dataset configuration holds."""
        ...

    @property
    def cache(self) -> CachePool:
        """The cache that hooks use, unless the loader has another pool."""
        ...


@overload
def stateless(fn: Function) -> Function: ...
@overload
def stateless(
    fn: None = None, *, restore_seeds: bool = False, failure_tolerance: int | None = None
) -> Callable[[Function], Function]: ...
def stateless(
    fn: Function | None = None, *, restore_seeds: bool = False, failure_tolerance: int | None = None
) -> Function | Callable[[Function], Function]:
    """Declare that a hook depends only on its sample. Replaying the sample then replays the hook.

    All hooks are expected to be pure. The decorator is accepted for compatibility and sets two options.

    Args:
        fn: The hook, if used without arguments.
        restore_seeds: Before each call, seed `random` and `numpy.random` from the sample's own generator, and restore
            their states afterwards. Such hooks never run concurrently.
        failure_tolerance: Consecutive failures after which the iteration ends with `FatalSampleError`; 0: never.
            Default: `TaskEncoder.__default_failure_tolerance__`.
    """

    def mark(function: Function) -> Function:
        function.__stateless__ = True  # type: ignore[attr-defined]
        function.__restore_seeds__ = restore_seeds  # type: ignore[attr-defined]
        function.__failure_tolerance__ = failure_tolerance  # type: ignore[attr-defined]
        return function

    return mark if fn is None else mark(fn)


def restores_seeds(function: Callable[..., Any]) -> bool:
    """Return whether the hook requests seeded global generators."""
    return bool(getattr(function, "__restore_seeds__", False))


def failure_tolerance_of(function: Callable[..., Any], default: int) -> int:
    """Return the number of consecutive failures that the hook tolerates; 0: any number."""
    value = getattr(function, "__failure_tolerance__", None)
    return default if value is None else int(value)


def idle(unless: str | None = None) -> Callable[[Function], Function]:
    """Mark a default hook that does nothing unless an attribute of its encoder is set.

    Args:
        unless: Name of the attribute; None: the default never does anything.
    """

    def mark(function: Function) -> Function:
        _IDLE[function] = unless
        return function

    return mark


def forwarding(function: Function) -> Function:
    """Mark a method that calls the method of the same name on `self.inner`."""
    _FORWARDING.add(function)
    return function


def owner_of_hook(task_encoder: Owner, name: str) -> Owner:
    """Return the encoder that implements the hook: the encoder itself, or one that it forwards to."""
    while _function(getattr(task_encoder, name)) in _FORWARDING:
        task_encoder = task_encoder.inner  # type: ignore[attr-defined]
    return task_encoder


def overridden_hook(task_encoder: HookOwner, name: str) -> Any:
    """Return the encoder's hook if it is overridden, otherwise None.

    Conversions of `DefaultTaskEncoder` count only if a type is set. A forwarded hook is the inner encoder's hook.
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
    """Return whether the function is a generator function, which yields any number of values."""
    function = inspect.unwrap(function)
    if inspect.isgeneratorfunction(function):
        return True
    return not inspect.isroutine(function) and inspect.isgeneratorfunction(type(function).__call__)


def _function(hook: Any) -> Any:
    return getattr(hook, "__func__", hook)


def hook_spec(
    name: str, function: Callable[..., Any], owner: HookOwner | None, failure_tolerance: int | None = None
) -> HookSpec:
    """Return the specification of a hook."""
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
    """Check that a hook returns one value. Raises ConfigError if it is a generator function."""
    if is_generator(function):
        raise ConfigError(
            f"{name}: {getattr(function, '__qualname__', function)} is a generator function, but must return one value "
            f"per call: return it, or generate in `encode_sample`, `batch` or `pack_selected_samples`"
        )


def with_own_name(hook: HookSpec, others: Iterable[HookSpec]) -> HookSpec:
    """Return the hook, renamed if another hook of the leaf has its name, because equal names share random numbers."""
    taken = {other.name for other in others}
    name, number = hook.name, 2
    while name in taken:
        name = f"{hook.name} {number}"
        number += 1
    return hook if name == hook.name else replace(hook, name=name)
