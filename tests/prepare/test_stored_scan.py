from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from full_disk import size_limit
from hypothesis import given, settings, strategies as st

from energon_grain.formats.tar.scan import ShardScan, scan_tar
from energon_grain.prepare.scan import ShardIdentity, encode_scan, load_scan, store_scan
from energon_grain.testing import write_tars

COLUMNS = ("sample_start", "part_start", "part_name", "part_offset", "part_size", "key_start", "key_bytes")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ShardIdentity, ShardScan]:
    root = tmp_path_factory.mktemp("scan")
    write_tars(root, [{"__key__": f"k{i}", "txt": "x" * i, "json": i} for i in range(5)])
    identity = ShardIdentity.of(root, "shard_000.tar")
    scan = scan_tar(root / "shard_000.tar")
    store_scan(root / "x.scan", encode_scan(identity, scan))
    return root / "x.scan", identity, scan


def test_round_trip(stored: tuple[Path, ShardIdentity, ShardScan]) -> None:
    path, identity, scan = stored
    loaded = load_scan(path, identity)
    assert loaded is not None
    assert loaded.size_bytes == scan.size_bytes
    assert loaded.part_names == scan.part_names
    for name in COLUMNS:
        assert np.array_equal(getattr(loaded, name), getattr(scan, name))
        assert getattr(loaded, name).dtype == getattr(scan, name).dtype
    assert [file.name for file in path.parent.glob("*.tmp")] == []


def test_names_that_are_not_utf8(tmp_path: Path, stored: tuple[Path, ShardIdentity, ShardScan]) -> None:
    _, identity, scan = stored
    odd = ShardScan(
        size_bytes=scan.size_bytes,
        part_names=("é", b"\xff\xfe".decode("utf-8", "surrogateescape")),
        **{name: getattr(scan, name) for name in COLUMNS},
    )
    store_scan(tmp_path / "x", encode_scan(identity, odd))
    loaded = load_scan(tmp_path / "x", identity)
    assert loaded is not None
    assert loaded.part_names == odd.part_names


def test_a_full_disk(tmp_path: Path, stored: tuple[Path, ShardIdentity, ShardScan]) -> None:
    with pytest.raises(OSError, match=r"'.*/x\.scan'$"), size_limit(10):
        store_scan(tmp_path / "x.scan", stored[0].read_bytes())
    assert list(tmp_path.iterdir()) == []


def test_other_file(stored: tuple[Path, ShardIdentity, ShardScan]) -> None:
    path, identity, _ = stored
    assert load_scan(path.with_name("missing"), identity) is None
    for other in (
        ShardIdentity(name="y.tar", size_bytes=identity.size_bytes, mtime_ns=identity.mtime_ns),
        ShardIdentity(name=identity.name, size_bytes=identity.size_bytes + 1, mtime_ns=identity.mtime_ns),
        ShardIdentity(name=identity.name, size_bytes=identity.size_bytes, mtime_ns=identity.mtime_ns + 1),
    ):
        assert load_scan(path, other) is None


@settings(max_examples=150)
@given(data=st.data())
def test_damage_is_noticed(
    data: st.DataObject, stored: tuple[Path, ShardIdentity, ShardScan], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path, identity, scan = stored
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    damaged = path.with_name("damaged")
    damaged.write_bytes(content)
    loaded = load_scan(damaged, identity)
    if loaded is not None:  # only where the flipped bit made no difference to what was read
        assert loaded.part_names == scan.part_names
        assert all(np.array_equal(getattr(loaded, name), getattr(scan, name)) for name in COLUMNS)
