"""Loading a metadataset: from a path, a mapping or Python objects to a resolved tree."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from energon_grain.errors import DatasetNotFoundError
from energon_grain.formats.file_ending import METADATASET_ENDINGS
from energon_grain.metadataset.documents import (
    DatasetLoader,
    DatasetLoaderInterface,
    parse_document,
    read_document,
)
from energon_grain.metadataset.place import Place
from energon_grain.metadataset.references import DatasetReference
from energon_grain.metadataset.resolve import Inherited, Resolver
from energon_grain.metadataset.subset import Subset
from energon_grain.metadataset.tree import TreeNode
from energon_grain.metadataset.values import Passes, plain
from energon_grain.storage.location import is_url, join, located, name_of, no_such_path

Source: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | DatasetLoaderInterface
"""A prepared dataset or metadataset file by path, the content of a metadataset, or one made in Python."""


def load_dataset(path: Source, *, root: str | os.PathLike[str] | None = None) -> DatasetLoaderInterface:
    """Read a metadataset, or describe a dataset by itself. What it refers to is not opened.

    Args:
        path: A path, the content of a metadataset as a mapping, or a document, which passes unchanged.
        root: Folder that the paths in a mapping are relative to; default: the working folder.

    Raises:
        ConfigError: The metadataset is not valid; names the place in the document.
        DatasetNotFoundError: There is nothing at the path.
    """
    if isinstance(path, DatasetLoaderInterface):
        return path
    if isinstance(path, Mapping):
        document = parse_document(path)
        return document if root is None else replace(document, path=join(located(root), "metadataset"))
    path = located(path)
    if path.endswith(".jsonl") or (not path.endswith(METADATASET_ENDINGS) if is_url(path) else os.path.isdir(path)):
        return DatasetLoader(path=path)
    if not (is_url(path) or os.path.exists(path) or path.endswith(METADATASET_ENDINGS)):
        raise DatasetNotFoundError(no_such_path(path))
    return read_document(path)


def load_metadataset(
    source: Source,
    *,
    split_part: str,
    subflavors: Mapping[str, Any] | None = None,
    shuffle_over_epochs_multiplier: int | None = 1,
    subset: Subset | Any = None,
    root: str | os.PathLike[str] | None = None,
    require_data: bool = True,
) -> TreeNode:
    """Resolve one split of a metadataset into a tree of leaves.

    Nested files are read and put in place; paths are absolute; split parts, tags, passes and subsets of all levels are
    merged into the leaves. No dataset is opened and nothing that a file names is imported. A path of a dataset by
    itself gives its leaf.

    Args:
        source: As in `load_dataset`.
        split_part: The split to load, and the part of datasets that name none.
        subflavors: Tags that override all others.
        shuffle_over_epochs_multiplier: Combined with those of all levels.
        subset: A range by percentages, taken of every leaf; by numbers too for a dataset by itself.
        root: As in `load_dataset`.
        require_data: Whether each dataset must exist on this machine and be prepared.

    Raises:
        ConfigError: A document is not valid or breaks a rule; names the file and the place in it.
        DatasetNotFoundError: A file or a dataset is missing; names the place of the reference.
    """
    document = load_dataset(source, root=root)
    passes = Passes().convert(
        shuffle_over_epochs_multiplier, Place("load_metadataset").at("shuffle_over_epochs_multiplier")
    )
    outer = Inherited(
        split_part=split_part,
        subflavors=plain(subflavors or {}),
        passes=passes,
        subset=None if subset is None else Subset.parse(subset),
    )
    resolver = Resolver(require_data=require_data)
    if isinstance(document, DatasetLoader):
        return _single(document.node(split_part), outer, resolver)
    return resolver.document(document, outer)


def _single(node: Any, outer: Inherited, resolver: Resolver) -> TreeNode:
    """A dataset by itself: the program may count samples, and its identity is its folder's name, wherever that lies."""
    assert isinstance(node, DatasetReference)
    leaf = resolver.node(replace(node, subset=outer.subset), replace(outer, subset=None), os.getcwd())
    return replace(leaf, written=name_of(node.path))  # type: ignore[call-arg]
