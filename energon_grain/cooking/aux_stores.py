# SPDX-License-Identifier: Apache-2.0
"""Stores that cookers read by key: the auxiliary stores of a leaf (`aux:` in a metadataset), and the leaf itself."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from energon_grain.errors import ConfigError, DecodingError
from energon_grain.forms import Place, expected, unknown, wrong
from energon_grain.samples.media_metadata import AVMetadata, ImageMetadata
from energon_grain.samples.sample import SourceInfo
from energon_grain.sources.file_store import FileStore, T_co
from energon_grain.sources.kinds import files_below, kind_at, store_of
from energon_grain.storage.location import absolute, check_url, located

_URL = re.compile(r"(?P<protocol>[a-z][a-z0-9+.-]*)://(?P<rest>.*)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class AuxReference:
    """A store that cookers read by key.

    Attributes:
        kind: "webdataset" for a prepared dataset, "filesystem" for a folder of files.
        path: As written, without the protocol `filesystem`; absolute once resolved.
        place: Its position in the document, for messages.
    """

    kind: Literal["webdataset", "filesystem"] = "webdataset"
    path: str
    place: Place = field(default=Place("aux"), compare=False, repr=False)


def read_aux(value: Any, place: Place) -> AuxReference:
    """Parse a store in any accepted form.

    A prepared dataset is written as its path or as `path: …`; a folder of files as `filesystem://folder`,
    `filesystem+s3://bucket/folder` or `fs_path: …`.

    Raises ConfigError, with the position, for anything else.
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
    text = _path(value, place, "a path, or a mapping with `path` or `fs_path`")
    url = _URL.fullmatch(text)
    protocol, rest = (url["protocol"].lower(), url["rest"]) if url else ("", text)
    store, plus, inner = protocol.partition("+")
    if (plus and store != "filesystem") or "+" in inner:
        raise wrong(place, f"unknown protocol {protocol}://; for a folder of files, use filesystem+<protocol>://")
    if store != "filesystem":
        return AuxReference(path=text, place=place)
    if not rest:
        raise wrong(place, f"{text!r} has no folder: write filesystem://<folder>")
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
        aux: Stores by name, from a resolved metadataset or in any accepted form: the folder of a prepared dataset,
            `filesystem://` and a folder of files, `filesystem+s3://` and a folder in a store, or a mapping with `path`
            or `fs_path`. Relative paths start at the working directory.
        decoder: Decodes their values; None returns bytes.

    Raises:
        ConfigError: A store has an unknown form, or its URL is of no object store that can be read.
        DatasetNotFoundError: The folder does not exist, or is not prepared.
        ReadError: An object store cannot be reached.
    """
    return {name: _decoded(_open(read_aux(each, Place("aux", (name,)))), decoder) for name, each in aux.items()}


def open_primary(path: str | os.PathLike[str], decoder: FileStoreDecoder | None) -> FileStore[Any]:
    """Open the dataset of a leaf by key: all of its shards, regardless of the leaf's split, subset and parts.

    Args:
        path: The dataset's folder or file, path or URL.
        decoder: Decodes its values; None returns bytes.

    Raises:
        DatasetNotFoundError: `path` is not a prepared dataset.
    """
    return _decoded(store_at(path), decoder)


def check_aux_has_a_cooker(aux: Mapping[str, AuxReference], path: str, sample_type: type[Any] | None) -> None:
    """Check that a leaf with auxiliary stores is crude, because only cookers receive the stores.

    Raises ConfigError if it has a sample type.
    """
    if not aux or sample_type is None:
        return
    place = next(iter(aux.values())).place
    raise ConfigError(
        f"{Place(place.document, place.steps[:-1])}: {path} holds samples of type {sample_type.__name__}, but "
        f"auxiliary stores ({', '.join(aux)}) are only for the cookers of crude datasets: remove `aux`, or make the "
        f"dataset crude (`__class__: CrudeWebdataset` in its dataset.yaml)"
    )


def _decoded(store: FileStore[Any], decoder: FileStoreDecoder | None) -> FileStore[Any]:
    return store if decoder is None else DecodeFileStore(store, decoder=decoder)


def _open(reference: AuxReference) -> FileStore[bytes]:
    path = absolute(reference.path, os.getcwd())
    try:
        if reference.kind == "filesystem":
            return files_below(path)
        return store_at(path)
    except ConfigError as error:
        raise ConfigError(f"{reference.place}: {error}") from error


class FileStoreDecoder(Protocol):
    """Decodes a file by its name. `SampleDecoder` implements it."""

    def decode(self, fname: str, data: bytes, /) -> Any:
        """Return the value of a file.

        Raises:
            DecodingError: The bytes cannot be decoded.
        """
        ...


class _Wrapper(FileStore[T_co]):
    """A view of another store, under the same keys or under keys changed by `_full`."""

    inner: FileStore[Any]

    def _full(self, key: str) -> str:
        return key

    def get_path(self) -> str:
        """Return the location of the inner store."""
        return self.inner.get_path()

    def __contains__(self, key: object) -> bool:
        """Return whether the inner store has a key, decodable or not."""
        return isinstance(key, str) and self._full(key) in self.inner

    def stored(self, key: str) -> tuple[Any, SourceInfo]:
        """Return the stored value of the inner store."""
        return self.inner.stored(self._full(key))

    def _decoded_as(self, key: str) -> str:
        """Return the name that the inner store decodes a key by."""
        return self.inner._decoded_as(self._full(key))

    def get_media_metadata(self, key: str) -> AVMetadata | ImageMetadata:
        """Return the metadata of the inner store."""
        return self.inner.get_media_metadata(self._full(key))

    def close(self) -> None:
        """Close the inner store."""
        self.inner.close()


class DecodeFileStore(_Wrapper[Any]):
    """Decodes the values of another store by the extensions of their keys.

    Args:
        inner: Reads the bytes.
        decoder: Decodes them.
    """

    def __init__(self, inner: FileStore[bytes], *, decoder: FileStoreDecoder) -> None:
        self.inner = inner
        self.decoder = decoder

    def __repr__(self) -> str:
        return f"DecodeFileStore({self.inner!r}, decoder={self.decoder!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DecodeFileStore) and (self.inner, self.decoder) == (other.inner, other.decoder)

    def __hash__(self) -> int:
        return hash(self.inner)

    def read(self, keys: Sequence[str]) -> list[tuple[Any, SourceInfo]]:
        """Read and decode. See `FileStore.read`.

        Raises:
            DecodingError: The bytes of a file cannot be decoded.
        """
        found = self.inner.read_or_open(keys, getattr(self.decoder, "lazy_from", None))
        return [(self._decoded(key, data), source) for key, (data, source) in zip(keys, found, strict=True)]

    def decoded(self, key: str, data: Any) -> Any:
        """Decode a value of the inner store. Raises the errors of `read`."""
        return self._decoded(key, self.inner.decoded(key, data))

    def _decoded(self, key: str, data: Any) -> Any:
        if isinstance(data, np.ndarray):
            return data  # numbers of a record need no decoding
        try:
            return self.decoder.decode(self.inner._decoded_as(key), data)
        except DecodingError as error:
            raise DecodingError(f"{self.get_path()}: {key}: {error}") from error


@dataclass(frozen=True, slots=True)
class PrimaryFileStore(_Wrapper[T_co]):
    """A store in which keys that start with a dot are parts of the current sample: `.wav` is `000012.wav`.

    Attributes:
        inner: The store.
        current_key: Key of the sample being cooked.
    """

    inner: FileStore[T_co]
    current_key: str

    def read(self, keys: Sequence[str]) -> list[tuple[T_co, SourceInfo]]:
        """Read full names unchanged, and part names as parts of the current sample. See `FileStore.read`."""
        return self.inner.read([self._full(key) for key in keys])

    def decoded(self, key: str, data: Any) -> T_co:
        """Decode with the inner store."""
        return self.inner.decoded(self._full(key), data)

    def _full(self, key: str) -> str:
        return self.current_key + key if key.startswith(".") else key


def store_at(path: str | os.PathLike[str]) -> FileStore[Any]:
    """Open a path by key.

    Raises DatasetNotFoundError if there is no dataset, and ConfigError if the samples of its kind have no keys.
    """
    location = located(path)
    kind = kind_at(location)
    store = store_of(kind)
    if store is not None:
        return store(location)
    raise ConfigError(
        f"{path}: is {kind.described}, whose samples cannot be read by key: remove `need_primary` from the cooker"
    )
