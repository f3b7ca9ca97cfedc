"""The unit of work, its processes, and what the comparison sees."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import msgspec
import pytest
from patience import PATIENCE_S
from records import msgpack_record, write_records

from energon_grain.conversion.shard_processes import ShardProcesses
from energon_grain.conversion.shards import (
    RecordWriter,
    SampleDigest,
    ShardTask,
    UnfitSampleError,
    convert_shard,
    shard_samples,
    written_samples,
)
from energon_grain.errors import DatasetNotFoundError, WorkerError
from energon_grain.testing import make_blob_dataset, make_text_dataset


def task_of(source: Path, folder: Path, shard: str = "shard_000.tar") -> ShardTask:
    return ShardTask(
        source=str(source),
        shard=shard,
        target=str(folder / "x.array_record"),
        record=str(folder / "x.json"),
        container="array-record",
        compression="none",
        verify=True,
    )


def test_a_shard_in_a_process(tmp_path: Path) -> None:
    source = make_text_dataset(tmp_path / "texts", n=30, shards=2)
    task = task_of(source, tmp_path)
    written = ShardProcesses().convert(task)
    assert (written.samples, written.verified) == (15, True)
    assert msgspec.json.decode((tmp_path / "x.json").read_bytes()) == msgspec.to_builtins(written)
    assert list(written_samples(tmp_path / "x.array_record", "array-record")) == list(
        shard_samples(source, "shard_000.tar")
    )
    again = convert_shard(msgspec.structs.replace(task, target=str(tmp_path / "y.array_record")))
    assert again == written


def test_a_part_that_is_too_large_for_a_record(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "x.array_record", "none")
    with pytest.raises(UnfitSampleError, match=r"sample 'a': a part is too large.*2\*\*32"):
        writer.write(("a", {"bin": bytes(1 << 32)}))  # zeros that nobody touches take no memory
    writer.close()


def test_what_a_process_meets_is_raised_here(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="nothing-here"):
        ShardProcesses().convert(task_of(tmp_path / "nothing-here", tmp_path))


def interrupted(source: Path, folder: Path, number: signal.Signals) -> tuple[ShardProcesses, list[Exception]]:
    """Send a signal to the process that converts a shard when it has begun; what the conversion met then."""
    processes, met = ShardProcesses(), list[Exception]()

    def work() -> None:
        try:
            processes.convert(task_of(source, folder))
        except WorkerError as error:
            met.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    deadline = time.monotonic() + PATIENCE_S
    while not list(folder.glob(".x*")) and time.monotonic() < deadline:
        time.sleep(0.002)
    for process in list(processes._running):
        os.kill(process.pid, number)
    thread.join()
    return processes, met


def test_a_process_that_dies(tmp_path: Path) -> None:
    source = make_blob_dataset(tmp_path / "blobs", n=400, shards=1, sample_bytes=100_000)
    processes, met = interrupted(source, tmp_path, signal.SIGKILL)
    assert "x.array_record: the process that wrote it ended unexpectedly" in str(met[0])
    assert not (tmp_path / "x.json").exists()
    processes.close()
    with pytest.raises(WorkerError, match="was ended"):
        processes.convert(task_of(source, tmp_path))


def test_control_c_is_left_to_the_parent(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A terminal sends it to all processes of a command; each would print a traceback of its own."""
    source = make_blob_dataset(tmp_path / "blobs", n=400, shards=1, sample_bytes=100_000)
    _, met = interrupted(source, tmp_path, signal.SIGINT)
    assert (met, capfd.readouterr().err) == ([], "")
    assert (tmp_path / "x.json").exists()


def test_digests_tell_samples_apart(tmp_path: Path) -> None:
    def digest(*samples: tuple[str, dict[str, bytes]]) -> SampleDigest:
        found = SampleDigest()
        for sample in samples:
            found.add(*sample)
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
