"""The auxiliary stores of a leaf, `aux:` in a metadataset: how they are written, and opening them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from energon_grain.datasets.containers import container_at
from energon_grain.datasets.file_store_views import DecodeFileStore, FileStoreDecoder
from energon_grain.errors import ConfigError
from energon_grain.forms import Place, expected, unknown, wrong
from energon_grain.sources.file_store import FileStore, ObjectFileStore, SystemFileStore
from energon_grain.storage.location import absolute, check_url, is_url

_URL = re.compile(r"(?P<protocol>[a-z][a-z0-9+.-]*)://(?P<rest>.*)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class AuxReference:
    """A store that cookers read from by key.

    Attributes:
        kind: "webdataset" for a prepared dataset, "filesystem" for a folder of files.
        path: As written, without the protocol `filesystem`; absolute once resolved.
        place: Where it stands, for messages.
    """

    kind: Literal["webdataset", "filesystem"] = "webdataset"
    path: str
    place: Place = field(default=Place("aux"), compare=False, repr=False)


def read_aux(value: Any, place: Place) -> AuxReference:
    """Read a store in any form that it may be written in.

    A prepared dataset by its path or as `path: …`; a folder of files as `filesystem://folder`,
    `filesystem+s3://bucket/folder` or `fs_path: …`.

    Raises:
        ConfigError: It is none of these; says where.
    """
    if isinstance(value, AuxReference):
        return value
    if isinstance(value, Mapping):
        key = "fs_path" if "fs_path" in value else "path"
        for other in value:
            if other != key:
                raise unknown(place, other, (key,))
        path = _path(value.get(key), place.at(key), "a path")
        return AuxReference(kind="webdataset" if key == "path" else "filesystem", path=path, place=place)
    text = _path(value, place, "a path, or a mapping with `path` or `fs_path`,")
    url = _URL.fullmatch(text)
    protocol, rest = (url["protocol"].lower(), url["rest"]) if url else ("", text)
    store, plus, inner = protocol.partition("+")
    if (plus and store != "filesystem") or "+" in inner:
        raise wrong(place, f"{protocol}:// is not known; filesystem+<protocol>:// names a folder of files")
    if store != "filesystem":
        return AuxReference(path=text, place=place)
    if not rest:
        raise wrong(place, f"{text!r} names no folder")
    return AuxReference(kind="filesystem", path=f"{inner}://{rest}" if inner else rest, place=place)


def _path(value: Any, place: Place, what: str) -> str:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise wrong(place, expected(what, value))
    try:
        return check_url(os.fspath(value))
    except ConfigError as error:
        raise wrong(place, str(error)) from None


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
    return {name: _decoded(_open(read_aux(each, Place("aux", (name,)))), decoder) for name, each in aux.items()}


def open_primary(path: str | os.PathLike[str], decoder: FileStoreDecoder | None) -> FileStore[Any]:
    """Open the dataset of a leaf itself by key: all of its shards, whatever the leaf's split, subset and parts.

    Args:
        path: The dataset's folder or file, path or URL.
        decoder: Decodes what it returns; None: it returns bytes.

    Raises:
        DatasetNotFoundError: `path` is not a prepared dataset.
    """
    return _decoded(container_at(path).store(path), decoder)


def check_aux_has_a_cooker(aux: Mapping[str, AuxReference], path: str, sample_type: type[Any] | None) -> None:
    """Check that a leaf with auxiliary stores is crude: only cookers get them.

    Raises:
        ConfigError: It has a sample type.
    """
    if not aux or sample_type is None:
        return
    place = next(iter(aux.values())).place
    raise ConfigError(
        f"{Place(place.document, place.steps[:-1])}: {path} holds {sample_type.__name__}s, and auxiliary "
        f"stores ({', '.join(aux)}) are for the cookers of crude datasets; remove `aux`, or make the dataset crude "
        f"(`__class__: CrudeWebdataset` in its dataset.yaml)"
    )


def _decoded(store: FileStore[bytes], decoder: FileStoreDecoder | None) -> FileStore[Any]:
    return store if decoder is None else DecodeFileStore(store, decoder=decoder)


def _open(reference: AuxReference) -> FileStore[bytes]:
    path = absolute(reference.path, os.getcwd())
    try:
        if reference.kind == "filesystem":
            return ObjectFileStore(path) if is_url(path) else SystemFileStore(path)
        return container_at(path).store(path)
    except ConfigError as error:
        raise ConfigError(f"{reference.place}: {error}") from error
