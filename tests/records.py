"""ArrayRecord files for tests, of records in every encoding."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

NAMES = ["plain", "Grüße", "日本語", "emoji-🎈", "a/b/deep", "with space", "0", "ключ"]


def irregular_samples(count: int) -> list[dict[str, Any]]:
    """Parts that come and go, empty ones, large ones, keys in every alphabet."""
    rng = np.random.default_rng(0)
    found: list[dict[str, Any]] = []
    for i in range(count):
        sample: dict[str, Any] = {"__key__": f"{NAMES[i % len(NAMES)]}{i:03d}", "txt": b"text %d" % i}
        if i % 3 == 0:
            sample["json"] = b"{}"
        if i % 5 == 1:
            sample["seg.bin"] = rng.bytes(i * 1000)
        if i % 7 == 2:
            sample["empty"] = b""
        found.append(sample)
    return found


def write_records(path: Path, records: Iterable[bytes], options: str = "group_size:1,uncompressed") -> Path:
    """Write one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return path


def msgpack_record(sample: Mapping[str, Any]) -> bytes:
    """A sample, key included, as a record."""
    return msgspec.msgpack.encode(dict(sample))


def write_shards(root: Path, records: Sequence[bytes], shards: int, options: str = "group_size:1,uncompressed") -> None:
    """Cut records into files `shard_000.array_record` and on."""
    for shard in range(shards):
        run = records[len(records) * shard // shards : len(records) * (shard + 1) // shards]
        write_records(root / f"shard_{shard:03d}.array_record", run, options)


def encode_example(features: Mapping[str, Sequence[Any]]) -> bytes:
    """A `tf.train.Example` as TensorFlow writes it: the type of the first value says which list; none: of bytes."""
    entries = b"".join(
        _field(1, _field(1, name.encode("utf-8")) + _field(2, _feature(values))) for name, values in features.items()
    )
    return _field(1, entries)


def _feature(values: Sequence[Any]) -> bytes:
    if not values or isinstance(values[0], bytes):
        return _field(1, b"".join(_field(1, value) for value in values))
    if isinstance(values[0], float):
        return _field(2, _field(1, struct.pack(f"<{len(values)}f", *values)))
    return _field(3, _field(1, b"".join(_varint(value % (1 << 64)) for value in values)))


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    octets = bytearray()
    while value >= 0x80:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*octets, value])
