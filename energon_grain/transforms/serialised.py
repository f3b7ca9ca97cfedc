"""Decoding msgpack and CBOR, and, where the program allows it, pickles and torch files."""

from __future__ import annotations

import importlib
import io
import pickle
import zipfile
from collections.abc import Callable
from types import ModuleType
from typing import Any

from energon_grain.errors import ConfigError, UntrustedCodeError
from energon_grain.transforms.array import check_unpacked

Buffer = bytes | memoryview

MSGPACK_EXTENSIONS = frozenset({"mp", "msg"})
CBOR_EXTENSIONS = frozenset({"cbor"})
PICKLE_EXTENSIONS = frozenset({"pkl", "pickle", "pyd"})
TORCH_EXTENSIONS = frozenset({"pth"})


def msgpack_codec(part: str) -> Callable[[Buffer], Any]:
    """A function that decodes msgpack.

    Raises:
        ConfigError: The package `msgpack` is not installed.
    """
    return _installed("msgpack", part, "energon-grain[codecs]").unpackb


def cbor_codec(part: str) -> Callable[[Buffer], Any]:
    """A function that decodes CBOR.

    Raises:
        ConfigError: The package `cbor2` is not installed.
    """
    return _installed("cbor2", part, "energon-grain[codecs]").loads


def pickle_codec(part: str, *, allowed: bool) -> Callable[[Buffer], Any]:
    """A function that decodes pickles.

    Raises:
        UntrustedCodeError: Not allowed.
    """
    _check_allowed(part, "a pickle", allowed=allowed)
    return pickle.loads


def torch_codec(part: str, *, allowed: bool, max_bytes: int | None) -> Callable[[Buffer], Any]:
    """A function that decodes what `torch.save` wrote, to the CPU.

    Raises:
        UntrustedCodeError: Not allowed.
        ConfigError: The package `torch` is not installed.
    """
    _check_allowed(part, "a torch file, which is a pickle inside,", allowed=allowed)
    torch = _installed("torch", part, "energon-grain[torch]")

    def decode(data: Buffer) -> Any:
        return torch.load(torch_file(data, max_bytes), map_location="cpu", weights_only=False)

    return decode


def torch_file(data: Buffer, max_bytes: int | None) -> io.BytesIO:
    """What `torch.save` wrote, for `torch.load`.

    Raises:
        ValueError: It is an archive that unpacks to more than `max_bytes`.
    """
    file = io.BytesIO(data)
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            check_unpacked(archive, max_bytes)
    file.seek(0)
    return file


def _check_allowed(part: str, what: str, *, allowed: bool) -> None:
    if not allowed:
        raise UntrustedCodeError(
            f"part {part!r} is {what} and may run any code when it is loaded; if you trust the data, pass "
            "SampleDecoder(allow_pickle=True), else leave the part out (field_map, part_filter) or take raw bytes "
            "(decoder=None)"
        )


def _installed(module: str, part: str, requirement: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"decoding part {part!r} takes the package {module!r}, which is not installed; run "
            f'pip install "{requirement}", or take raw bytes (decoder=None)'
        ) from error
