"""Files of the forms that need no preparation, for tests, and ways to damage them."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import xxhash
from parquet_files import write_parquet

Columns = Mapping[str, Any]


def write_arrow(path: Path, columns: Columns, *, metadata: Any = None, rows: int = 7, compression: Any = None) -> Path:
    """One file of the stream format, as Hugging Face's `datasets` writes it, with batches of `rows`."""
    table = pa.table(dict(columns)).replace_schema_metadata(metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def write_feather(path: Path, columns: Columns, *, rows: int = 7, compression: str | None = None) -> Path:
    """One file of the file format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    feather.write_feather(pa.table(dict(columns)), path, compression=compression or "uncompressed", chunksize=rows)
    return path


def holes_in_heads(path: Path) -> Iterator[bytes]:
    """An Arrow file with zeros over each 8 bytes in turn that are in no body of a message, where they change it."""
    data, in_body, at = path.read_bytes(), set[int](), 8 if path.read_bytes()[:6] == b"ARROW1" else 0
    while length := int.from_bytes(data[at + 4 : at + 8], "little"):
        message = pa.ipc.read_message(data[at:])
        body = 0 if message.body is None else message.body.size
        in_body.update(range(at + 8 + length, at + 8 + length + body))
        at += 8 + length + body
    for place in range(0, len(data), 8):
        hole = data[:place] + bytes(8) + data[place + 8 :]
        if place not in in_body and hole[: len(data)] != data:
            yield hole[: len(data)]


_ENCODINGS: dict[type, tuple[str, int | None, Callable[[Any], bytes]]] = {
    int: ("int", 8, lambda value: np.int64(value).tobytes()),
    str: ("str", None, str.encode),
    bytes: ("bytes", None, bytes),
}


_COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "zstd": lambda data: pa.compress(data, "zstd", asbytes=True),
    "br": lambda data: pa.compress(data, "brotli", asbytes=True),
    "snappy": lambda data: pa.compress(data, "snappy", asbytes=True),
    "gz": gzip.compress,
    "bz2": bz2.compress,
}


def write_mds(
    path: Path,
    columns: Mapping[str, Sequence[Any]],
    *,
    shards: int = 2,
    compression: str | None = None,
    hashes: Sequence[str] = (),
) -> Path:
    """Shards of columns of numbers, texts and bytes, and their index, after the description of the format.

    Args:
        hashes: Names of hashes of `hashlib` or `xxhash` that the index has of each file.
    """
    path.mkdir(parents=True, exist_ok=True)
    names = sorted(columns)
    kinds = [_ENCODINGS[type(columns[name][0])] for name in names]
    said = {"column_names": names, "column_encodings": [k[0] for k in kinds], "column_sizes": [k[1] for k in kinds]}
    config = json.dumps(said).encode()
    count = len(columns[names[0]])
    entries: list[dict[str, Any]] = []
    for shard in range(shards):
        rows = range(count * shard // shards, count * (shard + 1) // shards)
        samples: list[bytes] = []
        for row in rows:
            values = [encode(columns[name][row]) for name, (*_, encode) in zip(names, kinds, strict=True)]
            sizes = [len(value) for value, kind in zip(values, kinds, strict=True) if kind[1] is None]
            samples.append(np.array(sizes, "<u4").tobytes() + b"".join(values))
        begins = np.cumsum([4 * (len(samples) + 2) + len(config), *map(len, samples)]).astype("<u4")
        data = np.array([len(samples)], "<u4").tobytes() + begins.tobytes() + config + b"".join(samples)
        entry = {"samples": len(samples), "format": "mds", "compression": compression, "zip_data": None, **said}
        name = f"shard.{shard:05d}.mds"
        entry["raw_data"] = {"basename": name, "bytes": len(data), "hashes": _hashed(data, hashes)}
        if compression is not None:
            way = compression.partition(":")[0]
            data, name = _COMPRESS[way](data), f"{name}.{way}"
            entry["zip_data"] = {"basename": name, "bytes": len(data), "hashes": _hashed(data, hashes)}
        (path / name).write_bytes(data)
        entries.append(entry)
    (path / "index.json").write_text(json.dumps({"version": 2, "shards": entries}))
    return path


def _hashed(data: bytes, names: Sequence[str]) -> dict[str, str]:
    return {name: getattr(xxhash, name, getattr(hashlib, name, None))(data).hexdigest() for name in names}


def write_tokens(path: Path, documents: Sequence[Sequence[int]], *, dtype: str = "<u2", sequence: int = 10**9) -> Path:
    """`path.bin` and `path.idx`; documents are cut into sequences of at most so many tokens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    code = {"<u2": 8, "<i4": 4, "<i8": 5}[dtype]
    cut = [[len(each[at : at + sequence]) for at in range(0, len(each), sequence)] for each in documents]
    lengths = np.array([length for each in cut for length in each], "<i4")
    starts = (np.cumsum([0, *lengths[:-1]])[: len(lengths)] * np.dtype(dtype).itemsize).astype("<i8")
    firsts = np.cumsum([0, *map(len, cut)]).astype("<i8")
    head = b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + bytes([code])
    head += len(lengths).to_bytes(8, "little") + len(firsts).to_bytes(8, "little")
    path.with_name(f"{path.name}.idx").write_bytes(head + lengths.tobytes() + starts.tobytes() + firsts.tobytes())
    tokens = np.concatenate([np.array(each, dtype) for each in documents])
    path.with_name(f"{path.name}.bin").write_bytes(tokens.tobytes())
    return path


def write_parquet_file(path: Path, columns: Columns) -> Path:
    """One file with row groups of 7."""
    return write_parquet(path, columns, row_group_size=7)


def damaged(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    """A file with bytes changed, most of them at its two ends, cut short, or with pieces repeated or left out."""
    rng = random.Random(seed)
    for number in range(count):
        changed = bytearray(data)
        kind = number % 6
        if kind == 4:
            yield bytes(changed[: rng.randrange(len(data))])
            continue
        if kind == 5:
            begin, end = sorted(rng.randrange(len(data)) for _ in range(2))
            yield bytes(changed[:begin] + (changed[end:] if rng.random() < 0.5 else changed[begin:end] * 2))
            continue
        edge = min(len(data), 400)
        low, high = [(0, edge), (len(data) - edge, len(data)), (0, len(data)), (0, len(data))][kind]
        for _ in range(rng.choice([1, 1, 2, 8])):
            at = rng.randrange(low, high)
            if rng.random() < 0.2:  # a number of 4 or 8 bytes
                size = rng.choice([4, 8])
                number_ = rng.choice([0, -1, 1 << 30, (1 << 31) - 1, -(1 << 31), 1, 255])
                changed[at : at + size] = (number_ % (1 << 8 * size)).to_bytes(size, "little")[: len(data) - at]
            else:
                changed[at] = rng.choice([0, 255, changed[at] ^ 1 << rng.randrange(8), rng.randrange(256)])
        yield bytes(changed)
