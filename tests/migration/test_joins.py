from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from metadatasets import write_v2

from energon_grain.formats.join_index import energon_join_names, index_file_name
from energon_grain.formats.nv_meta import read_uuid
from energon_grain.metadataset.prepare_joins import prepare_metadataset
from energon_grain.migration import Finding, joins, migration_findings
from energon_grain.testing import make_text_dataset


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        make_text_dataset(tmp_path / name, n=8, shards=4)
    return tmp_path


def found(folder: Path, **splits: object) -> list[Finding]:
    return migration_findings(write_v2(folder, **splits))


def join(**more: object) -> dict[str, object]:
    return {"join": [{"path": "a"}, {"path": "b", **more}]}


def energon_name(folder: Path) -> str:
    (name,) = energon_join_names([(str(read_uuid(folder / each)), (), "error") for each in ("a", "b")])
    return index_file_name(name)


def test_a_small_join_needs_no_preparation(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (finding,) = found(folder, train=join())
    assert (finding.severity, finding.here) == ("better", "joined on first use")
    monkeypatch.setattr(joins, "JOINED_ON_USE", 5)
    (finding,) = found(folder, train=join())
    assert finding.severity == "error"
    assert f"energon-grain prepare {folder / 'meta.yaml'}" in finding.advice


def test_prepared_joins_say_nothing(folder: Path) -> None:
    prepare_metadataset(write_v2(folder, train=join()))
    before = sorted(folder.rglob("*"))
    assert migration_findings(folder / "meta.yaml") == []
    assert sorted(folder.rglob("*")) == before


def test_energon_index_is_found(folder: Path) -> None:
    cache = folder / "meta.yaml.cache"
    cache.mkdir()
    (cache / energon_name(folder)).touch()
    (finding,) = found(folder, train=join())
    assert finding.severity == "note"


def test_train_and_val_share_one_file_in_energon(folder: Path) -> None:
    (finding,) = (each for each in found(folder, train=join(), val=join()) if each.severity == "differs")
    assert finding.where.endswith("$.splits.val")
    assert "$.splits.train" in finding.what
    one = found(folder, train=join(), val={"join": [{"path": "b"}, {"path": "a"}]})
    assert not [each for each in one if each.severity == "differs"]


def test_nonmatch_none(folder: Path) -> None:
    findings = found(folder, train=join(nonmatch="none"))
    assert [each.where.rpartition("$")[2] for each in findings] == [".splits.train.join[1].nonmatch", ".splits.train"]


def test_excludes(folder: Path) -> None:
    split = folder / "b/.nv-meta/split.yaml"
    content = yaml.safe_load(split.read_text())
    split.write_text(yaml.safe_dump({**content, "exclude": ["shard_000.tar", "shard_001.tar/000002", "x.tar/1"]}))
    findings = [each for each in found(folder, train=join(nonmatch="skip")) if each.where.endswith("join[1]")]
    assert [each.severity for each in findings] == ["differs", "better"]
    assert "shard_000.tar" in findings[0].what


def test_joiners(folder: Path) -> None:
    mine = {"joiner": {"__module__": "my.data", "__class__": "Both"}}
    findings = found(folder, train={**join(), **mine})
    assert (findings[0].severity, findings[0].where.rpartition("$")[2]) == ("error", ".splits.train.joiner")
    path = folder / "meta.yaml"
    assert [each.severity for each in migration_findings(path, trusted_modules=["my"])] == ["better"]
    unknown = {"joiner": {"__module__": "megatron.energon", "__class__": "TekstSample"}}
    assert found(folder, train={**join(), **unknown})[0].severity == "error"


def test_what_cannot_be_joined(folder: Path) -> None:
    shutil.rmtree(folder / "b")
    findings = found(folder, train=join())
    assert {each.severity for each in findings} == {"error"}
    (folder / "b.jsonl").write_text("{}\n")
    (finding,) = found(folder, train={"join": [{"path": "a"}, {"path": "b.jsonl"}]})
    assert "can be joined" in finding.what
