"""Write plain ustar shards quickly: about 2 µs a member, so a million members take seconds.

Only what the data sets need: regular files with names of at most 100 ASCII bytes, all with the same owner and time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

_BLOCK = 512
_RECORD = 20 * _BLOCK


def _header_template() -> bytes:
    header = bytearray(_BLOCK)
    header[100:108] = b"0000644\0"
    header[108:116] = header[116:124] = b"0000000\0"
    header[136:148] = b"14720000000\0"
    header[148:156] = b" " * 8
    header[156:157] = b"0"
    header[257:265] = b"ustar\x0000"
    return bytes(header)


_TEMPLATE = _header_template()
_TEMPLATE_SUM = sum(_TEMPLATE)


def _member(name: str, data: bytes) -> bytes:
    raw_name = name.encode("ascii")
    if len(raw_name) > 100:
        raise ValueError(f"{name!r} has {len(raw_name)} bytes; a ustar name has at most 100")
    size = b"%011o" % len(data)
    checksum = _TEMPLATE_SUM + sum(raw_name) + sum(size)
    padding = bytes(-len(data) % _BLOCK)
    return b"".join(
        (
            raw_name.ljust(100, b"\0"),
            _TEMPLATE[100:124],
            size,
            _TEMPLATE[135:148],
            b"%06o\0 " % checksum,
            _TEMPLATE[156:],
            data,
            padding,
        )
    )


def write_shard(path: Path, samples: Iterable[tuple[str, Mapping[str, bytes]]]) -> int:
    """Write `(key, {part: payload})` samples as one tar and return how many there were."""
    count = written = 0
    with path.open("wb", buffering=1 << 20) as file:
        for key, parts in samples:
            for part, data in parts.items():
                written += file.write(_member(f"{key}.{part}", data))
            count += 1
        file.write(bytes(2 * _BLOCK + -(written + 2 * _BLOCK) % _RECORD))
    return count
