"""The unit of parallel work of a conversion: write one shard anew."""

from __future__ import annotations

import hashlib
import os
import secrets
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import msgspec
import numpy as np

from energon_grain.errors import EnergonGrainError, FormatError, ReadError
from energon_grain.extras import needed_for
from energon_grain.formats.array_record import KEY, ArrayRecordFile, record_decoder
from energon_grain.formats.columnar import open_columnar
from energon_grain.formats.data_folder import DataFolder
from energon_grain.formats.tar.names import split_member_name
from energon_grain.formats.tar.scan import scan_tar
from energon_grain.forms import Form
from energon_grain.sources.prepared import open_prepared
from energon_grain.storage.atomic import atomic_write_bytes, sync_folder

Container = Literal["tar", "array-record"]
Compression = Literal["none", "zstd"]
_AT_ONCE = 4096
_AT_ONCE_BYTES = 16 << 20
Sample = tuple[str, Mapping[str, bytes]]
"""Key, and payload by part."""
_BLOCK = 512
_TAR_RECORD = 20 * _BLOCK
_RECORDS_AT_ONCE = 64
TEMPORARY = ".converting"
"""How names of shards end that are being written."""


class UnfitSampleError(FormatError):
    """A container cannot hold a sample. Says which sample, not of which shard."""


def shard_samples(folder: DataFolder, shard: str) -> Iterator[Sample]:
    """Read a shard, about 32 MiB at a time. A part that a sample has twice comes once, the later one.

    Raises:
        UnfitSampleError: A part is not bytes but numbers, as features of a `tf.train.Example` may be.
    """
    index = open_columnar(folder)
    first = int(index.shard_first[index.shards.index(shard)])
    with closing(open_prepared(folder, shards=[shard])) as source:
        done = 0
        while done < len(source):
            block = np.arange(done, min(done + _AT_ONCE, len(source)))
            block = block[: max(1, int(np.searchsorted(np.cumsum(source.sizes(block)), _AT_ONCE_BYTES, side="right")))]
            batch = source.read(block)
            index.check(first + block)
            starts = index.part_start[first + done : first + done + len(block) + 1].tolist()
            names = index.part_name[starts[0] : starts[-1]].tolist()
            for place, key in enumerate(batch.keys):
                own = names[starts[place] - starts[0] : starts[place + 1] - starts[0]]
                parts: dict[str, bytes] = {}
                for part in map(index.part_names.__getitem__, own):
                    value = batch.columns[part][place]
                    if not isinstance(value, bytes):
                        raise UnfitSampleError(
                            f"sample {key!r}: the part {part!r} holds numbers; only bytes can be written to files of "
                            f"another kind"
                        )
                    parts[part] = value
                yield key, parts
            done += len(block)


class SampleDigest:
    """Digest over key and parts, in order, of one sample after the other."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.samples = 0

    def add(self, key: str, parts: Mapping[str, bytes]) -> None:
        """Take in a sample."""
        told = [key.encode("utf-8", "surrogateescape")]
        for name, value in parts.items():
            told += [name.encode("utf-8", "surrogateescape"), value]
        lengths = np.array([len(told), *map(len, told)], "<u8")
        self._hash.update(lengths.tobytes())
        for text in told:
            self._hash.update(text)
        self.samples += 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SampleDigest) and (self.samples, self._hash.digest()) == (
            other.samples,
            other._hash.digest(),
        )

    __hash__ = None  # type: ignore[assignment]


class ShardWriter(Protocol):
    """Writes one shard; `close` makes it whole."""

    def write(self, sample: Sample) -> None:
        """Add a sample. Raises UnfitSampleError where the container cannot hold it."""
        ...

    def close(self) -> None:
        """Write the end. Raises OSError or RuntimeError when the disk is full."""
        ...


class RecordWriter:
    """Writes samples as msgpack records of an ArrayRecord file, each compressed by itself or not at all.

    Args:
        path: A new file.
        compression: Of each record.
    """

    def __init__(self, path: Path, compression: Compression) -> None:
        with needed_for("writing ArrayRecord files"):
            from array_record.python.array_record_module import ArrayRecordWriter

        option = "uncompressed" if compression == "none" else compression
        self._encoder = msgspec.msgpack.Encoder()
        self._writer: Any = ArrayRecordWriter(os.fspath(path), f"group_size:1,{option}")

    def write(self, sample: Sample) -> None:
        """Add a sample.

        Raises:
            UnfitSampleError: Its key or the name of a part is not UTF-8, it has a part named like the key, or one of 4
                GiB or more.
        """
        key, parts = sample
        if KEY in parts:
            raise UnfitSampleError(f"sample {key!r} has a part {KEY!r}, which in records is the key")
        try:
            record = self._encoder.encode({KEY: key, **parts})
        except UnicodeEncodeError as error:
            raise UnfitSampleError(
                f"sample {key!r}: its key or the name of a part is not UTF-8, as records need"
            ) from error
        except msgspec.EncodeError as error:
            raise UnfitSampleError(f"sample {key!r}: a part is too large for a record: {error}") from error
        self._writer.write(record)

    def close(self) -> None:
        """Write the end of the file."""
        self._writer.close()


class TarWriter:
    """Writes parts of samples as regular members of a GNU tar, with the same bytes for the same samples.

    Args:
        path: A new file.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "xb", buffering=1 << 20)  # noqa: SIM115 (`close` closes it)
        self._last: str | None = None

    def write(self, sample: Sample) -> None:
        """Add a sample.

        Raises:
            UnfitSampleError: It has no part, its names would be read as those of another sample, or the sample before
                it has the same key.
        """
        key, parts = sample
        if not parts or key == self._last:
            reason = "has no part" if not parts else "has the key of the sample before it"
            raise UnfitSampleError(f"sample {key!r} {reason}, so a tar cannot tell it")
        self._last = key
        for part, data in parts.items():
            name = f"{key}.{part}"
            if "\0" in name or split_member_name(name) != (key, part):
                raise UnfitSampleError(
                    f"sample {key!r}, part {part!r}: a tar would hold it as {name!r}, which is not read as that sample "
                    f"and part: keys may have no dot behind their last slash, parts no slash, and neither a zero byte"
                )
            member = tarfile.TarInfo(name)  # time 0, owner 0: nothing depends on the machine
            member.size = len(data)
            self._file.write(member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))
            self._file.write(data)
            self._file.write(bytes(-len(data) % _BLOCK))

    def close(self) -> None:
        """Write the end of the archive."""
        end = 2 * _BLOCK
        self._file.write(bytes(end + -(self._file.tell() + end) % _TAR_RECORD))
        self._file.close()


def written_samples(path: Path, container: Container) -> Iterator[Sample]:
    """Read all samples of a shard that was written by a `ShardWriter`.

    Raises:
        FormatError: It is damaged.
        ReadError: It is damaged.
    """
    return _records(path) if container == "array-record" else _members(path)


def _records(path: Path) -> Iterator[Sample]:
    file, decode = ArrayRecordFile(str(path)), record_decoder("msgpack")
    for start in range(0, file.records, _RECORDS_AT_ONCE):
        for data in file.read(list(range(start, min(start + _RECORDS_AT_ONCE, file.records)))):
            yield cast(Sample, decode(data))


def _members(path: Path) -> Iterator[Sample]:
    scan = scan_tar(path)
    bounds = scan.part_start.tolist()
    with open(path, "rb") as file:
        for sample, key in enumerate(scan.keys()):
            parts: dict[str, bytes] = {}
            for row in range(bounds[sample], bounds[sample + 1]):
                file.seek(int(scan.part_offset[row]))
                parts[scan.part_names[int(scan.part_name[row])]] = file.read(int(scan.part_size[row]))
            yield key, parts


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardTask:
    """Write shard `shard` of the dataset `source` as the file `target`, and that it is done into `record`."""

    source: DataFolder
    shard: str
    target: str
    record: str
    container: Container
    compression: Compression
    verify: bool


class WrittenShard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A shard that was written, and compared if that was asked for."""

    samples: int
    size_bytes: int
    verified: bool


WRITTEN = Form(WrittenShard)


def record_name(shard: str) -> str:
    """The name of the file that says that a shard was written: a digest, so that it cannot be too long."""
    return f"{hashlib.blake2b(shard.encode('utf-8', 'surrogateescape'), digest_size=16).hexdigest()}.json"


def convert_shard(task: ShardTask) -> WrittenShard:
    """Write a shard under a temporary name, flush it, read it back if asked to, and rename it.

    Raises:
        EnergonGrainError: The old shard cannot be read, or the new container cannot hold a sample of it.
        ReadError: What was written is not what was read.
        OSError: The disk is full, or may not be written to.
    """
    target = Path(task.target)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}{TEMPORARY}")
    try:
        digest = _write(task, temporary)
        if task.verify:
            found = SampleDigest()
            for sample in written_samples(temporary, task.container):
                found.add(*sample)
            if found != digest:
                raise ReadError(
                    f"{task.target}: what was written is not what was read ({found.samples} of {digest.samples} "
                    f"samples came back, or others). Is the disk in order? Run the same command again"
                )
        written = WrittenShard(samples=digest.samples, size_bytes=temporary.stat().st_size, verified=task.verify)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(target.parent)
    atomic_write_bytes(task.record, msgspec.json.encode(written))
    return written


def _write(task: ShardTask, path: Path) -> SampleDigest:
    digest = SampleDigest()
    try:
        writer = _writer(task, path)
        try:
            for sample in shard_samples(task.source, task.shard):
                writer.write(sample)
                if task.verify:
                    digest.add(*sample)
                else:
                    digest.samples += 1
        finally:
            writer.close()
        _flush(path)
    except UnfitSampleError as error:
        raise FormatError(f"{task.source.location}/{task.shard}: {error}") from error
    except (OSError, RuntimeError) as error:
        if isinstance(error, EnergonGrainError):
            raise
        raise OSError(f"{task.target}: cannot be written: {error}") from error
    return digest


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _writer(task: ShardTask, path: Path) -> ShardWriter:
    return RecordWriter(path, task.compression) if task.container == "array-record" else TarWriter(path)
