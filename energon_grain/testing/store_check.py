# SPDX-License-Identifier: Apache-2.0
"""Checks the contract of `FileStore`: values by key, errors, copies."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from energon_grain.errors import KeyNotFoundError
from energon_grain.samples.sample import SourceInfo
from energon_grain.sources.file_store import FileStore
from energon_grain.storage.epath import EPath


def check_store(
    open_store: Callable[[], FileStore[Any]],
    expected: Mapping[str, Any],
    missing: Collection[str] = ("", "no/such/key"),
) -> None:
    """Check that a store returns the value of each key, and an error for others, in any thread and copy.

    Args:
        open_store: Opens the store; called twice.
        expected: Value by key; at least one.
        missing: Keys that are not in the store.

    Raises:
        AssertionError: The store breaks the contract; the message says where.
    """
    store = open_store()
    path = store.get_path()
    assert isinstance(store, FileStore), f"{type(store).__name__} is not a subclass of `FileStore`"
    assert expected, f"{path}: got no keys, so nothing was checked"
    _check_values(store, expected)
    assert store.read([]) == [], f"{path}: returns values for no keys"
    first = next(iter(expected))
    for key in missing:
        assert key not in store, f"{path}: {key!r} should not be in the store"
        for ask in (
            lambda key=key: store.read([first, key]),
            lambda key=key: store[key],
            lambda key=key: store.get(key),
        ):
            try:
                ask()
            except KeyNotFoundError:
                continue
            raise AssertionError(f"{path}: {key!r} does not raise KeyNotFoundError")
    assert 7 not in store, f"{path}: contains a number as a key"
    for how, other in (("pickled", pickle.loads(pickle.dumps(store))), ("newly opened", open_store())):
        assert (other, hash(other)) == (store, hash(store)), f"{path}: the {how} copy is not equal"
        _check_values(other, expected)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(store.get, expected))
    assert found == [*expected.values()], f"{path}: returns other values in several threads"
    store.close()
    _check_values(store, expected)


def _check_values(store: FileStore[Any], expected: Mapping[str, Any]) -> None:
    where = EPath(store.get_path())
    for key, value in expected.items():
        assert key in store, f"{where}: {key!r} should be in the store"
        found, source = store[key]
        assert found == value == store.get(key), f"{where}: {key!r} is {found!r}, expected {value!r}"
        assert isinstance(source, SourceInfo), f"{where}: {key!r}: read() returns no `SourceInfo`"
        named = (source.dataset_path, source.index, source.file_names)
        assert named == (where, key, (key,)), f"{where}: {key!r}: its `SourceInfo` names {named}"
    keys = [*expected, *expected][::-1]  # each twice
    values = [value for value, _ in store.read(keys)]
    assert values == [expected[key] for key in keys], f"{where}: read() of several keys returns other values"
