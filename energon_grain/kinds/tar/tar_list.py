# SPDX-License-Identifier: Apache-2.0
r"""Parses texts that name unprepared tars: a folder, a file, a pattern, or several of them separated by `::`.

    data                        all `*.tar` below the folder, sorted folder by folder
    data/**/*.tar               a shell pattern, sorted in the same way; `*`, `?` and `[…]` do not cross folders
    data/{000..999}.tar         braces as in webdataset: these files, in this order
    a/{0..9}.tar::b             one after the other

An existing local path is taken literally, even with special characters.
"""

from __future__ import annotations

import os
import posixpath
import re
from dataclasses import dataclass

from energon_grain.errors import ConfigError
from energon_grain.formats.data_files import BETWEEN, SIGNS
from energon_grain.storage.location import is_url, located

_TAR = re.compile(r"\.(?:tar(?:\.(?:gz|bz2|xz|zst))?|tgz|tbz2|txz)[\]}]*$")
_BUCKET = re.compile(r"hf://datasets/[^/]*/[^/]*|[a-z][a-z0-9+.-]*://[^/]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TarList:
    """The pieces of such a text.

    Attributes:
        text: The original text.
        base: Absolute path or URL of the common parent folder, independent of the files present; shard names are
            relative to it.
        pieces: Folders, files and patterns, relative to it; "" is the folder itself.
    """

    text: str
    base: str
    pieces: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> TarList:
        """Parse a text.

        Raises ConfigError if a piece is empty, pieces are in different stores, or a URL's store is unknown.
        """
        pieces = [piece if is_url(piece) else os.path.abspath(piece) for piece in map(located, text.split(BETWEEN))]
        if "" in text.split(BETWEEN):
            raise ConfigError(f"{text}: one side of a `{BETWEEN}` is empty; write a path on both sides")
        stores = {(_BUCKET.match(piece) or [None])[0] for piece in pieces}
        if len(stores) > 1:
            one, other, *_ = sorted(str(store or "the local file system") for store in stores)
            raise ConfigError(
                f"{text}: the tars of one dataset must be in one store; these are in {one} and in {other}. Name each "
                f"in its own metadataset entry, and combine them by `concat` or `blend_epochized`"
            )
        folders = [_folder_of(piece) for piece in pieces]
        base = (posixpath if is_url(pieces[0]) else os.path).commonpath(folders)
        if is_url(pieces[0]):  # `commonpath` merges the two slashes of a URL
            base = pieces[0][: len(base) + 1]
        return cls(text, base, tuple(piece[len(base) :].lstrip("/") for piece in pieces))

    @property
    def in_one_folder(self) -> bool:
        """Whether all pieces are directly in the base, not in folders below it."""
        return all(_folder_of(f"/{piece}") == "/" or not piece for piece in self.pieces) or len(self.pieces) == 1

    @property
    def is_folder(self) -> bool:
        """Whether the text is just a folder."""
        return self.pieces == ("",)


def _folder_of(piece: str) -> str:
    """The folder that a piece names, or the parent folder of the files that it names."""
    if is_pattern(piece):
        sign = SIGNS.search(piece)
        assert sign is not None
        return piece[: sign.start()].rpartition("/")[0] or "/"
    return (piece.rpartition("/")[0] or "/") if is_tar(piece) else piece


def is_pattern(piece: str) -> bool:
    """Whether a piece is a shell pattern or has braces, unless a local file or folder has that exact name."""
    return SIGNS.search(piece) is not None and (is_url(piece) or not os.path.lexists(piece))


def is_tar(piece: str) -> bool:
    """Whether a piece names files, not a folder: by the ending of a tar, compressed or not."""
    return ends_like_a_tar(piece) and (is_url(piece) or not os.path.isdir(piece))


def ends_like_a_tar(name: str) -> bool:
    """Whether a name or pattern has the ending of a tar, compressed or not."""
    return _TAR.search(name) is not None


def lists_tars(text: str) -> bool:
    """Whether a path directly names tars: one, a pattern of them, or several separated by `::`."""
    pieces = text.split(BETWEEN)
    if len(pieces) == 1:
        return is_tar(text)
    return all(is_tar(piece) or not posixpath.splitext(piece)[1] or os.path.isdir(piece) for piece in pieces)
