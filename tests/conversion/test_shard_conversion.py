"""Shards that are written: what each kind cannot hold, and what a comparison sees."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from records import msgpack_record, write_records

from energon_grain.formats.shard_writer import ShardWriter, UnfitSampleError, member_header, read_shard
from energon_grain.prepare.write_shards import SampleDigest


@settings(deadline=None, max_examples=200)
@given(
    name=st.text(st.characters(codec=None), min_size=1, max_size=130)
    | st.sampled_from(["a" * 99, "a" * 100, "a" * 101]),
    size_bytes=st.integers(0, 1 << 40),
)
def test_headers_are_those_of_tarfile(name: str, size_bytes: int) -> None:
    member = tarfile.TarInfo(
        name.replace("\0", "0").encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")
    )
    member.size = size_bytes
    assert member_header(member.name, size_bytes) == member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def test_a_part_that_is_too_large_for_a_record(tmp_path: Path) -> None:
    large = bytes(1 << 32)  # zeros that nobody touches take no memory
    shard = ShardWriter(tmp_path / "x.array_record", "array-record")
    with pytest.raises(UnfitSampleError, match=r"sample 'a': a part is too large.*2\*\*32"):
        shard.add("a", {"bin": large})
    shard.abandon()
    assert list(tmp_path.iterdir()) == []


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
    assert digest(*read_shard(path, "array-record")) == digest(("a", {"txt": b"x", "jpg": b"y"}))  # type: ignore[arg-type]
