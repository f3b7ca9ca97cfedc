"""The unit of work, its processes, and what the comparison sees."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from concurrent.futures import Executor, Future
from pathlib import Path

import msgspec
import pytest
from patience import PATIENCE_S
from records import msgpack_record, write_records

from energon_grain.conversion.convert import (
    SampleDigest,
    ShardTask,
    UnfitSampleError,
    WrittenShard,
    convert_shard,
    shard_samples,
    write_records as write_record_file,
    written_samples,
)
from energon_grain.errors import WorkerError
from energon_grain.formats.data_folder import open_folder
from energon_grain.prepare.executors import Processes
from energon_grain.testing import make_blob_dataset, make_text_dataset


def task_of(source: Path, folder: Path, shard: str = "shard_000.tar") -> ShardTask:
    return ShardTask(
        source=open_folder(source),
        shard=shard,
        target=folder / "x.array_record",
        record=folder / "x.json",
        container="array-record",
        compression="none",
        verify=True,
    )


def test_a_shard_in_a_process(tmp_path: Path) -> None:
    source = make_text_dataset(tmp_path / "texts", n=30, shards=2)
    task = task_of(source, tmp_path)
    with Processes(1) as executor:
        written = executor.submit(convert_shard, task).result()
    assert (written.samples, written.verified) == (15, True)
    assert msgspec.json.decode((tmp_path / "x.json").read_bytes()) == msgspec.to_builtins(written)
    assert list(written_samples(tmp_path / "x.array_record", "array-record")) == list(
        shard_samples(task.source, "shard_000.tar")
    )
    again = convert_shard(dataclasses.replace(task, target=tmp_path / "y.array_record"))
    assert again == written


def test_a_part_that_is_too_large_for_a_record(tmp_path: Path) -> None:
    large = bytes(1 << 32)  # zeros that nobody touches take no memory
    with pytest.raises(UnfitSampleError, match=r"sample 'a': a part is too large.*2\*\*32"):
        write_record_file(tmp_path / "x.array_record", [("a", {"bin": large})], "none")


def test_what_a_process_meets_is_raised_here(tmp_path: Path) -> None:
    source = make_text_dataset(tmp_path / "texts", n=30, shards=2)
    (source / "shard_000.tar").unlink()
    with Processes(1) as executor, pytest.raises(OSError, match=r"shard_000\.tar") as caught:
        executor.submit(convert_shard, task_of(source, tmp_path)).result()
    with pytest.raises(type(caught.value)) as here:
        convert_shard(task_of(source, tmp_path))
    assert str(here.value) == str(caught.value)


def begin(task: ShardTask, executor: Executor) -> Future[WrittenShard]:
    """Convert a shard in a child process; returns when it has begun."""
    future = executor.submit(convert_shard, task)
    folder, deadline = task.target.parent, time.monotonic() + PATIENCE_S
    while not list(folder.glob(".x*")) and time.monotonic() < deadline:
        time.sleep(0.002)
    return future


def children() -> set[int]:
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_process_that_dies(tmp_path: Path) -> None:
    source = make_blob_dataset(tmp_path / "blobs", n=400, shards=1, sample_bytes=100_000)
    before = children()
    with Processes(1) as executor:
        future = begin(task_of(source, tmp_path), executor)
        os.kill((children() - before).pop(), signal.SIGKILL)
        with pytest.raises(WorkerError, match="ended unexpectedly"):
            future.result()
    assert not (tmp_path / "x.json").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_control_c_is_left_to_the_parent(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A terminal sends it to all processes of a command; each would print a traceback of its own."""
    source = make_blob_dataset(tmp_path / "blobs", n=400, shards=1, sample_bytes=100_000)
    before = children()
    with Processes(1) as executor:
        future = begin(task_of(source, tmp_path), executor)
        os.kill((children() - before).pop(), signal.SIGINT)
        assert future.result().samples == 400
    assert capfd.readouterr().err == ""
    assert (tmp_path / "x.json").exists()


def test_digests_tell_samples_apart(tmp_path: Path) -> None:
    def digest(*samples: tuple[str, dict[str, bytes]]) -> SampleDigest:
        found = SampleDigest()
        assert list(found.of(samples)) == list(samples)
        return found

    first = digest(("a", {"txt": b"x", "jpg": b"y"}), ("b", {"txt": b""}))
    assert first == digest(("a", {"txt": b"x", "jpg": b"y"}), ("b", {"txt": b""}))
    for other in (
        digest(("a", {"jpg": b"y", "txt": b"x"}), ("b", {"txt": b""})),
        digest(("a", {"txt": b"x", "jpg": b"y"})),
        digest(("a", {"txt": b"x", "jpg": b"z"}), ("b", {"txt": b""})),
        digest(("b", {"txt": b""}), ("a", {"txt": b"x", "jpg": b"y"})),
        digest(("atxt", {"": b"x", "jpg": b"y"}), ("b", {"txt": b""})),
    ):
        assert first != other
    path = write_records(tmp_path / "x.array_record", [msgpack_record({"__key__": "a", "txt": b"x", "jpg": b"y"})])
    assert digest(*written_samples(path, "array-record")) == digest(("a", {"txt": b"x", "jpg": b"y"}))
