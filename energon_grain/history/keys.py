# SPDX-License-Identifier: Apache-2.0
"""From keys to samples: the leaves of a stream that have a key, and the number of the sample there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

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
    searched = [(number, search) for number, leaf in enumerate(leaves) for search in _searches(leaf, dataset)]
    if not searched:
        known = ", ".join("/".join(leaf.key) for leaf in leaves[:_SHOWN])
        raise KeyNotFoundError(f"no dataset {dataset!r} in this run; there are {known}")
    found = dict.fromkeys((number, index) for number, search in searched for index in search(key).tolist())
    if not found:
        where = "any dataset of this run" if dataset is None else dataset
        raise KeyNotFoundError(f"no sample {key!r} in {where}, after split part, subset and `where`")
    return list(found)


def _searches(leaf: LeafSpec, dataset: str | None) -> Iterator[Callable[[str], npt.NDArray[np.int64]]]:
    """The functions that find the samples of a leaf with a key, in the dataset or the member of a join of that name."""
    source: Any = leaf.leaf.source
    if not hasattr(source, "find"):  # a dataset that was removed from the configuration
        return
    if dataset is None or dataset in names_of(leaf):
        yield source.find
        return
    for number, member in enumerate(getattr(source, "members", ())):
        if dataset in (member.path, PurePosixPath(member.path).name):
            yield partial(source.find_in, number)


_SHOWN = 8


def names_of(leaf: LeafSpec) -> set[str]:
    """All names of a leaf: its key, its path, the last part of that, or its `name`."""
    path = str(leaf.leaf.source.path)
    return {"/".join(leaf.key), path, PurePosixPath(path).name, *leaf.key[1:2]}
