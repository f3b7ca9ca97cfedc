from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

import pytest

from energon_grain.formats.data_folder import open_folder
from energon_grain.formats.nv_meta import read_info
from energon_grain.migration.options import CheckOptions
from energon_grain.migration.shards import ShardsLook, look_at_shards
from energon_grain.testing import make_text_dataset

FIXTURES = Path(__file__).parents[1] / "fixtures" / "energon"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_text_dataset(tmp_path / "text", n=8, shards=4)


def look(root: Path, *, unique_keys: bool = True, max_shards: int | None = None) -> ShardsLook:
    return look_at_shards(
        open_folder(root), read_info(root), CheckOptions(max_shards=max_shards), unique_keys=unique_keys
    )


def write_tar(path: Path, *members: tarfile.TarInfo) -> None:
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(bytes(member.size)))


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def test_good_shards_say_nothing(root: Path) -> None:
    seen = look(root, unique_keys=False)
    assert (seen.findings, seen.part_names, seen.looked_at) == ((), frozenset({"txt", "json"}), 4)


@pytest.mark.parametrize(
    ("most", "chosen"), [(None, [0, 1, 2, 3, 4, 5]), (6, [0, 1, 2, 3, 4, 5]), (3, [0, 2, 5]), (1, [0]), (0, [])]
)
def test_shards_are_chosen_evenly(most: int | None, chosen: list[int]) -> None:
    assert CheckOptions(max_shards=most).choose(6) == chosen


def test_only_chosen_shards_are_read(root: Path) -> None:
    (root / "shard_001.tar").unlink()
    assert look(root, max_shards=2).findings == ()
    (finding,) = look(root).findings
    assert (finding.severity, finding.where) == ("error", str(root / "shard_001.tar"))
    assert "gone" in finding.what


@pytest.mark.parametrize(
    ("damage", "said", "energon"),
    [
        ("hard link", "a hard link to 000000.txt", "passes over the link"),
        ("sparse", "a sparse member", "stored pieces"),
        ("appended", "data after the end-of-archive marker", "lost without a word"),
        ("no end", "the end-of-archive marker is missing", "up to the end"),
        ("cut", "truncated", "in the middle of an epoch"),
        ("compressed", "compressed with gzip", "cannot read it later"),
        ("other", "has 6 samples", "the old index points"),
    ],
)
def test_what_energon_reads_and_we_refuse(root: Path, damage: str, said: str, energon: str) -> None:
    shard = root / "shard_000.tar"
    good = shard.read_bytes()
    if damage == "hard link":
        write_tar(shard, member("000000.txt"), member("000001.txt", tarfile.LNKTYPE, "000000.txt"))
    elif damage == "sparse":
        write_tar(shard, member("000000.txt", tarfile.GNUTYPE_SPARSE))
    elif damage == "appended":
        shard.write_bytes(good + good)
    elif damage == "no end":
        shard.write_bytes(good.rstrip(b"\0") + bytes(-len(good.rstrip(b"\0")) % 512))
    elif damage == "cut":
        shard.write_bytes(good[:700])
    elif damage == "compressed":
        with tarfile.open(shard, "w:gz") as tar:
            tar.addfile(member("000000.txt"))
    else:
        write_tar(shard, *(member(f"{number}.txt") for number in range(6)))
    (finding,) = look(root).findings
    assert finding.severity == "error"
    assert said in finding.what
    assert energon in finding.energon


def test_missing_tar_index_is_no_harm(root: Path) -> None:
    for path in root.glob("*.tar.idx"):
        path.unlink()
    (finding,) = look(root).findings
    assert (finding.severity, finding.where) == ("better", str(root / "shard_000.tar"))
    assert "at 3 more" in finding.what


def test_hidden_files_that_energon_made_samples_of() -> None:
    (finding,) = look(FIXTURES / "excludes").findings
    assert (finding.severity, Path(finding.where).name) == ("differs", "data-2.tar")
    assert "Hidden files" in finding.what


def test_repeated_keys(root: Path) -> None:
    shutil.copy(root / "shard_000.tar", root / "shard_003.tar")
    shutil.copy(root / "shard_000.tar.idx", root / "shard_003.tar.idx")
    (finding,) = look(root, unique_keys=False).findings
    assert (finding.severity, finding.where) == ("differs", str(root / "shard_003.tar"))
    assert "2 samples" in finding.what
    assert "'000000', also in shard_000.tar" in finding.what
    assert look(root).findings == ()
