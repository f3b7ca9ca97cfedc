from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from energon_grain.migration import Finding, migration_findings
from energon_grain.testing import make_text_dataset

V2 = "__module__: megatron.energon\n__class__: MetadatasetV2\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("meta")
    for name in ("a", "b"):
        make_text_dataset(folder / name, n=100, shards=4)
    return folder


def found(folder: Path, text: str, *, form: str = V2) -> list[Finding]:
    path = folder / "meta.yaml"
    path.write_text(form + dedent(text))
    return migration_findings(path)


def seen(folder: Path, text: str, *, form: str = V2) -> list[tuple[str, str]]:
    return [(finding.severity, finding.where.rpartition("$")[2]) for finding in found(folder, text, form=form)]


def test_nothing_to_say(folder: Path) -> None:
    assert found(folder, "splits: {train: {path: a}, val: {path: a}}") == []


def test_older_form(folder: Path) -> None:
    text = "splits: {train: {datasets: [{path: a, weight: 2, subflavor: x}, {path: b}]}}"
    findings = found(folder, text, form="")
    assert [finding.severity for finding in findings] == ["better", "note"]
    assert "older form" in findings[1].what


def test_mixtures(folder: Path) -> None:
    text = """
    splits:
      train: {blend: [{path: a, weight: 1}, {path: b, weight: 2}]}
      val: {blend: [{path: a, weight: 1}]}
      test:
        blend_epochized:
        - {path: a, split_part: train, repetitions: 0.7, shuffle_over_epochs_multiplier: 3}
        - {path: b, split_part: train, repetitions: 2}
    """
    findings = found(folder, text)
    assert [(each.severity, each.where.rpartition("$")[2]) for each in findings] == [
        ("differs", ".splits.test.blend_epochized[0]"),
        ("better", ".splits.train"),
        ("better", ".splits.test.blend_epochized[0].repetitions"),
    ]
    assert "1 more" in findings[1].what


def test_passes(folder: Path) -> None:
    text = """
    splits:
      train: {path: a, shuffle_over_epochs_multiplier: -1}
      val: {path: a, shuffle_over_epochs_multiplier: null}
    """
    assert seen(folder, text) == [
        ("differs", ".splits.train.shuffle_over_epochs_multiplier"),
        ("better", ".splits.val.shuffle_over_epochs_multiplier"),
    ]


def test_what_energon_ignores_at_joins(folder: Path) -> None:
    text = """
    splits:
      train:
        join:
        - {path: a, subset: {range: [0%, 50%]}}
        - {path: b, nonmatch: skip, aux: {x: a}, shuffle_over_epochs_multiplier: 2}
    """
    assert seen(folder, text) == [
        ("error", ".splits.train.join[0].subset"),
        ("error", ".splits.train.join[1].shuffle_over_epochs_multiplier"),
        ("error", ".splits.train.join[1].aux"),
    ]
    findings = found(folder, "splits: {train: {join: [{path: a}, {path: b}], shuffle_over_epochs_multiplier: 2}}")
    assert findings[0].severity == "differs"
    assert findings[0].energon.startswith("ignores")


def test_aliases(folder: Path) -> None:
    text = """
    splits:
      train: {path: a, subflavors: {kind: &kind x}}
      val: {path: a, subflavors: {kind: *kind}}
    """
    (finding,) = found(folder, text)
    assert (finding.severity, finding.energon) == ("differs", "takes the text '*kind' for the value")


@pytest.mark.parametrize(
    "text",
    [
        "splits: {train: {path: a, colour: red}}",
        "splits: {train: {blend: [{path: a, weight: 50%}]}}",
        "splits: {train: {blend: [{path: a, weight: 0}]}}",
        "splits: [",
        "nothing: 1",
    ],
)
def test_what_cannot_be_read(folder: Path, text: str) -> None:
    (finding,) = found(folder, text)
    assert finding.severity == "error"
    assert not finding.what.startswith(finding.where)


def test_nested_files_are_looked_at_once(folder: Path) -> None:
    (folder / "inner").mkdir(exist_ok=True)
    (folder / "inner/inner.yaml").write_text(V2 + "splits: {train: {path: ../a, shuffle_over_epochs_multiplier: -1}}")
    text = """
    splits:
      train: {path: inner/inner.yaml}
      val: {path: ./inner/inner.yaml, split_part: train}
      test: {path: inner/inner.yaml}
      all: {path: inner/none.yaml}
    """
    findings = found(folder, text)
    assert [(each.severity, Path(each.where.split(":")[0]).name) for each in findings] == [
        ("error", "meta.yaml"),
        ("error", "meta.yaml"),
        ("differs", "inner.yaml"),
    ]
    assert "there is no split 'test'" in findings[0].what
