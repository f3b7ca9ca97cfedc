# SPDX-License-Identifier: Apache-2.0
"""Compression of whole MDS shards: Zstandard, Brotli, Snappy, gzip or bzip2.

An index names it with a level, which only writers use: `zstd:7`.
"""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable
from typing import Any

from energon_grain.errors import MissingPackageError

COMPRESSION = r"^(zstd|br|gz|bz2|snappy)(:|\Z)"
"""Pattern of the compressions in an index."""
COMPRESSED_ENDINGS = (".mds.zstd", ".mds.br", ".mds.gz", ".mds.bz2", ".mds.snappy")
_CODECS = {"zstd": "zstd", "br": "brotli", "snappy": "snappy"}


def decompress(data: bytes, compression: str, size_bytes: int) -> bytes:
    """A shard that decompresses to `size_bytes`. Uses no more memory than that.

    Raises:
        ValueError: The size differs, or one of pyarrow's own errors.
        MissingPackageError: The installed pyarrow was built without the codec.
    """
    name = compression.partition(":")[0]
    if name == "gz":
        found = _unpacked(data, size_bytes, lambda: zlib.decompressobj(zlib.MAX_WBITS | 16))
    elif name == "bz2":
        found = _unpacked(data, size_bytes, bz2.BZ2Decompressor)
    else:
        found = _by_pyarrow(data, size_bytes, _CODECS[name])
    if len(found) != size_bytes:
        raise ValueError(f"does not decompress to the {size_bytes} bytes listed in its index")
    return found


def _by_pyarrow(data: bytes, size_bytes: int, codec: str) -> bytes:
    import pyarrow as pa

    if not pa.Codec.is_available(codec):
        raise MissingPackageError(
            f"reading shards compressed with {codec} needs a pyarrow with that codec, such as the one on PyPI: "
            "pip install 'energon-grain[parquet]'"
        )
    return pa.decompress(data, size_bytes, codec, asbytes=True)


def _unpacked(data: bytes, size_bytes: int, begin: Callable[[], Any]) -> bytes:
    """Decompress concatenated members, to at most one byte more than expected. Raises ValueError."""
    found, left = list[bytes](), size_bytes + 1
    while data and left:
        member = begin()
        try:
            found.append(member.decompress(data, left))
        except (zlib.error, OSError) as error:
            raise ValueError(str(error)) from error
        if not member.eof:
            raise ValueError(f"does not end within the {size_bytes} bytes listed in its index, or was truncated")
        left -= len(found[-1])
        data = member.unused_data
    return b"".join(found)
