"""Converting a dataset: write every shard anew, copy what lies beside them, and index the result."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tarfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, cast

import msgspec
import numpy as np

from energon_grain.errors import (
    ConfigError,
    EnergonGrainError,
    FormatError,
    ReadError,
    RefusedError,
    SplitError,
    WorkerError,
)
from energon_grain.extras import needed_for
from energon_grain.formats.array_record import KEY, ArrayRecordFile, encode_records_file, record_decoder
from energon_grain.formats.columnar import ColumnarIndex, open_columnar
from energon_grain.formats.data_folder import DataFolder, kind_at, naming, open_folder
from energon_grain.formats.nv_meta import (
    COMPATIBLE_ENERGON_VERSION,
    INFO_YAML,
    META_FOLDER,
    RECORD_SUFFIX,
    RECORDS_JSON,
    DatasetInfo,
    DatasetKind,
    dataset_kind,
    write_info,
)
from energon_grain.formats.splits import SplitConfig, excluded_sample, read_split_config, write_split_config
from energon_grain.formats.tar.names import split_member_name
from energon_grain.formats.tar.scan import scan_tar
from energon_grain.forms import Form
from energon_grain.prepare.executors import own_executor
from energon_grain.prepare.placing import preparation_lock
from energon_grain.prepare.preparation import prepare_dataset
from energon_grain.prepare.scan import PrepareProgress
from energon_grain.sources.prepared import open_prepared
from energon_grain.storage.atomic import atomic_write_bytes, remove_temporaries, sync_folder
from energon_grain.storage.location import is_url, located

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
CONVERT_FOLDER = f"{META_FOLDER}/.convert"
SUFFIXES: dict[Container, str] = {"tar": ".tar", "array-record": RECORD_SUFFIX}
_PLAN_JSON = "plan.json"
_COPIED = (".yaml", ".yml", ".py", ".json")
_NOT_COPIED = (INFO_YAML, RECORDS_JSON)
_CONTAINERS: dict[DatasetKind, Container] = {
    DatasetKind.WEBDATASET: "tar",
    DatasetKind.ARRAY_RECORD: "array-record",
}
_OTHERS = {
    DatasetKind.JSONL: "a JSONL file, which is read as it is",
    DatasetKind.ARRAY: "an array, which is read as it is",
    DatasetKind.BARE_TARS: "tars that were not prepared: run `energon-grain prepare` first",
    DatasetKind.PARQUET: "Parquet, which is read as it is",
    DatasetKind.METADATASET: "a metadataset: convert its datasets one by one, `energon-grain info` names them",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversionProgress:
    """How far a conversion is.

    Attributes:
        stage: `convert` while shards are written, `index` while the new dataset is indexed.
        shards_done: Shards written, or indexed, so far; those of an interrupted run included.
        shards_total: Shards of the dataset.
        samples: Samples in these shards so far.
        bytes_done: Size of the shards done so far: of the old ones while shards are written, of the new ones then.
        bytes_total: Size of all of them.
    """

    stage: Literal["convert", "index"]
    shards_done: int
    shards_total: int
    samples: int
    bytes_done: int
    bytes_total: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversionReport:
    """What a conversion wrote.

    Attributes:
        source: Path or URL of the dataset that was read.
        target: The new dataset.
        container: Kind of its shards.
        shard_counts: Samples of each of its shards.
        source_bytes: Size of the old shards.
        target_bytes: Size of the new shards.
        shards_reused: Shards that an interrupted run had written already.
        verified: Whether what was written was read back and compared.
        notes: What the caller should know though it is no error.
        elapsed_s: Wall-clock time.
    """

    source: str
    target: Path
    container: Container
    shard_counts: dict[str, int]
    source_bytes: int
    target_bytes: int
    shards_reused: int
    verified: bool
    notes: tuple[str, ...]
    elapsed_s: float

    @property
    def samples(self) -> int:
        """Samples in all shards."""
        return sum(self.shard_counts.values())


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What must be the same for a conversion to go on: which samples, in shards of which names, into what."""

    content_id: str
    shards: tuple[str, ...]
    container: Container
    compression: Compression


_PLAN = Form(Plan)


class _Target:
    """The folder of the new dataset: what is done, what is left, and the files beside the data.

    `.nv-meta/.convert/` exists from the first moment to the last. Its `plan.json` says what is converted into what, so
    that the same command goes on after a kill and another one is refused; beside it, a small file for each shard says
    that it was written.

    Args:
        root: The folder: new, empty, or what an interrupted conversion with the same plan left.
        plan: Of the conversion.

    Raises:
        RefusedError: Something else is there.
        ConfigError: Two shards would get the same name.
    """

    def __init__(self, root: Path, plan: Plan) -> None:
        self.root, self._plan = root, plan
        taken: dict[str, str] = {}
        for shard in plan.shards:
            other = taken.setdefault(self.renamed(shard), shard)
            if other != shard:
                raise ConfigError(
                    f"the shards {other!r} and {shard!r} would both become {self.renamed(shard)!r}; rename one of "
                    f"them, and prepare the dataset again"
                )
        self._notes = root / CONVERT_FOLDER
        stored = self._notes / _PLAN_JSON
        if stored.exists():
            self._check_plan(stored)
            return
        # A conversion that was killed right at its beginning leaves an empty `.nv-meta`, or one with an empty folder.
        there = list(root.iterdir()) if root.exists() and root.is_dir() else []
        free = all(path == self._notes.parent and not any(path.iterdir()) for path in there)
        if (root.exists() and not root.is_dir()) or not (free or self._notes.is_dir()):
            raise RefusedError(
                f"{root}: is not empty. A conversion writes into a new or empty folder, or goes on with an interrupted "
                f"conversion of the same dataset"
            )
        self._notes.mkdir(parents=True, exist_ok=True)
        atomic_write_bytes(stored, msgspec.json.encode(plan))

    def _check_plan(self, stored: Path) -> None:
        try:
            found = _PLAN.from_json(stored.read_bytes())
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{stored}: is no plan of a conversion ({error}); remove {self.root}") from error
        if found != self._plan:
            differs = [name for name in Plan.__struct_fields__ if getattr(found, name) != getattr(self._plan, name)]
            raise RefusedError(
                f"{self.root}: holds an interrupted conversion with other settings or of another dataset ("
                f"{', '.join(differs)} differ); finish that one, or remove the folder"
            )

    def renamed(self, shard: str) -> str:
        """The name of the new shard for an old one."""
        new = SUFFIXES[self._plan.container]
        (old,) = (suffix for suffix in SUFFIXES.values() if suffix != new)
        return shard.removesuffix(old) + new

    def task(self, source: DataFolder, shard: str, *, verify: bool) -> ShardTask:
        """What is to be done about an old shard. The name of its note is a digest, so that it cannot be too long."""
        digest = hashlib.blake2b(shard.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        return ShardTask(
            source=source,
            shard=shard,
            target=self.root / self.renamed(shard),
            record=self._notes / f"{digest}.json",
            container=self._plan.container,
            compression=self._plan.compression,
            verify=verify,
        )

    def remove_leftovers(self) -> None:
        """Remove what a killed process was writing: shards, and files beside the data."""
        for path in self.root.rglob(f".*{TEMPORARY}"):
            path.unlink(missing_ok=True)
        remove_temporaries(self.root / META_FOLDER, ".*.tmp")

    def write_meta(self, source: Path, counts: dict[str, int]) -> None:
        """Write what says how the new shards are read: configuration and splits of the old ones, and their numbers.

        Args:
            source: Folder with the `.nv-meta` of the old dataset.
            counts: Samples of each old shard.
        """
        meta = self.root / META_FOLDER
        for path in sorted((source / META_FOLDER).iterdir()):
            copied = path.suffix in _COPIED and path.is_file() and not path.name.startswith(".")
            if not copied or path.name in _NOT_COPIED:
                continue
            try:
                splits = read_split_config(source, path.name, shards=counts)
            except SplitError:
                shutil.copyfile(path, meta / path.name)
            else:
                write_split_config(meta / path.name, self._renamed_splits(splits, counts))
        if self._plan.container == "array-record":
            atomic_write_bytes(meta / RECORDS_JSON, encode_records_file("msgpack"))
        info = {self.renamed(shard): count for shard, count in counts.items()}
        write_info(self.root, DatasetInfo(shard_counts=info, energon_version=COMPATIBLE_ENERGON_VERSION))

    def _renamed_splits(self, splits: SplitConfig, counts: dict[str, int]) -> SplitConfig:
        parts = {
            part: tuple(self.renamed(shard) if shard in counts else shard for shard in shards)
            for part, shards in splits.split_parts.items()
        }
        exclude = tuple(self._renamed_exclude(each, counts) for each in splits.exclude)
        return SplitConfig(split_parts=parts, exclude=exclude)

    def _renamed_exclude(self, exclude: str, counts: dict[str, int]) -> str:
        if exclude in counts:
            return self.renamed(exclude)
        sample = excluded_sample(exclude, DatasetInfo(shard_counts=counts))
        return exclude if sample is None else f"{self.renamed(sample[0])}/{sample[1]}"

    def finish(self) -> None:
        """Forget the conversion: the plan after the notes on shards, and the folder, by which it is known, last."""
        plan = self._notes / _PLAN_JSON
        for path in self._notes.iterdir():
            if path != plan:
                path.unlink()
        plan.unlink()
        self._notes.rmdir()


def convert_dataset(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    to: Container | None = None,
    compression: Compression = "none",
    num_workers: int | None = None,
    verify: bool = True,
    sqlite: bool = True,
    progress: Callable[[ConversionProgress], None] | None = None,
) -> ConversionReport:
    """Write a dataset anew, tars as ArrayRecord files or back, one shard for one shard, and prepare it.

    Keys, parts and their order stay, so the new dataset gives the same stream under the same name, and goes on with
    cursors of the old one. The split files are copied with the new names of shards, other YAML, JSON and Python files
    of `.nv-meta` as they are. A shard appears when all of it is written and compared; a conversion that was killed goes
    on where it was when it is called again.

    Args:
        source: A prepared dataset of tars or ArrayRecord files, a path or URL.
        target: A new or empty folder of this machine, or one with an interrupted conversion of the same dataset.
        to: Kind of the new shards; None: the other one.
        compression: Of each record of an ArrayRecord file. Uncompressed ones are read fastest.
        num_workers: Processes at most; 0 converts in this one, None takes one for each core (at most 16). For a dataset
            in an object store: threads, None takes 16.
        verify: Read every new shard back and compare all keys and bytes.
        sqlite: Whether `index.sqlite` is written for tars.
        progress: Called after every shard.

    Raises:
        DatasetNotFoundError: `source` is not a prepared dataset.
        RefusedError: `target` holds something else.
        ConfigError: The arguments do not fit.
        FormatError: The new container cannot hold a sample; names it.
        ReadError: A shard cannot be read, or what was written is not what was read.
        WorkerError: A process died.
    """
    begun_s = time.monotonic()
    if is_url(located(target)):
        raise ConfigError(f"{target}: a conversion writes to a file system; copy the new dataset to the store")
    location, root = located(source), Path(located(target))
    kind = kind_at(location)
    if kind in _OTHERS:
        raise ConfigError(f"{location}: a conversion takes a prepared folder of shards, but this is {_OTHERS[kind]}")
    folder = open_folder(location)
    with naming(folder), closing(open_prepared(folder)):  # refuses what cannot be read
        index = open_columnar(folder)
    old = _CONTAINERS[dataset_kind(folder.local)]
    to = to or ("array-record" if old == "tar" else "tar")
    if to == old:
        raise ConfigError(f"{folder.location}: its shards are {to} files already")
    if to == "tar" and compression != "none":
        raise ConfigError(f"compression={compression!r}: is for records; tars are read at random, so uncompressed")
    plan = Plan(content_id=index.content_id, shards=index.shards, container=to, compression=compression)
    work = _Target(root, plan)
    counts = dict(zip(index.shards, np.diff(index.shard_first).tolist(), strict=True))
    sizes = dict(zip(index.shards, index.shard_bytes.tolist(), strict=True))
    written: dict[str, WrittenShard] = {}

    def tell() -> None:
        if progress is None:
            return
        now = ConversionProgress(
            stage="convert",
            shards_done=len(written),
            shards_total=len(sizes),
            samples=sum(each.samples for each in written.values()),
            bytes_done=sum(map(sizes.__getitem__, written)),
            bytes_total=sum(sizes.values()),
        )
        progress(now)

    def tell_index(now: PrepareProgress) -> None:
        numbers: dict[str, int] = {each.name: getattr(now, each.name) for each in fields(now) if each.name != "stage"}
        if progress is not None:
            progress(ConversionProgress(stage="index", **numbers))

    with preparation_lock(root / META_FOLDER):
        work.remove_leftovers()
        tasks = [work.task(folder, shard, verify=verify) for shard in index.shards]
        for task in tasks:
            if (known := _known(task, counts[task.shard])) is not None:
                written[task.shard] = known
        reused = len(written)
        tell()
        tasks = [task for task in tasks if task.shard not in written]
        size_bytes = None if folder.is_remote else sum(sizes[task.shard] for task in tasks)
        with own_executor(num_workers, jobs=len(tasks), size_bytes=size_bytes) as executor:
            for task, result in _converted(tasks, executor):
                written[task.shard] = result
                tell()
        work.write_meta(folder.local, counts)
    prepare_dataset(root, tar_index_only=True, sqlite=sqlite, num_workers=num_workers, progress=tell_index)
    work.finish()
    return ConversionReport(
        source=folder.location,
        target=root,
        container=to,
        shard_counts={work.renamed(shard): count for shard, count in counts.items()},
        source_bytes=sum(sizes.values()),
        target_bytes=sum(each.size_bytes for each in written.values()),
        shards_reused=reused,
        verified=verify,
        notes=_notes(index, open_columnar(root)),
        elapsed_s=time.monotonic() - begun_s,
    )


def _known(task: ShardTask, samples: int) -> WrittenShard | None:
    """What an interrupted run noted of a new shard; None where it must be written (again)."""
    try:
        found = WRITTEN.from_json(task.record.read_bytes())
        size_bytes = task.target.stat().st_size
    except (OSError, msgspec.MsgspecError):
        return None
    fits = (found.size_bytes, found.samples) == (size_bytes, samples) and (found.verified or not task.verify)
    return found if fits else None


def _converted(tasks: Sequence[ShardTask], executor: Executor) -> Iterator[tuple[ShardTask, WrittenShard]]:
    """Convert shards, and give what came of them in any order. The first that fails ends all."""
    running: dict[Future[WrittenShard], ShardTask] = {}
    done: SimpleQueue[Future[WrittenShard]] = SimpleQueue()
    for task in (*tasks, None):  # then waits for all
        if task is not None:
            future = executor.submit(convert_shard, task)
            running[future] = task
            future.add_done_callback(done.put)
        while running and (task is None or not done.empty()):
            future = done.get()
            ended = running.pop(future)
            try:
                yield ended, future.result()
            except WorkerError as error:
                raise WorkerError(
                    f"{ended.target}: {error}. Run the same command again: shards that were finished are not written "
                    f"again. --num-workers 0 uses no processes."
                ) from error


def _notes(old: ColumnarIndex, new: ColumnarIndex) -> tuple[str, ...]:
    if old.content_id == new.content_id:
        return ()
    return (
        "samples have a part twice, of which the later one was kept, as it is when samples are read. So the new "
        "dataset counts as other data: cursors and joins of the old one do not fit it.",
    )


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
    with needed_for("writing ArrayRecord files"):
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
                raise UnfitSampleError(f"sample {key!r} {reason}: in a tar it would not be a sample of its own")
            last = key
            for part, data in parts.items():
                name = f"{key}.{part}"
                if "\0" in name or split_member_name(name) != (key, part):
                    raise UnfitSampleError(
                        f"sample {key!r}, part {part!r}: a tar would hold it as {name!r}, which is not read as that "
                        f"sample and part: keys may have no dot after their last slash, parts no slash, and neither a "
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
