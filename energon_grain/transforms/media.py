"""Video and audio parts."""

from __future__ import annotations

import importlib
import io
from typing import Any, BinaryIO, Literal

from energon_grain.errors import ConfigError

Buffer = bytes | memoryview
AVDecode = Literal["torch", "AVDecoder", "pyav"]

AV_EXTENSIONS = frozenset({"avi", "flac", "flv", "mkv", "mov", "mp3", "mp4", "wav", "webm"})
"""Ends of part names (in lower case) that mean video or audio."""


class AVDecoder:
    """A video or audio file that is decoded when asked. Holding one costs nothing; picklable."""

    __slots__ = ("stream",)

    def __init__(self, stream: BinaryIO) -> None:
        """Hold `stream`, a seekable binary file."""
        self.stream = stream

    def open(self) -> Any:
        """Open the file with PyAV from its beginning.

        Raises:
            ConfigError: PyAV is not installed.
        """
        av = require_av()
        self.stream.seek(0)
        return av.open(self.stream)

    def __getstate__(self) -> bytes:
        self.stream.seek(0)
        return self.stream.read()

    def __setstate__(self, state: bytes) -> None:
        self.stream = io.BytesIO(state)

    def __repr__(self) -> str:
        return f"AVDecoder({self.stream!r})"


def decode_lazily(data: Buffer) -> AVDecoder:
    """A decoder of the file with these bytes."""
    return AVDecoder(io.BytesIO(data))


def decode_pyav(data: Buffer) -> Any:
    """The file opened with PyAV."""
    return AVDecoder(io.BytesIO(data)).open()


def require_av() -> Any:
    """The module `av`.

    Raises:
        ConfigError: PyAV is not installed.
    """
    try:
        return importlib.import_module("av")
    except ImportError as error:
        raise ConfigError('video and audio are decoded by PyAV; run pip install "energon-grain[av]"') from error
