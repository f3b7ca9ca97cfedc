# SPDX-License-Identifier: Apache-2.0
r"""What names tars that nobody prepared: a folder, a file, a pattern, several of them with `::` between.

    data                        all `*.tar` below the folder, sorted folder by folder
    data/**/*.tar               a shell pattern, sorted likewise; `*`, `?` and `[…]` stay in a folder
    data/{000..999}.tar         braces, as webdataset writes them: these files, in this order
    a/{0..9}.tar::b             one after the other

A path of this machine that exists is what it says, whatever signs are in it.
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
        text: As it was given.
        base: Absolute path or URL of the folder that all of them are in or below, whatever is there: names of shards
            are relative to it.
        pieces: Folders, files and patterns, relative to it; "" is the folder itself.
    """

    text: str
    base: str
    pieces: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> TarList:
        """Take a text apart.

        Raises ConfigError if a piece is empty, they lie in different stores, or a URL is of none.
        """
        pieces = [piece if is_url(piece) else os.path.abspath(piece) for piece in map(located, text.split(BETWEEN))]
        if "" in text.split(BETWEEN):
            raise ConfigError(f"{text}: there is nothing on one side of a `{BETWEEN}`")
        stores = {(_BUCKET.match(piece) or [None])[0] for piece in pieces}
        if len(stores) > 1:
            one, other, *_ = sorted(str(store or "this machine") for store in stores)
            raise ConfigError(
                f"{text}: the tars of one dataset lie in one store; these lie in {one} and in {other}. Name each in a "
                f"metadataset of its own path, and combine them by `concat` or `blend_epochized`"
            )
        folders = [_folder_of(piece) for piece in pieces]
        base = (posixpath if is_url(pieces[0]) else os.path).commonpath(folders)
        if is_url(pieces[0]):  # whose two slashes are one to `commonpath`
            base = pieces[0][: len(base) + 1]
        return cls(text, base, tuple(piece[len(base) :].lstrip("/") for piece in pieces))

    @property
    def in_one_folder(self) -> bool:
        """Whether all pieces are of the base itself, and not of folders here and there below it."""
        return all(_folder_of(f"/{piece}") == "/" or not piece for piece in self.pieces) or len(self.pieces) == 1

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder by itself."""
        return self.pieces == ("",)


def _folder_of(piece: str) -> str:
    """The folder that a piece names, or that what it names is in or below."""
    if is_pattern(piece):
        sign = SIGNS.search(piece)
        assert sign is not None
        return piece[: sign.start()].rpartition("/")[0] or "/"
    return (piece.rpartition("/")[0] or "/") if is_tar(piece) else piece


def is_pattern(piece: str) -> bool:
    """Whether a piece is a shell pattern, or has braces. A file or folder of this machine may be called like one."""
    return SIGNS.search(piece) is not None and (is_url(piece) or not os.path.lexists(piece))


def is_tar(piece: str) -> bool:
    """Whether a piece names files, and not a folder: by its ending, that of a tar, compressed or not."""
    return ends_like_a_tar(piece) and (is_url(piece) or not os.path.isdir(piece))


def ends_like_a_tar(name: str) -> bool:
    """Whether a name, or a pattern, has the ending of a tar, compressed or not."""
    return _TAR.search(name) is not None


def lists_tars(text: str) -> bool:
    """Whether a path names tars by itself: one, or a pattern of them, or several with `::` between."""
    pieces = text.split(BETWEEN)
    if len(pieces) == 1:
        return is_tar(text)
    return all(is_tar(piece) or not posixpath.splitext(piece)[1] or os.path.isdir(piece) for piece in pieces)
