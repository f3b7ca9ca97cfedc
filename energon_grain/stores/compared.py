# SPDX-License-Identifier: Apache-2.0
"""Responses of stores, compared page by page with the digests of shards."""

from __future__ import annotations

import xxhash

from energon_grain.storage.digests import PAGE_BYTES, SUM_BYTES, ShardDigest
from energon_grain.stores.object_error import ObjectError
from energon_grain.stores.object_stores import Pieces

_AGAIN = 3
"""Number of attempts for bytes with a wrong digest: damage by the network disappears on a retry, damage in the store
does not."""


class VerifiedPieces:
    """A `Pieces` that compares the pages of a response with their digests, and passes the bytes on.

    Passed bytes must not be used before the response has ended, because a page is compared when its last piece arrives.
    Partial pages at the ends are not compared. A mismatch raises an ObjectError, which is temporary until `wrong`,
    shared by all attempts, holds `_AGAIN` mismatches.
    """

    def __init__(self, pieces: Pieces, digest: ShardDigest, start: int, stop: int, wrong: list[int]) -> None:
        self.pieces = pieces
        self._digest, self._at, self._stop, self._wrong = digest, start, stop, wrong
        self._sum = xxhash.xxh3_64()
        self._begin = start

    def append(self, piece: bytes, /) -> None:
        """Take the next bytes. Raises ObjectError."""
        data = memoryview(piece)
        while data:
            upto = min((self._at // PAGE_BYTES + 1) * PAGE_BYTES, self._stop)
            part = data[: upto - self._at]
            self._sum.update(part)
            self._at += len(part)
            data = data[len(part) :]
            if self._at == upto:
                self._compare()
        self.pieces.append(piece)

    def _compare(self) -> None:
        """Called at the end of a page, or of the response."""
        page, found = self._begin // PAGE_BYTES, self._sum.digest()
        whole = self._begin % PAGE_BYTES == 0 and self._at == min((page + 1) * PAGE_BYTES, self._digest.size_bytes)
        if whole and found != self._digest.pages[page * SUM_BYTES : (page + 1) * SUM_BYTES]:
            self._wrong.append(page)
            raise ObjectError(
                f"bytes {self._begin} to {self._at} differ from the shard that was prepared: digest "
                f"mismatch{'' if len(self._wrong) < _AGAIN else f', {_AGAIN} times'}",
                temporary=len(self._wrong) < _AGAIN,
                advice="upload the shard again; if it was changed on purpose, prepare the dataset again with --digest",
            )
        self._sum.reset()
        self._begin = self._at
