"""Files by their location: whole, or what they begin with."""

from __future__ import annotations

from pathlib import Path

from energon_grain.errors import RangeError, ReadError
from energon_grain.storage.location import is_url
from energon_grain.storage.object_client import ObjectRange, shared_client
from energon_grain.storage.settings import storage_settings


def read_whole(location: str) -> bytes:
    """Read a file, or an object of a store. Raises FileNotFoundError, OSError and ConfigError."""
    if not is_url(location):
        return Path(location).read_bytes()
    found = shared_client(storage_settings()).read(ObjectRange(location))
    if found is None or found.data is None:
        raise FileNotFoundError(f"{location}: there is no such object")
    return found.data


def read_beginning(location: str, size_bytes: int) -> bytes:
    """Read the first bytes of a file, or of an object of a store; fewer where it is shorter, none where there is none.

    Raises ReadError and ConfigError.
    """
    if is_url(location):
        client = shared_client(storage_settings())
        try:
            found = client.read(ObjectRange(location, 0, size_bytes))
        except RangeError:
            found = client.read(ObjectRange(location))
        return b"" if found is None or found.data is None else found.data
    try:
        with open(location, "rb") as file:
            return file.read(size_bytes)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return b""
    except OSError as error:
        raise ReadError(f"cannot read {location}: {error.strerror}") from error
