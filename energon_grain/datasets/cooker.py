"""Cooking: turning crude samples (dicts of decoded parts) into samples of a type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

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
    """Mark a function as a cooker and say what else than the sample it takes.

    Args:
        fn: The function, when used without arguments.
        need_cache: Pass `cache=`.
        need_primary: Pass `primary=`, the leaf itself as a file store.
    """

    def mark(function: Function) -> Function:
        function.__cooker_need_cache__ = need_cache  # type: ignore[attr-defined]
        function.__cooker_need_primary__ = need_primary  # type: ignore[attr-defined]
        return function

    return mark if fn is None else mark(fn)


@dataclass
class Cooker:
    """A function from a crude sample to a sample, and the leaves that it is for.

    Attributes:
        cook: `cook(crude_sample) -> sample`.
        has_subflavors: Subflavors that a leaf must carry, with these values, for this cooker to be chosen;
            None: any leaf. A task encoder's first fitting cooker is taken, once for each leaf.
    """

    cook: Callable[..., Any]
    has_subflavors: Mapping[str, Any] | None = None

    @property
    def need_cache(self) -> bool:
        """Whether the function takes `cache=`."""
        return bool(getattr(self.cook, "__cooker_need_cache__", False))

    @property
    def need_primary(self) -> bool:
        """Whether the function takes `primary=`."""
        return bool(getattr(self.cook, "__cooker_need_primary__", False))

    def is_match(self, subflavors: Mapping[str, Any] | None) -> bool:
        """Whether a leaf with these subflavors is for this cooker."""
        have = subflavors or {}
        return all(key in have and have[key] == value for key, value in (self.has_subflavors or {}).items())


def basic_sample_keys(crude_sample: Mapping[str, Any], additional_source_info: tuple[Any, ...] = ()) -> dict[str, Any]:
    """The base fields of a crude sample, to pass on to the cooked one: `MySample(**basic_sample_keys(crude), …)`.

    Args:
        crude_sample: What the cooker got.
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
