# SPDX-License-Identifier: Apache-2.0
"""Cooking turns crude samples (dicts of decoded parts) into typed samples, with file stores and a cache pool."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from energon_grain.cooking.aux_stores import AuxReference, PrimaryFileStore, open_aux, open_primary
from energon_grain.datasets.hooks import SampleMaker, hook_spec, overridden_hook, require_one_value
from energon_grain.errors import ConfigError, public
from energon_grain.sources.cache_pool import CachePool, NoCachePool
from energon_grain.sources.file_store import FileStore
from energon_grain.stream.hooks import HookSpec
from energon_grain.stream.spec import Resolved

Function = TypeVar("Function", bound=Callable[..., Any])

_BASE_FIELDS = ("__key__", "__restore_key__", "__subflavors__", "__sources__")


@overload
def cooker(fn: Function) -> Function: ...
@overload
def cooker(
    fn: None = None, *, need_cache: bool = False, need_primary: bool = False
) -> Callable[[Function], Function]: ...
def cooker(
    fn: Function | None = None, *, need_cache: bool = False, need_primary: bool = False
) -> Function | Callable[[Function], Function]:
    """Mark a function as a cooker and declare its further arguments.

    Args:
        fn: The function, if used without arguments.
        need_cache: Pass `cache=`.
        need_primary: Pass `primary=`, the leaf itself as a file store.
    """

    def mark(function: Function) -> Function:
        function.__cooker_need_cache__ = need_cache  # type: ignore[attr-defined]
        function.__cooker_need_primary__ = need_primary  # type: ignore[attr-defined]
        return function

    return mark if fn is None else mark(fn)


@public
@dataclass
class Cooker:
    """A function that turns a crude sample into a typed sample, and the leaves that it applies to.

    Example:
        def cook(crude: CrudeSample) -> CaptioningSample:
            return CaptioningSample(**basic_sample_keys(crude), image=crude["jpg"], caption=crude["json"]["caption"])

        class Captions(DefaultTaskEncoder):
            cookers = [Cooker(cook, has_subflavors={"source": "web"})]

    Attributes:
        cook: `cook(crude_sample) -> sample`: a function, or a method of the task encoder (`def cook(self, crude)` above
            `cookers = [Cooker(cook)]`), which receives that task encoder as `self`.
        has_subflavors: Subflavors, with values, that a leaf must have for this cooker. None: any leaf. Each leaf uses
            the first matching cooker of the task encoder.
    """

    cook: Callable[..., Any]
    has_subflavors: Mapping[str, Any] | None = None

    @property
    def need_cache(self) -> bool:
        return bool(getattr(self.cook, "__cooker_need_cache__", False))

    @property
    def need_primary(self) -> bool:
        return bool(getattr(self.cook, "__cooker_need_primary__", False))

    def is_match(self, subflavors: Mapping[str, Any] | None) -> bool:
        """Return whether this cooker applies to a leaf with these subflavors."""
        have = subflavors or {}
        return all(key in have and have[key] == value for key, value in (self.has_subflavors or {}).items())


def basic_sample_keys(crude_sample: Mapping[str, Any], additional_source_info: tuple[Any, ...] = ()) -> dict[str, Any]:
    """Return the base fields of a crude sample, to pass to the cooked one: `MySample(**basic_sample_keys(crude), …)`.

    Args:
        crude_sample: The argument of the cooker.
        additional_source_info: Further provenance, appended to `__sources__`.
    """
    try:
        fields = {
            "__key__": crude_sample["__key__"],
            "__restore_key__": crude_sample["__restore_key__"],
            "__subflavors__": crude_sample["__subflavors__"],
            "__sources__": crude_sample["__sources__"],
        }
    except KeyError:
        fields = {name: crude_sample[name] for name in _BASE_FIELDS if name in crude_sample}
    if additional_source_info:
        fields["__sources__"] = (*crude_sample["__sources__"], *additional_source_info)
    return fields


def cooking(
    encoder: SampleMaker,
    leaf: Resolved,
    aux: Mapping[str, AuxReference],
    path: str,
    cache_pool: CachePool | None,
) -> HookSpec | None:
    """Return the hook that cooks a leaf: the first matching cooker. Without cookers, crude samples stay as they are.

    Raises ConfigError if none matches, or if its parameters do not fit.
    """
    if leaf.sample_type is not None or not encoder.cookers:
        return None
    for cooker in encoder.cookers:
        if cooker.is_match(leaf.subflavors):
            break
    else:
        raise ConfigError(
            f"{path}: no cooker matches the subflavors {leaf.subflavors}: the task encoder has cookers for "
            f"{[cooker.has_subflavors for cooker in encoder.cookers]}. Add a cooker, or change the subflavors"
        )
    function = bind_cooker(
        cooker,
        open_aux(aux, encoder.decoder),
        open_primary(leaf.path, leaf.decoder) if cooker.need_primary else None,
        encoder.cache if cache_pool is None else cache_pool,
        encoder=encoder,
        through=overridden_hook(encoder, "cook_crude_sample"),
        where=path,
    )
    require_one_value("cook_crude_sample", cooker.cook)
    # The marks of `@stateless` are on the user's function; the bound function has none.
    return dataclasses.replace(hook_spec("cook_crude_sample", cooker.cook, encoder), function=function)


CookCrudeSample = Callable[[Any, Cooker, dict[str, Any]], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundCooker:
    """Cooks crude samples. Picklable: in another process the stores reopen their files.

    Attributes:
        cooker: The cooker as listed by the task encoder.
        cook: Its function, bound to the task encoder if it is a method.
        given: Arguments by name that are the same for every sample.
        primary: The leaf as a store, for cookers that need it; each sample gets its own view.
        through: The task encoder's `cook_crude_sample`; None calls the cooker directly.
    """

    cooker: Cooker
    cook: Callable[..., Any]
    given: Mapping[str, Any] = field(default_factory=dict[str, Any])
    primary: FileStore[Any] | None = None
    through: CookCrudeSample | None = None

    def __call__(self, sample: Any) -> Any:
        arguments = dict(self.given)
        if self.primary is not None:
            arguments["primary"] = PrimaryFileStore(self.primary, sample["__key__"])
        if self.through is None:
            return self.cook(sample, **arguments)
        as_listed = self.cook is self.cooker.cook
        cooker = self.cooker if as_listed else dataclasses.replace(self.cooker, cook=self.cook)
        return self.through(sample, cooker, arguments)

    def close(self) -> None:
        """Close the stores' files; cooking reopens them. A cache pool belongs to its creator and stays open."""
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
    encoder: object = None,
    through: CookCrudeSample | None = None,
    where: object = "aux",
) -> Callable[[Any], Any]:
    """Return the function that cooks the samples of a leaf, with the crude sample as its only argument.

    The cooker receives every store by its name, and `primary=` and `cache=` if it declares them. A store with the name
    `primary` replaces the leaf.

    Args:
        cooker: The cooker of the leaf.
        stores: The leaf's auxiliary stores by name.
        primary: The leaf itself.
        cache: Default: a `NoCachePool`.
        encoder: The task encoder, passed as `self` to a cooker that is one of its methods.
        through: The task encoder's `cook_crude_sample`, if overridden.
        where: Start of a message, for example the path of the leaf.

    Raises:
        ConfigError: The parameters of the cooker do not match its arguments.
    """
    given: dict[str, Any] = dict(stores)
    own: FileStore[Any] | None = None
    if cooker.need_cache:
        if "cache" in given:
            raise ConfigError(f"{where}: a store named `cache` hides the cooker's cache pool: rename the store")
        given["cache"] = NoCachePool() if cache is None else cache
    if cooker.need_primary:
        own = given.pop("primary", primary)
        if own is None:
            raise ConfigError(f"{where}: {_name(cooker.cook)} needs `primary`, but this leaf cannot be read by key")
    cook = _as_method(cooker.cook, encoder)
    if through is None:
        names = (*given, "primary") if own is not None else tuple(given)
        _check_parameters(cook, names, stores, where)
        if not names:
            return cook
    return BoundCooker(cooker=cooker, cook=cook, given=given, primary=own, through=through)


def _as_method(cook: Callable[..., Any], encoder: Any) -> Callable[..., Any]:
    """Return the cooker, bound to the task encoder (or to an inner one) if it is one of its methods."""
    method: Any = cook
    if not (isinstance(method, classmethod) or _takes_self(cook)):
        return cook
    while encoder is not None:
        if any(value is cook for base in type(encoder).__mro__ for value in vars(base).values()):
            return method.__get__(encoder, type(encoder))
        encoder = getattr(encoder, "inner", None)
    return cook


def _takes_self(cook: Callable[..., Any]) -> bool:
    """Return whether it is an unbound method. A first parameter with another name than `self` may be a function's."""
    signature = _signature(cook) if inspect.isfunction(cook) else None
    return signature is not None and next(iter(signature.parameters), None) == "self"


def _signature(cook: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature; None for builtins without one."""
    try:
        return inspect.signature(cook)
    except (TypeError, ValueError):
        return None


def _check_parameters(cook: Callable[..., Any], names: Collection[str], stores: Collection[str], where: object) -> None:
    signature = _signature(cook)
    if signature is None:
        return
    try:
        signature.bind(None, **dict.fromkeys(names))
    except TypeError as error:
        why = _mismatch(cook, signature, names, stores) or f"it is called with {_call(names)}: {error}"
        raise ConfigError(f"{where}: the parameters of the cooker {_name(cook)} do not fit: {why}") from None


def _mismatch(
    cook: Callable[..., Any], signature: inspect.Signature, names: Collection[str], stores: Collection[str]
) -> str:
    """Describe the wrong parameters and the fix; "" if Python's own message is the best."""
    if _takes_self(cook):
        return (
            f"its first parameter is `self`, but it is not a method of the task encoder, so it is called with "
            f"{_call(names)}. Define it in the class of the task encoder, pass a bound method "
            f"(`Cooker(other.{cook.__name__})`), or remove `self`"
        )
    taken = _further_parameters(signature)
    accepted = [parameter.name for parameter in taken]
    unknown = [name for name in names if name not in accepted]
    missing = [p.name for p in taken if p.default is p.empty and p.name not in names]
    if unknown:
        return (
            f"it takes {_listed(accepted)} besides the sample, but not {_listed(unknown)}. Every auxiliary store is "
            f"passed by name: add the parameter (or **aux), or rename or remove the store"
        )
    return _missing(missing, names, stores) if missing else ""


def _further_parameters(signature: inspect.Signature) -> list[inspect.Parameter]:
    taken = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return taken[1:] if taken and taken[0].kind is taken[0].POSITIONAL_OR_KEYWORD else taken


def _missing(missing: Collection[str], names: Collection[str], stores: Collection[str]) -> str:
    has = f"the auxiliary stores of this dataset are {_listed(stores)}" if stores else "it has no auxiliary stores"
    return (
        f"it needs {_listed(missing)}, but is called with {_call(names)}: {has}. Give the parameter a default, or "
        f"declare a store of that name under `aux`" + "".join(_marking(name) for name in missing)
    )


def _call(names: Collection[str]) -> str:
    return f"the sample and {_listed(names)}" if names else "only the sample"


def _marking(name: str) -> str:
    return f", or mark the cooker with @cooker(need_{name}=True)" if name in ("primary", "cache") else ""


def _listed(names: Collection[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _name(cook: Callable[..., Any]) -> str:
    return getattr(cook, "__qualname__", repr(cook))
