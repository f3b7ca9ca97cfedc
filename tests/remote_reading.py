"""What the processes of a test do with remote objects. A module of its own, so that spawned ones can import it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from energon_grain.stores.remote_files import RemoteFiles


def read(files: RemoteFiles, url: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """Ranges of one object, in one call."""
    start, stop = np.array(ranges, np.int64).reshape(-1, 2).T
    return files.read_spans([url], np.zeros(len(ranges), np.int64), start, stop)


def digest(files: RemoteFiles, url: str, step: int, *, backwards: bool = False) -> str:
    """A hash over a whole object, read in ranges of `step` bytes, one call each."""
    size = files.size(url)
    pieces = [(start, min(start + step, size)) for start in range(0, size, step)]
    found = {piece: read(files, url, [piece])[0] for piece in (reversed(pieces) if backwards else pieces)}
    return hashlib.sha256(b"".join(found[piece] for piece in pieces)).hexdigest()


def read_for_ever(files: RemoteFiles, url: str) -> None:
    """Until killed."""
    while True:
        digest(files, url, 100_000)
