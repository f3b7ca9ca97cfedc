"""Which kind of data is at a path, and kinds of other packages."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli_runs import run

from energon_grain import ConfigError, DatasetNotFoundError, get_train_dataset, measure_dataset, open_columns
from energon_grain.conversion import convert_dataset
from energon_grain.kinds.jsonl.kind import JSONL
from energon_grain.kinds.jsonl.source import JsonlRows
from energon_grain.sources import kinds
from energon_grain.sources.kinds import METADATASET, NOTHING, Kind, Opened, kind_at, kind_by_name
from energon_grain.sources.source import PartFilter


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "x.lines"
    path.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(8)))
    return path


def _hint(_: str, names: Collection[str]) -> str | None:
    found = [name for name in names if name.endswith(".lines")]
    return f"holds files of lines, such as {found[0]}" if found else None


def test_operations_ask_a_kind_of_another_package(lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(JSONL, name="lines", described="a file of lines", endings=(".lines",), hint=_hint)
    monkeypatch.setattr(kinds, "_other_kinds", lambda: (other,))
    done = run("prepare", lines)
    assert done.exit_code == 0
    assert "8 samples" in done.stdout
    assert lines.with_name("x.lines.idx").exists()
    assert convert_dataset(lines, tmp_path / "tars", num_workers=0).samples == 8
    measure_dataset(lines, attach={"n": f"{lines}:n"}, num_workers=0)
    assert open_columns(lines)["n"].tolist() == [*range(8)]
    done = run("which", lines, "--step", "0", "--batch-size", "2")
    assert done.exit_code == 0
    assert "  bytes  sample" in done.stdout
    with pytest.raises(DatasetNotFoundError, match=r"holds files of lines, such as x\.lines"):
        len(get_train_dataset(tmp_path, batch_size=1, shuffle_buffer_size=None, max_samples_per_sequence=None))


class Bare(JsonlRows):
    kept = None  # type: ignore[assignment]


def test_data_that_keep_no_columns_are_not_measured(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(location: str, parts: PartFilter) -> Opened:
        return Opened(rows=Bare(location, parts=parts), part_names=("json",))

    monkeypatch.setattr(
        kinds, "_other_kinds", lambda: (Kind(name="bare", described="", open=opened, endings=(".lines",)),)
    )
    with pytest.raises(ConfigError, match=r"x\.lines: this kind of data cannot store columns"):
        measure_dataset(lines, attach={"n": np.arange(8)}, num_workers=0)


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
    with pytest.raises(LookupError, match="no installed package provides a kind of data named 'lines'"):
        kinds.kind_named("lines")


def test_a_url_that_says_its_kind_is_not_asked_for() -> None:
    for name, kind in (("x.parquet", "parquet"), ("x/index.json", "mds"), ("{0..9}.tar", "bare tars"), ("x", None)):
        found = kind_by_name(f"s3://no-such-bucket/{name}")
        assert (found and found.name) == kind
    assert kind_by_name("s3://no-such-bucket/m.yaml") is METADATASET


def test_files_of_two_kinds_are_refused(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.arrow"):
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=r"contains Parquet files and Arrow files; name the files to read: .*\.arrow"):
        kind_at(str(tmp_path))
