"""Which kind of data is at a path, and kinds of other packages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from energon_grain import ConfigError
from energon_grain.sources import kinds
from energon_grain.sources.kinds import METADATASET, NOTHING, kind_at, kind_by_name


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "x.lines"
    path.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(8)))
    return path


def test_packages_are_not_searched_where_an_own_kind_decides(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AssertionError("searched")

    monkeypatch.setattr(kinds, "_other_kinds", refuse)
    own = lines.rename(lines.with_suffix(".jsonl"))
    assert kind_at(str(own)).name == "jsonl"
    with pytest.raises(AssertionError, match="searched"):
        kind_at(str(lines))


def test_without_the_package_there_is_nothing(lines: Path) -> None:
    assert kind_at(str(lines)) is NOTHING
    with pytest.raises(LookupError, match="no installed package has a kind of data 'lines'"):
        kinds.kind_named("lines")


def test_a_url_that_says_its_kind_is_not_asked_for() -> None:
    for name, kind in (("x.parquet", "parquet"), ("x/index.json", "mds"), ("{0..9}.tar", "bare tars"), ("x", None)):
        found = kind_by_name(f"s3://no-such-bucket/{name}")
        assert (found and found.name) == kind
    assert kind_by_name("s3://no-such-bucket/m.yaml") is METADATASET


def test_files_of_two_kinds_are_refused(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.arrow"):
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=r"holds Parquet files and Arrow files; write which are meant, as .*\.arrow"):
        kind_at(str(tmp_path))
