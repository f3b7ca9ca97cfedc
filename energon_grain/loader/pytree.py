# SPDX-License-Identifier: Apache-2.0
"""Samples and batches as JAX pytrees.

The leaves of a dataclass are the arrays in its fields, at any depth of lists, tuples, dictionaries and dataclasses.
Strings, numbers, keys and everything else are in one static `Metadata` object. All of these compare equal, so batches
with other texts reuse the compiled function, and `jax.tree.map` accepts two batches. The *positions* of arrays are part
of the structure: a batch with a mask in place of its image is traced again.

A compiled function would always see the static values of the first batch. Inside a trace they are therefore replaced by
`Untraced`, which raises an error with advice on any use. None stays None, which is part of the structure too.

`energon_grain.samples.registration` imports this module once the program has imported JAX.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Collection
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, NoReturn

import jax
import numpy as np

from energon_grain.samples.registration import registered
from energon_grain.samples.sample import METADATA_FIELDS, PLAIN, like


class Untraced:
    """Static data inside a JAX trace. Any use raises a TypeError with advice.

    A compiled function also runs for batches with other texts and numbers than those of its trace, so any such value
    would be stale.
    """

    __slots__ = ("_where",)

    def __init__(self, where: str) -> None:
        self._where = where

    def __repr__(self) -> str:
        return f"<{self._where}, not available inside jax.jit>"

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError(
            f"{self._where} is not an array, so a function under jax.jit cannot read it: it would keep the value of "
            f"the first batch. Make it an array in encode_sample or encode_batch, or use it outside of the function"
        )

    __array__ = __jax_array__ = __iter__ = __len__ = __getitem__ = __contains__ = __bool__ = __call__ = _refuse
    __int__ = __float__ = __index__ = __str__ = __format__ = __eq__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = _refuse
    __hash__ = None  # type: ignore[assignment]


_STATIC: tuple[Any, ...] = ()  # in a tree of arrays: no leaf for JAX (unlike None, `is_leaf` is not called on it)
_LEAF: Any = type("Leaf", (), {"__slots__": (), "__repr__": lambda _: "*"})()  # in static content: place of an array
_layouts: dict[int, tuple[Any, ...]] = {}  # static content by id, for objects whose leaves are not arrays


class Metadata:
    """The content of an object except its arrays. Equal to any other instance, so it never causes a new trace."""

    __slots__ = ("content", "kind", "names")

    def __init__(self, kind: type, names: tuple[str, ...], content: tuple[Any, ...]) -> None:
        self.kind = kind
        self.names = names
        self.content = content

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Metadata)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"Metadata({', '.join(n for n, c in zip(self.names, self.content, strict=True) if c is not _LEAF)})"


class _Mixed:
    """A container that holds arrays: the original, and the static content of each entry."""

    __slots__ = ("entries", "original")

    def __init__(self, original: Any, entries: tuple[Any, ...]) -> None:
        self.original = original
        self.entries = entries


def flatten(obj: Any) -> tuple[tuple[Any, ...], Metadata]:
    """Split a dataclass (or `CrudeSample`) into one subtree of arrays per field, and its metadata.

    A field that is None or an array is its own subtree; a field without arrays has an empty one.
    """
    names, values = _fields(obj)
    layout = _layouts.get(id(obj)) if _layouts else None
    if layout is not None and len(layout) == len(values):
        pairs = [_split_like(value, content) for value, content in zip(values, layout, strict=True)]
    else:
        pairs = [
            (_STATIC, value) if name in METADATA_FIELDS else _split(value)
            for name, value in zip(names, values, strict=True)
        ]
    return tuple(tree for tree, _ in pairs), Metadata(type(obj), names, tuple(content for _, content in pairs))


def unflatten(metadata: Metadata, children: Any) -> Any:
    """Rebuild an object without calling its `__init__`; the leaves may be any values."""
    traced = _is_traced(children)
    odd: list[Any] = []
    values = [
        _merge(tree, content, odd, f"{metadata.kind.__name__}.{name}" if traced else "")
        for name, tree, content in zip(metadata.names, children, metadata.content, strict=True)
    ]
    if issubclass(metadata.kind, dict):
        obj: Any = metadata.kind(zip(metadata.names, values, strict=True))
    else:
        obj = object.__new__(metadata.kind)
        for name, value in zip(metadata.names, values, strict=True):
            object.__setattr__(obj, name, value)
    if odd:
        _remember(obj, metadata.content)
    return obj


def register_type(cls: type) -> None:
    """Register a dataclass (or `CrudeSample`) with JAX as a pytree. Does nothing for other types, or the second time.

    A class that its author registered with JAX stays unchanged.
    """
    if cls in registered or not (is_dataclass(cls) or issubclass(cls, dict)) or cls is dict:
        return
    key: Any = jax.tree_util.DictKey if issubclass(cls, dict) else jax.tree_util.GetAttrKey

    def flatten_with_keys(obj: Any) -> tuple[tuple[tuple[Any, Any], ...], Metadata]:
        children, metadata = flatten(obj)
        return tuple((key(name), child) for name, child in zip(metadata.names, children, strict=True)), metadata

    registered.add(cls)
    with contextlib.suppress(ValueError):  # already registered by its author
        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)


_bare: set[type] = set()
"""Types whose values contain no type to register: numbers, texts, arrays."""


def register_value(value: Any) -> None:
    """Call `register_type` for a batch, or for the batches in a list, tuple or dictionary."""
    kind = type(value)
    if kind in registered:
        return
    if is_dataclass(kind):
        register_type(kind)
    elif issubclass(kind, (dict, list, tuple)):
        register_type(kind)
        entries: Collection[Any] = value.values() if issubclass(kind, dict) else value
        if not _bare.issuperset(map(type, entries)):
            for entry in entries:
                register_value(entry)
    else:
        _bare.add(kind)


def _fields(obj: Any) -> tuple[tuple[str, ...], list[Any]]:
    if isinstance(obj, dict):
        mapping: dict[str, Any] = obj
        return tuple(mapping), list(mapping.values())
    names = _field_names(type(obj))
    extra = getattr(obj, "__dict__", None)
    if extra:
        names = (*names, *(name for name in extra if name not in names))
    present = tuple(name for name in names if hasattr(obj, name))
    return present, [getattr(obj, name) for name in present]


@lru_cache(maxsize=1024)
def _field_names(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))


@lru_cache(maxsize=1024)
def _is_leaf_type(cls: type) -> bool:
    """Return whether a type is an array, a numpy scalar, or a JAX placeholder: tracer, shape, sharding, bare object."""
    return (
        issubclass(cls, (np.ndarray, np.generic)) or cls is object or cls.__module__.split(".")[0] in ("jax", "jaxlib")
    )


def _split(value: Any) -> tuple[Any, Any]:
    """Return the tree of arrays in `value`, empty if there is none, and its static content."""
    kind = type(value)
    if value is None:
        return None, None
    if kind in PLAIN:
        return _STATIC, value
    if _is_leaf_type(kind):
        return value, _LEAF
    if isinstance(value, dict):
        mapping: dict[Any, Any] = value
        pairs = [_split(entry) for entry in mapping.values()]
        return _mixed(mapping, pairs, dict(zip(mapping, (tree for tree, _ in pairs), strict=True)))
    if isinstance(value, (list, tuple)):
        entries: list[Any] | tuple[Any, ...] = value
        if PLAIN.issuperset(map(type, entries)):
            return _STATIC, value
        pairs = [_split(entry) for entry in entries]
        return _mixed(entries, pairs, like(entries, [tree for tree, _ in pairs]))
    if is_dataclass(value) and (id(value) in _layouts or _has_leaves(flatten(value)[1].content)):
        register_type(kind)
        return value, _LEAF
    return _STATIC, value


def _mixed(original: Any, pairs: list[tuple[Any, Any]], tree: Any) -> tuple[Any, Any]:
    contents = tuple(content for _, content in pairs)
    return (tree, _Mixed(original, contents)) if _has_leaves(contents) else (_STATIC, original)


def _has_leaves(contents: tuple[Any, ...]) -> bool:
    return any(content is _LEAF or type(content) is _Mixed for content in contents)


def _split_like(value: Any, content: Any) -> tuple[Any, Any]:
    """Split `value` with its leaves at the positions in `content`."""
    if content is _LEAF:
        return value, _LEAF
    if type(content) is not _Mixed or len(value) != len(content.entries):
        return (None, None) if value is None else (_STATIC, value)
    entries = value.values() if isinstance(value, dict) else value
    pairs = [_split_like(entry, inner) for entry, inner in zip(entries, content.entries, strict=True)]
    trees = [tree for tree, _ in pairs]
    return _mixed(value, pairs, dict(zip(value, trees, strict=True)) if isinstance(value, dict) else like(value, trees))


def _merge(tree: Any, content: Any, odd: list[Any], where: str) -> Any:
    """Undo `_split`. Collects leaves that are not arrays in `odd`; with `where`, static values become `Untraced`."""
    if content is _LEAF:
        if not _is_leaf_type(type(tree)) and not is_dataclass(tree):
            odd.append(tree)
        return tree
    if type(content) is not _Mixed:
        return tree if content is None else Untraced(where) if where else content
    original = content.original
    if isinstance(original, dict):
        merged = copy.copy(original)
        for (key, subtree), inner in zip(((key, tree[key]) for key in original), content.entries, strict=True):
            merged[key] = _merge(subtree, inner, odd, f"{where}[{key!r}]" if where else "")
        return merged
    values = [
        _merge(subtree, inner, odd, f"{where}[{index}]" if where else "")
        for index, (subtree, inner) in enumerate(zip(tree, content.entries, strict=True))
    ]
    return like(original, values)


def _is_traced(children: Any) -> bool:
    """Return whether a leaf is a tracer of a compiled function (`vmap` and `grad` alone keep static values)."""
    if isinstance(children, (list, tuple)):
        entries: list[Any] | tuple[Any, ...] = children
        return any(_is_traced(entry) for entry in entries)
    if isinstance(children, dict):
        mapping: dict[Any, Any] = children
        return any(_is_traced(entry) for entry in mapping.values())
    return type(children).__name__ == "DynamicJaxprTracer"


def _remember(obj: Any, content: tuple[Any, ...]) -> None:
    """Keep the layout of an object whose leaves do not reveal it (None, integers, …) for its lifetime."""
    try:
        weakref.finalize(obj, _layouts.pop, id(obj), None).atexit = False
    except TypeError:  # a class with slots but without `weakref_slot=True`
        return
    _layouts[id(obj)] = content
