# SPDX-License-Identifier: Apache-2.0
"""From keys to samples: the leaves of a stream that have a key, and the number of the sample there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from energon_grain.errors import KeyNotFoundError
from energon_grain.stream.spec import LeafSpec


def samples_with(leaves: Sequence[LeafSpec], key: str, dataset: str | None = None) -> list[tuple[int, int]]:
    """All samples with a key: (number of the leaf, number of the sample in it).

    Prepared datasets have a sorted index of keys, and keys that are row numbers need none; otherwise the keys of the
    dataset are read. In a join, any member's key is found.

    Args:
        leaves: The leaves of a stream.
        key: The key, or `shard/key` in a prepared dataset.
        dataset: Search only here: the path of a dataset or of a member of a join, its last part, the `name` of a
            dataset, or the full key of a leaf.

    Raises:
        KeyNotFoundError: There is no such dataset or key.
    """
    found: list[tuple[int, int]] = []
    searched = False
    for number, leaf in enumerate(leaves):
        source: Any = leaf.leaf.source
        if not hasattr(source, "find"):  # a dataset that was removed from the configuration
            continue
        if dataset is None or dataset in names_of(leaf):
            searched = True
            found += [(number, index) for index in source.find(key).tolist()]
            continue
        for member, other in enumerate(getattr(source, "members", ())):
            if dataset in (other.path, PurePosixPath(other.path).name):
                searched = True
                found += [(number, index) for index in source.find_in(member, key).tolist()]
    if not searched:
        known = ", ".join("/".join(leaf.key) for leaf in leaves[:_SHOWN])
        raise KeyNotFoundError(f"no dataset {dataset!r} in this run; there are {known}")
    if not found:
        where = "any dataset of this run" if dataset is None else dataset
        raise KeyNotFoundError(f"no sample {key!r} in {where}, after split part, subset and `where`")
    return list(dict.fromkeys(found))


_SHOWN = 8


def names_of(leaf: LeafSpec) -> set[str]:
    """All names of a leaf: its key, its path, the last part of that, or its `name`."""
    path = str(leaf.leaf.source.path)
    return {"/".join(leaf.key), path, PurePosixPath(path).name, *leaf.key[1:2]}
