# SPDX-License-Identifier: Apache-2.0
"""Hashes of MDS shards, which writers add to the index by `hashes=`: `{"xxh64": "0f…"}`.

Their names are those of `hashlib` and `xxhash`, as in Mosaic's streaming.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import xxhash

_logger = logging.getLogger(__name__)


def refuse_wrong_hash(hashes: Mapping[str, str], pieces: Iterable[bytes]) -> None:
    """Raise ValueError on a hash mismatch. Unknown algorithms are logged once.

    Args:
        hashes: Hexadecimal digests by the names of their algorithms.
        pieces: The bytes, which are not read if no algorithm is known.
    """
    begun = {name: found for name in hashes if (found := _begun(name)) is not None}
    for piece in pieces if begun else ():
        for each in begun.values():
            each.update(piece)
    for name, each in begun.items():
        if each.hexdigest() != hashes[name].lower():
            raise ValueError(f"has the {name} {each.hexdigest()}, but its index lists {hashes[name]}")


def _begun(name: str) -> Any:
    """A new hash object of an algorithm; None if the name is unknown."""
    if name in xxhash.algorithms_available:
        return getattr(xxhash, name)()
    if name in hashlib.algorithms_available and not name.startswith("shake_"):
        return hashlib.new(name)
    _log_unknown(name)
    return None


@cache
def _log_unknown(name: str) -> None:
    _logger.warning("MDS: hash algorithm %r is not available in this Python; its hashes are not verified", name)
