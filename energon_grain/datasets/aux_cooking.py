"""Binding a cooker to what it takes beside the sample: file stores, the leaf itself, a cache pool."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from energon_grain.datasets.cooker import Cooker
from energon_grain.datasets.file_store_views import PrimaryFileStore
from energon_grain.errors import ConfigError
from energon_grain.sources.cache_pool import (
    CachePool,
    NoCachePool,
)
from energon_grain.sources.file_store import FileStore

CookCrudeSample = Callable[[Any, Cooker, dict[str, Any]], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundCooker:
    """Cooks crude samples. Picklable: in another process the stores open their files anew.

    Attributes:
        cooker: What to call.
        given: Arguments that are the same for every sample, by name.
        primary: The leaf as a store, for cookers that need it; each sample gets a view of its own.
        through: A task encoder's own `cook_crude_sample`; None: the cooker is called directly.
    """

    cooker: Cooker
    given: Mapping[str, Any] = field(default_factory=dict[str, Any])
    primary: FileStore[Any] | None = None
    through: CookCrudeSample | None = None

    def __call__(self, sample: Any) -> Any:
        """Cook one sample."""
        arguments = dict(self.given)
        if self.primary is not None:
            arguments["primary"] = PrimaryFileStore(self.primary, sample["__key__"])
        if self.through is not None:
            return self.through(sample, self.cooker, arguments)
        return self.cooker.cook(sample, **arguments)

    def close(self) -> None:
        """Release the stores' file handles; cooking again opens them anew. A cache pool is whoever's made it."""
        stores: list[Any] = [*self.given.values(), self.primary]
        for store in stores:
            if isinstance(store, FileStore):
                store.close()


def bind_cooker(
    cooker: Cooker,
    stores: Mapping[str, FileStore[Any]],
    primary: FileStore[Any] | None = None,
    cache: CachePool | None = None,
    *,
    through: CookCrudeSample | None = None,
    where: object = "aux",
) -> Callable[[Any], Any]:
    """Make the function of a crude sample alone that a leaf is cooked with.

    The cooker gets every store by its name, `primary=` and `cache=` where it says that it needs them. A store with the
    name `primary` takes the place of the leaf.

    Args:
        cooker: The cooker that was chosen for the leaf.
        stores: The leaf's auxiliary stores by name.
        primary: The leaf itself.
        cache: Default: a `NoCachePool`.
        through: The task encoder's `cook_crude_sample`, where it has one of its own.
        where: What to begin a message with: the leaf's path, say.

    Raises:
        ConfigError: The cooker does not take what it would be given, or takes more.
    """
    given: dict[str, Any] = dict(stores)
    own: FileStore[Any] | None = None
    if cooker.need_cache:
        if "cache" in given:
            raise ConfigError(f"{where}: a store named `cache` is in the way of the cooker's cache pool; rename it")
        given["cache"] = NoCachePool() if cache is None else cache
    if cooker.need_primary:
        own = given.pop("primary", primary)
        if own is None:
            raise ConfigError(f"{where}: {_name(cooker.cook)} needs `primary`, but this leaf cannot be read by key")
    if through is None:
        names = (*given, "primary") if own is not None else tuple(given)
        _check_parameters(cooker.cook, names, stores, where)
        if not names:
            return cooker.cook
    return BoundCooker(cooker=cooker, given=given, primary=own, through=through)


def _check_parameters(cook: Callable[..., Any], names: Collection[str], stores: Collection[str], where: object) -> None:
    try:
        signature = inspect.signature(cook)
    except (TypeError, ValueError):  # a builtin that does not tell
        return
    try:
        signature.bind(None, **dict.fromkeys(names))
        return
    except TypeError as error:
        reason = error
    taken = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if taken and taken[0].kind is taken[0].POSITIONAL_OR_KEYWORD:
        taken = taken[1:]  # the sample
    accepted = [parameter.name for parameter in taken]
    unknown = [name for name in names if name not in accepted]
    missing = [p.name for p in taken if p.default is p.empty and p.name not in names]
    advice = f"it is called with the sample and {', '.join(names) or 'nothing else'}: {reason}"
    if unknown:
        advice = (
            f"it takes {_listed(accepted)} beside the sample, not {_listed(unknown)}; every auxiliary store is passed "
            f"by its name: add the parameter (or **aux), or rename or remove the store"
        )
    elif missing:
        advice = (
            f"it takes {_listed(missing)}, but the leaf's auxiliary stores are {_listed(stores)}; declare the store "
            f"under `aux`" + "".join(_marking(name) for name in missing)
        )
    raise ConfigError(f"{where}: the cooker {_name(cook)} does not fit: {advice}")


def _marking(name: str) -> str:
    return f", or mark the cooker with @cooker(need_{name}=True)" if name in ("primary", "cache") else ""


def _listed(names: Collection[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _name(cook: Callable[..., Any]) -> str:
    return getattr(cook, "__qualname__", repr(cook))
