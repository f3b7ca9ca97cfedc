"""Opening the auxiliary stores of a leaf: `aux:` in a metadataset."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from energon_grain.datasets.containers import container_at
from energon_grain.datasets.file_store_views import DecodeFileStore, FileStoreDecoder
from energon_grain.errors import ConfigError
from energon_grain.metadataset.place import Place
from energon_grain.metadataset.references import AuxReference, AuxStores
from energon_grain.sources.file_store import FileStore, ObjectFileStore, SystemFileStore
from energon_grain.storage.location import absolute, is_url


def open_aux(aux: Mapping[str, Any], decoder: FileStoreDecoder | None) -> dict[str, FileStore[Any]]:
    """Open auxiliary stores.

    Args:
        aux: By name: what a resolved metadataset says, or any form that one may be written in (a prepared dataset's
            folder, `filesystem://` and a folder of files, `filesystem+s3://` and one in a store, a mapping with `path`
            or `fs_path`), relative to the working folder.
        decoder: Decodes what they return; None: they return bytes.

    Raises:
        ConfigError: A store's form is not known, or its URL is of no object store that can be read.
        DatasetNotFoundError: There is no such folder, or it is not prepared.
        ReadError: An object store cannot be reached.
    """
    references = AuxStores().convert(aux, Place("aux"))
    return {name: _decoded(_open(name, reference), decoder) for name, reference in references.items()}


def open_primary(path: str | os.PathLike[str], decoder: FileStoreDecoder | None) -> FileStore[Any]:
    """Open the dataset of a leaf itself by key: all of its shards, whatever the leaf's split, subset and parts.

    Args:
        path: The dataset's folder or file, path or URL.
        decoder: Decodes what it returns; None: it returns bytes.

    Raises:
        DatasetNotFoundError: `path` is not a prepared dataset.
    """
    return _decoded(container_at(path).store(path), decoder)


def check_aux_has_a_cooker(aux: Mapping[str, Any], path: str, sample_type: type[Any] | None) -> None:
    """Check that a leaf with auxiliary stores is crude: only cookers get them.

    Raises:
        ConfigError: It has a sample type.
    """
    if not aux or sample_type is None:
        return
    first = next(iter(aux.values()))
    place = first.place if isinstance(first, AuxReference) else None
    where = path if place is None else Place(place.document, place.steps[:-1])
    raise ConfigError(
        f"{where}: {path} holds {sample_type.__name__}s, and auxiliary stores ({', '.join(aux)}) are for the cookers "
        f"of crude datasets; remove `aux`, or make the dataset crude (`__class__: CrudeWebdataset` in its dataset.yaml)"
    )


def _decoded(store: FileStore[bytes], decoder: FileStoreDecoder | None) -> FileStore[Any]:
    return store if decoder is None else DecodeFileStore(store, decoder=decoder)


def _open(name: str, reference: AuxReference) -> FileStore[bytes]:
    path = absolute(reference.path, os.getcwd())
    try:
        if reference.kind == "filesystem":
            return ObjectFileStore(path) if is_url(path) else SystemFileStore(path)
        return container_at(path).store(path)
    except ConfigError as error:
        raise ConfigError(f"{reference.place or f'aux.{name}'}: {error}") from error
