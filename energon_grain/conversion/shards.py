"""The unit of parallel work of a conversion: write one shard anew."""

from __future__ import annotations

import hashlib
import os
import secrets
import tarfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import msgspec
import numpy as np

from energon_grain.errors import EnergonGrainError, FormatError, ReadError
from energon_grain.formats.array_record_encoding import KEY, record_decoder
from energon_grain.formats.array_record_files import ArrayRecordFile
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
    """Digest over key and parts, in order, of one sample after the other.

    Args:
        count_only: Take no digest, only count.
    """

    def __init__(self, *, count_only: bool = False) -> None:
        self._hash, self._count_only = hashlib.blake2b(digest_size=16), count_only
        self.samples = 0

    def of(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Pass samples on, and take them in."""
        for key, parts in samples:
            yield key, parts
            self.samples += 1
            if not self._count_only:
                taken = [key.encode("utf-8", "surrogateescape")]
                for name, value in parts.items():
                    taken += [name.encode("utf-8", "surrogateescape"), value]
                self._hash.update(np.array([len(taken), *map(len, taken)], "<u8").tobytes())
                for data in taken:
                    self._hash.update(data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SampleDigest) and (self.samples, self._hash.digest()) == (
            other.samples,
            other._hash.digest(),
        )

    __hash__ = None  # type: ignore[assignment]


def write_records(path: Path, samples: Iterable[Sample], compression: Compression) -> None:
    """Write samples as msgpack records of a new ArrayRecord file, each compressed by itself or not at all.

    Raises:
        UnfitSampleError: A key or the name of a part is not UTF-8, a part is named like the key, or has 4 GiB or more.
        OSError, RuntimeError: The disk is full.
    """
    from array_record.python.array_record_module import ArrayRecordWriter

    option = "uncompressed" if compression == "none" else compression
    encoder = msgspec.msgpack.Encoder()
    with closing(ArrayRecordWriter(os.fspath(path), f"group_size:1,{option}")) as writer:
        for key, parts in samples:
            if KEY in parts:
                raise UnfitSampleError(f"sample {key!r} has a part {KEY!r}, which in records is the key")
            try:
                writer.write(encoder.encode({KEY: key, **parts}))
            except UnicodeEncodeError as error:
                raise UnfitSampleError(
                    f"sample {key!r}: its key or the name of a part is not UTF-8, as records need"
                ) from error
            except msgspec.EncodeError as error:
                raise UnfitSampleError(f"sample {key!r}: a part is too large for a record: {error}") from error


def write_tar(path: Path, samples: Iterable[Sample]) -> None:
    """Write parts of samples as regular members of a new GNU tar, with the same bytes for the same samples.

    Raises:
        UnfitSampleError: A sample has no part, its names would be read as those of another sample, or the sample before
            it has the same key.
        OSError: The disk is full.
    """
    last: str | None = None
    with open(path, "xb", buffering=1 << 20) as file:
        for key, parts in samples:
            if not parts or key == last:
                reason = "has no part" if not parts else "has the key of the sample before it"
                raise UnfitSampleError(f"sample {key!r} {reason}, so a tar cannot tell it")
            last = key
            for part, data in parts.items():
                name = f"{key}.{part}"
                if "\0" in name or split_member_name(name) != (key, part):
                    raise UnfitSampleError(
                        f"sample {key!r}, part {part!r}: a tar would hold it as {name!r}, which is not read as that "
                        f"sample and part: keys may have no dot behind their last slash, parts no slash, and neither a "
                        f"zero byte"
                    )
                member = tarfile.TarInfo(name)  # time 0, owner 0: nothing depends on the machine
                member.size = len(data)
                file.write(member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))
                file.write(data)
                file.write(bytes(-len(data) % _BLOCK))
        end = 2 * _BLOCK
        file.write(bytes(end + -(file.tell() + end) % _TAR_RECORD))


def written_samples(path: Path, container: Container) -> Iterator[Sample]:
    """Read all samples of a shard that `write_records` or `write_tar` wrote.

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
    target: Path
    record: Path
    container: Container
    compression: Compression
    verify: bool


class WrittenShard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A shard that was written, and compared if that was asked for."""

    samples: int
    size_bytes: int
    verified: bool


WRITTEN = Form(WrittenShard)


def convert_shard(task: ShardTask) -> WrittenShard:
    """Write a shard under a temporary name, flush it, read it back if asked to, and rename it.

    Raises:
        EnergonGrainError: The old shard cannot be read, or the new container cannot hold a sample of it.
        ReadError: What was written is not what was read.
        OSError: The disk is full, or may not be written to.
    """
    target = task.target
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}{TEMPORARY}")
    read, found = SampleDigest(count_only=not task.verify), SampleDigest()
    try:
        try:
            samples = read.of(shard_samples(task.source, task.shard))
            if task.container == "tar":
                write_tar(temporary, samples)
            else:
                write_records(temporary, samples, task.compression)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
        except UnfitSampleError as error:
            raise FormatError(f"{task.source.location}/{task.shard}: {error}") from error
        except EnergonGrainError:
            raise
        except (OSError, RuntimeError) as error:
            raise OSError(f"{target}: cannot be written: {error}") from error
        if task.verify:
            deque(found.of(written_samples(temporary, task.container)), maxlen=0)
            if found != read:
                raise ReadError(
                    f"{target}: what was written is not what was read ({found.samples} of {read.samples} samples came "
                    f"back, or others). Is the disk in order? Run the same command again"
                )
        written = WrittenShard(samples=read.samples, size_bytes=temporary.stat().st_size, verified=task.verify)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(target.parent)
    atomic_write_bytes(task.record, msgspec.json.encode(written))
    return written
