"""The unit of parallel work of a conversion: write one shard anew."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

import msgspec

from energon_grain.conversion.read_back import written_samples
from energon_grain.conversion.report import Compression, Container
from energon_grain.conversion.samples import SampleDigest, UnfitSampleError, shard_samples
from energon_grain.conversion.shard_writers import RecordWriter, ShardWriter, TarWriter
from energon_grain.errors import EnergonGrainError, FormatError, ReadError
from energon_grain.formats.data_folder import DataFolder
from energon_grain.forms import Form
from energon_grain.storage.atomic import atomic_write_bytes, sync_folder

TEMPORARY = ".converting"
"""How names of shards end that are being written."""


class ShardTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Write shard `shard` of the dataset at `source` as the file `target`, and that it is done into `record`."""

    source: str
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


class ShardReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `shard_program` prints: a shard, or class and message of the error that it met."""

    written: WrittenShard | None = None
    error: tuple[str, str] | None = None


TASK, WRITTEN, REPLY = Form(ShardTask), Form(WrittenShard), Form(ShardReply)


def record_name(shard: str) -> str:
    """The name of the file that says that a shard was written: a digest, so that it cannot be too long."""
    return f"{hashlib.blake2b(shard.encode('utf-8', 'surrogateescape'), digest_size=16).hexdigest()}.json"


def convert_shard(task: ShardTask, source: DataFolder | None = None) -> WrittenShard:
    """Write a shard under a temporary name, flush it, read it back if asked to, and rename it.

    Args:
        task: What to write.
        source: The dataset, where it is open already.

    Raises:
        EnergonGrainError: The old shard cannot be read, or the new container cannot hold a sample of it.
        ReadError: What was written is not what was read.
        OSError: The disk is full, or may not be written to.
    """
    target = Path(task.target)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}{TEMPORARY}")
    try:
        digest = _write(task, temporary, source)
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


def _write(task: ShardTask, path: Path, source: DataFolder | None) -> SampleDigest:
    digest = SampleDigest()
    try:
        writer = _writer(task, path)
        try:
            for sample in shard_samples(task.source if source is None else source, task.shard):
                writer.write(sample)
                if task.verify:
                    digest.add(*sample)
                else:
                    digest.samples += 1
        finally:
            writer.close()
        _flush(path)
    except UnfitSampleError as error:
        raise FormatError(f"{task.source}/{task.shard}: {error}") from error
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
