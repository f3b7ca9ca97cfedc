# SPDX-License-Identifier: Apache-2.0
"""Write shards in workers: samples are checked and encoded, and each shard appears when it is complete."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, TypeAlias

import cloudpickle
import numpy as np

from energon_grain.atomic_files import remove_temporaries
from energon_grain.errors import ConfigError, ReadError
from energon_grain.formats.columnar import find_columnar
from energon_grain.formats.data_folder import open_folder
from energon_grain.prepare.containers import (
    Compression,
    ContainerName,
    Sample,
    UnfitSampleError,
    container_named,
    containers,
)
from energon_grain.prepare.encode import encode_part
from energon_grain.prepare.executors import outcomes, own_executor, portable
from energon_grain.prepare.listing import in_order
from energon_grain.prepare.scan import ScannedShard, ShardTask, encode_scan, logged, scanned, stat_task
from energon_grain.prepare.shard_writer import TEMPORARY, ShardWriter
from energon_grain.prepare.writing import PartLog
from energon_grain.samples.sample import BASE_FIELDS

_LONGEST_NAME = 1000
_PLAIN_KEY = re.compile(r"(?!__)[\w\-]+(/[\w\-]+)*")
_CONTROL = re.compile("[\x00-\x1f\x7f\\\\\ud800-\udfff]")
_TASKS_A_WORKER = 2
_MOST_AHEAD = 1024
_MANY_JOBS, _LARGE = 1 << 30, 1 << 40
WrittenSample: TypeAlias = Mapping[str, Any]
"""A sample to write: its key at `__key__`, its parts by name."""
ShardJob: TypeAlias = tuple[ShardTask, Callable[[], Iterator[Sample]], str]
"""A shard to write, a function that returns its samples (sent to a worker by cloudpickle), and their origin."""


def check_container(container: ContainerName, compression: Compression) -> None:
    """Raise ConfigError if there is no such container or compression."""
    if all(container != each.name for each in containers()) or compression not in ("none", "zstd"):
        raise ConfigError(
            f"container={container!r}, compression={compression!r}: expected 'tar' or 'array-record', 'none' or 'zstd'"
        )
    if compression != "none" and container == "tar":
        raise ConfigError(f"compression={compression!r}: only records can be compressed; use 'none' for tars")


def write_shards(
    root: Path,
    jobs: Iterable[ShardJob],
    *,
    container: ContainerName,
    compression: Compression,
    verify: bool = False,
    count: int | None,
    size_bytes: int | None = _LARGE,
    num_workers: int | None,
    executor: Executor | None = None,
    progress: Callable[[Mapping[str, ScannedShard]], None],
) -> tuple[dict[str, ScannedShard], int]:
    """Write shards into a folder that `begin_writing` marked, in workers; the first failure stops the run.

    Args:
        jobs: The shards. A job without samples writes none.
        container: Container of the shards.
        compression: Compression of each record of an ArrayRecord file.
        verify: Read each shard back and compare.
        count: Maximum number of shards; None if unknown.
        progress: Called after every shard, with the finished ones.

    Returns:
        The finished shards, by name, in the order of their numbers; and how many of them existed before.

    Raises:
        EnergonGrainError: A sample cannot be produced, or does not fit into the container.
        OSError: The disk is full.
        WorkerError: A process died twice on a shard.
    """
    _remove_unfinished(root)
    found: dict[str, ScannedShard] = {}
    reused = 0
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(PartLog(root, 0, 1, find_columnar(open_folder(root)))).log

        def calls() -> Iterator[tuple[ShardTask, tuple[Any, ...]]]:
            nonlocal reused
            for task, samples, where in jobs:
                if (known := log.find(task, str(root))) is not None:
                    reused += 1
                    found[known.name] = known
                    progress(found)
                else:
                    sent = cloudpickle.dumps((samples, where))
                    yield task, (make_shard, os.path.abspath(root), task, container, compression, verify, sent)

        ahead = num_workers or _MANY_JOBS
        if executor is None:
            executor = stack.enter_context(
                own_executor(num_workers, jobs=_MANY_JOBS if count is None else count, size_bytes=size_bytes)
            )
            ahead = _TASKS_A_WORKER * getattr(executor, "_max_workers", 1)
        ahead, left = min(ahead, _MOST_AHEAD), calls()
        submit = executor.submit
        tasks = deque(itertools.islice(left, ahead))
        results = outcomes(
            lambda job: submit(*job[1]),
            tasks,
            ahead=ahead,
            named=lambda job: f"{root / job[0].name}: its writing",
            salvage=lambda _, returned: log.add(returned) if returned and type(returned) is bytes else None,
        )
        for (task, _), returned in stack.enter_context(contextlib.closing(results)):
            tasks.extend(itertools.islice(left, 1))
            if returned:
                result = logged(log, str(root), task, returned)
                if isinstance(result, Exception):
                    raise result
                found[result.name] = result
                progress(found)
    return {name: found[name] for name in sorted(found, key=in_order)}, reused


def _remove_unfinished(root: Path) -> None:
    for folder in {root, *(path for path in root.rglob("*") if path.is_dir())}:
        remove_temporaries(folder, f".*{TEMPORARY}")


def make_shard(
    root: str, task: ShardTask, container: ContainerName, compression: Compression, verify: bool, samples: bytes
) -> bytes | Exception:
    """Write a shard and return its record, no bytes without samples, or the error of a sample.

    Args:
        root: The dataset, as an absolute path.
        compression: Compression of each record of an ArrayRecord file.
        verify: Read the shard back and compare, before it gets its name.
        samples: The function that returns the samples, and their origin, pickled by cloudpickle.
    """
    shard: ShardWriter | None = None
    give, where = cloudpickle.loads(samples)
    written, found = SampleDigest(), SampleDigest()

    def compare(path: Path) -> None:
        deque(found.of(container_named(container).read(path)), maxlen=0)
        if found != written:
            raise ReadError(
                f"{os.path.join(root, task.name)}: the written file differs from the samples ({found.samples} of "
                f"{written.samples} samples were read back, or others). Check the disk, and run the same command again"
            )

    try:
        given: Iterator[Sample] = give()
        for key, parts in written.of(given) if verify else given:
            shard = shard or ShardWriter(Path(root, task.name), container, compression)
            shard.add(key, parts)
        return b"" if shard is None else written_record(root, task, shard, compare if verify else None)
    except UnfitSampleError as error:
        return UnfitSampleError(f"{where}: {error}")
    except Exception as error:
        return portable(error)
    finally:
        if shard is not None:
            shard.abandon()


def written_record(
    root: str, task: ShardTask, shard: ShardWriter, verify: Callable[[Path], None] | None = None
) -> bytes:
    """Finish a shard, and return its record; see `ShardWriter.close`."""
    scan = shard.close(verify) if verify else shard.close()
    return encode_scan(scanned(task, scan, stat_task(root, task)), scan)


class SampleDigest:
    """Digest over the keys and parts, in order, of a series of samples."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.samples = 0

    def of(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Pass samples on, and add them to the digest."""
        for key, parts in samples:
            yield key, parts
            self.samples += 1
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


def parts_of(sample: WrittenSample) -> tuple[str, dict[str, bytes]]:
    """Key and encoded parts of a sample to write.

    Other fields of samples from loaders (`__restore_key__`, `__sources__`, `__subflavors__`) are left out, as are parts
    that are None.

    Raises:
        UnfitSampleError: The key, or the name of a part, is invalid.
        ConfigError: A value does not fit the name of its part.
    """
    key = sample.get("__key__")
    if not isinstance(key, str):
        raise UnfitSampleError(f"a sample with the parts {sorted(map(str, sample))} has no '__key__' that is a string")
    parts: dict[str, bytes] = {}
    given: Any = sample  # its keys are unchecked
    for part, value in given.items():
        if part in BASE_FIELDS or value is None:
            continue
        if not _is_part_name(part):
            raise UnfitSampleError(
                f"sample {key!r}: the part {part!r} needs a name such as 'jpg' or 'seg.png', without slashes, "
                f"backslashes and control characters, that does not begin with '__'"
            )
        try:
            parts[part] = encode_part(part, value)
        except ConfigError as error:
            error.add_note(f"sample {key!r}")
            raise ConfigError(f"sample {key!r}, {error}") from error
    if not parts:
        raise UnfitSampleError(f"sample {key!r} has no part; a shard cannot store a sample without parts")
    if not _PLAIN_KEY.fullmatch(key):
        _check_key(key)
    longest = max(map(len, parts))
    if len(key) + longest >= _LONGEST_NAME // 4:  # characters of at most four bytes
        _check_length(key, parts)
    return key, parts


def _is_part_name(part: Any) -> bool:
    return isinstance(part, str) and bool(part) and not ("/" in part or part.startswith("__") or _CONTROL.search(part))


def _check_length(key: str, parts: Iterable[str]) -> None:
    found = max(len(f"{key}.{part}".encode()) for part in parts)
    if found > _LONGEST_NAME:
        raise UnfitSampleError(
            f"sample {key[:40]!r}…: the name of one of its members has {found} bytes, at most {_LONGEST_NAME} are "
            f"allowed; use a shorter key, and store the long one in a part"
        )


def _check_key(key: str) -> None:
    folders = key.split("/")
    rules = {
        "is empty": not key,
        "is absolute": key.startswith("/"),
        "has a folder '..' or '.'": bool({"..", "."} & set(folders)),
        "has an empty folder": "" in folders[1:] or (len(folders) > 1 and not folders[0]),
        "has a control character, a backslash or a surrogate": bool(_CONTROL.search(key)),
        "has a dot after its last slash": "." in folders[-1],
        "is in a reserved folder '__…__'": bool(re.fullmatch(r"__.*__", folders[0])) and len(folders) > 1,
    }
    broken = [rule for rule, breaks in rules.items() if breaks]
    if broken:
        raise UnfitSampleError(
            f"the key {key[:80]!r} {' and '.join(broken)}: expected a relative path like 'cats/000123', in UTF-8, "
            f"without a dot in its last name, because the first dot there ends the key in a member's name"
        )
