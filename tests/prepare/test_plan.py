"""Plans of `prepare`: what they say will be written is what is written, and making one writes nothing."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from energon_grain.errors import ConfigError, RefusedError
from energon_grain.prepare import prepare_dataset
from energon_grain.prepare.plan import PrepareRequest, plan_of
from energon_grain.prepare.writing import open_to_prepare

_SQLITE = (".nv-meta/index.sqlite", ".nv-meta/index.uuid")


def make_tar(path: Path, keys: range) -> None:
    with tarfile.open(path, "w") as tar:
        for key in keys:
            member = tarfile.TarInfo(f"{key:04d}.txt")
            member.size = 4
            tar.addfile(member, io.BytesIO(b"text"))


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    root = tmp_path / "tars"
    root.mkdir()
    for number in range(3):
        make_tar(root / f"{number}.tar", range(4 * number, 4 * number + 4))
    return root


def everything(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def written(root: Path, request: PrepareRequest, **arguments: object) -> tuple[set[str], set[str]]:
    """What the plan says is written, and what is."""
    before = everything(root)
    plan = plan_of(open_to_prepare(root), request)
    assert everything(root) == before
    said = {name for name in plan.writes if not name.endswith("columnar/")}
    report = prepare_dataset(root, **arguments)  # pyright: ignore[reportArgumentType]
    assert {name for name in plan.removes(digested=True) if (root / name).exists()} == set()
    return said, set(report.written)


def test_a_plan_says_what_is_written(tars: Path) -> None:
    crude = PrepareRequest(crude=True)
    said, done = written(tars, crude, crude=True)
    assert said == done
    assert {".nv-meta/.info.json", ".nv-meta/split.yaml", ".nv-meta/dataset.yaml", ".nv-meta/index.sqlite"} < done

    again = PrepareRequest(force_overwrite=True, sqlite=False)
    said, done = written(tars, again, force_overwrite=True, sqlite=False)
    assert said == done
    assert not (tars / ".nv-meta/index.sqlite").exists()
    assert ".nv-meta/dataset.yaml" not in done

    said, done = written(tars, PrepareRequest(tar_index_only=True), tar_index_only=True)
    assert said == done == {"0.tar.idx", "1.tar.idx", "2.tar.idx", *_SQLITE}

    make_tar(tars / "zz.tar", range(100, 104))
    plan = plan_of(open_to_prepare(tars), PrepareRequest(append=True))
    assert plan.new == ("zz.tar",)
    assert len(plan.shards) == 4
    said, done = written(tars, PrepareRequest(append=True), append=True)
    assert said - {".nv-meta/columnar/digests.json"} == done  # reports leave out the files of the columnar index
    assert {"zz.tar.idx", ".nv-meta/split-first-3-shards.yaml"} < done


def test_a_plan_is_refused_as_the_call_is(tars: Path) -> None:
    with pytest.raises(ConfigError, match="not both"):
        plan_of(open_to_prepare(tars), PrepareRequest(split_ratio=(1,), split_patterns={"train": "x"}))
    prepare_dataset(tars, crude=True)
    with pytest.raises(RefusedError, match="already prepared"):
        plan_of(open_to_prepare(tars), PrepareRequest())


def test_a_plan_in_words(tars: Path) -> None:
    plan = plan_of(open_to_prepare(tars), PrepareRequest(crude=True, split_ratio={"train": 2, "val": 1}))
    lines = list(plan.lines())
    assert lines[0] == f"Plan: prepare {tars}. Nothing was written."
    assert "  scan    3 tar files: 0.tar … 2.tar" in lines
    assert "  split   val: 1 shard: 2.tar" in lines
    assert "  write   .nv-meta/.info.json" in lines
    assert not any("ask" in line or "remove" in line for line in lines)
