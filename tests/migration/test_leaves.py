from __future__ import annotations

from pathlib import Path

import pytest
from metadatasets import write_v2

from energon_grain.formats.jsonl_index import write_jsonl_index
from energon_grain.migration import Finding, migration_findings
from energon_grain.testing import make_crude_dataset, make_text_dataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("leaves")
    make_text_dataset(folder / "text", n=100, shards=1)
    make_crude_dataset(folder / "crude", n=8, shards=2)
    (folder / "lines.jsonl").write_text("{}\n")
    (folder / "stale.jsonl").write_text("{}\n")
    write_jsonl_index(folder / "stale.jsonl")
    (folder / "stale.jsonl").write_text("{}\n{}\n")
    return folder


def found(folder: Path, train: str) -> list[Finding]:
    return migration_findings(write_v2(folder, train=train))


@pytest.mark.parametrize(
    ("train", "where", "said"),
    [
        ("{path: stale.jsonl}", ".path", "changed after it was indexed"),
        ("{path: crude, aux: {a: 'filesystem://none'}}", ".aux.a", "no folder"),
        ("{path: text, aux: {a: crude}}", ".aux", "not crude"),
        ("{path: text, split_part: tset}", "", "no split part 'tset'"),
        ("{path: text, subset: {range: [0, 101]}}", ".subset", "only 100 samples"),
    ],
)
def test_what_is_refused(folder: Path, train: str, where: str, said: str) -> None:
    (finding,) = found(folder, train)
    assert (finding.severity, finding.where) == ("error", f"{folder / 'meta.yaml'}: $.splits.train{where}")
    assert said in finding.what


def test_all_missing_datasets_are_listed(folder: Path) -> None:
    findings = found(folder, "{blend: [{path: none}, {path: text}, {path: nothing}]}")
    assert [Path(each.where).name for each in findings if each.severity == "error"] == ["none", "nothing"]


def test_subsets(folder: Path) -> None:
    rounded, whole = found(folder, "{path: text, subset: {range: [0%, 29%]}}")
    assert (rounded.severity, whole.severity) == ("differs", "better")
    assert "0 to 28" in rounded.energon
    assert "0 to 29" in rounded.here
    assert whole.what == "29 of 100 samples."
    assert [each.severity for each in found(folder, "{path: text, subset: {range: [25%, 50%]}}")] == ["better"]
    (finding,) = found(folder, "{path: text, subset: {range: [10, end]}}")
    assert finding.what == "90 of 100 samples."


def test_datasets_that_are_listed_twice(folder: Path) -> None:
    findings = found(folder, "{blend: [{path: text}, {path: ./text}, {path: text, subset: {range: [0, 10]}}]}")
    (finding,) = (each for each in findings if "same order" in each.energon)
    assert (finding.severity, finding.where.rpartition("$")[2]) == ("better", ".splits.train.blend[1]")


def test_auxiliary_stores_need_no_definition(folder: Path) -> None:
    make_crude_dataset(folder / "store", n=4, shards=1)
    for name in ("dataset.yaml", "split.yaml"):
        (folder / "store/.nv-meta" / name).unlink()
    assert found(folder, "{path: crude, aux: {a: store, b: 'filesystem://text'}}") == []
    assert [Path(each.where).name for each in found(folder, "{path: crude, aux: {a: none}}")] == ["none"]


def test_datasets_by_themselves(folder: Path) -> None:
    assert migration_findings(folder / "text") == []
    assert migration_findings(folder / "lines.jsonl") == []
    assert found(folder, "{path: lines.jsonl}") == []
    for path in ("msc://store/coco", folder / "stale.jsonl", folder / "none", folder / "none.yaml"):
        assert [each.severity for each in migration_findings(path)] == ["error"]
